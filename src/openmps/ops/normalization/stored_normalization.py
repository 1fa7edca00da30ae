"""Batch normalization with stored statistics: one factor and one summand a channel, prepared once, and a neuron behind.

``z = gamma (x - mean) / sqrt(variance + epsilon) + beta`` is ``scale (x - mean) + beta``, and ``scale x + shift`` where
`openmps.ops.normalization.batch_normalization` takes images as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.convolution.fused_convolution import Activation, Pointwise
from openmps.ops.normalization.batch_normalization import is_near_zero
from openmps.ops.op import Kind, Op


class Scaled(NamedTuple):
    """What images are computed with, ``[1, C, 1, 1]`` each."""

    mean: Tensor | None
    """What is subtracted first; None for nothing."""
    scale: Tensor
    shift: Tensor


class PrepareNormalization(Op, kind=Kind.PREPARATION):
    """`Scaled` of mean, correction (none is 0), variance, gamma and beta."""

    epsilon: float

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See the class."""
        mean, correction, variance, gamma, beta = operands
        scale = gamma * (variance + self.epsilon).rsqrt_()
        shift = beta.clone() if correction is None else beta - correction * scale
        if is_near_zero(mean, variance + self.epsilon):
            return Scaled(None, _column(scale), _column(shift - mean * scale))
        return Scaled(_column(mean.clone()), _column(scale), _column(shift))

    def overflows(self, *operands: Any) -> bool:
        """Never: nothing is rounded."""
        return False


class StoredNormalization(Op, half=True):
    """A neuron, if there is one, of what `PrepareNormalization` makes of images.

    Of float16 images the result is float32, or rounded to float16 if ``is_rounded`` says so.
    """

    activation: Activation | Pointwise | None
    is_rounded: bool

    @property
    def gives_half(self) -> bool:
        """If the result is rounded."""
        return self.is_rounded

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        given, (mean, scale, shift) = operands
        x = given.to(torch.float32)
        if mean is None:
            result = torch.addcmul(shift, x, scale)
        else:
            centred = x - mean
            result = torch.addcmul(shift, centred, scale, out=centred)
        if self.activation is not None:
            result = self.activation.of(result)
        return result.to(given.dtype) if self.is_rounded else result


def _column(row: Tensor) -> Tensor:
    return row.view(1, -1, 1, 1)
