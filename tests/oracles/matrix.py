"""Kernels over matrices: products, top-k, copies, sums, batch normalization, factorizations, solutions, as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def product(
    a: Array,
    b: Array,
    c: Array,
    alpha: float,
    beta: float,
    is_left_transposed: bool = False,
    is_right_transposed: bool = False,
) -> Array:
    """`alpha op(A) op(B) + beta C`."""
    result = np.zeros(c.shape)
    inner = a.shape[0] if is_left_transposed else a.shape[1]
    for i, j in np.ndindex(*c.shape):
        terms = [
            float(a[k, i] if is_left_transposed else a[i, k]) * float(b[j, k] if is_right_transposed else b[k, j])
            for k in range(inner)
        ]
        result[i, j] = alpha * math.fsum(terms) + (beta * float(c[i, j]) if beta else 0.0)
    return result


def top_k(x: Array, count: int, first: int) -> tuple[Array, Array]:
    values, places = np.zeros((len(x), count)), np.zeros((len(x), count), np.int64)
    for row, numbers in enumerate(x):
        left = list(range(len(numbers)))
        for place in range(count):
            best = left[0]
            for column in left[1:]:
                if numbers[column] > numbers[best] or (np.isnan(numbers[column]) and not np.isnan(numbers[best])):
                    best = column
            left.remove(best)
            values[row, place], places[row, place] = numbers[best], best + first
    return values, places


def total(
    matrices: Sequence[Array], rows: int, columns: int, scales: Sequence[float], offsets: Sequence[tuple[int, int]]
) -> Array:
    """`sum_m scale[m] B_m`; what lies beyond a matrix counts 0."""
    result = np.zeros((rows, columns))
    for matrix, scale, (row, column) in zip(matrices, scales, offsets, strict=True):
        for i, j in np.ndindex(rows, columns):
            if row + i < matrix.shape[0] and column + j < matrix.shape[1]:
                result[i, j] += scale * float(matrix[row + i, column + j])
    return result


def copied(
    source: Array,
    destination: Array,
    size: tuple[int, int],
    offsets: Sequence[int],
    transposed: tuple[bool, bool],
    row_order: Sequence[int] | None = None,
    column_order: Sequence[int] | None = None,
) -> Array:
    """One copy, element by element; the destination is given back."""
    result = destination.copy()
    for i, j in np.ndindex(*size):
        at = (offsets[0] + i, offsets[1] + j)
        row, column = at[::-1] if transposed[0] else at
        place, start = ((j, i), (offsets[3], offsets[2])) if transposed[1] else ((i, j), (offsets[2], offsets[3]))
        to_row = start[0] + (place[0] if row_order is None else row_order[place[0]])
        to_column = start[1] + (place[1] if column_order is None else column_order[place[1]])
        is_read = row < source.shape[0] and column < source.shape[1]
        if is_read and to_row < result.shape[0] and to_column < result.shape[1]:
            result[to_row, to_column] = source[row, column]
    return result


def statistics(x: Array) -> tuple[Array, Array]:
    """Mean and population variance of each column."""
    rows, columns = x.shape
    mean = np.array([math.fsum(map(float, x[:, j])) / rows for j in range(columns)])
    return mean, np.array([math.fsum((float(v) - mean[j]) ** 2 for v in x[:, j]) / rows for j in range(columns)])


def normalized(x: Array, mean: Array, variance: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    result = np.zeros(x.shape)
    for i, j in np.ndindex(*x.shape):
        result[i, j] = gamma[j] * (x[i, j] - mean[j]) / math.sqrt(variance[j] + epsilon) + beta[j]
    return result


def normalized_gradient(
    g: Array, x: Array, mean: Array, variance: Array, gamma: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Those of x, gamma and beta, with the statistics of x."""
    rows, columns = x.shape
    of_x, of_gamma, of_beta = np.zeros(x.shape), np.zeros(columns), np.zeros(columns)
    for j in range(columns):
        deviation = math.sqrt(variance[j] + epsilon)
        standard = [(float(v) - mean[j]) / deviation for v in x[:, j]]
        of_beta[j] = math.fsum(map(float, g[:, j]))
        of_gamma[j] = math.fsum(float(a) * b for a, b in zip(g[:, j], standard, strict=True))
        for i in range(rows):
            of_x[i, j] = gamma[j] / deviation * (g[i, j] - of_beta[j] / rows - standard[i] * of_gamma[j] / rows)
    return of_x, of_gamma, of_beta


def lu(a: Array) -> tuple[Array, Array]:
    """L and U in one matrix, and the rows exchanged, from 0 on."""
    factors, count = a.astype(np.float64), min(a.shape)
    pivots = np.zeros(count, np.int64)
    for k in range(count):
        best = max(range(k, len(factors)), key=lambda row: abs(factors[row, k]))
        pivots[k] = best
        factors[[k, best]] = factors[[best, k]]
        if factors[k, k] == 0:
            continue
        for row in range(k + 1, len(factors)):
            factors[row, k] /= factors[k, k]
            for column in range(k + 1, a.shape[1]):
                factors[row, column] -= factors[row, k] * factors[k, column]
    return factors, pivots


def cholesky(a: Array, before: Array, is_lower: bool) -> Array:
    """The factor over `before`, up to the first pivot that is not positive."""
    source, result = (a, before.copy()) if is_lower else (a.T, before.T.copy())
    factor = np.zeros(a.shape)
    for k in range(len(a)):
        pivot = source[k, k] - math.fsum(factor[k, j] ** 2 for j in range(k))
        if not pivot > 0:
            result[k, k] = pivot
            break
        factor[k, k] = result[k, k] = math.sqrt(pivot)
        for i in range(k + 1, len(a)):
            inner = math.fsum(factor[i, j] * factor[k, j] for j in range(k))
            factor[i, k] = result[i, k] = (source[i, k] - inner) / factor[k, k]
    return result if is_lower else result.T


def solved(a: Array, b: Array) -> Array:
    """X of `A X = B`, by Gauss and Jordan."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    for k in range(len(left)):
        best = max(range(k, len(left)), key=lambda row: abs(left[row, k]))
        left[[k, best]], right[[k, best]] = left[[best, k]], right[[best, k]]
        right[k] /= left[k, k]
        left[k] /= left[k, k]
        for row in range(len(left)):
            if row != k:
                right[row] -= left[row, k] * right[k]
                left[row] -= left[row, k] * left[k]
    return right
