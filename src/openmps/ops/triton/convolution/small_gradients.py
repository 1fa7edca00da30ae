"""The gradients of a convolution of few small images in Triton: windows and weights are read where they lie.

Operands are float16, or a float32 gradient and float16 numbers that it is multiplied with: products of such, which TF32
holds, are made as two of TF32. Sums are float32. Of float32 operands alone see `split_operands`.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""


@triton.jit
def _added(total, left, right, IS_MIXED: tl.constexpr):
    """``total + left @ right``: of float16, or of float32 and float16."""
    if IS_MIXED:
        # TF32 has the first 11 digits of a number, the next 11 are the rest: half of the 13th is added to round. Sums
        # begin anew for each tile, since the units that multiply cut off what does not fit beside a long one.
        bits = (left.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        high = tl.where(left == left, bits.to(tl.float32, bitcast=True), left)
        rest = left - high
        rest, right = tl.where(rest == rest, rest, 0.0), right.to(tl.float32)
        return total + tl.dot(high, right, tl.dot(rest, right, input_precision="tf32"), input_precision="tf32")
    return tl.dot(left, right, total)


@Overlapping
@triton.jit
def _source_gradient(
    gradient, weights, source, pixels, outputs, inputs, result_rows, result_columns, rows, columns, pitch, first_y,
    first_x, dilation_y, dilation_x, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, IS_MIXED: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, TERMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the source times some channels: turned windows over the gradient, a run of channels at a time."""
    in_turn(OVERLAPS)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    q, k = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, TERMS)
    column, row, image = p % columns, (p // columns) % rows, p // (columns * rows)
    top, left, runs = row - first_y, column - first_x, tl.cdiv(outputs, TERMS)
    top = tl.where(p < pixels, top, -(1 << 24))
    start, is_in = (image * result_rows + row - first_y) * result_columns + left, (q < inputs)[None, :]
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for run in tl.range(0, TAPS_Y * TAPS_X * runs):
        tap, c = run // runs, run % runs * TERMS + k
        down, right = tap // TAPS_X * dilation_y, tap % TAPS_X * dilation_x
        y, x = top - down, left - right
        inside = (y >= 0) & (y < result_rows) & (x >= 0) & (x < result_columns)
        at = (start - down * result_columns - right) * pitch
        flow = tl.load(gradient + at[:, None] + c[None, :], inside[:, None] & (c < outputs)[None, :], 0.0)
        at = (c * (TAPS_Y * TAPS_X) + tap) * inputs
        factor = tl.load(weights + at[:, None] + q[None, :], (c < outputs)[:, None] & is_in, 0.0)
        total = _added(total, flow, factor, IS_MIXED)
    tl.store(source + p[:, None] * inputs + q[None, :], total, (p < pixels)[:, None] & is_in)


@Overlapping
@triton.jit
def _weights_gradient(
    gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, rows, columns, pitch, pitch_of_x,
    first_y, first_x, dilation_y, dilation_x, TAPS: tl.constexpr, TAPS_X: tl.constexpr, IS_MIXED: tl.constexpr,
    OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some output channels by some channels under one tap, summed over a program's pixels."""
    in_turn(OVERLAPS)
    block, part, across = tl.program_id(0), tl.program_id(1), tl.cdiv(inputs, CHANNELS)
    tap, output = block % TAPS, block // (TAPS * across) * OUTPUTS + tl.arange(0, OUTPUTS)
    channel, lane = block // TAPS % across * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, PIXELS)
    is_out, is_in = (output < outputs)[None, :], (channel < inputs)[None, :]
    down, right = tap // TAPS_X * dilation_y + first_y, tap % TAPS_X * dilation_x + first_x
    total, end = tl.zeros([OUTPUTS, CHANNELS], tl.float32), tl.minimum(pixels, (part + 1) * each)
    for first in range(part * each, end, PIXELS):
        p = first + lane
        flow = tl.load(gradient + p[:, None] * pitch + output[None, :], (p < end)[:, None] & is_out, 0.0)
        column, row, image = p % result_columns, p // result_columns % result_rows, p // (result_columns * result_rows)
        y, u = row + down, column + right
        inside = (p < end) & (y >= 0) & (y < rows) & (u >= 0) & (u < columns)
        place = ((image * rows + y) * columns + u) * pitch_of_x
        value = tl.load(x + place[:, None] + channel[None, :], inside[:, None] & is_in, 0.0)
        total = _added(total, tl.trans(flow), value, IS_MIXED)
    place = ((part * outputs + output) * TAPS + tap)[:, None] * inputs + channel[None, :]
    tl.store(parts + place, total, (output < outputs)[:, None] & is_in)


_TILE = 64, 32, 64
"""Pixels, channels and terms of a program for a source's gradient: what was fastest on an H200."""
_TILE_OF_WEIGHTS = 64, 64
"""Channels of both images and pixels of a program for weights."""
_LEAST_PARTS = 10
"""Over how many programs pixels are spread at least."""


def source_gradient(gradient: Tensor, weights: Tensor, window: Window, pitch: int) -> Tensor:
    """The gradient for the source of windows with strides of 1 and zeros outside, by weights OHWI of one group.

    It is as wide as the wider operand. Each of the gradient's pixels has its channels side by side, ``pitch`` numbers
    from one pixel to the next.
    """
    outputs, taps_y, taps_x, inputs = weights.shape
    source = empty_image(gradient, inputs, window.source)
    pixels, (at_once, channels, terms) = len(gradient) * window.y.source * window.x.source, _TILE
    _source_gradient[(cdiv(pixels, at_once), cdiv(inputs, channels))](
        gradient, weights, source, pixels, outputs, inputs, *window.result, *window.source, pitch, window.y.first,
        window.x.first, *window.dilation, taps_y, taps_x, gradient.dtype != weights.dtype, at_once, channels, terms,
        num_warps=4, num_stages=5 if gradient.dtype == torch.float16 else 3,
    )  # fmt: skip
    return source


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, pitch_of_x: int) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32, of windows with strides of 1 and zeros outside.

    Pixels have their channels side by side, ``pitch`` numbers from one to the next.
    """
    (images, outputs, result_rows, result_columns), inputs = gradient.shape, x.shape[1]
    taps, pixels = window.y.size * window.x.size, images * result_rows * result_columns
    channels, at_once = _TILE_OF_WEIGHTS
    of, over = (min(channels, max(16, next_power_of_2(count))) for count in (outputs, inputs))
    blocks = taps * cdiv(outputs, of) * cdiv(inputs, over)
    split = max(1, min(max(_LEAST_PARTS, _PROGRAMS // blocks), pixels // at_once))
    each = cdiv(cdiv(pixels, split), at_once) * at_once
    split = cdiv(pixels, each)
    parts = torch.empty((split, outputs, *window.size, inputs), dtype=torch.float32, device=x.device)
    _weights_gradient[(blocks, split)](
        gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, *window.source, pitch,
        pitch_of_x, window.y.first, window.x.first, *window.dilation, taps, window.x.size, gradient.dtype != x.dtype,
        of, over, at_once, num_warps=4, num_stages=3,
    )  # fmt: skip
    return sum_of_parts(parts)
