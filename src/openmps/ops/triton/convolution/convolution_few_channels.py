"""The weights' gradient of a convolution over float16 images of at most four channels in Triton: a network's first.

Pixels are stored with four channels first, so that a row of taps is so many numbers side by side, read four at a time.
Products are summed in float32, by many programs over pixels of their own each; their sums are added in a fixed order.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_CHANNELS = 4
_MOST_FACTORS = 256
"""Numbers of a window, rows of taps filled up to a power of two, that a program has a place for."""
_MOST_OUTPUTS = 64
"""Output channels of a program."""
_LEAST_PIXELS = 1 << 16
"""Of fewer pixels it is not worth while to store them again."""
_PROGRAMS, _BLOCK = 132, 1024
"""Programs that fill an H200, one a multiprocessor; pixels that are stored at a time."""


@Launched
@triton.jit
def _with_four_channels(x, wide, pixels, pitch, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Some pixels, zeros in the channels that there are not."""
    pixel, channel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, 4)
    there = (pixel < pixels)[:, None]
    value = tl.load(x + pixel[:, None] * pitch + channel[None, :], there & (channel < CHANNELS)[None, :], 0.0)
    tl.store(wide + pixel[:, None] * 4 + channel[None, :], value, there)


@Launched
@triton.jit
def _few_channels_gradient(
    gradient, x, parts, pixels, outputs, each, result_rows, result_columns, rows, columns, pitch,
    INPUTS: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr, FACTORS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Some output channels by all numbers of a window, summed over a program's pixels."""
    down = tl.cdiv(outputs, OUTPUTS)
    part, output = tl.program_id(0) // down, tl.program_id(0) % down * OUTPUTS + tl.arange(0, OUTPUTS)
    factor, is_out = tl.arange(0, FACTORS), output < outputs
    # Of the whole range, so that the compiler sees that four numbers are read together.
    tap_y, tap_x, number, channel = factor // WIDTH, factor // 4 % (WIDTH // 4), factor % WIDTH, factor % 4
    is_tap, down_by, right_by = (tap_y < TAPS_Y) & (tap_x < TAPS_X), tap_y * DILATION_Y + FIRST_Y, tap_x + FIRST_X
    away = (down_by * columns + FIRST_X) * 4 + number
    total = tl.zeros([OUTPUTS, FACTORS], tl.float32)
    end = tl.minimum(pixels, (part + 1) * each)
    for first in range(part * each, end, PIXELS):
        pixel = first + tl.arange(0, PIXELS)
        there = pixel < end
        place = gradient + pixel.to(tl.int64)[:, None] * pitch + output[None, :]
        flow = tl.load(place, there[:, None] & is_out[None, :], 0.0)
        column, row = pixel % result_columns * STRIDE_X, pixel // result_columns % result_rows * STRIDE_Y
        start = ((pixel // (result_columns * result_rows)).to(tl.int64) * rows + row) * columns + column
        y, u = row[:, None] + down_by[None, :], column[:, None] + right_by[None, :]
        inside = (y >= 0) & (y < rows) & (u >= 0) & (u < columns) & there[:, None] & is_tap[None, :]
        value = tl.load(x + (start * 4)[:, None] + away[None, :], inside, 0.0)
        total = tl.dot(tl.trans(flow), value, total)
    place = parts + (part * outputs + output).to(tl.int64)[:, None] * (TAPS_Y * TAPS_X * INPUTS)
    place += ((tap_y * TAPS_X + tap_x) * INPUTS + channel)[None, :]
    tl.store(place, total, is_out[:, None] & (is_tap & (channel < INPUTS))[None, :])


def takes(gradient: Tensor, x: Tensor, window: Window) -> bool:
    """Whether the form is for such a gradient."""
    pixels = gradient.shape[0] * gradient.shape[2] * gradient.shape[3]
    is_large = pixels >= _LEAST_PIXELS and window.x.dilation == 1
    return is_large and x.dtype == torch.float16 and x.shape[1] in (3, 4) and _factors(window)[1] <= _MOST_FACTORS


def _factors(window: Window) -> tuple[int, int]:
    """Numbers that a row of taps has a place for, and all rows."""
    width = next_power_of_2(window.x.size * _CHANNELS)
    return width, max(16, width * next_power_of_2(window.y.size))


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, pitch_of_x: int) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32; the edges are zeros.

    Both operands are float16 with their channels side by side, ``pitch`` numbers from one pixel to the next.
    """
    images, outputs, result_rows, result_columns = gradient.shape
    _, inputs, rows, columns = x.shape
    wide, stored = x, images * rows * columns
    if inputs < _CHANNELS or pitch_of_x != _CHANNELS:
        wide = torch.empty((stored, _CHANNELS), dtype=x.dtype, device=x.device)
        _with_four_channels[(cdiv(stored, _BLOCK),)](x, wide, stored, pitch_of_x, inputs, _BLOCK)
    width, factors = _factors(window)
    at_once, pixels = (
        min(_MOST_OUTPUTS, max(16, next_power_of_2(outputs))),
        images * result_rows * result_columns,
    )
    is_large, down = at_once * factors > 4096, cdiv(outputs, at_once)
    programs, held = max(1, _PROGRAMS * (1 if is_large else 4) // down), 64 if is_large else 128
    each = cdiv(cdiv(pixels, programs), held) * held
    count = cdiv(pixels, each)
    parts = torch.empty((count, outputs, *window.size, inputs), dtype=torch.float32, device=x.device)
    _few_channels_gradient[(count * down,)](
        gradient, wide, parts, pixels, outputs, each, result_rows, result_columns, rows, columns, pitch, inputs,
        *window.size, *window.stride, window.y.first, window.x.first, window.y.dilation, at_once, width, factors,
        held, num_warps=8 if is_large else 4, num_stages=3,
    )  # fmt: skip
    return sum_of_parts(parts)
