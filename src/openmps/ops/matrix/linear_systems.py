"""Factorizations of matrices ``[B, rows, columns]``, and solutions of linear systems by them.

MPSMatrixDecomposition.h, MPSMatrixSolve.h, macOS 10.13. What the factorizations find is said by numbers: a status of
one int32 over all matrices, the first that is not 0. Nothing waits for the device, and nothing raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.op import Kind, Op

SINGULAR, NOT_POSITIVE_DEFINITE = -2, -3
"""Statuses; 0 is success."""


def _first(statuses: Tensor) -> Tensor:
    """The first status that is not 0, ``[1, 1]``; 0 if all are."""
    if len(statuses) == 1:
        return statuses.to(torch.int32).unsqueeze(0)
    place = (statuses != 0).to(torch.int32).argmax(0, keepdim=True)
    return statuses.gather(0, place).to(torch.int32).unsqueeze(0)


_STRIP, _FEW_THREADS = 64, 2
"""Columns that are copied at a time, by one thread, where there are no more threads."""


def _transposed(x: Tensor) -> Tensor:
    """``x.mT`` in memory without gaps: LAPACK has columns where rows lie here.

    Some columns at a time take half the time of all of them on the CPU, whose cache holds no more; but one thread.
    """
    result = x.new_empty(*x.shape[:-2], x.shape[-1], x.shape[-2])
    if x.is_cuda or x.shape[-1] < 8 * _STRIP or torch.get_num_threads() > _FEW_THREADS:
        return result.copy_(x.mT)
    for mine, theirs in zip(result.flatten(0, -3), x.mT.flatten(0, -3), strict=True):
        _copy_each(mine.split(_STRIP, 1), theirs.split(_STRIP, 1))
    return result


_LARGE = 1024
"""Order from which on a triangular matrix is turned before a GPU solves by it."""
_copy_each: Any = torch.ops.aten._foreach_copy_.default


def lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``P X = L U`` with partial pivoting: L below the diagonal and U in one matrix, the rows exchanged, the status.

    Row i was exchanged with row ``pivots[i]``, from 0 on, in order. Where a pivot is 0, the elimination leaves its
    column; that, or a pivot that is no number, is SINGULAR.
    """
    factors, pivots, _ = torch.linalg.lu_factor_ex(_transposed(x).mT)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    is_singular = ((diagonal == 0) | diagonal.isnan()).any(-1)
    return _transposed(factors.mT), (pivots - 1).unsqueeze(1), _first(is_singular * SINGULAR)


class Lu(Op, of=lu, kind=Kind.REDUCTION, results=3):
    """`lu`: factors, pivots, status."""


def cholesky(x: Tensor, before: Tensor, *, lower: bool) -> tuple[Tensor, Tensor]:
    """``X = L L^T`` from and to the lower triangle, or ``X = U^T U`` of the upper one; and the status.

    The other triangle stays as it is ``before``. Where a pivot is not positive or no number, the columns before it and
    the pivot itself are given, and the rest is that of ``before``.
    """
    source, place = (x, before) if lower else (x.mT, before.mT)
    if triton.runs_on(x.device):
        from openmps.ops.triton.matrix.cholesky import finish

        # A GPU turns a matrix in less time than cuSOLVER needs more for an upper triangle.
        factor, info = torch.linalg.cholesky_ex(source)
        result = finish(factor, source, place, info)
        return result if lower else result.mT, _first((info > 0) * NOT_POSITIVE_DEFINITE)
    # LAPACK has columns where rows lie here: it takes the transpose as it is, and gives that of the other factor.
    factor, info = torch.linalg.cholesky_ex(source.mT if lower else source, upper=lower)
    factor, status = factor.mT if lower else factor, _first((info > 0) * NOT_POSITIVE_DEFINITE)
    if x.is_cuda or bool((info > 0).any()):
        order = torch.arange(x.shape[-1], device=x.device)
        failed = torch.where(info > 0, info - 1, len(order)).unsqueeze(-1)
        is_given = (order < failed).unsqueeze(1) | _is_pivot(order, failed)
        is_given &= order.unsqueeze(-1) >= order
        result = torch.where(is_given, _up_to(source, factor, failed, order), place)
    else:
        result = _with_upper_part(factor, place)
    return result if lower else result.mT, status


def _with_upper_part(factor: Tensor, place: Tensor) -> Tensor:
    """``factor`` with what stands above the diagonal in ``place``; few threads take some rows at a time, in place."""
    if torch.get_num_threads() > _FEW_THREADS:
        order = torch.arange(factor.shape[-1])
        return torch.where(order.unsqueeze(-1) >= order, factor, place)
    for first in range(0, factor.shape[-1], _STRIP):
        last = first + _STRIP
        factor[..., first:last, last:].copy_(place[..., first:last, last:])
        block, its_place = (each[..., first:last, first:last] for each in (factor, place))
        block.copy_(block.tril().add_(its_place.triu(1)))
    return factor


