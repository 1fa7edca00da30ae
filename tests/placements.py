"""Windows over images: the awkward ones by hand and seeded samples of the whole grid, for every windowed operation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from helpers import LAYOUTS
from openmps.ops import geometry
from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode
from oracles.geometry import CLAMP, ZERO, Axis


@dataclass(frozen=True)
class Case:
    """One placement of a window over a batch of images."""

    images: int
    channels: int
    height: int
    width: int
    rows: Axis
    columns: Axis
    edge: int
    layout: str

    def window(self) -> Window:
        return window(self.rows, self.columns, self.height, self.width)

    @property
    def edge_mode(self) -> MPSImageEdgeMode:
        return MPSImageEdgeMode(self.edge)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.images, self.channels, self.height, self.width

    def result_shape(self, channels: int | None = None) -> tuple[int, int, int, int]:
        return self.images, channels or self.channels, self.rows.result, self.columns.result


def window(rows: Axis, columns: Axis, height: int, width: int) -> Window:
    """openmps' window for the oracle's axes over a source of this size."""
    return Window(
        x=geometry.Axis(width, columns.result, columns.size, columns.stride, columns.dilation, columns.offset),
        y=geometry.Axis(height, rows.result, rows.size, rows.stride, rows.dilation, rows.offset),
    )


SINGLE_AXES = [
    Axis(result=4, size=k, stride=s, dilation=d, offset=o)
    for k, s, d, o in itertools.product(range(1, 6), range(1, 4), range(1, 4), range(-2, 4))
]
"""Every kernel size, stride, dilation and offset of the grid, on one axis."""


def cases(count: int, seed: int, *, dilation: bool = True) -> list[Case]:
    """The awkward placements by hand, then `count` seeded samples of the whole grid."""
    small = Axis(result=3, size=3)
    chosen = [
        Case(0, 3, 5, 4, small, small, ZERO, "contiguous"),
        Case(0, 3, 5, 4, small, small, CLAMP, "channels_last"),
        Case(1, 1, 1, 1, Axis(1), Axis(1), ZERO, "contiguous"),
        Case(3, 4, 1, 1, Axis(4, 3, 2), Axis(3, 5, 1), CLAMP, "contiguous"),
        Case(2, 5, 1, 7, Axis(2, 2), Axis(3, 2, 3, 1, 1), ZERO, "channels_last"),
        Case(1, 4, 6, 6, Axis(3, 2, 2, 1, 1), Axis(3, 2, 2, 1, 1), ZERO, "channels_last"),
        Case(2, 3, 9, 7, Axis(4, 1, 3, 1, -1), Axis(5, 2, 3, 1, 2), CLAMP, "sliced"),
        *(
            Case(1, 4, 4, 5, rows, columns, edge, "contiguous")
            for edge in (ZERO, CLAMP)
            for rows, columns in (
                (Axis(2, 3, 1, 1, -20), Axis(3, 3)),
                (Axis(2, 3, 1, 1, 20), Axis(3, 2, 2, 1, 30)),
                (Axis(3, 3), Axis(2, 5, 1, 1, -11)),
                (Axis(6, 2, 3, 1, -6), Axis(7, 3, 2, 1, -5)),
            )
        ),
    ]
    random = np.random.default_rng(seed)
    for number in range(count):
        height, width = int(random.choice([1, 2, 5, 7, 8])), int(random.choice([1, 3, 4, 6, 9]))
        axis = _library_axis if number % 2 else _any_axis
        chosen.append(
            Case(
                images=int(random.choice([1, 2, 3])),
                channels=int(random.choice([1, 3, 4, 5])),
                height=height,
                width=width,
                rows=axis(random, height, dilation),
                columns=axis(random, width, dilation),
                edge=int(random.choice([ZERO, CLAMP])),
                layout=str(random.choice(LAYOUTS)),
            )
        )
    return chosen


def _any_axis(random: np.random.Generator, source: int, dilation: bool) -> Axis:
    return Axis(
        result=int(random.integers(1, 6)),
        size=int(random.integers(1, 6)),
        stride=int(random.integers(1, 4)),
        dilation=int(random.integers(1, 4)) if dilation else 1,
        offset=int(random.integers(-2, 4)),
    )


def _library_axis(random: np.random.Generator, source: int, dilation: bool) -> Axis:
    """As other libraries place windows: the same padding on both sides, and as many windows as fit."""
    size, stride = int(random.integers(1, 6)), int(random.integers(1, 4))
    step = int(random.integers(1, 4)) if dilation and size > 1 else 1
    extent = (size - 1) * step + 1
    fewest = max(0, -((source - extent) // 2))
    padding = int(random.integers(fewest, max(fewest, extent // 2) + 1))
    result = (source + 2 * padding - extent) // stride + 1
    return Axis(result, size, stride, step, extent // 2 - padding)
