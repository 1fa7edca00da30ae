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

from openmps.ops.geometry import Window, pitch_of
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_FEW_CHANNELS, _MOST_ROWS, _MOST_TAPS = 32, 3, 4
"""Channels at most, and rows and columns of windows."""
_OCTET = 8
"""Numbers of float16 that are read at once: channels are a multiple of it."""
LEAST_NUMBERS = 16
"""Of a run that is multiplied."""
_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""


@triton.jit
def run_of(
    x, image, y, first, there, rows, columns, NUMBERS: tl.constexpr, INPUTS: tl.constexpr, BEGIN: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Numbers from ``BEGIN`` on of what a row of taps reads, for some pixels; zeros outside the source."""
    number = BEGIN + tl.arange(0, COUNT)
    column = first[:, None] + (number // INPUTS)[None, :]
    inside = (there & (y >= 0) & (y < rows))[:, None] & (column >= 0) & (column < columns) & (number < NUMBERS)[None, :]
    place = ((image.to(tl.int64) * rows + y) * columns + first) * INPUTS
    return tl.load(x + place[:, None] + number[None, :], inside, 0.0)


@triton.jit
def _flow(
    gradient, taps, image, row, column, pixel, output, is_in, pooled_rows, pooled_columns, pitch, pitch_of_taps,
    POOL_Y: tl.constexpr, POOL_X: tl.constexpr,
):  # fmt: skip
    """The gradient of some pixels and outputs: that of the pooled pixel, where the tap says this one."""
    if POOL_Y * POOL_X == 1:
        return tl.load(gradient + pixel.to(tl.int64)[:, None] * pitch + output[None, :], is_in, 0.0)
    y, u = row // POOL_Y, column // POOL_X
    is_in &= ((y < pooled_rows) & (u < pooled_columns))[:, None]
    place = ((image.to(tl.int64) * pooled_rows + y) * pooled_columns + u)[:, None]
    tap = tl.load(taps + place * pitch_of_taps + output[None, :], is_in, -1)
    flow = tl.load(gradient + place * pitch + output[None, :], is_in, 0.0)
    own = (row % POOL_Y * POOL_X + column % POOL_X).to(tl.int8)
    return tl.where(tap == own[:, None], flow, 0.0)


@Launched
@triton.jit
def _rows_gradient(
    gradient, taps, x, parts, pixels, outputs, each, result_rows, result_columns, rows, columns, pooled_rows,
    pooled_columns, pitch, pitch_of_taps, POOL_Y: tl.constexpr, POOL_X: tl.constexpr, INPUTS: tl.constexpr,
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
        column, row = pixel % result_columns, pixel // result_columns % result_rows
        image, is_in = pixel // (result_columns * result_rows), there[:, None] & (output < outputs)[None, :]
        flow = tl.trans(
            _flow(
                gradient, taps, image, row, column, pixel, output, is_in, pooled_rows, pooled_columns, pitch,
                pitch_of_taps, POOL_Y, POOL_X,
            )
        )  # fmt: skip
        y, u = row * STRIDE_Y + FIRST_Y, column * STRIDE_X + FIRST_X
        wide0 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide0)
        rest0 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest0)
        if TAPS_Y > 1:
            y += DILATION_Y
            wide1 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide1)
            rest1 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest1)
        if TAPS_Y > 2:
            y += DILATION_Y
            wide2 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide2)
            rest2 = tl.dot(flow, run_of(x, image, y, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest2)
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

    pixels: int = 32
    warps: int = 4
    stages: int = 3


def is_run(x: Tensor, window: Window, pitch: int) -> bool:
    """Whether a row of taps reads a run of numbers of float16 images whose few channels are ``pitch`` from the next."""
    channels = x.shape[1]
    is_dense = x.dtype == torch.float16 and pitch == channels and window.x.dilation == 1
    is_few = channels % _OCTET == 0 and channels <= _FEW_CHANNELS
    return is_dense and is_few and LEAST_NUMBERS < window.x.size * channels <= _MOST_TAPS * _FEW_CHANNELS


def parts_of(numbers: int) -> tuple[int, int]:
    """Two powers of two that a run is read as: most of it, and what is left."""
    wide = next_power_of_2(numbers) // 2
    return wide, max(LEAST_NUMBERS, next_power_of_2(numbers - wide))


def takes(gradient: Tensor, x: Tensor, window: Window, pitch_of_x: int) -> bool:
    """Whether `weights_gradient` is for these images and windows."""
    return gradient.dtype == torch.float16 and window.y.size <= _MOST_ROWS and is_run(x, window, pitch_of_x)


def takes_spread(spread: Spread, x: Tensor, window: Window) -> bool:
    """The same of a gradient that is not spread yet."""
    axes = spread.pooling.y, spread.pooling.x
    is_dense = all(axis.first == 0 and axis.stride == axis.size and axis.dilation == 1 for axis in axes)
    pixels = len(x) * max(window.y.result * window.x.result, window.y.source * window.x.source)
    return is_dense and pixels < 2**30 and takes(spread.gradient, x, window, pitch_of(x) or 0)


class Spread(NamedTuple):
    """A gradient of pooled pixels, which of a window's pixels each belongs to, int8, and the windows.

    The windows lie side by side from the first pixel on; pixels behind the last ones have no gradient.
    """

    gradient: Tensor
    taps: Tensor
    pooling: Window


def weights_gradient(gradient: Tensor | Spread, x: Tensor, window: Window, tile: Tile | None = None) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32; the edges are zeros.

    Both operands are float16 with their channels side by side, the pixels of the images without gaps.
    """
    if isinstance(gradient, Tensor):
        flow, taps, pools, pooled = gradient, gradient, (1, 1), window.result
    else:
        flow, taps, pools, pooled = gradient.gradient, gradient.taps, gradient.pooling.size, gradient.pooling.result
    images, outputs, rows, columns = len(x), flow.shape[1], *window.source
    by, numbers, pixels = tile or Tile(), window.x.size * x.shape[1], images * window.y.result * window.x.result
    at_once = min(64, max(LEAST_NUMBERS, next_power_of_2(outputs)))
    wide, rest = parts_of(numbers)
    down = cdiv(outputs, at_once)
    each = cdiv(cdiv(pixels, max(1, _PROGRAMS // down)), by.pixels) * by.pixels
    count = cdiv(pixels, each)
    parts = torch.empty((count, outputs, *window.size, x.shape[1]), dtype=torch.float32, device=x.device)
    _rows_gradient[(count * down,)](
        flow, taps, x, parts, pixels, outputs, each, *window.result, rows, columns, *pooled, pitch_of(flow),
        pitch_of(taps), *pools, x.shape[1], *window.size, *window.stride, window.y.first, window.x.first,
        window.y.dilation, at_once, wide, rest, by.pixels, num_warps=by.warps, num_stages=by.stages,
    )  # fmt: skip
    return sum_of_parts(parts)
