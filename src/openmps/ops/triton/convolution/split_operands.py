"""Convolutions of few small float32 images, and their gradients, in Triton: each factor as three bfloat16 numbers.

A float32 number has the digits of three bfloat16 ones, and their exponents. They are made once, by one launch, so that
the loops over windows only multiply: of the nine products the six that are not smaller than a float32 product's last
digit. Sums are float32, and begin anew for each tile: the units that multiply cut off what does not fit beside a long
one. Strides are 1, and outside the images are zeros.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_LARGEST = tl.constexpr(torch.finfo(torch.bfloat16).max)
_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""
_TILE, _TILE_OF_WEIGHTS = (64, 32, 64), (64, 64, 32)
"""Pixels, channels and terms of a program; of weights output channels, factors and pixels: fastest on an H200."""


@Overlapping
@triton.jit
def _split(numbers, parts, counts, channels, pitches, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """Split a block of one of the tensors: the programs of the first come first."""
    in_turn(OVERLAPS)
    block = tl.program_id(0)
    for index in tl.static_range(len(counts)):
        count = counts[index]
        if (block >= 0) & (block < tl.cdiv(count, BLOCK)):
            at = block * BLOCK + tl.arange(0, BLOCK)
            place = at // channels[index] * pitches[index] + at % channels[index]
            value = tl.load(numbers[index] + place, at < count, 0.0)
            is_finite = tl.abs(value) < float("inf")
            high = tl.where(is_finite, tl.minimum(tl.maximum(value, -_LARGEST), _LARGEST), value).to(tl.bfloat16)
            rest = tl.where(is_finite, value - high.to(tl.float32), 0.0)
            middle = rest.to(tl.bfloat16)
            tl.store(parts[index] + at, high, at < count)
            tl.store(parts[index] + count + at, middle, at < count)
            tl.store(parts[index] + 2 * count + at, (rest - middle.to(tl.float32)).to(tl.bfloat16), at < count)
        block -= tl.cdiv(count, BLOCK)


@triton.jit
def _products(a, b, c, x, y, z):
    """``(a + b + c) @ (x + y + z)``, of parts that become smaller."""
    total = tl.dot(b, y, tl.dot(a, z, tl.dot(c, x)))
    total = tl.dot(a, y, tl.dot(b, x, total))
    # What is infinite has no smaller parts: their products with zeros say nothing.
    return tl.dot(a, x, tl.where(total == total, total, 0.0))


@Overlapping
@triton.jit
def _windows(
    x, weights, biases, y, pixels, outputs, inputs, apart_x, apart_weights, height, width, rows, columns, first_y,
    first_x, step_y, step_x, tap_of_weights, output_of_weights, input_of_weights, taps_x, taps,
    HAS_BIASES: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, TERMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the result times some channels: windows over a run of channels of a tap at a time."""
    in_turn(OVERLAPS)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    q, k = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, TERMS)
    in_p, in_q, runs = p < pixels, (q < outputs)[None, :], tl.cdiv(inputs, TERMS)
    column, row, image = p % columns, (p // columns) % rows, p // (columns * rows)
    top, left = row + first_y, column + first_x
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for run in tl.range(0, taps * runs):
        tap, c = run // runs, (run % runs) * TERMS + k
        v, u, is_input = top + tap // taps_x * step_y, left + tap % taps_x * step_x, c < inputs
        there = (in_p & (v >= 0) & (v < height) & (u >= 0) & (u < width))[:, None] & is_input[None, :]
        e = x + (((image * height + v) * width + u) * inputs)[:, None] + c[None, :]
        w = weights + tap * tap_of_weights + (c * input_of_weights)[:, None] + (q * output_of_weights)[None, :]
        is_factor = is_input[:, None] & in_q
        total += _products(
            tl.load(e, there, 0.0), tl.load(e + apart_x, there, 0.0), tl.load(e + 2 * apart_x, there, 0.0),
            tl.load(w, is_factor, 0.0), tl.load(w + apart_weights, is_factor, 0.0),
            tl.load(w + 2 * apart_weights, is_factor, 0.0),
        )  # fmt: skip
    if HAS_BIASES:
        total += tl.load(biases + q, q < outputs, 0.0)[None, :]
    tl.store(y + p[:, None] * outputs + q[None, :], total, in_p[:, None] & in_q)


@Overlapping
@triton.jit
def _weights_gradient(
    gradient, x, parts, pixels, outputs, inputs, apart_gradient, apart_x, each, result_rows, result_columns, rows,
    columns, first_y, first_x, dilation_y, dilation_x, taps_x, taps, OUTPUTS: tl.constexpr, FACTORS: tl.constexpr,
    PIXELS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some output channels by some of the factors of a window, summed over a program's pixels."""
    in_turn(OVERLAPS)
    across, down = tl.cdiv(taps * inputs, FACTORS), tl.cdiv(outputs, OUTPUTS)
    block, lane = tl.program_id(0), tl.arange(0, PIXELS)
    part, output = block // (across * down), block // across % down * OUTPUTS + tl.arange(0, OUTPUTS)
    factor = block % across * FACTORS + tl.arange(0, FACTORS)
    is_output, is_factor = (output < outputs)[None, :], (factor < taps * inputs)[None, :]
    tap, channel = factor // inputs, factor % inputs
    tap_y, tap_x = tap // taps_x * dilation_y + first_y, tap % taps_x * dilation_x + first_x
    away = (tap_y * columns + tap_x) * inputs + channel
    total, end = tl.zeros([OUTPUTS, FACTORS], tl.float32), tl.minimum(pixels, (part + 1) * each)
    for first in range(part * each, end, PIXELS):
        p = first + lane
        column, row, image = p % result_columns, p // result_columns % result_rows, p // (result_columns * result_rows)
        v, u = row[:, None] + tap_y[None, :], column[:, None] + tap_x[None, :]
        there = (v >= 0) & (v < rows) & (u >= 0) & (u < columns) & (p < end)[:, None] & is_factor
        e = x + (((image * rows + row) * columns + column) * inputs)[:, None] + away[None, :]
        g, flows = gradient + (p * outputs)[:, None] + output[None, :], (p < end)[:, None] & is_output
        total += _products(
            tl.trans(tl.load(g, flows, 0.0)), tl.trans(tl.load(g + apart_gradient, flows, 0.0)),
            tl.trans(tl.load(g + 2 * apart_gradient, flows, 0.0)), tl.load(e, there, 0.0),
            tl.load(e + apart_x, there, 0.0), tl.load(e + 2 * apart_x, there, 0.0),
        )  # fmt: skip
    place = parts + ((part * outputs + output) * taps * inputs)[:, None] + factor[None, :]
    tl.store(place, total, (output < outputs)[:, None] & is_factor)


class Operand(NamedTuple):
    """A float32 image or weights OHWI: channels lie side by side, ``pitch`` numbers from one pixel to the next."""

    numbers: Tensor
    channels: int
    pitch: int

    @classmethod
    def weights(cls, numbers: Tensor) -> Operand:
        """Weights without gaps."""
        return cls(numbers, numbers.shape[3], numbers.shape[3])

    @classmethod
    def image(cls, numbers: Tensor, pitch: int) -> Operand:
        """An image [N, C, H, W]."""
        return cls(numbers, numbers.shape[1], pitch)


def split(*operands: Operand) -> list[Tensor]:
    """The three parts of each, without gaps: one launch."""
    numbers, channels, pitches = zip(*operands, strict=True)
    counts = tuple([each.numel() for each in numbers])
    parts = tuple([torch.empty((3, each.numel()), dtype=torch.bfloat16, device=each.device) for each in numbers])
    _split[(sum(cdiv(count, _BLOCK) for count in counts),)](numbers, parts, counts, channels, pitches, _BLOCK)
    return [*parts]


def convolution(x: Operand, weights: Tensor, biases: Tensor | None, window: Window) -> Tensor:
    """The convolution of an image by weights of one group, with biases."""
    outputs, taps_y, taps_x, inputs = weights.shape
    y = empty_image(x.numbers, outputs, window.result)
    parts, taps = split(x, Operand.weights(weights)), taps_y * taps_x
    _each_window(parts, y, biases, window, (inputs, taps * inputs, 1), (taps_x, taps))
    return y


def source_gradient(gradient: Tensor, weights: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """The gradient for the source, by the parts of the gradient and of weights OHWI of one group, of a shape.

    The weights are read as they are, the last tap first.
    """
    outputs, taps_y, taps_x, inputs = shape
    taps, images = taps_y * taps_x, gradient.shape[1] // (outputs * window.y.result * window.x.result)
    source = torch.empty((images, *window.source, inputs), dtype=torch.float32, device=gradient.device)
    by = -inputs, 1, taps * inputs
    last = weights.view(3, outputs, taps, inputs)[:, :, -1:]
    _each_window([gradient, last], source.permute(0, 3, 1, 2), None, window.turned(), by, (taps_x, taps))
    return source.permute(0, 3, 1, 2)


def _each_window(
    parts: Sequence[Tensor], y: Tensor, biases: Tensor | None, window: Window, by: tuple[int, int, int],
    taps: tuple[int, int],
) -> None:  # fmt: skip
    """Launch `_windows`; ``by`` is how far taps, outputs and inputs of the weights are apart."""
    (x, weights), (images, outputs) = parts, y.shape[:2]
    pixels, (at_once, channels, terms) = images * window.y.result * window.x.result, _TILE
    inputs = x.shape[1] // (images * window.y.source * window.x.source)
    _windows[(cdiv(pixels, at_once), cdiv(outputs, channels))](
        x, weights, y if biases is None else biases, y, pixels, outputs, inputs, x.stride(0), weights.stride(0),
        *window.source, *window.result, window.y.first, window.x.first, *window.dilation, *by, *taps,
        biases is not None, at_once, channels, min(terms, max(16, next_power_of_2(inputs))), num_warps=4,
        num_stages=3,
    )  # fmt: skip


def weights_gradient(gradient: Tensor, x: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """The gradient for weights OHWI of one group, of a shape, by the parts of the gradient and of the image."""
    outputs, _, taps_x, inputs = shape
    pixels, (of, factors, at_once) = gradient.shape[1] // outputs, _TILE_OF_WEIGHTS
    taps = shape.numel() // (outputs * inputs)
    blocks = cdiv(outputs, of) * cdiv(taps * inputs, factors)
    each = cdiv(cdiv(pixels, max(1, _PROGRAMS // blocks)), at_once) * at_once
    count = cdiv(pixels, each)
    parts = torch.empty((count, *shape), dtype=torch.float32, device=x.device)
    _weights_gradient[(blocks * count,)](
        gradient, x, parts, pixels, outputs, inputs, gradient.shape[1], x.shape[1], each, *window.result,
        *window.source, window.y.first, window.x.first, *window.dilation, taps_x, taps, of, factors, at_once,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return sum_of_parts(parts)
