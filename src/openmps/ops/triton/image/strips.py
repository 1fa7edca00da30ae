"""Windows of few rows in Triton: a program goes down a strip of a picture, and reads each of its rows once.

Pictures are of bytes or float32 numbers, in pixels without gaps. What becomes of a row is kept for the windows below:
sums that are yet to be finished, or what neighbours across make. Pixels of four bytes are read and written as words.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from openmps.ops.triton.ahead import Launched, Launches
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.elements import stored
from openmps.ops.triton.image.words import are_words, numbers, packed, pointer, unpacked

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

Weights = tuple[tuple[float, ...], tuple[float, ...]]
"""Down and across."""
_BLOCK, _WARPS = 32, 1
_LINES, _FEW_LINES, _FEW_ROWS, _PROGRAMS = (96, 32, 16, 8), (16, 8), 7, 1000
"""Rows that a program makes, of windows of few rows and of others, if there are so many programs nevertheless."""
_MOST_ROWS, _MOST_TAPS = 9, 25
"""Rows of a window, and products of a number, for which a thread makes four words, 16 numbers, instead of two.

Of more rows it has no registers for the sums; of more products a kernel takes many seconds to compile.
"""
_MANY_PROGRAMS = 4000
"""For windows of few rows four words pay where so many programs are left."""
_RAISED: Any = tl.constexpr(2.0**40)
_LOWERED: Any = tl.constexpr(2.0**109)
"""Weights of words' bytes are raised, since `numbers` gives these times 2^-149, and sums lowered by the rest of it.

Sums by weights from 2^-17 to 2^88 have the bits that they would have without.
"""


@triton.jit
def _cells(first, wide, left, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, PIXELS: tl.constexpr):
    """Where the neighbours of a block of numbers are in a row, at its ends those beyond them; and which are within.

    Before them where the first is, and whether none of the block is beyond: then one lies behind the other.
    """
    at = first + tl.arange(0, BLOCK) * PIXELS
    last = first + BLOCK * PIXELS + left + COLUMNS - 2
    places, are_inside = (at + left,), ((CHANNELS == 1) & (first + left >= 0) & (last < wide),)
    for i in tl.static_range(COLUMNS + PIXELS - 1):
        column = at // CHANNELS + left + i
        inside = tl.minimum(tl.maximum(column, 0), wide - 1)
        places += (inside * CHANNELS + at % CHANNELS,)
        are_inside += (column == inside,)
    return places, are_inside


@triton.jit
def _row(x, image, place, high, row, places, are_inside, CLAMPS: tl.constexpr):
    """Elements of a row of a picture of ``high`` rows; beyond its ends those there, or zeros."""
    inside = tl.minimum(tl.maximum(place, 0), high - 1)
    first = x + (image * high + inside).to(tl.int64) * row
    if are_inside[0]:
        elements = _elements(first + places[0], places, are_inside, inside == place, True, CLAMPS)
    else:
        elements = _elements(first, places, are_inside, inside == place, False, CLAMPS)
    return elements


@triton.jit
def _elements(first, places, are_inside, is_there, FOLLOW: tl.constexpr, CLAMPS: tl.constexpr):
    """Elements at all places behind ``first``, or one behind the other from there on, of one address."""
    elements = (first,)
    for i in tl.static_range(len(places) - 1):
        at = first + i if FOLLOW else first + places[1 + i]
        if CLAMPS:
            elements += (tl.load(at),)
        else:
            elements += (tl.load(at, is_there & are_inside[1 + i], 0),)
    return elements[1:]


@triton.jit
def _write(row, first, width, blocks, IS_PACKED: tl.constexpr, BLOCK: tl.constexpr, PIXELS: tl.constexpr):
    """Pixels that lie side by side for each place of a block."""
    if PIXELS == 1:
        at = first + tl.arange(0, BLOCK)
        tl.store(row + at, packed(blocks[0], IS_PACKED), at < width)
    else:
        value = tl.join(packed(blocks[0], IS_PACKED), packed(blocks[PIXELS // 2], IS_PACKED))
        if PIXELS == 4:
            value = tl.join(value, tl.join(packed(blocks[1], IS_PACKED), packed(blocks[3], IS_PACKED)))
        at = first + tl.arange(0, BLOCK)[:, None] * PIXELS + tl.arange(0, PIXELS)[None, :]
        tl.store(row + at, value.reshape(BLOCK, PIXELS), at < width)


@triton.jit
def _lowered(total, IS_PACKED: tl.constexpr):
    """A sum by raised weights, as by those that were given."""
    return total * _LOWERED if IS_PACKED else total


@Launched
@triton.jit
def _weighed(
    x, weights, made, bias, high, wide, top, left, height, width, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr, IS_PACKED: tl.constexpr, LINES: tl.constexpr,
    BLOCK: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Sums by the weights of all pixels of a window, of a block of a strip. Those of ``ROWS`` rows are unfinished."""
    strips = tl.cdiv(height, LINES)
    image, start = tl.program_id(0) // strips, tl.program_id(0) % strips * LINES
    first = tl.program_id(1) * BLOCK * PIXELS
    places, are_inside = _cells(first, wide, left, CHANNELS, COLUMNS, BLOCK, PIXELS)
    x, made = pointer(x, IS_PACKED), pointer(made, IS_PACKED)
    zero = unpacked(tl.zeros([BLOCK], tl.uint32 if IS_PACKED else tl.float32), IS_PACKED).to(tl.float32)
    sums = (zero,) * (ROWS * PIXELS)
    taps = (0.0,)
    for tap in tl.static_range(ROWS * COLUMNS):
        taps += (tl.load(weights + tap) * (_RAISED if IS_PACKED else 1.0),)
    row, origin = wide * CHANNELS, start + top
    elements = _row(x, image, origin, high, row, places, are_inside, CLAMPS)
    for step in tl.range(0, LINES + ROWS - 1, loop_unroll_factor=2):
        # Those of the next row are on their way while this one is added.
        ahead = _row(x, image, origin + step + 1, high, row, places, are_inside, CLAMPS)
        read = (zero,)
        for i in tl.static_range(COLUMNS + PIXELS - 1):
            read += (numbers(elements[i], IS_PACKED),)
        elements = ahead
        # The first sum is finished by this row, and each takes the place of the one before it.
        added = (zero,)
        for k in tl.static_range(ROWS):
            for pixel in tl.static_range(PIXELS):
                total = zero if k == ROWS - 1 else sums[(k + 1) * PIXELS + pixel]
                for i in tl.static_range(COLUMNS):
                    term = read[1 + i + pixel] * taps[1 + (ROWS - 1 - k) * COLUMNS + i]
                    total = term if k == ROWS - 1 and i == 0 else total + term
                added += (total,)
        sums = added[1:]
        line = start + step - (ROWS - 1)
        if (line >= start) & (line < height):
            blocks = (zero,)
            for pixel in tl.static_range(PIXELS):
                blocks += (stored(_lowered(sums[pixel], IS_PACKED) + bias, LARGEST),)
            goes = made + (image * height + line).to(tl.int64) * (width * CHANNELS)
            _write(goes, first, width * CHANNELS, blocks[1:], IS_PACKED, BLOCK, PIXELS)


