"""Windows of pictures in Triton, channel by channel, from pictures to pictures in one pass, or in two along axes.

Of regions, too, for `openmps.ops.image.windows` and `separable`. A picture is of bytes or float32 numbers, in pixels
without gaps; so is the result, of which bytes are rounded once.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS, ROWS
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.elements import stored
from openmps.ops.triton.geometry import is_packed

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

Weights = tuple[tuple[float, ...], tuple[float, ...]]
"""Down and across."""
_THREADS, _LONG = 128, 1024
"""A pixel, or four numbers, for each thread of a program; numbers of a row of sums down."""
_LINES, _MANY_LINES, _PROGRAMS = 4, (32, 16), 256
"""Rows that a program makes; that one makes that keeps some, if there are so many programs nevertheless."""
_TYPES = torch.uint8, torch.float32


class Makes(IntEnum):
    """What becomes of neighbours."""

    SUM = 0
    """Their sum by weights."""
    LARGEST = 1
    SMALLEST = 2


def _block(channels: int) -> int:
    """Numbers of a row that a program makes."""
    return _THREADS * (4 if channels > 2 else channels)


def takes(*images: Tensor) -> bool:
    """Whether images are of bytes or float32, in pixels without gaps."""
    return all(each.dtype in _TYPES and is_packed(each) for each in images)


@triton.jit
def _length(a, b):
    """``sqrt(a² + b²)``, which overflows where that does; infinite where one is, whatever the other."""
    a, b = tl.abs(a), tl.abs(b)
    larger = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    ratio = tl.where(larger > 0.0, tl.minimum(a, b) / larger, 0.0)
    is_infinite = (a == float("inf")) | (b == float("inf"))
    return tl.where(is_infinite, float("inf"), larger * tl.sqrt(1.0 + ratio * ratio))


@triton.jit
def _number(row, pixel, channel, is_there, is_row, wide, CHANNELS: tl.constexpr, CLAMPS: tl.constexpr):
    """Numbers of pixels of a row, beyond its ends those there, or zeros."""
    column = tl.minimum(tl.maximum(pixel, 0), wide - 1)
    is_read = is_there if CLAMPS else is_there & is_row & (column == pixel)
    return tl.load(row + column * CHANNELS + channel, is_read, 0).to(tl.float32)


@triton.jit
def _replaced(blocks, PLACE: tl.constexpr, block):
    """A tuple with another block in one place."""
    return blocks[:PLACE] + (block,) + blocks[PLACE + 1 :]


@triton.jit
def _added(blocks, PLACE: tl.constexpr, block):
    """A tuple with a block added to the one in a place."""
    return _replaced(blocks, PLACE, blocks[PLACE] + block)


@Launched
@triton.jit
def _windows(
    x, weights, made, factor, bias, high, wide, top, left, height, width, IS_SOBEL: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr,
    LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of some rows of numbers; window (0, 0) begins at the source's row ``top`` and column ``left``."""
    groups = tl.cdiv(height, LINES)
    image, start = tl.program_id(0) // groups, tl.program_id(0) % groups * LINES
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    pixel, channel, zero = at // CHANNELS + left, at % CHANNELS, tl.zeros([BLOCK], tl.float32)
    sums, others, taps = (zero,) * LINES, (zero,) * LINES, (zero,)
    if not IS_SOBEL:
        for tap in tl.static_range(ROWS * COLUMNS):
            taps = taps + (tl.load(weights + tap),)
    for step in tl.static_range(LINES + ROWS - 1):
        place = start + top + step
        inside = tl.minimum(tl.maximum(place, 0), high - 1)
        row = x + (image * high + inside).to(tl.int64) * wide * CHANNELS
        for i in tl.static_range(COLUMNS):
            number = _number(row, pixel + i, channel, is_there, inside == place, wide, CHANNELS, CLAMPS)
            for j in tl.static_range(ROWS):
                if step >= j and step - j < LINES:
                    if not IS_SOBEL:
                        sums = _added(sums, step - j, taps[1 + j * COLUMNS + i] * number)
                    else:
                        if i != 1:  # a weight of 0 would make a NaN of infinity
                            sums = _added(sums, step - j, ((i - 1) * (2 - (j - 1) * (j - 1))) * number)
                        if j != 1:
                            others = _added(others, step - j, ((1 - j) * (2 - (i - 1) * (i - 1))) * number)
    for line in tl.static_range(LINES):
        value = _length(sums[line], others[line]) if IS_SOBEL else sums[line]
        first = made + (image * height + start + line).to(tl.int64) * width * CHANNELS
        tl.store(first + at, stored(value * factor + bias, LARGEST), is_there & (start + line < height))


