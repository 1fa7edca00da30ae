"""What a filter's form by a library is told when an encode is planned, and how it runs on the images of a batch.

Libraries are OpenCV (`openmps.ops.opencv`) and Numba (`openmps.ops.numba`). A form is chosen by the operations of a
filter and by how pictures are stored, in the table of each, once, when the encode is planned. It runs on one picture at
a time, arrays ``[H, W, channels]`` or ``[H, W]`` that share the memory of images, and writes into that of the result.
Most functions have one thread: pictures are made in parts of rows, by as many threads as PyTorch has. No number depends
on how many those are, but for distances, for which OpenCV has another function where it has one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.cpu.parts import run_parts
from openmps.ops.elements import DTYPES
from openmps.ops.geometry import Axis, Window, packed, read
from openmps.ops.image.site import Site
from openmps.ops.op import Function, Role
from openmps.types import MPSImageEdgeMode

Array = NDArray[Any]
_FEWEST = 8
"""Rows of a part for each that windows reach beyond it: these are made twice."""
_BAND = 1 << 18
"""Numbers of a band: some float32 pictures of it in the cache of a core."""


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


Run = Callable[[Any, list[Array], Array, MPSImageEdgeMode], None]
"""Gets the library, the sources' pictures and constants behind them, the result's picture, and how sources go on."""


class Form(NamedTuple):
    """A row of the table."""

    reads: Reads
    make: Callable[[Site], Run | None]
    """Gives what computes one picture; None where the library's numbers would be others, or come no sooner."""
    edge_mode: MPSImageEdgeMode | None = None
    """How sources go on beyond their edges, whatever the filter's property says."""
    least: int | None = None
    """Numbers of the result that are worth a thread; None where rows of it follow from others than the same rows of the
    sources, and those that windows reach, or where the form itself makes parts."""
    is_shared: Callable[[Site], bool] | None = None
    """Whether the library itself has several threads for a picture, so that it is made as a whole."""
    smallest: int = 0
    """Numbers of the first source and of the result below which the form is not chosen."""


def is_large(form: Form, site: Site) -> bool:
    """Whether a form is chosen for pictures of such a size."""
    read, made = math.prod(site.window.source) * site.sources[0].channels, math.prod(site.size) * site.result.channels
    return max(read, made) >= form.smallest


class _Picture(NamedTuple):
    made: Array
    given: list[Array]


class ByLibrary:
    """A planned form, for the pictures of a batch."""

    def __init__(self, form: Form, run: Run, site: Site, function: Function) -> None:
        self._run, self._site = run, site
        is_shared = form.is_shared is not None and form.is_shared(site)
        self._least = None if is_shared else form.least
        self._edges = site.edges if form.edge_mode is None else (form.edge_mode,) * len(site.edges)
        clamps = self._edges[0] == MPSImageEdgeMode.CLAMP
        is_continued = form.reads is Reads.WINDOWS or (form.reads is Reads.CLAMPED_WINDOWS and clamps)
        is_whole = form.reads is Reads.SOURCES or (is_continued and is_centred(site.window))
        self._is_cut = form.reads in (Reads.WINDOWS, Reads.CLAMPED_WINDOWS) and not is_whole
        self._margin = site.window.size[0] // 2 if is_continued else 0
        """Rows that a window reaches above and below."""
        regions = [None if is_whole or reads_all(each) else each for each in site.windows]
        self._sources = [
            (index, regions[int(each.name)], self._edges[int(each.name)])
            for index, each in enumerate(function.inputs)
            if each.role is Role.SOURCE
        ]
        """Of each source its place among the inputs, what is read of it unless that is all, and how it goes on."""
        self._others = [index for index, each in enumerate(function.inputs) if each.role is not Role.SOURCE]

    def run(self, library: Any, values: list[Any], room: Tensor | None) -> Tensor | None:
        """Compute into ``room``, the result's memory, and give None; where that does not do, give new memory."""
        sources = [self._read(values[index], region, edge_mode) for index, region, edge_mode in self._sources]
        constants = [values[index].numpy() for index in self._others]
        place = None if room is None else _pictures(room)
        if place is None or not _is_packed(place) or meet(place, *sources, *constants):
            room, place = None, self._new(len(sources[0]))
        pictures = [_Picture(made, given) for made, *given in zip(_flat(place), *map(_flat, sources), strict=True)]
        threads = 1 if self._least is None or place.size < 2 * self._least else torch.get_num_threads()
        if threads < 2:
            for picture in pictures:
                self._make(library, picture, None, constants)
        else:
            rows = self._rows(place, threads)
            run_parts(
                lambda part: self._make(library, *part, constants),
                [(picture, part) for picture in pictures for part in rows],
                threads,
            )
        return None if room is not None else torch.from_numpy(place).permute(0, 3, 1, 2)

    def _rows(self, place: Array, threads: int) -> Sequence[slice | None]:
        """Those of each picture that one thread makes at a time; None for all of it."""
        images, height = place.shape[:2]
        if self._least is None or self._is_cut:
            return [None]
        count = min(threads, place.size // self._least) // images
        count = min(count, height // max(1, _FEWEST * self._margin))
        return [None] if count < 2 else parts(height, count)

    def _make(self, library: Any, picture: _Picture, rows: slice | None, constants: list[Array]) -> None:
        made, given = picture
        if rows is not None:
            self._make_rows(library, picture, rows, constants)
        elif self._is_cut:
            whole = np.empty((*given[0].shape[:2], *made.shape[2:]), made.dtype)
            self._run(library, [*given, *constants], whole, self._edges[0])
            (height, width), (down, across) = self._site.size, self._site.window.size
            made[...] = whole[down // 2 :, across // 2 :][:height, :width]
        else:
            self._run(library, [*given, *constants], made, self._edges[0])

    def _make_rows(self, library: Any, picture: _Picture, rows: slice, constants: list[Array]) -> None:
        (made, given), margin = picture, self._margin
        self._run(library, [*(each[rows] for each in given), *constants], made[rows], self._edges[0])
        # To the library the picture began and ended with these rows: what windows beyond them reach is made again.
        x = given[0]
        for first in (rows.start, rows.stop - margin) if margin else ():
            if margin <= first <= len(x) - 2 * margin:
                part = x[first - margin : first + 2 * margin]
                again = np.empty((len(part), *made.shape[1:]), made.dtype)
                self._run(library, [part, *constants], again, self._edges[0])
                made[first : first + margin] = again[margin : 2 * margin]

    def _new(self, images: int) -> Array:
        channel_format, channels = self._site.result
        return torch.empty((images, *self._site.size, channels), dtype=DTYPES[channel_format]).numpy()

    @staticmethod
    def _read(x: Tensor, region: Window | None, edge_mode: MPSImageEdgeMode) -> Array:
        if region is not None:
            x = read(x, region, edge_mode)
        return packed_pictures(x)


def meet(place: Array, *others: Array) -> bool:
    """Whether a picture may lie in the memory of one of other arrays: between its first and its last number."""
    return any(np.may_share_memory(place, each) for each in others)


def is_centred(window: Window) -> bool:
    """Whether a window of odd size lies around each pixel of the source, and there are no others."""
    return all(
        axis == Axis(axis.source, axis.source, axis.size, offset=0) and axis.size % 2 for axis in (window.x, window.y)
    )


def reads_all(window: Window) -> bool:
    """Whether the region that the windows read is the source."""
    return all((axis.first, axis.read) == (0, axis.source) for axis in (window.x, window.y))


def parts(height: int, count: int) -> list[slice]:
    """So many parts of rows, none of them empty, that differ by a row at most."""
    count = max(1, min(count, height))
    return [slice(height * part // count, height * (part + 1) // count) for part in range(count)]


def in_parts(make: Callable[[slice], object], x: Array, least: int) -> None:
    """Call with rows of an array, each of which can be made by itself; so many numbers are worth a thread."""
    threads = torch.get_num_threads()
    run_parts(make, parts(len(x), min(threads, x.size // least)), threads)


def bands(height: int, width: int, margin: int) -> Iterator[tuple[slice, slice, slice]]:
    """Bands of rows: those that are read, those made of them, and where these are among the rows read.

    ``width`` is the numbers of a row, ``margin`` the rows that are read above and below.
    """
    rows = max(_BAND // width, 8 * margin, 1)
    for first in range(0, height, rows):
        last = min(first + rows, height)
        start = max(first - margin, 0)
        yield slice(start, last + margin), slice(first, last), slice(first - start, last - start)


def _is_packed(pictures: Array) -> bool:
    """Whether the channels of a pixel lie side by side, and pixels of a row too."""
    (_, _, width, channels), size = pictures.shape, pictures.itemsize
    _, _, column, channel = pictures.strides
    return (channels == 1 or channel == size) and (width == 1 or column == channels * size)


def packed_pictures(images: Tensor) -> Array:
    """Images as an array ``[N, H, W, C]`` of pixels whose channels lie side by side: of the same memory if they do."""
    pictures = _pictures(images)
    return pictures if _is_packed(pictures) else _pictures(packed(images))


def _pictures(images: Tensor) -> Array:
    """Images ``[N, C, H, W]`` as an array ``[N, H, W, C]`` of the same memory."""
    return images.numpy().transpose(0, 2, 3, 1)


def _flat(pictures: Array) -> Array:
    """Pictures of one channel without an axis for it."""
    return pictures[..., 0] if pictures.shape[3] == 1 else pictures
