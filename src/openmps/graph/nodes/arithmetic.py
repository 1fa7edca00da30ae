"""Nodes that compute with two images, and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.checks import FLT_MAX, Checked, Shown, flag, listed
from openmps.enumerated import member_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.types import MPSNNComparisonType


class MPSNNBinaryArithmeticNode(MPSNNFilterNode):
    """The base of arithmetic nodes on two images (MPSNNGraphNodes.h, macOS 10.13.4); see `MPSCNNArithmetic`.

    Give ``left_source`` and ``right_source``, or both in ``sources``, which may come first. Scales are 1, the bias 0,
    strides 1 and the bounds those of float32 unless they are set.
    """

    primary_scale: float = 1.0
    """Factor of the left source."""
    secondary_scale: float = 1.0
    """Factor of the right source."""
    bias: float = 0.0
    """Added to the result."""
    primary_stride_in_pixels_x: int = 1
    """1, or 0 to use the left source's first column for all."""
    primary_stride_in_pixels_y: int = 1
    """1, or 0 to use the left source's first row for all."""
    primary_stride_in_feature_channels: int = 1
    """1, or 0 to use the left source's first feature channel for all."""
    secondary_stride_in_pixels_x: int = 1
    """1, or 0 to use the right source's first column for all."""
    secondary_stride_in_pixels_y: int = 1
    """1, or 0 to use the right source's first row for all."""
    secondary_stride_in_feature_channels: int = 1
    """1, or 0 to use the right source's first feature channel for all."""
    minimum_value: float = -FLT_MAX
    """Smallest result."""
    maximum_value: float = FLT_MAX
    """Largest result."""

    def __init__(
        self,
        left_source: MPSNNImageNode | Sequence[MPSNNImageNode] | None = None,
        right_source: MPSNNImageNode | None = None,
        *,
        sources: Sequence[MPSNNImageNode] | None = None,
    ) -> None:
        first = list(left_source) if isinstance(left_source, Sequence) else [left_source]
        given = [source for source in (*first, right_source) if source is not None]
        given += listed(type(self).__name__, "sources", sources, "MPSNNImageNode")
        if len(given) != 2:
            raise MPSArgumentError(type(self).__name__, "sources", "must be two image nodes", f"{len(given)}")
        super().__init__(given)

    def gradient_class(self) -> type[MPSNNArithmeticGradientNode]:
        """The class of the gradient nodes."""
        return self._gradient_row().node

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        make = self.gradient_class()
        return [
            make(gradient_images=[gradient], forward_filter=self, is_secondary_source_filter=bool(index))
            for index in range(2)
        ]


class MPSNNArithmeticGradientNode(MPSNNGradientFilterNode):
    """The base of arithmetic gradient nodes, one for each forward source (MPSNNGraphNodes.h, macOS 10.13.4).

    Made from ``gradient_images`` (the gradient, and the source image if it is given too) and a ``forward_filter``, or
    from ``source_gradient``, ``source_image`` and ``gradient_state``. Scales, strides and bounds tell what the forward
    node says when this one is made; the kernel takes them from the forward encode.
    """

    primary_scale: float
    """Factor of the left forward source."""
    secondary_scale: float
    """Factor of the right forward source."""
    bias: float
    """Added to the forward result."""
    secondary_stride_in_pixels_x: int
    """1, or 0 if the forward source's first column served all."""
    secondary_stride_in_pixels_y: int
    """1, or 0 if the forward source's first row served all."""
    secondary_stride_in_feature_channels: int
    """1, or 0 if the forward source's first feature channel served all."""
    minimum_value: float
    """Smallest forward result."""
    maximum_value: float
    """Largest forward result."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode | Sequence[MPSNNImageNode] | None = None,
        source_image: MPSNNImageNode | MPSNNFilterNode | None = None,
        gradient_state: MPSNNStateNode | bool | None = None,
        is_secondary_source_filter: bool = False,
        *,
        gradient_images: Sequence[MPSNNImageNode] | None = None,
        forward_filter: MPSNNFilterNode | None = None,
    ) -> None:
        if isinstance(source_gradient, Sequence):
            gradient_images, source_gradient = source_gradient, None
        if isinstance(source_image, MPSNNFilterNode):
            forward_filter, source_image = source_image, None
        if isinstance(gradient_state, bool):
            is_secondary_source_filter, gradient_state = gradient_state, None
        is_secondary = flag(type(self).__name__, "is_secondary_source_filter", is_secondary_source_filter)
        index = int(is_secondary)
        state = gradient_state
        if gradient_images is not None and isinstance(forward_filter, MPSNNBinaryArithmeticNode):
            source_gradient = gradient_images[0] if len(gradient_images) in (1, 2) else None
            source_image, state = forward_filter.sources[index], forward_filter.result_state
        if source_gradient is None or source_image is None or state is None:
            rule = "must be source_gradient, source_image and gradient_state, or a gradient image and forward_filter"
            raise MPSTypeError(type(self).__name__, "arguments", rule)
        super().__init__(source_gradient, source_image, state)
        self._is_secondary = is_secondary
        source = ("primary", "secondary")[index]
        for name in ("primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"):
            setattr(self, name, getattr(self.forward, name))
        for axis in ("pixels_x", "pixels_y", "feature_channels"):
            setattr(self, f"secondary_stride_in_{axis}", getattr(self.forward, f"{source}_stride_in_{axis}"))

    is_secondary_source_filter = Shown[bool](
        "_is_secondary", "Whether this is the gradient of the forward node's right source."
    )


class MPSNNAdditionNode(MPSNNBinaryArithmeticNode):
    """Addition of two images (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSNNAdditionGradientNode(MPSNNArithmeticGradientNode):
    """The gradient of addition (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSNNSubtractionNode(MPSNNBinaryArithmeticNode):
    """The left image less the right one (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSNNSubtractionGradientNode(MPSNNArithmeticGradientNode):
    """The gradient of subtraction (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSNNMultiplicationNode(MPSNNBinaryArithmeticNode):
    """Multiplication of two images, number by number (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSNNMultiplicationGradientNode(MPSNNArithmeticGradientNode):
    """The gradient of multiplication (MPSNNGraphNodes.h, macOS 10.13.4); its kernel gets the OTHER forward source."""


class MPSNNDivisionNode(MPSNNBinaryArithmeticNode):
    """The left image divided by the right one, number by number (MPSNNGraphNodes.h, macOS 10.13). No gradient."""


class MPSNNComparisonNode(MPSNNBinaryArithmeticNode):
    """1 where two images compare as said, else 0 (MPSNNGraphNodes.h, macOS 10.14.1). No gradient."""

    comparison_type = Checked[MPSNNComparisonType](
        MPSNNComparisonType.EQUAL, member_of(MPSNNComparisonType), "How numbers are compared. Default EQUAL."
    )
