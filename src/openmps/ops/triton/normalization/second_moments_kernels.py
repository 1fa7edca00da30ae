"""The kernels of block ends by second moments in Triton; `ops.triton.normalization.second_moments` launches them."""
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
    flow_of,
    inverse_deviation,
    octets,
    passed,
    passing,
    place_of,
    read,
)

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_ALL = tl.constexpr(tl.PropagateNan.ALL)

# --- moments of the source --------------------------------------------------------------------------------------------


@triton.jit
def _factor(x, row, at, rows, channels, pitch):
    """Some pixels and channels of an image as they are stored; 0 where there are none."""
    there = (row < rows)[:, None] & (at < channels)[None, :]
    return tl.load(x + row.to(tl.int64)[:, None] * pitch + at[None, :], there, 0.0)


@Launched
@triton.jit
def moments_parts(
    x, parts, rows, channels, pitch, PRECISION: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of products of two blocks of channels over a program's pixels, and behind all of them those of channels.

    Blocks below the diagonal are those above it; nobody makes them.
    """
    across = tl.cdiv(channels, COLUMNS)
    pairs = across * (across + 1) // 2
    pair, part, programs = tl.program_id(0) % pairs, tl.program_id(0) // pairs, tl.num_programs(0) // pairs
    last = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) * 0.5).to(tl.int32)
    first = pair - last * (last + 1) // 2
    left, right = first * COLUMNS + tl.arange(0, COLUMNS), last * COLUMNS + tl.arange(0, COLUMNS)
    is_left, is_right = left < channels, right < channels
    products = tl.zeros([COLUMNS, COLUMNS], tl.float32)
    begin = parts + part.to(tl.int64) * (channels + 1) * channels
    lane = tl.arange(0, HELD)
    if first == last:
        sums = tl.zeros([COLUMNS, COLUMNS], tl.float32)
        ones = tl.full([COLUMNS, HELD], 1.0, x.dtype.element_ty)
        for tile in tl.range(part, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
            other = _factor(x, tile * HELD + lane, right, rows, channels, pitch)
            products = tl.dot(tl.trans(other), other, products, input_precision=PRECISION)
            sums = tl.dot(ones, other, sums, input_precision=PRECISION)
        place = begin + channels * channels + right[None, :] + tl.arange(0, COLUMNS)[:, None] * 0
        tl.store(place, sums, (tl.arange(0, COLUMNS) == 0)[:, None] & is_right[None, :])
    else:
        for tile in tl.range(part, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
            one = _factor(x, tile * HELD + lane, left, rows, channels, pitch)
            other = _factor(x, tile * HELD + lane, right, rows, channels, pitch)
            products = tl.dot(tl.trans(one), other, products, input_precision=PRECISION)
    tl.store(begin + left[:, None] * channels + right[None, :], products, is_left[:, None] & is_right[None, :])


@Launched
@triton.jit(do_not_specialize=["count", "rows"])
def moments_end(
    parts, means, covariance, count, rows, channels, BLOCK: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of a row of the covariance, and their means, from the parts of all programs."""
    across = tl.cdiv(channels, COLUMNS)
    row = tl.program_id(0) // across
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    is_in, numbers = column < channels, (channels + 1) * channels
    is_above = row // BLOCK <= column // BLOCK
    place = tl.where(is_above, row * channels + column, column * channels + row)
    product = added_up(parts, place, is_in, count, numbers, HELD, COLUMNS) / rows
    mean = added_up(parts, channels * channels + column, is_in, count, numbers, HELD, COLUMNS) / rows
    same = channels * channels + row + tl.arange(0, COLUMNS) * 0
    its = tl.sum(
        tl.where(tl.arange(0, COLUMNS) == 0, added_up(parts, same, is_in, count, numbers, HELD, COLUMNS), 0.0), 0
    )
    tl.store(covariance + row * channels + column, product - its / rows * mean, is_in)
    if row == 0:
        tl.store(means + column, mean, is_in)


# --- weights that normalize -------------------------------------------------------------------------------------------


@Launched
@triton.jit
def products(
    weights, covariance, means, cross, parts, outputs, inputs, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    TERMS: tl.constexpr,
):  # fmt: skip
    """A tile of ``W C``, and its part of the results' means and variances, ``W m`` and ``sum (W C) W``."""
    q = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    is_q, is_k = q < outputs, k < inputs
    total = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for first in range(0, inputs, TERMS):
        j = first + tl.arange(0, TERMS)
        w = tl.load(weights + q[:, None] * inputs + j[None, :], is_q[:, None] & (j < inputs)[None, :], 0.0)
        c = tl.load(covariance + j[:, None] * inputs + k[None, :], (j < inputs)[:, None] & is_k[None, :], 0.0)
        total = tl.dot(w.to(tl.float32), c, total, input_precision="tf32x3")
    here = is_q[:, None] & is_k[None, :]
    w = tl.load(weights + q[:, None] * inputs + k[None, :], here, 0.0).to(tl.float32)
    tl.store(cross + q[:, None] * inputs + k[None, :], total, here)
    mean = tl.load(means + k, is_k, 0.0)
    place = parts + tl.program_id(1) * 2 * outputs + q
    tl.store(place, tl.sum(w * mean[None, :], 1), is_q)
    tl.store(place + outputs, tl.sum(total * w, 1), is_q)


@Launched
@triton.jit(do_not_specialize=["count"])
def folded(
    weights, biases, gamma, beta, parts, source_means, means, variances, new_weights, shift, count, outputs, inputs,
    epsilon, limit, HAS_BIASES: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Means and variances of some results, and the weights and shifts that normalize them.

    Finite weights stay within ``limit``, the largest number of their type. Shifts are those of the weights as they are
    rounded, so that the mean of what they give is beta all the same.
    """
    q = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_q = q < outputs
    mean, variance = tl.zeros([OUTPUTS], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    for part in range(0, count):
        mean += tl.load(parts + part * 2 * outputs + q, is_q, 0.0)
        variance += tl.load(parts + (part * 2 + 1) * outputs + q, is_q, 0.0)
    variance = tl.maximum(variance, 0.0)
    scale = tl.load(gamma + q, is_q, 0.0) * tl.div_rn(1.0, tl.sqrt_rn(variance + epsilon))
    if HAS_BIASES:
        mean += tl.load(biases + q, is_q, 0.0)
    tl.store(means + q, mean, is_q)
    tl.store(variances + q, variance, is_q)
    level = tl.load(beta + q, is_q, 0.0)
    for first in range(0, inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        place, here = q[:, None] * inputs + k[None, :], is_q[:, None] & (k < inputs)[None, :]
        w = tl.load(weights + place, here, 0.0).to(tl.float32) * scale[:, None]
        w = tl.where(tl.abs(w) < float("inf"), tl.minimum(tl.maximum(w, -limit, _ALL), limit, _ALL), w)
        w = w.to(new_weights.dtype.element_ty)
        tl.store(new_weights + place, w, here)
        level -= tl.sum(w.to(tl.float32) * tl.load(source_means + k, k < inputs, 0.0)[None, :], 1)
    tl.store(shift + q, level, is_q)


# --- the block's end --------------------------------------------------------------------------------------------------


@Launched
@triton.jit
def block_end(
    x, weights, shift, other, y, masks, rows, outputs, inputs, pitch, pitch_of_other, a, b,
    NEURON: tl.constexpr, IS_PLAIN: tl.constexpr, PRECISION: tl.constexpr,
    HELD: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The neuron of a 1 x 1 convolution, what is added to it and another image: some pixels times some channels."""
    across = tl.cdiv(outputs, COLUMNS)
    row = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    q = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_q, k = row < rows, q < outputs, tl.arange(0, TERMS)
    there = is_row[:, None] & is_q[None, :]
    added = tl.load(other + row.to(tl.int64)[:, None] * pitch_of_other + q[None, :], there, 0.0)
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for first in tl.range(0, inputs, TERMS, num_stages=STAGES):
        c = first + k
        e = tl.load(x + row.to(tl.int64)[:, None] * pitch + c[None, :], is_row[:, None] & (c < inputs)[None, :], 0.0)
        w = tl.load(weights + q[None, :] * inputs + c[:, None], is_q[None, :] & (c < inputs)[:, None], 0.0)
        total = tl.dot(e, w, total, input_precision=PRECISION)
    z = total + tl.load(shift + q, is_q, 0.0)[None, :] + added
    bits = tl.reshape(passing(z, b, NEURON, IS_PLAIN).to(tl.int32), [HELD, COLUMNS // 8, 8])
    places, known = octets(masks, row, rows, outputs, HELD, COLUMNS)
    tl.store(places, tl.sum(bits << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8), known)
    z = activated(z, a, b, NEURON, IS_PLAIN)
    tl.store(y + row.to(tl.int64)[:, None] * outputs + q[None, :], z.to(y.dtype.element_ty), there)


@Launched
@triton.jit
def narrow_end(
    x, weights, shift, other, others_weights, others_shift, y, masks, rows, outputs, inputs, others_inputs, pitch,
    pitch_of_other, a, b, IS_PROJECTED: tl.constexpr, NEURON: tl.constexpr,
    IS_PLAIN: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`block_end` of few terms: programs keep their weights and go from pixels to pixels.

    What is added may be another such product.
    """
    first, programs, q = place_of(outputs, COLUMNS)
    c, is_q = tl.arange(0, TERMS), q < outputs
    w = tl.load(weights + q[None, :] * inputs + c[:, None], is_q[None, :] & (c < inputs)[:, None], 0.0)
    level = tl.load(shift + q, is_q, 0.0)
    others_w = w
    if IS_PROJECTED:
        is_w = is_q[None, :] & (c < others_inputs)[:, None]
        others_w = tl.load(others_weights + q[None, :] * others_inputs + c[:, None], is_w, 0.0)
        level += tl.load(others_shift + q, is_q, 0.0)
    for tile in tl.range(first, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = tile * HELD + tl.arange(0, HELD)
        there = (row < rows)[:, None] & is_q[None, :]
        z = tl.dot(_factor(x, row, c, rows, inputs, pitch), w)
        if IS_PROJECTED:
            z = tl.dot(_factor(other, row, c, rows, others_inputs, pitch_of_other), others_w, z) + level[None, :]
        else:
            added = tl.load(other + row.to(tl.int64)[:, None] * pitch_of_other + q[None, :], there, 0.0)
            z += level[None, :] + added
        bits = tl.reshape(passing(z, b, NEURON, IS_PLAIN).to(tl.int32), [HELD, COLUMNS // 8, 8])
        places, known = octets(masks, row, rows, outputs, HELD, COLUMNS)
        tl.store(places, tl.sum(bits << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8), known)
        z = activated(z, a, b, NEURON, IS_PLAIN)
        tl.store(y + row.to(tl.int64)[:, None] * outputs + q[None, :], z.to(y.dtype.element_ty), there)


# --- gradients --------------------------------------------------------------------------------------------------------


@Launched
@triton.jit(do_not_specialize=["each"])
def passed_parts(
    gradient, second, masks, flows, parts, rows, channels, each, pitch, pitch_of_second, a, HAS_BITS: tl.constexpr,
    HAS_SECOND: tl.constexpr, IS_SPREAD: tl.constexpr, IS_PLAIN: tl.constexpr, ROUNDS_SUM: tl.constexpr,
    HELD: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What a neuron lets pass of a gradient, or of the sum of two, and its sums over a program's pixels.

    It is known by bits, or by a plain rectifier's result. A gradient that is spread is that of the mean of an image's
    ``each`` pixels.
    """
    part, programs, at = place_of(channels, COLUMNS)
    is_in = at < channels
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in tl.range(part, tl.cdiv(rows, HELD), programs, num_stages=STAGES):
        row = rows - 1 - tile * HELD - tl.arange(0, HELD)
        there = (row >= 0)[:, None] & is_in[None, :]
        flow = flow_of(
            gradient, second, row, at, there, each, pitch, pitch_of_second, IS_SPREAD, HAS_SECOND, ROUNDS_SUM
        )
        if HAS_BITS:
            places, known = octets(masks, row, rows, channels, HELD, COLUMNS)
            bits = tl.load(places, known, 0).to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]
            passes = tl.reshape(bits & 1, [HELD, COLUMNS]) != 0
        else:
            passes = ~(read(masks, row, at, there, channels) <= 0.0)
        flow = passed(flow, passes, a, IS_PLAIN).to(flows.dtype.element_ty)
        tl.store(flows + row.to(tl.int64)[:, None] * channels + at[None, :], flow, there)
        sums += tl.where(there, flow.to(tl.float32), 0.0)
    tl.store(parts + part * channels + at, tl.sum(sums, 0), is_in)


@Launched
@triton.jit(do_not_specialize=["count", "pixels"])
def parameter_gradients(
    joint, sums, count, weights, cross, means, variances, gamma, gammas, betas, for_weights, factors, slopes, levels,
    outputs, inputs, pixels, epsilon, HELD: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Gradients of gamma, beta and weights of some results, and what the source's gradient is made with.

    ``joint`` are the sums of products of gradient and source, ``sums`` those of the gradient, in parts.
    """
    q = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_q = q < outputs
    beta = added_up(sums, q, is_q, count, outputs, HELD, OUTPUTS)
    found = tl.zeros([OUTPUTS], tl.float32)
    for first in range(0, inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        place, here = q[:, None] * inputs + k[None, :], is_q[:, None] & (k < inputs)[None, :]
        centred = tl.load(joint + place, here, 0.0) - beta[:, None] * tl.load(means + k, k < inputs, 0.0)[None, :]
        found += tl.sum(centred * tl.load(weights + place, here, 0.0).to(tl.float32), 1)
    inverse = inverse_deviation(variances, q, is_q, epsilon)
    scale = tl.load(gamma + q, is_q, 0.0) * inverse
    found *= inverse
    slope = scale * inverse * found
    tl.store(gammas + q, found, is_q)
    tl.store(betas + q, beta, is_q)
    tl.store(levels + q, scale * beta / -pixels, is_q)
    for first in range(0, inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        place, here = q[:, None] * inputs + k[None, :], is_q[:, None] & (k < inputs)[None, :]
        centred = tl.load(joint + place, here, 0.0) - beta[:, None] * tl.load(means + k, k < inputs, 0.0)[None, :]
        w = tl.load(weights + place, here, 0.0).to(tl.float32)
        its = scale[:, None] * centred - slope[:, None] * tl.load(cross + place, here, 0.0)
        tl.store(for_weights + place, its, here)
        tl.store(factors + place, (w * scale[:, None]).to(factors.dtype.element_ty), here)
        tl.store(slopes + place, w * (slope / -pixels)[:, None], here)


@Launched
@triton.jit
def back_parts(
    weights, slopes, levels, parts, outputs, inputs, each, PRECISION: tl.constexpr, COLUMNS: tl.constexpr,
    TERMS: tl.constexpr,
):  # fmt: skip
    """A tile of ``W^T slopes``, and behind all of them ``W^T levels``, summed over a program's terms."""
    k, j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_k, is_j, part = k < inputs, j < inputs, tl.program_id(2)
    total = tl.zeros([COLUMNS, COLUMNS], tl.float32)
    level = tl.zeros([TERMS, COLUMNS], tl.float32)
    for first in range(part * each, tl.minimum(outputs, (part + 1) * each), TERMS):
        q = first + tl.arange(0, TERMS)
        is_q = q < outputs
        w = tl.load(weights + q[:, None] * inputs + k[None, :], is_q[:, None] & is_k[None, :], 0.0).to(tl.float32)
        s = tl.load(slopes + q[:, None] * inputs + j[None, :], is_q[:, None] & is_j[None, :], 0.0)
        total = tl.dot(tl.trans(w), s, total, input_precision=PRECISION)
        level += w * tl.load(levels + q, is_q, 0.0)[:, None]
    begin = parts + part * (inputs + 1) * inputs
    tl.store(begin + k[:, None] * inputs + j[None, :], total, is_k[:, None] & is_j[None, :])
    if tl.program_id(1) == 0:
        tl.store(begin + inputs * inputs + k, tl.sum(level, 0), is_k)


@Launched
@triton.jit
def back_end(
    parts, means, back, scales, levels, count, inputs, SCALES: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Some rows of a symmetric matrix from all parts, and what is added to each pixel besides.

    If asked for, rows are divided by powers of 2 of their own, so that float16 holds their numbers.
    """
    k, j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, TERMS)
    there = (k < inputs)[:, None] & (j < inputs)[None, :]
    numbers = tl.zeros([COLUMNS, TERMS], tl.float32)
    level = tl.zeros([COLUMNS], tl.float32)
    for part in range(0, count):
        begin = parts + part * (inputs + 1) * inputs
        numbers += tl.load(begin + k[:, None] * inputs + j[None, :], there, 0.0)
        level += tl.load(begin + inputs * inputs + k, k < inputs, 0.0)
    mean = tl.load(means + j, j < inputs, 0.0)
    tl.store(levels + k, level - tl.sum(numbers * mean[None, :], 1), k < inputs)
    scale = level * 0.0 + 1.0
    if SCALES:
        # The bits of a number without those behind its point are the power of 2 below it.
        power = (tl.max(tl.abs(numbers), 1).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        scale = tl.where((power > 0.0) & (power < float("inf")), power, 1.0)
    tl.store(back + k[:, None] * inputs + j[None, :], (numbers / scale[:, None]).to(back.dtype.element_ty), there)
    tl.store(scales + k, scale, k < inputs)


@Launched
@triton.jit
def source_gradient(
    flow, x, factors, back, scales, levels, dx, rows, outputs, inputs, pitch_of_flow, pitch, PRECISION: tl.constexpr,
    HELD: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``flow factors + x back scales + levels``: some pixels times some channels of the source."""
    across = tl.cdiv(inputs, COLUMNS)
    row = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    k = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_k, lane = row < rows, k < inputs, tl.arange(0, TERMS)
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for first in tl.range(0, inputs, TERMS, num_stages=STAGES):
        j = first + lane
        # The matrix is symmetric but for its scales: its rows serve as columns.
        b = tl.load(back + k[None, :] * inputs + j[:, None], is_k[None, :] & (j < inputs)[:, None], 0.0)
        total = tl.dot(_factor(x, row, j, rows, inputs, pitch), b, total, input_precision=PRECISION)
    total = total * tl.load(scales + k, is_k, 0.0)[None, :] + tl.load(levels + k, is_k, 0.0)[None, :]
    for first in tl.range(0, outputs, TERMS, num_stages=STAGES):
        q = first + lane
        w = tl.load(factors + q[:, None] * inputs + k[None, :], (q < outputs)[:, None] & is_k[None, :], 0.0)
        total = tl.dot(_factor(flow, row, q, rows, outputs, pitch_of_flow), w, total, input_precision=PRECISION)
    place = dx + row.to(tl.int64)[:, None] * inputs + k[None, :]
    tl.store(place, total.to(dx.dtype.element_ty), is_row[:, None] & is_k[None, :])