def windows(
    x: Tensor, made: Tensor, size: tuple[int, int], corner: tuple[int, int], weights: Tensor | None = None, *,
    factor: float = 1.0, bias: float = 0.0, clamps: bool = True, largest: int = 0,
) -> None:  # fmt: skip
    """Sums by weights of windows of so many rows and columns, the first from ``corner`` on, into ``made``.

    Without weights the length of Sobel's differences, of 3 x 3. The result is times ``factor``, with ``bias`` added;
    bytes are ``largest`` for 1.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    block = _block(channels)
    _windows[(images * cdiv(height, _LINES), cdiv(width * channels, block))](
        x, x if weights is None else weights, made, factor, bias, high, wide, *corner, height, width, weights is None,
        channels, *size, clamps, largest, _LINES, block,
    )  # fmt: skip


@triton.jit
def _joined(total, number, weights, TAP: tl.constexpr, MAKES: tl.constexpr):
    """What neighbours make, with one more."""
    if MAKES == 0:
        number = weights[TAP] * number
        return number if TAP == 0 else total + number
    if TAP == 0:
        return number
    if MAKES == 1:
        return tl.maximum(total, number, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(total, number, propagate_nan=tl.PropagateNan.ALL)


@Launched
@triton.jit
def _both(
    x, down, across, made, factor, high, wide, top, left, height, width, MAKES: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr, LINES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of some rows of numbers. Of the newest rows of a window it keeps what neighbours across make."""
    groups = tl.cdiv(height, LINES)
    image, start = tl.program_id(0) // groups, tl.program_id(0) % groups * LINES
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    pixel, channel, zero = at // CHANNELS + left, at % CHANNELS, tl.zeros([BLOCK], tl.float32)
    kept = (zero,) * ROWS
    for step in range(LINES + ROWS - 1):
        place = start + top + step
        inside = tl.minimum(tl.maximum(place, 0), high - 1)
        row = x + (image * high + inside).to(tl.int64) * wide * CHANNELS
        newest = zero
        for i in tl.static_range(COLUMNS):
            number = _number(row, pixel + i, channel, is_there, inside == place, wide, CHANNELS, CLAMPS)
            newest = _joined(newest, number, across, i, MAKES)
        kept = kept[1:] + (newest,)
        value = zero
        for j in tl.static_range(ROWS):
            value = _joined(value, kept[j], down, j, MAKES)
        line = start + step - (ROWS - 1)
        is_made = is_there & (line >= start) & (line < height)
        first = made + (image * height + line).to(tl.int64) * width * CHANNELS
        tl.store(first + at, stored(value * factor, LARGEST), is_made)


