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
from openmps.ops.triton.ahead import Launched, Launches
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.elements import stored
from openmps.ops.triton.geometry import is_packed

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_TYPES = torch.uint8, torch.float32


class Makes(IntEnum):
    """What becomes of a window."""

    SUM = 0
    LARGEST = 1
    SMALLEST = 2
    SOBEL = 3


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


@Launched
@triton.jit
def _windows(
    x, weights, made, factor, bias, high, wide, top, left, height, width, MAKES: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLAMPS: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers; window (0, 0) begins at the source's row ``top`` and column ``left``."""
    line = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    image, pixel, channel = line // height, at // CHANNELS + left, at % CHANNELS
    total, other = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(ROWS):
        row = line % height + top + j
        inside = tl.minimum(tl.maximum(row, 0), high - 1)
        first = x + (image * high + inside).to(tl.int64) * wide * CHANNELS
        for i in tl.static_range(COLUMNS):
            column = tl.minimum(tl.maximum(pixel + i, 0), wide - 1)
            is_read = is_there
            if not CLAMPS:
                is_read = is_read & (inside == row) & (column == pixel + i)
            number = tl.load(first + column * CHANNELS + channel, is_read, 0).to(tl.float32)
            if MAKES == 0:
                total += tl.load(weights + j * COLUMNS + i) * number
            elif MAKES == 3:
                if i != 1:
                    total += ((i - 1) * (2 - (j - 1) * (j - 1))) * number
                if j != 1:
                    other += ((1 - j) * (2 - (i - 1) * (i - 1))) * number
            elif i + j == 0:
                total = number
            elif MAKES == 1:
                total = tl.maximum(total, number, propagate_nan=tl.PropagateNan.ALL)
            else:
                total = tl.minimum(total, number, propagate_nan=tl.PropagateNan.ALL)
    if MAKES == 3:
        total = _length(total, other)
    tl.store(made + line.to(tl.int64) * width * CHANNELS + at, stored(total * factor + bias, LARGEST), is_there)


def windows(
    x: Tensor, made: Tensor, size: tuple[int, int], corner: tuple[int, int], *, makes: Makes,
    weights: Tensor | None = None, factor: float = 1.0, bias: float = 0.0, clamps: bool = True, largest: int = 0,
) -> Launches:  # fmt: skip
    """What ``makes`` says of windows of so many rows and columns, the first from ``corner`` on, into ``made``.

    The result is times ``factor``, with ``bias`` added; bytes are ``largest`` for 1, or the number as it is for 0.
    Sobel's windows are of 3 x 3.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    arguments = (
        x, x if weights is None else weights, made, factor, bias, high, wide, *corner, height, width, int(makes),
        channels, *size, clamps, largest, _BLOCK,
    )  # fmt: skip
    return Launches.of(_windows, (images * height, cdiv(width * channels, _BLOCK)), arguments)


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
    grid = images * height, cdiv(width * channels, _BLOCK)
    _sum_of_taps[grid](region, taps, made, float(bias), height, width, across, channels, rows, columns, _BLOCK)
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
) -> Launches:  # fmt: skip
    """Sums of neighbours along an axis, the first from ``first`` on, by weights, times ``factor``, into ``made``.

    Bytes are ``largest`` for 1.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    arguments = (
        x, weights, made, factor, high, wide, first, height, width, dimension == ROWS, channels, len(weights), clamps,
        largest, _BLOCK,
    )  # fmt: skip
    return Launches.of(_along, (images * height, cdiv(width * channels, _BLOCK)), arguments)


def sum_along(region: Tensor, weights: tuple[float, ...], dimension: int, scale: float) -> Tensor:
    """Sums of neighbours along an axis by weights, times ``scale``, float32: as many as there are whole windows."""
    less, (height, width) = len(weights) - 1, region.shape[2:]
    made = _numbers(region, *((height - less, width) if dimension == ROWS else (height, width - less)))
    along(region, made, weights, dimension, 0, factor=scale).now()
    return made


def both_along(
    x: Tensor, made: Tensor, weights: tuple[tuple[float, ...], tuple[float, ...]], corner: tuple[int, int], *,
    factor: float, clamps: bool, largest: int,
) -> Launches:  # fmt: skip
    """`along` down, then across, windows beginning at ``corner``; and the sums in between."""
    sums = _numbers(x, made.shape[2], x.shape[3])
    down = along(x, sums, weights[0], ROWS, corner[0], clamps=clamps)
    across = along(sums, made, weights[1], COLUMNS, corner[1], factor=factor, clamps=clamps, largest=largest)
    return Launches((*down.launches, *across.launches), (sums,))


def _numbers(like: Tensor, height: int, width: int) -> Tensor:
    images, channels, _, _ = like.shape
    return like.new_empty((images, height, width, channels), dtype=torch.float32).permute(0, 3, 1, 2)
