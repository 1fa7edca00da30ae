"""Measures of whole pictures ``[N, C, H, W]``, two beside one another (MPSImageStatistics.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops import numba, opencv, triton
from openmps.ops.geometry import COLUMNS, ROWS
from openmps.ops.op import Kind, Op
from openmps.ops.reduce.reduce import PIXELS, Reduction, reduce

BYTES = 256
"""Numbers that a byte may be."""


def min_and_max(x: Tensor) -> Tensor:
    """The smallest and the largest number of each channel, ``[N, C, 1, 2]``; NaN anywhere gives NaN."""
    if numba.takes(x):
        from openmps.ops.numba import measures

        if x.shape[1] <= measures.MOST_CHANNELS:
            return measures.min_and_max(x)
    return torch.cat([reduce(x, each, PIXELS) for each in (Reduction.MIN, Reduction.MAX)], COLUMNS)


def byte_counts(x: Tensor, count: int) -> Tensor:
    """How often each byte is in each of the first channels of all images ``[N, C, H, W]``, int64 ``[count, 256]``."""
    if triton.runs_on(x.device):
        from openmps.ops.triton.geometry import is_packed
        from openmps.ops.triton.image import statistics as kernels

        if is_packed(x):
            return kernels.byte_counts(x, count)
    if x.device.type == "cpu" and x.shape[1] == 1 and x.numel() >= numba.LARGE and numba.library() is not None:
        from openmps.ops.numba.measures import byte_counts as counted

        return counted(x)
    if x.device.type == "cpu" and (cv2 := opencv.library()) is not None:
        return opencv.byte_counts(cv2, x, count)
    channels = [x[:, channel].reshape(-1) for channel in range(count)]
    if x.device.type == "cpu":
        return torch.stack([torch.bincount(each, minlength=BYTES) for each in channels])
    indices = torch.stack(channels).to(torch.int64)  # `bincount` would ask the device for the largest
    return indices.new_zeros(len(channels), BYTES).scatter_add_(1, indices, torch.ones_like(indices))


def mean_and_variance(x: Tensor, is_sample: bool = False) -> Tensor:
    """The mean of each channel and the mean of the squared distances from it, ``[N, C, 1, 2]``, of numbers or bytes.

    The squares of a sample are divided by one less than there are, so that those of one pixel have no mean.
    """
    if x.dtype == torch.uint8:
        found = [_moments_of_bytes(image, is_sample) for image in x.split(1)]
        return found[0][None] if len(found) == 1 else torch.stack(found)
    mean, pixels = reduce(x, Reduction.MEAN, PIXELS), x.shape[ROWS] * x.shape[COLUMNS]
    squares = (x - mean).square_()
    if is_sample:
        return torch.cat([mean, reduce(squares, Reduction.SUM, PIXELS) / (pixels - 1)], COLUMNS)
    return torch.cat([mean, reduce(squares, Reduction.MEAN, PIXELS)], COLUMNS)


def _moments_of_bytes(image: Tensor, is_sample: bool) -> Tensor:
    """Of numbers of 0 … 1 ``[C, 1, 2]``: sums of whole numbers, so that they are rounded once."""
    found = byte_counts(image, image.shape[1])
    if triton.runs_on(image.device):
        from openmps.ops.triton.image.statistics import moments

        return moments(found, is_sample=is_sample)
    counts, byte = found.double(), torch.arange(BYTES, dtype=torch.float64, device=image.device)
    total = counts.sum(1)
    mean = (counts * byte).sum(1) / total
    variance = (counts * (byte - mean[:, None]).square_()).sum(1) / (total - int(is_sample))
    scaled = torch.stack([mean / (BYTES - 1), variance / (BYTES - 1) ** 2], 1)
    return scaled.to(torch.float32)[:, None]


class MinAndMax(Op, of=min_and_max, kind=Kind.REDUCTION):
    """`min_and_max` of a picture."""


class MeanAndVariance(Op, of=mean_and_variance, kind=Kind.REDUCTION):
    """`mean_and_variance` of a picture."""

    is_sample: bool = False
