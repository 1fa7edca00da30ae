"""The node of Gram matrices and its gradient node (MPSNNGraphNodes.h, macOS 10.15)."""

from __future__ import annotations

from openmps.checks import Checked, Shown, number
from openmps.graph.nodes.callbacks import ALPHA, MPSNNGramMatrixCallback
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode


class MPSNNGramMatrixCalculationNode(MPSNNFilterNode):
    """The products of all pairs of feature channels (MPSNNGraphNodes.h, macOS 10.15).

    See `MPSNNGramMatrixCalculation`. ``alpha`` multiplies them, 1 unless given.
    """

    def __init__(self, source: MPSNNImageNode, alpha: float = 1.0) -> None:
        super().__init__([source])
        self._alpha = number(self.name, "alpha", alpha)

    alpha = Shown[float]("_alpha", "Factor of the result. Default 1.")

    property_call_back = Checked[MPSNNGramMatrixCallback | None](
        None, ALPHA.check, "Asked for `alpha` at each encode, if there is one. Default None."
    )


class MPSNNGramMatrixCalculationGradientNode(MPSNNGradientFilterNode):
    """The gradient of a Gram matrix (MPSNNGraphNodes.h, macOS 10.15); its kernel takes the forward encode's alpha."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._alpha = number(self.name, "alpha", alpha)

    alpha = Shown[float]("_alpha", "Factor of the forward result. Default 1.")
