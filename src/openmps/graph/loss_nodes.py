"""Loss nodes (MPSNNGraphNodes.h, macOS 10.13.4)."""

from __future__ import annotations

from openmps.checks import Shown
from openmps.errors import MPSTypeError
from openmps.graph.nodes import MPSNNFilterNode, MPSNNImageNode, MPSNNLabelsNode
from openmps.kernels.loss import MPSCNNLossDescriptor


class MPSCNNLossNode(MPSNNFilterNode):
    """A loss (MPSNNGraphNodes.h, macOS 10.13.4); its result image is the gradient of its source.

    `input_labels` is a state input of the graph: one `MPSCNNLossLabels` an image.
    """

    def __init__(self, source: MPSNNImageNode, loss_descriptor: MPSCNNLossDescriptor) -> None:
        if not isinstance(loss_descriptor, MPSCNNLossDescriptor):
            rule, got = "must be an MPSCNNLossDescriptor", type(loss_descriptor).__name__
            raise MPSTypeError(type(self).__name__, "loss_descriptor", rule, got)
        self._labels = MPSNNLabelsNode()
        super().__init__([source], [self._labels])
        self._descriptor = loss_descriptor.copy()

    loss_descriptor = Shown[MPSCNNLossDescriptor]("_descriptor", "Which loss: a copy of the descriptor that was given.")
    input_labels = Shown[MPSNNLabelsNode](
        "_labels", "The labels, an input of the graph; set its handle to find it in `MPSNNGraph.source_state_handles`."
    )