def both(
    x: Tensor, made: Tensor, size: tuple[int, int], corner: tuple[int, int], weights: Weights = ((1.0,), (1.0,)), *,
    makes: Makes = Makes.SUM, factor: float = 1.0, clamps: bool = True, largest: int = 0,
) -> None:  # fmt: skip
    """What neighbours across and then down make, windows beginning at ``corner``, times ``factor``, into ``made``.

    Sums are by weights. Bytes are ``largest`` for 1, or the number as it is for 0. For windows of few rows and columns.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    block = _block(channels)
    blocks = cdiv(width * channels, block)
    lines = next((each for each in _MANY_LINES if images * height * blocks >= _PROGRAMS * each), _LINES)
    _both[(images * cdiv(height, lines), blocks)](
        x, *weights, made, factor, high, wide, *corner, height, width, int(makes), channels, *size, clamps, largest,
        lines, block,
    )  # fmt: skip


@Launched
@triton.jit
def _sum_of_taps(
    region, weights, made, bias, height, width, across, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers; rows of the region have ``across`` pixels."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    first = region + (line // height * (height + ROWS - 1) + line % height) * across * CHANNELS
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(ROWS):
        for i in range(COLUMNS):
            numbers = tl.load(first + (j * across + i) * CHANNELS + at, is_there, 0).to(tl.float32)
            total += tl.load(weights + j * COLUMNS + i) * numbers
    tl.store(made + line * width * CHANNELS + at, total + bias, is_there)


def sum_of_taps(region: Tensor, weights: Tensor, bias: float) -> Tensor:
    """Sums of the windows of a region ``[N, C, H + kh - 1, W + kw - 1]`` by weights ``[kh, kw]``, and bias: float32."""
    (images, channels, high, across), (rows, columns) = region.shape, weights.shape
    height, width = high - rows + 1, across - columns + 1
    made = region.new_empty((images, height, width, channels), dtype=torch.float32).permute(0, 3, 1, 2)
    taps = weights.to(torch.float32).contiguous()
    grid = images * height, cdiv(width * channels, _LONG)
    _sum_of_taps[grid](region, taps, made, float(bias), height, width, across, channels, rows, columns, _LONG)
    return made


@Launched
@triton.jit
def _along(
    x, weights, made, factor, high, wide, first, height, width, IS_DOWN: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers; the first window begins at the source's row or column ``first``."""
    line = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    image, pixel, channel = line // height, at // CHANNELS, at % CHANNELS
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TAPS):
        if IS_DOWN:
            place = line % height + first + i
            inside = tl.minimum(tl.maximum(place, 0), high - 1)
            source = x + (image * high + inside).to(tl.int64) * wide * CHANNELS + at
        else:
            place = pixel + first + i
            inside = tl.minimum(tl.maximum(place, 0), wide - 1)
            source = x + line.to(tl.int64) * wide * CHANNELS + (inside * CHANNELS + channel)
        is_read = is_there
        if not CLAMPS:
            is_read = is_read & (inside == place)
        total += weights[i] * tl.load(source, is_read, 0).to(tl.float32)
    tl.store(made + line.to(tl.int64) * width * CHANNELS + at, stored(total * factor, LARGEST), is_there)


def along(
    x: Tensor, made: Tensor, weights: tuple[float, ...], dimension: int, first: int, *, factor: float = 1.0,
    clamps: bool = True, largest: int = 0,
) -> None:  # fmt: skip
    """Sums of neighbours along an axis, the first from ``first`` on, by weights, times ``factor``, into ``made``.

    Bytes are ``largest`` for 1.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    block = _LONG if dimension == ROWS else _block(channels)
    _along[(images * height, cdiv(width * channels, block))](
        x, weights, made, factor, high, wide, first, height, width, dimension == ROWS, channels, len(weights), clamps,
        largest, block,
    )  # fmt: skip


def sum_along(region: Tensor, weights: tuple[float, ...], dimension: int, scale: float) -> Tensor:
    """Sums of neighbours along an axis by weights, times ``scale``, float32: as many as there are whole windows."""
    less, (height, width) = len(weights) - 1, region.shape[2:]
    made = _numbers(region, *((height - less, width) if dimension == ROWS else (height, width - less)))
    along(region, made, weights, dimension, 0, factor=scale)
    return made


def both_along(
    x: Tensor, made: Tensor, corner: tuple[int, int], weights: Weights, *, factor: float, clamps: bool, largest: int
) -> None:
    """As `both`, `along` each axis: down, then across."""
    sums = _numbers(x, made.shape[2], x.shape[3])
    along(x, sums, weights[0], ROWS, corner[0], clamps=clamps)
    along(sums, made, weights[1], COLUMNS, corner[1], factor=factor, clamps=clamps, largest=largest)


def _numbers(like: Tensor, height: int, width: int) -> Tensor:
    images, channels, _, _ = like.shape
    return like.new_empty((images, height, width, channels), dtype=torch.float32).permute(0, 3, 1, 2)
