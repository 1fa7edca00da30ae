"""`ops.normalization.second_moments` on a GPU: a block's end of which neither the sums nor a gradient is stored.

Sums over pixels are made in parts, which one launch adds in a fixed order: repeats are equal bit for bit. Large
products are the libraries', where they are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.convolution.convolution import convolution
from openmps.ops.geometry import Axis, Window, pitch_of
from openmps.ops.matrix.products import wide_product
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.normalization import second_moments_kernels as kernels
from openmps.ops.triton.normalization.batch_normalization import Activation, Grid, like

triton: Any = import_module("triton")
aten: Any = torch.ops.aten


class Tiles(NamedTuple):
    """How a product is divided: pixels, channels and terms of a tile; warps, stages, and programs where these go on."""

    pixels: int
    channels: int
    terms: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 264


FEW = 64
"""Terms that a program of a block's end keeps its weights of."""
_EIGHT = 8
"""Channels that cuDNN's fused kernels take at a time."""
_MANY = 256
"""Channels of a source above which its gradient takes wider tiles."""
_MOMENTS = {True: Tiles(128, 64), False: Tiles(64, 64, stages=2)}
_NARROW, _PROJECTED = Tiles(32, 256), Tiles(128, 128, warps=8, programs=132)
_END = Tiles(64, 128, 32)
_PRODUCTS = Tiles(16, 64)
_GRADIENT = {True: Tiles(128, 128), False: Tiles(64, 64, 32, stages=2)}
_WIDE_GRADIENT = Tiles(128, 256, warps=8)
"""What was fastest on an H200; of float16 where a table says so."""
_BACK, _BACK_TERMS, _SPLIT = 32, 64, 256
"""Rows and columns of a tile of the weights' products with themselves, terms at a time, terms of a program."""


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.float16


def _precision(x: Tensor) -> str:
    return "ieee" if _is_half(x) else "tf32x3"


def _pixels(x: Tensor) -> int:
    images, _, height, width = x.shape
    return images * height * width


def matrix(x: Tensor) -> Tensor:
    """The pixels of an image as rows, in its memory."""
    return x.as_strided((_pixels(x), x.shape[1]), (pitch_of(x) or x.shape[1], 1))


def _rows_for(x: Tensor, *size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=x.device)


def _columns(channels: int, most: int) -> int:
    return min(most, max(16, next_power_of_2(channels)))


