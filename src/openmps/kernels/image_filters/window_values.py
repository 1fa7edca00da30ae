"""Numbers of windows that programs give: weights, heights of a structuring element."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.core.arrays import numbers
from openmps.errors import MPSArgumentError


def window_values(
    who: str, argument: str, given: Any, width: int, height: int, *, are_finite: bool = True
) -> tuple[float, ...]:
    """``width x height`` numbers, row by row, of an array of this size or of a row of them."""
    found = numbers(who, argument, given)
    if found.size != width * height or (found.ndim > 1 and found.shape != (height, width)):
        rule = f"must be {width * height} numbers, {height} rows of {width}"
        raise MPSArgumentError(who, argument, rule, f"an array of shape {found.shape}")
    if not (np.isfinite(found).all() if are_finite else not np.isnan(found).any()):
        rule = "must be finite numbers" if are_finite else "must be numbers, and no NaN"
        raise MPSArgumentError(who, argument, rule, "one that is not")
    return tuple(found.ravel().tolist())


def as_window(values: tuple[float, ...], width: int, height: int) -> NDArray[np.float32]:
    """The numbers as rows and columns."""
    return np.array(values, np.float32).reshape(height, width)
