"""Extremes of windows, dilation and erosion (MPSImageMorphology.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from openmps.ops.elements import unshared
from openmps.ops.geometry import COLUMNS, ROWS, Window, read
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_Choice = Callable[..., Tensor]


def extreme(x: Tensor, window: Window, is_largest: bool) -> Tensor:
    """The largest or smallest number of each window of a picture whose edge is repeated; NaN wins.

    Extremes of two, four, eight … neighbours down, then across: the cost grows with the logarithm of the window.
    """
    choose: _Choice = torch.maximum if is_largest else torch.minimum
    window = window.cut()
    region = read(x, window, MPSImageEdgeMode.CLAMP)
    return unshared(_along(_along(region, window.y.size, ROWS, choose), window.x.size, COLUMNS, choose), x)


def _along(x: Tensor, size: int, dimension: int, choose: _Choice) -> Tensor:
    length = 1
    while length < size:
        step = min(length, size - length)
        count = x.shape[dimension] - step
        x = choose(x.narrow(dimension, 0, count), x.narrow(dimension, step, count))
        length += step
    return x


def dilate(region: Tensor, values: Tensor, is_largest: bool) -> Tensor:
    """Of windows of a region: ``max(X - values)``, or ``min(X + values)``; ``values`` is ``[kh, kw]``."""
    height, width = values.shape
    rows, columns = region.shape[2] - height + 1, region.shape[3] - width + 1
    choose: _Choice = torch.maximum if is_largest else torch.minimum
    signed = -values.to(region.dtype) if is_largest else values.to(region.dtype)
    found: Tensor | None = None
    for j in range(height):
        for i in range(width):
            shifted = region[:, :, j : j + rows, i : i + columns] + signed[j, i]
            found = shifted if found is None else choose(found, shifted, out=found)
    assert found is not None
    return found


class Extreme(Op, of=extreme, kind=Kind.WINDOW):
    """`extreme` of a picture."""

    window: Window
    is_largest: bool


class Dilate(Op, kind=Kind.WINDOW):
    """`dilate` of a region with values, the second operand."""

    is_largest: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `dilate`."""
        return dilate(operands[0], operands[1], self.is_largest)
