"""Convolutions of float16 images in Triton with what stands behind them, for few pixels, or few terms to add to.

Of few pixels each launch is over before a GPU is busy with it. So the next one begins while it ends (programmatic
dependent launch, from sm_90 on), places under windows are told by shifts, and where there are fewer tiles than
multiprocessors, programs share the terms of a tile: the last of them to end adds all their sums in one order, so that
equal work gives equal bits. Sums are float32; the result is rounded once.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.addresses import zeros
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.convolution.fused_convolution import rectified

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_OVERLAPPING = 9
"""The major compute capability from which launches may overlap."""
_NOT_TOLD = [
    "height", "width", "rows", "columns", "down", "across", "first_y", "first_x", "step_y", "step_x", "tap_y", "tap_x",
    "digits", "runs_each", "splits", "arrived", "height_z", "width_z", "first_y_z", "first_x_z", "step_y_z", "step_x_z",
]  # fmt: skip
"""What kernels are not compiled for: layers that differ in this share one."""


class Tile(NamedTuple):
    """What a program computes, and how."""

    pixels: int
    channels: int
    terms: int
    splits: int = 1
    """Programs that share the terms of a tile."""
    warps: int = 4
    stages: int = 4


class Addend(NamedTuple):
    """An image whose products by weights of one pixel ``[outputs, 1, 1, channels]`` are added."""

    image: Tensor
    weights: Tensor
    window: Window


@triton.jit
def _inside(first, step, size, TAPS: tl.constexpr):
    """A bit for each tap of windows: whether it is inside an image."""
    bits = first * 0
    for tap in tl.static_range(TAPS):
        at = first + tap * step
        bits |= ((at >= 0) & (at < size)).to(tl.int32) << tap
    return bits


@triton.jit
def _of_pixels(total, from_x, from_weights, in_p, in_q, first, last, TERMS: tl.constexpr):
    """Add the products of some runs of terms of single pixels."""
    for run in tl.range(first, last):
        e = tl.load(from_x + run * TERMS, in_p[:, None], 0.0)
        total = tl.dot(e, tl.load(from_weights + run * TERMS, in_q[None, :], 0.0), total)
    return total


@triton.jit
def _gathered(total, parts, arrived, tile, split, splits, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The sums of all programs of a tile, for the last of them; for the others anything, and whether it is the last."""
    place = parts + tl.arange(0, PIXELS)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    first = tile * splits
    tl.store(place + (first + split) * (PIXELS * CHANNELS), total)
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") == splits - 1
    if is_last:
        total = tl.zeros_like(total)
        for part in tl.range(first, first + splits):
            total += tl.load(place + part * (PIXELS * CHANNELS), cache_modifier=".cg")
        tl.store(arrived + tile, 0)  # As the next launch finds it.
    return total, is_last


