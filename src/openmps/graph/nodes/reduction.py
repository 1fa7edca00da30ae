"""Reduction nodes (MPSNNGraphNodes.h, macOS 10.14.1)."""

from __future__ import annotations

from openmps.checks import Checked
from openmps.core.kernel.arguments import clip_rectangle
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode
from openmps.types import MPSRectNoClip, MTLRegion


class MPSNNUnaryReductionNode(MPSNNFilterNode):
    """The base of reduction nodes (MPSNNGraphNodes.h, macOS 10.14.1); see `MPSNNReduceUnary`.

    There are no gradients but for `MPSNNReductionSpatialMeanNode`.
    """

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])

    clip_rect_source = Checked[MTLRegion](
        MPSRectNoClip, clip_rectangle, "The pixels of the source that are read, cut to it. Default: all."
    )


class MPSNNReductionRowMinNode(MPSNNUnaryReductionNode):
    """The smallest number of each row and channel: 1 x H x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionColumnMinNode(MPSNNUnaryReductionNode):
    """The smallest number of each column and channel: W x 1 x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsMinNode(MPSNNUnaryReductionNode):
    """The smallest number of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsArgumentMinNode(MPSNNUnaryReductionNode):
    """The channel with the smallest number of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionRowMaxNode(MPSNNUnaryReductionNode):
    """The largest number of each row and channel: 1 x H x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionColumnMaxNode(MPSNNUnaryReductionNode):
    """The largest number of each column and channel: W x 1 x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsMaxNode(MPSNNUnaryReductionNode):
    """The largest number of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsArgumentMaxNode(MPSNNUnaryReductionNode):
    """The channel with the largest number of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionRowMeanNode(MPSNNUnaryReductionNode):
    """The mean of each row and channel: 1 x H x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionColumnMeanNode(MPSNNUnaryReductionNode):
    """The mean of each column and channel: W x 1 x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsMeanNode(MPSNNUnaryReductionNode):
    """The mean of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionSpatialMeanNode(MPSNNUnaryReductionNode):
    """The mean of each channel: 1 x 1 x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionSpatialMeanGradientNode(MPSNNGradientFilterNode):
    """The gradient of the mean of each channel: G / (W H) at every pixel read (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionRowSumNode(MPSNNUnaryReductionNode):
    """The sum of each row and channel: 1 x H x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionColumnSumNode(MPSNNUnaryReductionNode):
    """The sum of each column and channel: W x 1 x C (MPSNNGraphNodes.h, macOS 10.14.1)."""


class MPSNNReductionFeatureChannelsSumNode(MPSNNUnaryReductionNode):
    """`weight` times the sum of each pixel: W x H x 1 (MPSNNGraphNodes.h, macOS 10.14.1)."""

    weight: float = 1.0
    """Factor of every feature channel. Default 1."""
