"""Dropout nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import NamedTuple

from openmps.checks import Shown
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.types import MTLSize

_EVERY_NUMBER = MTLSize(1, 1, 1)


class _Parameters(NamedTuple):
    keep_probability: float
    seed: int
    mask_stride: MTLSize


class _DropoutParameters:
    """What dropout and its gradient are told; see `MPSCNNDropout`."""

    _parameters: _Parameters

    keep_probability = Shown[float]("_parameters.keep_probability", "Probability that a number is kept. Default 0.5.")
    seed = Shown[int]("_parameters.seed", "The key of the random numbers. Default 0.")
    mask_stride_in_pixels = Shown[MTLSize](
        "_parameters.mask_stride",
        "1 draws a mask value for each place of an axis, 0 shares one; depth stands for channels. Default 1, 1, 1.",
    )


class MPSCNNDropoutNode(_DropoutParameters, MPSNNFilterNode):
    """Dropout (MPSNNGraphNodes.h, macOS 10.13.4). Leave it out of networks for inference."""

    def __init__(
        self,
        source: MPSNNImageNode,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: MTLSize = _EVERY_NUMBER,
    ) -> None:
        super().__init__([source])
        self._parameters = _Parameters(keep_probability, seed, mask_stride_in_pixels)


class MPSCNNDropoutGradientNode(_DropoutParameters, MPSNNGradientFilterNode):
    """The gradient of dropout (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        keep_probability: float,
        seed: int,
        mask_stride_in_pixels: MTLSize,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._parameters = _Parameters(keep_probability, seed, mask_stride_in_pixels)
