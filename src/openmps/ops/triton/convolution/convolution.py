"""The weights' gradient of a convolution in Triton: windows are read where they lie.

Products of float32 are made as three of TF32. They are summed in float32, by many programs over pixels of their own
each; their sums are added in a fixed order.
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
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.convolution import convolution_few_channels as few_channels
from openmps.ops.triton.convolution import convolution_tap_rows as tap_rows
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""
_LEAST_PIXELS = 128
"""Pixels that a program sums at least."""
_MANY_CHANNELS = 24
"""Channels of the source from which on tiles of one tap are faster, though channels do not fill them."""


@Launched
@triton.jit
def _weights_gradient(
    gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, rows, columns, pitch, pitch_of_x,
    TAPS: tl.constexpr, TAPS_ACROSS: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
    OUTPUTS: tl.constexpr, FACTORS: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some output channels by some of the factors of a window, summed over a program's pixels."""
    across, down = tl.cdiv(TAPS * inputs, FACTORS), tl.cdiv(outputs, OUTPUTS)
    block = tl.program_id(0)
    part = block // (across * down)
    output = block // across % down * OUTPUTS + tl.arange(0, OUTPUTS)
    factor = block % across * FACTORS + tl.arange(0, FACTORS)
    tap, channel = factor // inputs, factor % inputs
    tap_y, tap_x = tap // TAPS_ACROSS * DILATION_Y + FIRST_Y, tap % TAPS_ACROSS * DILATION_X + FIRST_X
    away = (tap_y * columns + tap_x) * pitch_of_x + channel
    total = tl.zeros([OUTPUTS, FACTORS], tl.float32)
    for first in range(part * each, tl.minimum(pixels, (part + 1) * each), PIXELS):
        pixel = first + tl.arange(0, PIXELS)
        there = pixel < tl.minimum(pixels, (part + 1) * each)
        places = gradient + pixel.to(tl.int64)[:, None] * pitch + output[None, :]
        flow = tl.load(places, there[:, None] & (output < outputs)[None, :], 0.0)
        column, row = pixel % result_columns * STRIDE_X, pixel // result_columns % result_rows * STRIDE_Y
        image = pixel // (result_columns * result_rows)
        start = ((image.to(tl.int64) * rows + row) * columns + column) * pitch_of_x
        y, x_ = row[:, None] + tap_y[None, :], column[:, None] + tap_x[None, :]
        inside = (y >= 0) & (y < rows) & (x_ >= 0) & (x_ < columns)
        inside = inside & there[:, None] & (factor < TAPS * inputs)[None, :]
        value = tl.load(x + start[:, None] + away[None, :], inside, 0.0)
        total = tl.dot(tl.trans(flow), value, total, input_precision=PRECISION)
    place = parts + (part * outputs + output).to(tl.int64)[:, None] * (TAPS * inputs) + factor[None, :]
    tl.store(place, total, (output < outputs)[:, None] & (factor < TAPS * inputs)[None, :])


