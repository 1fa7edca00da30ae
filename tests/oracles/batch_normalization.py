"""Batch normalization one number at a time, in float64. Images are ``[N, C, H, W]``, parameters ``[C]``."""

from __future__ import annotations

import math

import numpy as np


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance of each channel."""
    channels = x.shape[1]
    mean, variance = np.zeros(channels), np.zeros(channels)
    for c in range(channels):
        numbers = [float(value) for value in x[:, c].ravel()]
        mean[c] = math.fsum(numbers) / len(numbers)
        variance[c] = math.fsum((value - mean[c]) ** 2 for value in numbers) / len(numbers)
    return mean, variance


def normalized(x: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float) -> np.ndarray:
    """``xhat = (x - mean) / sqrt(variance + epsilon)``."""
    result = np.zeros(x.shape)
    for n, c, row, column in np.ndindex(*x.shape):
        result[n, c, row, column] = (x[n, c, row, column] - mean[c]) / math.sqrt(variance[c] + epsilon)
    return result


def forward(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float
) -> np.ndarray:
    """``gamma xhat + beta``."""
    result = normalized(x, mean, variance, epsilon)
    for n, c, row, column in np.ndindex(*x.shape):
        result[n, c, row, column] = gamma[c] * result[n, c, row, column] + beta[c]
    return result


def parameter_gradients(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """``dgamma = sum g xhat`` and ``dbeta = sum g``."""
    xhat = normalized(x, mean, variance, epsilon)
    channels = x.shape[1]
    gamma, beta = np.zeros(channels), np.zeros(channels)
    for n, c, row, column in np.ndindex(*x.shape):
        gamma[c] += g[n, c, row, column] * xhat[n, c, row, column]
        beta[c] += g[n, c, row, column]
    return gamma, beta


def gradient(g: np.ndarray, x: np.ndarray, gamma: np.ndarray, epsilon: float) -> np.ndarray:
    """dL/dx where mean and variance are those of ``x``, by the chain rule over both of them."""
    mean, variance = moments(x)
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    channels = x.shape[1]
    by_mean, by_variance = np.zeros(channels), np.zeros(channels)
    for n, c, row, column in np.ndindex(*x.shape):
        deviation = math.sqrt(variance[c] + epsilon)
        by_mean[c] -= g[n, c, row, column] * gamma[c] / deviation
        by_variance[c] -= 0.5 * g[n, c, row, column] * gamma[c] * (x[n, c, row, column] - mean[c]) / deviation**3
    result = np.zeros(x.shape)
    for n, c, row, column in np.ndindex(*x.shape):
        direct = g[n, c, row, column] * gamma[c] / math.sqrt(variance[c] + epsilon)
        by_spread = by_variance[c] * 2.0 * (x[n, c, row, column] - mean[c])
        result[n, c, row, column] = direct + (by_mean[c] + by_spread) / pixels
    return result


def fixed_gradient(g: np.ndarray, variance: np.ndarray, gamma: np.ndarray, epsilon: float) -> np.ndarray:
    """dL/dx where mean and variance are constants."""
    result = np.zeros(g.shape)
    for n, c, row, column in np.ndindex(*g.shape):
        result[n, c, row, column] = g[n, c, row, column] * gamma[c] / math.sqrt(variance[c] + epsilon)
    return result
