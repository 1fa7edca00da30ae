"""The gradient of max pooling in Triton: each source pixel gathers from the windows that hold it, in float32."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_TAPS = 16
"""Taps of a window that are gathered; of larger ones most are looked at in vain."""
_NUMBERS, _CHANNELS = 2048, 64
"""Numbers of a tile, and channels of it at most."""


@Launched
@triton.jit
def _max_pooling_gradient(
    gradient, choice, dx, pixels, channels, rows, columns, result_rows, result_columns, pitch, pitch_of_choice,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr,
    FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of some source pixels and channels."""
    across = tl.cdiv(channels, COLUMNS)
    at = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    pixel = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    there = (pixel < pixels)[:, None] & (at < channels)[None, :]
    x, y, image = pixel % columns, pixel // columns % rows, pixel // (columns * rows)
    mine = (y * columns + x)[:, None]
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for tap in tl.static_range(TAPS_Y * TAPS_X):
        begin_y, begin_x = y - FIRST_Y - tap // TAPS_X * DILATION_Y, x - FIRST_X - tap % TAPS_X * DILATION_X
        row, column = begin_y // STRIDE_Y, begin_x // STRIDE_X
        holds = (begin_y >= 0) & (row < result_rows) & (row * STRIDE_Y == begin_y)
        holds &= (begin_x >= 0) & (column < result_columns) & (column * STRIDE_X == begin_x)
        place = ((image.to(tl.int64) * result_rows + row) * result_columns + column)[:, None]
        read = there & holds[:, None]
        chosen = tl.load(choice + place * pitch_of_choice + at[None, :], read, -1)
        flow = tl.load(gradient + place * pitch + at[None, :], read, 0.0).to(tl.float32)
        total += tl.where(chosen == mine, flow, 0.0)
    tl.store(dx + pixel.to(tl.int64)[:, None] * channels + at[None, :], total.to(dx.dtype.element_ty), there)


def max_pooling_gradient(gradient: Tensor, choice: Tensor, window: Window, pitch: int, pitch_of_choice: int) -> Tensor:
    """The gradient of the source, of the gradient's type; ``choice`` counts the source's pixels, -1 is none of them.

    Both operands have their channels side by side, so many numbers from one pixel to the next.
    """
    images, channels, result_rows, result_columns = gradient.shape
    rows, columns = window.source
    made = empty_image(gradient, channels, window.source)
    at_once = min(_CHANNELS, next_power_of_2(channels))
    held, pixels = _NUMBERS // at_once, images * rows * columns
    grid = (cdiv(pixels, held) * cdiv(channels, at_once),)
    _max_pooling_gradient[grid](
        gradient, choice, made, pixels, channels, rows, columns, result_rows, result_columns, pitch, pitch_of_choice,
        *window.size, *window.stride, window.y.first, window.x.first, *window.dilation, held, at_once,
    )  # fmt: skip
    return made
