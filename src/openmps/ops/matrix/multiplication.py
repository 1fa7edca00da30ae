"""Products of batches of matrices and vectors (MPSMatrixMultiplication.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.matrix.products import product, product_into, put_products, wide_product
from openmps.ops.op import Kind, Op

_SUMS = torch.float32, torch.float64
"""The types that sums are kept in."""


def batch_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` of [B, M, K] by [B, K, N]: sums are float32 of float16 and integer factors, else their type."""
    if len(left) == 1 and left.dtype == right.dtype == torch.float16:
        return wide_product(left[0], right[0]).unsqueeze(0)
    left, right = _wide(left), _wide(right)
    if len(left) == 1:
        return product(left[0], right[0]).unsqueeze(0)
    return put_products(left.new_empty(len(left), left.shape[1], right.shape[2]), left, right)


def _wide(factor: Tensor) -> Tensor:
    return factor if factor.dtype in _SUMS else factor.float()


def matrix_product(
    left: Tensor,
    right: Tensor,
    addend: Tensor | None = None,
    *,
    transpose_left: bool,
    transpose_right: bool,
    alpha: float,
    beta: float,
) -> Tensor:
    """``alpha L R + beta A`` of matrices ``[B, rows, columns]``; either factor is transposed first where it says so."""
    factors = left.mT if transpose_left else left, right.mT if transpose_right else right
    result = batch_product(*factors)
    if alpha != 1.0:
        result = result * alpha
    return result if addend is None else result.add(_wide(addend), alpha=beta)


def matrix_product_into(
    room: Tensor,
    left: Tensor,
    right: Tensor,
    addend: Tensor | None = None,
    *,
    transpose_left: bool,
    transpose_right: bool,
    alpha: float,
    beta: float,
) -> bool:
    """`matrix_product`, in memory for it: of float32 or float64 matrices and nothing else."""
    if addend is not None or alpha != 1.0 or left.dtype not in _SUMS or not left.dtype == right.dtype == room.dtype:
        return False
    factors = left.mT if transpose_left else left, right.mT if transpose_right else right
    if len(left) == 1:
        return product_into(room[0], factors[0][0], factors[1][0])
    if not room.is_contiguous():
        return False
    put_products(room, *factors)
    return True


class MatrixProduct(Op, of=matrix_product, into=matrix_product_into, kind=Kind.CONTRACTION, half=True):
    """`matrix_product` of two factors and an addend that may be left out; float32 of float16 operands."""

    transpose_left: bool = False
    transpose_right: bool = False
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def gives_half(self) -> bool:
        """Sums are not rounded."""
        return False


def vector_product(
    matrix: Tensor, vector: Tensor, addend: Tensor | None = None, *, transpose: bool, alpha: float, beta: float
) -> Tensor:
    """``alpha M v + beta a`` of matrices ``[B, rows, columns]`` and vectors ``[B, length]``; M may be transposed."""
    column = None if addend is None else addend.unsqueeze(-1)
    given = matrix, vector.unsqueeze(-1), column
    return matrix_product(*given, transpose_left=transpose, transpose_right=False, alpha=alpha, beta=beta).squeeze(-1)


class VectorProduct(Op, of=vector_product, kind=Kind.CONTRACTION, half=True):
    """`vector_product` of a matrix, a vector and an addend that may be left out; float32 of float16 operands."""

    transpose: bool = False
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def gives_half(self) -> bool:
        """Sums are not rounded."""
        return False


def column_sums(matrix: Tensor) -> Tensor:
    """The sums of the columns of matrices ``[B, rows, columns]``."""
    return matrix.sum(1)


class ColumnSums(Op, of=column_sums, kind=Kind.REDUCTION):
    """`column_sums` of matrices."""
