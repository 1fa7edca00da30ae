"""`openmps.ops.resample.resample` in Triton: each result in one pass, from the four pixels around its position."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.resample.stretch import Stretch
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
"""Numbers that a program holds."""
_MOST_CHANNELS = 64
_LARGEST = 2**24
"""Of the whole numbers that positions are made of: float32 holds them."""
_MOST_PIXELS = 2**31
"""Fewer are counted in 32 bits."""
_MOST_READERS = 34
"""Results of an axis, at most, that read one pixel: its gradient is their sum, one after the other."""
# What lies in two axes: source, result, numerator, denominator, offset of each.


@triton.jit
def _position(result, numerator, denominator, offset):
    """The pixel at or before a result's position, and what part of the way to the next one is left behind it."""
    step = result * numerator
    return step // denominator + offset, tl.div_rn((step % denominator).to(tl.float32), denominator.to(tl.float32))


@triton.jit
def _weight(pixel, result, source, numerator, denominator, offset):
    """How much of a pixel a result reads."""
    step = result * numerator
    base, part, whole = step // denominator + offset, step % denominator, denominator.to(tl.float32)
    behind = tl.where(base == source - 1, 0, part)
    near = tl.where(base == pixel, tl.div_rn((denominator - behind).to(tl.float32), whole), 0.0)
    return near + tl.where((base + 1 == pixel) & (pixel < source), tl.div_rn(part.to(tl.float32), whole), 0.0)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _interpolate(
    x, y, pixels, channels, height, rows, num_y, den_y, off_y, width, columns, num_x, den_x, off_x,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the result times some channels."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = (p // (columns * rows)).to(tl.int64) * height
    is_in = (p < pixels)[:, None] & (c < channels)[None, :]
    one = tl.zeros([PIXELS], tl.int32) + 1
    v, down = _position((p // columns) % rows, num_y, den_y * one, off_y)
    u, across = _position(p % columns, num_x, den_x * one, off_x)
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for tap_y in tl.static_range(2):
        row = image + tl.minimum(v + tap_y, height - 1)
        by_row = down if tap_y else 1.0 - down
        for tap_x in tl.static_range(2):
            at = (row * width + tl.minimum(u + tap_x, width - 1)) * channels
            weight = by_row * (across if tap_x else 1.0 - across)
            # A result on a pixel is that pixel, whatever its neighbour holds.
            is_read = is_in & (weight != 0.0)[:, None]
            total += tl.load(x + at[:, None] + c[None, :], is_read, 0.0).to(tl.float32) * weight[:, None]
    tl.store(y + p.to(tl.int64)[:, None] * channels + c[None, :], total, is_in)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _interpolate_gradient(
    g, total, pixels, channels, height, rows, num_y, den_y, off_y, width, columns, num_x, den_x, off_x, readers_y,
    readers_x, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the source times some channels: the sum over all results that read them."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image, v, u = (p // (width * height)).to(tl.int64) * rows, (p // width) % height, p % width
    in_p, in_c = p < pixels, c < channels
    one = tl.zeros([PIXELS], tl.int32) + 1
    # The first result behind the pixel before this one.
    first_y = tl.maximum(0, (v - off_y - 1) * den_y // num_y)
    first_x = tl.maximum(0, (u - off_x - 1) * den_x // num_x)
    found = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for place_y in range(readers_y):
        r = first_y + place_y
        by_row = _weight(v, r, height, num_y, den_y * one, off_y)
        for place_x in range(readers_x):
            s = first_x + place_x
            weight = by_row * _weight(u, s, width, num_x, den_x * one, off_x)
            is_read = (in_p & (r < rows) & (s < columns) & (weight != 0.0))[:, None] & in_c[None, :]
            at = ((image + r) * columns + s) * channels
            found += tl.load(g + at[:, None] + c[None, :], is_read, 0.0).to(tl.float32) * weight[:, None]
    tl.store(total + p.to(tl.int64)[:, None] * channels + c[None, :], found, in_p[:, None] & in_c[None, :])


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _sample(
    x, y, rows, columns, row_strides, column_strides, pixels, times, high, wide, channels, height, width,
    CLAMPS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the result times some channels; positions are float64, with the strides of four axes."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_p = p < pixels
    j, i, k, n = p % wide, (p // wide) % high, (p // (wide * high)) % times, p // (wide * high * times)
    v = tl.load(rows + n * row_strides[0] + k * row_strides[1] + i * row_strides[2] + j * row_strides[3], in_p, 0.0)
    u = tl.load(
        columns + n * column_strides[0] + k * column_strides[1] + i * column_strides[2] + j * column_strides[3],
        in_p, 0.0,
    )  # fmt: skip
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    # What is not a number reads the first pixel, with a weight that is none either.
    v_is, u_is = v == v, u == u
    if CLAMPS:
        v, u = tl.minimum(tl.maximum(v, 0.0), height - 1.0), tl.minimum(tl.maximum(u, 0.0), width - 1.0)
    else:
        v, u = tl.minimum(tl.maximum(v, -1.0), height * 1.0), tl.minimum(tl.maximum(u, -1.0), width * 1.0)
    base_y, base_x = tl.floor(v), tl.floor(u)
    none = float("nan")
    down, across = tl.where(v_is, v - base_y, none), tl.where(u_is, u - base_x, none)
    first_y, first_x = tl.where(v_is, base_y, 0.0).to(tl.int32), tl.where(u_is, base_x, 0.0).to(tl.int32)
    for tap_y in tl.static_range(2):
        v_ = first_y + tap_y
        by_row = down if tap_y else 1.0 - down
        row = n.to(tl.int64) * height + tl.minimum(tl.maximum(v_, 0), height - 1)
        for tap_x in tl.static_range(2):
            u_ = first_x + tap_x
            is_in = in_p
            if not CLAMPS:
                is_in = in_p & (v_ >= 0) & (v_ < height) & (u_ >= 0) & (u_ < width)
            at = (row * width + tl.minimum(tl.maximum(u_, 0), width - 1)) * channels
            weight = (by_row * (across if tap_x else 1.0 - across)).to(tl.float32)
            e = tl.load(x + at[:, None] + c[None, :], is_in[:, None] & (c < channels)[None, :], 0.0)
            total += e.to(tl.float32) * weight[:, None]
    tl.store(y + p.to(tl.int64)[:, None] * channels + c[None, :], total, in_p[:, None] & (c < channels)[None, :])


def takes(x: Tensor, *axes: Stretch) -> bool:
    """Whether the kernels take images, and stretches that do not leave them."""
    numbers = max([0, *[max(axis.result, axis.source) * max(axis.numerator, axis.denominator) for axis in axes]])
    return (
        x.dtype == torch.float32
        and x.numel() > 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and len(x) * x.shape[2] * x.shape[3] < _MOST_PIXELS
        and len(x) * math.prod(axis.result for axis in axes) < _MOST_PIXELS
        and numbers < _LARGEST
        and all(axis.numerator > 0 and axis.stays_inside for axis in axes)
    )


def samples(x: Tensor, rows: Tensor, columns: Tensor) -> bool:
    """Whether `sample` is for these images and positions."""
    shape = np.broadcast_shapes(rows.shape, columns.shape, (len(x), 1, 1, 1))
    return takes(x) and math.prod(shape) < _MOST_PIXELS


def gathers(*axes: Stretch) -> bool:
    """Whether few results read each pixel: `interpolate_gradient` is made for such axes."""
    return all(_readers(axis) <= _MOST_READERS for axis in axes)


def interpolate(x: Tensor, rows: Stretch, columns: Stretch) -> Tensor:
    """See `openmps.ops.resample.resample.interpolate`."""
    y = empty_image(x, x.shape[1], (rows.result, columns.result))
    grid, blocks = _grid(y)
    _interpolate[grid](x, y, _pixels(y), x.shape[1], *_numbers(rows), *_numbers(columns), *blocks)
    return y


def interpolate_gradient(gradient: Tensor, rows: Stretch, columns: Stretch) -> Tensor:
    """See `openmps.ops.resample.resample.interpolate_gradient`."""
    total = empty_image(gradient, gradient.shape[1], (rows.source, columns.source))
    grid, blocks = _grid(total)
    _interpolate_gradient[grid](
        gradient, total, _pixels(total), gradient.shape[1], *_numbers(rows), *_numbers(columns), _readers(rows),
        _readers(columns), *blocks,
    )  # fmt: skip
    return total


def sample(x: Tensor, rows: Tensor, columns: Tensor, *, clamps: bool) -> Tensor:
    """See `openmps.ops.resample.resample.sample`: positions are float64."""
    images, channels, height, width = x.shape
    shape = np.broadcast_shapes(rows.shape, columns.shape, (images, 1, 1, 1))
    _, times, high, wide = shape
    y = torch.empty((images * times, high, wide, channels), dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
    if y.numel():
        grid, blocks = _grid(y)
        _sample[grid](
            x, y, rows, columns, rows.expand(shape).stride(), columns.expand(shape).stride(), _pixels(y), times, high,
            wide, channels, height, width, clamps, *blocks,
        )  # fmt: skip
    return y


def _numbers(axis: Stretch) -> tuple[int, int, int, int, int]:
    return axis.source, axis.result, axis.numerator, axis.denominator, axis.offset


def _readers(axis: Stretch) -> int:
    """How many results, at most, lie less than a pixel from one, with the first that may be as far as a pixel."""
    return 2 * axis.denominator // axis.numerator + 2


def _pixels(y: Tensor) -> int:
    return y.shape[0] * y.shape[2] * y.shape[3]


def _grid(y: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Programs, and the pixels and channels of each."""
    channels = min(next_power_of_2(y.shape[1]), _MOST_CHANNELS)
    pixels = max(1, min(_BLOCK // channels, next_power_of_2(_pixels(y))))
    return (cdiv(_pixels(y), pixels), cdiv(y.shape[1], channels)), (pixels, channels)
