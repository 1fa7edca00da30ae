"""Recurrent layers over few rows, and their gradients, by compiled loops over the steps.

The formulas are those of `openmps.ops.matrix.recurrent_cells` and `recurrent_gradients`. A step of a row is a product
of the weights of states with a vector, and reads each weight once. Of weights that stay in a core's cache that takes
less than a library's functions of a step take to begin. One thread makes all steps.

Weights come as one axis: ``[gates n, n]`` row by row, or column by column. ``first`` and ``last`` are states that are
given, or their gradients: of the step that runs first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.ops.numba.loop import loop
from openmps.ops.numba.primitives import dot, look, multiply_add

_MATRIX, _WEIGHTS = "float32[:, ::1]", "float32[::1]"


def _exponential(x: Any) -> Any:
    """Of a number as float64: within 1e-10 of it, which float32 does not tell from it."""
    near = min(max(x, -110.0), 110.0)  # what lies beyond is 0 beside 1, and 1 beside it, in float32
    shifted = near * 1.4426950408889634 + 6755399441055744.0  # from here on the lowest bits are whole numbers
    r = near - (shifted - 6755399441055744.0) * 0.6931471805599453
    p = 1.0 + r * (1.0 / 7.0 + r * (1.0 / 56.0 + r * (1.0 / 504.0)))
    p = 1.0 + r * (1.0 + r * (1.0 / 2.0 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r / 720.0 * p)))))
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << np.int64(52))
    return np.int64(bits).view(np.float64) if x == x else x


def _sigmoid(x: Any) -> Any:
    return np.float32(1.0 / (1.0 + _exponential(-np.float64(x))))


def _tanh(x: Any) -> Any:
    wide = np.float64(x)
    square = wide * wide
    near = wide * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    far = 1.0 - 2.0 / (1.0 + _exponential(2.0 * wide))
    return np.float32(near if abs(wide) < 0.05 else far)


def _apply_sigmoid(x: Any) -> None:
    for place in range(len(x)):
        x[place] = _sigmoid(x[place])


def _apply_tanh(x: Any) -> None:
    for place in range(len(x)):
        x[place] = _tanh(x[place])


def _add_product(sums: Any, matrix: Any, place: Any, step: Any, by_rows: Any, vector: Any) -> None:
    """Add a block of a matrix times a vector; the block's rows, or its columns, begin a step apart."""
    if by_rows:
        for row in range(len(sums)):
            sums[row] += dot(matrix, place + row * step, vector)
        return
    whole = len(vector) // 4 * 4
    for first in range(0, whole, 4):
        at = place + first * step
        x, y, z, w = vector[first], vector[first + 1], vector[first + 2], vector[first + 3]
        for row in range(len(sums)):
            total = multiply_add(x, look(matrix, at + row), sums[row])
            total = multiply_add(y, look(matrix, at + step + row), total)
            total = multiply_add(z, look(matrix, at + 2 * step + row), total)
            sums[row] = multiply_add(w, look(matrix, at + 3 * step + row), total)
    for column in range(whole, len(vector)):
        for row in range(len(sums)):
            sums[row] = multiply_add(vector[column], look(matrix, place + column * step + row), sums[row])


_STEPS = _exponential, _sigmoid, _tanh, _apply_sigmoid, _apply_tanh, _add_product


@loop(*[_MATRIX] * 3, _WEIGHTS, "boolean", "boolean", uses=_STEPS)
def single_gate_steps(
    claims: Any, gates: Any, first: Any, hidden: Any, weights: Any, by_rows: bool, backward: bool
) -> None:
    """Single gates: make results of what gates are given, and the states behind all steps."""
    rows, size = first.shape
    for each in range(len(gates)):
        row, before = (len(gates) - 1 - each, len(gates) - 1 - each + rows) if backward else (each, each - rows)
        h0 = first[row % rows] if each < rows else hidden[before]
        _add_product(gates[row], weights, 0, size, by_rows, h0)
        _apply_tanh(gates[row])
        hidden[row] = gates[row]


@loop(*[_MATRIX] * 3, _WEIGHTS, "boolean", "boolean", "boolean", uses=_STEPS)
def gru_steps(
    claims: Any, gates: Any, first: Any, hidden: Any, weights: Any, by_rows: bool, flipped: bool, backward: bool
) -> None:
    """The same of gated recurrent units."""
    rows, size = first.shape
    reset = np.empty(size, np.float32)
    step, of_gate = (size, size * size) if by_rows else (3 * size, size)
    for each in range(len(gates)):
        row, before = (len(gates) - 1 - each, len(gates) - 1 - each + rows) if backward else (each, each - rows)
        own, h0, h1 = gates[row], first[row % rows] if each < rows else hidden[before], hidden[row]
        both, candidate = own[: 2 * size], own[2 * size :]
        _add_product(both, weights, 0, step, by_rows, h0)
        _apply_sigmoid(both)
        for place in range(size):
            reset[place] = own[size + place] * h0[place]
        _add_product(candidate, weights, 2 * of_gate, step, by_rows, reset)
        _apply_tanh(candidate)
        for place in range(size):
            z, h, past = both[place], candidate[place], h0[place]
            made, kept = (past, h) if flipped else (h, past)
            h1[place] = (np.float32(1.0) - z) * made + z * kept


