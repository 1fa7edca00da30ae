"""The kernels of batch normalization's passes in Triton; `batch_normalization` beside it launches them."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.normalization.normalization_tiles import (
    activated,
    added_up,
    affine_of,
    flow_of,
    inverse_deviation,
    mean_of,
    octets,
    passed,
    passing,
    place_of,
    read,
    sloped,
)

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

# --- statistics -------------------------------------------------------------------------------------------------------


@triton.jit
def _middle(a, b, c):
    """The one of three numbers that lies between the others."""
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@Launched
@triton.jit
def moments_parts(
    x, parts, rows, channels, pitch, HELD: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A number near those of a program's pixels, their mean less that, and their squared differences from the mean.

    What is near is the middle one of three pixels, lest an outlier costs the digits of all others (Welford's scheme).
    Sums begin with the last pixels, here and below: those that were just written are in the cache.
    """
    part, programs, at = place_of(channels, COLUMNS)
    is_in, lane = at < channels, tl.arange(0, HELD)
    begin = rows - 1 - part.to(tl.int64) * HELD
    near = tl.load(x + begin * pitch + at, is_in, 0.0).to(tl.float32)
    third = tl.load(x + tl.maximum(begin - HELD + 1, 0) * pitch + at, is_in, 0.0).to(tl.float32)
    near = _middle(near, tl.load(x + tl.maximum(begin - HELD // 2, 0) * pitch + at, is_in, 0.0).to(tl.float32), third)
    mean = tl.zeros([HELD, COLUMNS], tl.float32)
    squares = tl.zeros([HELD, COLUMNS], tl.float32)
    tiles = tl.cdiv(rows, HELD)
    seen = 0.0
    for tile in tl.range(part, tiles, programs, num_stages=STAGES):
        row = tile * HELD + lane
        there = (row < rows)[:, None] & is_in[None, :]
        value = read(x, rows - 1 - row, at, there, pitch) - near[None, :]
        seen += 1.0
        step = tl.where(there, value - mean, 0.0)
        mean += step * (1.0 / seen)
        squares += step * (value - mean)
    last = (part + (tl.cdiv(tiles - part, programs) - 1) * programs) * HELD + lane
    weight = tl.where(last < rows, seen, seen - 1.0)[:, None]
    pixels = tl.sum(tl.where(last < rows, seen, seen - 1.0), 0)
    whole = tl.sum(mean * weight, 0) / pixels
    # Once more, of the small differences that are left: the first sum may have lost digits.
    whole += tl.sum((mean - whole[None, :]) * weight, 0) / pixels
    away = mean - whole[None, :]
    place = parts + part * 3 * channels + at
    tl.store(place, near, is_in)
    tl.store(place + channels, whole, is_in)
    tl.store(place + 2 * channels, tl.sum(squares + weight * away * away, 0), is_in)


@triton.jit
def _part(parts, first, base, count, rows, channels, each, at, is_in, HELD: tl.constexpr):
    """Of some programs: their means less ``base``, their squared differences, their pixels, and which there are."""
    part, tiles = first + tl.arange(0, HELD), tl.cdiv(rows, each)
    pixels = tl.cdiv(tiles - part, count) * each - tl.where((tiles - 1) % count == part, tiles * each - rows, 0)
    there = (part < count)[:, None] & is_in[None, :]
    place = parts + (part * 3)[:, None] * channels + at[None, :]
    mean = tl.load(place, there, 0.0) - base[None, :] + tl.load(place + channels, there, 0.0)
    return mean, tl.load(place + 2 * channels, there, 0.0), pixels.to(tl.float32)[:, None], there


@Launched
@triton.jit(do_not_specialize=["count"])
def moments_end(
    parts, means, corrections, variances, count, rows, channels, each, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean, correction and variance of some channels from the parts of all programs (Chan, Golub and LeVeque)."""
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_in = at < channels
    base = _middle(
        tl.load(parts + at, is_in, 0.0),
        tl.load(parts + count // 2 * 3 * channels + at, is_in, 0.0),
        tl.load(parts + (count - 1) * 3 * channels + at, is_in, 0.0),
    )
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for first in range(0, count, HELD):
        mean, _, pixels, there = _part(parts, first, base, count, rows, channels, each, at, is_in, HELD)
        total += tl.where(there, mean * pixels, 0.0)
    whole = tl.sum(total, 0) / rows
    squares = tl.zeros([HELD, COLUMNS], tl.float32)
    for first in range(0, count, HELD):
        mean, found, pixels, there = _part(parts, first, base, count, rows, channels, each, at, is_in, HELD)
        away = mean - whole[None, :]
        squares += tl.where(there, found + pixels * away * away, 0.0)
    # What the sum rounds off, exactly (Knuth's two-sum).
    rounded = base + whole
    kept = rounded - base
    tl.store(means + at, rounded, is_in)
    tl.store(corrections + at, (base - (rounded - kept)) + (whole - kept), is_in)
    tl.store(variances + at, tl.sum(squares, 0) / rows, is_in)


# --- normalization ----------------------------------------------------------------------------------------------------


@Launched
@triton.jit
def normalized(
    x, other, y, masks, rows_of, others_rows, rows, channels, pitch, pitch_of_other, epsilon, others_epsilon, a, b,
    HAS_CORRECTION: tl.constexpr, HAS_OTHER: tl.constexpr, OTHER_IS_NORMALIZED: tl.constexpr,
    OTHER_HAS_CORRECTION: tl.constexpr, HAS_MASKS: tl.constexpr, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr,
    ROUNDS: tl.constexpr, ROUNDS_OTHER: tl.constexpr, ROUNDS_SUM: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The normalization of tiles, with another image, normalized or not, added and a neuron behind."""
    first, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, scale, shift = affine_of(rows_of, at, is_in, epsilon, HAS_CORRECTION)
    others = mean, scale, shift
    if OTHER_IS_NORMALIZED:
        others = affine_of(others_rows, at, is_in, others_epsilon, OTHER_HAS_CORRECTION)
    for tile in tl.range(first, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = tile * HELD + tl.arange(0, HELD)
        there = (row < rows)[:, None] & is_in[None, :]
        value = read(x, row, at, there, pitch)
        z = (value - mean[None, :]) * scale[None, :] + shift[None, :]
        if ROUNDS:
            z = z.to(tl.float16).to(tl.float32)
        if HAS_OTHER:
            added = read(other, row, at, there, pitch_of_other)
            if OTHER_IS_NORMALIZED:
                added = (added - others[0][None, :]) * others[1][None, :] + others[2][None, :]
                if ROUNDS_OTHER:
                    added = added.to(tl.float16).to(tl.float32)
            z += added
            if ROUNDS_SUM:
                z = z.to(tl.float16).to(tl.float32)
        if HAS_MASKS:
            bits = tl.reshape(passing(z, b, NEURON, IS_PLAIN).to(tl.int32), [HELD, COLUMNS // 8, 8])
            places, known = octets(masks, row, rows, channels, HELD, COLUMNS)
            tl.store(places, tl.sum(bits << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8), known)
        z = activated(z, a, b, NEURON, IS_PLAIN)
        tl.store(y + row.to(tl.int64)[:, None] * channels + at[None, :], z.to(y.dtype.element_ty), there)


# --- gradients --------------------------------------------------------------------------------------------------------


@triton.jit
def _flow(
    gradient, value, row, at, there, pitch, affine, a, b, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr,
    ROUNDS: tl.constexpr, ROUNDS_FLOW: tl.constexpr,
):  # fmt: skip
    """The gradient of the normalization's result: what the neuron lets pass, whose source is computed again."""
    flow = read(gradient, row, at, there, pitch)
    if NEURON != "NONE":
        z = (value - affine[0][None, :]) * affine[1][None, :] + affine[2][None, :]
        if ROUNDS:
            z = z.to(tl.float16).to(tl.float32)
        flow = sloped(flow, z, a, b, NEURON, IS_PLAIN)
        if ROUNDS_FLOW:
            flow = flow.to(tl.float16).to(tl.float32)
    return flow


@Launched
@triton.jit
def gradient_parts(
    gradient, x, parts, rows_of, rows, channels, pitch, pitch_of_x, epsilon, a, b, HAS_CORRECTION: tl.constexpr,
    NEURON: tl.constexpr, IS_PLAIN: tl.constexpr, ROUNDS: tl.constexpr, ROUNDS_FLOW: tl.constexpr, HELD: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The sums of ``g (x - mean)`` and ``g`` over a program's pixels."""
    part, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    affine = mean, mean, mean
    if NEURON != "NONE":
        affine = affine_of(rows_of, at, is_in, epsilon, HAS_CORRECTION)
    products = tl.zeros([HELD, COLUMNS], tl.float32)
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in tl.range(part, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = rows - 1 - tile * HELD - tl.arange(0, HELD)
        there = (row >= 0)[:, None] & is_in[None, :]
        value = read(x, row, at, there, pitch_of_x)
        flow = _flow(gradient, value, row, at, there, pitch, affine, a, b, NEURON, IS_PLAIN, ROUNDS, ROUNDS_FLOW)
        sums += flow
        products += tl.where(there, flow * ((value - mean[None, :]) - correction[None, :]), 0.0)
    place = parts + part * 2 * channels + at
    tl.store(place, tl.sum(products, 0), is_in)
    tl.store(place + channels, tl.sum(sums, 0), is_in)


@Launched
@triton.jit(do_not_specialize=["each"])
def masked_parts(
    gradient, second, x, other, masks, flows, parts, rows_of, others_rows, rows, channels, each, pitch,
    pitch_of_second, pitch_of_x, pitch_of_other, a, HAS_CORRECTION: tl.constexpr, OTHER_HAS_CORRECTION: tl.constexpr,
    HAS_SECOND: tl.constexpr, HAS_OTHER: tl.constexpr, IS_SPREAD: tl.constexpr, IS_PLAIN: tl.constexpr,
    ROUNDS_SUM: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What a neuron lets pass of a gradient, or of the sum of two, by its bits; and its sums as `gradient_parts`.

    A gradient that is spread is that of the mean of an image's ``each`` pixels. There may be another image, for which
    ``g (x - mean)`` is summed, too.
    """
    part, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    others_mean, others_correction = mean, correction
    if HAS_OTHER:
        others_mean, others_correction = mean_of(others_rows[0], others_rows[1], at, is_in, OTHER_HAS_CORRECTION)
    products = tl.zeros([HELD, COLUMNS], tl.float32)
    others_products = tl.zeros([HELD, COLUMNS], tl.float32)
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in tl.range(part, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = rows - 1 - tile * HELD - tl.arange(0, HELD)
        there = (row >= 0)[:, None] & is_in[None, :]
        flow = flow_of(
            gradient, second, row, at, there, each, pitch, pitch_of_second, IS_SPREAD, HAS_SECOND, ROUNDS_SUM
        )
        places, known = octets(masks, row, rows, channels, HELD, COLUMNS)
        bits = tl.load(places, known, 0).to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]
        flow = passed(flow, tl.reshape(bits & 1, [HELD, COLUMNS]) != 0, a, IS_PLAIN).to(flows.dtype.element_ty)
        tl.store(flows + row.to(tl.int64)[:, None] * channels + at[None, :], flow, there)
        flow = flow.to(tl.float32)
        sums += flow
        value = read(x, row, at, there, pitch_of_x)
        products += tl.where(there, flow * ((value - mean[None, :]) - correction[None, :]), 0.0)
        if HAS_OTHER:
            value = read(other, row, at, there, pitch_of_other)
            away = (value - others_mean[None, :]) - others_correction[None, :]
            others_products += tl.where(there, flow * away, 0.0)
    place = parts + part * (3 if HAS_OTHER else 2) * channels + at
    tl.store(place, tl.sum(products, 0), is_in)
    tl.store(place + channels, tl.sum(sums, 0), is_in)
    if HAS_OTHER:
        tl.store(place + 2 * channels, tl.sum(others_products, 0), is_in)


@Launched
@triton.jit(do_not_specialize=["count", "each", "products"])
def gradient_end(
    parts, variance, before, gammas, betas, count, channels, epsilon, each, products, JOINS: tl.constexpr,
    HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of gamma and beta of some channels, added to those before.

    Each part has so many rows; ``products`` is the one for gamma, the one for beta the second.
    """
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_in = at < channels
    gamma = added_up(parts, products * channels + at, is_in, count, each * channels, HELD, COLUMNS)
    gamma *= inverse_deviation(variance, at, is_in, epsilon)
    beta = added_up(parts, channels + at, is_in, count, each * channels, HELD, COLUMNS)
    if JOINS:
        gamma += tl.load(before[0] + at, is_in, 0.0)
        beta += tl.load(before[1] + at, is_in, 0.0)
    tl.store(gammas + at, gamma, is_in)
    tl.store(betas + at, beta, is_in)


@triton.jit
def _terms(rows_of, sums, at, is_in, epsilon, pixels, HAS_CORRECTION: tl.constexpr):
    """The mean, and what the gradient, the distance from the mean and 1 are multiplied by; rows end with gamma."""
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    inverse = inverse_deviation(rows_of[2], at, is_in, epsilon)
    scale = tl.load(rows_of[3] + at, is_in, 0.0) * inverse
    slope = scale * inverse * tl.load(sums[0] + at, is_in, 0.0) / -pixels
    return mean, scale, slope, scale * tl.load(sums[1] + at, is_in, 0.0) / -pixels - correction * slope


@Launched
@triton.jit(do_not_specialize=["pixels"])
def data_gradient(
    gradient, x, dx, rows_of, sums, rows, channels, pitch, pitch_of_x, pixels, epsilon, a, b,
    HAS_CORRECTION: tl.constexpr, HAS_SUMS: tl.constexpr, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr,
    ROUNDS: tl.constexpr, ROUNDS_FLOW: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of the images, tiles of it."""
    first, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, correction = mean_of(rows_of[0], rows_of[1], at, is_in, HAS_CORRECTION)
    inverse = inverse_deviation(rows_of[2], at, is_in, epsilon)
    scale = tl.load(rows_of[3] + at, is_in, 0.0) * inverse
    affine = mean, mean, mean
    if NEURON != "NONE":
        affine = mean, scale, tl.load(rows_of[4] + at, is_in, 0.0) - correction * scale
    slope, level = mean, mean
    if HAS_SUMS:
        slope = scale * inverse * tl.load(sums[0] + at, is_in, 0.0) / -pixels
        level = scale * tl.load(sums[1] + at, is_in, 0.0) / -pixels - correction * slope
    for tile in tl.range(first, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = tile * HELD + tl.arange(0, HELD)
        there = (row < rows)[:, None] & is_in[None, :]
        value = tl.zeros([HELD, COLUMNS], tl.float32)
        if HAS_SUMS or NEURON != "NONE":
            value = read(x, row, at, there, pitch_of_x)
        flow = _flow(gradient, value, row, at, there, pitch, affine, a, b, NEURON, IS_PLAIN, ROUNDS, ROUNDS_FLOW)
        found = flow * scale[None, :]
        if HAS_SUMS:
            found += (value - mean[None, :]) * slope[None, :] + level[None, :]
        tl.store(dx + row.to(tl.int64)[:, None] * channels + at[None, :], found.to(dx.dtype.element_ty), there)


@Launched
@triton.jit(do_not_specialize=["pixels", "others_pixels"])
def data_gradients(
    gradient, x, other, dx, others_dx, rows_of, others_rows, sums, others_sums, rows, channels, pitch, pitch_of_x,
    pitch_of_other, pixels, others_pixels, epsilon, others_epsilon, HAS_CORRECTION: tl.constexpr,
    OTHER_HAS_CORRECTION: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of two images that were normalized and added, tiles of them."""
    first, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    mean, scale, slope, level = _terms(rows_of, sums, at, is_in, epsilon, pixels, HAS_CORRECTION)
    others_mean, others_scale, others_slope, others_level = _terms(
        others_rows, others_sums, at, is_in, others_epsilon, others_pixels, OTHER_HAS_CORRECTION
    )
    for tile in range(first, tl.cdiv(rows, HELD), programs):
        row = tile * HELD + tl.arange(0, HELD)
        there = (row < rows)[:, None] & is_in[None, :]
        flow, place = read(gradient, row, at, there, pitch), row.to(tl.int64)[:, None] * channels + at[None, :]
        found = flow * scale[None, :] + level[None, :]
        found += (read(x, row, at, there, pitch_of_x) - mean[None, :]) * slope[None, :]
        tl.store(dx + place, found.to(dx.dtype.element_ty), there)
        found = flow * others_scale[None, :] + others_level[None, :]
        found += (read(other, row, at, there, pitch_of_other) - others_mean[None, :]) * others_slope[None, :]
        tl.store(others_dx + place, found.to(others_dx.dtype.element_ty), there)
