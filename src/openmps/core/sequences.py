"""How batches are indexed."""

from __future__ import annotations

import operator

from openmps.errors import MPSTypeError


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