def folded(
    x: Tensor, weights: Tensor, biases: Tensor | None, gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """Mean, variance, weights that normalize, what is added to them, means of the source, and ``W C``."""
    means, covariance = source_moments(x)
    mean, variance, made, shift, cross = from_moments(weights, biases, means, covariance, gamma, beta, epsilon)
    return mean, variance, made, shift, means, cross


def source_moments(x: Tensor, by: Tiles | None = None) -> tuple[Tensor, Tensor]:
    """Mean of each channel, and the covariance of each two."""
    rows, channels, by = _pixels(x), x.shape[1], by or _MOMENTS[_is_half(x)]
    width = _columns(channels, by.channels)
    across = cdiv(channels, width)
    pairs = across * (across + 1) // 2
    count = max(1, min(cdiv(rows, by.pixels), by.programs // pairs))
    parts = _rows_for(x, count, channels + 1, channels)
    kernels.moments_parts[(count * pairs,)](
        x, parts, rows, channels, pitch_of(x), _precision(x), by.pixels, width, by.stages, num_warps=by.warps
    )
    means, covariance = _rows_for(x, channels), _rows_for(x, channels, channels)
    columns = min(64, next_power_of_2(channels))
    kernels.moments_end[(channels * cdiv(channels, columns),)](
        parts, means, covariance, count, rows, channels, width, 32, columns, num_warps=4
    )
    return means, covariance


def from_moments(
    weights: Tensor, biases: Tensor | None, means: Tensor, covariance: Tensor, gamma: Tensor, beta: Tensor,
    epsilon: float, by: Tiles = _PRODUCTS,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Mean, variance, weights that normalize, what is added to them, and ``W C``."""
    outputs, inputs = weights.shape[0], weights.shape[3]
    some = _columns(inputs, by.channels)
    across = cdiv(inputs, some)
    cross, parts = _rows_for(weights, outputs, inputs), _rows_for(weights, across, 2, outputs)
    kernels.products[(cdiv(outputs, by.pixels), across)](
        weights, covariance, means, cross, parts, outputs, inputs, by.pixels, some, _columns(inputs, by.terms),
        num_warps=by.warps,
    )  # fmt: skip
    mean, variance, shift = (_rows_for(weights, outputs) for _ in range(3))
    made, each = torch.empty_like(weights), 16
    kernels.folded[(cdiv(outputs, each),)](
        weights, mean if biases is None else biases, gamma, beta, parts, means, mean, variance, made, shift, across,
        outputs, inputs, float(epsilon), torch.finfo(weights.dtype).max, biases is not None, each, _columns(inputs, 64),
        num_warps=4,
    )  # fmt: skip
    return mean, variance, made, shift, cross


def block_end(
    x: Tensor, weights: Tensor, shift: Tensor, other: Tensor, projection: Sequence[Tensor], how: Activation,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The neuron of the convolution, ``shift`` and ``other``; and what says where it passes gradients.

    That is a bit for each number, or the result itself. ``projection`` are weights and shift of the other image.
    """
    widest = max(x.shape[1], other.shape[1] if projection else 0)
    if widest <= FEW and _is_half(x):
        return narrow_end(x, weights, shift, other, how, dtype, projection)
    if projection:
        other, shift = _product(other, projection[0]), shift + projection[1]
    is_half = _is_half(x) and _is_half(other) and dtype == torch.float16
    fits = x.shape[1] % _EIGHT == 0 == weights.shape[0] % _EIGHT and _is_packed(x) and _is_packed(other)
    if is_half and fits and (how.name, how.a) == ("RELU", 0.0) and has_library(x):
        y = library_end(x, weights, shift, other)
        return y, y
    return tiled_end(x, weights, shift, other, how, dtype)


def _product(x: Tensor, weights: Tensor) -> Tensor:
    """The convolution of single pixels by itself."""
    height, width = x.shape[2:]
    return convolution(x, weights, None, Window(x=Axis(width, width, 1), y=Axis(height, height, 1)))


def has_library(x: Tensor) -> bool:
    """Whether cuDNN is there."""
    return torch.backends.cudnn.is_acceptable(x)


def _is_packed(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def library_end(x: Tensor, weights: Tensor, shift: Tensor, other: Tensor) -> Tensor:
    """By cuDNN, with a ReLU behind."""
    kernel, where = weights.permute(0, 3, 1, 2), ((1, 1), (0, 0), (1, 1), 1)
    return aten.cudnn_convolution_add_relu(x, kernel, other, 1.0, shift.to(torch.float16), *where)


def _room(x: Tensor, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory for a result, and for a bit for each of its numbers, eight channels a byte."""
    images, _, height, width = x.shape
    y = torch.empty((images, height, width, outputs), dtype=dtype, device=x.device).permute(0, 3, 1, 2)
    return y, torch.empty((_pixels(x), cdiv(outputs, 8)), dtype=torch.uint8, device=x.device)


def narrow_end(
    x: Tensor, weights: Tensor, shift: Tensor, other: Tensor, how: Activation, dtype: torch.dtype,
    projection: Sequence[Tensor] = (), by: Tiles | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By programs that keep their weights; ``other`` may be multiplied and shifted by a ``projection``."""
    outputs, inputs, rows = weights.shape[0], x.shape[1], _pixels(x)
    y, masks = _room(x, outputs, dtype)
    by, more = by or (_PROJECTED if projection else _NARROW), projection or (weights, shift)
    columns = _columns(outputs, by.channels)
    across = cdiv(outputs, columns)
    programs = min(cdiv(rows, by.pixels), max(1, by.programs // across)) * across
    terms = _columns(max(inputs, other.shape[1] if projection else 0), by.terms)
    kernels.narrow_end[(programs,)](
        x, weights, shift, other, *more, y, masks, rows, outputs, inputs, other.shape[1], pitch_of(x),
        pitch_of(other), float(how.a), float(how.b), bool(projection), how.name, how.a == 0.0, by.pixels, columns,
        terms, by.stages, num_warps=by.warps,
    )  # fmt: skip
    return y, masks


def tiled_end(
    x: Tensor, weights: Tensor, shift: Tensor, other: Tensor, how: Activation, dtype: torch.dtype, by: Tiles = _END
) -> tuple[Tensor, Tensor]:
    """By a program a tile."""
    rows, outputs, inputs = _pixels(x), weights.shape[0], x.shape[1]
    y, masks = _room(x, outputs, dtype)
    kernels.block_end[(cdiv(rows, by.pixels) * cdiv(outputs, by.channels),)](
        x, weights, shift, other, y, masks, rows, outputs, inputs, pitch_of(x), pitch_of(other), float(how.a),
        float(how.b), how.name, how.a == 0.0, _precision(x), by.pixels, by.channels, by.terms, by.stages,
        num_warps=by.warps,
    )  # fmt: skip
    return y, masks


def passed(
    gradient: Tensor, second: Tensor | None, kept: Tensor, shape: tuple[int, ...], slope: float, dtype: torch.dtype,
    *, rounds_sum: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a neuron lets pass of a gradient, to which a second one is added; and its sums over pixels, in parts."""
    made = like(gradient.expand(shape), dtype)
    grid = Grid.of(made, "masked", 8)
    parts = grid.rows_for(made, grid.parts)
    added = gradient if second is None else second
    kernels.passed_parts[grid.all](
        gradient, added, kept, made, parts, grid.rows, grid.channels, shape[2] * shape[3], pitch_of(gradient),
        pitch_of(added), float(slope), kept.dtype == torch.uint8, second is not None,
        tuple(gradient.shape) != tuple(shape), slope == 0.0, rounds_sum, grid.held, grid.columns, grid.stages,
        **grid.options,
    )  # fmt: skip
    return made, parts


def gradients(
    flow: Tensor, sums: Tensor, x: Tensor, weights: Tensor, gamma: Tensor, variance: Tensor, means: Tensor,
    cross: Tensor, epsilon: float, *, with_source: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of source, weights, gamma and beta."""
    outputs, inputs = weights.shape[0], weights.shape[3]
    joint = wide_product(matrix(flow).t(), matrix(x))
    gammas, betas, levels = (_rows_for(x, outputs) for _ in range(3))
    for_weights, slopes = _rows_for(x, *weights.shape), _rows_for(x, outputs, inputs)
    factors, each = torch.empty_like(weights), 16
    kernels.parameter_gradients[(cdiv(outputs, each),)](
        joint, sums, sums.shape[0], weights, cross, means, variance, gamma, gammas, betas, for_weights, factors,
        slopes, levels, outputs, inputs, float(_pixels(x)), float(epsilon), 64, each, _columns(inputs, 64),
        num_warps=4,
    )  # fmt: skip
    source = None
    if with_source:
        source = source_gradient(flow, x, factors, *back_products(weights, slopes, levels, means))
    return source, for_weights, gammas, betas


def back_products(
    weights: Tensor, slopes: Tensor, levels: Tensor, means: Tensor, columns: int = _BACK, each: int = _SPLIT
) -> tuple[Tensor, Tensor, Tensor]:
    """What the source is multiplied with, [I, I], by rows of a scale, [I], each; what is added to each pixel, [I]."""
    outputs, inputs = weights.shape[0], weights.shape[3]
    count, tiles = cdiv(outputs, each), cdiv(inputs, columns)
    parts = _rows_for(weights, count, inputs + 1, inputs)
    precision = "tf32" if _is_half(weights) else "tf32x3"
    kernels.back_parts[(tiles, tiles, count)](
        weights, slopes, levels, parts, outputs, inputs, each, precision, columns, _BACK_TERMS, num_warps=4
    )
    back = torch.empty((inputs, inputs), dtype=weights.dtype, device=weights.device)
    scales, constants, some = _rows_for(weights, inputs), _rows_for(weights, inputs), 8
    kernels.back_end[(cdiv(inputs, some),)](
        parts, means, back, scales, constants, count, inputs, _is_half(weights), some,
        max(16, next_power_of_2(inputs)), num_warps=4,
    )  # fmt: skip
    return back, scales, constants


def source_gradient(
    flow: Tensor, x: Tensor, factors: Tensor, back: Tensor, scales: Tensor, levels: Tensor, by: Tiles | None = None
) -> Tensor:
    """The gradient of the source, rounded once."""
    rows, outputs, inputs = _pixels(x), flow.shape[1], x.shape[1]
    by = by or (_WIDE_GRADIENT if _is_half(x) and inputs > _MANY else _GRADIENT[_is_half(x)])
    dx, columns = like(x, x.dtype), _columns(inputs, by.channels)
    kernels.source_gradient[(cdiv(rows, by.pixels) * cdiv(inputs, columns),)](
        flow, x, factors, back, scales, levels, dx, rows, outputs, inputs, pitch_of(flow), pitch_of(x),
        _precision(flow), by.pixels, columns, by.terms, by.stages, num_warps=by.warps,
    )  # fmt: skip
    return dx
