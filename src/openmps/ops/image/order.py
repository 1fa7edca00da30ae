"""Ordered numbers of windows: extremes, dilation and erosion, medians (MPSImageMorphology.h, MPSImageMedian.h)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS, ROWS, Window, empty_image, read
from openmps.ops.image.separable import window_sums
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_Choice = Callable[..., Tensor]
_BAND = {(True, True): 1 << 16, (True, False): 1 << 19, (False, True): 1 << 24, (False, False): 1 << 26}
"""Numbers of a picture whose medians are found together, on the CPU, by exchanges: in a cache those of all taps."""
_EXCHANGED = 3
"""Rows of the window whose taps are exchanged: exchanges grow with the fourth power."""


def extreme(x: Tensor, window: Window, is_largest: bool) -> Tensor:
    """The largest or smallest number of each window of a picture whose edge is repeated; NaN wins.

    Extremes of two, four, eight … neighbours down, then across: the cost grows with the logarithm of the window.
    """
    choose: _Choice = torch.maximum if is_largest else torch.minimum
    window = window.cut()
    region = read(x, window, MPSImageEdgeMode.CLAMP)
    return _along(_along(region, window.y.size, ROWS, choose), window.x.size, COLUMNS, choose)


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


def median(region: Tensor, size: int) -> Tensor:
    """The middle number of each window of ``size x size`` pixels, odd, of a region of bytes, as numbers of 0 … 1.

    Windows of 3 x 3 by exchanges of whole pictures: the smallest and the largest of just over half of the taps cannot
    be the median, so they are left out, and the next tap comes in, until one is left. Larger ones, at a cost that
    hardly grows, by counts: the median is the number of bytes that more than half of the window are above.
    """
    images, channels, height, width = region.shape
    rows, columns = height - size + 1, width - size + 1
    find = _middle if size == _EXCHANGED else _counted
    band = max(1, _BAND[region.device.type == "cpu", size == _EXCHANGED] // (images * channels * columns))
    result = empty_image(region, channels, (rows, columns))
    for first in range(0, rows, band):
        part = region[:, :, first : min(rows, first + band) + size - 1]
        result[:, :, first : first + band] = find(part, size)
    return result


def _counted(region: Tensor, size: int) -> Tensor:
    stored = (region * 255.0).round_().to(torch.uint8).contiguous(memory_format=torch.channels_last)
    kind = torch.uint8 if size * size < 256 else torch.int32
    half = size * size // 2
    found = torch.zeros_like(stored[:, :, size - 1 :, size - 1 :], memory_format=torch.channels_last)
    for limit in range(255):
        # Bytes are compared by bounds: the engine has no fast comparison of theirs.
        is_above = stored.clamp(limit, limit + 1).sub_(limit).to(kind)
        above = window_sums(window_sums(is_above, size, ROWS), size, COLUMNS)
        found.add_(above.clamp_(half, half + 1).sub_(half).to(torch.uint8))
    return found.to(region.dtype) / region.new_full((), 255.0)


def _middle(region: Tensor, size: int) -> Tensor:
    rows, columns = region.shape[2] - size + 1, region.shape[3] - size + 1
    taps = [region[:, :, j : j + rows, i : i + columns] for j in range(size) for i in range(size)]
    held = len(taps) // 2 + 2
    kept, later = taps[:held], taps[held:]
    while len(kept) > 1:
        kept = _without_extremes(kept)
        if later:
            kept.append(later.pop())
    return kept[0]


def _without_extremes(taps: list[Tensor]) -> list[Tensor]:
    """The numbers of each place, but for the smallest and the largest, in another order."""
    half = len(taps) // 2
    low = [torch.minimum(a, b) for a, b in zip(taps[:half], taps[half : 2 * half], strict=True)]
    high = [torch.maximum(a, b) for a, b in zip(taps[:half], taps[half : 2 * half], strict=True)]
    smallest, others = _set_apart(low, torch.minimum, torch.maximum)
    if len(taps) % 2:
        high.append(torch.maximum(smallest, taps[-1]))
    return [*others, *_set_apart(high, torch.maximum, torch.minimum)[1]]


def _set_apart(taps: list[Tensor], choose: _Choice, leave: _Choice) -> tuple[Tensor, list[Tensor]]:
    """The extreme of each place, and the other numbers."""
    found, others = taps[0], list[Tensor]()
    for tap in taps[1:]:
        others.append(leave(found, tap))
        found = choose(found, tap)
    return found, others


class Extreme(Op, of=extreme, kind=Kind.WINDOW, gives_view=True):
    """`extreme` of a picture."""

    window: Window
    is_largest: bool


class Dilate(Op, kind=Kind.WINDOW):
    """`dilate` of a region with values, the second operand."""

    is_largest: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `dilate`."""
        return dilate(operands[0], operands[1], self.is_largest)


class Median(Op, of=median, kind=Kind.WINDOW):
    """`median` of a region of bytes."""

    size: int