@Launched
@triton.jit(do_not_specialize=_NOT_TOLD)
def _half_convolution(
    x, weights, biases, residual, z, weights_of_z, y, parts, arrived, outputs, inputs, height, width, rows, columns,
    down, across, first_y, first_x, step_y, step_x, tap_y, tap_x, digits, runs_each, splits, inputs_z, height_z,
    width_z, first_y_z, first_x_z, step_y_z, step_x_z, slope, limit, HAS_BIASES: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_ADDEND: tl.constexpr, RECTIFIER: tl.constexpr, TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr, IS_PLAIN: tl.constexpr, IS_SPLIT: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Some channels of a tile of pixels, a run of terms of a tap at a time, of which a tap has two to some power.

    Windows of one pixel, side by side, are plain: images are matrices of as many rows as there are pixels.
    """
    PIXELS: tl.constexpr = ROWS * COLUMNS
    lane, k, tile = tl.arange(0, PIXELS), tl.arange(0, TERMS), tl.program_id(0)
    q, split = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.program_id(2)
    image, block = tile // (down * across), tile % (down * across)
    row, column = block // across * ROWS + lane // COLUMNS, block % across * COLUMNS + lane % COLUMNS
    top, left = first_y + row * step_y, first_x + column * step_x
    in_y, in_x = _inside(top, tap_y, height, TAPS_Y), _inside(left, tap_x, width, TAPS_X)
    if IS_PLAIN:
        p = tile * PIXELS + lane
        at, of_z, in_p = p * inputs, p, p < rows
    else:
        p, in_p = (image * rows + row) * columns + column, (row < rows) & (column < columns)
        at = ((image * height + top) * width + left) * inputs
        of_z = (image * height_z + first_y_z + row * step_y_z) * width_z + first_x_z + column * step_x_z
    to, in_q, is_result = p[:, None] * outputs + q[None, :], q < outputs, in_p[:, None] & (q < outputs)[None, :]
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    # Read here, they are there when the sums are; behind the loop each launch would wait for them.
    bias = tl.load(biases + q, in_q, 0.0)[None, :] if HAS_BIASES else 0.0
    added = tl.load(residual + to, is_result, 0.0) if HAS_RESIDUAL else 0.0
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    from_x, from_weights = x + at[:, None] + k[None, :], weights + q[None, :] * (TAPS_Y * TAPS_X * inputs) + k[:, None]
    first, last = split * runs_each, tl.minimum((split + 1) * runs_each, (TAPS_Y * TAPS_X) << digits)
    if IS_PLAIN:
        total = _of_pixels(total, from_x, from_weights, in_p, in_q, first, last, TERMS)
    else:
        for run in tl.range(first, last):
            tap = run >> digits
            y_of, x_of = tap // TAPS_X, tap % TAPS_X
            away = (y_of * tap_y * width + x_of * tap_x) * inputs + (run - (tap << digits)) * TERMS
            e = tl.load(from_x + away, ((in_y >> y_of) & (in_x >> x_of) & in_p)[:, None] != 0, 0.0)
            total = tl.dot(e, tl.load(from_weights + run * TERMS, in_q[None, :], 0.0), total)
    if HAS_ADDEND:
        from_z = z + (of_z * inputs_z)[:, None] + k[None, :]
        from_weights = weights_of_z + q[None, :] * inputs_z + k[:, None]
        total = _of_pixels(total, from_z, from_weights, in_p, in_q, 0, inputs_z // TERMS, TERMS)
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    is_last = True
    if IS_SPLIT:
        tile += tl.program_id(1) * tl.num_programs(0)
        total, is_last = _gathered(total, parts, arrived, tile, split, splits, PIXELS, CHANNELS)
    if is_last:
        if HAS_BIASES:
            total += bias
        if HAS_RESIDUAL:
            total += added
        tl.store(y + to, rectified(total, slope, limit, RECTIFIER), is_result)


@cache
def _overlaps(device: torch.device) -> bool:
    """Whether a launch may begin before the one in front of it has ended."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= _OVERLAPPING


def half_convolution(
    x: Tensor, weights: Tensor, biases: Tensor | None, residual: Tensor | None, window: Window,
    rectifier: tuple[str, float, float], tile: Tile, addend: Addend | None = None,
) -> Tensor:  # fmt: skip
    """A convolution of one group of a channels-last image, float16, by weights OHWI, with zeros outside the source.

    Terms of a tap are those of a program, times two to some power; with an addend nothing is split, its terms are some
    times those of a program, and its windows are inside its image.
    """
    outputs, taps_y, taps_x, inputs = weights.shape
    y = empty_image(x, outputs, window.result)
    is_plain = window.is_pixelwise and (addend is None or addend.window.is_pixelwise)
    images, (height, width) = (1, (y.numel() // outputs, 1)) if is_plain else (len(x), window.result)
    columns = min(tile.pixels, next_power_of_2(width))
    rows = tile.pixels // columns
    down, across = cdiv(height, rows), cdiv(width, columns)
    grid = images * down * across, cdiv(outputs, tile.channels), tile.splits
    digits = (inputs // tile.terms).bit_length() - 1
    runs_each = cdiv(taps_y * taps_x << digits, tile.splits)
    parts = arrived = y
    if tile.splits > 1:
        parts = x.new_empty((grid[0] * grid[1] * tile.splits, tile.pixels * tile.channels), dtype=torch.float32)
        arrived = zeros(grid[0] * grid[1], x.device)
    z, weights_of_z, window_of_z = addend or (y, y, window)
    name, *limits = rectifier
    overlapping = {"launch_pdl": True} if _overlaps(x.device) else {}
    _half_convolution[grid](
        x, weights, y if biases is None else biases, y if residual is None else residual, z, weights_of_z, y, parts,
        arrived, outputs, inputs, *window.source, height, width, down, across, *_places(window), *window.dilation,
        digits, runs_each, tile.splits, z.shape[1], *window_of_z.source, *_places(window_of_z), *limits,
        biases is not None, residual is not None, addend is not None, name, taps_y, taps_x, is_plain, tile.splits > 1,
        bool(overlapping), rows, columns, tile.channels, tile.terms, num_warps=tile.warps, num_stages=tile.stages,
        **overlapping,
    )  # fmt: skip
    return y


def _places(window: Window) -> tuple[int, ...]:
    """First pixel and stride, each of rows and columns."""
    return window.y.first, window.x.first, *window.stride
