"""Nodes that change the shape of images, and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 to 10.14.1)."""

from __future__ import annotations

from openmps.checks import Shown, flag, of_kind, whole
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.graph.nodes.callbacks import TRANSFORM, MPSImageTransformProvider
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.selectors import takes
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode, MTLSize


class MPSNNReshapeNode(MPSNNFilterNode):
    """The same numbers in another shape (MPSNNGraphNodes.h, macOS 10.14.1); see `MPSNNReshape`."""

    def __init__(
        self, source: MPSNNImageNode, result_width: int, result_height: int, result_feature_channels: int
    ) -> None:
        super().__init__([source])
        self._width = whole(self.name, "result_width", result_width)
        self._height = whole(self.name, "result_height", result_height)
        self._channels = whole(self.name, "result_feature_channels", result_feature_channels)

    result_width = Shown[int]("_width", "Columns of the result. Our addition.")
    result_height = Shown[int]("_height", "Rows of the result. Our addition.")
    result_feature_channels = Shown[int]("_channels", "Feature channels of the result. Our addition.")


class MPSNNReshapeGradientNode(MPSNNGradientFilterNode):
    """The gradient of a reshape: the gradient in the source's shape (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNPadNode(MPSNNFilterNode):
    """Padding of pixels and feature channels (MPSNNGraphNodes.h, macOS 10.14.1); see `MPSNNPad`."""

    fill_value: float = 0.0
    """What is read outside with the edge mode CONSTANT. Default 0."""

    def __init__(
        self,
        source: MPSNNImageNode,
        padding_size_before: MPSImageCoordinate,
        padding_size_after: MPSImageCoordinate,
        edge_mode: MPSImageEdgeMode,
    ) -> None:
        super().__init__([source])
        self._before = of_kind(self.name, "padding_size_before", padding_size_before, MPSImageCoordinate)
        self._after = of_kind(self.name, "padding_size_after", padding_size_after, MPSImageCoordinate)
        self._edge_mode = member(self.name, "edge_mode", MPSImageEdgeMode, edge_mode)

    padding_size_before = Shown[MPSImageCoordinate]("_before", "Columns, rows and channels before. Our addition.")
    padding_size_after = Shown[MPSImageCoordinate]("_after", "Columns, rows and channels behind. Our addition.")
    edge_mode = Shown[MPSImageEdgeMode]("_edge_mode", "How the source goes on beyond its edges. Our addition.")


class MPSNNPadGradientNode(MPSNNGradientFilterNode):
    """The gradient of padding (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNScaleNode(MPSNNFilterNode):
    """The base of nodes that scale pictures (MPSNNGraphNodes.h, macOS 10.13); see `MPSImageScale`.

    ``(source, output_size)`` or ``(source, transform_provider, output_size)``. The result has the width and height of
    ``output_size``, and the source's feature channels, which its depth may tell; 0 and 1 say nothing. The provider is
    asked for the transform at each encode, for images of the source's shape; without one the source fills the result.
    There is no gradient.
    """

    def __init__(
        self,
        source: MPSNNImageNode,
        transform_provider: MPSImageTransformProvider | MTLSize | None = None,
        output_size: MTLSize | None = None,
    ) -> None:
        super().__init__([source])
        if isinstance(transform_provider, MTLSize) and output_size is None:
            transform_provider, output_size = None, transform_provider
        output_size = of_kind(self.name, "output_size", output_size, MTLSize)
        if min(output_size.width, output_size.height) < 1 or output_size.depth < 0:
            raise MPSArgumentError(self.name, "output_size", "must have at least one pixel", output_size)
        self._provider = TRANSFORM.check(self.name, "transform_provider", transform_provider)
        self._size = output_size

    transform_provider = Shown[MPSImageTransformProvider | None]("_provider", "Says what is shown. Our addition.")
    output_size = Shown[MTLSize]("_size", "Columns and rows of the result, and its channels. Our addition.")


class MPSNNBilinearScaleNode(MPSNNScaleNode):
    """Bilinear scaling of pictures (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSNNLanczosScaleNode(MPSNNScaleNode):
    """Lanczos scaling of pictures (MPSNNGraphNodes.h, macOS 10.13)."""


class _Factors(MPSNNFilterNode):
    """Two whole factors."""

    def _take(self, x: int, y: int) -> None:
        self._x = whole(self.name, "integer_scale_factor_x", x)
        self._y = whole(self.name, "integer_scale_factor_y", y)
        self._scale_x, self._scale_y = float(x), float(y)

    scale_factor_x = Shown[float]("_scale_x", "Columns of the larger image for each column of the smaller one.")
    scale_factor_y = Shown[float]("_scale_y", "Rows of the larger image for each row of the smaller one.")
    integer_scale_factor_x = Shown[int]("_x", "`scale_factor_x` as an integer. Our addition.")
    integer_scale_factor_y = Shown[int]("_y", "`scale_factor_y` as an integer. Our addition.")


class MPSCNNUpsamplingNearestNode(_Factors):
    """Upsampling to the nearest pixel (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNUpsamplingNearest`."""

    def __init__(self, source: MPSNNImageNode, integer_scale_factor_x: int, integer_scale_factor_y: int) -> None:
        super().__init__([source])
        self._take(integer_scale_factor_x, integer_scale_factor_y)


class MPSCNNUpsamplingBilinearNode(_Factors):
    """Bilinear upsampling (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNUpsamplingBilinear`."""

    def __init__(
        self,
        source: MPSNNImageNode,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        align_corners: bool = False,
    ) -> None:
        super().__init__([source])
        self._take(integer_scale_factor_x, integer_scale_factor_y)
        self._align_corners = flag(self.name, "align_corners", align_corners)

    align_corners = Shown[bool](
        "_align_corners", "Whether the corner pixels of source and result fall together. Default False."
    )


class _UpsamplingGradient(_Factors, MPSNNGradientFilterNode):
    """A gradient node with the forward node's factors."""

    @takes()
    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        scale_factor_x: float,
        scale_factor_y: float,
    ) -> None:
        MPSNNGradientFilterNode.__init__(self, source_gradient, source_image, gradient_state)
        for name, value in (("scale_factor_x", scale_factor_x), ("scale_factor_y", scale_factor_y)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
                raise MPSArgumentError(self.name, name, "must be a whole number, as the forward node's", repr(value))
        self._take(int(scale_factor_x), int(scale_factor_y))


class MPSCNNUpsamplingNearestGradientNode(_UpsamplingGradient):
    """The gradient of upsampling to the nearest pixel (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNUpsamplingBilinearGradientNode(_UpsamplingGradient):
    """The gradient of bilinear upsampling (MPSNNGraphNodes.h, macOS 10.13.4)."""