@loop(*[_MATRIX] * 5, _WEIGHTS, "boolean", "boolean", uses=_STEPS)
def lstm_steps(
    claims: Any, gates: Any, first: Any, first_memory: Any, hidden: Any, memory: Any, weights: Any, by_rows: bool,
    backward: bool,
) -> None:  # fmt: skip
    """The same of long short-term memory."""
    rows, size = first.shape
    step = size if by_rows else 4 * size
    for each in range(len(gates)):
        row, before = (len(gates) - 1 - each, len(gates) - 1 - each + rows) if backward else (each, each - rows)
        h0 = first[row % rows] if each < rows else hidden[before]
        c0 = first_memory[row % rows] if each < rows else memory[before]
        own, c1, h1 = gates[row], memory[row], hidden[row]
        _add_product(own, weights, 0, step, by_rows, h0)
        _apply_sigmoid(own[: 2 * size])
        _apply_tanh(own[2 * size : 3 * size])
        _apply_sigmoid(own[3 * size :])
        for place in range(size):
            c1[place] = own[size + place] * c0[place] + own[place] * own[2 * size + place]
        for place in range(size):
            h1[place] = own[3 * size + place] * _tanh(c1[place])


@loop(*[_MATRIX] * 5, _WEIGHTS, "boolean", uses=_STEPS)
def single_gate_steps_back(
    claims: Any, gradient: Any, gates: Any, made: Any, last: Any, hidden: Any, weights: Any, by_rows: bool
) -> None:
    """The gradients of single gates: of what gates are given and of the states before all steps."""
    (rows, size), one = last.shape, np.float32(1.0)
    for row in range(len(gates) - 1, -1, -1):
        g, of_h0, own, a = gradient[row], hidden[row], gates[row], made[row]
        of_h1 = last[row % rows] if row + rows >= len(gates) else hidden[row + rows]
        for place in range(size):
            a[place] = (g[place] + of_h1[place]) * (one - own[place] * own[place])
        of_h0[:] = np.float32(0.0)
        _add_product(of_h0, weights, 0, size, not by_rows, a)


@loop(*[_MATRIX] * 6, _WEIGHTS, "boolean", "boolean", uses=_STEPS)
def gru_steps_back(
    claims: Any, gradient: Any, gates: Any, before: Any, made: Any, last: Any, hidden: Any, weights: Any, by_rows: bool,
    flipped: bool,
) -> None:  # fmt: skip
    """The same of gated recurrent units, by their states before steps."""
    (rows, size), one = last.shape, np.float32(1.0)
    total, reset = np.empty(size, np.float32), np.empty(size, np.float32)
    step, of_gate = (size, size * size) if by_rows else (3 * size, size)
    for row in range(len(gates) - 1, -1, -1):
        h0, g, of_h0 = before[row], gradient[row], hidden[row]
        of_h1 = last[row % rows] if row + rows >= len(gates) else hidden[row + rows]
        z, r, h = gates[row, :size], gates[row, size : 2 * size], gates[row, 2 * size :]
        az, ar, ah = made[row, :size], made[row, size : 2 * size], made[row, 2 * size :]
        for place in range(size):
            total[place] = g[place] + of_h1[place]
        for place in range(size):
            change = h[place] - h0[place] if flipped else h0[place] - h[place]
            az[place] = total[place] * change * (z[place] * (one - z[place]))
        for place in range(size):
            through = z[place] if flipped else one - z[place]
            ah[place] = total[place] * through * (one - h[place] * h[place])
            reset[place] = np.float32(0.0)
        _add_product(reset, weights, 2 * of_gate, step, not by_rows, ah)
        for place in range(size):
            past = one - z[place] if flipped else z[place]
            of_h0[place] = total[place] * past + reset[place] * r[place]
        for place in range(size):
            ar[place] = reset[place] * h0[place] * (r[place] * (one - r[place]))
        _add_product(of_h0, weights, 0, step, not by_rows, made[row, : 2 * size])


@loop(*[_MATRIX] * 9, _WEIGHTS, "boolean", uses=_STEPS)
def lstm_steps_back(
    claims: Any, gradient: Any, gates: Any, before: Any, after: Any, made: Any, last: Any, last_memory: Any,
    hidden: Any, memory: Any, weights: Any, by_rows: bool,
) -> None:  # fmt: skip
    """The same of long short-term memory, by its memories before and after steps."""
    (rows, size), one = last.shape, np.float32(1.0)
    total, out, inner = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    step = size if by_rows else 4 * size
    for row in range(len(gates) - 1, -1, -1):
        c0, c1, g, own, a = before[row], after[row], gradient[row], gates[row], made[row]
        of_h0, of_c0 = hidden[row], memory[row]
        of_h1 = last[row % rows] if row + rows >= len(gates) else hidden[row + rows]
        of_c1 = last_memory[row % rows] if row + rows >= len(gates) else memory[row + rows]
        i, f, c, o = own[:size], own[size : 2 * size], own[2 * size : 3 * size], own[3 * size :]
        ai, af, ac, ao = a[:size], a[size : 2 * size], a[2 * size : 3 * size], a[3 * size :]
        # Loops of few arrays: the compiler makes vectors where it can tell at run time that these do not overlap.
        for place in range(size):
            out[place] = _tanh(c1[place])
        for place in range(size):
            total[place] = g[place] + of_h1[place]
            of_h0[place] = np.float32(0.0)
        for place in range(size):
            ao[place] = total[place] * out[place] * (o[place] * (one - o[place]))
        for place in range(size):
            inner[place] = of_c1[place] + total[place] * o[place] * (one - out[place] * out[place])
        for place in range(size):
            ai[place] = inner[place] * c[place] * (i[place] * (one - i[place]))
        for place in range(size):
            af[place] = inner[place] * c0[place] * (f[place] * (one - f[place]))
        for place in range(size):
            ac[place] = inner[place] * i[place] * (one - c[place] * c[place])
        for place in range(size):
            of_c0[place] = inner[place] * f[place]
        _add_product(of_h0, weights, 0, step, not by_rows, a)
