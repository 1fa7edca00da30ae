"""A part of a step of a recurrent layer in Triton: some rows and columns, and products with weights of states.

Products are as exact as multiplications with additions: three of TF32 each, as in `products`.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

COLUMNS = 16
"""Of a program: few, so that each step of a layer keeps a GPU busy."""


def tiles(rows: int, size: int) -> tuple[int, int]:
    """Rows of a program, and terms of a sum that it takes at a time."""
    return min(64, max(16, triton.next_power_of_2(rows))), min(64, max(16, triton.next_power_of_2(size)))


def grid_of(rows: int, size: int) -> tuple[int, int]:
    """Programs of a step: columns first."""
    return triton.cdiv(size, COLUMNS), triton.cdiv(rows, tiles(rows, size)[0])


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """The hyperbolic tangent."""
    e = tl.exp(-2.0 * tl.abs(x))
    result = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0.0, result, -result)


@triton.jit
def added_product(
    total, left, row_of_left, right, term_of_right, column_of_right, terms, row, column, rows, size, TERMS: tl.constexpr
):  # fmt: skip
    """``total`` with the product of matrices that lie so added to it, at these rows and columns."""
    is_row, is_column = (row < rows)[:, None], (column < size)[None, :]
    for first in range(0, terms, TERMS):
        term = first + tl.arange(0, TERMS)
        factor = tl.load(left + row[:, None] * row_of_left + term[None, :], is_row & (term < terms)[None, :], 0.0)
        weight = right + term[:, None] * term_of_right + column[None, :] * column_of_right
        other = tl.load(weight, (term < terms)[:, None] & is_column, 0.0)
        total = tl.dot(factor, other, total, input_precision="tf32x3")
    return total
