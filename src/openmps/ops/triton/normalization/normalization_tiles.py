"""What kernels of batch normalization in Triton share: neurons, tiles, and rows of numbers, one a channel."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from openmps.ops.triton.pointwise.neuron import normal

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_ALL = tl.constexpr(tl.PropagateNan.ALL)


# --- neurons ----------------------------------------------------------------------------------------------------------


@triton.jit
def activated(z, a, b, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr):
    """The neuron of z; plain rectifiers have the slope 0."""
    if NEURON == "RELU":
        if IS_PLAIN:
            z = tl.maximum(z, 0.0, _ALL)
        else:
            z = tl.where(z >= 0.0, z, a * z)
    if NEURON == "RELU_N":
        z = tl.minimum(tl.maximum(z, 0.0, _ALL), b, _ALL)
    if NEURON == "GELU":
        z *= normal(z)[0]
    return z


@triton.jit
def passing(z, b, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr):
    """Whether the rectifier lets gradients pass as they are."""
    passes = z >= 0.0
    if IS_PLAIN:
        passes = ~(z < 0.0)  # What is not a number passes, too.
    if NEURON == "RELU_N":
        passes &= ~(z >= b)
    return passes


@triton.jit
def passed(gradient, passes, a, IS_PLAIN: tl.constexpr):
    """What a rectifier lets pass; what does not pass a plain one is 0, whatever it is."""
    if IS_PLAIN:
        gradient = tl.where(passes, gradient, 0.0)
    else:
        gradient = tl.where(passes, gradient, a * gradient)
    return gradient


@triton.jit
def sloped(gradient, z, a, b, NEURON: tl.constexpr, IS_PLAIN: tl.constexpr):
    """The gradient for z of one for the neuron's result."""
    if NEURON == "GELU":
        share, bend = normal(z)
        gradient *= share + bend
    else:
        gradient = passed(gradient, passing(z, b, NEURON, IS_PLAIN), a, IS_PLAIN)
    return gradient


# --- tiles, and rows of numbers, one a channel ------------------------------------------------------------------------


@triton.jit
def place_of(channels, COLUMNS: tl.constexpr):
    """Which of the programs over the same channels this one is, how many there are, and its channels."""
    across = tl.cdiv(channels, COLUMNS)
    at = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    return tl.program_id(0) // across, tl.num_programs(0) // across, at


@triton.jit
def read(image, row, at, there, pitch):
    """Some pixels and channels of an image as float32; 0 where there are none."""
    return tl.load(image + row.to(tl.int64)[:, None] * pitch + at[None, :], there, 0.0).to(tl.float32)


@triton.jit
def flow_of(
    gradient, second, row, at, there, each, pitch, pitch_of_second, IS_SPREAD: tl.constexpr, HAS_SECOND: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
):  # fmt: skip
    """A gradient, or the sum of two; one that is spread is that of the mean of an image's ``each`` pixels."""
    if IS_SPREAD:
        flow = tl.div_rn(read(gradient, row // each, at, there, pitch), each.to(tl.float32))
    else:
        flow = read(gradient, row, at, there, pitch)
    if HAS_SECOND:
        flow += read(second, row, at, there, pitch_of_second)
    if ROUNDS_SUM and (IS_SPREAD or HAS_SECOND):
        flow = flow.to(tl.float16).to(tl.float32)
    return flow


@triton.jit
def inverse_deviation(variance, at, is_in, epsilon):
    """One by the root of variance and epsilon."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.load(variance + at, is_in, 1.0) + epsilon))


@triton.jit
def mean_of(mean, correction, at, is_in, HAS_CORRECTION: tl.constexpr):
    """Mean and what rounding took from it."""
    first = tl.load(mean + at, is_in, 0.0)
    second = first * 0.0
    if HAS_CORRECTION:
        second = tl.load(correction + at, is_in, 0.0)
    return first, second


@triton.jit
def affine_of(rows, at, is_in, epsilon, HAS_CORRECTION: tl.constexpr):
    """What a normalization subtracts, multiplies by and adds; rows are mean, correction, variance, gamma and beta."""
    mean, correction = mean_of(rows[0], rows[1], at, is_in, HAS_CORRECTION)
    scale = tl.load(rows[3] + at, is_in, 0.0) * inverse_deviation(rows[2], at, is_in, epsilon)
    return mean, scale, tl.load(rows[4] + at, is_in, 0.0) - correction * scale


@triton.jit
def added_up(parts, place, is_in, count, numbers, HELD: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of some of so many numbers over all programs, in their order."""
    total = tl.zeros([HELD, COLUMNS], tl.float32)
    for first in range(0, count, HELD):
        part = first + tl.arange(0, HELD)
        at = parts + part.to(tl.int64)[:, None] * numbers + place[None, :]
        total += tl.load(at, (part < count)[:, None] & is_in[None, :], 0.0)
    return tl.sum(total, 0)


@triton.jit
def octets(masks, row, rows, channels, HELD: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the bytes are that hold a bit for each number of a tile, and which of them are there."""
    wide = tl.cdiv(channels, 8)
    at = tl.program_id(0) % tl.cdiv(channels, COLUMNS) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
    return masks + row.to(tl.int64)[:, None] * wide + at[None, :], ((row >= 0) & (row < rows))[:, None] & (at < wide)[
        None, :
    ]
