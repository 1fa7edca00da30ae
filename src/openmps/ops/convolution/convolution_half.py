"""Convolution with a float16 accumulator, number by number as such hardware sums: a slow reference.

Engines accumulate in float32 or better whatever the factors are. Here every product is added and the sum rounded to
float16 before the next one, in the order kernel row, kernel column, channel: some twenty operations over the whole
result for each weight of a filter. It is for comparing with devices that accumulate so, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window, empty_image, read
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_LARGEST_HALF = 65504.0
_HALF_DIGITS = 11  # significant bits
_LEAST_HALF_EXPONENT = -13  # of numbers below 2^-14, whose last bit stays 2^-24, as frexp counts


def convolution_half(
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    window: Window,
    *,
    groups: int = 1,
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO,
) -> Tensor:
    """Correlate an image with ``weights``, summing in float16.

    With ``f`` rounding to float16 once (to nearest, ties to even) and the terms ``t`` of `convolution.convolution` in
    the order j, i, c::

        sum = f(… f(f(0 + t[0]) + t[1]) …),  Y = biases + sum

    Args:
        x: The source, [N, I, window.y.source, window.x.source].
        weights: OHWI, [O, window.y.size, window.x.size, I / groups]; float16 numbers, if they are to be a device's.
        biases: [O], or ``None`` for 0; added in the type of ``x``.
        window: The source pixels that each result pixel reads.
        groups: Number of groups; divides I and O.
        edge_mode: ``ZERO`` or ``CLAMP``.

    Returns:
        [N, O, window.y.result, window.x.result].
    """
    region = read(x, window, edge_mode).double().unflatten(1, (groups, -1))
    factors = weights.double().unflatten(0, (groups, -1))
    total = region.new_zeros(
        (region.shape[0], groups, factors.shape[1], window.y.result, window.x.result), dtype=torch.float64
    )
    for j in range(window.y.size):
        for i in range(window.x.size):
            pixels = region[:, :, :, _stepped(window.y, j), _stepped(window.x, i)]
            for c in range(weights.shape[3]):
                term = pixels[:, :, None, c] * factors[:, :, j, i, c, None, None]
                total = rounded_to_half(total.add_(term))
    result = total.flatten(1, 2).to(x.dtype)
    return result if biases is None else result.add_(biases.view(-1, 1, 1))


def convolution_transpose_half(
    x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, *, groups: int = 1
) -> Tensor:
    """`convolution_transpose.convolution_transpose` with a float16 accumulator, the zeros of Z among its terms."""
    rows, columns = _over_stuffed(window.y), _over_stuffed(window.x)
    stuffed = empty_image(x, x.shape[1], (rows.source, columns.source)).zero_()
    stuffed[:, :, :: window.y.stride, :: window.x.stride] = x
    return convolution_half(stuffed, weights, biases, Window(x=columns, y=rows), groups=groups)


def rounded_to_half(values: Tensor) -> Tensor:
    """Round float64 numbers to float16 numbers, once; what is too large becomes infinite.

    A conversion by the engine goes by way of float32, which rounds twice.
    """
    _, exponent = torch.frexp(values)
    digits = (exponent.clamp_min(_LEAST_HALF_EXPONENT) - _HALF_DIGITS).to(torch.int64)
    step = ((digits + 1023) << 52).view(torch.float64)  # 2^digits, put together from its bits
    rounded = torch.round(values / step) * step
    return torch.where(rounded.abs() > _LARGEST_HALF, values.sign() * torch.inf, rounded)


def _stepped(axis: Axis, tap: int) -> slice:
    """The pixels of the region under one tap of every window."""
    begin = tap * axis.dilation
    return slice(begin, begin + (axis.result - 1) * axis.stride + 1, axis.stride)


def _over_stuffed(axis: Axis) -> Axis:
    """The windows over the source taken apart by the stride."""
    return Axis((axis.source - 1) * axis.stride + 1, axis.result, axis.size, 1, axis.dilation, axis.offset)


class ConvolutionHalf(Op, of=convolution_half, kind=Kind.CONTRACTION):
    """`convolution_half` of an image, by weights and biases, which may be left out."""

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int = 1


class ConvolutionTransposeHalf(Op, of=convolution_transpose_half, kind=Kind.CONTRACTION):
    """`convolution_transpose_half` of an image, by weights and biases, which may be left out."""

    window: Window
    groups: int = 1
