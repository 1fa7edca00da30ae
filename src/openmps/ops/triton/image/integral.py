"""Sums over rectangles that begin at a picture's corner, in Triton (`openmps.ops.image.integral`).

Bands of rows are summed each by itself; then the sums of the bands above are added, column by column.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launch, Launched, Launches
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.geometry import is_packed

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 256
_MOST_BANDS, _LEAST_ROWS = 128, 8
"""Bands, each of which adds up the last rows of those above; and rows of one."""
_AT_ONCE = 16
"""Bands that are added up together."""


@Launched
@triton.jit
def _bands(
    x, sums, ends, height, width, bands, rows, CHANNELS: tl.constexpr, IS_SQUARED: tl.constexpr, BLOCK: tl.constexpr
):
    """The sums of a band of rows of a channel, by itself; its last row stands among the ends, too."""
    image, band, channel = tl.program_id(0) // bands, tl.program_id(0) % bands, tl.program_id(1)
    column = tl.arange(0, BLOCK)
    is_there = column < width
    total = tl.zeros([BLOCK], tl.float64)
    for row in range(band * rows, tl.minimum((band + 1) * rows, height)):
        place = (image * height + row).to(tl.int64) * width * CHANNELS + column * CHANNELS + channel
        number = tl.load(x + place, is_there, 0).to(tl.float64)
        if IS_SQUARED:
            number = number * number
        total += tl.cumsum(number, 0)
        tl.store(sums + place, total, is_there)
    place = (image * bands + band).to(tl.int64) * width * CHANNELS + column * CHANNELS + channel
    tl.store(ends + place, total, is_there)


@Launched
@triton.jit
def _joined(sums, ends, made, height, bands, rows, row, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Some of the ``row`` numbers of the rows of a band."""
    image, band = tl.program_id(0) // bands, tl.program_id(0) % bands
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < row
    above = tl.zeros([BLOCK], tl.float64)
    for first in range(0, band, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        place = (image * bands + other).to(tl.int64)[:, None] * row + at[None, :]
        above += tl.sum(tl.load(ends + place, (other < band)[:, None] & is_there[None, :], 0.0), 0)
    for line in range(band * rows, tl.minimum((band + 1) * rows, height)):
        place = (image * height + line).to(tl.int64) * row + at
        tl.store(made + place, (tl.load(sums + place, is_there, 0.0) + above).to(tl.float32), is_there)


def takes(region: Tensor) -> bool:
    """Whether images are of float32, in pixels without gaps."""
    return region.dtype == torch.float32 and is_packed(region)


def integral(x: Tensor, made: Tensor, *, is_squared: bool) -> Launches:
    """Sums of numbers, or of their squares, up to each pixel, float64, rounded once, into ``made``."""
    images, channels, height, width = x.shape
    rows = max(_LEAST_ROWS, cdiv(height, _MOST_BANDS))
    bands, row = cdiv(height, rows), width * channels
    sums = x.new_empty((images, height, row), dtype=torch.float64)
    ends = x.new_empty((images, bands, row), dtype=torch.float64)
    arguments = x, sums, ends, height, width, bands, rows, channels, is_squared, next_power_of_2(width)
    launch = Launch(_bands, (images * bands, channels), arguments, {"num_warps": 8})
    arguments = sums, ends, made, height, bands, rows, row, _AT_ONCE, _BLOCK
    return Launches((launch, Launch(_joined, (images * bands, cdiv(row, _BLOCK)), arguments)), (sums, ends))
