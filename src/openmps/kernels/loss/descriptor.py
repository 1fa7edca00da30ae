"""Which loss, how it is reduced, and its parameters (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from numbers import Integral

from openmps.checks import NamedAttributes
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.loss.loss import LossParameters
from openmps.selectors import Factory, name_arguments
from openmps.types import MPSCNNLossType, MPSCNNReductionType


@name_arguments
class MPSCNNLossDescriptor(NamedAttributes):
    """Which loss, how it is reduced, and its parameters (MPSCNNLoss.h, macOS 10.13.4).

    `weight` (1) scales loss and gradient; `label_smoothing` (0) and `number_of_classes` (1) soften the labels of
    softmax cross-entropy, ``t (1 - e) + e / classes``, and sigmoid cross-entropy, ``t (1 - e) + e / 2``; `epsilon`
    (1e-7) belongs to LOG, `delta` (1) to HUBER; `reduce_across_batch` (macOS 11) puts the batch's total into the first
    loss image.

    The reduction changes the loss that is reported, never the gradient, which is that of the sum: MEAN divides the one
    and not the other. For the gradient of a mean let `weight` be 1 / (W H C), or 1 / (W H C N) for that of a batch;
    SUM with this weight reports the mean, too.
    """

    loss_type: MPSCNNLossType
    """Which loss."""
    reduction_type: MPSCNNReductionType
    """How the losses of an image become its loss; the gradient does not depend on it."""
    weight: float = 1.0
    """Factor of loss and gradient."""
    label_smoothing: float = 0.0
    """How far labels are softened."""
    number_of_classes: int = 1
    """Classes that the smoothing of softmax cross-entropy spreads over."""
    epsilon: float = 1e-7
    """Guard of the logarithms of LOG."""
    delta: float = 1.0
    """Where HUBER turns linear."""
    reduce_across_batch: bool = False
    """Whether the first loss image takes the total of the batch (macOS 11)."""

    cnn_loss_descriptor = Factory("cnnLossDescriptorWithType:reductionType:")

    def __init__(self, type: MPSCNNLossType, reduction_type: MPSCNNReductionType = MPSCNNReductionType.NONE) -> None:
        self.loss_type = member(_WHO, "type", MPSCNNLossType, type)
        self.reduction_type = reduction_type

    def copy(self) -> MPSCNNLossDescriptor:
        """A descriptor of its own with the same values."""
        twin = MPSCNNLossDescriptor(self.loss_type, self.reduction_type)
        twin.__dict__.update(self.__dict__)
        return twin

    __copy__ = copy

    def parameters(self, reduction_type: MPSCNNReductionType | None = None) -> LossParameters:
        """The same, checked, as the mathematics takes it; with another reduction if one is given."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return LossParameters(
            kind=self.loss_type,
            reduction=self.reduction_type if reduction_type is None else reduction_type,
            number_of_classes=whole_number(_WHO, "number_of_classes", self.number_of_classes),
            reduce_across_batch=self.reduce_across_batch,
            **numbers,
        )

    def __repr__(self) -> str:
        return (
            f"MPSCNNLossDescriptor({self.loss_type.name}, {self.reduction_type.name}, weight={self.weight}, "
            f"label_smoothing={self.label_smoothing}, number_of_classes={self.number_of_classes})"
        )


_WHO = MPSCNNLossDescriptor.__name__
_NUMBERS = ("weight", "label_smoothing", "epsilon", "delta")


def whole_number(who: str, argument: str, value: object) -> int:
    """An integer, whatever its type, that a word of the framework holds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise MPSTypeError(who, argument, "must be an integer", repr(value))
    if abs(int(value)) >= 2**64:
        raise MPSArgumentError(who, argument, "must be an integer of 64 bits", "a larger one")
    return int(value)
