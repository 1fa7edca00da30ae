"""The guided filter of He et al. (MPSImageGuidedFilter.h, macOS 10.13.4).

In windows of d x d pixels, of which those outside the picture do not count, a picture p is fitted by a linear function
of the guidance I: ``a = cov(I, p) / (cov(I, I) + epsilon)``, ``b = mean(p) - a mean(I)``. The a and b of a pixel are
the means over all windows that it is in. All in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops.geometry import Axis, Window
from openmps.ops.image.separable import Profile, Shape, separable
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_COLOURS = 3
_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


class _Means:
    """Weighted means over windows."""

    def __init__(self, weights: Tensor, diameter: int) -> None:
        height, width = weights.shape[2:]
        self._window = Window(Axis(width, width, diameter), Axis(height, height, diameter))
        self._weights, self._total = weights, self._sums(weights)

    def _sums(self, x: Tensor) -> Tensor:
        return separable(x, self._window, MPSImageEdgeMode.ZERO, Profile(Shape.FLAT))

    def of(self, x: Tensor) -> Tensor:
        """The mean of each window; 0 where nothing weighs."""
        return torch.where(self._total > 0.0, self._sums(x * self._weights) / self._total, 0.0)


def coefficients(
    source: Tensor, guide: Tensor, weights: Tensor | None, diameter: int, epsilon: float, is_averaged: bool = True
) -> Tensor:
    """The numbers a of three colours, and b, ``[N, 4, H, W]``, that fit one channel by three of a guidance.

    Unless they are averaged, each pixel has those of its own window.
    """
    p, colours = source[:, :1].double(), guide[:, :_COLOURS].double()
    everywhere = torch.ones_like(p)
    means = _Means(everywhere if weights is None else weights[:, :1].double(), diameter)
    mean_of_p, mean_of_colours = means.of(p), means.of(colours)
    products = means.of(torch.cat([colours[:, i : i + 1] * colours[:, j : j + 1] for i, j in _PAIRS], 1))
    spread = {
        pair: products[:, place] - mean_of_colours[:, pair[0]] * mean_of_colours[:, pair[1]]
        for place, pair in enumerate(_PAIRS)
    }
    matrix = torch.stack([spread[min(i, j), max(i, j)] for i in range(3) for j in range(3)], -1)
    matrix = matrix.unflatten(-1, (3, 3)) + epsilon * torch.eye(3, dtype=torch.float64, device=p.device)
    right = means.of(colours * p) - mean_of_colours * mean_of_p
    a = _solved(matrix, right.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    b = mean_of_p - (a * mean_of_colours).sum(1, keepdim=True)
    fitted = torch.cat([a, b], 1)
    return (_Means(everywhere, diameter).of(fitted) if is_averaged else fitted).to(source.dtype)


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Solutions of symmetric systems of three equations, by cofactors."""
    first, second, third = matrix.unbind(-1)
    rows = torch.stack(
        [torch.linalg.cross(second, third), torch.linalg.cross(third, first), torch.linalg.cross(first, second)], -2
    )
    determinant = (first * rows[..., 0, :]).sum(-1, keepdim=True)
    # Where nothing varies and epsilon is 0 there is no slope.
    return torch.where(determinant == 0.0, 0.0, (rows * right[..., None, :]).sum(-1) / determinant)


def channel_coefficients(
    source: Tensor, guide: Tensor, weights: Tensor | None, diameter: int, epsilon: float, is_averaged: bool = True
) -> tuple[Tensor, Tensor]:
    """The numbers a and b of each channel, that fit it by the same channel of a guidance."""
    p, colours = source.double(), guide.double()
    everywhere = torch.ones_like(p[:, :1])
    means = _Means(everywhere if weights is None else weights[:, :1].double(), diameter)
    mean_of_p, mean_of_colours = means.of(p), means.of(colours)
    spread = means.of(colours * colours) - mean_of_colours.square()
    spread = spread + epsilon
    a = torch.where(spread == 0.0, 0.0, (means.of(colours * p) - mean_of_colours * mean_of_p) / spread)
    fitted = a, mean_of_p - a * mean_of_colours
    smooth = _Means(everywhere, diameter)
    first, second = (smooth.of(each) if is_averaged else each for each in fitted)
    return first.to(source.dtype), second.to(source.dtype)


def reconstruction(guide: Tensor, slopes: Tensor, constants: Tensor | None, scale: float, offset: float) -> Tensor:
    """``scale (a . I + b) + offset`` of one channel, or of each with its own b.

    Coefficients grow to the guidance's size: bilinear, by pixel centres; beyond the last centre the last pixel.
    """
    size = (guide.shape[2], guide.shape[3])
    a = _grown(slopes, size)
    if constants is None:
        fitted = (a[:, :_COLOURS] * guide[:, :_COLOURS]).sum(1, keepdim=True) + a[:, _COLOURS:]
    else:
        fitted = a * guide + _grown(constants, size)
    return fitted * scale + offset


def _grown(x: Tensor, size: tuple[int, int]) -> Tensor:
    if (x.shape[2], x.shape[3]) == size:
        return x
    return functional.interpolate(x, size, mode="bilinear", align_corners=False)


class _Regression(Op, kind=Kind.REDUCTION):
    """The base of fits."""

    diameter: int
    epsilon: float
    is_averaged: bool = True


class Coefficients(_Regression, of=coefficients):
    """`coefficients` of a picture, its guidance and weights or None."""


class ChannelCoefficients(_Regression, of=channel_coefficients, results=2):
    """`channel_coefficients` of a picture, its guidance and weights or None."""


class Reconstruction(Op, of=reconstruction, kind=Kind.REDUCTION):
    """`reconstruction` of a guidance, slopes, and constants or None."""

    scale: float
    offset: float
