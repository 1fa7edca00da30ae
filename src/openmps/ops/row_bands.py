"""Functions of pictures run on bands of rows, one after the other, whose numbers stay in a core's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from openmps.ops.geometry import ROWS, empty_image
from openmps.ops.op import Function


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

    def run(self, values: list[Any]) -> list[Any]:
        """As `Function.run`, of values on the CPU."""
        whole: Tensor | None = None
        for function, sources, rows in self._bands:
            given = [
                value if part is None else value.narrow(ROWS, part.start, len(part))
                for value, part in zip(values, sources, strict=True)
            ]
            (made,) = function.run(given)
            if whole is None:
                whole = empty_image(made, made.shape[1], (self._height, made.shape[3]))
            whole.narrow(ROWS, rows.start, len(rows)).copy_(made)
        return [whole]