@Launched
@triton.jit
def _depthwise_gradient(
    gradient, x, parts, pixels, outputs, multiplier, result_rows, result_columns, rows, columns, pitch, pitch_of_x,
    TAPS: tl.constexpr, TAPS_ACROSS: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
    ALL_TAPS: tl.constexpr, PIXELS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """The factors of some output channels, summed over a program's pixels.

    By one warp: sums over the pixels of a tile, one a tap, need no barrier then.
    """
    across = tl.cdiv(outputs, OUTPUTS)
    part, programs = tl.program_id(0) // across, tl.num_programs(0) // across
    at = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    channel, taps = at // multiplier, tl.arange(0, ALL_TAPS)
    total = tl.zeros([ALL_TAPS, OUTPUTS], tl.float32)
    for tile in range(part, tl.cdiv(pixels, PIXELS), programs):
        pixel = tile * PIXELS + tl.arange(0, PIXELS)
        there = (pixel < pixels)[:, None] & (at < outputs)[None, :]
        flow = tl.load(gradient + pixel.to(tl.int64)[:, None] * pitch + at[None, :], there, 0.0).to(tl.float32)
        column, row = pixel % result_columns * STRIDE_X, pixel // result_columns % result_rows * STRIDE_Y
        image = pixel // (result_columns * result_rows)
        for tap in tl.static_range(TAPS):
            y, x_ = row + tap // TAPS_ACROSS * DILATION_Y + FIRST_Y, column + tap % TAPS_ACROSS * DILATION_X + FIRST_X
            inside = ((y >= 0) & (y < rows) & (x_ >= 0) & (x_ < columns))[:, None] & there
            place = ((image.to(tl.int64) * rows + y) * columns + x_)[:, None] * pitch_of_x + channel[None, :]
            found = tl.sum(flow * tl.load(x + place, inside, 0.0).to(tl.float32), 0)
            total += tl.where((taps == tap)[:, None], found[None, :], 0.0)
    place = parts + (part * outputs + at)[None, :] * TAPS + taps[:, None]
    tl.store(place, total, (taps < TAPS)[:, None] & (at < outputs)[None, :])


class _Tile(NamedTuple):
    """Output channels and factors of a program, pixels that it reads at a time; warps and stages of its loop.

    What was fastest on an H200.
    """

    outputs: int
    factors: int
    pixels: int
    warps: int
    stages: int

    @classmethod
    def of(cls, outputs: int, factors: int, *, is_half: bool) -> _Tile:
        """That for a gradient of this size."""
        if not is_half:
            rows, columns = (max(16, next_power_of_2(count)) for count in (outputs, factors))
            return cls(min(64, rows), min(64, columns), 32, 4, 3)
        if outputs > 64 and factors > 128:
            return cls(128, 256, 64, 8, 3)
        rows, columns = (max(16, next_power_of_2(count)) for count in (outputs, factors))
        return cls(min(64, rows), min(64 if factors % 8 else 128, columns), 64, 4, 4)


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, pitch_of_x: int) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32; the edges are zeros.

    Both operands are float16, or float32, their channels side by side, ``pitch`` numbers from one pixel to the next.
    """
    if tap_rows.takes(gradient, x, window, pitch_of_x):
        return tap_rows.weights_gradient(gradient, x, window)
    if x.dtype == torch.float16 and x.shape[1] >= _MANY_CHANNELS:
        from openmps.ops.triton.convolution import convolution_taps as by_taps

        return by_taps.weights_gradient(gradient, x, window, pitch, pitch_of_x)
    if few_channels.takes(gradient, x, window):
        return few_channels.weights_gradient(gradient, x, window, pitch, pitch_of_x)
    images, outputs, result_rows, result_columns = gradient.shape
    _, inputs, rows, columns = x.shape
    taps, across = window.y.size * window.x.size, window.x.size
    tile, pixels = (
        _Tile.of(outputs, taps * inputs, is_half=x.dtype == torch.float16),
        images * result_rows * result_columns,
    )
    blocks = cdiv(outputs, tile.outputs) * cdiv(taps * inputs, tile.factors)
    each = cdiv(pixels, max(1, min(_PROGRAMS // blocks, pixels // _LEAST_PIXELS)))
    each = cdiv(each, tile.pixels) * tile.pixels
    count = cdiv(pixels, each)
    parts = torch.empty((count, outputs, *window.size, inputs), dtype=torch.float32, device=x.device)
    _weights_gradient[(blocks * count,)](
        gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, rows, columns, pitch,
        pitch_of_x, taps, across, *window.stride, window.y.first, window.x.first, *window.dilation, tile.outputs,
        tile.factors, tile.pixels, "tf32x3", num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return sum_of_parts(parts)


MOST_TAPS = 32
"""Taps of a window of one factor a channel that are summed side by side."""


def depthwise_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, pitch_of_x: int) -> Tensor:
    """As `weights_gradient`, of a group for each channel of the source: ``[O, rows, columns, 1]``."""
    images, outputs, result_rows, result_columns = gradient.shape
    _, inputs, rows, columns = x.shape
    taps, at_once = window.y.size * window.x.size, min(256, next_power_of_2(outputs))
    pixels, held = images * result_rows * result_columns, 1024 // at_once
    across = cdiv(outputs, at_once)
    count = min(cdiv(pixels, held), max(1, 8 * _PROGRAMS // across))
    parts = torch.empty((count, outputs, *window.size, 1), dtype=torch.float32, device=x.device)
    _depthwise_gradient[(across * count,)](
        gradient, x, parts, pixels, outputs, outputs // inputs, result_rows, result_columns, rows, columns, pitch,
        pitch_of_x, taps, window.x.size, *window.stride, window.y.first, window.x.first, *window.dilation,
        next_power_of_2(taps), held, at_once, num_warps=1,
    )  # fmt: skip
    return sum_of_parts(parts)
