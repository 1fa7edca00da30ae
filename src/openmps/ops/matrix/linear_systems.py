"""Factorizations of matrices ``[B, rows, columns]``, and solutions of linear systems by them.

MPSMatrixDecomposition.h, MPSMatrixSolve.h, macOS 10.13. What the factorizations find is said by numbers: a status of
one int32 over all matrices, the first that is not 0. Nothing waits for the device, and nothing raises.
"""

from __future__ import annotations

from typing import Any, ClassVar

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


_STRIP, _FEW, _FEW_THREADS = 1 << 16, 1 << 12, 8
"""Bytes that one thread copies at a time, elements of a matrix from which on that pays, and how many threads at most
take longer for all of them at once."""
_PAGE, _BETWEEN = 4096, 64
"""Bytes from one column to the next at whose multiples all elements of a row share one place in the processor's first
cache, which LAPACK and PyTorch take up to twice as long for; and those that are left free between columns then."""
_copy_each: Any = torch.ops.aten._foreach_copy_.default


def _transposed(x: Tensor) -> Tensor:
    """``x.mT`` in memory without gaps: LAPACK has columns where rows lie here."""
    return _put_transposed(x.new_empty(*x.shape[:-2], x.shape[-1], x.shape[-2]), x)


def _put_transposed(result: Tensor, x: Tensor) -> Tensor:
    """``x.mT`` in memory for it. The CPU's cache does not hold as many rows as a plain copy goes through at a time."""
    if x.is_cuda or x.shape[-2] * x.shape[-1] < _FEW or torch.get_num_threads() > _FEW_THREADS:
        return result.copy_(x.mT)
    columns = max(8, _STRIP // (x.itemsize * x.shape[-1]))
    for mine, theirs in zip(result.unbind(), x.mT.unbind(), strict=True):
        if mine.is_contiguous() and theirs.mT.is_contiguous():
            mine.copy_(theirs)  # of two axes without gaps the engine takes a block at a time by itself
        else:
            _copy_each(mine.split(columns, 1), theirs.split(columns, 1))
    return result


_LARGE = 1024
"""Order from which on a triangular matrix is turned before a GPU solves by it."""


def lu(x: Tensor, *, has_status: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """``P X = L U`` with partial pivoting: L below the diagonal and U in one matrix, the rows exchanged, the status.

    Row i was exchanged with row ``pivots[i]``, from 0 on, in order. Where a pivot is 0, the elimination leaves its
    column; that, or a pivot that is no number, is SINGULAR.
    """
    factors, pivots, status = _factors(x, has_status)
    return _transposed(factors.mT), pivots, status


def lu_into(room: Tensor, x: Tensor, *, has_status: bool) -> bool | tuple[None, Tensor, Tensor | None]:
    """`lu`, the factors in memory for them, which may be that of the matrix."""
    if x.is_cuda or room.dtype != x.dtype:
        return False
    factors, pivots, status = _factors(x, has_status)
    _put_transposed(room, factors.mT)
    return None, pivots, status


def _factors(x: Tensor, has_status: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """`lu` with factors column by column."""
    _, rows, columns = x.shape
    gap = _gap(x, rows, _PAGE)
    turned = x.new_empty(len(x), columns, rows + gap)
    _put_transposed(turned[..., :rows] if gap else turned, x)
    if gap:  # rows behind the last one, which no row is exchanged with
        turned[..., rows:] = 0.0
    factors, pivots = turned.mT, torch.empty(0, dtype=torch.int32)
    if x.is_cuda:
        factors, pivots, _ = torch.linalg.lu_factor_ex(factors)
    else:
        torch.linalg.lu_factor_ex(factors, out=(factors, pivots, torch.empty_like(pivots)))
    if gap:
        factors, pivots = factors[:, :rows], pivots[:, : min(rows, columns)]
    pivots = pivots.sub_(1).unsqueeze(1)
    if not has_status:
        return factors, pivots, None
    is_regular = (factors.diagonal(dim1=-2, dim2=-1).abs() > 0.0).all(-1)
    return factors, pivots, _first(~is_regular * SINGULAR)


def _gap(x: Tensor, length: int, bytes_between: int) -> int:
    """Elements to leave free behind each column of ``length`` on the CPU where that is a multiple of some bytes."""
    is_apart = x.is_cuda or length * x.itemsize % bytes_between
    return 0 if is_apart else _BETWEEN // x.itemsize


class Lu(Op, of=lu, into=lu_into, kind=Kind.REDUCTION, results=3):
    """`lu`: factors, pivots, and the status if it `has_status`."""

    _reads_first: ClassVar[bool] = True
    has_status: bool


def cholesky(x: Tensor, before: Tensor, *, lower: bool, has_status: bool = True) -> tuple[Tensor, Tensor | None]:
    """``X = L L^T`` from and to the lower triangle, or ``X = U^T U`` of the upper one; and the status.

    The other triangle stays as it is ``before``. Where a pivot is not positive or no number, the columns before it and
    the pivot itself are given, and the rest is that of ``before``.
    """
    source, place = (x, before) if lower else (x.mT, before.mT)
    has_triton = triton.runs_on(x.device)
    if not (has_triton or x.is_cuda):
        result = before.clone()
        return result, _fill_triangle(result, x, lower=lower, has_status=has_status)
    # A GPU turns a matrix in less time than cuSOLVER needs more for an upper triangle.
    factor, info = torch.linalg.cholesky_ex(source)
    if has_triton:
        from openmps.ops.triton.matrix.cholesky import finish

        result = finish(factor, source, place, info)
    else:
        result = _finished(factor, source, place, info)
    return result if lower else result.mT, _first((info > 0) * NOT_POSITIVE_DEFINITE) if has_status else None


def cholesky_into(
    room: Tensor, x: Tensor, before: Tensor, *, lower: bool, has_status: bool
) -> bool | tuple[None, Tensor | None]:
    """`cholesky`, the factor in memory for it, which may be that of the operands."""
    if x.is_cuda or room.dtype != x.dtype:
        return False
    if (room.data_ptr(), room.stride()) != (before.data_ptr(), before.stride()):
        return False
    return None, _fill_triangle(room, x, lower=lower, has_status=has_status)


def _fill_triangle(room: Tensor, x: Tensor, *, lower: bool, has_status: bool) -> Tensor | None:
    """Put the factor into its triangle of ``room``, which nothing else of is written; the status.

    LAPACK has columns where rows lie here: its lower triangle, which takes it less time than the upper one, is that of
    the transpose for U.
    """
    order, gap = x.shape[-1], _gap(x, x.shape[-1], _PAGE // 4)
    columns = x.new_empty(*x.shape[:-2], order + gap, order + gap)
    whole = columns[..., :order, :order] if gap else columns
    _put_transposed(whole, x) if lower else whole.copy_(x)
    if gap:  # the factor of the identity is there, too
        columns[..., order:, :] = columns[..., :order, order:] = 0.0
        columns.diagonal(dim1=-2, dim2=-1)[..., order:] = 1.0
    factor, info = columns.mT, torch.empty(0, dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, out=(factor, info))
    factor = factor[..., :order, :order] if gap else factor
    if bool(info.any()):
        source, place = (x, room) if lower else (x.mT, room.mT)
        place.copy_(_finished(factor, source, place, info))
    else:
        _put_triangle(room, factor if lower else factor.mT, lower=lower)
    return _first((info > 0) * NOT_POSITIVE_DEFINITE) if has_status else None


_BLOCK = 128
"""Columns of a triangle that few threads copy at a time."""


def _put_triangle(room: Tensor, factor: Tensor, *, lower: bool) -> None:
    """Copy the triangle of a factor on the CPU, and nothing else."""
    order = factor.shape[-1]
    step = order if torch.get_num_threads() > _FEW_THREADS else min(order, _BLOCK)
    ones = torch.ones(step, step, dtype=torch.bool)
    is_given = ones.tril_() if lower else ones.triu_()
    for first in range(0, order, step):
        here, behind = slice(first, first + step), slice(first + step, order)
        mine = room[..., here, here]
        count = mine.shape[-1]
        torch.where(is_given[:count, :count], factor[..., here, here], mine, out=mine)
        if first + step < order:
            rest = (..., behind, here) if lower else (..., here, behind)
            room[rest].copy_(factor[rest])


def _finished(factor: Tensor, source: Tensor, place: Tensor, info: Tensor) -> Tensor:
    """The lower triangle of `cholesky` as far as there is one, and ``place`` elsewhere."""
    order = torch.arange(source.shape[-1], device=source.device)
    failed = torch.where(info > 0, info - 1, len(order)).unsqueeze(-1)
    is_given = (order < failed).unsqueeze(1) | _is_pivot(order, failed)
    is_given &= order.unsqueeze(-1) >= order
    return torch.where(is_given, _up_to(source, factor, failed, order), place)


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


class Cholesky(Op, of=cholesky, into=cholesky_into, kind=Kind.REDUCTION, results=2):
    """`cholesky` of a matrix, and what the result was before: the factor, and the status if it `has_status`."""

    _reads_first: ClassVar[bool] = True
    lower: bool
    has_status: bool


def triangular_solution(
    matrix: Tensor,
    right_sides: Tensor,
    *,
    right: bool,
    upper: bool,
    transpose: bool,
    unit: bool,
    alpha: float,
    out: Tensor | None = None,
) -> Tensor:
    """X of ``op(A) X = alpha B``, or of ``X op(A) = alpha B`` where A stands ``right``.

    A is triangular as it is stored, ``upper`` or lower, its diagonal 1 where it is ``unit``; ``op`` may transpose it.
    """
    scaled = right_sides if alpha == 1.0 else right_sides * alpha
    factor = matrix.mT if transpose else matrix
    if factor.is_cuda and factor.shape[-1] >= _LARGE and factor.stride(-1) == 1:
        factor = _transposed(factor).mT  # cuBLAS takes longer by rows than to turn them and solve by columns
    return _solved(factor, scaled, out, upper=upper != transpose, left=not right, unitriangular=unit)


def _solved(factor: Tensor, right_sides: Tensor, out: Tensor | None, **how: bool) -> Tensor:
    """What a triangle solves, in ``out``.

    On the CPU it is put there: with several threads the library takes three times as long by rows as by columns.
    """
    if out is None or out.is_cuda:
        return torch.linalg.solve_triangular(factor, right_sides, **how, out=out)
    return out.copy_(torch.linalg.solve_triangular(factor, right_sides, **how))


def triangular_solution_into(room: Tensor, *operands: Tensor, **fields: Any) -> bool:
    """`triangular_solution`, in memory for it."""
    triangular_solution(*operands, **fields, out=room)
    return True


class TriangularSolution(Op, of=triangular_solution, into=triangular_solution_into, kind=Kind.REDUCTION):
    """`triangular_solution` of a matrix and right-hand sides."""

    right: bool
    upper: bool
    transpose: bool
    unit: bool
    alpha: float


def lu_solution(
    factors: Tensor, right_sides: Tensor, pivots: Tensor, *, transpose: bool, out: Tensor | None = None
) -> Tensor:
    """X of ``op(A) X = B`` by factors and pivots of `lu`; ``op`` may transpose A. A pivot beyond counts as the last."""
    if factors.is_cuda:
        swaps = pivots.squeeze(1).to(torch.int64).clamp(0, factors.shape[-1] - 1) + 1
        return torch.linalg.lu_solve(factors, swaps.to(torch.int32), right_sides, adjoint=transpose, out=out)
    # The engine's function wants factors column by column, and takes ten times as long where it has to turn them.
    order = _order(pivots, factors.shape[-1])
    places = None if order is None else order.unsqueeze(-1).expand(right_sides.shape)
    solve = torch.linalg.solve_triangular
    if not transpose:
        found = right_sides if places is None else right_sides.gather(-2, places)
        found = solve(factors, found, upper=False, unitriangular=True)
        return _solved(factors, found, out, upper=True)
    found = solve(factors.mT, right_sides, upper=False)
    if places is None:
        return _solved(factors.mT, found, out, upper=True, unitriangular=True)
    found = solve(factors.mT, found, upper=True, unitriangular=True, out=found)
    return (torch.empty_like(found) if out is None else out).scatter_(-2, places, found)


def _order(pivots: Tensor, rows: int) -> Tensor | None:
    """Where each row comes from, if row i is exchanged with row ``pivots[i]``, one after the other: ``[B, rows]``.

    None where no row is exchanged with another, as of matrices with large diagonals.
    """
    given = np.minimum(pivots.squeeze(1).numpy(), rows - 1)
    is_exchanged = given != np.arange(rows)
    if not is_exchanged.any():
        return None
    orders = [[*range(rows)] for _ in given]
    for order, others, here in zip(orders, given, is_exchanged, strict=True):
        (exchanged,) = here.nonzero()
        for row, other in zip(exchanged.tolist(), others[exchanged].tolist(), strict=True):
            order[row], order[other] = order[other], order[row]
    return torch.from_numpy(np.array(orders))  # four times as fast as a tensor of a list


def lu_solution_into(room: Tensor, *operands: Tensor, transpose: bool) -> bool:
    """`lu_solution`, in memory for it."""
    lu_solution(*operands, transpose=transpose, out=room)
    return True


class LuSolution(Op, of=lu_solution, into=lu_solution_into, kind=Kind.REDUCTION):
    """`lu_solution` of factors, right-hand sides and pivots."""

    transpose: bool


def cholesky_solution(factor: Tensor, right_sides: Tensor, *, upper: bool, out: Tensor | None = None) -> Tensor:
    """X of ``A X = B`` by the factor of `cholesky`, ``upper`` or lower; the other triangle is not read."""
    left, right = (factor.mT, factor) if upper else (factor, factor.mT)
    found = torch.linalg.solve_triangular(left, right_sides, upper=False)
    return _solved(right, found, out, upper=True)


def cholesky_solution_into(room: Tensor, *operands: Tensor, upper: bool) -> bool:
    """`cholesky_solution`, in memory for it."""
    cholesky_solution(*operands, upper=upper, out=room)
    return True


class CholeskySolution(Op, of=cholesky_solution, into=cholesky_solution_into, kind=Kind.REDUCTION):
    """`cholesky_solution` of a factor and right-hand sides."""

    upper: bool
