"""`openmps.ops.pointwise.layer_end` in Triton: one pass over memory each, and sums of the gradient in a fixed order.

Products with float32 numbers of a source are made as three of TF32, and summed in float32.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window, empty_image
from openmps.ops.pointwise.dropout import DropoutMask
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_NUMBERS, _CHANNELS = 1024, 64
"""Numbers of a tile, and channels of it at most."""
_MOST_SUMS = 264
"""Programs that sum a channel, at most: two for each multiprocessor of an H200."""
_PLACES, _PROGRAMS = 64, 245
"""Places of windows of a program at a time, and programs at most, for weights: what was fastest on an H200."""


@Overlapping
@triton.jit(do_not_specialize=["step", "low", "high", "limit", "first_image"])
def _layer_end(
    x, biases, y, taps, pixels, channels, rows, columns, result_rows, result_columns, pitch, step, low, high, limit,
    first_image, share, HAS_BIASES: tl.constexpr, ROUNDS: tl.constexpr, RECTIFIES: tl.constexpr, TAPS: tl.constexpr,
    ACROSS: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr,
    DROPS: tl.constexpr, HOLDS_STEP: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some pixels and channels of the result."""
    in_turn(OVERLAPS)
    across = tl.cdiv(channels, COLUMNS)
    at = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    pixel = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    there = (pixel < pixels)[:, None] & (at < channels)[None, :]
    column, row = pixel % result_columns, pixel // result_columns % result_rows
    image = pixel // (result_columns * result_rows)
    corner = (image.to(tl.int64) * rows + row * STRIDE_Y + FIRST_Y) * columns + column * STRIDE_X + FIRST_X
    bias = tl.load(biases + at, at < channels, 0.0)[None, :] if HAS_BIASES else 0.0
    first = tl.zeros([HELD, COLUMNS], tl.float32)
    largest = tl.full([HELD, COLUMNS], float("-inf"), tl.float32)
    chosen = tl.zeros([HELD, COLUMNS], tl.int32)
    for tap in tl.static_range(TAPS):
        place = (corner + tap // ACROSS * columns + tap % ACROSS)[:, None] * pitch + at[None, :]
        value = tl.load(x + place, there, 0.0).to(tl.float32)
        if HAS_BIASES:
            value += bias
        if ROUNDS:
            value = value.to(tl.float16).to(tl.float32)
        if tap == 0:
            first = value
        takes = (value > largest) | (value != value)
        largest, chosen = tl.where(takes, value, largest), tl.where(takes, tap, chosen)
    passes, result = there, largest
    if RECTIFIES:
        passes = (largest > 0) | (largest != largest) | ((largest == 0) & (first == 0))
        result = tl.where((largest > 0) | (largest != largest), largest, 0.0)
    if DROPS:
        if HOLDS_STEP:
            step = tl.load(step)
        number = ((row * result_columns + column)[:, None] * channels + at[None, :]).to(tl.int64)
        zero = number * 0
        c0, c1 = (zero + step).to(tl.uint32), (zero + first_image + image[:, None]).to(tl.uint32)
        c3 = (zero + step) >> 32
        k0, k1 = (zero + low).to(tl.uint32), (zero + high).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox_impl(c0, c1, (number // 4).to(tl.uint32), c3.to(tl.uint32), k0, k1, 10)
        turn = number % 4
        word = tl.where(turn < 2, tl.where(turn == 0, w0, w1), tl.where(turn == 2, w2, w3))
        kept = word.to(tl.int64) < limit
        passes &= kept
        result = tl.where(kept, tl.div_rn(result, zero.to(tl.float32) + share), 0.0)
    goal = pixel.to(tl.int64)[:, None] * channels + at[None, :]
    tl.store(y + goal, result.to(y.dtype.element_ty), there)
    tl.store(taps + goal, tl.where(passes, chosen, -1).to(tl.int8), there)


@Overlapping
@triton.jit
def _layer_end_gradient(
    gradient, taps, dx, parts, cells, cells_down, cells_across, channels, rows, columns, result_rows, result_columns,
    pitch, pitch_of_taps, share, TAPS: tl.constexpr, ACROSS: tl.constexpr, STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr, IS_RAGGED: tl.constexpr, DROPS: tl.constexpr,
    SUMS: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The windows of some pixels and channels of the result, tile after tile, and their sum.

    Where windows leave pixels over at the right and at the bottom, there are cells of these behind the others.
    """
    in_turn(OVERLAPS)
    across = tl.cdiv(channels, COLUMNS)
    part, programs = tl.program_id(0) // across, tl.num_programs(0) // across
    at = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(part, tl.cdiv(cells, HELD), programs):
        cell = tile * HELD + tl.arange(0, HELD)
        stored = (cell < cells)[:, None] & (at < channels)[None, :]
        column, row = cell % cells_across, cell // cells_across % cells_down
        image, y, u = cell // (cells_across * cells_down), row * STRIDE_Y + FIRST_Y, column * STRIDE_X + FIRST_X
        corner, there = (image.to(tl.int64) * rows + y) * columns + u, stored
        source = cell.to(tl.int64)[:, None]
        if IS_RAGGED:
            there &= ((row < result_rows) & (column < result_columns))[:, None]
            source = ((image.to(tl.int64) * result_rows + row) * result_columns + column)[:, None]
        flow = tl.load(gradient + source * pitch + at[None, :], there, 0.0).to(tl.float32)
        chosen = tl.load(taps + source * pitch_of_taps + at[None, :], there, -1).to(tl.int32)
        if DROPS:
            flow = tl.div_rn(flow, tl.zeros([HELD, COLUMNS], tl.float32) + share)
        flow = tl.where(chosen >= 0, flow, 0.0).to(dx.dtype.element_ty)
        for tap in tl.static_range(TAPS):
            place = (corner + tap // ACROSS * columns + tap % ACROSS)[:, None] * channels + at[None, :]
            if IS_RAGGED:
                is_in = stored & ((y + tap // ACROSS < rows) & (u + tap % ACROSS < columns))[:, None]
                tl.store(dx + place, tl.where(chosen == tap, flow, 0.0).to(dx.dtype.element_ty), is_in)
            else:
                tl.store(dx + place, tl.where(chosen == tap, flow, 0.0).to(dx.dtype.element_ty), there)
        if SUMS:
            total += flow.to(tl.float32)
    if SUMS:
        tl.store(parts + part.to(tl.int64) * channels + at, tl.sum(total, 0), at < channels)


@Overlapping
@triton.jit
def _weights_gradient(
    gradient, taps, x, parts, pixels, channels, inputs, result_rows, result_columns, rows, columns, pitch,
    pitch_of_taps, pitch_of_x, first_y, first_x, step_y, step_x, tap_y, tap_x, pool_y, pool_x, pool_step_y, pool_step_x,
    share, FACTORS: tl.constexpr, TAPS_X: tl.constexpr, TAPS: tl.constexpr, ACROSS: tl.constexpr, DROPS: tl.constexpr,
    PLACES: tl.constexpr, OUTPUTS: tl.constexpr, HELD: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """All output channels by all numbers of a window, and the sums of the channels, over some places of pooled windows.

    A place holds its part of a pooled number: that number where the taps say so, else 0.
    """
    in_turn(OVERLAPS)
    part, programs = tl.program_id(0), tl.num_programs(0)
    q, f, k = tl.arange(0, OUTPUTS), tl.arange(0, HELD), tl.arange(0, PLACES)
    tap, c, is_output = f // inputs, f % inputs, (q < channels)[None, :]
    down, right = tap // TAPS_X * tap_y + first_y, tap % TAPS_X * tap_x + first_x
    total, sums = tl.zeros([OUTPUTS, HELD], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    for tile in range(part, tl.cdiv(pixels * TAPS, PLACES), programs):
        p, place = (tile * PLACES + k) // TAPS, (tile * PLACES + k) % TAPS
        column, row, image = p % result_columns, p // result_columns % result_rows, p // (result_columns * result_rows)
        there = (p < pixels)[:, None]
        chosen = tl.load(taps + p[:, None] * pitch_of_taps + q[None, :], there & is_output, -1).to(tl.int32)
        flow = tl.load(gradient + p[:, None] * pitch + q[None, :], there & is_output, 0.0).to(tl.float32)
        if DROPS:
            flow = tl.div_rn(flow, tl.zeros([PLACES, OUTPUTS], tl.float32) + share)
        flow = tl.where(chosen == place[:, None], flow, 0.0).to(gradient.dtype.element_ty).to(tl.float32)
        v = (row * pool_step_y + pool_y + place // ACROSS) * step_y
        u = (column * pool_step_x + pool_x + place % ACROSS) * step_x
        y, z = v[:, None] + down[None, :], u[:, None] + right[None, :]
        inside = there & (y >= 0) & (y < rows) & (z >= 0) & (z < columns) & (f < FACTORS)[None, :]
        at = ((image[:, None] * rows + y) * columns + z) * pitch_of_x + c[None, :]
        total = tl.dot(tl.trans(flow), tl.load(x + at, inside, 0.0).to(tl.float32), total, input_precision="tf32x3")
        sums += tl.sum(flow, 0)
    first = parts + part * channels * (FACTORS + 1)
    is_sum = (q < channels)[:, None] & (f < FACTORS)[None, :]
    tl.store(first + q[:, None] * FACTORS + f[None, :], total, is_sum)
    tl.store(first + channels * FACTORS + q, sums, q < channels)


_PIXEL = Window(Axis(1, 1), Axis(1, 1))
"""Windows of a pixel each, whatever the size of the image."""


def layer_end(
    x: Tensor, biases: Tensor | None, window: Window | None, mask: DropoutMask | None, step: int | Tensor = 0, *,
    pitch: int, rounds: bool, rectifies: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result and the taps of products with their channels side by side, ``pitch`` numbers from pixel to pixel."""
    images, channels, rows, columns = x.shape
    size = (rows, columns) if window is None else window.result
    dtype = torch.float16 if rounds else x.dtype
    y, taps = (
        torch.empty((images, *size, channels), dtype=kind, device=x.device).permute(0, 3, 1, 2)
        for kind in (dtype, torch.int8)
    )
    at_once = min(_CHANNELS, next_power_of_2(channels))
    held, pixels, seed = _NUMBERS // at_once, images * size[0] * size[1], 0 if mask is None else mask.seed
    is_held, share = isinstance(step, Tensor), 1.0 if mask is None else mask.keep_probability
    counted = step if is_held else (step + 2**63) % 2**64 - 2**63  # as a signed number of 64 bits
    _layer_end[(cdiv(pixels, held) * cdiv(channels, at_once),)](
        x, biases, y, taps, pixels, channels, rows, columns, *size, pitch, counted, seed & 0xFFFFFFFF, seed >> 32,
        math.ceil(share * 2.0**32), 0 if mask is None else mask.share * images, float(share), biases is not None,
        rounds, rectifies, *_places(window),
        mask is not None, is_held, held, at_once, num_warps=4,
    )  # fmt: skip
    return y, taps


def layer_end_gradient(
    gradient: Tensor, taps: Tensor, window: Window | None, keep_probability: float, pitch: int, pitch_of_taps: int, *,
    with_sums: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradient for the products, of the gradient's type, and its sums."""
    images, channels, *size = gradient.shape
    source = tuple(size) if window is None else window.source
    dx = empty_image(gradient, channels, (source[0], source[1]))
    down, right = _cells(window, (size[0], size[1]))
    if not (down and right):
        dx.zero_()
        down, right = size
    at_once = min(_CHANNELS, next_power_of_2(channels))
    held, cells, across = _NUMBERS // at_once, images * down * right, cdiv(channels, at_once)
    count = cdiv(cells, held)
    count = min(count, max(1, _MOST_SUMS // across)) if with_sums else count
    parts = torch.empty((count, channels), dtype=torch.float32, device=dx.device) if with_sums else dx
    _layer_end_gradient[(count * across,)](
        gradient, taps, dx, parts, cells, down, right, channels, *source, *size, pitch, pitch_of_taps,
        float(keep_probability), *_places(window), [down, right] != size, keep_probability != 1.0, with_sums, held,
        at_once, num_warps=4,
    )  # fmt: skip
    return dx, sum_of_parts(parts) if with_sums else None


def layer_end_weights_gradient(
    operands: tuple[Tensor, Tensor, Tensor], pitches: Sequence[int | None], shape: torch.Size, window: Window,
    pool: Window, keep_probability: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients for weights OHWI of a shape and for biases, float32, by gradient, taps and source.

    All have their channels side by side, as many numbers from one pixel to the next as the pitches say.
    """
    gradient, _, x = operands
    (images, channels, rows, columns), taps, factors = gradient.shape, pool.y.size * pool.x.size, shape[1:].numel()
    pixels = images * rows * columns
    programs = min(_PROGRAMS, cdiv(pixels * taps, _PLACES))
    parts = torch.empty((programs, channels * (factors + 1)), dtype=torch.float32, device=x.device)
    held, outputs = (max(16, next_power_of_2(count)) for count in (factors, channels))
    _weights_gradient[(programs,)](
        *operands, parts, pixels, channels, x.shape[1], rows, columns, *window.source, *pitches, window.y.first,
        window.x.first, *window.stride, *window.dilation, pool.y.first, pool.x.first, *pool.stride,
        float(keep_probability), factors, shape[2], taps, pool.x.size, keep_probability != 1.0, _PLACES,
        outputs, held, num_warps=2, num_stages=1,
    )  # fmt: skip
    weights, biases = sum_of_parts(parts).split((channels * factors, channels))
    return weights.view(shape), biases


def _places(window: Window | None) -> tuple[int, ...]:
    """Taps of a window, those of a row of it, strides, and where the first one begins."""
    it = _PIXEL if window is None else window
    return it.y.size * it.x.size, it.x.size, *it.stride, it.y.first, it.x.first


def _cells(window: Window | None, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of windows side by side, as many as the source's pixels take; 0 where windows lie elsewhere."""
    if window is None:
        return size
    down, right = (
        cdiv(each.source, each.stride) if each.first == 0 and each.stride == each.size else 0
        for each in (window.y, window.x)
    )
    return down, right
