"""Scaling of pictures, bilinear and Lanczos (MPSImageResampling.h, macOS 10.13).

One axis, scale ``s`` and translation ``t`` in result pixels. Pixels are squares: the centre of pixel ``k`` lies at
``k + 1/2``, so that result pixel ``i`` looks at the source position (pixel ``k`` being position ``k``)::

    u = (i + 1/2 - t) / s - 1/2 + offset

and is the sum of ``f((k - u) / q) * E[k]`` over the source pixels k, divided by the sum of those weights:

========  ============================================================  ===============
filter    f(d)                                                          q
========  ============================================================  ===============
bilinear  ``max(0, 1 - |d|)``                                           1
Lanczos   ``sinc(d) * sinc(d / 3)`` for ``|d| < 3``, else 0             ``max(1, 1/|s|)``
========  ============================================================  ===============

with ``sinc(d) = sin(pi d) / (pi d)``. Lanczos widens as the image shrinks, which keeps finer detail than the result can
show from turning up as false patterns; bilinear reads the nearest two pixels, as a texture unit does, and does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from openmps.ops.geometry import Axis
from openmps.ops.op import Kind, Op
from openmps.ops.resample.resample import resample
from openmps.ops.resample.stretch import Taps, placed
from openmps.types import MPSImageEdgeMode


class ScaleFilter(Enum):
    """The filters of ``MPSImageBilinearScale`` and ``MPSImageLanczosScale``."""

    BILINEAR = auto()
    LANCZOS = auto()
    NARROW_LANCZOS = auto()
    """Which takes no more pixels where the image shrinks."""


def _hat(distance: Tensor) -> Tensor:
    return (1.0 - distance.abs()).clamp_(min=0.0)


def _lanczos(distance: Tensor) -> Tensor:
    return torch.where(distance.abs() < _LOBES, torch.sinc(distance) * torch.sinc(distance / _LOBES), 0.0)


_LOBES = 3
_FILTERS: dict[ScaleFilter, tuple[int, bool, Callable[[Tensor], Tensor]]] = {
    ScaleFilter.BILINEAR: (1, False, _hat),
    ScaleFilter.LANCZOS: (_LOBES, True, _lanczos),
    ScaleFilter.NARROW_LANCZOS: (_LOBES, False, _lanczos),
}
"""Reach in pixels, whether it widens as the image shrinks, and the weights."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """One axis: the source and result pixels of ``axis``, and its offset; scale, not 0; translation."""

    axis: Axis
    scale: float
    translation: float = 0.0

    def reach(self, kind: ScaleFilter) -> float:
        """How far from its position a result pixel reads, in source pixels."""
        reach, widens, _ = _FILTERS[kind]
        return reach * max(1.0, 1.0 / abs(self.scale)) if widens else float(reach)

    def position(self, pixel: float) -> float:
        """The source position of a result pixel."""
        return (pixel + 0.5 - self.translation) / self.scale - 0.5 + self.axis.offset

    def region(self, kind: ScaleFilter) -> tuple[float, float]:
        """From where to where the source is read, pixel ``k`` reaching from ``k`` to ``k + 1``."""
        reach = self.reach(kind)
        ends = (self.position(0), self.position(self.axis.result - 1))
        return math.floor(min(ends) - reach) + 1.0, math.ceil(max(ends) + reach) * 1.0

    def taps(self, kind: ScaleFilter, edge_mode: MPSImageEdgeMode, like: Tensor) -> Taps:
        """The source pixels that each result pixel reads, and their weights."""
        source, reach = self.axis.source, self.reach(kind)
        base, _, weigh = _FILTERS[kind]
        pixel = torch.arange(self.axis.result, dtype=torch.float64, device=like.device)
        position = (pixel + (0.5 - self.translation)) / self.scale + (self.axis.offset - 0.5)
        # So far outside everything is one number; beyond, whole numbers would overflow.
        position = position.clamp_(-reach - 1.0, source + reach)
        first = (position - reach).floor_() + 1.0
        index = first + torch.arange(math.ceil(2.0 * reach), dtype=torch.float64, device=like.device)[:, None]
        weight = weigh((index - position) * (base / reach))
        weight /= weight.sum(0)
        ends = (self.position(0), self.position(self.axis.result - 1))
        leaves = min(ends) - reach < 0.0 or max(ends) + reach > source - 1
        has_zeros = leaves and edge_mode == MPSImageEdgeMode.ZERO
        return _limited(Taps(source, placed(index.to(torch.int64), source, has_zeros), weight, has_zeros), like.dtype)


def _limited(taps: Taps, dtype: torch.dtype) -> Taps:
    """The same taps, those of one pixel added up where there are more taps than pixels."""
    assert taps.weight is not None
    count, result = taps.index.shape
    pixels = taps.source + taps.has_zeros
    if count <= pixels:
        return Taps(taps.source, taps.index, taps.weight.to(dtype), taps.has_zeros)
    weight = taps.weight.new_zeros((pixels, result)).scatter_add_(0, taps.index, taps.weight)
    index = torch.arange(pixels, device=weight.device)[:, None].expand(pixels, result)
    return Taps(taps.source, index, weight.to(dtype), taps.has_zeros)


def scale_image(x: Tensor, rows: Scaling, columns: Scaling, kind: ScaleFilter, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Scale an image: [N, C, H, W] to [N, C, rows.axis.result, columns.axis.result]; see the top of this file."""
    return resample(x, rows.taps(kind, edge_mode, x), columns.taps(kind, edge_mode, x))


class ScaleImage(Op, kind=Kind.WINDOW):
    """`scale_image` of a picture."""

    rows: Scaling
    columns: Scaling
    filter: ScaleFilter
    edge_mode: MPSImageEdgeMode

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `scale_image`."""
        return scale_image(operands[0], self.rows, self.columns, self.filter, self.edge_mode)
