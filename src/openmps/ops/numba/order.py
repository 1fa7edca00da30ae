"""Extremes of windows of bytes, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.order import Extreme
from openmps.ops.image.site import BYTES, Site
from openmps.ops.numba.loop import lines, loop
from openmps.ops.numba.primitives import claim, finish, look, look_aside, store_aside, store_byte, wait
from openmps.types import MPSImageEdgeMode

_MOST_ACROSS = 64
"""Pixels of a window of extremes along an axis."""


def _larger(a: Any, b: Any) -> Any:
    """Of two bytes, as bytes: Python's own function makes larger numbers of them."""
    return a if a > b else b


def _extend(wide: Any, columns: int, channels: int, margin: int) -> None:
    """Repeat the first and the last pixel of a row in the margins around it."""
    for place in range(margin):
        wide[place] = wide[margin + place % channels]
        wide[margin + columns + place] = wide[margin + columns - channels + place % channels]


def _raise_down(x: Any, step: int, rows: int, row: int, reach: int, columns: int, flip: Any, sums: Any) -> None:
    """The largest byte of each column of the rows around one, four at a time; with ``flip`` of inverted bytes."""
    first, last = max(row - reach, 0), min(row + reach, rows - 1)
    a, b, c = x[first * step :], x[min(first + 1, last) * step :], x[min(first + 2, last) * step :]
    for column in range(columns):
        most = _larger(np.uint8(look_aside(a, column) ^ flip), np.uint8(look_aside(b, column) ^ flip))
        store_aside(sums, column, _larger(most, np.uint8(look_aside(c, column) ^ flip)))
    each = first + 3
    while each <= last:
        if each + 3 <= last:
            a, b = x[each * step :], x[(each + 1) * step :]
            c, d = x[(each + 2) * step :], x[(each + 3) * step :]
            for column in range(columns):
                most = _larger(np.uint8(look_aside(a, column) ^ flip), np.uint8(look_aside(b, column) ^ flip))
                other = _larger(np.uint8(look_aside(c, column) ^ flip), np.uint8(look_aside(d, column) ^ flip))
                store_aside(sums, column, _larger(_larger(most, other), sums[column]))
            each += 4
        else:
            a = x[each * step :]
            for column in range(columns):
                store_aside(sums, column, _larger(np.uint8(look_aside(a, column) ^ flip), sums[column]))
            each += 1


def _raise_across(wide: Any, other: Any, reach: int, channels: int, count: int) -> Any:
    """Rows that begin with the largest byte of each window of one: windows grow by the doubles of themselves.

    Gives the one of the two that has them.
    """
    size, length, is_other = 2 * reach + 1, 1, False
    while length < size:
        step = min(length, size - length)
        width = count + (size - length - step) * channels
        if is_other:
            there = other[step * channels :]
            for column in range(width):
                store_aside(wide, column, _larger(look_aside(other, column), look_aside(there, column)))
        else:
            there = wide[step * channels :]
            for column in range(width):
                store_byte(other, column, _larger(look(wide, column), look(there, column)))
        is_other = not is_other
        length += step
    return other if is_other else wide


@loop(
    *("uint8[::1]", "int64", "uint8[::1]", "int64", "int64", "int64", "int64", "int64", "int64", "uint8"),
    uses=(_larger, _extend, _raise_down, _raise_across),
)
def _find_largest(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int,
    height: int, width: int, flip: Any,
) -> None:  # fmt: skip
    """The largest byte of each window, or by inverted bytes the smallest; windows end with the picture."""
    margin = width * channels
    wide, other = np.empty(columns + 2 * margin, np.uint8), np.empty(columns + 2 * margin, np.uint8)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            _raise_down(x, x_step, rows, row, height, columns, flip, wide[margin:])
            _extend(wide, columns, channels, margin)
            found = _raise_across(wide, other, width, channels, columns)
            into = made[row * step :][:columns]
            for column in range(columns):
                into[column] = np.uint8(found[column] ^ flip)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def extreme(site: Site) -> Run | None:
    """`Extreme` of bytes."""
    op, size = site.ops[0], site.window.size
    assert isinstance(op, Extreme)
    if site.formats != (BYTES, BYTES) or site.result.channels > 4 or max(size) > _MOST_ACROSS:
        return None
    height, width = (length // 2 for length in size)
    flip = 0 if op.is_largest else 255

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        rows, columns, channels = len(made), made[0].size, site.result.channels
        _find_largest.run(rows, made.size, *lines(given[0]), *lines(made), rows, columns, channels, height, width, flip)

    return run
