"""Random numbers of a distribution from words, by the definitions, in many digits."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import numpy as np

from oracles.dropout import WORD, philox4x32


def philox_word(seed: int, index: int) -> int:
    """Word `i` of a seed's sequence: `i % 4` of the block with the counter `i // 4`."""
    block = index // 4
    return philox4x32((block & WORD, block >> 32, 0, 0), (seed & WORD, seed >> 32))[index % 4]


def uniform(words: Sequence[int], minimum: float, maximum: float) -> np.ndarray:
    return np.array([minimum + (maximum - minimum) * (word / 2.0**32) for word in words])


def normal(
    words: Sequence[int],
    mean: float,
    deviation: float,
    minimum: float = -np.inf,
    maximum: float = np.inf,
) -> np.ndarray:
    """`x` with `F(x) = F(minimum) + (F(maximum) - F(minimum)) (word + 1/2) / 2^32`; downward from it above the mean."""
    nearest = min(abs(minimum - mean), abs(maximum - mean)) / deviation
    with mpmath.workdps(250 if nearest > 10 else 50):
        low, high = (_distribution((bound - mean) / deviation) for bound in (mpmath.mpf(minimum), mpmath.mpf(maximum)))
        numbers = []
        for word in words:
            share = (mpmath.mpf(word) + 0.5) / 2**32
            level = high - (high - low) * share if minimum > mean else low + (high - low) * share
            numbers.append(float(mean + deviation * mpmath.sqrt(2) * mpmath.erfinv(2 * level - 1)))
        return np.array(numbers)


def _distribution(deviations: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(-deviations / mpmath.sqrt(2)) / 2
