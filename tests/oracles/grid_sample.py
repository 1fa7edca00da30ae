"""Sampling an image at the positions in a grid."""

from __future__ import annotations

import math

import numpy as np

from oracles.geometry import read


def grid_sample(x: np.ndarray, grid: np.ndarray, edge: int, origin: tuple[int, int] | None = None) -> np.ndarray:
    """`origin`: the row and column of result pixel (0, 0) where the grid holds distances; None for positions."""
    images, channels, height, width = x.shape
    result = np.zeros((images, channels, *grid.shape[2:]))
    for n in range(images):
        for i, j in np.ndindex(*grid.shape[2:]):
            gx, gy = grid[n, 0, i, j], grid[n, 1, i, j]
            if origin is None:
                u, v = (gx + 1.0) / 2.0 * (width - 1), (gy + 1.0) / 2.0 * (height - 1)
            else:
                u, v = origin[1] + j + gx, origin[0] + i + gy
            if math.isnan(u) or math.isnan(v):
                result[n, :, i, j] = math.nan
                continue
            # Anywhere outside is like anywhere else on that side.
            u, v = min(max(u, -2.0), width + 1.0), min(max(v, -2.0), height + 1.0)
            column, row = math.floor(u), math.floor(v)
            a, b = u - column, v - row
            for dy, wy in ((0, 1.0 - b), (1, b)):
                for dx, wx in ((0, 1.0 - a), (1, a)):
                    result[n, :, i, j] += wy * wx * read(x[n : n + 1], row + dy, column + dx, edge)[0]
    return result
