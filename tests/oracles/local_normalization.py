"""Spatial, local contrast and cross-channel normalization, and their gradients.

Each gradient follows one result number at a time: its own derivative by every number that it was made of, times what
comes in, is added to that number.
"""

from __future__ import annotations

import numpy as np

from oracles.geometry import Axis, read, scatter, windows

Divisor = tuple[float, float, float]
"""alpha, beta, delta."""
Contrast = tuple[float, float, float]
"""p0, pm, ps."""


def _centre(rows: Axis, columns: Axis, y: int, x: int) -> tuple[int, int]:
    return rows.tap(y, rows.size // 2), columns.tap(x, columns.size // 2)


def spatial(x: np.ndarray, rows: Axis, columns: Axis, edge: int, divisor: Divisor) -> np.ndarray:
    """`Y = X / T^beta`, `T = delta + alpha/N sum X^2` over the window's N taps."""
    alpha, beta, delta = divisor
    result = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        squares = sum(read(x, row, column, edge) ** 2 for _, _, row, column in taps)
        total = delta + alpha / len(taps) * squares
        result[:, :, y, u] = read(x, *_centre(rows, columns, y, u), edge) / total**beta
    return result


def spatial_gradient(
    g: np.ndarray, x: np.ndarray, rows: Axis, columns: Axis, edge: int, divisor: Divisor
) -> np.ndarray:
    alpha, beta, delta = divisor
    result = np.zeros(x.shape)
    for y, u, taps in windows(rows, columns):
        squares = sum(read(x, row, column, edge) ** 2 for _, _, row, column in taps)
        total = delta + alpha / len(taps) * squares
        where = _centre(rows, columns, y, u)
        flow, own = g[:, :, y, u], read(x, *where, edge)
        scatter(result, *where, edge, flow * total**-beta)
        for _, _, row, column in taps:
            by_total = -beta * own * total ** (-beta - 1.0)
            by_tap = alpha / len(taps) * 2.0 * read(x, row, column, edge)
            scatter(result, row, column, edge, flow * by_total * by_tap)
    return result


def _moments(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance, in two passes."""
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / len(values)


def local_contrast(
    x: np.ndarray, rows: Axis, columns: Axis, edge: int, divisor: Divisor, contrast: Contrast
) -> np.ndarray:
    """`Y = pm + ps (X - p0 M) / T^beta`, `T = delta + alpha V`, M and V the window's mean and variance."""
    (alpha, beta, delta), (p0, pm, ps) = divisor, contrast
    result = np.zeros((*x.shape[:2], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        mean, variance = _moments([read(x, row, column, edge) for _, _, row, column in taps])
        own = read(x, *_centre(rows, columns, y, u), edge)
        result[:, :, y, u] = pm + ps * (own - p0 * mean) / (delta + alpha * variance) ** beta
    return result


def local_contrast_gradient(
    g: np.ndarray, x: np.ndarray, rows: Axis, columns: Axis, edge: int, divisor: Divisor, contrast: Contrast
) -> np.ndarray:
    """`dM/dX = 1/N`, `dV/dX = 2 (X - M) / N` for each tap."""
    (alpha, beta, delta), (p0, _, ps) = divisor, contrast
    result = np.zeros(x.shape)
    for y, u, taps in windows(rows, columns):
        values = [read(x, row, column, edge) for _, _, row, column in taps]
        mean, variance = _moments(values)
        total = delta + alpha * variance
        where = _centre(rows, columns, y, u)
        flow, own = ps * g[:, :, y, u], read(x, *where, edge)
        scatter(result, *where, edge, flow * total**-beta)
        for (_, _, row, column), value in zip(taps, values, strict=True):
            by_mean = -p0 * total**-beta / len(taps)
            by_variance = (own - p0 * mean) * -beta * total ** (-beta - 1.0) * alpha * 2.0 * (value - mean) / len(taps)
            scatter(result, row, column, edge, flow * (by_mean + by_variance))
    return result


def _neighbours(channel: int, channels: int, size: int) -> range:
    return range(max(0, channel - size // 2), min(channels - 1, channel + (size - 1) // 2) + 1)


def channel_divisors(x: np.ndarray, size: int, alpha: float, delta: float) -> np.ndarray:
    """`L_k = delta + alpha/N sum X_q^2` over the N channels around k that there are."""
    result = np.zeros(x.shape)
    for k in range(x.shape[1]):
        squares = sum(x[:, q] ** 2 for q in _neighbours(k, x.shape[1], size))
        result[:, k] = delta + alpha / size * squares
    return result


def cross_channel(x: np.ndarray, size: int, divisor: Divisor) -> np.ndarray:
    """`Y_k = X_k / L_k^beta`."""
    alpha, beta, delta = divisor
    return x / channel_divisors(x, size, alpha, delta) ** beta


def cross_channel_gradient(g: np.ndarray, x: np.ndarray, size: int, divisor: Divisor) -> np.ndarray:
    alpha, beta, delta = divisor
    total = channel_divisors(x, size, alpha, delta)
    result = np.zeros(x.shape)
    for k in range(x.shape[1]):
        result[:, k] += g[:, k] * total[:, k] ** -beta
        for q in _neighbours(k, x.shape[1], size):
            by_total = -beta * x[:, k] * total[:, k] ** (-beta - 1.0)
            result[:, q] += g[:, k] * by_total * alpha / size * 2.0 * x[:, q]
    return result
