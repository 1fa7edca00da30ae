"""What a faster form of a filter is told when an encode is planned: its operations, and how pictures are stored.

Forms are chosen by the operations besides loads, reads and stores: `openmps.ops.numba.table` and
`openmps.ops.opencv.table` have those on the CPU, `openmps.ops.image.one_pass` those on CUDA.
"""

from __future__ import annotations

from typing import NamedTuple

from openmps.ops.elements import Load, Read, Store, Widen
from openmps.ops.geometry import Window
from openmps.ops.op import Op
from openmps.types import MPSImageEdgeMode
from openmps.types import MPSImageFeatureChannelFormat as Format

BYTES, FLOATS = Format.UNORM8, Format.FLOAT32
LARGEST = 255.0
"""Byte."""
MOVES = (Load, Store, Widen, Read)
"""Operations that only load, place and store."""


class Stored(NamedTuple):
    """How pictures of a source or of the result are stored."""

    channel_format: Format
    channels: int


class Site(NamedTuple):
    """One encode of a filter, as it is planned."""

    ops: tuple[Op, ...]
    """The operations, in order, but for those that only load, place and store."""
    sources: tuple[Stored, ...]
    windows: tuple[Window, ...]
    """How each source is read."""
    edges: tuple[MPSImageEdgeMode, ...]
    result: Stored
    size: tuple[int, int]
    """Rows and columns of the result."""
    unit: float
    """What an element of the sources is worth to the operations."""
    scale: float
    """What elements of the result are of their numbers."""

    @property
    def formats(self) -> tuple[Format, ...]:
        """Those of the sources, and that of the result."""
        return (*(each.channel_format for each in self.sources), self.result.channel_format)

    @property
    def window(self) -> Window:
        """That of the first source."""
        return self.windows[0]
