"""Formats of the numbers that are written: as they come, or rounded where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSWeightsError

_FORMATS: dict[bool, tuple[str, type[np.floating[Any]]]] = {
    True: ("float16", np.float16),
    False: ("float32", np.float32),
}


def stored(
    arrays: Mapping[str, NDArray[Any]], who: str, *, half: bool | None, allow_rounding: bool
) -> dict[str, NDArray[Any]]:
    """The arrays as float16 (``half``), as float32, or (None) as they come, float64 as float32; little-endian.

    Raises:
        MPSWeightsError: Numbers would be changed by rounding, unless that is allowed, or are finite and too large for
            the format; for all arrays at once.
    """
    problems: list[str] = []
    found: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        is_half = half if half is not None else array.dtype.itemsize == 2
        label, kind = _FORMATS[is_half]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = np.asarray(array, np.dtype(kind).newbyteorder("<"), order="C")
        found[name] = rounded
        if array.dtype.itemsize > rounded.dtype.itemsize:
            problems += _changed(name, array, rounded, label, allow_rounding=allow_rounding)
    if problems:
        remedy = "Numbers that are rounded can be allowed, numbers that are too large cannot."
        raise MPSWeightsError(who, "arrays", "must keep their numbers", problems, remedy)
    return found


def _changed(name: str, array: NDArray[Any], rounded: NDArray[Any], label: str, *, allow_rounding: bool) -> list[str]:
    """What is wrong with an array's rounding, in words."""
    finite = np.isfinite(array)
    infinite = finite & ~np.isfinite(rounded)
    if infinite.any():
        largest = float(np.abs(array[infinite]).max())
        return [
            f"{name}: {int(infinite.sum()):,} of {array.size:,} numbers are too large for {label}, up to {largest:g}"
        ]
    moved = finite & (rounded.astype(array.dtype) != array)
    if allow_rounding or not moved.any():
        return []
    difference = np.abs(rounded.astype(array.dtype)[moved] - array[moved]).max()
    count = int(moved.sum())
    return [f"{name}: {label} rounds {count:,} of {array.size:,} numbers, by up to {float(difference):.3g}"]
