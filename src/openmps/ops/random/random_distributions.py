"""Numbers of a distribution from random words (MPSMatrixRandom.h, macOS 10.15).

Each number is made of one word, by the inverse of its distribution function, from its share ``t``: the 23 highest bits
as a number in [0, 1), as Macs take them. That keeps number ``i`` a function of word ``i`` alone, truncated or not,
where pairs (Box-Muller) or rejection (ziggurat) would not. Computed in float64 and rounded once to float32. Words are
int64 numbers in [0, 2**32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops.op import Kind, Op
from openmps.ops.random.random import philox_words

_DROPPED_BITS = 9
_SHARES = 2.0**23
_LEAST_SHARE = 0.5 / _SHARES
_HALF_ROOT = math.sqrt(0.5)


def integers(words: Tensor) -> Tensor:
    """The words themselves, as uint32."""
    return words.to(torch.int32).view(torch.uint32)


def _shares(words: Tensor) -> Tensor:
    """The 23 highest bits of words as multiples of ``2**-23`` in [0, 1), float64."""
    return (words >> _DROPPED_BITS).to(torch.float64).div_(_SHARES)


def uniform(words: Tensor, minimum: float, maximum: float) -> Tensor:
    """``minimum + (maximum - minimum) t``, float32 in [minimum, maximum); ``t = floor(word / 2**9) / 2**23``."""
    numbers = _shares(words).mul_(maximum - minimum).add_(minimum).to(torch.float32)
    # A number next to the maximum may round to it.
    return numbers.clamp_(max=float(np.nextafter(np.float32(maximum), np.float32(-np.inf))))


def normal(words: Tensor, mean: float, standard_deviation: float) -> Tensor:
    """``mean + standard_deviation z``, float32; ``z = F^-1(t)`` with F that of the standard normal.

    A share of 0 is taken for half of the next one, 2**-24, so that ``z`` is finite: it lies within 5.3.
    """
    numbers = torch.special.ndtri(_shares(words).clamp_(min=_LEAST_SHARE))
    return numbers.mul_(standard_deviation).add_(mean).to(torch.float32)


def truncated_normal(words: Tensor, mean: float, standard_deviation: float, minimum: float, maximum: float) -> Tensor:
    """The normal distribution between two bounds, float32: what lies outside is as if drawn again.

    ``z = F^-1(F(a) + (F(b) - F(a)) t)`` with the bounds ``a`` and ``b`` in standard deviations from the mean and ``t``
    as `normal` takes it; where both are above the mean, ``t`` counts down from the upper one. Bounds may be infinite.
    See `probability` for those that are too far out.
    """
    low, high = (minimum - mean) / standard_deviation, (maximum - mean) / standard_deviation
    # The lower tail has more digits than the upper one: an interval above the mean is turned over.
    sign = -1.0 if low > 0 else 1.0
    below, above = sorted((_distribution(sign * low), _distribution(sign * high)))
    share = _shares(words).clamp_(min=_LEAST_SHARE).mul_(above - below).add_(below)
    numbers = torch.special.ndtri(share).mul_(sign * standard_deviation).add_(mean).to(torch.float32)
    return numbers.clamp_(minimum, maximum)


def probability(mean: float, standard_deviation: float, minimum: float, maximum: float) -> float:
    """How likely a normal number lies between two bounds; 0 where they are too far out to draw from."""
    low, high = (minimum - mean) / standard_deviation, (maximum - mean) / standard_deviation
    sign = -1.0 if low > 0 else 1.0
    return abs(_distribution(sign * high) - _distribution(sign * low))


def _distribution(deviations: float) -> float:
    """The distribution function of the standard normal."""
    return 0.5 * math.erfc(-deviations * _HALF_ROOT)


# --- filling memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Integers:
    """The words themselves."""

    def numbers(self, words: Tensor) -> Tensor:
        """See `integers`."""
        return integers(words)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Numbers from a minimum to below a maximum."""

    minimum: float
    maximum: float

    def numbers(self, words: Tensor) -> Tensor:
        """See `uniform`."""
        return uniform(words, self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal numbers, cut to bounds where these are finite."""

    mean: float
    standard_deviation: float
    minimum: float = -math.inf
    maximum: float = math.inf

    def numbers(self, words: Tensor) -> Tensor:
        """See `normal` and `truncated_normal`."""
        if math.isinf(self.minimum) and math.isinf(self.maximum):
            return normal(words, self.mean, self.standard_deviation)
        return truncated_normal(words, self.mean, self.standard_deviation, self.minimum, self.maximum)


Distribution = Integers | Uniform | Normal


class _Fill(Op, kind=Kind.RANDOM, results=0, has_effect=True):
    """Fill a tensor, the first operand, with random numbers in row-major order."""

    distribution: Distribution
    chunk: int
    """Numbers made at once: enough to occupy the device, few enough to bound the memory for words."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The tensor to fill."""
        return (0,)

    def _fill(self, target: Tensor, draw: Callable[[int, int], Tensor]) -> None:
        """``draw(first, count)`` gives the words of a chunk; it is called in order."""
        count = target.numel()
        flat = target.view(-1) if target.is_contiguous() else target.new_empty(count)
        for first in range(0, count, self.chunk):
            size = min(self.chunk, count - first)
            flat[first : first + size].copy_(self.distribution.numbers(draw(first, size)))
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))


class FillByPhilox(_Fill):
    """Fill a tensor from the words of a seed, from the position on that is the second operand."""

    seed: int

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See `openmps.ops.random.random.philox_words`."""
        target, begin = operands
        self._fill(target, lambda first, count: philox_words(self.seed, int(begin) + first, count, target.device))


class FillBySequence(_Fill):
    """Fill a tensor with the next words of a sequence, the second operand, whose ``next_words(count)`` gives them."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """Take the words when this runs."""
        target, words = operands
        self._fill(target, lambda _, count: words.next_words(count))
