"""Soft-max over the channels of each pixel, its logarithm, and both gradients from the forward result."""

from __future__ import annotations

import math

import numpy as np


def _log_sum(values: list[float]) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(v - largest) for v in values))


def _pixels(x: np.ndarray):
    for n in range(x.shape[0]):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                yield n, row, column


def log_softmax(x: np.ndarray) -> np.ndarray:
    result = np.zeros(x.shape)
    for n, row, column in _pixels(x):
        values = [float(v) for v in x[n, :, row, column]]
        total = _log_sum(values)
        result[n, :, row, column] = [v - total for v in values]
    return result


def softmax(x: np.ndarray) -> np.ndarray:
    result = np.zeros(x.shape)
    for n, row, column in _pixels(x):
        values = [float(v) for v in x[n, :, row, column]]
        total = _log_sum(values)
        result[n, :, row, column] = [math.exp(v - total) for v in values]
    return result


def softmax_gradient(g: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`dX_k = Y_k * (G_k - sum_j G_j*Y_j)`."""
    result = np.zeros(y.shape)
    for n, row, column in _pixels(y):
        gs, ys = g[n, :, row, column], y[n, :, row, column]
        inner = math.fsum(float(a) * float(b) for a, b in zip(gs, ys, strict=True))
        result[n, :, row, column] = [float(b) * (float(a) - inner) for a, b in zip(gs, ys, strict=True)]
    return result


def log_softmax_gradient(g: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`dX_k = G_k - e^{Y_k} * sum_j G_j`."""
    result = np.zeros(y.shape)
    for n, row, column in _pixels(y):
        gs, ys = g[n, :, row, column], y[n, :, row, column]
        total = math.fsum(float(a) for a in gs)
        result[n, :, row, column] = [float(a) - math.exp(float(b)) * total for a, b in zip(gs, ys, strict=True)]
    return result
