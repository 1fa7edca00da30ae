"""Numbers of cases and answers: drawn or listed ones as arrays, and arrays as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIME = 1013
"""Cubes modulo this prime are all different, so that no window of a drawn image holds a number twice."""
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""What JSON has no numbers for."""


def drawn(count: int, seed: int, first: int, over: int) -> NDArray[np.float32]:
    """Number i is ``(first + (seed + i)³ mod 1013) / over``; over is a power of two, so that float16 holds it."""
    places = np.arange(seed, seed + count, dtype=np.int64) % PRIME
    return ((places**3 % PRIME + first) / over).astype(np.float32)


def array_of(given: Mapping[str, Any]) -> NDArray[np.float32]:
    """The array that a case describes: ``numbers`` are listed, ``seed``, ``first`` and ``over`` draw them."""
    shape = tuple(given["shape"])
    if "numbers" in given:
        return np.array([number_of(each) for each in given["numbers"]], np.float32).reshape(shape)
    return drawn(math.prod(shape), given["seed"], given["first"], given["over"]).reshape(shape)


def number_of(given: Any) -> float:
    """A number, which may be none that JSON knows."""
    return NOT_FINITE[given] if isinstance(given, str) else float(given)


def written_number(value: float) -> float | str:
    """The inverse of `number_of`."""
    if math.isfinite(value):
        return value
    return next(name for name, number in NOT_FINITE.items() if number == value or (name == "nan" and value != value))


def written(array: NDArray[Any]) -> dict[str, Any]:
    """An array as an answer holds it: every number exactly, as float64 writes it."""
    return {"shape": [*array.shape], "numbers": [written_number(float(each)) for each in array.reshape(-1)]}
