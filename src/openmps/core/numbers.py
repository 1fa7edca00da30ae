"""Numbers that users pass, within bounds, and indices.

What a kernel counts of its encodes is counted whole, in several threads, in signal handlers and in forked processes:
the count is read and stored with no call in between, where alone another of them could come between. A lock would be
worse: a handler would wait for its own thread, and a forked process for one that stayed behind.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from openmps.checks import as_index, number
from openmps.errors import MPSArgumentError, MPSTypeError, shown


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
    found = value if type(value) is int else as_index(value)
    if found is None or not least <= found <= most:
        bound = f"most {most}" if found is not None and found > most else f"least {least}"
        raise MPSArgumentError(who, argument, rule or f"must be an integer of at {bound}", shown(value))
    return found


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
