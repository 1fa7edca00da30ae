"""Numbers that users pass: as kernels can compute with them (the framework's are float32), and as indices."""

from __future__ import annotations

import math
import operator
from threading import Lock
from typing import Any

from openmps.errors import MPSArgumentError, MPSTypeError

FLT_MAX = (2.0 - 2.0**-23) * 2.0**127
"""The largest number of float32."""
counting = Lock()
"""Held while a kernel counts an encode, so that those of several threads are all counted."""
_ROUNDS_TO_INFINITY = 2.0**128 - 2.0**103


def number(who: str, argument: str, value: Any, *, is_nan_allowed: bool = False) -> float:
    """``value`` as a float that is a number of float32 when rounded; infinities too, NaN where it is allowed.

    Raises:
        MPSTypeError: It is none.
        MPSArgumentError: It is NaN, or finite and too large for float32.
    """
    if isinstance(value, str | bytes | bool):
        raise MPSTypeError(who, argument, "must be a number", repr(value))
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise MPSTypeError(who, argument, "must be a number", repr(value)) from fault
    except OverflowError as fault:
        raise _too_large(who, argument, "one beyond float64") from fault
    if math.isnan(found) and not is_nan_allowed:
        raise MPSArgumentError(who, argument, "must be a number", found)
    if abs(found) <= FLT_MAX or not math.isfinite(found):
        return found
    if abs(found) >= _ROUNDS_TO_INFINITY:
        raise _too_large(who, argument, found)
    return math.copysign(FLT_MAX, found)


def not_negative(who: str, argument: str, value: Any) -> float:
    """``value`` if it is a finite number of at least 0."""
    found = number(who, argument, value, is_nan_allowed=True)
    if not 0.0 <= found < math.inf:
        raise MPSArgumentError(who, argument, "must be a finite number of at least 0", value)
    return found


def integer(
    who: str, argument: str, value: int, least: int = 0, most: float = math.inf, *, rule: str | None = None
) -> int:
    """``value`` if it is an integer of ``least`` to ``most``; ``rule`` says in an error what it must be.

    Raises:
        MPSArgumentError: It is out of bounds, or none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise MPSArgumentError(who, argument, rule or f"must be an integer of at least {least}", repr(value))
    return value


def position(who: str, index: object, length: int) -> int | range:
    """Where an index, or a slice, of a sequence of this length points.

    Raises:
        IndexError: There is no such element.
        MPSTypeError: It is neither an integer nor a slice of integers.
    """
    try:
        if isinstance(index, slice):
            return range(*index.indices(length))
        found = operator.index(index)  # pyright: ignore[reportArgumentType]
    except TypeError as fault:
        raise MPSTypeError(who, "index", "must be an integer or a slice", type(index).__name__) from fault
    if not -length <= found < length:
        raise IndexError(f"{who}: index {found} outside {length} element(s)")
    return found % length


def _too_large(who: str, argument: str, got: object) -> MPSArgumentError:
    return MPSArgumentError(who, argument, f"must be a number of float32, at most {FLT_MAX} in magnitude", got)
