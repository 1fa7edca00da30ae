"""Padding: the continuation of rows, columns and channels in five edge modes, and what flows back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracles.geometry import Axis

ZERO, CLAMP, MIRROR, MIRROR_WITH_EDGE, CONSTANT = range(5)


def place(i: int, n: int, edge: int) -> int | None:
    """The index that index `i` of an axis of `n` stands for, or None for a constant."""
    if 0 <= i < n:
        return i
    if edge in (ZERO, CONSTANT):
        return None
    if edge == CLAMP:
        return min(max(i, 0), n - 1)
    if edge == MIRROR:
        if n == 1:
            return 0
        m = i % (2 * (n - 1))
        return m if m < n else 2 * (n - 1) - m
    m = i % (2 * n)
    return m if m < n else 2 * n - 1 - m


def _places(
    shape: tuple[int, ...], rows: Axis, columns: Axis, channels: tuple[int, int], edge: int
) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int] | None]]:
    """Every number written, and the number of the source that it is a copy of."""
    _, count, height, width = shape
    before, after = channels
    for c in range(before + count + after):
        for y in range(rows.result):
            for x in range(columns.result):
                found = (
                    place(c - before, count, edge),
                    place(y + rows.offset, height, edge),
                    place(x + columns.offset, width, edge),
                )
                whole = None if None in found else (found[0] or 0, found[1] or 0, found[2] or 0)
                yield (c, y, x), whole


def pad(
    x: np.ndarray, rows: Axis, columns: Axis, channels: tuple[int, int], edge: int, fill: list[float] | float = 0.0
) -> np.ndarray:
    written = x.shape[1] + sum(channels)
    values = np.broadcast_to(np.asarray(fill, dtype=np.float64), (written,)) if edge == CONSTANT else np.zeros(written)
    result = np.zeros((x.shape[0], written, rows.result, columns.result))
    for there, here in _places(x.shape, rows, columns, channels, edge):
        result[(slice(None), *there)] = values[there[0]] if here is None else x[(slice(None), *here)]
    return result


def gradient(
    g: np.ndarray, shape: tuple[int, ...], rows: Axis, columns: Axis, channels: tuple[int, int], edge: int
) -> np.ndarray:
    result = np.zeros(shape)
    for there, here in _places(shape, rows, columns, channels, edge):
        if here is not None:
            result[(slice(None), *here)] += g[(slice(None), *there)]
    return result
