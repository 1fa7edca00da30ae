"""Softmax and log-softmax nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode


class MPSCNNSoftMaxNode(MPSNNFilterNode):
    """Softmax over feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])


class MPSCNNSoftMaxGradientNode(MPSNNGradientFilterNode):
    """The gradient of softmax (MPSNNGraphNodes.h, macOS 10.13.4); its kernel gets the forward RESULT."""


class MPSCNNLogSoftMaxNode(MPSNNFilterNode):
    """Log-softmax over feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])


class MPSCNNLogSoftMaxGradientNode(MPSNNGradientFilterNode):
    """The gradient of log-softmax (MPSNNGraphNodes.h, macOS 10.13.4); its kernel gets the forward RESULT."""