@triton.jit
def _joined(total, number, weight, IS_FIRST: tl.constexpr, MAKES: tl.constexpr):
    """What neighbours make, with one more."""
    if MAKES == 0:
        number = weight * number
        return number if IS_FIRST else total + number
    if IS_FIRST:
        return number
    if MAKES == 1:
        return tl.maximum(total, number, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(total, number, propagate_nan=tl.PropagateNan.ALL)


@Launched
@triton.jit
def _both(
    x, down, across, made, factor, high, wide, top, left, height, width, MAKES: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr, IS_PACKED: tl.constexpr,
    LINES: tl.constexpr, BLOCK: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """What neighbours across and then down make, of a block of a strip. Of ``ROWS`` rows it is unfinished."""
    IS_NUMBER: tl.constexpr = MAKES == 0 or not IS_PACKED
    strips = tl.cdiv(height, LINES)
    image, start = tl.program_id(0) // strips, tl.program_id(0) % strips * LINES
    first = tl.program_id(1) * BLOCK * PIXELS
    places, are_inside = _cells(first, wide, left, CHANNELS, COLUMNS, BLOCK, PIXELS)
    x, made = pointer(x, IS_PACKED), pointer(made, IS_PACKED)
    zero = unpacked(tl.zeros([BLOCK], tl.uint32 if IS_PACKED else tl.float32), IS_PACKED)
    zero = zero.to(tl.float32) if IS_NUMBER else zero
    kept = (zero,) * (ROWS * PIXELS)
    row, origin = wide * CHANNELS, start + top
    elements = _row(x, image, origin, high, row, places, are_inside, CLAMPS)
    for step in tl.range(0, LINES + ROWS - 1, loop_unroll_factor=2):
        ahead = _row(x, image, origin + step + 1, high, row, places, are_inside, CLAMPS)
        read = (zero,)
        for i in tl.static_range(COLUMNS + PIXELS - 1):
            read += (numbers(elements[i], IS_PACKED) if IS_NUMBER else unpacked(elements[i], IS_PACKED),)
        elements = ahead
        newest = (zero,)
        for pixel in tl.static_range(PIXELS):
            total = zero
            for i in tl.static_range(COLUMNS):
                total = _joined(total, read[1 + i + pixel], across[i], i == 0, MAKES)
            newest += (total,)
        # The first is finished by this row, and each takes the place of the one before it.
        added = (zero,)
        for k in tl.static_range(ROWS):
            for pixel in tl.static_range(PIXELS):
                total = zero if k == ROWS - 1 else kept[(k + 1) * PIXELS + pixel]
                added += (_joined(total, newest[1 + pixel], down[ROWS - 1 - k], k == ROWS - 1, MAKES),)
        kept = added[1:]
        line = start + step - (ROWS - 1)
        if (line >= start) & (line < height):
            blocks = (zero,)
            for pixel in tl.static_range(PIXELS):
                blocks += (stored(kept[pixel] * factor, LARGEST) if MAKES == 0 else kept[pixel],)
            goes = made + (image * height + line).to(tl.int64) * (width * CHANNELS)
            _write(goes, first, width * CHANNELS, blocks[1:], IS_PACKED, BLOCK, PIXELS)


class _Cut(NamedTuple):
    """How a picture is cut into parts of programs."""

    grid: tuple[int, int]
    channels: int
    """Of what is read at once."""
    is_packed: bool
    lines: int
    pixels: int


def _cut(x: Tensor, made: Tensor, rows: int, taps: int) -> _Cut:
    images, channels, height, width = made.shape
    is_packed = are_words(x, made)
    cells = 1 if is_packed else channels
    pixels, choices = 1 if cells > 1 else 4, _FEW_LINES if rows <= _FEW_ROWS else _LINES
    blocks = cdiv(width * cells, _BLOCK * pixels)
    is_small = rows <= _FEW_ROWS and images * height * blocks < _MANY_PROGRAMS * choices[0]
    if is_packed and (rows > _MOST_ROWS or taps > _MOST_TAPS or is_small):
        pixels, blocks = 2, cdiv(width, _BLOCK * 2)
    lines = next((each for each in choices if images * height * blocks >= _PROGRAMS * each), choices[-1])
    return _Cut((images * cdiv(height, lines), blocks), cells, is_packed, lines, pixels)


def weighed(
    x: Tensor, made: Tensor, size: tuple[int, int], corner: tuple[int, int], weights: Tensor, *, bias: float,
    clamps: bool, largest: int,
) -> Launches:  # fmt: skip
    """Sums of windows of so many rows and columns, the first from ``corner`` on, by weights, and bias, into ``made``.

    Bytes are ``largest`` for 1.
    """
    (high, wide), (height, width), cut = x.shape[2:], made.shape[2:], _cut(x, made, size[0], size[0] * size[1])
    arguments = (
        x, weights, made, bias, high, wide, *corner, height, width, cut.channels, *size, clamps, largest,
        cut.is_packed, cut.lines, _BLOCK, cut.pixels,
    )  # fmt: skip
    return Launches.of(_weighed, cut.grid, arguments, num_warps=_WARPS)


def both(
    x: Tensor, made: Tensor, size: tuple[int, int], corner: tuple[int, int], weights: Weights, *, makes: int = 0,
    factor: float = 1.0, clamps: bool = True, largest: int = 0,
) -> Launches:  # fmt: skip
    """What neighbours across and then down make, windows beginning at ``corner``, times ``factor``, into ``made``.

    Sums are by weights. Bytes are ``largest`` for 1, or the number as it is for 0.
    """
    (high, wide), (height, width), cut = x.shape[2:], made.shape[2:], _cut(x, made, size[0], sum(size))
    if cut.is_packed and makes == 0:
        across, factor = tuple([each * _RAISED.value for each in weights[1]]), factor * _LOWERED.value
        weights = weights[0], across
    arguments = (
        x, *weights, made, factor, high, wide, *corner, height, width, int(makes), cut.channels, *size, clamps, largest,
        cut.is_packed, cut.lines, _BLOCK, cut.pixels,
    )  # fmt: skip
    return Launches.of(_both, cut.grid, arguments, num_warps=_WARPS)
