"""Sums over rectangles that begin at a picture's corner (MPSImageIntegral.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS, ROWS
from openmps.ops.op import Kind, Op


def integral(region: Tensor, is_squared: bool) -> Tensor:
    """``Y[y, x] = sum of region[j, i]``, or of its squares, over ``j <= y`` and ``i <= x``; sums are float64."""
    numbers = region.to(torch.float64)
    return (numbers.square() if is_squared else numbers).cumsum(COLUMNS).cumsum(ROWS).to(region.dtype)


class Integral(Op, of=integral, kind=Kind.REDUCTION):
    """`integral` of a region."""

    is_squared: bool
