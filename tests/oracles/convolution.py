"""Convolution (a correlation) with OHWI weights `[O, ky, kx, I/groups]`, its gradients, and its special cases."""

from __future__ import annotations

import numpy as np

from oracles.geometry import ZERO, Axis, read, scatter, windows


def _groups(weights: np.ndarray, groups: int) -> list[tuple[slice, slice]]:
    """For every group its result channels and its source channels."""
    outputs, inputs = weights.shape[0] // groups, weights.shape[3]
    return [(slice(g * outputs, (g + 1) * outputs), slice(g * inputs, (g + 1) * inputs)) for g in range(groups)]


def forward(
    x: np.ndarray,
    weights: np.ndarray,
    biases: np.ndarray | None,
    rows: Axis,
    columns: Axis,
    groups: int = 1,
    edge: int = ZERO,
) -> np.ndarray:
    """`Y[n,q,y,x] = b[q] + sum_{j,i,c} W[q,j,i,c] * E(X, n, group(q)*I/g + c, row(y,j), column(x,i))`."""
    result = np.zeros((x.shape[0], weights.shape[0], rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        for j, i, row, column in taps:
            pixel = read(x, row, column, edge)
            for outputs, inputs in _groups(weights, groups):
                result[:, outputs, y, u] += pixel[:, inputs] @ weights[outputs, j, i, :].T
    if biases is not None:
        result += biases[None, :, None, None]
    return result


def gradient(
    g: np.ndarray,
    x: np.ndarray,
    weights: np.ndarray,
    rows: Axis,
    columns: Axis,
    groups: int = 1,
    edge: int = ZERO,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(dX, dW, db)`: every product of the forward sum handed back to its source pixel and to its weight."""
    source, parameters = np.zeros(x.shape), np.zeros(weights.shape)
    for y, u, taps in windows(rows, columns):
        incoming = g[:, :, y, u]
        for j, i, row, column in taps:
            pixel = read(x, row, column, edge)
            back = np.zeros(x.shape[:2])
            for outputs, inputs in _groups(weights, groups):
                back[:, inputs] = incoming[:, outputs] @ weights[outputs, j, i, :]
                parameters[outputs, j, i, :] += incoming[:, outputs].T @ pixel[:, inputs]
            scatter(source, row, column, edge, back)
    return source, parameters, g.sum(axis=(0, 2, 3))


def depthwise(
    x: np.ndarray, filters: np.ndarray, biases: np.ndarray | None, rows: Axis, columns: Axis, edge: int = ZERO
) -> np.ndarray:
    """`Y[k*m + q] = X[k] (*) F[k][q]` with filters `[C, m, ky, kx]`."""
    channels, multiplier = filters.shape[:2]
    result = np.zeros((x.shape[0], channels * multiplier, rows.result, columns.result))
    for y, u, taps in windows(rows, columns):
        for j, i, row, column in taps:
            pixel = read(x, row, column, edge)
            for k in range(channels):
                for q in range(multiplier):
                    result[:, k * multiplier + q, y, u] += pixel[:, k] * filters[k, q, j, i]
    if biases is not None:
        result += biases[None, :, None, None]
    return result


def fully_connected(x: np.ndarray, weights: np.ndarray, biases: np.ndarray | None) -> np.ndarray:
    """`Y[q] = b[q] + sum_{y,x,c} W[q,y,x,c] * X[c,y,x]`, source and kernel of one size, result `[N, O, 1, 1]`."""
    images, channels, height, width = x.shape
    result = np.zeros((images, weights.shape[0], 1, 1))
    for n in range(images):
        for q in range(weights.shape[0]):
            total = 0.0 if biases is None else float(biases[q])
            for y in range(height):
                for u in range(width):
                    for c in range(channels):
                        total += weights[q, y, u, c] * x[n, c, y, u]
            result[n, q, 0, 0] = total
    return result


def fully_connected_gradient(
    g: np.ndarray, x: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, parameters, biases = np.zeros(x.shape), np.zeros(weights.shape), np.zeros(weights.shape[0])
    images, channels, height, width = x.shape
    for n in range(images):
        for q in range(weights.shape[0]):
            incoming = g[n, q, 0, 0]
            biases[q] += incoming
            for y in range(height):
                for u in range(width):
                    for c in range(channels):
                        source[n, c, y, u] += weights[q, y, u, c] * incoming
                        parameters[q, y, u, c] += x[n, c, y, u] * incoming
    return source, parameters, biases


def _stuffed(x: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """`Z[s*i] = X[i]`, zeros between: `(source - 1) * s + 1` pixels on each axis."""
    images, channels, height, width = x.shape
    z = np.zeros((images, channels, (height - 1) * rows.stride + 1, (width - 1) * columns.stride + 1))
    for v in range(height):
        for u in range(width):
            z[:, :, v * rows.stride, u * columns.stride] = x[:, :, v, u]
    return z


def _over_stuffed(axis: Axis) -> Axis:
    """A transposed convolution's axis as windows over Z: one pixel of Z from one result pixel to the next."""
    return axis._replace(stride=1)


def transpose(
    x: np.ndarray, weights: np.ndarray, biases: np.ndarray | None, rows: Axis, columns: Axis, groups: int = 1
) -> np.ndarray:
    """`Y[q,y,x] = b[q] + sum_{j,i,c} W[q,j,i,c] * Z[c, y + T.y - kyD//2 + dy*j, x + T.x - kxD//2 + dx*i]`.

    The axes' stride is the upsampling factor and their offset the total offset T, in pixels of Z.
    """
    z = _stuffed(x, rows, columns)
    return forward(z, weights, biases, _over_stuffed(rows), _over_stuffed(columns), groups, ZERO)


def transpose_gradient(
    g: np.ndarray, x: np.ndarray, weights: np.ndarray, rows: Axis, columns: Axis, groups: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(dX, dW, db)`: the gradient for Z at the pixels that hold the source; the other pixels are constants."""
    z = _stuffed(x, rows, columns)
    back, parameters, biases = gradient(g, z, weights, _over_stuffed(rows), _over_stuffed(columns), groups, ZERO)
    return back[:, :, :: rows.stride, :: columns.stride], parameters, biases


def sub_pixels(plain: np.ndarray, factor: int, height: int, width: int) -> np.ndarray:
    """`Y[y,x,c] = I[y//f, x//f, (O/f^2) * (f*(y%f) + x%f) + c]`."""
    channels = plain.shape[1] // factor**2
    result = np.zeros((plain.shape[0], channels, height, width))
    for y in range(height):
        for x in range(width):
            first = channels * (factor * (y % factor) + x % factor)
            result[:, :, y, x] = plain[:, first : first + channels, y // factor, x // factor]
    return result


def half_precision(
    x: np.ndarray,
    weights: np.ndarray,
    biases: np.ndarray | None,
    rows: Axis,
    columns: Axis,
    groups: int = 1,
    edge: int = ZERO,
) -> np.ndarray:
    """`forward` with a float16 accumulator, rounded after each product in the order j, i, c; the bias is added last.

    NumPy rounds float64 to float16 once, ties to even.
    """
    result = np.zeros((x.shape[0], weights.shape[0], rows.result, columns.result))
    inputs = weights.shape[3]
    for y, u, taps in windows(rows, columns):
        for n in range(x.shape[0]):
            for q in range(weights.shape[0]):
                first = q // (weights.shape[0] // groups) * inputs
                total = np.float16(0.0)
                for j, i, row, column in taps:
                    pixel = read(x, row, column, edge)[n]
                    for c in range(inputs):
                        total = np.float16(float(total) + weights[q, j, i, c] * pixel[first + c])
                result[n, q, y, u] = float(total)
    return result if biases is None else result + biases[None, :, None, None]
