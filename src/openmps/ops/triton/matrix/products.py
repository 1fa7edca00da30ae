"""Products of float32 matrices in Triton, as exact as multiplications with additions: three products of TF32 each.

Long sums are split over several programs, whose sums are added in a fixed order: few rows keep a GPU busy, too.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.convolution.split_operands import Operand, split, weights_gradient
from openmps.ops.triton.overlap import Overlapping, in_turn
from openmps.ops.triton.sums import sum_of_parts

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_ROWS, _COLUMNS, _TERMS = 64, 32, 32
_PROGRAMS = 264
"""Programs, about: two for each multiprocessor of an H200."""
_FEW_TERMS, _MANY = 64, 256
"""Terms of a sum, and rows and columns of a result."""
_PIXEL = Window(Axis(1, 1), Axis(1, 1))
"""Of a weights' gradient whose images are the terms."""


@Overlapping
@triton.jit
def _product(
    left, right, parts, rows, columns, terms, each, row_of_left, term_of_left, term_of_right, column_of_right,
    row_of_parts, column_of_parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some rows and columns of a product, summed over a program's terms."""
    in_turn(OVERLAPS)
    across = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    part, is_row, is_column = tl.program_id(1), row < rows, column < columns
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    end = tl.minimum(terms, (part + 1) * each)
    for first in range(part * each, end, TERMS):
        term = first + tl.arange(0, TERMS)
        is_term = term < end
        a = left + row.to(tl.int64)[:, None] * row_of_left + term.to(tl.int64)[None, :] * term_of_left
        b = right + term.to(tl.int64)[:, None] * term_of_right + column.to(tl.int64)[None, :] * column_of_right
        factor = tl.load(a, is_row[:, None] & is_term[None, :], 0.0)
        other = tl.load(b, is_term[:, None] & is_column[None, :], 0.0)
        total = tl.dot(factor, other, total, input_precision="tf32x3")
    place = row.to(tl.int64)[:, None] * row_of_parts + column.to(tl.int64)[None, :] * column_of_parts
    tl.store(parts + part.to(tl.int64) * rows * columns + place, total, is_row[:, None] & is_column[None, :])


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` of float32, contiguous, whatever the strides.

    Of sums of few terms the factors are split before: see `split_operands`. Few rows by many columns are multiplied as
    columns by rows: those who read the larger factor split it in registers.
    """
    (rows, terms), columns = left.shape, right.shape[1]
    if _is_split_before(left, right):
        gradient, x = split(Operand(left, rows, left.stride(1)), Operand(right, columns, right.stride(0)))
        return weights_gradient(gradient, x, torch.Size((rows, 1, 1, columns)), _PIXEL).view(rows, columns)
    form = _form_of(rows, terms, columns)
    parts = torch.empty((form.parts, rows, columns), dtype=torch.float32, device=left.device)
    _launch(left, right, parts[0], form)
    return sum_of_parts(parts)


def product_into(result: Tensor, left: Tensor, right: Tensor) -> bool:
    """The same in memory of any strides, where no sum is split; whether it is so."""
    form = _form_of(left.shape[0], left.shape[1], right.shape[1])
    if form.parts != 1 or _is_split_before(left, right):
        return False
    _launch(left, right, result, form)
    return True


class _Form(NamedTuple):
    """How a product is launched."""

    is_turned: bool
    """Whether as its transpose."""
    blocks: int
    across: int
    """Columns of a block."""
    each: int
    """Terms of a part of a sum."""
    parts: int


def _form_of(rows: int, terms: int, columns: int) -> _Form:
    is_turned, across = rows <= _ROWS < columns, _COLUMNS
    if is_turned:
        rows, columns = columns, rows
        across = 2 * _COLUMNS if columns > _COLUMNS else _COLUMNS
    blocks = cdiv(rows, _ROWS) * cdiv(columns, across)
    each = cdiv(cdiv(terms, max(1, min(_PROGRAMS // blocks, terms // 128))), _TERMS) * _TERMS
    return _Form(is_turned, blocks, across, each, cdiv(terms, each))


def _is_split_before(left: Tensor, right: Tensor) -> bool:
    rows, terms = left.shape
    is_long = terms <= _FEW_TERMS and min(rows, right.shape[1]) >= _MANY
    return is_long and left.stride(0) == right.stride(1) == 1


def _launch(left: Tensor, right: Tensor, result: Tensor, form: _Form) -> None:
    """Into the memory of a result, and of as many more behind it without gaps as there are parts of sums."""
    if form.is_turned:
        left, right, result = right.t(), left.t(), result.t()
    (rows, terms), columns = left.shape, right.shape[1]
    _product[(form.blocks, form.parts)](
        left, right, result, rows, columns, terms, form.each, *left.stride(), *right.stride(), *result.stride(),
        _ROWS, form.across, _TERMS, num_warps=4, num_stages=4,
    )  # fmt: skip
