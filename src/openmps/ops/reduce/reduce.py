"""Reductions of images along rows, columns or feature channels (MPSNNReduce.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op

CHANNELS = 1
ROWS = 2
COLUMNS = 3
PIXELS = ROWS, COLUMNS
"""Both at once."""


class Reduction(Enum):
    """What becomes of the numbers along one axis."""

    MIN = auto()
    MAX = auto()
    MEAN = auto()
    SUM = auto()
    ARGUMENT_MIN = auto()
    ARGUMENT_MAX = auto()
    LAST_ARGUMENT_MIN = auto()
    LAST_ARGUMENT_MAX = auto()


def reduce(x: Tensor, reduction: Reduction, axis: int | tuple[int, ...]) -> Tensor:
    """One number for all along ``axis`` of ``x``, ``[N, C, H, W]``; the axis stays, with length 1.

    Several axes at once have a MIN, MAX, SUM or MEAN.

    MIN, MAX: the smallest and the largest; SUM, MEAN: the sum, float32 or better, and that divided by the length. NaN
    anywhere gives NaN.
    ARGUMENT_MIN, ARGUMENT_MAX: the lowest index of the smallest or the largest, in the type of ``x``; the first NaN
    counts as both. The LAST ones give the highest index instead, and take the last NaN.
    """
    # Over channels-last memory PyTorch reduces the plain [N, H, W, C] tensor many times faster than its permutation.
    pixels = x.permute(0, 2, 3, 1)
    axes = _AXES[axis] if isinstance(axis, int) else tuple(_AXES[each] for each in axis)
    return _REDUCTIONS[reduction](pixels, axes).permute(0, 3, 1, 2)


def _last(first: Callable[..., Tensor], pixels: Tensor, axes: Any) -> Tensor:
    """The highest index of what ``first`` gives the lowest one of."""
    axis = axes if isinstance(axes, int) else axes[0]
    return (pixels.shape[axis] - 1 - first(pixels.flip(axis), axis, keepdim=True)).to(pixels.dtype)


def weighted_mean(x: Tensor, weights: Tensor) -> Tensor:
    """``sum_c x_c weights_c / C`` for each pixel: ``[N, C, H, W]`` to ``[N, 1, H, W]``. Pixels broadcast."""
    return weighted_sum(x, weights).div_(x.shape[CHANNELS])


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """``sum_c x_c weights_c`` for each pixel: ``[N, C, H, W]`` to ``[N, 1, H, W]``. Pixels broadcast."""
    return (x * weights).sum(CHANNELS, keepdim=True)


def weighted_mean_by_weights(x: Tensor, weights: Tensor) -> Tensor:
    """`weighted_sum` divided by the sum of the pixel's weights."""
    return weighted_sum(x, weights).div_(weights.sum(CHANNELS, keepdim=True))


def weighted_sum_by_non_zero_weights(x: Tensor, weights: Tensor) -> Tensor:
    """`weighted_sum` divided by the number of weights of the pixel that are not 0; 0 where all are."""
    count = weights.count_nonzero(CHANNELS).unsqueeze(CHANNELS)
    return torch.where(count == 0, 0.0, weighted_sum(x, weights) / count.clamp(min=1))


class Weighting(Enum):
    """What a weighted sum of channels is divided by."""

    SUM = auto()
    """Nothing."""
    MEAN = auto()
    """The number of channels."""
    NON_ZERO = auto()
    """The number of weights that are not 0."""
    WEIGHTS = auto()
    """The sum of the weights."""


_WEIGHTINGS: dict[Weighting, Callable[[Tensor, Tensor], Tensor]] = {
    Weighting.SUM: weighted_sum,
    Weighting.MEAN: weighted_mean,
    Weighting.NON_ZERO: weighted_sum_by_non_zero_weights,
    Weighting.WEIGHTS: weighted_mean_by_weights,
}

_AXES = {ROWS: 1, COLUMNS: 2, CHANNELS: 3}


def _type_of_sums(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


_REDUCTIONS: dict[Reduction, Callable[[Tensor, Any], Tensor]] = {
    Reduction.MIN: lambda x, axis: x.amin(axis, keepdim=True),
    Reduction.MAX: lambda x, axis: x.amax(axis, keepdim=True),
    Reduction.MEAN: lambda x, axis: x.mean(axis, keepdim=True, dtype=_type_of_sums(x)),
    Reduction.SUM: lambda x, axis: x.sum(axis, keepdim=True, dtype=_type_of_sums(x)),
    Reduction.ARGUMENT_MIN: lambda x, axis: x.argmin(axis, keepdim=True).to(x.dtype),
    Reduction.ARGUMENT_MAX: lambda x, axis: x.argmax(axis, keepdim=True).to(x.dtype),
    Reduction.LAST_ARGUMENT_MIN: lambda x, axis: _last(torch.argmin, x, axis),
    Reduction.LAST_ARGUMENT_MAX: lambda x, axis: _last(torch.argmax, x, axis),
}


class Reduce(Op, kind=Kind.REDUCTION, half=True):
    """`reduce` of an image, times a weight; sums are float32, and so are their products with the weight."""

    reduction: Reduction
    axis: int | tuple[int, ...]
    weight: float = 1.0

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `reduce`."""
        result = reduce(operands[0], self.reduction, self.axis)
        return result if self.weight == 1.0 else result.mul_(self.weight)


class ReduceWeighted(Op, kind=Kind.REDUCTION):
    """The weighted sum of the channels of an image; the weights are a second one."""

    weighting: Weighting

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `weighted_sum`, `weighted_mean` and `weighted_sum_by_non_zero_weights`."""
        return _WEIGHTINGS[self.weighting](*operands)


class Spread(Op, kind=Kind.WINDOW):
    """The gradient of a mean over rows and columns: an even share for each pixel."""

    rows: int
    columns: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        share = operands[0] / (self.rows * self.columns)
        whole = share.expand(-1, -1, self.rows, self.columns)
        return whole.contiguous(memory_format=torch.channels_last)
