"""Convolution of a normalized and rectified image, by windows of one pixel: a bound of the image, and other weights.

Where ``scale`` is above 0, ``max(0, scale x + shift)`` is ``scale (max(x, low) - low)`` with ``low = -shift / scale``,
and with a minimum where it is below. So ``W max(0, scale x + shift) + b`` is ``W' max(x, low) + b'``, ``W' = W scale``
and ``b' = b - W' low``: one pass over the image instead of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.convolution.fused_convolution import Fused, PrepareConvolution, Prepared, fused_convolution
from openmps.ops.normalization.stored_normalization import PrepareNormalization, Scaled, StoredNormalization
from openmps.ops.op import Kind, Op

_MOST_CANCELLED = 16.0
"""Terms that cancel each other, beside those of numbers of a normalized image as large as its deviation."""


class Bounds(NamedTuple):
    """What an image is held to, ``[1, C, 1, 1]`` each."""

    low: Tensor
    high: Tensor | None
    """None where no scale is below 0."""


class Preactivated(NamedTuple):
    """How an image is changed, and what it is multiplied with then."""

    before: Bounds | Scaled
    convolution: Prepared


class PreparePreactivated(Op, kind=Kind.PREPARATION):
    """`Preactivated` of the operands of both derived inputs, those of the normalization first.

    The normalization stays as it is where its factors are 0, where rounding would be lost in terms that cancel each
    other, and for weights that are no float32.
    """

    normalization: PrepareNormalization
    convolution: PrepareConvolution

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See the class."""
        rows, memory = operands[:5], operands[5:]
        scaled, dtype = self.normalization.run(wanted, *rows), memory[0].dtype
        weights, biases = self.convolution.exact(*memory)
        found = _bounded(scaled, weights, biases, rows[3]) if dtype == torch.float32 else None
        before, weights, biases = found or (scaled, weights, biases)
        return Preactivated(before, self.convolution.laid_out(weights, biases, dtype))


def _bounded(
    scaled: Scaled, weights: Tensor, biases: Tensor | None, gamma: Tensor
) -> tuple[Bounds, Tensor, Tensor] | None:
    """Bounds, weights and biases that take a normalization with its rectifier in; None where they must not."""
    scale, shift = scaled.scale.flatten(), scaled.shift.flatten()
    if scaled.mean is not None or not bool((scale.abs() >= torch.finfo(scale.dtype).tiny).all()):
        return None
    edge = -shift / scale
    made = weights * scale
    terms, spread = made.flatten(1).to(torch.float64), (weights * gamma).flatten(1).abs().sum(1)
    is_exact = (terms.abs() @ edge.abs().to(torch.float64) <= _MOST_CANCELLED * spread).all()
    if not bool(is_exact & edge.isfinite().all()):
        return None
    summand = -(terms @ edge.to(torch.float64))
    rises = scale > 0
    low, high = torch.where(rises, edge, -torch.inf), torch.where(rises, torch.inf, edge)
    bounds = Bounds(low.view(1, -1, 1, 1), None if bool(rises.all()) else high.view(1, -1, 1, 1))
    return bounds, made, (summand if biases is None else summand + biases).to(torch.float32)


class PreactivatedConvolution(Op, kind=Kind.CONTRACTION):
    """`fused_convolution` of an image's `StoredNormalization`, by what `PreparePreactivated` gives."""

    normalization: StoredNormalization
    how: Fused

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        x, (before, convolution), *others = operands
        if isinstance(before, Bounds):
            x = torch.clamp(x.to(torch.float32), before.low, before.high)
        else:
            x = self.normalization.run(wanted, x, before)
        return fused_convolution(x, convolution, others[0] if others else None, self.how)
