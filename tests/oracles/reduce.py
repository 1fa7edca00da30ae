"""Reductions along one axis of a part of an image, and of two images; correlation over displacements."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from oracles.geometry import read

CHANNELS, ROWS, COLUMNS = 1, 2, 3


class Part(NamedTuple):
    """The rows and columns of an image that are read."""

    rows: range
    columns: range

    def of(self, x: np.ndarray) -> np.ndarray:
        return x[:, :, self.rows.start : self.rows.stop, self.columns.start : self.columns.stop]


def _one(operation: str, numbers: list[float]) -> float:
    """One number for a list of them; the first NaN decides, or the last where the last argument is asked for."""
    if operation.startswith("last "):
        return len(numbers) - 1 - _one(operation.removeprefix("last "), numbers[::-1])
    if operation == "sum":
        return math.fsum(numbers)
    if operation == "mean":
        return math.fsum(numbers) / len(numbers)
    best = 0
    for index, number in enumerate(numbers):
        if math.isnan(number):
            best = index
            break
        better = number < numbers[best] if operation.endswith("min") else number > numbers[best]
        best = index if better else best
    return float(best) if operation.startswith("argument") else numbers[best]


def reduce(operation: str, axis: int, x: np.ndarray) -> np.ndarray:
    """What an axis of [N, C, H, W] becomes; it stays, with length 1."""
    shape = list(x.shape)
    shape[axis] = 1
    result = np.zeros(shape)
    for place in np.ndindex(*shape):
        result[place] = _one(
            operation, [float(x[(*place[:axis], i, *place[axis + 1 :])]) for i in range(x.shape[axis])]
        )
    return result


def weighted(operation: str, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`sum_c x_c w_c` for each pixel, divided by nothing, by C or by the number of weights that are not 0."""
    images, channels, height, width = x.shape
    result = np.zeros((images, 1, height, width))
    for n, _, v, u in np.ndindex(*result.shape):
        w = weights[n, :, v if weights.shape[2] > 1 else 0, u if weights.shape[3] > 1 else 0]
        total = math.fsum(float(x[n, c, v, u]) * float(w[c]) for c in range(channels))
        divisor = {"sum": 1, "mean": channels, "by non-zero": sum(each != 0 for each in w)}[operation]
        result[n, 0, v, u] = total / divisor if divisor else 0.0
    return result


def local_correlation(
    a: np.ndarray, b: np.ndarray, window: tuple[int, int], stride: tuple[int, int], edge: int
) -> np.ndarray:
    """`Y[n(2wx+1)+m, y, x] = sum_c A[c,y,x] B[c, y+(n-wy)ty, x+(m-wx)tx]`; `window` is (wy, wx), `stride` (ty, tx)."""
    (wy, wx), (ty, tx) = window, stride
    images, _, height, width = a.shape
    result = np.zeros((images, (2 * wy + 1) * (2 * wx + 1), height, width))
    for v in range(height):
        for u in range(width):
            for n in range(2 * wy + 1):
                for m in range(2 * wx + 1):
                    met = read(b, v + (n - wy) * ty, u + (m - wx) * tx, edge)
                    result[:, n * (2 * wx + 1) + m, v, u] = (a[:, :, v, u] * met).sum(axis=1)
    return result
