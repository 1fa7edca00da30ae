"""A convolution of few channels over float16 images with the max pooling behind it in Triton, for training.

The four windows of a pooled pixel are summed side by side, by runs of numbers as `convolution_tap_rows` reads them, and
share the factors that they read. Sums are float32; the largest is found among the rounded ones, and a byte says which.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image, pitch_of
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.convolution.convolution_tap_rows import LEAST_NUMBERS, is_run, parts_of, run_of

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_MOST_OUTPUTS, _LEAST_PIXELS = 64, 1 << 14
"""Output channels of a program, which has all; pooled pixels for which it was measured."""


@triton.jit
def _factors(
    weights, output, outputs, tap, NUMBERS: tl.constexpr, OF_ALL: tl.constexpr, BEGIN: tl.constexpr, COUNT: tl.constexpr
):
    """Some factors of a row of taps, for all outputs."""
    number = BEGIN + tl.arange(0, COUNT)
    place = weights + output[None, :] * OF_ALL + tap * NUMBERS + number[:, None]
    return tl.load(place, (number < NUMBERS)[:, None] & (output < outputs)[None, :], 0.0)


@triton.jit
def _larger(largest, chosen, total, bias, HAS_BIASES: tl.constexpr, TAP: tl.constexpr):
    """The larger of numbers, which are rounded first and behind their biases, and which it is."""
    value = total.to(tl.float16).to(tl.float32)
    if HAS_BIASES:
        value = (value + bias).to(tl.float16).to(tl.float32)
    takes = (value > largest) | (value != value)
    return tl.where(takes, value, largest), tl.where(takes, TAP, chosen)


@Launched
@triton.jit
def _pooled(
    x, weights, biases, y, taps, pixels, outputs, rows, columns, result_rows, result_columns, first_y, first_x,
    HAS_BIASES: tl.constexpr, INPUTS: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, OUTPUTS: tl.constexpr,
    WIDE: tl.constexpr, REST: tl.constexpr, PIXELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some pooled pixels."""
    NUMBERS: tl.constexpr = TAPS_X * INPUTS
    OF_ALL: tl.constexpr = TAPS_Y * TAPS_X * INPUTS
    pixel, output = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS), tl.arange(0, OUTPUTS)
    there, image = pixel < pixels, pixel // (result_columns * result_rows)
    u, v = pixel % result_columns * 2 + first_x, pixel // result_columns % result_rows * 2 + first_y
    total0 = tl.zeros([PIXELS, OUTPUTS], tl.float32)
    total1, total2, total3 = total0, total0, total0
    for tap in tl.range(0, TAPS_Y, num_stages=STAGES):
        top = v + tap
        wide = _factors(weights, output, outputs, tap, NUMBERS, OF_ALL, 0, WIDE)
        rest = _factors(weights, output, outputs, tap, NUMBERS, OF_ALL, WIDE, REST)
        total0 = tl.dot(run_of(x, image, top, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide, total0)
        total0 = tl.dot(run_of(x, image, top, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest, total0)
        total1 = tl.dot(run_of(x, image, top, u + 1, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide, total1)
        total1 = tl.dot(run_of(x, image, top, u + 1, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest, total1)
        top += 1
        total2 = tl.dot(run_of(x, image, top, u, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide, total2)
        total2 = tl.dot(run_of(x, image, top, u, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest, total2)
        total3 = tl.dot(run_of(x, image, top, u + 1, there, rows, columns, NUMBERS, INPUTS, 0, WIDE), wide, total3)
        total3 = tl.dot(run_of(x, image, top, u + 1, there, rows, columns, NUMBERS, INPUTS, WIDE, REST), rest, total3)
    bias = tl.load(biases + output, output < outputs, 0.0)[None, :] if HAS_BIASES else 0.0
    largest = tl.full([PIXELS, OUTPUTS], float("-inf"), tl.float32)
    chosen = tl.zeros([PIXELS, OUTPUTS], tl.int32)
    largest, chosen = _larger(largest, chosen, total0, bias, HAS_BIASES, 0)
    largest, chosen = _larger(largest, chosen, total1, bias, HAS_BIASES, 1)
    largest, chosen = _larger(largest, chosen, total2, bias, HAS_BIASES, 2)
    largest, chosen = _larger(largest, chosen, total3, bias, HAS_BIASES, 3)
    place = pixel.to(tl.int64)[:, None] * outputs + output[None, :]
    is_in = there[:, None] & (output < outputs)[None, :]
    tl.store(y + place, largest.to(tl.float16), is_in)
    tl.store(taps + place, chosen.to(tl.int8), is_in)


class Tile(NamedTuple):
    """Pooled pixels of a program, its warps and the stages of its loop."""

    pixels: int = 64
    warps: int = 4
    stages: int = 2


def takes(x: Tensor, weights: Tensor, window: Window, pooling: Window) -> bool:
    """Whether `pooled` is for these images, weights and windows."""
    pairs = pooling.size == pooling.stride == (2, 2) and not pooling.leaves_source
    pixels = len(x) * pooling.y.result * pooling.x.result
    is_half = x.dtype == weights.dtype == torch.float16 and weights.is_contiguous()
    return (
        pairs and is_half and window.stride == (1, 1) and window.y.dilation == 1
        and is_run(x, window, pitch_of(x) or 0) and len(weights) <= _MOST_OUTPUTS and _LEAST_PIXELS <= pixels < 2**30
    )  # fmt: skip


def pooled(
    x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, pooling: Window, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """The largest numbers of windows of the convolution, float16, and which of the four each is, int8.

    Outside the source are zeros. Biases are added, float32, to numbers that were rounded.
    """
    inputs, outputs, by = x.shape[1], len(weights), tile or Tile()
    y = empty_image(x, outputs, pooling.result)
    taps = torch.empty_like(y, dtype=torch.int8)
    pixels, (wide, rest) = len(x) * pooling.y.result * pooling.x.result, parts_of(window.x.size * inputs)
    _pooled[(cdiv(pixels, by.pixels),)](
        x, weights, y if biases is None else biases, y, taps, pixels, outputs, *window.source, *pooling.result,
        window.y.first + pooling.y.first, window.x.first + pooling.x.first, biases is not None, inputs, *window.size,
        max(LEAST_NUMBERS, next_power_of_2(outputs)), wide, rest, by.pixels, by.stages, num_warps=by.warps,
    )  # fmt: skip
    return y, taps
