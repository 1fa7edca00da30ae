"""Sums over rectangles that begin at a picture's corner (MPSImageIntegral.h, macOS 10.13)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import COLUMNS, ROWS, empty_image
from openmps.ops.op import Kind, Op

MOST_COLUMNS = 1 << 13
"""Of a row that a program of Triton's holds."""


def integral(region: Tensor, is_squared: bool, leaves_out: bool = False) -> Tensor:
    """``Y[y, x] = sum of region[j, i]``, or of its squares, over ``j <= y`` and ``i <= x``; sums are float64.

    Where the last row and column are left out it is over ``j < y`` and ``i < x``.
    """
    if leaves_out:
        found = torch.zeros_like(region)
        found[:, :, 1:, 1:] = integral(region, is_squared)[:, :, :-1, :-1]
        return found
    if triton.runs_on(region.device):
        from openmps.ops.triton.image import integral as kernels

        if kernels.takes(region) and region.shape[3] <= MOST_COLUMNS:
            made = torch.empty_like(region)
            kernels.integral(region, made, is_squared=is_squared).now()
            return made
    if region.device.type == "cpu":
        return _row_by_row(region, is_squared)
    numbers = region.to(torch.float64).square() if is_squared else region
    return numbers.cumsum(COLUMNS, dtype=torch.float64).cumsum(ROWS).to(region.dtype)


def _row_by_row(region: Tensor, is_squared: bool) -> Tensor:
    """Each row added to the sums of those above, while both are in a cache."""
    _, channels, height, width = region.shape
    result = empty_image(region, channels, (height, width))
    for image, into in zip(region.permute(0, 2, 3, 1).numpy(), result.permute(0, 2, 3, 1).numpy(), strict=True):
        above = np.zeros((width, channels))
        for row, made in zip(image, into, strict=True):
            numbers = row.astype(np.float64)
            above += (np.square(numbers, out=numbers) if is_squared else numbers).cumsum(0, out=numbers)
            made[...] = above
    return result


class Integral(Op, of=integral, kind=Kind.REDUCTION):
    """`integral` of a region."""

    is_squared: bool
    leaves_out: bool = False
