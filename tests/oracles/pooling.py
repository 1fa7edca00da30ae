"""Pooling: maximum, average, L2 norm, with both edge modes, and their gradients."""

from __future__ import annotations

import math

import numpy as np

from oracles.geometry import CLAMP, ZERO, Axis, pixel_of, windows

Pixel = tuple[int, int]
Taps = list[tuple[int, int, int, int]]


def _pixels(x: np.ndarray, taps: Taps, edge: int) -> list[Pixel | None]:
    """What each tap meets, in row-major tap order; None is a zero outside the image."""
    return [pixel_of(x, row, column, edge) for _, _, row, column in taps]


def _maximum(plane: np.ndarray, pixels: list[Pixel | None]) -> tuple[float, Pixel | None]:
    """The largest value and the pixel that owns it: the first in tap order, images before outside zeros."""
    best, owner = -math.inf, None
    for pixel in pixels:
        if pixel is not None:
            value = float(plane[pixel])
            if math.isnan(value):
                return value, pixel
            if owner is None or value > best:
                best, owner = value, pixel
    if None in pixels and (owner is None or best < 0.0):
        return 0.0, None
    return best, owner


def maximum(x: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    result = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        pixels = _pixels(x, taps, edge)
        for n, c in np.ndindex(*x.shape[:2]):
            result[n, c, y, u] = _maximum(x[n, c], pixels)[0]
    return result


def maximum_gradient(
    g: np.ndarray, x: np.ndarray, rows: Axis, columns: Axis, edge: int, *, last: bool = False
) -> np.ndarray:
    result = np.zeros(x.shape)
    for y, u, taps in windows(rows, columns):
        pixels = _pixels(x, taps, edge)[:: -1 if last else 1]
        for n, c in np.ndindex(*x.shape[:2]):
            owner = _maximum(x[n, c], pixels)[1]
            if owner is not None:
                result[n, c, owner[0], owner[1]] += g[n, c, y, u]
    return result


def _count(taps: Taps, height: int, width: int, edge: int, zero_pad: tuple[int, int]) -> int:
    """What the sum over a window is divided by. `zero_pad` is (x, y)."""
    if edge == ZERO:
        return len(taps)
    px, py = zero_pad
    return sum(-py <= row < height + py and -px <= column < width + px for _, _, row, column in taps)


def average(x: np.ndarray, rows: Axis, columns: Axis, edge: int, zero_pad: tuple[int, int] = (0, 0)) -> np.ndarray:
    result = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        count = _count(taps, x.shape[2], x.shape[3], edge, zero_pad)
        for pixel in _pixels(x, taps, ZERO):
            if pixel is not None:
                result[:, :, y, u] += x[:, :, pixel[0], pixel[1]] / count
    return result


def average_gradient(
    g: np.ndarray,
    shape: tuple[int, ...],
    rows: Axis,
    columns: Axis,
    edge: int,
    zero_pad: tuple[int, int] = (0, 0),
) -> np.ndarray:
    result = np.zeros(shape)
    for y, u, taps in windows(rows, columns):
        count = _count(taps, shape[2], shape[3], edge, zero_pad)
        for pixel in _pixels(result, taps, ZERO):
            if pixel is not None:
                result[:, :, pixel[0], pixel[1]] += g[:, :, y, u] / count
    return result


def l2_norm(x: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    """`sqrt(sum v^2)`, no division; Clamp replicates the nearest pixel."""
    squares = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        for pixel in _pixels(x, taps, edge):
            if pixel is not None:
                squares[:, :, y, u] += x[:, :, pixel[0], pixel[1]] ** 2
    return np.sqrt(squares)


def l2_norm_gradient(g: np.ndarray, x: np.ndarray, rows: Axis, columns: Axis, edge: int) -> np.ndarray:
    """`dX[i] = sum G[x] * X[i] / Y[x]`, 0 where Y is 0."""
    norm = l2_norm(x, rows, columns, edge)
    ratio = np.divide(g, norm, out=np.zeros(g.shape), where=norm != 0)
    result = np.zeros(x.shape)
    for y, u, taps in windows(rows, columns):
        for pixel in _pixels(x, taps, edge):
            if pixel is not None:
                result[:, :, pixel[0], pixel[1]] += ratio[:, :, y, u] * x[:, :, pixel[0], pixel[1]]
    return result


__all__ = [
    "CLAMP",
    "ZERO",
    "average",
    "average_gradient",
    "l2_norm",
    "l2_norm_gradient",
    "maximum",
    "maximum_gradient",
]
