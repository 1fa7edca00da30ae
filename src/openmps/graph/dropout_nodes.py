"""Dropout nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import ClassVar

from openmps.graph.nodes import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNGradientStateNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.types import MTLSize

_EVERY_NUMBER = MTLSize(1, 1, 1)


class _DropoutParameters:
    """What dropout and its gradient are told; see `MPSCNNDropout`."""

    _parameters: tuple[float, int, MTLSize]

    @property
    def keep_probability(self) -> float:
        """Probability that a number is kept. Default 0.5."""
        return self._parameters[0]

    @property
    def seed(self) -> int:
        """The key of the random numbers. Default 0."""
        return self._parameters[1]

    @property
    def mask_stride_in_pixels(self) -> MTLSize:
        """1 draws a mask value for each place of an axis, 0 shares one; depth stands for channels. Default 1, 1, 1."""
        return self._parameters[2]


class MPSCNNDropoutNode(_DropoutParameters, MPSNNFilterNode):
    """Dropout (MPSNNGraphNodes.h, macOS 10.13.4). Leave it out of networks for inference."""

    _state_class = MPSNNGradientStateNode

    def __init__(
        self,
        source: MPSNNImageNode,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: MTLSize = _EVERY_NUMBER,
    ) -> None:
        super().__init__([source])
        self._parameters = (keep_probability, seed, mask_stride_in_pixels)

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        return [MPSCNNDropoutGradientNode(gradient, self.sources[0], self._result_states[0], *self._parameters)]


class MPSCNNDropoutGradientNode(_DropoutParameters, MPSNNGradientFilterNode):
    """The gradient of dropout (MPSNNGraphNodes.h, macOS 10.13.4)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNDropoutNode

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
        self._parameters = (keep_probability, seed, mask_stride_in_pixels)
