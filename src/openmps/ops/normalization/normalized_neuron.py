"""A normalization with a neuron behind it, and an image added between the two, as one operation; and its gradients.

Each equals `batch_normalization`, `ops.pointwise.arithmetic` and `ops.pointwise.neuron` one after the other, rounded
to float16 where those were stored so. What lies between the images that are read and the result never exists: the
gradients compute the neuron's source again. Where Triton runs, each is one pass over the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.ops.normalization.batch_normalization import (
    Moments,
    Normalization,
    ParameterGradients,
    data_gradient,
    kernels_for,
    normalize,
    parameter_gradients,
)
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.neuron import Neuron, neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType


class _Normalized(Op, half=True):
    """The base: the normalization, and what follows it."""

    epsilon: float
    neuron: Neuron
    rounds: bool
    """Whether the normalization's result was stored as float16."""
    keeps_type: bool
    """Whether it was rounded to the type of the images, stored or not."""
    rounds_neuron: bool
    """Whether what follows was stored as float16: the neuron's result, of gradients what the neuron let pass."""

    @property
    def gives_half(self) -> bool:
        """Not by itself: the operations say what is rounded."""
        return False

    def _is_rounded(self, x: Tensor) -> bool:
        return self.rounds or (self.keeps_type and x.dtype == torch.float16)

    def activation(self, x: Tensor, *, rounds_sum: bool = False) -> Any:
        """The neuron as kernels in Triton are told it."""
        from openmps.ops.triton.normalization.batch_normalization import Activation

        op = self.neuron
        return Activation(op.function.name, op.a, op.b, self._is_rounded(x), rounds_sum)

    def _source(self, x: Tensor, rows: Sequence[Tensor | None]) -> Tensor:
        """The numbers that were stored behind the normalization."""
        mean, correction, variance, gamma, beta = rows
        assert mean is not None
        assert variance is not None
        assert gamma is not None
        assert beta is not None
        kept = torch.zeros_like(mean) if correction is None else correction
        z = normalize(x, Normalization(Moments(mean, kept, variance), gamma, beta, self.epsilon))
        return _rounded(z, self._is_rounded(x))

    def _apply(self, z: Tensor) -> Tensor:
        op = self.neuron
        return neuron(z, op.function, op.a, op.b, op.c)

    def _passed(self, gradient: Tensor, z: Tensor) -> Tensor:
        op = self.neuron
        passed = neuron_gradient(gradient.to(z.dtype), z, op.function, op.a, op.b, op.c)
        return passed.to(torch.float16) if self.rounds_neuron else passed


class NormalizedNeuron(_Normalized, results=2):
    """``neuron(Normalize(x) + other)`` of images, mean, correction (none is 0), variance, gamma, beta, perhaps another.

    The result is float16 if the neuron's was stored so, else float32. The second result is for `PassedSums`: bits, or
    the neuron's source.
    """

    rounds_sum: bool = False
    """Whether the sum with the other image was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        x, *rest = operands
        rows, other = rest[:5], rest[5] if rest[5:] else None
        fast = kernels_for([x] if other is None else [x, other], rows)
        if fast is not None:
            dtype, kept = torch.float16 if self.rounds_neuron else torch.float32, fast.Rows(*rows)
            how = self.activation(x, rounds_sum=self.rounds_sum)
            added = None if other is None else fast.Added(other)
            return fast.normalize(x, kept, self.epsilon, dtype, how, added, with_masks=wanted[1])
        z = self._source(x, rows)
        if other is not None:
            z = _rounded(z + other, self.rounds_sum)
        y = self._apply(z)
        return y.to(torch.float16) if self.rounds_neuron else y, z


class NormalizedNeuronSums(_Normalized, kind=Kind.REDUCTION, results=2):
    """`ParameterSums` behind the neuron's gradient.

    Operands are the gradient of what the neuron gave, the images, mean, correction, variance, gamma and beta, and
    perhaps sums that the new ones join.
    """

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See the class."""
        gradient, x, *rest = operands
        rows, before = rest[:5], rest[5:]
        fast = kernels_for([gradient, x], [*rows, *before])
        if fast is not None:
            how = self.activation(x, rounds_sum=self.rounds_neuron)
            return fast.parameter_gradients(gradient, x, fast.Rows(*rows), self.epsilon, how, before)
        flow = self._passed(gradient, self._source(x, rows))
        found: ParameterGradients = parameter_gradients(flow, x, _moments(rows), self.epsilon)
        for numbers, joined in zip(found, before, strict=False):
            numbers.add_(joined)
        return found


