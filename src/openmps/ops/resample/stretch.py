"""Where the pixels of a stretched image stand: one axis of bilinear interpolation, in whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from openmps.ops.geometry import Axis
from openmps.types import MPSImageEdgeMode


class Corners(Enum):
    """What numbers of regions and grids are fractions of, and with which pixels a resized region begins and ends."""

    CENTRES = auto()
    """From the centre of the first pixel to that of the last."""
    EDGES = auto()
    """The whole image; a region is resized from its beginning to its end."""
    STEPS = auto()
    """The whole image; each pixel of a resized region begins an equal part of it. Of grids: pixels."""


@dataclass(frozen=True, slots=True)
class Taps:
    """One axis of a linear map: result pixel ``i`` is the sum over t of ``weight[t, i] * X[index[t, i]]``.

    ``index`` is whole numbers [taps, result] of 0 to ``source - 1``, and ``source`` for a zero outside, where
    ``has_zeros``. ``weight`` is alike; None if each result pixel is a copy.
    """

    source: int
    index: Tensor
    weight: Tensor | None
    has_zeros: bool


class Aligned(NamedTuple):
    """An axis between whose ends corners are aligned: result pixel ``i`` at ``i * (source - 1) / (result - 1)``."""

    source: int
    result: int
    error: float
    """How far positions lie apart from these, at most, that are computed in float32."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One axis: result pixel ``i`` stands at source position ``offset + i * numerator / denominator``."""

    source: int
    result: int
    numerator: int
    denominator: int
    offset: int = 0

    @classmethod
    def to(cls, axis: Axis, whole: int, align_corners: bool) -> Stretch:
        """The stretch of a source to ``whole`` pixels, of which the result pixels of ``axis`` are some.

        Position ``i * source / whole``; with ``align_corners`` ``i * (source - 1) / (whole - 1)``, 0 if whole = 1.
        ``axis`` tells source, offset and number of result pixels.
        """
        numerator, denominator = (axis.source - 1, whole - 1) if align_corners else (axis.source, whole)
        if denominator == 0:
            numerator, denominator = 0, 1
        common = math.gcd(numerator, denominator)
        return cls(axis.source, axis.result, numerator // common, denominator // common, axis.offset)

    @property
    def has_phases(self) -> bool:
        """Whether the source is enlarged by a whole factor and no result pixel stands outside of it."""
        return self.numerator == 1 and self.offset >= 0 and self.offset + self.blocks <= self.source

    @property
    def blocks(self) -> int:
        """Source pixels that result pixels stand at or behind, where the source is enlarged by a whole factor."""
        return -(-self.result // self.denominator)

    @property
    def stays_inside(self) -> bool:
        """Whether each result pixel stands in the source."""
        return self.offset >= 0 and self._last < self.source

    @property
    def _last(self) -> int:
        """The source pixel at or before the last result pixel."""
        return self.offset + (self.result - 1) * self.numerator // self.denominator

    def aligned(self) -> Aligned | None:
        """The axis with aligned corners of which this stretch is the first part, from ``offset`` on.

        None where it would read more than one pixel behind the last one, or one before the first.
        """
        return _aligned(self)

    def taps(self, edge_mode: MPSImageEdgeMode, like: Tensor) -> Taps:
        """The pixels and weights of linear interpolation, exact for whole numbers of any size."""
        step = torch.arange(self.result, device=like.device) * self.numerator
        base = step.div(self.denominator, rounding_mode="floor").add_(self.offset)
        has_zeros = not self.stays_inside and edge_mode == MPSImageEdgeMode.ZERO
        if self.denominator == 1:
            return Taps(self.source, placed(base[None], self.source, has_zeros), None, has_zeros)
        beyond = torch.where(base == self.source - 1, base, base + 1)
        fraction = (step % self.denominator).to(torch.float64).div_(self.denominator)
        weight = torch.stack([1.0 - fraction, fraction]).to(like.dtype)
        return Taps(self.source, placed(torch.stack([base, beyond]), self.source, has_zeros), weight, has_zeros)


def placed(index: Tensor, source: int, has_zeros: bool) -> Tensor:
    """What stands for an index outside of the source in `Taps`: the nearest pixel, or the zero behind the last one."""
    if has_zeros:
        return index.masked_fill((index < 0).logical_or_(index >= source), source)
    return index.clamp(0, source - 1)


@lru_cache(maxsize=256)
def _aligned(stretch: Stretch) -> Aligned | None:
    times = -(-(stretch.result - 1) // stretch.denominator)
    source, result = times * stretch.numerator + 1, times * stretch.denominator + 1
    if stretch.offset < 0 or stretch.offset + source > stretch.source + 1:
        return None
    step = np.float32(source - 1) / np.float32(max(1, result - 1))
    pixel = np.arange(stretch.result)
    exact = pixel * stretch.numerator / stretch.denominator
    return Aligned(source, result, float(np.abs(pixel.astype(np.float32) * step - exact).max()))
