"""Filters of single pixels, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch

from openmps.ops import opencv
from openmps.ops.elements import COMPONENTS, encode
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.histogram import Lookup, table_of_bytes
from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.site import BYTES, Site
from openmps.ops.image.threshold import Limited, Threshold, Thresholding
from openmps.ops.numba import colours
from openmps.ops.numba.bins import find_bins, spans_of
from openmps.ops.numba.loop import PAIRS, are_compiled, bits, lines, loop, loops
from openmps.ops.numba.primitives import claim, finish, multiply_add, number, store, wait
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination
from openmps.types import MPSImageEdgeMode

_MOST_GRAY = 1.001
"""Sum of weights up to which no gray value is a larger number than a byte, rounded."""
_ALL = 255
"""All bits of a byte."""


# --- gray values --------------------------------------------------------------------------------------------------


@loop("uint8[::1]", "int64", "int64", "uint8[::1]", "int64", "int64", "float32[::1]", "uint32[::1]")
def _threshold_grays(
    claims: Any, x: Any, x_step: int, channels: int, made: Any, step: int, columns: int, numbers: Any, masks: Any
) -> None:
    """Of the byte b of each gray value ``(b & mask) + other`` above the limit, with another pair where it is not."""
    red, green, blue, limit = numbers
    mask, other, low_mask, low_other = masks
    # Behind a number as large as this float32 has whole numbers alone: they are its lowest bits.
    shift, byte = np.float32(8388608.0), np.uint32(255)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            into = made[row * step : row * step + columns]
            if channels == 4:
                # A pixel as one number: its bytes become vectors of three colours so.
                pixels = x[row * x_step : row * x_step + 4 * columns].view(np.uint32)
                for column in range(columns):
                    pixel = pixels[column]
                    value = np.float32(np.int32(pixel & byte)) * red
                    value += np.float32(np.int32((pixel >> np.uint32(8)) & byte)) * green
                    value += np.float32(np.int32((pixel >> np.uint32(16)) & byte)) * blue
                    found = np.float32(value + shift).view(np.uint32) & byte
                    into[column] = np.uint8((found & mask) + other if value > limit else (found & low_mask) + low_other)
            else:
                colours = x[row * x_step : row * x_step + 3 * columns]
                for column in range(columns):
                    value = np.float32(np.int32(colours[3 * column])) * red
                    value += np.float32(np.int32(colours[3 * column + 1])) * green
                    value += np.float32(np.int32(colours[3 * column + 2])) * blue
                    found = np.float32(value + shift).view(np.uint32) & byte
                    into[column] = np.uint8((found & mask) + other if value > limit else (found & low_mask) + low_other)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def gray_threshold(site: Site) -> Run | None:
    """`Threshold` of the `Gray` value of bytes, into one channel of bytes."""
    gray, op, spread = site.ops
    assert isinstance(gray, Gray)
    assert isinstance(op, Threshold)
    assert isinstance(spread, Spread)
    channels = site.sources[0].channels
    is_usual = min(gray.weights) >= 0.0 and sum(gray.weights) <= _MOST_GRAY
    if (
        not is_usual
        or site.formats != (BYTES, BYTES)
        or channels not in (COMPONENTS - 1, COMPONENTS)
        or spread.count != 1
    ):
        return colours.thresholded(site)
    limit, largest = encode(torch.tensor([op.limit, op.largest]), BYTES).tolist()
    masks = np.array(
        {
            Thresholding.BINARY: (0, largest, 0, 0),
            Thresholding.BINARY_INVERSE: (0, 0, 0, largest),
            Thresholding.TRUNCATE: (0, limit, _ALL, 0),
            Thresholding.TO_ZERO: (_ALL, 0, 0, 0),
            Thresholding.TO_ZERO_INVERSE: (0, 0, _ALL, 0),
        }[op.how],
        np.uint32,
    )
    with np.errstate(over="ignore"):  # a threshold beyond float32 is infinite
        numbers = np.array([*gray.weights, op.limit / site.unit], np.float32)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, rows, columns = lines(given[0]), *made.shape
        _threshold_grays.run(rows, given[0].size, *x, channels, *lines(made), columns, numbers, masks)

    return run


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _within(value: Any, low: Any, high: Any) -> Any:
    """A number within limits; NaN stays."""
    value = low if value < low else value
    return high if value > high else value


def _combine_row(x: Any, y: Any, into: Any, kind: int, numbers: Any) -> None:
    """``first x + second y``, ``(first x) (second y)`` or their quotient, and a bias, within limits, and stored."""
    first, second, bias, low, high, scale = numbers
    if kind == 0:
        for column in range(len(into)):
            value = multiply_add(number(y[column]), second, number(x[column]) * first) + bias
            store(into, column, _within(value, low, high) * scale)
    elif kind == 1:
        for column in range(len(into)):
            value = (number(x[column]) * first) * (number(y[column]) * second) + bias
            store(into, column, _within(value, low, high) * scale)
    else:
        for column in range(len(into)):
            value = (number(x[column]) * first) / (number(y[column]) * second) + bias
            store(into, column, _within(value, low, high) * scale)


@loops("T[::1], int64, T[::1], int64, S[::1], int64, int64, int64, float32[::1]", PAIRS, uses=(_within, _combine_row))
def _combine(
    claims: Any, x: Any, x_step: int, y: Any, y_step: int, made: Any, step: int, columns: int, kind: int, numbers: Any
) -> None:
    """`_combine_row` of each row."""
    begin, end = claim(claims)
    while begin < end:
        for row in range(begin, end):
            into = made[row * step :][:columns]
            _combine_row(x[row * x_step :][:columns], y[row * y_step :][:columns], into, kind, numbers)
        finish(claims, end - begin)
        begin, end = claim(claims)
    wait(claims)


_KINDS = {
    Arithmetic.ADD: (0, 1.0),
    Arithmetic.SUBTRACT: (0, -1.0),
    Arithmetic.MULTIPLY: (1, 1.0),
    Arithmetic.DIVIDE: (2, 1.0),
}
"""Of `_combine_row`, and the sign of the second picture."""


def combination(site: Site) -> Run | None:
    """`Combination` of pictures of the same size and format, and `Limited`. A bias of -0 changes no number.

    OpenCV has sums and products of bytes sooner.
    """
    op, *limits = site.ops
    assert isinstance(op, Combination)
    is_left = {*site.formats} == {BYTES} and op.operation is not Arithmetic.DIVIDE and opencv.is_installed()
    are_alike = site.formats[0] is site.formats[1] and all(each.region == site.size for each in site.windows)
    if is_left or not are_alike or not are_compiled(site.formats):
        return None
    low, high = -math.inf, math.inf
    for each in limits:
        assert isinstance(each, Limited)
        low, high = each.minimum, each.maximum
    kind, sign = _KINDS[op.operation]
    first, second = op.primary_scale * site.unit, sign * op.secondary_scale * site.unit
    with np.errstate(over="ignore"):
        numbers = np.array([first, second, op.bias or -0.0, low, high, site.scale], np.float32)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, y, into, columns = bits(given[0]), bits(given[1]), bits(made), made[0].size
        combine = _combine[x.dtype.name, into.dtype.name]
        combine.run(len(made), made.size, *lines(x), *lines(y), *lines(into), columns, kind, numbers)

    return run


# --- alpha and tables -------------------------------------------------------------------------------------------------


@loop("uint8[::1]", "int64", "uint8[::1]", "int64", "int64")
def _premultiply(claims: Any, x: Any, x_step: int, made: Any, step: int, columns: int) -> None:
    """Colours times alpha: ``c a / 255`` is never halfway between bytes, so that whole numbers round it."""
    sides, halves, side, half = np.uint32(0x00FF00FF), np.uint32(0x00800080), np.uint32(0x0000FF00), np.uint32(0x80)
    eight, top, byte = np.uint32(8), np.uint32(0xFF000000), np.uint32(0xFF)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            pixels = x[row * x_step :][: 4 * columns].view(np.uint32)
            into = made[row * step :][: 4 * columns].view(np.uint32)
            for column in range(columns):
                pixel = pixels[column]
                alpha = pixel >> np.uint32(24)
                outer = np.uint32((pixel & sides) * alpha + halves)  # red and blue
                outer = ((outer + ((outer >> eight) & sides)) >> eight) & sides
                inner = np.uint32(((pixel >> eight) & byte) * alpha + half)
                into[column] = outer | ((inner + (inner >> eight)) & side) | (pixel & top)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def convert_alpha(site: Site) -> Run | None:
    """`ConvertAlpha` of bytes whose colours are multiplied by alpha."""
    op = site.ops[0]
    assert isinstance(op, ConvertAlpha)
    if site.formats != (BYTES, BYTES) or not op.premultiplies:
        return colours.converted_alpha(site)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        rows, columns = made.shape[:2]
        _premultiply.run(rows, made.size, *lines(given[0]), *lines(made), columns)

    return run


@loop("uint8[::1]", "int64", "uint8[::1]", "int64", "int64", "uint16[::1]")
def _look_up(claims: Any, x: Any, x_step: int, made: Any, step: int, columns: int, table: Any) -> None:
    """Bytes by a table of all pairs of them."""
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            whole = columns // 2 * 2
            pairs = x[row * x_step :][:whole].view(np.uint16)
            into = made[row * step :][:whole].view(np.uint16)
            for place in range(len(pairs)):
                into[place] = table[pairs[place]]
            if whole < columns:
                made[row * step + whole] = np.uint8(table[x[row * x_step + whole]] & np.uint16(255))
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


@loop("uint8[::1]", "uint16[::1]")
def _pair_up(claims: Any, table: Any, pairs: Any) -> None:
    """The table of two bytes that follow one another, from that of one."""
    for second in range(256):
        high = np.uint16(np.uint16(table[second]) << np.uint16(8))
        row = pairs[256 * second :][:256]
        for first in range(256):
            row[first] = np.uint16(table[first]) | high


@loops(
    "T[::1], int64, S[::1], int64, int64, float64[::1], float64[::1], float64[::1], int32[::1], float64, float64, "
    "float64, float32[::1], float32",
    PAIRS,
    uses=(find_bins,),
)
def _look_up_floats(
    claims: Any, x: Any, x_step: int, made: Any, step: int, columns: int, low: Any, high: Any, length: Any, first: Any,
    factor: Any, bias: Any, last: Any, table: Any, scale: Any,
) -> None:  # fmt: skip
    """Numbers by a table of their bins; numbers without a first bin stay."""
    bins = np.empty(len(low), np.int32)
    begin, end = claim(claims)
    while begin < end:
        for row in range(begin, end):
            for left in range(0, columns, len(low)):
                some = x[row * x_step + left :][: min(len(low), columns - left)]
                find_bins(some, low, high, length, factor, bias, last, bins)
                into = made[row * step + left :][: len(some)]
                for place in range(len(some)):
                    bin_ = first[place]
                    value = number(some[place]) if bin_ < 0 else table[bin_ + bins[place]]
                    store(into, place, value * scale)
        finish(claims, end - begin)
        begin, end = claim(claims)
    wait(claims)


def looked_up(site: Site) -> Run | None:
    """`Lookup`; of bytes that of one channel."""
    op, channels = site.ops[0], site.sources[0].channels
    assert isinstance(op, Lookup)
    if site.formats[0] is BYTES:
        return _looked_up_bytes(site, op)
    if not are_compiled(site.formats):
        return None
    spans, scale = spans_of(channels, op.low, op.high, op.entries, rounds=op.rounds), np.float32(site.scale)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into = bits(given[0]), bits(made)
        _look_up_floats[x.dtype.name, into.dtype.name].run(
            *(len(made), made.size, *lines(x), *lines(into), made[0].size, *spans, given[1].ravel(), scale)
        )

    return run


def _looked_up_bytes(site: Site, op: Lookup) -> Run | None:
    if site.formats != (BYTES, BYTES) or site.result.channels != 1 or len(op.low) != 1 or sys.byteorder != "little":
        return None

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        table = table_of_bytes(torch.from_numpy(given[1]), op.entries, op.low, op.high, op.rounds).numpy()
        pairs = np.empty(1 << 16, np.uint16)
        _pair_up.run(1, 0, table[0], pairs)
        _look_up.run(len(made), made.size, *lines(given[0]), *lines(made), made.shape[1], pairs)

    return run
