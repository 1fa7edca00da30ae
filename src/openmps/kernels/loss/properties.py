"""What the loss kernels tell of their loss, and what of it some of them let be changed (MPSCNNLoss.h)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from openmps.core.kernel.base import MPSKernel
from openmps.core.numbers import number
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.types import MPSCNNLossType, MPSCNNReductionType

if TYPE_CHECKING:
    from openmps.ops.loss import LossParameters

_VALUES = ("weight", "label_smoothing", "number_of_classes", "epsilon", "delta", "reduce_across_batch")
"""What a descriptor holds besides the types, under the names of the kernels' properties."""


def checked_descriptor(who: str, loss_descriptor: object) -> MPSCNNLossDescriptor:
    """``loss_descriptor`` if it is one."""
    if not isinstance(loss_descriptor, MPSCNNLossDescriptor):
        raise MPSTypeError(who, "loss_descriptor", "must be an MPSCNNLossDescriptor", type(loss_descriptor).__name__)
    return loss_descriptor


class LossProperties(MPSKernel):
    """The values of the descriptor that a loss kernel was made with."""

    _loss: LossParameters

    @property
    def loss_descriptor(self) -> MPSCNNLossDescriptor:
        """A descriptor with the values as they stand; the framework tells them one by one only."""
        descriptor = MPSCNNLossDescriptor(self.loss_type, self.reduction_type)
        for name in _VALUES:
            setattr(descriptor, name, getattr(self, name))
        return descriptor

    @property
    def loss_type(self) -> MPSCNNLossType:
        """Which loss."""
        return self._loss.kind

    @property
    def reduction_type(self) -> MPSCNNReductionType:
        """How the losses of an image become its loss."""
        return self._loss.reduction

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the first loss image takes the total of the batch."""
        return self._loss.reduce_across_batch

    @property
    def number_of_classes(self) -> int:
        """Classes that softmax cross-entropy's smoothing spreads over."""
        return self._loss.number_of_classes

    @property
    def weight(self) -> float:
        """Factor of loss and gradient."""
        return self._loss.weight

    @property
    def label_smoothing(self) -> float:
        """How far labels are softened."""
        return self._loss.label_smoothing

    @property
    def epsilon(self) -> float:
        """Guard of LOG's logarithms."""
        return self._loss.epsilon

    @property
    def delta(self) -> float:
        """Where HUBER turns linear."""
        return self._loss.delta


class AdjustableLossProperties(LossProperties):
    """Loss kernels whose weight, smoothing, epsilon and delta may be changed from encode to encode."""

    @property
    def weight(self) -> float:
        """Factor of the loss; per-label weights take its place."""
        return self._loss.weight

    @weight.setter
    def weight(self, value: float) -> None:
        self._adjust("weight", value)

    @property
    def label_smoothing(self) -> float:
        """How far labels of softmax and sigmoid cross-entropy are softened."""
        return self._loss.label_smoothing

    @label_smoothing.setter
    def label_smoothing(self, value: float) -> None:
        self._adjust("label_smoothing", value)

    @property
    def epsilon(self) -> float:
        """Guard of LOG's logarithms."""
        return self._loss.epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._adjust("epsilon", value)

    @property
    def delta(self) -> float:
        """Where HUBER turns linear, at least 0."""
        return self._loss.delta

    @delta.setter
    def delta(self, value: float) -> None:
        self._adjust("delta", value)

    def _adjust(self, argument: str, value: float) -> None:
        checked = number(self.name, argument, value)
        try:
            self._loss = replace(self._loss, **{argument: checked})
        except MPSArgumentError as fault:
            raise MPSArgumentError(self.name, fault.argument, fault.rule, fault.got) from fault
