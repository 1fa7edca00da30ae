"""Medians of windows of bytes (MPSImageMedian.h, macOS 10.13).

Windows of up to 9 x 9 pixels by exchanges of whole pictures, which sort: the rows of a window down each column, then
the columns of windows of two, four and eight columns by merges of those before, each made once for all windows that it
is in. Of the last merge the middle number alone is made, and of the others what that one needs. A larger median is the
number of bytes that more than half of a window is above.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS, ROWS, empty_image
from openmps.ops.image.separable import window_sums
from openmps.ops.op import Kind, Op

_MOST_SORTED = 9
"""Rows of the windows that are sorted: exchanges grow faster than the window."""
_BAND = {("cpu", True): 1 << 16, ("cpu", False): 1 << 19, ("cuda", True): 1 << 24, ("cuda", False): 1 << 26}
"""Numbers of a picture whose medians are found together, by sorting or by counts: so that they stay in a cache."""


class _Wire(NamedTuple):
    """A number of each window: a picture, from a column on."""

    place: int
    column: int

    def moved(self, columns: int) -> _Wire:
        """The same number of the window so many columns further on."""
        return _Wire(self.place, self.column + columns)


class _Half(NamedTuple):
    """One half of an exchange: the smaller or the larger of two numbers of each window."""

    is_largest: bool
    a: _Wire
    b: _Wire


class _Step(NamedTuple):
    """A half that is needed, and the pictures that nobody reads afterwards."""

    half: _Half
    ends: tuple[int, ...]


class _Network:
    """The exchanges that find the middle of windows of ``size x size`` numbers, each made once."""

    def __init__(self, size: int) -> None:
        self._rows = size
        self._places: dict[_Half, int] = {}
        powers = self._sorted([_Wire(row, 0) for row in range(size)])
        parts, taken, length = list[list[_Wire]](), 0, 1
        while taken < size:
            if size & length:
                parts.append(_moved(powers, taken))
                taken += length
            powers = self._merged(powers, _moved(powers, length))
            length *= 2
        last, others = parts[0], parts[1]
        for part in parts[2:]:
            others = self._merged(others, part)
        self.result = self._middle(others, last, size * size // 2)
        self.steps = self._needed()

    def _chosen(self, is_largest: bool, a: _Wire, b: _Wire) -> _Wire:
        first = min(a.column, b.column)
        half = _Half(is_largest, *sorted((a.moved(-first), b.moved(-first))))
        return _Wire(self._places.setdefault(half, self._rows + len(self._places)), first)

    def _sorted(self, wires: list[_Wire]) -> list[_Wire]:
        if len(wires) == 1:
            return wires
        half = len(wires) // 2
        return self._merged(self._sorted(wires[:half]), self._sorted(wires[half:]))

    def _merged(self, a: list[_Wire], b: list[_Wire]) -> list[_Wire]:
        """Two sorted lists as one, by Batcher's exchanges of odd and even places."""
        if not a or not b:
            return a or b
        if len(a) == len(b) == 1:
            return [self._chosen(False, a[0], b[0]), self._chosen(True, a[0], b[0])]
        even, odd = self._merged(a[::2], b[::2]), self._merged(a[1::2], b[1::2])
        found = even[:1]
        for index in range(max(len(even) - 1, len(odd))):
            pair = odd[index : index + 1] + even[index + 1 : index + 2]
            found += pair if len(pair) == 1 else [self._chosen(False, *pair), self._chosen(True, *pair)]
        return found

    def _middle(self, a: list[_Wire], b: list[_Wire], rank: int) -> _Wire:
        """The number of this rank of two sorted lists: the smallest last one of all ways to take so many of both."""
        found: _Wire | None = None
        for count in range(len(b) + 1):
            place = rank - count  # of the last one that is taken of a
            if place < len(a):
                last = a[place] if count == 0 else self._chosen(True, a[place], b[count - 1])
                found = last if found is None else self._chosen(False, found, last)
        assert found is not None
        return found

    def _needed(self) -> tuple[_Step, ...]:
        """The halves that the result needs, in order; pictures are numbered anew, as they are made."""
        wanted, ends = {self.result.place}, dict[int, list[int]]()
        for half, place in reversed(self._places.items()):
            if place in wanted:
                fresh = {half.a.place, half.b.place} - wanted
                wanted |= fresh
                ends[place] = sorted(fresh)
        number = {place: place for place in range(self._rows)}
        steps = list[_Step]()
        for half, place in self._places.items():
            if place in wanted:
                number[place] = self._rows + len(steps)
                a, b = (_Wire(number[each.place], each.column) for each in (half.a, half.b))
                steps.append(_Step(_Half(half.is_largest, a, b), tuple(number[each] for each in ends[place])))
        self.result = _Wire(number[self.result.place], self.result.column)
        return tuple(steps)


def _moved(wires: list[_Wire], columns: int) -> list[_Wire]:
    return [each.moved(columns) for each in wires]


_network = cache(_Network)


def median(region: Tensor, size: int) -> Tensor:
    """The middle number of each window of ``size x size`` pixels, odd, of a region of bytes as they are stored."""
    images, channels, height, width = region.shape
    rows, columns = height - size + 1, width - size + 1
    is_sorted = size <= _MOST_SORTED
    band = max(1, _BAND["cpu" if region.device.type == "cpu" else "cuda", is_sorted] // (images * channels * columns))
    result = empty_image(region, channels, (rows, columns))
    for first in range(0, rows, band):
        part = region[:, :, first : min(rows, first + band) + size - 1]
        into = result[:, :, first : first + band]
        if is_sorted:
            for image, made in zip(part, into, strict=True):
                _by_sorting(image, size, made)
        else:
            into.copy_(_by_counts(part, size))
    return result


def _by_sorting(region: Tensor, size: int, result: Tensor) -> None:
    """Of one image ``[C, H, W]``, whose rows lie one behind the other: a column is a step of C numbers."""
    network, (channels, rows, columns) = _network(size), result.shape
    stride = region.shape[2] * channels
    count = rows * stride - (size - 1) * channels
    numbers: Any = region.permute(1, 2, 0).reshape(-1)
    smaller, larger = torch.minimum, torch.maximum
    if region.device.type == "cpu":
        numbers, smaller, larger = numbers.numpy(), np.minimum, np.maximum
    pictures: list[Any] = [numbers[row * stride :] for row in range(size)]
    for (is_largest, *wires), ends in network.steps:
        a, b = (pictures[wire.place][wire.column * channels :] for wire in wires)
        length = min(len(a), len(b))
        pictures.append((larger if is_largest else smaller)(a[:length], b[:length]))
        for place in ends:
            pictures[place] = None
    first = network.result.column * channels
    found = torch.as_tensor(pictures[network.result.place][first : first + count])
    result.copy_(found.as_strided((channels, rows, columns), (1, stride, channels)))


def _by_counts(region: Tensor, size: int) -> Tensor:
    stored = region.contiguous(memory_format=torch.channels_last)
    kind = torch.uint8 if size * size < 256 else torch.int32
    half = size * size // 2
    found = torch.zeros_like(stored[:, :, size - 1 :, size - 1 :], memory_format=torch.channels_last)
    for limit in range(255):
        # Bytes are compared by bounds: the engine has no fast comparison of theirs.
        is_above = stored.clamp(limit, limit + 1).sub_(limit).to(kind)
        above = window_sums(window_sums(is_above, size, ROWS), size, COLUMNS)
        found.add_(above.clamp_(half, half + 1).sub_(half).to(torch.uint8))
    return found


class Median(Op, of=median, kind=Kind.WINDOW):
    """`median` of a region of bytes."""

    size: int
