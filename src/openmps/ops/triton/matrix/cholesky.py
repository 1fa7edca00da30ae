"""The end of Cholesky's factorization in Triton: what the library gives, and what it leaves undone where it fails."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_TILE, _ROWS, _TERMS = 64, 128, 64
"""Rows and columns of a program; rows, and terms of a sum, that are factorized at a time."""


@triton.jit
def _column(source, result, failed, j, order, row_of_source, column_of_source, ROWS: tl.constexpr, TERMS: tl.constexpr):
    """Column ``j`` of the factor, by those before; of the one that ``failed`` the pivot alone, as it is."""
    at_j = tl.cast(j, tl.int64)
    own, root = result + at_j * order, tl.full([], 1.0, source.dtype.element_ty)
    for first in range(j, order, ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        is_row = row < order
        x = tl.load(source + row * row_of_source + at_j * column_of_source, is_row, 0.0)
        for term in range(0, j, TERMS):
            at = term + tl.arange(0, TERMS)
            mine = tl.load(result + row[:, None] * order + at[None, :], is_row[:, None] & (at < j)[None, :], 0.0)
            x -= tl.sum(mine * tl.load(own + at, at < j, 0.0)[None, :], 1)
        if j == failed:
            tl.store(own + row, x, row == j)
        else:
            root = tl.where(first == j, tl.sqrt(tl.sum(tl.where(row == j, x, 0.0))), root)
            tl.store(result + row * order + j, tl.where(row == j, root, x / root), is_row)


@Launched
@triton.jit
def _finish(
    factor, source, place, info, result, order, of_factor, row_of_factor, column_of_factor, of_source, row_of_source,
    column_of_source, of_place, row_of_place, column_of_place,
    TILE: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """A tile of a matrix; of one that failed the first program makes all."""
    matrix, across = tl.program_id(1).to(tl.int64), tl.cdiv(order, TILE)
    failed, tile = tl.load(info + matrix) - 1, tl.program_id(0)
    source, place, result = source + matrix * of_source, place + matrix * of_place, result + matrix * order * order
    first, last = tile, tile + 1
    if failed >= 0:
        first, last = tl.where(tile == 0, 0, across * across), across * across
    for each in range(first, last):
        row = (each // across * TILE + tl.arange(0, TILE).to(tl.int64))[:, None]
        column = (each % across * TILE + tl.arange(0, TILE).to(tl.int64))[None, :]
        is_there, is_given = (row < order) & (column < order), (row >= column) & (failed < 0)
        at = factor + matrix * of_factor + row * row_of_factor + column * column_of_factor
        x = tl.load(at, is_there & is_given, 0.0)
        other = tl.load(place + row * row_of_place + column * column_of_place, is_there & (is_given == 0), 0.0)
        tl.store(result + row * order + column, tl.where(is_given, x, other), is_there)
    if (failed >= 0) & (tile == 0):
        for j in range(failed + 1):
            tl.debug_barrier()
            _column(source, result, failed, j, order, row_of_source, column_of_source, ROWS, TERMS)


def finish(factor: Tensor, source: Tensor, place: Tensor, info: Tensor) -> Tensor:
    """The lower triangle of ``factor``, what stands above it in ``place``, of matrices ``[B, order, order]``.

    Of a matrix with a positive ``info``, the pivot's number from 1 on, the columns before that pivot and the pivot
    itself are computed of ``source``, one after the other, by one program; the rest is that of ``place``.
    """
    count, order, _ = factor.shape
    result = torch.empty((count, order, order), dtype=factor.dtype, device=factor.device)
    if count and order:
        _finish[(cdiv(order, _TILE) ** 2, count)](
            factor, source, place, info, result, order, *factor.stride(), *source.stride(), *place.stride(),
            _TILE, _ROWS, _TERMS, num_warps=8,
        )  # fmt: skip
    return result
