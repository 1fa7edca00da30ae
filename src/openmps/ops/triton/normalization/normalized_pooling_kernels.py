"""The kernels of `normalized_pooling` in Triton: pooled pixels, and source pixels, as rows times channels."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.normalization.normalization_tiles import (
    activated,
    affine_of,
    inverse_deviation,
    mean_of,
    passing,
    place_of,
)

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

NOTHING = tl.constexpr(255)
"""The tap of a window whose gradient the neuron lets nothing of pass."""


@triton.jit
def _normalized(value, mean, scale, shift, ROUNDS: tl.constexpr):
    """The normalization of numbers."""
    z = (value.to(tl.float32) - mean[None, :]) * scale[None, :] + shift[None, :]
    if ROUNDS:
        z = z.to(tl.float16).to(tl.float32)
    return z


@Launched
@triton.jit
def pooled(
    x, y, taps, winners, rows_of, pixels, channels, rows, columns, result_rows, result_columns, pitch, epsilon, b,
    HAS_CORRECTION: tl.constexpr, NEURON: tl.constexpr, ROUNDS: tl.constexpr, ROUNDS_NEURON: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr,
    FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The largest of a window's neurons, the tap that it came from, and the number that was normalized there."""
    part, _, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, scale, shift = affine_of(rows_of, at, is_in, epsilon, HAS_CORRECTION)
    pixel = part * HELD + tl.arange(0, HELD)
    column, row = pixel % result_columns, pixel // result_columns % result_rows
    image = (pixel // (result_columns * result_rows)).to(tl.int64)
    corner = ((image * rows + FIRST_Y + row * STRIDE_Y) * columns + FIRST_X + column * STRIDE_X) * pitch
    best = tl.full([HELD, COLUMNS], float("-inf"), tl.float32)
    tap = tl.full([HELD, COLUMNS], 0, tl.int32)
    key = tl.full([HELD, COLUMNS], -1, tl.int32)
    for each in tl.static_range(TAPS_Y * TAPS_X):
        v = FIRST_Y + row * STRIDE_Y + each // TAPS_X * DILATION_Y
        u = FIRST_X + column * STRIDE_X + each % TAPS_X * DILATION_X
        inside = (pixel < pixels) & (v >= 0) & (v < rows) & (u >= 0) & (u < columns)
        there = inside[:, None] & is_in[None, :]
        away = (each // TAPS_X * DILATION_Y * columns + each % TAPS_X * DILATION_X) * pitch
        place = (corner + away)[:, None] + at[None, :]
        z = _normalized(tl.load(x + place, there, 0.0), mean, scale, shift, ROUNDS)
        # As the engine's pooling: the first of equal numbers, and what is not a number before all others.
        if ROUNDS_NEURON:
            # Bits of float16 numbers that are not negative grow with them; behind them the tap, the first the largest.
            bits = activated(z, 0.0, b, NEURON, True).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
            key = tl.maximum(key, tl.where(there, tl.maximum(bits, 0) * 256 + (255 - each), -1))
        else:
            z = activated(z, 0.0, b, NEURON, True)
            wins = there & ((z > best) | (z != z))
            best, tap = tl.where(wins, z, best), tl.where(wins, each, tap)
    if ROUNDS_NEURON:
        tap = 255 - (key & 255)
        best = (key >> 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    there = (pixel < pixels)[:, None] & is_in[None, :]
    away = (tap // TAPS_X * DILATION_Y * columns + tap % TAPS_X * DILATION_X) * pitch
    won = tl.load(x + corner[:, None] + (away + at[None, :]), there, 0.0)
    passes = passing(_normalized(won, mean, scale, shift, ROUNDS), b, NEURON, True)
    place = pixel.to(tl.int64)[:, None] * channels + at[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), there)
    tl.store(winners + place, won, there)
    tl.store(taps + place, tl.where(passes, tap, NOTHING).to(tl.uint8), there)


@Launched
@triton.jit
def pooled_parts(
    gradient, taps, winners, parts, rows_of, rows, channels, pitch, HAS_CORRECTION: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums of ``g (x - mean)`` and ``g`` over a program's pooled pixels: each gradient goes to one pixel."""
    part, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    products = tl.zeros([HELD, COLUMNS], tl.float32)
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(part, tl.cdiv(rows, HELD), programs):
        row = rows - 1 - tile * HELD - tl.arange(0, HELD)
        there = (row >= 0)[:, None] & is_in[None, :]
        place = row.to(tl.int64)[:, None] * channels + at[None, :]
        flow = tl.load(gradient + row.to(tl.int64)[:, None] * pitch + at[None, :], there, 0.0).to(tl.float32)
        passes = tl.load(taps + place, there, NOTHING) != NOTHING
        value = tl.load(winners + place, there, 0.0).to(tl.float32)
        flow = tl.where(passes, flow, 0.0)
        sums += flow
        products += tl.where(there, flow * ((value - mean[None, :]) - correction[None, :]), 0.0)
    place = parts + part * 2 * channels + at
    tl.store(place, tl.sum(products, 0), is_in)
    tl.store(place + channels, tl.sum(sums, 0), is_in)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def pooled_gradient(
    gradient, taps, x, dx, rows_of, sums, blocks, channels, rows, columns, result_rows, result_columns, pitch,
    pitch_of_x, pixels, epsilon, HAS_CORRECTION: tl.constexpr, HAS_SUMS: tl.constexpr, ROUNDS: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, FIRST_Y: tl.constexpr,
    FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of the source, in blocks of as many pixels as the strides: taps fit the same pixels of each."""
    part, _, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    inverse = inverse_deviation(rows_of[2], at, is_in, epsilon)
    scale = tl.load(rows_of[3] + at, is_in, 0.0) * inverse
    slope, level = mean, mean
    if HAS_SUMS:
        slope = scale * inverse * tl.load(sums[0] + at, is_in, 0.0) / -pixels
        level = scale * tl.load(sums[1] + at, is_in, 0.0) / -pixels - correction * slope
    down, across = tl.cdiv(rows, STRIDE_Y), tl.cdiv(columns, STRIDE_X)
    block = part * HELD + tl.arange(0, HELD)
    j, i, image = block % across, block // across % down, (block // (across * down)).to(tl.int64)
    for phase in tl.static_range(STRIDE_Y * STRIDE_X):
        y, u = i * STRIDE_Y + phase // STRIDE_X, j * STRIDE_X + phase % STRIDE_X
        there = ((block < blocks) & (y < rows) & (u < columns))[:, None] & is_in[None, :]
        total = tl.zeros([HELD, COLUMNS], tl.float32)
        for tap in tl.static_range(TAPS_Y * TAPS_X):
            is_above = (phase // STRIDE_X - FIRST_Y - tap // TAPS_X * DILATION_Y) % STRIDE_Y == 0
            is_beside = (phase % STRIDE_X - FIRST_X - tap % TAPS_X * DILATION_X) % STRIDE_X == 0
            if is_above and is_beside:
                row = i + (phase // STRIDE_X - FIRST_Y - tap // TAPS_X * DILATION_Y) // STRIDE_Y
                column = j + (phase % STRIDE_X - FIRST_X - tap % TAPS_X * DILATION_X) // STRIDE_X
                holds = (row >= 0) & (row < result_rows) & (column >= 0) & (column < result_columns)
                place = ((image * result_rows + row) * result_columns + column)[:, None]
                read = there & holds[:, None]
                chosen = tl.load(taps + place * channels + at[None, :], read, NOTHING)
                flow = tl.load(gradient + place * pitch + at[None, :], read, 0.0).to(tl.float32)
                total += tl.where(chosen == tap, flow, 0.0)
        if ROUNDS:
            total = total.to(tl.float16).to(tl.float32)
        found = total * scale[None, :]
        pixel = ((image * rows + y) * columns + u)[:, None]
        if HAS_SUMS:
            value = tl.load(x + pixel * pitch_of_x + at[None, :], there, 0.0).to(tl.float32)
            found += (value - mean[None, :]) * slope[None, :] + level[None, :]
        tl.store(dx + pixel * channels + at[None, :], found.to(dx.dtype.element_ty), there)
