"""The weights' gradient of a convolution of few channels over float16 images in Triton, a row of taps at a time.

Where pixels lie side by side without gaps, what a row of taps reads is so many numbers side by side: a run of them, of
which no product is lost to channels that are not there, and all rows share the gradient that they read. Products are
summed in float32, by many programs over pixels of their own each; their sums are added in a fixed order.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_FEW_CHANNELS, _MOST_ROWS, _MOST_TAPS = 32, 3, 4
"""Channels at most, and rows and columns of windows."""
_OCTET = 8
"""Numbers of float16 that are read at once: channels are a multiple of it."""
_LEAST_NUMBERS = 16
"""Of a run that is multiplied."""
_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""


@triton.jit
def _run(
    x, image, y, first, there, rows, columns, NUMBERS: tl.constexpr, INPUTS: tl.constexpr, BEGIN: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Numbers from ``BEGIN`` on of what a row of taps reads, for some pixels; zeros outside the source."""
    number = BEGIN + tl.arange(0, COUNT)
    column = first[:, None] + (number // INPUTS)[None, :]
    inside = (there & (y >= 0) & (y < rows))[:, None] & (column >= 0) & (column < columns) & (number < NUMBERS)[None, :]
    place = ((image.to(tl.int64) * rows + y) * columns + first) * INPUTS
    return tl.load(x + place[:, None] + number[None, :], inside, 0.0)


@Launched
@triton.jit
def _rows_gradient(
    gradient, x, parts, pixels, outputs, each, result_rows, result_columns, rows, columns, pitch, INPUTS: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr,
    FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, OUTPUTS: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    PIXELS: tl.constexpr,
):  # fmt: skip
    """Some output channels by all numbers of a window, summed over a program's pixels."""
    NUMBERS: tl.constexpr = TAPS_X * INPUTS
    down = tl.cdiv(outputs, OUTPUTS)
    part, output = tl.program_id(0) // down, tl.program_id(0) % down * OUTPUTS + tl.arange(0, OUTPUTS)
    begin, end, lane = part * each, tl.minimum(pixels, (part + 1) * each), tl.arange(0, PIXELS)
    wide0 = tl.zeros([OUTPUTS, WIDE], tl.float32)
    rest0 = tl.zeros([OUTPUTS, REST], tl.float32)
    wide1, rest1, wide2, rest2 = wide0, rest0, wide0, rest0
    for first in range(begin, end, PIXELS):
        pixel, there = first + lane, first + lane < end
        place = gradient + pixel.to(tl.int64)[:, None] * pitch + output[None, :]
        flow = tl.trans(tl.load(place, there[:, None] & (output < outputs)[None, :], 0.0))
        u, image = pixel % result_columns * STRIDE_X + FIRST_X, pixel // (result_columns * result_rows)
        y = pixel // result_columns % result_rows * STRIDE_Y + FIRST_Y
        wide0 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide0)
        rest0 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest0)
        if TAPS_Y > 1:
            y += DILATION_Y
            wide1 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide1)
            rest1 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest1)
        if TAPS_Y > 2:
            y += DILATION_Y
            wide2 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide2)
            rest2 = tl.dot(flow, _run(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest2)
    place = parts + (part * outputs + output).to(tl.int64)[:, None] * (TAPS_Y * NUMBERS)
    is_out, number, behind = (output < outputs)[:, None], tl.arange(0, WIDE), WIDE + tl.arange(0, REST)
    tl.store(place + number[None, :], wide0, is_out)
    tl.store(place + behind[None, :], rest0, is_out & (behind < NUMBERS)[None, :])
    if TAPS_Y > 1:
        tl.store(place + (NUMBERS + number)[None, :], wide1, is_out)
        tl.store(place + (NUMBERS + behind)[None, :], rest1, is_out & (behind < NUMBERS)[None, :])
    if TAPS_Y > 2:
        tl.store(place + (2 * NUMBERS + number)[None, :], wide2, is_out)
        tl.store(place + (2 * NUMBERS + behind)[None, :], rest2, is_out & (behind < NUMBERS)[None, :])


class Tile(NamedTuple):
    """Pixels that a program reads at a time, its warps and the stages of its loop."""

    pixels: int = 64
    warps: int = 4
    stages: int = 3


def takes(gradient: Tensor, x: Tensor, window: Window, pitch_of_x: int) -> bool:
    """Whether `weights_gradient` is for these images and windows."""
    channels = x.shape[1]
    is_dense = pitch_of_x == channels and window.x.dilation == 1
    is_few = channels % _OCTET == 0 and channels <= _FEW_CHANNELS and gradient.dtype == x.dtype == torch.float16
    fits = window.y.size <= _MOST_ROWS and _LEAST_NUMBERS < window.x.size * channels <= _MOST_TAPS * _FEW_CHANNELS
    return is_dense and is_few and fits


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, tile: Tile | None = None) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32; the edges are zeros.

    Both operands are float16 with their channels side by side, ``pitch`` numbers from one pixel of the gradient to the
    next, and the pixels of the images without gaps.
    """
    images, outputs, result_rows, result_columns = gradient.shape
    _, inputs, rows, columns = x.shape
    by, numbers, pixels = tile or Tile(), window.x.size * inputs, images * result_rows * result_columns
    at_once = min(64, max(_LEAST_NUMBERS, triton.next_power_of_2(outputs)))
    wide = triton.next_power_of_2(numbers) // 2
    rest = max(_LEAST_NUMBERS, triton.next_power_of_2(numbers - wide))
    down = triton.cdiv(outputs, at_once)
    each = triton.cdiv(triton.cdiv(pixels, max(1, _PROGRAMS // down)), by.pixels) * by.pixels
    count = triton.cdiv(pixels, each)
    parts = torch.empty((count, outputs, *window.size, inputs), dtype=torch.float32, device=x.device)
    _rows_gradient[(count * down,)](
        gradient, x, parts, pixels, outputs, each, result_rows, result_columns, rows, columns, pitch, inputs,
        *window.size, *window.stride, window.y.first, window.x.first, window.y.dilation, at_once, wide, rest,
        by.pixels, num_warps=by.warps, num_stages=by.stages,
    )  # fmt: skip
    return sum_of_parts(parts)
