"""Scaling of pictures, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.site import BYTES, Site
from openmps.ops.numba.colours import put_components
from openmps.ops.numba.loop import PAIRS, added_components, are_compiled, bits, lines, loop, loops
from openmps.ops.numba.primitives import claim, finish, mix_four, multiply_add, number, store, sum_four, wait
from openmps.ops.resample.image_scale import ScaleFilter, ScaleImage, Scaling
from openmps.types import MPSImageEdgeMode

_MOST = 3
"""Columns that are read for each that is made, at most: each row of sums down has all of them."""
_PER_NUMBER = 8
"""Products that take as long as other loops need for a number."""


def _mix_rows(above: Any, below: Any, weight: Any, width: int, sums: Any) -> None:
    """Numbers between two rows of bytes."""
    for column in range(width):
        first = number(above[column])
        sums[column] = multiply_add(number(below[column]) - first, weight, first)


def _mix_columns(sums: Any, left: Any, right: Any, weights: Any, channels: int, into: Any) -> None:
    """Bytes between the pixels of a row of numbers."""
    if channels == 4:
        for pixel in range(len(left)):
            mix_four(sums, left[pixel], right[pixel], weights[pixel], into, 4 * pixel)
        return
    for pixel in range(len(left)):
        for channel in range(channels):
            first = sums[left[pixel] + channel]
            value = multiply_add(sums[right[pixel] + channel] - first, weights[pixel], first)
            store(into, pixel * channels + channel, value)


@loop(
    *("uint8[::1]", "int64", "uint8[::1]", "int64", "int64", "int64", "int64"),
    *("int64[::1]", "int64[::1]", "float32[::1]", "int64[::1]", "int64[::1]", "float32[::1]"),
    uses=(_mix_rows, _mix_columns),
)
def _scale(
    claims: Any, x: Any, x_step: int, made: Any, step: int, begin: int, width: int, channels: int,
    above: Any, below: Any, down: Any, left: Any, right: Any, across: Any,
) -> None:  # fmt: skip
    """Numbers between four bytes, rounded; columns are counted from the first that is read."""
    sums, columns = np.empty(width, np.float32), len(left) * channels
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            upper, lower = x[above[row] * x_step + begin :][:width], x[below[row] * x_step + begin :][:width]
            _mix_rows(upper, lower, down[row], width, sums)
            _mix_columns(sums, left, right, across, channels, made[row * step :][:columns])
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


class _Places(NamedTuple):
    """The two pixels around each position along an axis, and the weight of the second."""

    first: Array
    second: Array
    weights: Array


def _places(axis: Scaling) -> _Places:
    last = axis.axis.source - 1
    pixel = np.arange(axis.axis.result, dtype=np.float64)
    position = np.clip((pixel + (0.5 - axis.translation)) / axis.scale + (axis.axis.offset - 0.5), 0.0, last)
    first = np.floor(position)
    second = np.minimum(first + 1.0, last)
    return _Places(first.astype(np.int64), second.astype(np.int64), (position - first).astype(np.float32))


def scaled(site: Site) -> Run | None:
    """`ScaleImage`; of bytes, bilinear, continued by its edge, by numbers between two rows and two columns.

    Where few columns of many are wanted, OpenCV's form has them sooner than all are read.
    """
    op, channels = site.ops[0], site.result.channels
    assert isinstance(op, ScaleImage)
    is_bilinear = op.filter is ScaleFilter.BILINEAR and op.edge_mode == MPSImageEdgeMode.CLAMP
    if not is_bilinear or site.formats != (BYTES, BYTES):
        return resampled(site)
    rows, columns = _places(op.rows), _places(op.columns)
    begin = int(columns.first.min())
    width = int(columns.second.max()) + 1 - begin
    if width > _MOST * len(columns.first):
        return None
    places = *rows, (columns.first - begin) * channels, (columns.second - begin) * channels, columns.weights

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        _scale.run(
            *(len(made), 2 * made.size, *lines(given[0]), *lines(made)),
            *(begin * channels, width * channels, channels, *places),
        )

    return run


# --- sums of any number of pixels -------------------------------------------------------------------------------------


def _row(x: Any, place: int, rows: int, step: int, begin: int, width: int, nothing: Any) -> Any:
    """The numbers of a row that are read; behind the last row there is nothing."""
    return x[place * step + begin :][:width] if place < rows else nothing[:width]


def _sum_rows(
    x: Any, rows: int, step: int, begin: int, width: int, places: Any, weights: Any, nothing: Any, sums: Any
) -> None:
    """Sums of rows with weights: of the first, then of five at a time, then one by one."""
    a, one, tap = _row(x, places[0], rows, step, begin, width, nothing), weights[0], 1
    for column in range(width):
        sums[column] = number(a[column]) * one
    while tap < len(places):
        a, one = _row(x, places[tap], rows, step, begin, width, nothing), weights[tap]
        if tap + 4 < len(places):
            b = _row(x, places[tap + 1], rows, step, begin, width, nothing)
            c = _row(x, places[tap + 2], rows, step, begin, width, nothing)
            d = _row(x, places[tap + 3], rows, step, begin, width, nothing)
            e = _row(x, places[tap + 4], rows, step, begin, width, nothing)
            two, three, four, five = weights[tap + 1], weights[tap + 2], weights[tap + 3], weights[tap + 4]
            for column in range(width):
                total = multiply_add(number(a[column]), one, sums[column])
                total = multiply_add(number(b[column]), two, total)
                total = multiply_add(number(c[column]), three, total)
                total = multiply_add(number(d[column]), four, total)
                sums[column] = multiply_add(number(e[column]), five, total)
            tap += 5
        else:
            for column in range(width):
                sums[column] = multiply_add(number(a[column]), one, sums[column])
            tap += 1


@loops(
    "T[::1], int64, S[::1], int64, int64, int64, int64, int64, int64, "
    "int64[:, ::1], float32[:, ::1], int64[::1], float32[::1], int64, float32, float32[::1]",
    PAIRS,
    uses=(_row, _sum_rows, put_components),
)
def _resample(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, begin: int, width: int, channels: int, kept: int,
    down_places: Any, down: Any, across_places: Any, across: Any, count: int, factor: Any, added: Any,
) -> None:  # fmt: skip
    """Sums over rows and columns with weights; behind the last row and column there are zeros."""
    nothing = np.zeros(width, x.dtype)
    sums, taps = np.zeros(width + channels + 4, np.float32), len(across) // count
    total, room = np.empty(count * channels + 4, np.float32), np.empty(count * kept, np.float32)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            _sum_rows(x, rows, x_step, begin, width, down_places[row], down[row], nothing, sums)
            for pixel in range(count):
                for channel in range(0, channels, 4):
                    place = pixel * channels + channel
                    sum_four(sums, channel, across_places, across, pixel * taps, taps, total, place)
            into = made[row * step :][: count * kept]
            put_components(total, channels, into, kept, count, factor, added, room)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def resampled(site: Site) -> Run | None:
    """`ScaleImage`, also into other channels: sums over rows, then over columns, rounded once."""
    op, channels, kept = site.ops[0], site.sources[0].channels, site.result.channels
    assert isinstance(op, ScaleImage)
    if not are_compiled(site.formats):
        return None
    rows, columns = (_taps(each, op) for each in (op.rows, op.columns))
    is_there = columns.places < op.columns.axis.source
    begin = int(columns.places.min(initial=op.columns.axis.source - 1, where=is_there))
    width = int(columns.places.max(initial=begin, where=is_there)) + 1 - begin
    across = (np.where(is_there, columns.places - begin, width) * channels).ravel()
    count, taps = columns.places.shape
    weights = rows.places, rows.weights, across, columns.weights.ravel(), count
    work = (width * channels * rows.places.shape[1] + count * channels * taps) // _PER_NUMBER
    factor, added = np.float32(site.unit * site.scale), added_components(site)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into, height = bits(given[0]), bits(made), len(made)
        _resample[x.dtype.name, into.dtype.name].run(
            *(height, height * work, *lines(x), *lines(into), len(x), begin * channels, width * channels),
            *(channels, kept, *weights, factor, added),
        )

    return run


class _Weighed(NamedTuple):
    """Along an axis the pixels that each result pixel reads, and their weights: ``[result, taps]``."""

    places: Array
    weights: Array


def _taps(axis: Scaling, op: ScaleImage) -> _Weighed:
    taps = axis.taps(op.filter, op.edge_mode, torch.empty(0))
    assert taps.weight is not None
    return _Weighed(*(np.ascontiguousarray(each.numpy().T) for each in (taps.index, taps.weight)))
