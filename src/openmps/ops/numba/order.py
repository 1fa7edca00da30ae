"""Extremes of windows, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.order import Extreme
from openmps.ops.image.site import BYTES, Site
from openmps.ops.numba.loop import are_compiled, bits, lines, loops
from openmps.ops.numba.primitives import (
    claim,
    finish,
    look,
    look_aside,
    store,
    store_aside,
    store_element,
    turned,
    wait,
)
from openmps.types import MPSImageEdgeMode

_MOST_ACROSS = 64
"""Pixels of a window of extremes along an axis."""


def _larger(a: Any, b: Any) -> Any:
    """Of two bytes, as bytes: Python's own function makes larger numbers of them. Of floats NaN, where one is."""
    return a if a > b or a != a else b


def _extend(wide: Any, columns: int, channels: int, margin: int) -> None:
    """Repeat the first and the last pixel of a row in the margins around it."""
    for place in range(margin):
        wide[place] = wide[margin + place % channels]
        wide[margin + columns + place] = wide[margin + columns - channels + place % channels]


def _raise_down(x: Any, step: int, rows: int, row: int, reach: int, columns: int, flip: Any, sums: Any) -> None:
    """The largest number of each column of the rows around one, four at a time: of `turned` numbers."""
    first, last = max(row - reach, 0), min(row + reach, rows - 1)
    a, b, c = x[first * step :], x[min(first + 1, last) * step :], x[min(first + 2, last) * step :]
    for column in range(columns):
        most = _larger(turned(look_aside(a, column), flip), turned(look_aside(b, column), flip))
        store_aside(sums, column, _larger(most, turned(look_aside(c, column), flip)))
    each = first + 3
    while each <= last:
        if each + 3 <= last:
            a, b = x[each * step :], x[(each + 1) * step :]
            c, d = x[(each + 2) * step :], x[(each + 3) * step :]
            for column in range(columns):
                most = _larger(turned(look_aside(a, column), flip), turned(look_aside(b, column), flip))
                other = _larger(turned(look_aside(c, column), flip), turned(look_aside(d, column), flip))
                store_aside(sums, column, _larger(_larger(most, other), sums[column]))
            each += 4
        else:
            a = x[each * step :]
            for column in range(columns):
                store_aside(sums, column, _larger(turned(look_aside(a, column), flip), sums[column]))
            each += 1


def _raise_across(wide: Any, other: Any, reach: int, channels: int, count: int) -> Any:
    """Rows that begin with the largest number of each window of one: windows grow by the doubles of themselves.

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
                store_element(other, column, _larger(look(wide, column), look(there, column)))
        is_other = not is_other
        length += step
    return other if is_other else wide


@loops(
    "T[::1], int64, T[::1], int64, int64, int64, int64, int64, int64, S[::1]",
    [("uint8", "uint8"), ("uint16", "float32"), ("float32", "float32")],
    uses=(_larger, _extend, _raise_down, _raise_across),
)
def _find_largest(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int,
    height: int, width: int, flips: Any,
) -> None:  # fmt: skip
    """The largest number of each window, or by `turned` numbers the smallest; windows end with the picture."""
    margin, flip = width * channels, flips[0]
    wide, other = np.empty(columns + 2 * margin, flips.dtype), np.empty(columns + 2 * margin, flips.dtype)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            _raise_down(x, x_step, rows, row, height, columns, flip, wide[margin:])
            _extend(wide, columns, channels, margin)
            found = _raise_across(wide, other, width, channels, columns)
            into = made[row * step :][:columns]
            for column in range(columns):
                store(into, column, turned(found[column], flip))
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def extreme(site: Site) -> Run | None:
    """`Extreme` of few channels."""
    op, size = site.ops[0], site.window.size
    assert isinstance(op, Extreme)
    is_alike = site.formats[0] is site.formats[1] and are_compiled(site.formats)
    if not is_alike or site.result.channels > 4 or max(size) > _MOST_ACROSS:
        return None
    height, width = (length // 2 for length in size)
    is_bytes = site.formats[0] is BYTES
    flip = (0 if op.is_largest else 255) if is_bytes else (1.0 if op.is_largest else -1.0)
    flips = np.array([flip], np.uint8 if is_bytes else np.float32)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into, rows, columns, channels = bits(given[0]), bits(made), len(made), made[0].size, site.result.channels
        find = _find_largest[x.dtype.name, flips.dtype.name]
        find.run(rows, made.size, *lines(x), *lines(into), rows, columns, channels, height, width, flips)

    return run
