"""Measures of whole pictures ``[N, C, H, W]``, two beside one another (MPSImageStatistics.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS
from openmps.ops.op import Kind, Op
from openmps.ops.reduce.reduce import PIXELS, Reduction, reduce


def min_and_max(x: Tensor) -> Tensor:
    """The smallest and the largest number of each channel, ``[N, C, 1, 2]``; NaN anywhere gives NaN."""
    return torch.cat([reduce(x, each, PIXELS) for each in (Reduction.MIN, Reduction.MAX)], COLUMNS)


def mean_and_variance(x: Tensor) -> Tensor:
    """The mean of each channel and the mean of the squared distances from it, ``[N, C, 1, 2]``."""
    mean = reduce(x, Reduction.MEAN, PIXELS)
    return torch.cat([mean, reduce((x - mean).square_(), Reduction.MEAN, PIXELS)], COLUMNS)


class MinAndMax(Op, of=min_and_max, kind=Kind.REDUCTION):
    """`min_and_max` of a picture."""


class MeanAndVariance(Op, of=mean_and_variance, kind=Kind.REDUCTION):
    """`mean_and_variance` of a picture."""
