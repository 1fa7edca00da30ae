"""The forms of `ops.convolution.fused_convolution` in Triton: what stands behind a convolution done where its sums are.

Images are channels-last, without gaps. Sums are float32; the result is rounded once.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.pointwise.neuron import normal

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024


class Blocks(NamedTuple):
    """How a contraction is divided, and how a block of it runs."""

    pixels: int
    channels: int
    terms: int
    warps: int = 4
    stages: int = 3


_SIZES = (Blocks(64, 64, 32), Blocks(64, 32, 32), Blocks(16, 32, 64))
_FEWEST = (256, 128, 0)
"""Blocks that there are at least, so that a GPU is busy, where a size is taken."""
_OF_HALF = Blocks(64, 128, 32)
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def rectified(v, slope, limit, RECTIFIER: tl.constexpr):
    """What is not a number stays so."""
    if RECTIFIER == "LEAKY" or RECTIFIER == "LEAKY_N":
        v = tl.where(v >= 0, v, slope * v)
    if RECTIFIER == "RELU" or RECTIFIER == "RELU_N":
        v = tl.maximum(v, 0.0, _ALL)
    if RECTIFIER == "RELU_N" or RECTIFIER == "LEAKY_N":
        v = tl.minimum(v, limit, _ALL)
    if RECTIFIER == "GELU":
        v *= normal(v)[0]
    return v


@Launched
@triton.jit(do_not_specialize=["count"])
def _finish(
    y, biases, residual, channels, count, slope, limit, HAS_BIASES: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    RECTIFIER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Biases, another image and a neuron, over the result of a convolution."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_in = at < count
    v = tl.load(y + at, is_in).to(tl.float32)
    if HAS_BIASES:
        v += tl.load(biases + at % channels, is_in)
    if HAS_RESIDUAL:
        v += tl.load(residual + at, is_in).to(tl.float32)
    tl.store(y + at, rectified(v, slope, limit, RECTIFIER), is_in)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _depthwise(
    x, weights, biases, residual, y, pixels, height, width, rows, columns, outputs, multiplier, first_y, first_x,
    step_y, step_x, tap_y, tap_x, slope, limit, HAS_BIASES: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    CLAMPS: tl.constexpr, RECTIFIER: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Windows over each channel by itself: some pixels of the result times some channels."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    q = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_p, in_q = p < pixels, q < outputs
    column, row, image = p % columns, (p // columns) % rows, (p // (columns * rows)).to(tl.int64)
    inputs, c = outputs // multiplier, q // multiplier
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS_Y * TAPS_X):
        v = first_y + row * step_y + (tap // TAPS_X) * tap_y
        u = first_x + column * step_x + (tap % TAPS_X) * tap_x
        if CLAMPS:
            v, u, is_in = tl.minimum(tl.maximum(v, 0), height - 1), tl.minimum(tl.maximum(u, 0), width - 1), in_p
        else:
            is_in = in_p & (v >= 0) & (v < height) & (u >= 0) & (u < width)
        at = ((image * height + v) * width + u) * inputs
        e = tl.load(x + at[:, None] + c[None, :], is_in[:, None] & in_q[None, :], 0.0).to(tl.float32)
        w = tl.load(weights + tap * outputs + q, in_q, 0.0).to(tl.float32)
        total += e * w[None, :]
    if HAS_BIASES:
        total += tl.load(biases + q, in_q, 0.0)[None, :]
    to, is_in = p.to(tl.int64)[:, None] * outputs + q[None, :], in_p[:, None] & in_q[None, :]
    if HAS_RESIDUAL:
        total += tl.load(residual + to, is_in, 0.0).to(tl.float32)
    tl.store(y + to, rectified(total, slope, limit, RECTIFIER), is_in)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _contraction(
    x, weights, biases, residual, y, pixels, outputs, inputs, height, width, rows, columns, first_y, first_x,
    step_y, step_x, tap_y, tap_x, taps_x, taps, slope, limit, HAS_BIASES: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    CLAMPS: tl.constexpr, IS_PLAIN: tl.constexpr, RECTIFIER: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Windows over all channels: some pixels of the result times some channels, a run of terms of a tap at a time.

    Windows of one pixel, side by side, are plain: the source is a matrix of as many rows as the result.
    """
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    q = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_p, in_q, k = p < pixels, q < outputs, tl.arange(0, TERMS)
    to, is_result = p.to(tl.int64)[:, None] * outputs + q[None, :], in_p[:, None] & in_q[None, :]
    added = tl.load(residual + to, is_result, 0.0) if HAS_RESIDUAL else 0.0
    column, row, image = p % columns, (p // columns) % rows, (p // (columns * rows)).to(tl.int64)
    top, left, runs = first_y + row * step_y, first_x + column * step_x, tl.cdiv(inputs, TERMS)
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for run in tl.range(0, taps * runs):
        tap, c = run // runs, (run % runs) * TERMS + k
        if IS_PLAIN:
            at, is_in = p.to(tl.int64) * inputs, in_p
        else:
            v, u = top + (tap // taps_x) * tap_y, left + (tap % taps_x) * tap_x
            if CLAMPS:
                v, u = tl.minimum(tl.maximum(v, 0), height - 1), tl.minimum(tl.maximum(u, 0), width - 1)
                is_in = in_p
            else:
                is_in = in_p & (v >= 0) & (v < height) & (u >= 0) & (u < width)
            at = ((image * height + v) * width + u) * inputs
        e = tl.load(x + at[:, None] + c[None, :], is_in[:, None] & (c < inputs)[None, :], 0.0)
        at_w = (q * taps + tap)[None, :] * inputs + c[:, None]
        w = tl.load(weights + at_w, in_q[None, :] & (c < inputs)[:, None], 0.0)
        total = tl.dot(e, w, total, input_precision=PRECISION)
    if HAS_BIASES:
        total += tl.load(biases + q, in_q, 0.0)[None, :]
    if HAS_RESIDUAL:
        total += added
    tl.store(y + to, rectified(total, slope, limit, RECTIFIER), is_result)


def finish(
    y: Tensor, biases: Tensor | None, residual: Tensor | None, rectifier: str, slope: float, limit: float
) -> Tensor:
    """Add biases and an image to ``y``, and rectify it, in place; on the current device."""
    count = y.numel()
    if count:
        _finish[(cdiv(count, _BLOCK),)](
            y, _or(biases, y), _or(residual, y), y.shape[1], count, slope, limit, biases is not None,
            residual is not None, rectifier, _BLOCK,
        )  # fmt: skip
    return y


def depthwise(
    x: Tensor, weights: Tensor, biases: Tensor | None, residual: Tensor | None, window: Window, *, clamps: bool,
    rectifier: str, slope: float, limit: float,
) -> Tensor:  # fmt: skip
    """A convolution of each channel by itself, by weights ``[kernel rows, kernel columns, outputs]`` in memory."""
    outputs = weights.shape[0]
    y = empty_image(x, outputs, window.result)
    pixels = y.shape[0] * y.shape[2] * y.shape[3]
    if pixels:
        channels = min(next_power_of_2(outputs), 64)
        block = max(1, min(_BLOCK // channels, next_power_of_2(pixels)))
        _depthwise[(cdiv(pixels, block), cdiv(outputs, channels))](
            x, weights, _or(biases, y), _or(residual, y), y, pixels, *window.source, *window.result, outputs,
            outputs // x.shape[1], *_places(window), slope, limit, biases is not None, residual is not None, clamps,
            rectifier, *window.size, block, channels,
        )  # fmt: skip
    return y


def contraction(
    x: Tensor, weights: Tensor, biases: Tensor | None, residual: Tensor | None, window: Window, *, clamps: bool,
    rectifier: str, slope: float, limit: float, blocks: Blocks | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of one group, by weights OHWI.

    Products of float32 are made as three of TF32, which are as exact as multiplications with additions one by one.
    """
    outputs, taps_y, taps_x, inputs = weights.shape
    y = empty_image(x, outputs, window.result)
    pixels = y.shape[0] * y.shape[2] * y.shape[3]
    if pixels:
        by = blocks or _blocks_for(pixels, outputs, is_half=x.dtype == torch.float16)
        is_plain = window.is_pixelwise
        _contraction[(cdiv(pixels, by.pixels), cdiv(outputs, by.channels))](
            x, weights, _or(biases, y), _or(residual, y), y, pixels, outputs, inputs, *window.source, *window.result,
            *_places(window), taps_x, taps_y * taps_x, slope, limit, biases is not None, residual is not None, clamps,
            is_plain, rectifier, "tf32x3", by.pixels, by.channels, by.terms, num_warps=by.warps, num_stages=by.stages,
        )  # fmt: skip
    return y


def _blocks_for(pixels: int, outputs: int, *, is_half: bool) -> Blocks:
    if is_half:
        return _OF_HALF
    counts = (cdiv(pixels, size.pixels) * cdiv(outputs, size.channels) for size in _SIZES)
    return next(size for size, count, fewest in zip(_SIZES, counts, _FEWEST, strict=True) if count >= fewest)


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    return other if given is None else given


def _places(window: Window) -> tuple[int, ...]:
    """First pixel, stride and dilation, each of rows and columns."""
    return window.y.first, window.x.first, *window.stride, *window.dilation
