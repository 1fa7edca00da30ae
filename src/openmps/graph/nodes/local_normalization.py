"""Nodes that normalize by the numbers around each number, and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

from openmps.checks import Shown, whole
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode

_SIZE = 5
"""The window where an initializer takes none; the header says it of no class but the kernel over channels."""


class MPSCNNNormalizationNode(MPSNNFilterNode):
    """The base of local normalization nodes (MPSNNGraphNodes.h, macOS 10.13)."""

    alpha: float = 1.0
    """Factor of the mean of squares, or of the variance. Default 1."""
    beta: float = 5.0
    """Exponent of the divisor. Default 5."""
    delta: float = 1.0
    """Added to what alpha multiplies. Default 1."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])


class _SquareWindow:
    """A window over pixels; kernels want it square."""

    kernel_width: int
    """Columns of the window."""
    kernel_height: int
    """Rows of the window; the framework wants as many."""

    def _set_size(self, kernel_size: int) -> None:
        self.kernel_width = self.kernel_height = whole(type(self).__name__, "kernel_size", kernel_size)

    kernel_size = Shown[int]("kernel_width", "Columns of the window. Our addition.")


class MPSCNNSpatialNormalizationNode(_SquareWindow, MPSCNNNormalizationNode):
    """Normalization over pixels (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNSpatialNormalization`.

    ``kernel_size`` is a square window, 5 unless given: the header does not say.
    """

    def __init__(self, source: MPSNNImageNode, kernel_size: int = _SIZE) -> None:
        super().__init__(source)
        self._set_size(kernel_size)


class MPSCNNSpatialNormalizationGradientNode(_SquareWindow, MPSNNGradientFilterNode):
    """The gradient of normalization over pixels (MPSNNGraphNodes.h, macOS 10.13.4).

    Its kernel takes the parameters of the forward encode.
    """

    alpha: float = 1.0
    """Factor of the mean of squares. Default 1."""
    beta: float = 5.0
    """Exponent of the divisor. Default 5."""
    delta: float = 1.0
    """Added to the mean of squares. Default 1."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        kernel_size: int,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._set_size(kernel_size)


class _Contrast:
    """What local contrast normalization and its gradient alike are told."""

    beta: float = 0.5
    """Exponent of the divisor. Default 0.5."""
    delta: float = 2.0**-10
    """Added to the variance. Default 1/1024."""
    pm: float = 0.0
    """Added to the result. Default 0."""
    ps: float = 1.0
    """Factor of the result. Default 1."""
    p0: float = 1.0
    """How much of the mean is taken off. Default 1."""


class MPSCNNLocalContrastNormalizationNode(_SquareWindow, _Contrast, MPSCNNNormalizationNode):
    """Local contrast normalization (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNLocalContrastNormalization`.

    `alpha` is 1 here, other than in the kernel. ``kernel_size`` is a square window, 5 unless given: the header does not
    say.
    """

    def __init__(self, source: MPSNNImageNode, kernel_size: int = _SIZE) -> None:
        super().__init__(source)
        self._set_size(kernel_size)


class MPSCNNLocalContrastNormalizationGradientNode(_Contrast, MPSNNGradientFilterNode):
    """The gradient of local contrast normalization (MPSNNGraphNodes.h, macOS 10.13.4).

    Its kernel takes the parameters of the forward encode.
    """

    alpha: float = 0.0
    """Factor of the variance. Default 0; that of the forward node, if that made this one."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        kernel_width: int,
        kernel_height: int,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._width = whole(self.name, "kernel_width", kernel_width)
        self._height = whole(self.name, "kernel_height", kernel_height)

    kernel_width = Shown[int]("_width", "Columns of the window.")
    kernel_height = Shown[int]("_height", "Rows of the window.")


class MPSCNNCrossChannelNormalizationNode(MPSCNNNormalizationNode):
    """Normalization over feature channels (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNCrossChannelNormalization`.

    ``kernel_size`` is the number of channels in the window, 5 unless given.
    """

    kernel_size_in_feature_channels: int
    """Channels of the window."""

    def __init__(self, source: MPSNNImageNode, kernel_size: int = _SIZE) -> None:
        super().__init__(source)
        self.kernel_size_in_feature_channels = whole(self.name, "kernel_size", kernel_size)

    kernel_size = Shown[int]("kernel_size_in_feature_channels", "Channels of the window. Our addition.")


class MPSCNNCrossChannelNormalizationGradientNode(MPSNNGradientFilterNode):
    """The gradient of normalization over feature channels (MPSNNGraphNodes.h, macOS 10.13.4).

    Its kernel takes the parameters of the forward encode.
    """

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        kernel_size: int,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._kernel_size = whole(self.name, "kernel_size", kernel_size)

    kernel_size = Shown[int]("_kernel_size", "Channels of the window.")