def _is_pivot(order: Tensor, failed: Tensor) -> Tensor:
    """Where the diagonal's element is that failed."""
    here = order == failed
    return here.unsqueeze(-1) & here.unsqueeze(-2)


def _up_to(source: Tensor, factor: Tensor, failed: Tensor, order: Tensor) -> Tensor:
    """The columns before those that failed, and the pivots that did, whatever a library leaves there."""
    is_before = (order < failed).unsqueeze(-2)
    leading = torch.where(
        is_before & is_before.mT, source, torch.eye(len(order), dtype=source.dtype, device=source.device)
    )
    minor = torch.linalg.cholesky_ex(leading.tril())[0]
    rows = torch.where(is_before, source.tril() + source.tril(-1).mT, 0.0)
    columns = torch.linalg.solve_triangular(minor.mT, rows, upper=True, left=False)
    columns = torch.where(is_before, columns, 0.0)
    pivots = source.diagonal(dim1=-2, dim2=-1) - columns.square().sum(-1)
    partial = torch.where(_is_pivot(order, failed), pivots.unsqueeze(-1), columns)
    return torch.where((failed < len(order)).unsqueeze(-1), partial, factor)


class Cholesky(Op, of=cholesky, kind=Kind.REDUCTION, results=2):
    """`cholesky` of a matrix, and what the result was before: the factor, status."""

    lower: bool


def triangular_solution(
    matrix: Tensor, right_sides: Tensor, *, right: bool, upper: bool, transpose: bool, unit: bool, alpha: float
) -> Tensor:
    """X of ``op(A) X = alpha B``, or of ``X op(A) = alpha B`` where A stands ``right``.

    A is triangular as it is stored, ``upper`` or lower, its diagonal 1 where it is ``unit``; ``op`` may transpose it.
    """
    scaled = right_sides if alpha == 1.0 else right_sides * alpha
    factor = matrix.mT if transpose else matrix
    if factor.is_cuda and factor.shape[-1] >= _LARGE and factor.stride(-1) == 1:
        factor = _transposed(factor).mT  # cuBLAS takes longer by rows than to turn them and solve by columns
    return torch.linalg.solve_triangular(factor, scaled, upper=upper != transpose, left=not right, unitriangular=unit)


class TriangularSolution(Op, of=triangular_solution, kind=Kind.REDUCTION):
    """`triangular_solution` of a matrix and right-hand sides."""

    right: bool
    upper: bool
    transpose: bool
    unit: bool
    alpha: float


def lu_solution(factors: Tensor, right_sides: Tensor, pivots: Tensor, *, transpose: bool) -> Tensor:
    """X of ``op(A) X = B`` by factors and pivots of `lu`; ``op`` may transpose A. A pivot beyond counts as the last."""
    swaps = pivots.squeeze(1).to(torch.int64).clamp(0, factors.shape[-1] - 1)
    if factors.is_cuda:
        return torch.linalg.lu_solve(factors, (swaps + 1).to(torch.int32), right_sides, adjoint=transpose)
    # The engine's function wants factors column by column, and takes ten times as long where it has to turn them.
    order = _order(swaps).unsqueeze(-1).expand(right_sides.shape)
    solve = torch.linalg.solve_triangular
    if transpose:
        found = solve(factors.mT, right_sides, upper=False)
        found = solve(factors.mT, found, upper=True, unitriangular=True)
        return torch.empty_like(found).scatter_(-2, order, found)
    found = solve(factors, right_sides.gather(-2, order), upper=False, unitriangular=True)
    return solve(factors, found, upper=True)


def _order(swaps: Tensor) -> Tensor:
    """Where each row comes from, if row i is exchanged with row ``swaps[i]``, one after the other: ``[B, rows]``."""
    orders: list[list[int]] = []
    for each in swaps.tolist():
        order = [*range(len(each))]
        for row, other in enumerate(each):
            if row != other:
                order[row], order[other] = order[other], order[row]
        orders.append(order)
    return torch.from_numpy(np.array(orders))  # four times as fast as a tensor of a list


class LuSolution(Op, of=lu_solution, kind=Kind.REDUCTION):
    """`lu_solution` of factors, right-hand sides and pivots."""

    transpose: bool


def cholesky_solution(factor: Tensor, right_sides: Tensor, *, upper: bool) -> Tensor:
    """X of ``A X = B`` by the factor of `cholesky`, ``upper`` or lower; the other triangle is not read."""
    left, right = (factor.mT, factor) if upper else (factor, factor.mT)
    solve = torch.linalg.solve_triangular
    return solve(right, solve(left, right_sides, upper=False), upper=True)


class CholeskySolution(Op, of=cholesky_solution, kind=Kind.REDUCTION):
    """`cholesky_solution` of a factor and right-hand sides."""

    upper: bool
