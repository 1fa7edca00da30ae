"""Variances of a sample, ``sum (x - mean)^2 / (M - 1)``, by those of the population.

Kernels compute the population's, ``sum (x - mean)^2 / M``: what other readings of the headers divide by is a factor of
them. One number has no variance: 0 / 0 is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


def sample_factor(count: int) -> float:
    """What the population's variance of so many numbers is multiplied by: ``M / (M - 1)``."""
    return count / (count - 1) if count > 1 else math.nan


def population_factor(count: int) -> float:
    """The inverse: ``(M - 1) / M``."""
    return (count - 1) / count


class ScaledRow(Op, kind=Kind.REDUCTION):
    """Numbers, one a channel, times a factor, and times a number of the encode if there is one; by 0 they are 0."""

    factor: float = 1.0

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        row, *numbers = operands
        factor = self.factor * (numbers[0] if numbers else 1.0)
        return torch.zeros_like(row) if factor == 0.0 else row * factor
