"""Scaling of pictures: each result pixel is the normalised sum of the source pixels within the filter's reach."""

from __future__ import annotations

import math

import numpy as np

from oracles.geometry import Axis, place


def _sinc(d: float) -> float:
    return 1.0 if d == 0.0 else math.sin(math.pi * d) / (math.pi * d)


def _lanczos(d: float) -> float:
    return _sinc(d) * _sinc(d / 3.0) if abs(d) < 3.0 else 0.0


def _hat(d: float) -> float:
    return max(0.0, 1.0 - abs(d))


def axis_matrix(axis: Axis, source: int, scale: float, translation: float, kind: str, edge: int) -> np.ndarray:
    """The matrix [result, source] of one axis; `kind` is lanczos or bilinear."""
    matrix = np.zeros((axis.result, source))
    wide = max(1.0, 1.0 / abs(scale)) if kind == "lanczos" else 1.0
    weigh = _lanczos if kind == "lanczos" else _hat
    for i in range(axis.result):
        u = (i + 0.5 - translation) / scale - 0.5 + axis.offset
        pixels = range(math.floor(u - 3.0 * wide) - 1, math.ceil(u + 3.0 * wide) + 2)
        weights = [weigh((k - u) / wide) for k in pixels]
        for k, weight in zip(pixels, weights, strict=True):
            found = place(k, source, edge)
            if found is not None:
                matrix[i, found] += weight / sum(weights)
    return matrix


def scale(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.einsum("ncyx,iy,jx->ncij", x, rows, columns)
