"""Thresholds of pictures, and limits of numbers (MPSImageThreshold.h and MPSImageMath.h)."""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch import Tensor

from openmps.ops.op import Op


class Thresholding(Enum):
    """What becomes of numbers above a threshold, and of the others."""

    BINARY = auto()
    """`largest`, else 0."""
    BINARY_INVERSE = auto()
    """0, else `largest`."""
    TRUNCATE = auto()
    """The threshold, else the number."""
    TO_ZERO = auto()
    """The number, else 0."""
    TO_ZERO_INVERSE = auto()
    """0, else the number."""


def threshold(x: Tensor, how: Thresholding, limit: float, largest: float) -> Tensor:
    """What `how` says of numbers ``> limit``; NaN is not above it."""
    above: Tensor | float = {Thresholding.BINARY: largest, Thresholding.TRUNCATE: limit, Thresholding.TO_ZERO: x}.get(
        how, 0.0
    )
    other: Tensor | float = {
        Thresholding.BINARY_INVERSE: largest, Thresholding.TRUNCATE: x, Thresholding.TO_ZERO_INVERSE: x
    }.get(how, 0.0)  # fmt: skip
    is_above = x > limit
    if isinstance(above, float) and isinstance(other, float):
        return torch.where(is_above, x.new_full((), above), x.new_full((), other))
    return torch.where(is_above, above, other)


def limited(x: Tensor, minimum: float, maximum: float) -> Tensor:
    """``min(max(x, minimum), maximum)``, infinities too; NaN stays."""
    return x.clamp(minimum, maximum)


class Threshold(Op, of=threshold):
    """`threshold` of a gray value."""

    how: Thresholding
    limit: float
    largest: float


class Limited(Op, of=limited):
    """`limited` numbers."""

    minimum: float
    maximum: float
