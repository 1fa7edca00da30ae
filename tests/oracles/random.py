"""Random numbers of a distribution from words, by the definitions, in many digits."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np

from oracles.dropout import WORD, philox4x32


def philox_word(seed: int, index: int) -> int:
    """Word `i` of a seed's sequence: `i % 4` of the block with the counter `i // 4`, its low word the last one."""
    block = index // 4
    return philox4x32((0, 0, block >> 32, block & WORD), (seed & WORD, seed >> 32))[index % 4]


def share(word: int) -> Fraction:
    """The 23 highest bits of a word of 32, as a number in [0, 1)."""
    return Fraction(word // 2**9, 2**23)


def uniform(words: Sequence[int], minimum: float, maximum: float) -> np.ndarray:
    low, width = Fraction(minimum), Fraction(maximum) - Fraction(minimum)
    return np.array([float(low + width * share(word)) for word in words])


def normal(
    words: Sequence[int],
    mean: float,
    deviation: float,
    minimum: float = -np.inf,
    maximum: float = np.inf,
) -> np.ndarray:
    """`x` with `F(x) = F(minimum) + (F(maximum) - F(minimum)) t`; downward from the maximum above the mean.

    `t` is the word's share, 2^-24 where that is 0.
    """
    nearest = min(abs(minimum - mean), abs(maximum - mean)) / deviation
    with mpmath.workdps(250 if nearest > 10 else 50):
        low, high = (_distribution((bound - mean) / deviation) for bound in (mpmath.mpf(minimum), mpmath.mpf(maximum)))
        numbers = []
        for word in words:
            exact = share(word) or Fraction(1, 2**24)
            part = mpmath.mpf(exact.numerator) / exact.denominator
            level = high - (high - low) * part if minimum > mean else low + (high - low) * part
            numbers.append(float(mean + deviation * mpmath.sqrt(2) * mpmath.erfinv(2 * level - 1)))
        return np.array(numbers)


def _distribution(deviations: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(-deviations / mpmath.sqrt(2)) / 2
