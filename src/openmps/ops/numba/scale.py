"""Scaling of pictures, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.site import BYTES, Site
from openmps.ops.numba.loop import lines, loop
from openmps.ops.numba.primitives import claim, finish, mix_four, multiply_add, number, store, wait
from openmps.ops.resample.image_scale import ScaleFilter, ScaleImage, Scaling
from openmps.types import MPSImageEdgeMode

_MOST = 3
"""Columns that are read for each that is made, at most: each row of sums down has all of them."""


def _mix_rows(above: Any, below: Any, weight: Any, width: int, sums: Any) -> None:
    """Numbers between two rows of bytes."""
    for column in range(width):
        first = number(above[column])
        sums[column] = multiply_add(number(below[column]) - first, weight, first)


def _mix_columns(sums: Any, left: Any, right: Any, weights: Any, channels: int, into: Any) -> None:
    """Bytes between the pixels of a row of numbers."""
    if channels == 4:
        for pixel in range(len(left)):
            mix_four(sums, left[pixel], right[pixel], weights[pixel], into, 4 * pixel)
        return
    for pixel in range(len(left)):
        for channel in range(channels):
            first = sums[left[pixel] + channel]
            value = multiply_add(sums[right[pixel] + channel] - first, weights[pixel], first)
            store(into, pixel * channels + channel, value)


@loop(
    *("uint8[::1]", "int64", "uint8[::1]", "int64", "int64", "int64", "int64"),
    *("int64[::1]", "int64[::1]", "float32[::1]", "int64[::1]", "int64[::1]", "float32[::1]"),
    uses=(_mix_rows, _mix_columns),
)
def _scale(
    claims: Any, x: Any, x_step: int, made: Any, step: int, begin: int, width: int, channels: int,
    above: Any, below: Any, down: Any, left: Any, right: Any, across: Any,
) -> None:  # fmt: skip
    """Numbers between four bytes, rounded; columns are counted from the first that is read."""
    sums, columns = np.empty(width, np.float32), len(left) * channels
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            upper, lower = x[above[row] * x_step + begin :][:width], x[below[row] * x_step + begin :][:width]
            _mix_rows(upper, lower, down[row], width, sums)
            _mix_columns(sums, left, right, across, channels, made[row * step :][:columns])
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


class _Places(NamedTuple):
    """The two pixels around each position along an axis, and the weight of the second."""

    first: Array
    second: Array
    weights: Array


def _places(axis: Scaling) -> _Places:
    last = axis.axis.source - 1
    pixel = np.arange(axis.axis.result, dtype=np.float64)
    position = np.clip((pixel + (0.5 - axis.translation)) / axis.scale + (axis.axis.offset - 0.5), 0.0, last)
    first = np.floor(position)
    second = np.minimum(first + 1.0, last)
    return _Places(first.astype(np.int64), second.astype(np.int64), (position - first).astype(np.float32))


def scaled(site: Site) -> Run | None:
    """Bilinear `ScaleImage` of bytes, continued by its edge, that reads few columns for each that it makes."""
    op, channels = site.ops[0], site.result.channels
    assert isinstance(op, ScaleImage)
    is_bilinear = op.filter is ScaleFilter.BILINEAR and op.edge_mode == MPSImageEdgeMode.CLAMP
    if not is_bilinear or site.formats != (BYTES, BYTES):
        return None
    rows, columns = _places(op.rows), _places(op.columns)
    begin = int(columns.first.min())
    width = int(columns.second.max()) + 1 - begin
    if width > _MOST * len(columns.first):
        return None
    places = *rows, (columns.first - begin) * channels, (columns.second - begin) * channels, columns.weights

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        _scale.run(
            *(len(made), 2 * made.size, *lines(given[0]), *lines(made)),
            *(begin * channels, width * channels, channels, *places),
        )

    return run
