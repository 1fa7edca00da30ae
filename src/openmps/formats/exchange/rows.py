"""The table of a mapping: which array of a network takes which tensor, and what becomes of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from openmps.errors import lengths_text, printable
from openmps.selectors import name_arguments
from openmps.tables import printed_html

WIDTH = 80
"""Columns of the lines that tables are printed in."""


@name_arguments
@dataclass(frozen=True)
class WeightRow:
    """One array of a network and the tensor beside it: names, shapes, orders, and what is done besides."""

    array: str
    array_shape: tuple[int, ...]
    array_order: str
    tensor: str
    tensor_shape: tuple[int, ...]
    tensor_order: str
    note: str = ""


@name_arguments
@dataclass(frozen=True)
class WeightMapping:
    """What was mapped: ``rows``, the ``arrays`` of the side that was asked for, and the names of tensors ``left`` out.

    It prints as a table: two lines a row, the network's array and the tensor of the file, each with its shape and the
    order of its axes.
    """

    rows: tuple[WeightRow, ...]
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [line for row in self.rows for line in _lines(row)]
        return "\n".join([*map(printable, lines), *(f"left out: {printable(name)}" for name in self.left)])

    _repr_html_ = printed_html


def _lines(row: WeightRow) -> list[str]:
    shapes = [lengths_text(shape) or "one number" for shape in (row.array_shape, row.tensor_shape)]
    orders = [row.array_order, row.tensor_order]
    shape_width, order_width = (max(map(len, texts)) for texts in (shapes, orders))
    if shapes[0] == shapes[1] and orders[0] == orders[1] and not row.note:
        both, rest = f"{row.array} = {row.tensor}", f"{shapes[0]}  {orders[0]}"
        if len(both) + 2 + len(rest) <= WIDTH:
            return in_columns(both, rest)
    lines = [
        line
        for name, shape, order in zip((row.array, f"  {row.tensor}"), shapes, orders, strict=True)
        for line in in_columns(name, f"{shape:>{shape_width}}  {order:<{order_width}}")
    ]
    return [*lines, *([f"  {row.note}"] if row.note else [])]


def in_columns(name: str, rest: str) -> list[str]:
    """A name, and what stands at the right; below it where there is no room beside it."""
    room = WIDTH - len(rest) - 2
    if len(name) <= room:
        return [f"{name:<{room}}  {rest}".rstrip()]
    return [name, f"{rest:>{WIDTH}}".rstrip()]
