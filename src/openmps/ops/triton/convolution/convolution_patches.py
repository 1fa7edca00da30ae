"""Convolutions of few channels in Triton, with the max pooling, biases and neuron behind them: a network's first.

A patch is all that the windows of one pooled pixel read: its rows lie in memory number by number, so that addresses are
those of rows, and a number that several windows share is read once. The products of a patch with every place of its
windows are one product of matrices, whose zeros are where a window does not reach; `ops.convolution.patch_convolution`
makes the matrix. Sums are float32; the result is rounded once.
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
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.convolution.fused_convolution import rectified
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_ALL = tl.constexpr(tl.PropagateNan.ALL)
_NOWHERE = tl.constexpr(-(1 << 24))
"""A row of no image."""


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, _ALL)


@triton.jit
def _numbers(x, base, top, left, height, width, k, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Some numbers of each patch; zeros outside the source."""
    row, number = k // WIDTH, k % WIDTH
    v, u = top[:, None] + row[None, :], left[:, None] + (number // CHANNELS)[None, :]
    is_in = (v >= 0) & (v < height) & (u >= 0) & (u < width) & (row < ROWS)[None, :]
    return tl.load(x + base[:, None] + (row * width * CHANNELS + number)[None, :], is_in, 0.0)


@triton.jit
def _factors(weights, k, n, along, apart, terms, across):
    """Some rows of some columns of the matrix."""
    return tl.load(weights + k[:, None] * along + n[None, :] * apart, (k < terms)[:, None] & (n < across)[None, :], 0.0)


@triton.jit
def _pooled(total, PATCHES: tl.constexpr, PLACES: tl.constexpr, OUTPUTS: tl.constexpr):
    """The largest of each patch's places."""
    if PLACES == 1:
        return total
    return tl.reduce(tl.reshape(total, [PATCHES, PLACES, OUTPUTS]), 1, _larger)


@triton.jit
def _one_by_one(
    x, weights, base, top, left, height, width, block, along, apart, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, SHIFT_Y: tl.constexpr, SHIFT_X: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, OUTPUTS: tl.constexpr, PATCHES: tl.constexpr,
):  # fmt: skip
    """The largest sums of some patches, without products of a place with numbers that it does not read."""
    largest = tl.full([PATCHES, OUTPUTS], float("-inf"), tl.float32)
    for place in range(DOWN * ACROSS):
        down, right = place // ACROSS * SHIFT_Y, place % ACROSS * SHIFT_X
        n = (block * (DOWN * ACROSS) + place) * OUTPUTS + tl.arange(0, OUTPUTS)
        total = tl.zeros([PATCHES, OUTPUTS], tl.float32)
        for tap in range(TAPS_Y * TAPS_X * CHANNELS):
            row, number = down + tap // (TAPS_X * CHANNELS), right * CHANNELS + tap % (TAPS_X * CHANNELS)
            v, u = top + row, left + number // CHANNELS
            is_in = (v >= 0) & (v < height) & (u >= 0) & (u < width)
            e = tl.load(x + base + row * width * CHANNELS + number, is_in, 0.0).to(tl.float32)
            w = tl.load(weights + (row * WIDTH + number) * along + n * apart).to(tl.float32)
            total += e[:, None] * w[None, :]
        largest = _larger(largest, total)
    return largest


@Overlapping
@triton.jit(do_not_specialize=["count"])
def _patches(
    x, weights, biases, y, count, height, width, rows, columns, outputs, along, apart, terms, across, first_y, first_x,
    slope, limit, HAS_BIASES: tl.constexpr, RECTIFIER: tl.constexpr, CHANNELS: tl.constexpr, STEP_Y: tl.constexpr,
    STEP_X: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, SHIFT_Y: tl.constexpr, SHIFT_X: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr,
    RUNS: tl.constexpr, OUTPUTS: tl.constexpr, PATCHES: tl.constexpr, IN_OCTETS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some channels of some pixels of the result at a time."""
    in_turn(OVERLAPS)
    PLACES: tl.constexpr = DOWN * ACROSS
    if IN_OCTETS:
        outputs = outputs // 8 * 8  # So that the compiler knows, and stores eight numbers at once.
    o = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    n, k = tl.program_id(1) * PLACES * OUTPUTS + tl.arange(0, PLACES * OUTPUTS), tl.arange(0, TERMS)
    added = tl.load(biases + o, o < outputs, 0.0)[None, :] if HAS_BIASES else 0.0
    p = tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    column, row, image = p % columns, (p // columns) % rows, p // (columns * rows)
    top, left = first_y + row * STEP_Y, first_x + column * STEP_X
    base = ((image * height + top) * width + left) * CHANNELS
    top = tl.where(p < count, top, _NOWHERE)
    total = tl.zeros([PATCHES, PLACES * OUTPUTS], tl.float32)
    for run in tl.range(0, RUNS):
        e = _numbers(x, base, top, left, height, width, run * TERMS + k, CHANNELS, WIDTH, ROWS)
        factors = _factors(weights, run * TERMS + k, n, along, apart, terms, across)
        total = tl.dot(e, factors, total, input_precision="tf32x3")
    result = _pooled(total, PATCHES, PLACES, OUTPUTS)
    if PLACES > 1:  # noqa: SIM102 - told when it is compiled
        if tl.max((result != result).to(tl.int32)) > 0:
            # A number that is not finite times the zero of a place that does not read it is not a number.
            result = _one_by_one(
                x, weights, base, top, left, height, width, tl.program_id(1), along, apart, CHANNELS, WIDTH, TAPS_Y,
                TAPS_X, SHIFT_Y, SHIFT_X, DOWN, ACROSS, OUTPUTS, PATCHES,
            )  # fmt: skip
    is_in = (p < count)[:, None] & (o < outputs)[None, :]
    result = (result + added).to(y.dtype.element_ty).to(tl.float32) if RECTIFIER == "GELU" else result + added
    tl.store(y + p[:, None] * outputs + o[None, :], rectified(result, slope, limit, RECTIFIER), is_in)


@Overlapping
@triton.jit(do_not_specialize=["count"])
def _few_terms(
    x, weights, biases, y, count, height, width, rows, columns, outputs, along, apart, first_y, first_x, slope, limit,
    HAS_BIASES: tl.constexpr, RECTIFIER: tl.constexpr, CHANNELS: tl.constexpr, STEP_Y: tl.constexpr,
    STEP_X: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, OUTPUTS: tl.constexpr, PATCHES: tl.constexpr,
    IN_OCTETS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some channels of some pixels, term by term: so few terms would not fill a product of matrices."""
    in_turn(OVERLAPS)
    if IN_OCTETS:
        outputs = outputs // 8 * 8
    o, p = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS), tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    column, row, image = p % columns, (p // columns) % rows, p // (columns * rows)
    top, left = first_y + row * STEP_Y, first_x + column * STEP_X
    base = ((image * height + top) * width + left) * CHANNELS
    total = tl.zeros([PATCHES, OUTPUTS], tl.float32)
    for tap_y in tl.static_range(TAPS_Y):
        for tap_x in tl.static_range(TAPS_X):
            v, u = top + tap_y, left + tap_x
            is_in = (p < count) & (v >= 0) & (v < height) & (u >= 0) & (u < width)
            for channel in tl.static_range(CHANNELS):
                e = tl.load(x + base + (tap_y * width + tap_x) * CHANNELS + channel, is_in, 0.0).to(tl.float32)
                place = weights + ((tap_y * TAPS_X + tap_x) * CHANNELS + channel) * along + o * apart
                total += e[:, None] * tl.load(place, o < outputs, 0.0).to(tl.float32)[None, :]
    total += tl.load(biases + o, o < outputs, 0.0)[None, :] if HAS_BIASES else 0.0
    total = total.to(y.dtype.element_ty).to(tl.float32) if RECTIFIER == "GELU" else total
    is_in = (p < count)[:, None] & (o < outputs)[None, :]
    tl.store(y + p[:, None] * outputs + o[None, :], rectified(total, slope, limit, RECTIFIER), is_in)


class Tile(NamedTuple):
    """Pixels of the result and terms of a program at a time, its warps and the stages of its loop."""

    patches: int
    terms: int
    warps: int = 4
    stages: int = 3


_OUTPUTS, _PIXELS = 8, 512
"""Of a program that goes term by term: with GeLU behind the fewest terms, where it is faster by what was measured."""
_FEWEST_TERMS, _FEW_TERMS, _MANY_PATCHES, _MANY_PIXELS = 16, 64, 1 << 17, 1 << 15


def _tile_for(matrix: Tensor, count: int, x: Tensor, *, is_pooled: bool) -> Tile:
    """What was fastest on an H200, of first and second layers."""
    is_small, is_half = len(matrix) <= _FEW_TERMS, x.dtype == torch.float16
    if not is_pooled:
        return Tile(128, 32, 4, 2) if is_small or count >= _MANY_PIXELS else Tile(32, 32)
    if is_half and is_small:
        return Tile(128, 16) if count >= _MANY_PATCHES else Tile(64, 64, 4, 2)
    return Tile(128, 32) if is_half else Tile(64, 16) if is_small else Tile(32, 32, 4, 2)


def patches(
    x: Tensor, matrix: Tensor, outputs: int, at_once: int, biases: Tensor | None, window: Window,
    pooling: Window | None, rectifier: tuple[str, float, float], tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The convolution of a channels-last image, pooled, with biases and rectifier, by a matrix ``[terms, columns]``.

    The columns are those of ``at_once`` outputs for each place of the pooling's windows, block by block. Windows are
    not dilated; those of the pooling, if there is one, are of 1, 2 or 4 pixels side by side and inside the
    convolution's result. Outside the source are zeros.
    """
    inside, apart = ((1, 1), (1, 1)) if pooling is None else (pooling.size, pooling.stride)
    skipped = (0, 0) if pooling is None else (pooling.y.first, pooling.x.first)
    y = empty_image(x, outputs, window.result if pooling is None else pooling.result)
    count, channels = y.shape[0] * y.shape[2] * y.shape[3], x.shape[1]
    first = (axis.first + before * axis.stride for axis, before in zip((window.y, window.x), skipped, strict=True))
    steps = (of_pool * of_window for of_pool, of_window in zip(apart, window.stride, strict=True))
    patch = zip(window.size, inside, window.stride, strict=True)
    rows, width = (taps + (places - 1) * step for taps, places, step in patch)
    if pooling is None and len(matrix) <= _FEWEST_TERMS and rectifier[0] == "GELU" and tile is None:
        name, *limits = rectifier
        _few_terms[(cdiv(count, _PIXELS), cdiv(outputs, _OUTPUTS))](
            x, matrix, y if biases is None else biases, y, count, *window.source, y.shape[2], y.shape[3], outputs,
            *matrix.stride(), window.y.first, window.x.first, *limits, biases is not None, name, channels,
            *window.stride, *window.size, _OUTPUTS, _PIXELS, outputs % 8 == 0, num_warps=4,
        )  # fmt: skip
        return y
    by, (name, *limits) = tile or _tile_for(matrix, count, x, is_pooled=inside != (1, 1)), rectifier
    _patches[(cdiv(count, by.patches), cdiv(outputs, at_once))](
        x, matrix, y if biases is None else biases, y, count, *window.source, y.shape[2], y.shape[3], outputs,
        *matrix.stride(), *matrix.shape, *first, *limits, biases is not None, name, channels, *steps, *window.size,
        *window.stride, *inside, width * channels, rows, by.terms, cdiv(len(matrix), by.terms), at_once,
        by.patches, outputs % 8 == 0, num_warps=by.warps, num_stages=by.stages,
    )  # fmt: skip
    return y
