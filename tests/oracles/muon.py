"""Steps of Muon on float64 matrices, number by number."""

from __future__ import annotations

import math

import numpy as np


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    result = np.zeros((left.shape[0], right.shape[1]))
    for i in range(left.shape[0]):
        for j in range(right.shape[1]):
            result[i, j] = sum(float(left[i, k]) * float(right[k, j]) for k in range(left.shape[1]))
    return result


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Five iterations of the quintic polynomial, on the side of the matrix that is shorter."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    x = matrix / math.sqrt(sum(float(number) ** 2 for number in matrix.ravel()))
    for _ in range(5):
        square = _product(x, x.T)
        x = 3.4445 * x + _product(-4.775 * square + 2.0315 * _product(square, square), x)
    return x


def step(
    gradient: np.ndarray, values: np.ndarray, momentum: np.ndarray, rate: float, mu: float, decay: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """New values and new momentum of a matrix."""
    momentum = mu * momentum + gradient
    factor = rate * math.sqrt(max(1.0, values.shape[0] / values.shape[1]))
    return values - rate * decay * values - factor * orthogonal(gradient + mu * momentum), momentum
