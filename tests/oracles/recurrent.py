"""Recurrent cells over one row, or one image, at a time, in float64 loops, from the formulas of MPSRNNLayer.h.

Weights are mappings by gate: ``W[gate]`` ``[n, inputs]``, ``U[gate]`` ``[n, n]``, ``V[gate]`` ``[n, n]`` or ``[n]``,
``b[gate]`` ``[n]``; a gate that is missing counts as zeros. ``f[gate]`` are functions of one number. Images are
``[channels, height, width]``, with kernels ``[n, height, width, channels]`` whose middle is the pixel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Neuron = Callable[[float], float]


class Weights(NamedTuple):
    """Of all gates of a layer."""

    W: Mapping[str, Array]
    U: Mapping[str, Array]
    V: Mapping[str, Array]
    b: Mapping[str, Array]
    f: Mapping[str, Neuron]


def _times(matrices: Mapping[str, Array], gate: str, x: Array, size: int) -> Array:
    if gate not in matrices:
        return np.zeros((size, *x.shape[1:]))
    matrix, result = matrices[gate], np.zeros((size, *x.shape[1:]))
    for i in range(size):
        if matrix.ndim == 1:
            result[i] = matrix[i] * x[i]
        elif matrix.ndim == 4:
            for y, column in np.ndindex(x.shape[1:]):
                result[i, y, column] = _window(matrix[i], x, y, column)
        else:
            for j in range(len(x)):
                result[i] += matrix[i, j] * x[j]
    return result


def _window(kernel: Array, x: Array, row: int, column: int) -> float:
    """The sum under a kernel over one pixel; outside of the image is 0."""
    total = 0.0
    for j, i, channel in np.ndindex(kernel.shape):
        y, at = row + j - kernel.shape[0] // 2, column + i - kernel.shape[1] // 2
        if 0 <= y < x.shape[1] and 0 <= at < x.shape[2]:
            total += kernel[j, i, channel] * x[channel, y, at]
    return total


def _source(given: Weights, gate: str, x: Array, size: int, *, unit: bool) -> Array:
    """What a gate gets of the source."""
    own = x.copy() if unit else _times(given.W, gate, x, size)
    return own + given.b.get(gate, np.zeros(size)).reshape(-1, *[1] * (x.ndim - 1))


def _applied(given: Weights, gate: str, x: Array) -> Array:
    neuron = given.f.get(gate)
    return x.copy() if neuron is None else _of_each(neuron, x)


def _of_each(neuron: Neuron, x: Array) -> Array:
    return np.array([neuron(each) for each in x.ravel()]).reshape(x.shape)


def single_gate(given: Weights, x: Array, h: Array, *, unit: bool = False) -> Array:
    """One step of one row: h1."""
    size = len(h)
    return _applied(given, "g", _source(given, "g", x, size, unit=unit) + _times(given.U, "g", h, size))


def gru(given: Weights, x: Array, h0: Array, p: float = 1.0, *, flipped: bool = False, unit: bool = False) -> Array:
    """The same of gated recurrent units."""
    size = len(h0)
    z, r = (
        _applied(given, gate, _source(given, gate, x, size, unit=unit) + _times(given.U, gate, h0, size))
        for gate in "zr"
    )
    inner = _times(given.U, "h", r * h0, size) + _times(given.V, "h", z * h0, size)
    h = _applied(given, "h", _source(given, "h", x, size, unit=unit) + inner)
    result = np.zeros(h.shape)
    for i in range(size):
        rest = (1 - z[i] ** p) ** (1 / p)
        result[i] = rest * h0[i] + z[i] * h[i] if flipped else rest * h[i] + z[i] * h0[i]
    return result


def lstm(given: Weights, x: Array, h0: Array, c0: Array, output: Neuron, *, unit: bool = False) -> tuple[Array, Array]:
    """The same of long short-term memory: h1 and c1."""
    size = len(h0)

    def gate(name: str, memory: Array) -> Array:
        inner = _times(given.U, name, h0, size) + _times(given.V, name, memory, size)
        return _applied(given, name, _source(given, name, x, size, unit=unit) + inner)

    c1 = gate("f", c0) * c0 + gate("i", c0) * gate("c", c0)
    o = gate("o", c1)
    return o * _of_each(output, c1), c1


Step = Callable[[Array, Array, Array], tuple[Array, Array]]
"""x, h0 and c0 to h1 and c1; cells without a memory hand c on."""


def run(
    step: Step, steps: Sequence[Array], h: Array, c: Array, *, backward: bool = False
) -> tuple[list[Array], Array, Array]:
    """A sequence of matrices with a vector a row: what comes out of each step, and the last h and c of each row."""
    h, c = h.copy(), c.copy()
    found: dict[int, Array] = {}
    for t in reversed(range(len(steps))) if backward else range(len(steps)):
        rows = []
        for row, x in enumerate(steps[t]):
            h[row], c[row] = step(x, h[row], c[row])
            rows.append(h[row].copy())
        found[t] = np.array(rows).reshape(len(steps[t]), *h.shape[1:])
    return [found[t] for t in range(len(steps))], h, c
