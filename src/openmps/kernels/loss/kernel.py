"""MPSCNNLoss: loss and first gradient in one encode (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.labelled import Evaluation, LabelledLoss
from openmps.kernels.loss.properties import LossProperties, checked_descriptor
from openmps.ops.loss import loss
from openmps.types import MPSCNNLossType, MPSCNNReductionType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSCNNLoss(LossProperties, LabelledLoss):
    """Loss and its gradient in one encode (MPSCNNLoss.h, macOS 10.13.4).

    The source image holds the predictions, the labels an `MPSCNNLossLabels` for each image; the RESULT is the gradient
    of the loss with respect to the predictions, the loss itself goes to ``labels.loss_image()``. The gradient carries
    the descriptor's `weight` (or the labels' weights) but no division by a mean: the reduction changes the reported
    value only.
    """

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        self._loss = checked_descriptor(self.name, loss_descriptor).parameters()

    def _evaluation(self, channels: int) -> Evaluation:
        return partial(loss, parameters=self._loss)

    def _loss_reduction(self) -> MPSCNNReductionType:
        return self.reduction_type

    def _takes_weights(self) -> bool:
        return self.loss_type is not MPSCNNLossType.COSINE_DISTANCE
