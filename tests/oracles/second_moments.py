"""The end of a residual block one number at a time, in float64: a 1 x 1 convolution, normalized, added to, rectified.

Images are ``[N, C, H, W]``, weights ``[O, I]``, everything else one number a channel.
"""

from __future__ import annotations

import math

import numpy as np

from oracles import batch_normalization


def product(x: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """``z[q] = sum_c weights[q, c] x[c] + biases[q]`` at each pixel."""
    images, inputs, height, width = x.shape
    result = np.zeros((images, len(weights), height, width))
    for n, q, row, column in np.ndindex(*result.shape):
        result[n, q, row, column] = biases[q] + math.fsum(weights[q, c] * x[n, c, row, column] for c in range(inputs))
    return result


def forward(
    x: np.ndarray,
    weights: np.ndarray,
    biases: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    other: np.ndarray,
    epsilon: float,
) -> np.ndarray:
    """What the rectifier reads: ``gamma zhat + beta + other``."""
    z = product(x, weights, biases)
    return batch_normalization.forward(z, *batch_normalization.moments(z), gamma, beta, epsilon) + other


def gradients(
    g: np.ndarray, x: np.ndarray, weights: np.ndarray, biases: np.ndarray, gamma: np.ndarray, epsilon: float
) -> tuple[np.ndarray, ...]:
    """For source, weights, biases, gamma and beta, of the gradient of what `forward` gives."""
    z = product(x, weights, biases)
    mean, variance = batch_normalization.moments(z)
    for_gamma, for_beta = batch_normalization.parameter_gradients(g, z, mean, variance, epsilon)
    back = batch_normalization.gradient(g, z, gamma, epsilon)
    source, for_weights, for_biases = np.zeros(x.shape), np.zeros(weights.shape), np.zeros(len(weights))
    for n, q, row, column in np.ndindex(*z.shape):
        for_biases[q] += back[n, q, row, column]
        for c in range(x.shape[1]):
            source[n, c, row, column] += weights[q, c] * back[n, q, row, column]
            for_weights[q, c] += back[n, q, row, column] * x[n, c, row, column]
    return source, for_weights, for_biases, for_gamma, for_beta
