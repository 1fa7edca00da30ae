"""Where a window reads: result pixel `x`, tap `p` -> source pixel `s*x + o - kD//2 + d*p`, with `kD = (k-1)*d + 1`.

Images are arrays `[N, C, H, W]`. An edge mode is the framework's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

ZERO = 0
CLAMP = 1


class Axis(NamedTuple):
    """One axis of a window: result pixels, taps, stride, dilation, and the source pixel of the first centre."""

    result: int
    size: int = 1
    stride: int = 1
    dilation: int = 1
    offset: int = 0

    def tap(self, pixel: int, tap: int) -> int:
        dilated = (self.size - 1) * self.dilation + 1
        return self.stride * pixel + self.offset - dilated // 2 + self.dilation * tap


def windows(rows: Axis, columns: Axis) -> Iterator[tuple[int, int, list[tuple[int, int, int, int]]]]:
    """Every result pixel (y, x) with its taps (j, i, source row, source column) in row-major order."""
    for y in range(rows.result):
        for x in range(columns.result):
            taps = [(j, i, rows.tap(y, j), columns.tap(x, i)) for j in range(rows.size) for i in range(columns.size)]
            yield y, x, taps


def place(index: int, length: int, edge: int) -> int | None:
    """The pixel that a read of `index` on an axis of `length` pixels meets, or None for a constant zero."""
    if 0 <= index < length:
        return index
    if edge == ZERO:
        return None
    if edge == CLAMP:
        return 0 if index < 0 else length - 1
    raise ValueError(f"edge mode {edge}")


def pixel_of(image: np.ndarray, row: int, column: int, edge: int) -> tuple[int, int] | None:
    v = place(row, image.shape[2], edge)
    u = place(column, image.shape[3], edge)
    return None if v is None or u is None else (v, u)


def read(image: np.ndarray, row: int, column: int, edge: int) -> np.ndarray:
    """All images and channels at one position: `[N, C]`."""
    where = pixel_of(image, row, column, edge)
    return np.zeros(image.shape[:2]) if where is None else image[:, :, where[0], where[1]]


def scatter(image: np.ndarray, row: int, column: int, edge: int, value: np.ndarray) -> None:
    """The adjoint of `read`: what is read there is added there."""
    where = pixel_of(image, row, column, edge)
    if where is not None:
        image[:, :, where[0], where[1]] += value


def gather(image: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    """Every tap of every window: `[N, C, rows.result, columns.result, rows.size, columns.size]`."""
    shape = (*image.shape[:2], rows.result, columns.result, rows.size, columns.size)
    result = np.zeros(shape)
    for y, x, taps in windows(rows, columns):
        for j, i, row, column in taps:
            result[:, :, y, x, j, i] = read(image, row, column, edge)
    return result


def gather_adjoint(gradient: np.ndarray, shape: tuple[int, ...], rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    result = np.zeros(shape)
    for y, x, taps in windows(rows, columns):
        for j, i, row, column in taps:
            scatter(result, row, column, edge, gradient[:, :, y, x, j, i])
    return result
