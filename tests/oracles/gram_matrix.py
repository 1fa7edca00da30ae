"""The Gram matrix of an image's channels: `Y[n, c, 0, f] = alpha * sum over pixels of X[n, f] * X[n, c]`."""

from __future__ import annotations

import math

import numpy as np


def forward(x: np.ndarray, alpha: float) -> np.ndarray:
    images, channels = x.shape[:2]
    result = np.zeros((images, channels, 1, channels))
    for n in range(images):
        for c in range(channels):
            for f in range(channels):
                result[n, c, 0, f] = alpha * math.fsum((x[n, f] * x[n, c]).ravel())
    return result


def gradient(g: np.ndarray, x: np.ndarray, alpha: float) -> np.ndarray:
    """Every product `X[n, f, y, x] * X[n, c, y, x]` gives to both of its factors."""
    result = np.zeros(x.shape)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for f in range(x.shape[1]):
                result[n, f] += alpha * g[n, c, 0, f] * x[n, c]
                result[n, c] += alpha * g[n, c, 0, f] * x[n, f]
    return result
