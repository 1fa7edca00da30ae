"""Images by their numbers, in plain loops."""

from __future__ import annotations

import numpy as np

from oracles.dropout import WORD, philox4x32


def selected(x: np.ndarray, numbers: list[int]) -> np.ndarray:
    return np.array([x[number] for number in numbers])


def alternately_mirrored(x: np.ndarray, numbers: list[int], epoch: int, seed: int) -> np.ndarray:
    """Image i is mirrored in the epochs of the parity that the first bit of its word says."""
    result = x.copy()
    for place, number in enumerate(numbers):
        first = philox4x32((number, 0, 0, 0), (seed & WORD, seed >> 32))[0] >> 31
        if (first + epoch) % 2:
            for column in range(x.shape[3]):
                result[place, :, :, column] = x[place, :, :, x.shape[3] - 1 - column]
    return result
