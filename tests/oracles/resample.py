"""Images read at other places than their pixels: upsampling, resizing, regions. Positions are exact fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from oracles.geometry import ZERO, Axis, place

Position = Fraction | float


def nearest_axis(axis: Axis, source: int, factor: int, edge: int) -> np.ndarray:
    """The matrix [result, source] of one axis."""
    matrix = np.zeros((axis.result, source))
    for i in range(axis.result):
        found = place(i // factor + axis.offset, source, edge)
        if found is not None:
            matrix[i, found] = 1.0
    return matrix


def positions(axis: Axis, source: int, whole: int, align_corners: bool) -> list[Fraction]:
    """Where the result pixels of an axis that is stretched to `whole` pixels stand."""
    if not align_corners:
        step = Fraction(source, whole)
    else:
        step = Fraction(source - 1, whole - 1) if whole > 1 else Fraction(0)
    return [i * step + axis.offset for i in range(axis.result)]


def linear_axis(where: Sequence[Position], source: int, edge: int) -> np.ndarray:
    """Interpolation at positions: behind the last pixel there is the last pixel, the rest is the edge mode's."""
    matrix = np.zeros((len(where), source))
    for i, u in enumerate(where):
        k = math.floor(u)
        w = float(u - k)
        for pixel, weight in ((k, 1.0 - w), (k if k == source - 1 else k + 1, w)):
            found = place(pixel, source, edge)
            if found is not None:
                matrix[i, found] += weight
    return matrix


def apply(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """What has the weight 0 is not read: it may be infinite."""
    result = np.zeros((*x.shape[:2], rows.shape[0], columns.shape[0]))
    for (i, y), (j, u) in _read(rows, columns):
        result[:, :, i, j] += rows[i, y] * columns[j, u] * x[:, :, y, u]
    return result


def apply_adjoint(g: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    result = np.zeros((*g.shape[:2], rows.shape[1], columns.shape[1]))
    for (i, y), (j, u) in _read(rows, columns):
        result[:, :, y, u] += rows[i, y] * columns[j, u] * g[:, :, i, j]
    return result


def _read(rows: np.ndarray, columns: np.ndarray) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of (result, source) along both axes."""
    return itertools.product(np.argwhere(rows).tolist(), np.argwhere(columns).tolist())


def nearest(
    shape: tuple[int, ...], rows: Axis, columns: Axis, factors: tuple[int, int], edge: int
) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of both axes; `factors` vertical, horizontal."""
    return (
        nearest_axis(rows, shape[2], factors[0], edge),
        nearest_axis(columns, shape[3], factors[1], edge),
    )


def linear(
    shape: tuple[int, ...], rows: Axis, columns: Axis, whole: tuple[int, int], align_corners: bool, edge: int
) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of both axes; `whole`: the height and width that the source is stretched to."""
    return (
        linear_axis(positions(rows, shape[2], whole[0], align_corners), shape[2], edge),
        linear_axis(positions(columns, shape[3], whole[1], align_corners), shape[3], edge),
    )


def _region_axis(first: float, extent: float, axis: Axis, source: int, whole: int) -> np.ndarray:
    """One axis of one region; rows of the matrix that are outside stay 0."""
    matrix = np.zeros((axis.result, source))
    for i in range(axis.result):
        if whole > 1:
            u = first * (source - 1) + i * extent * (source - 1) / (whole - 1) + axis.offset
        else:
            u = 0.5 * (first + first + extent) * (source - 1) + axis.offset
        if -1e-6 <= u <= source - 1 + 1e-6:
            matrix[i] = linear_axis([min(max(u, 0.0), source - 1.0)], source, ZERO)
    return matrix


def crop_and_resize(
    x: np.ndarray, regions: Sequence[Sequence[float]], size: tuple[int, int], rows: Axis, columns: Axis
) -> np.ndarray:
    """`regions`: left, top, width, height; the regions of image 0, then those of image 1."""
    parts: list[np.ndarray] = []
    for n in range(x.shape[0]):
        for left, top, width, height in regions:
            down = _region_axis(top, height, rows, x.shape[2], size[0])
            across = _region_axis(left, width, columns, x.shape[3], size[1])
            parts.append(apply(x[n : n + 1], down, across))
    return np.concatenate(parts)
