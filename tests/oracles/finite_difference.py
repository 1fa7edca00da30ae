"""Central differences in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def gradient(function: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """`(f(x + h e_i) - f(x - h e_i)) / 2h` for every element i of `x`."""
    x = np.array(x, dtype=np.float64)
    result = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        kept = x[index]
        x[index] = kept + step
        above = function(x.copy())
        x[index] = kept - step
        below = function(x.copy())
        x[index] = kept
        result[index] = (above - below) / (2.0 * step)
    return result
