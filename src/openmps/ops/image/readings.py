"""What other readings of the headers of image filters do besides the operations of the default ones."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.image.separable import Profile, separable
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_COLOURS = 3
SOBEL_SHARE = 0.25
"""One over the sum of the weights on one side of a difference of Sobel's."""


def inside_share(x: Tensor, window: Window, profile: Profile) -> Tensor:
    """Sums over windows of which what lies outside the picture was 0, over the weights that lie inside."""
    ones = x.new_ones(1, 1, window.y.source, window.x.source)
    return x / separable(ones, window, MPSImageEdgeMode.ZERO, profile)


def scaled(x: Tensor, factor: float) -> Tensor:
    """Every number times a factor."""
    return x * factor


def opaque(x: Tensor) -> Tensor:
    """A picture of four channels whose alpha is 1."""
    return torch.cat([x[:, :_COLOURS], torch.ones_like(x[:, _COLOURS:])], 1)


def divided_by_alpha(x: Tensor) -> Tensor:
    """Premultiplied colours ``[N, 4, H, W]`` divided by alpha, whatever it is."""
    alpha = x[:, _COLOURS:]
    return torch.cat([x[:, :_COLOURS] / alpha, alpha], 1)


def positive(x: Tensor) -> Tensor:
    """1 where a number is above 0, else 0."""
    return (x > 0.0).to(x.dtype)


def under(x: Tensor, window: Window) -> Tensor:
    """A picture whose pixels that no window of one pixel reads are 0."""
    rows, columns = (slice(max(each.first, 0), max(each.first + each.result, 0)) for each in (window.y, window.x))
    found = torch.zeros_like(x)
    found[:, :, rows, columns] = x[:, :, rows, columns]
    return found


def threshold_colours(gray: Tensor, x: Tensor, limit: float, is_cut: bool, is_kept_above: bool) -> Tensor:
    """Red, green and blue as they are where their gray value is on one side of a limit; else 0, or the limit."""
    is_kept = (gray > limit) == is_kept_above
    return torch.where(is_kept, x[:, :_COLOURS], x.new_full((), limit if is_cut else 0.0))


class InsideShare(Op, of=inside_share, kind=Kind.WINDOW):
    """`inside_share` of sums."""

    window: Window
    profile: Profile


class Scaled(Op, of=scaled):
    """`scaled` numbers."""

    factor: float


class Opaque(Op, of=opaque, kind=Kind.REDUCTION):
    """`opaque` picture."""


class DividedByAlpha(Op, of=divided_by_alpha, kind=Kind.REDUCTION):
    """`divided_by_alpha` of a picture."""


class Positive(Op, of=positive):
    """`positive` numbers of a picture."""


class Under(Op, of=under, kind=Kind.WINDOW):
    """`under` the windows of a result."""

    window: Window


class ThresholdColours(Op, of=threshold_colours, kind=Kind.REDUCTION):
    """`threshold_colours` of a gray value and its picture."""

    limit: float
    is_cut: bool
    is_kept_above: bool
