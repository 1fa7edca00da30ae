"""Two normalizations, their sum and the neuron behind it as one operation; and gradients of a mean over whole images.

Each equals operations of `batch_normalization`, `normalized_neuron` and `ops.pooling.pooling` one after the other,
rounded to float16 where those were stored so. Where Triton runs, each is one pass over the images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops.normalization.batch_normalization import DataGradient, Normalize, ParameterSums, kernels_for
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.op import Kind, Op
from openmps.ops.pooling.pooling import AveragePoolingGradient


def _stored(values: Tensor, is_stored: bool) -> Tensor:
    return values.to(torch.float16) if is_stored else values


class ProjectedNeuron(Op, results=2, half=True):
    """``neuron(Normalize(x) + Normalize(other))``.

    Operands are images, mean, correction (none is 0), variance, gamma and beta, and the same of the others. Results are
    those of `NormalizedNeuron`.
    """

    first: NormalizedNeuron
    second: Normalize
    rounds: bool
    """Whether the second normalization's result was stored as float16."""

    @property
    def gives_half(self) -> bool:
        """Not by itself: the operations say what is rounded."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        x, others, first = operands[0], operands[6:], self.first
        fast = kernels_for([x, others[0]], [*operands[1:6], *others[1:]])
        if fast is not None:
            is_half = self.second.is_rounded and others[0].dtype == torch.float16
            added = fast.Added(others[0], fast.Rows(*others[1:]), self.second.epsilon, self.rounds or is_half)
            dtype = torch.float16 if first.rounds_neuron else torch.float32
            how = first.activation(x, rounds_sum=first.rounds_sum)
            rows = fast.Rows(*operands[1:6])
            return fast.normalize(x, rows, first.epsilon, dtype, how, added, with_masks=wanted[1])
        return first.run(wanted, *operands[:6], _stored(self.second.run((True,), *others), self.rounds))


class ProjectedSums(Op, kind=Kind.REDUCTION, results=5, half=True):
    """`PassedSums`, and the `ParameterSums` of the other normalization of the same gradient.

    Operands are what the forward pass kept, the images, mean, correction and variance, the same four of the others, and
    the gradients.
    """

    first: PassedSums
    second: ParameterSums

    @property
    def gives_half(self) -> bool:
        """False: sums are float32."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See the class."""
        kept, x, *rest = operands
        rows, other, others, gradients = rest[:3], rest[3], rest[4:7], rest[7:]
        is_known = kept.dtype == torch.uint8
        fast = kernels_for([x, other, *gradients], [*rows, *others]) if is_known else None
        if fast is None:
            flow, *found = self.first.run((True,) * 3, kept, x, *rows, *gradients)
            return flow, *found, *self.second.run((True, True), flow, other, *others)
        added = fast.Added(other, fast.Rows(*others), self.second.epsilon)
        return self.first.in_one_pass(fast, kept, x, rows, gradients, added)


class ProjectedGradients(Op, results=2, half=True):
    """The `DataGradient` of one gradient for two normalizations whose results were added.

    Operands are the gradient, the images, mean, correction, variance and gamma, the same five of the others, the sums
    for gamma and beta of both, and their numbers of pixels.
    """

    first: DataGradient
    second: DataGradient
    is_wide: bool = False
    """Whether results are float32 whatever the images are; else they are of their types."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See the class."""
        gradient, x, *rest = operands
        rows, other, others = rest[:4], rest[4], rest[5:9]
        sums, others_sums, pixels = rest[9:11], rest[11:13], rest[13:]
        fast = kernels_for([gradient, x, other], [*rows, *others, *sums, *others_sums])
        if fast is None:
            x, other = (each.float() if self.is_wide and each.dtype == torch.float16 else each for each in (x, other))
            found = self.first.run((True,), gradient, x, *rows, *sums, pixels[0])
            return found, self.second.run((True,), gradient, other, *others, *others_sums, pixels[1])
        known, epsilons = (fast.Rows(*rows), fast.Rows(*others)), (self.first.epsilon, self.second.epsilon)
        dtypes = tuple(torch.float32 if self.is_wide else each.dtype for each in (x, other))
        return fast.data_gradients(gradient, (x, other), known, epsilons, (sums, others_sums), tuple(pixels), dtypes)


class SpreadSums(Op, kind=Kind.REDUCTION, results=3, half=True):
    """`PassedSums` of the gradient of a mean over all pixels of each image, [N, C, 1, 1]."""

    first: PassedSums
    spread: AveragePoolingGradient
    rounds: bool
    """Whether the mean's gradient was stored as float16."""

    @property
    def gives_half(self) -> bool:
        """False: sums are float32."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See the class."""
        kept, x, *rows, gradient = operands
        is_known = kept.dtype == torch.uint8 and kernels_for([gradient], ()) is not None
        fast = kernels_for([x], rows) if is_known else None
        if fast is not None:
            return self.first.in_one_pass(fast, kept, x, rows, [gradient], rounds=self.rounds)
        numbers = gradient.float() if gradient.dtype == torch.float16 else gradient
        spread: Any = self.spread.run((True,), numbers)
        return self.first.run(wanted, kept, x, *rows, _stored(spread, self.rounds))
