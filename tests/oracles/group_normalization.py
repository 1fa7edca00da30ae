"""Group and instance normalization: each image by itself, `y = gamma_c (x - mean) / sqrt(variance + epsilon) + beta_c`.

Mean and population variance are those of a group of consecutive channels of the whole image. Result pixels are those
that a window without taps reads; pixels outside the image do not count in the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from oracles.geometry import Axis, read, scatter, windows

Statistics = tuple[float, float]


def _statistics(group: np.ndarray, epsilon: float) -> Statistics:
    """Mean and `sqrt(variance + epsilon)` of some numbers."""
    values = [float(value) for value in group.ravel()]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return mean, math.sqrt(variance + epsilon)


def _groups(x: np.ndarray, groups: int, epsilon: float) -> Iterator[tuple[int, list[int], Statistics]]:
    """Every image's groups: image, channels, statistics."""
    size = x.shape[1] // groups
    for n in range(x.shape[0]):
        for group in range(groups):
            channels = list(range(group * size, (group + 1) * size))
            yield n, channels, _statistics(x[n, channels], epsilon)


def _standard(x: np.ndarray, rows: Axis, columns: Axis, edge: int, groups: int, epsilon: float) -> np.ndarray:
    """`(x - mean) / sqrt(variance + epsilon)` at every result pixel."""
    result = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        ((_, _, row, column),) = taps
        result[:, :, y, u] = read(x, row, column, edge)
    for n, channels, (mean, deviation) in _groups(x, groups, epsilon):
        for c in channels:
            result[n, c] = (result[n, c] - mean) / deviation
    return result


def forward(
    x: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    rows: Axis,
    columns: Axis,
    edge: int,
    groups: int,
    epsilon: float,
) -> np.ndarray:
    result = _standard(x, rows, columns, edge, groups, epsilon)
    for c in range(x.shape[1]):
        result[:, c] = result[:, c] * gamma[c] + beta[c]
    return result


def gradient(
    g: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    rows: Axis,
    columns: Axis,
    edge: int,
    groups: int,
    epsilon: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For x `[N, C, H, W]`, gamma `[N, C]` and beta `[N, C]`, by the chain rule over mean and variance.

    `L = sum G gamma (x - mean) / s`, `s = sqrt(v + epsilon)`, `dmean/dx = 1 / M`, `dv/dx = 2 (x - mean) / M`.
    """
    standard = _standard(x, rows, columns, edge, groups, epsilon)
    for_gamma, for_beta = np.zeros(x.shape[:2]), np.zeros(x.shape[:2])
    for n, c in np.ndindex(*x.shape[:2]):
        for_gamma[n, c] = math.fsum((g[n, c] * standard[n, c]).ravel())
        for_beta[n, c] = math.fsum(g[n, c].ravel())
    direct = np.zeros(x.shape)
    for y, u, taps in windows(rows, columns):
        ((_, _, row, column),) = taps
        scatter(direct, row, column, edge, g[:, :, y, u])
    result = np.zeros(x.shape)
    for n, channels, (mean, deviation) in _groups(x, groups, epsilon):
        count = len(channels) * x.shape[2] * x.shape[3]
        by_mean = -math.fsum(gamma[c] * for_beta[n, c] for c in channels) / deviation
        by_variance = -math.fsum(gamma[c] * for_gamma[n, c] for c in channels) / (2.0 * deviation**2)
        for c in channels:
            centred = x[n, c] - mean
            result[n, c] = direct[n, c] * gamma[c] / deviation + by_mean / count + by_variance * 2.0 * centred / count
    return result, for_gamma, for_beta
