"""What a form by OpenCV is told when an encode is planned, and how it runs on the images of a batch.

A form is chosen by the operations of a filter and by how pictures are stored (`openmps.ops.opencv.table`), once, when
the encode is planned. It runs on one picture at a time, arrays ``[H, W, channels]`` or ``[H, W]`` that share the memory
of images, and writes into that of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.ops.elements import DTYPES, Load, Read, Store, Widen
from openmps.ops.geometry import Axis, Window, packed, read
from openmps.ops.op import Function, Op, Role
from openmps.types import MPSImageEdgeMode
from openmps.types import MPSImageFeatureChannelFormat as Format

Array = NDArray[Any]
BYTES, FLOATS = Format.UNORM8, Format.FLOAT32
LARGEST = 255.0
"""Byte."""
MOVES = (Load, Store, Widen, Read)
"""Operations that only load, place and store."""
_BAND = 1 << 18
"""Numbers of a band: some float32 pictures of it in the cache of a core."""


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


class Reads(Enum):
    """What a form is given of its sources."""

    WINDOWS = auto()
    """A picture as large as the result, which the form continues beyond its edges, as its last argument says."""
    CLAMPED_WINDOWS = auto()
    """The same of a form that knows one way to do so, by the nearest pixel."""
    REGIONS = auto()
    """The regions that windows read."""
    SOURCES = auto()
    """All of the sources."""


Run = Callable[[Any, list[Array], Array, int], None]
"""Gets the library, the sources' pictures and constants behind them, the result's picture, and the kind of border."""


class Form(NamedTuple):
    """A row of the table."""

    reads: Reads
    make: Callable[[Site], Run | None]
    """Gives what computes one picture; None where the library's numbers would be others, or come no sooner."""
    edge_mode: MPSImageEdgeMode | None = None
    """How sources go on beyond their edges, whatever the filter's property says."""


class ByLibrary:
    """A planned form, for the pictures of a batch."""

    def __init__(self, form: Form, run: Run, site: Site, function: Function) -> None:
        self._run, self._site = run, site
        self._edges = site.edges if form.edge_mode is None else (form.edge_mode,) * len(site.edges)
        clamps = self._edges[0] == MPSImageEdgeMode.CLAMP
        is_continued = form.reads is Reads.WINDOWS or (form.reads is Reads.CLAMPED_WINDOWS and clamps)
        self._reads_all = form.reads is Reads.SOURCES or (is_continued and is_centred(site.window))
        self._is_cut = form.reads in (Reads.WINDOWS, Reads.CLAMPED_WINDOWS) and not self._reads_all
        self._sources = [index for index, each in enumerate(function.inputs) if each.role is Role.SOURCE]
        self._others = [index for index, each in enumerate(function.inputs) if each.role is not Role.SOURCE]

    def run(self, cv2: Any, values: list[Any], room: Tensor | None) -> Tensor | None:
        """Compute into ``room``, the result's memory, and give None; without it, give new memory."""
        images = len(values[self._sources[0]])
        is_there = room is not None and _is_packed(room)
        result = room if room is not None and is_there else _empty(images, self._site)
        sources = [self._read(values[index], place) for place, index in enumerate(self._sources)]
        constants = [values[index].numpy() for index in self._others]
        border = border_of(cv2, self._edges[0])
        for made, *given in zip(_pictures(result), *map(_pictures, sources), strict=True):
            whole = np.empty(given[0].shape, made.dtype) if self._is_cut else made
            self._run(cv2, [*given, *constants], whole, border)
            if self._is_cut:
                (height, width), (rows, columns) = self._site.size, self._site.window.size
                made[...] = whole[rows // 2 :, columns // 2 :][:height, :width]
        return None if is_there else result

    def _read(self, x: Tensor, place: int) -> Tensor:
        if not self._reads_all:
            x = read(x, self._site.windows[place], self._edges[place])
        return x if _is_packed(x) else packed(x)


def border_of(cv2: Any, edge_mode: MPSImageEdgeMode) -> int:
    """The library's kind of border: zeros, or the nearest pixel."""
    return cv2.BORDER_REPLICATE if edge_mode == MPSImageEdgeMode.CLAMP else cv2.BORDER_CONSTANT


def is_centred(window: Window) -> bool:
    """Whether a window of odd size lies around each pixel of the source, and there are no others."""
    return all(
        axis == Axis(axis.source, axis.source, axis.size, offset=0) and axis.size % 2 for axis in (window.x, window.y)
    )


def bands(height: int, width: int, margin: int) -> Iterator[tuple[slice, slice, slice]]:
    """Bands of rows: those that are read, those made of them, and where these are among the rows read.

    ``width`` is the numbers of a row, ``margin`` the rows that are read above and below.
    """
    rows = max(_BAND // width, 8 * margin, 1)
    for first in range(0, height, rows):
        last = min(first + rows, height)
        start = max(first - margin, 0)
        yield slice(start, last + margin), slice(first, last), slice(first - start, last - start)


def _empty(images: int, site: Site) -> Tensor:
    channel_format, channels = site.result
    return torch.empty((images, *site.size, channels), dtype=DTYPES[channel_format]).permute(0, 3, 1, 2)


def _is_packed(image: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side, and pixels of a row too."""
    channels, width = image.shape[1], image.shape[3]
    _, channel, _, column = image.stride()
    return (channels == 1 or channel == 1) and (width == 1 or column == channels)


def _pictures(images: Tensor) -> Array:
    arrays = images.permute(0, 2, 3, 1).numpy()
    return arrays[..., 0] if images.shape[1] == 1 else arrays
