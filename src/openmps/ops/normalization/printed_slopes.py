"""Gradients of local normalizations as MPSCNNNormalization.h (macOS 10.13.4) prints them, which are no derivatives.

A convention chooses them; `openmps.ops.normalization.local_normalization` has the derivatives. T, M and X stand at the
pixel that the gradient is for, where the derivatives have those of the pixels whose windows read it, and sums of
squares lack 1 / N.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from openmps.ops.geometry import Axis, Window, read, read_adjoint
from openmps.ops.normalization.local_normalization import (
    Contrast,
    CountedAround,
    Divisor,
    OverPixels,
    contrast_moments,
    cross_channel_normalization_gradient,
)
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_ZERO = MPSImageEdgeMode.ZERO


class _Placed(NamedTuple):
    """What a gradient is made of, pixel by pixel of the source."""

    window: Window
    edge_mode: MPSImageEdgeMode

    @property
    def every_pixel(self) -> Window:
        """The windows around every pixel of the source."""
        return Window(*(Axis(each.source, each.source, each.size) for each in (self.window.x, self.window.y)))

    @property
    def centres(self) -> Window:
        """The source pixels that the windows of the gradient's pixels lie around."""
        return Window(*(Axis(each.source, each.result, offset=each.offset) for each in (self.window.x, self.window.y)))

    def centre(self, x: Tensor) -> Tensor:
        """The source as the gradient's pixels lie."""
        return read(x, self.centres, self.edge_mode)

    def direct(self, gradient: Tensor) -> Tensor:
        """The gradient as the source's pixels lie."""
        return read_adjoint(gradient, self.centres, _ZERO)

    def sums(self, values: Tensor) -> Tensor:
        """For each pixel of the source the sum over the windows that read it."""
        return self.window.sums_adjoint(values, _ZERO)


def printed_spatial_gradient(
    gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor
) -> Tensor:
    """``T^-beta (G - 2 alpha beta X / T sum G[p] X[p])`` over the pixels p whose windows read the source's pixel."""
    placed = _Placed(window, edge_mode)
    around = CountedAround(placed.every_pixel, edge_mode)
    base = divisor.base(around.means(x.square()))
    sums = placed.sums(gradient * placed.centre(x))
    factor = -2.0 * divisor.alpha * divisor.beta
    return (placed.direct(gradient) + sums.mul_(x / base).mul_(factor)).mul_(base.pow(-divisor.beta))


def printed_contrast_gradient(
    gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor, contrast: Contrast
) -> Tensor:
    """``ps T^-beta (G - sum G[p] (p0 / N + 2 alpha beta / N (X[p] - 1) (X - p0 M) / T))`` over the same pixels."""
    placed = _Placed(window, edge_mode)
    around = CountedAround(placed.every_pixel, edge_mode)
    moments = contrast_moments(x, around, divisor, contrast.p0)
    level = placed.sums(gradient).mul_(-contrast.p0 / around.taps)
    slope = placed.sums(gradient * (placed.centre(x) - 1.0))
    slope.mul_(moments.difference / moments.base).mul_(-2.0 * divisor.alpha * divisor.beta / around.taps)
    total = placed.direct(gradient) + level + slope
    return total.mul_(moments.base.pow(-divisor.beta)).mul_(contrast.ps)


def printed_channel_gradient(gradient: Tensor, x: Tensor, size: int, divisor: Divisor) -> Tensor:
    """The derivative's formula with ``2 alpha beta`` in the place of ``2 alpha beta / size``."""
    return cross_channel_normalization_gradient(gradient, x, size, divisor, count=1)


class PrintedSpatialGradient(OverPixels, of=printed_spatial_gradient):
    """`printed_spatial_gradient` of a gradient and the forward source."""


class PrintedContrastGradient(OverPixels, of=printed_contrast_gradient):
    """`printed_contrast_gradient` of a gradient and the forward source."""

    contrast: Contrast


class PrintedChannelGradient(Op, of=printed_channel_gradient, kind=Kind.REDUCTION):
    """`printed_channel_gradient` of a gradient and the forward source."""

    size: int
    divisor: Divisor