class NormalizedNeuronGradient(_Normalized):
    """`DataGradient` behind the neuron's gradient.

    Operands are those of `NormalizedNeuronSums`, in the place of sums to join the sums for gamma and beta and the
    number of pixels, or nothing where the statistics are constants.
    """

    is_wide: bool = False
    """Whether the result is float32 whatever the images are; else it is of their type."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        gradient, x, *rest = operands
        rows, batch = rest[:5], rest[5:]
        pixels = batch[2] if batch else 1
        fast = kernels_for([gradient, x], [*rows, *batch[:2]])
        if fast is not None:
            how = self.activation(x, rounds_sum=self.rounds_neuron)
            dtype = torch.float32 if self.is_wide else x.dtype
            return fast.data_gradient(gradient, x, fast.Rows(*rows), self.epsilon, batch[:2], pixels, dtype, how)
        flow = self._passed(gradient, self._source(x, rows))
        sums = ParameterGradients(*batch[:2]) if batch else None
        numbers = x.float() if self.is_wide and x.dtype == torch.float16 else x
        return data_gradient(flow, numbers, _moments(rows), rows[3], self.epsilon, sums, pixels)


class PassedSums(Op, kind=Kind.REDUCTION, results=3, half=True):
    """A neuron's gradient of one gradient or of the sum of two, and the `ParameterSums` of the normalization before it.

    Operands are what the forward pass kept for it, the images, mean, correction and variance, and the gradients.
    """

    epsilon: float
    neuron: Neuron
    rounds_sum: bool
    """Whether the sum of the gradients was stored as float16."""
    rounds_neuron: bool
    """Whether what the neuron let pass was."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See the class."""
        kept, x, *rest = operands
        rows, gradient, second = rest[:3], rest[3], rest[4] if rest[4:] else None
        gradients = rest[3:]
        fast = kernels_for([x, *gradients], rows) if kept.dtype == torch.uint8 else None
        op = self.neuron
        if fast is not None:
            return self.in_one_pass(fast, kept, x, rows, gradients)
        flow = gradient if second is None else _rounded(gradient + second, self.rounds_sum)
        z = unpacked(kept, x.shape, op) if kept.dtype == torch.uint8 else kept
        flow = neuron_gradient(flow.to(z.dtype), z, op.function, op.a, op.b, op.c)
        flow = flow.to(torch.float16) if self.rounds_neuron else flow
        return flow, *parameter_gradients(flow, x, _moments(rows), self.epsilon)

    def in_one_pass(
        self, fast: Any, masks: Tensor, x: Tensor, rows: Sequence[Any], gradients: Sequence[Tensor], other: Any = None,
        *, rounds: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The same in Triton, whose module is ``fast``; also for another image that was normalized and added."""
        dtype = torch.float16 if self.rounds_neuron else torch.float32
        gradient, *more = gradients
        second = more[0] if more else None
        return fast.masked_gradients(
            gradient, second, masks, x, fast.Rows(*rows), self.epsilon, self.neuron.a, dtype, other,
            rounds_sum=self.rounds_sum or rounds,
        )  # fmt: skip


def unpacked(masks: Tensor, shape: Sequence[int], op: Neuron) -> Tensor:
    """Numbers that the neuron treats as those that the bits were made of, for gradients that Triton does not take."""
    images, channels, height, width = shape
    bits = (masks.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=masks.device)) & 1
    passes = bits.flatten(1)[:, :channels].view(images, height, width, channels).permute(0, 3, 1, 2)
    above = op.b / 2 if op.function is MPSCNNNeuronType.RELU_N else 1.0
    return torch.where(passes != 0, above, -1.0)


def _moments(rows: Sequence[Any]) -> Moments:
    mean, correction, variance = rows[:3]
    return Moments(mean, torch.zeros_like(mean) if correction is None else correction, variance)


def _rounded(values: Tensor, is_stored: bool) -> Tensor:
    """Numbers as they come back from where they are stored."""
    return values.to(torch.float16).float() if is_stored else values
