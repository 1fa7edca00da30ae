"""Normalization by the numbers around each number, over pixels or over feature channels, with the gradients.

MPSCNNNormalization.h: spatial macOS 10.12, local contrast and cross-channel 10.13; the gradients 10.13.4. They are the
derivatives of the formulas below for the same window and edge mode: those printed in the header lack a factor 1/N and
take some of their numbers from the wrong pixel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from openmps.errors import MPSArgumentError
from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, read, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_CHANNELS = 1


class Divisor(NamedTuple):
    """What a number is divided by: ``T ** beta`` with ``T = delta + alpha * v``, where v is taken from a window."""

    alpha: float
    beta: float
    delta: float

    def base(self, v: Tensor) -> Tensor:
        """``T``. Where it is 0 the normalizations are not defined."""
        return v * self.alpha + self.delta


class Contrast(NamedTuple):
    """How much of the mean is taken off, and what the normalized number is scaled by and moved to."""

    p0: float
    pm: float
    ps: float


# --- over pixels ------------------------------------------------------------------------------------------------------


def spatial_normalization(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor) -> Tensor:
    """Divide each number by the mean of squares around it: ``Y = X / T^beta``, ``T = delta + alpha/N sum X^2``.

    The sum runs over the window's N taps in the same channel; those outside the source are read by ``edge_mode`` and
    count in N.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The source pixels that each result pixel's sum reads, X at their centre; no stride, no dilation.
        edge_mode: ``ZERO`` or ``CLAMP``.
        divisor: alpha, beta and delta.

    Returns:
        [N, C, window.y.result, window.x.result].

    Raises:
        MPSArgumentError: The window has strides or dilations.
    """
    around = _around(window, edge_mode)
    region = around.read(x)
    base = divisor.base(around.means(region.square()))
    return base.pow(-divisor.beta).mul_(around.centre(region))


def spatial_normalization_gradient(
    gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor
) -> Tensor:
    """The gradient for the source of ``spatial_normalization``, like ``x``.

    ``dX[i] = G[i] T[i]^-beta - 2 alpha beta/N X[i] sum G[p] X[p] T[p]^(-beta-1)`` over the pixels p whose windows read
    i; what belongs outside the source is lost with ``ZERO`` and added to the nearest pixel with ``CLAMP``.
    """
    around = _around(window, edge_mode)
    region = around.read(x)
    base = divisor.base(around.means(region.square()))
    direct = base.pow(-divisor.beta).mul_(gradient)
    share = (direct / base).mul_(around.centre(region))
    for_region = around.means_adjoint(share).mul_(-2.0 * divisor.alpha * divisor.beta).mul_(region)
    return around.read_adjoint(for_region, direct)


def local_contrast_normalization(
    x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor, contrast: Contrast
) -> Tensor:
    """Take off the mean around each number and divide by the spread: ``Y = pm + ps (X - p0 M) / T^beta``.

    ``T = delta + alpha V``; M and V are mean and variance (of the window as a whole population, ``sum (X - M)^2 / N``)
    over the window's N taps in the same channel; those outside the source are read by ``edge_mode`` and count in N.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The source pixels that each result pixel's moments read, X at their centre; no stride, no dilation.
        edge_mode: ``ZERO`` or ``CLAMP``.
        divisor: alpha, beta and delta.
        contrast: p0, pm and ps.

    Returns:
        [N, C, window.y.result, window.x.result].

    Raises:
        MPSArgumentError: The window has strides or dilations.
    """
    around = _around(window, edge_mode)
    moments = contrast_moments(around.read(x), around, divisor, contrast.p0)
    result = moments.base.pow(-divisor.beta).mul_(moments.difference)
    return result.mul_(contrast.ps).add_(contrast.pm)


def local_contrast_normalization_gradient(
    gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, divisor: Divisor, contrast: Contrast
) -> Tensor:
    """The gradient for the source of ``local_contrast_normalization``, like ``x``.

    With ``H = ps G T^-beta`` and ``W = 2 alpha beta H (X - p0 M) / T``, both at the pixels p whose windows read i::

        dX[i] = H[i] - sum(p) (p0 H[p] + W[p] (X[i] - M[p])) / N

    What belongs outside the source is lost with ``ZERO`` and added to the nearest pixel with ``CLAMP``.
    """
    around = _around(window, edge_mode)
    region = around.read(x)
    moments = contrast_moments(region, around, divisor, contrast.p0)
    direct = moments.base.pow(-divisor.beta).mul_(gradient).mul_(contrast.ps)
    share = (direct / moments.base).mul_(moments.difference).mul_(2.0 * divisor.alpha * divisor.beta).double()
    # X - M is the small difference of large numbers, each in a sum of its own: hence float64.
    for_region = around.means_adjoint(share * moments.mean - contrast.p0 * direct)
    for_region.sub_(around.means_adjoint(share).mul_(region))
    return around.read_adjoint(for_region, direct).to(x.dtype)


class _Moments(NamedTuple):
    """What the numbers in each window give."""

    mean: Tensor  # float64
    base: Tensor  # T
    difference: Tensor  # X - p0 M


def contrast_moments(region: Tensor, around: _Around, divisor: Divisor, p0: float) -> _Moments:
    """Those of what `_Around.read` gave."""
    # In float64: the mean of squares less the square of the mean would keep no digit of a small variance in float32.
    wide = region.double()
    mean = around.means(wide)
    variance = around.means(wide.square()).addcmul_(mean, mean, value=-1.0).clamp_(min=0.0)
    difference = torch.sub(around.centre(wide), mean, alpha=p0)
    return _Moments(mean, divisor.base(variance).to(region.dtype), difference.to(region.dtype))


# --- over feature channels --------------------------------------------------------------------------------------------


def cross_channel_normalization(x: Tensor, size: int, divisor: Divisor) -> Tensor:
    """Divide each number by the mean of squares in the channels around it: ``Y = X / L^beta``.

    ``L[k] = delta + alpha/size sum X[q]^2`` over the channels q = k - size // 2 .. k + (size - 1) // 2 that there are;
    the divisor stays ``size`` where some are missing. ``x`` is [N, C, H, W] and so is the result.
    """
    base = _channel_base(x, size, divisor)
    return base.pow(-divisor.beta).mul_(x)


def cross_channel_normalization_gradient(
    gradient: Tensor, x: Tensor, size: int, divisor: Divisor, *, count: int | None = None
) -> Tensor:
    """The gradient for the source of ``cross_channel_normalization``, like ``x``.

    ``dX[k] = G[k] L[k]^-beta - 2 alpha beta/size X[k] sum G[r] X[r] L[r]^(-beta-1)`` over the channels r whose windows
    hold k: r = k - (size - 1) // 2 .. k + size // 2. With ``count`` that many divide
    the sum, not ``size``.
    """
    base = _channel_base(x, size, divisor)
    direct = base.pow(-divisor.beta).mul_(gradient)
    share = (direct / base).mul_(x)
    sums = _channel_sums(share, (size - 1) // 2, size // 2)
    # Parameters whose product is beyond the format make everything overflow, but no exception.
    largest = torch.finfo(x.dtype).max
    factor = min(max(-2.0 * divisor.alpha * divisor.beta / (count or size), -largest), largest)
    return direct.addcmul_(sums, x, value=factor)


def _channel_base(x: Tensor, size: int, divisor: Divisor) -> Tensor:
    return divisor.base(_channel_sums(x.square(), size // 2, (size - 1) // 2).div_(size))


def _channel_sums(x: Tensor, before: int, after: int) -> Tensor:
    """For each channel the sum over itself and as many channels before and after it, where there are any."""
    most = x.shape[_CHANNELS] - 1
    before, after = min(before, most), min(after, most)
    return _sums(functional.pad(x, [0, 0, 0, 0, before, after]), _CHANNELS, before + after + 1)


# --- windows ----------------------------------------------------------------------------------------------------------


_MANY = 2**24
"""Pixels of a region that is no longer read as a whole: much of it is one number."""


class _Around:
    """The windows around pixels, over the region that they read."""

    def __init__(self, window: Window, edge_mode: MPSImageEdgeMode) -> None:
        self.window, self.edge_mode = window, edge_mode
        self.taps = window.y.size * window.x.size

    def read(self, x: Tensor) -> Tensor:
        """What the other methods take."""
        return read(x, self.window, self.edge_mode)

    def means(self, region: Tensor) -> Tensor:
        """The mean over each window."""
        height, width = self.window.size
        return _sums(_sums(region, ROWS, height), COLUMNS, width) / self.taps

    def means_adjoint(self, gradient: Tensor) -> Tensor:
        """The gradient for the region from that for the means: of each pixel the sum over the windows that read it."""
        height, width = self.window.size
        padded = functional.pad(gradient, [width - 1, width - 1, height - 1, height - 1])
        return _sums(_sums(padded, ROWS, height), COLUMNS, width).div_(self.taps)

    def centre(self, region: Tensor) -> Tensor:
        """The pixels of the region that lie at the centre of the windows."""
        top, left = self.window.y.extent // 2, self.window.x.extent // 2
        return region[:, :, top : top + self.window.y.result, left : left + self.window.x.result]

    def read_adjoint(self, for_region: Tensor, for_centre: Tensor) -> Tensor:
        """The gradient for the source from that for the region, to which that for the centre is added."""
        self.centre(for_region).add_(for_centre)
        return read_adjoint(for_region, self.window, self.edge_mode)


class CountedAround(_Around):
    """The same by how often each pixel of the source is read, without the region."""

    def __init__(self, window: Window, edge_mode: MPSImageEdgeMode) -> None:
        super().__init__(window, edge_mode)
        self.centres = Window(*(Axis(each.source, each.result, offset=each.offset) for each in (window.x, window.y)))

    def read(self, x: Tensor) -> Tensor:
        """The source itself."""
        return x

    def means(self, region: Tensor) -> Tensor:
        """The mean over each window."""
        return self.window.sums(region, self.edge_mode) / self.taps

    def means_adjoint(self, gradient: Tensor) -> Tensor:
        """The gradient for the source from that for the means."""
        return self.window.sums_adjoint(gradient, self.edge_mode).div_(self.taps)

    def centre(self, region: Tensor) -> Tensor:
        """The pixels at the centre of the windows."""
        return read(region, self.centres, self.edge_mode)

    def read_adjoint(self, for_region: Tensor, for_centre: Tensor) -> Tensor:
        """The sum of both."""
        return for_region + read_adjoint(for_centre, self.centres, self.edge_mode)


def _around(window: Window, edge_mode: MPSImageEdgeMode) -> _Around:
    if (window.stride, window.dilation) != ((1, 1), (1, 1)):
        placement = (*window.stride, *window.dilation)
        raise MPSArgumentError("normalization", "window", "must have strides and dilations of 1", placement)
    is_many = window.y.read * window.x.read > _MANY and window.leaves_source
    return (CountedAround if is_many else _Around)(window, edge_mode)


def _sums(x: Tensor, axis: int, size: int) -> Tensor:
    """The sums of ``size`` neighbours along an axis, as many as there are.

    Sums of 2, 4, 8 … neighbours are made of one another, and the result of those in the binary digits of ``size``: a
    window costs the logarithm of its size, and no digits, as the difference of two running sums would.
    """
    count = x.shape[axis] - size + 1
    result: Tensor | None = None
    covered, doubled, power = 0, x, 1
    while covered < size:
        if size & power:
            part = doubled.narrow(axis, covered, count)
            result = part if result is None else result + part
            covered += power
        if covered < size:
            rest = doubled.shape[axis] - power
            doubled = doubled.narrow(axis, 0, rest) + doubled.narrow(axis, power, rest)
            power *= 2
    assert result is not None
    return result


# --- operations -------------------------------------------------------------------------------------------------------


class OverPixels(Op, kind=Kind.WINDOW):
    """The base of the operations with a window of pixels."""

    window: Window
    edge_mode: MPSImageEdgeMode
    divisor: Divisor


class SpatialNormalization(OverPixels, of=spatial_normalization):
    """`spatial_normalization` of an image."""


class SpatialNormalizationGradient(OverPixels, of=spatial_normalization_gradient):
    """`spatial_normalization_gradient` of a gradient and the forward source."""


class LocalContrastNormalization(OverPixels, of=local_contrast_normalization):
    """`local_contrast_normalization` of an image."""

    contrast: Contrast


class LocalContrastNormalizationGradient(OverPixels, of=local_contrast_normalization_gradient):
    """`local_contrast_normalization_gradient` of a gradient and the forward source."""

    contrast: Contrast


class CrossChannelNormalization(Op, of=cross_channel_normalization, kind=Kind.REDUCTION):
    """`cross_channel_normalization` of an image."""

    size: int
    divisor: Divisor


class CrossChannelNormalizationGradient(Op, of=cross_channel_normalization_gradient, kind=Kind.REDUCTION):
    """`cross_channel_normalization_gradient` of a gradient and the forward source."""

    size: int
    divisor: Divisor
