"""Softmax and log-softmax nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from typing import ClassVar

from openmps.graph.nodes import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNGradientStateNode, MPSNNImageNode


class MPSCNNSoftMaxNode(MPSNNFilterNode):
    """Softmax over feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

    _state_class = MPSNNGradientStateNode

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        return [MPSCNNSoftMaxGradientNode(gradient, self.sources[0], self._result_states[0])]


class MPSCNNSoftMaxGradientNode(MPSNNGradientFilterNode):
    """The gradient of softmax (MPSNNGraphNodes.h, macOS 10.13.4); its kernel gets the forward RESULT."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNSoftMaxNode


class MPSCNNLogSoftMaxNode(MPSNNFilterNode):
    """Log-softmax over feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

    _state_class = MPSNNGradientStateNode

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        return [MPSCNNLogSoftMaxGradientNode(gradient, self.sources[0], self._result_states[0])]


class MPSCNNLogSoftMaxGradientNode(MPSNNGradientFilterNode):
    """The gradient of log-softmax (MPSNNGraphNodes.h, macOS 10.13.4); its kernel gets the forward RESULT."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNLogSoftMaxNode
