"""Plans of filters whose rows follow from a few rows of their sources: some rows at a time.

What a band of rows computes is lowered as an encode of its own, of the rows of the sources that it reads: where these
end within the picture nothing lies outside of them, where the picture ends the edge mode decides as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from openmps.core.image.storage import Shape, Target
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.ops.geometry import ROWS, Axis, Window, empty_image
from openmps.ops.op import Function, Role

NUMBERS = 1 << 16
"""Of a band: some pictures of float32 numbers in the cache of a core."""
Lower = Callable[[tuple[SourceRecord, ...], Target, tuple[Shape, ...]], Function]
"""What lowers an encode, of how sources are read, where results land, and the sources' shapes."""


class Band(NamedTuple):
    """Rows of a result, and the function that makes them of rows of the sources."""

    function: Function
    sources: tuple[range | None, ...]
    """Of each input the rows that it is given; None for all there is of it."""
    rows: range


class RowBands:
    """One function of pictures ``[N, C, H, W]`` as several, each of a band of rows."""

    def __init__(self, bands: Sequence[Band]) -> None:
        self._bands = tuple(bands)
        self._height = bands[-1].rows.stop

    def run(self, values: list[Any], room: Tensor | None = None) -> list[Any]:
        """See `openmps.ops.op.Form`, of values on the CPU."""
        whole = room
        for function, sources, rows in self._bands:
            given = [
                value if part is None else value.narrow(ROWS, part.start, len(part))
                for value, part in zip(values, sources, strict=True)
            ]
            (made,) = function.run(given)
            if whole is None:
                whole = empty_image(made, made.shape[1], (self._height, made.shape[3]))
            whole.narrow(ROWS, rows.start, len(rows)).copy_(made)
        return [None if whole is room else whole]


def row_bands(
    function: Function, record: ForwardRecord, shapes: tuple[Shape, ...], lower: Lower, times: int
) -> RowBands | None:
    """The bands of a planned encode, of ``times`` as many numbers; None where all of it is no more than a few bands."""
    target, sources = record.target, record.sources
    channels = max(target.channels, *(each.channels for each in sources))
    rows = NUMBERS * times // (record.images * channels * max(target.width, *(each.window.x.read for each in sources)))
    rows = max(rows, 4, *(2 * (each.window.y.extent - 1) for each in sources))
    if target.height < 3 * rows or any(function.may_share):
        return None
    made: dict[object, Function] = {}
    bands: list[Band] = []
    for first in range(0, target.height, rows):
        part = range(first, min(first + rows, target.height))
        read = [_rows_read(each.window.y, part) for each in sources]
        parts = tuple(_part(each, inside, part) for each, inside in zip(sources, read, strict=True))
        place = target._replace(height=len(part))
        key = parts, place
        if key not in made:
            given = tuple(_shape(shape, inside) for shape, inside in zip(shapes, read, strict=True))
            made[key] = lower(parts, place, given)
        inputs = tuple(read[int(name)] if role is Role.SOURCE else None for role, name in made[key].inputs)
        bands.append(Band(made[key], inputs, part))
    return RowBands(bands)


def _rows_read(axis: Axis, rows: range) -> range:
    """The rows of the source that windows of some result rows read, one at least."""
    first = axis.first + rows.start * axis.stride
    last = first + (len(rows) - 1) * axis.stride + axis.extent
    start = min(max(first, 0), axis.source - 1)
    return range(start, max(start + 1, min(last, axis.source)))


def _part(source: SourceRecord, read: range, rows: range) -> SourceRecord:
    y = source.window.y
    offset = y.offset + rows.start * y.stride - read.start
    axis = replace(y, source=len(read), result=len(rows), offset=offset)
    extent = source.extent._replace(height=len(read))
    return replace(source, extent=extent, window=Window(source.window.x, axis))


def _shape(shape: Shape, read: range) -> Shape:
    return shape._replace(extent=shape.extent._replace(height=len(read)))
