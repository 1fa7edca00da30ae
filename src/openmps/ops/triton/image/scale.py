"""Scaling of pictures in Triton, in one pass (`openmps.ops.resample.image_scale`)."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from openmps.ops.triton.ahead import Launched, Launches
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.elements import stored

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024


@Launched
@triton.jit
def _scaled(
    x, made, rows, down, columns, across, factor, high, wide, height, width, CHANNELS: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers."""
    line = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    pixel, channel = at // CHANNELS, at % CHANNELS
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(DOWN):
        row = tl.load(rows + j * height + line % height)
        first = x + (line // height * high + row).to(tl.int64) * wide * CHANNELS
        part = tl.zeros([BLOCK], tl.float32)
        for i in tl.static_range(ACROSS):
            column = tl.load(columns + i * width + pixel, is_there, 0)
            # Behind the last row and column there are zeros.
            is_read = is_there & (row < high) & (column < wide)
            number = tl.load(first + column * CHANNELS + channel, is_read, 0).to(tl.float32)
            part += tl.load(across + i * width + pixel, is_there, 0.0) * number
        total += tl.load(down + j * height + line % height) * part
    tl.store(made + line.to(tl.int64) * width * CHANNELS + at, stored(total * factor, LARGEST), is_there)


def scaled(
    x: Tensor, made: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], factor: float, largest: int
) -> Launches:
    """Sums of pixels by the int32 places and float32 weights ``[taps, result]`` of each axis, times ``factor``.

    The place behind the last pixel is a zero. Into ``made``; bytes are ``largest`` for 1.
    """
    (_, channels, high, wide), (images, _, height, width) = x.shape, made.shape
    arguments = (
        x, made, *rows, *columns, factor, high, wide, height, width, channels, len(rows[0]), len(columns[0]), largest,
        _BLOCK,
    )  # fmt: skip
    return Launches.of(_scaled, (images * height, cdiv(width * channels, _BLOCK)), arguments)
