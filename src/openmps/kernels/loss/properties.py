"""What the loss kernels tell of their loss, and what of it some of them let be changed (MPSCNNLoss.h)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from openmps.checks import Shown, number, of_kind
from openmps.core.kernel.configuration import Configured, Setting, T
from openmps.errors import MPSArgumentError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.ops.loss.loss import LossParameters
from openmps.types import MPSCNNLossType, MPSCNNReductionType

_VALUES = ("weight", "label_smoothing", "number_of_classes", "epsilon", "delta", "reduce_across_batch")
"""What a descriptor holds besides the types, under the names of the kernels' properties."""


_READINGS = (
    (MPSCNNLossType.HINGE, "hinge_signs", "hinge_labels", "signs"),
    (MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, "exact_slope", "soft_max_slope", "derivative"),
    (MPSCNNLossType.COSINE_DISTANCE, "ones_of_pixels", "cosine_distance", "pixel"),
)
"""Fields of the loss that a convention sets, of which kind, and for which choice."""


def checked_descriptor(who: str, loss_descriptor: object) -> MPSCNNLossDescriptor:
    """``loss_descriptor`` if it is one."""
    return of_kind(who, "loss_descriptor", loss_descriptor, MPSCNNLossDescriptor)


class LossProperties(Configured):
    """The values of the descriptor that a loss kernel was made with."""

    _loss = Setting[LossParameters]()

    loss_type = Shown[MPSCNNLossType]("_loss.kind", "Which loss.")
    reduction_type = Shown[MPSCNNReductionType]("_loss.reduction", "How the losses of an image become its loss.")
    reduce_across_batch = Shown[bool](
        "_loss.reduce_across_batch", "Whether the first loss image takes the total of the batch."
    )
    number_of_classes = Shown[int](
        "_loss.number_of_classes", "Classes that softmax cross-entropy's smoothing spreads over."
    )
    weight = Shown[float]("_loss.weight", "Factor of loss and gradient.")
    label_smoothing = Shown[float]("_loss.label_smoothing", "How far labels are softened.")
    epsilon = Shown[float]("_loss.epsilon", "Guard of LOG's logarithms.")
    delta = Shown[float]("_loss.delta", "Where HUBER turns linear.")

    def _read_by_convention(
        self, loss: LossParameters, *, is_weighted: bool, has_gradient: bool = True
    ) -> LossParameters:
        """A loss, as the conventions that matter for it read it."""
        chosen = dict[str, bool]()
        for kind, field, name, choice in _READINGS:
            if loss.kind is kind and (has_gradient or name != "soft_max_slope"):
                chosen[field] = self.conventions[name] == choice
        if is_weighted:
            chosen["multiplies_weights"] = self.conventions["loss_weights"] == "product"
        is_mean = loss.reduce_across_batch and (loss.reduction is MPSCNNReductionType.MEAN or loss.divides_gradient)
        if is_mean and loss.kind is MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY:
            chosen["counts_channels"] = self.conventions["batch_divisor"] == "numbers"
        return replace(loss, **chosen)

    @property
    def loss_descriptor(self) -> MPSCNNLossDescriptor:
        """A descriptor with the values as they stand; the framework tells them one by one only."""
        descriptor = MPSCNNLossDescriptor(self.loss_type, self.reduction_type)
        for name in _VALUES:
            setattr(descriptor, name, getattr(self, name))
        return descriptor


def _adjust(argument: str, kernel: LossProperties, value: Any) -> None:
    """Set a number of the loss."""
    checked = number(kernel.name, argument, value)
    try:
        kernel._loss = replace(kernel._loss, **{argument: checked})  # pyright: ignore[reportPrivateUsage]
    except MPSArgumentError as fault:
        raise MPSArgumentError(kernel.name, fault.argument, fault.rule, fault.got) from fault


class _Number(Shown[T]):
    """A number of the loss that may be changed."""

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(f"_loss.{name}", doc, partial(_adjust, name))

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: T, /) -> None: ...


class AdjustableLossProperties(LossProperties):
    """Loss kernels whose weight, smoothing, epsilon and delta may be changed from encode to encode."""

    weight = _Number[float]("weight", "Factor of the loss; per-label weights take its place.")
    label_smoothing = _Number[float](
        "label_smoothing", "How far labels of softmax and sigmoid cross-entropy are softened."
    )
    epsilon = _Number[float]("epsilon", "Guard of LOG's logarithms.")
    delta = _Number[float]("delta", "Where HUBER turns linear, at least 0.")
