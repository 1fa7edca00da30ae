"""Copies and sums of parts of matrices ``[rows, columns]`` (MPSMatrixCombination.h, MPSMatrixSum.h, macOS 10.13).

Where a part begins may be numbers on the device: an element beyond a matrix is not written, and is read as 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


class Transposed(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """Matrices with rows and columns exchanged."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """A view."""
        return operands[0].mT


class Copied(Op, kind=Kind.STORAGE, half=True):
    """Elements in memory of their own, transposed or not: copies within one memory read all before they write."""

    transpose: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        (x,) = operands
        return (x.mT if self.transpose else x).clone(memory_format=torch.contiguous_format)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(x: Tensor) -> Tensor:
    """Elements of any type as integers, which torch can gather."""
    return x.view(_BITS[x.itemsize])


def _positions(count: int, first: Tensor | None, permutation: Tensor | None, like: Tensor) -> Tensor:
    """``permutation[i] + first`` for i below ``count``; ``i + first`` without a permutation."""
    found = torch.arange(count, device=like.device) if permutation is None else permutation.to(torch.int64)
    return found if first is None else found + first


def _sources(length: int, targets: Tensor) -> Tensor:
    """For each of ``length`` places which element goes there, by ``targets`` of each element; -1 where none does."""
    kept = torch.where(targets < length, targets, length)
    found = targets.new_full((length + 1,), -1)
    return found.scatter_(0, kept, torch.arange(len(targets), device=targets.device))[:length]


class CopyElements(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """Copy ``rows x columns`` elements of the second operand to places of the first.

    Further operands are the offsets, four numbers: the first row and column of the source, then of the destination;
    and the destination's rows and columns in the order in which the elements go there, relative to its offset. Each may
    be left out: 0, and 0, 1, 2 and so on. Offsets count in the matrices as they are transposed, if they are; rows and
    columns in the destination as it is stored.
    """

    rows: int
    columns: int
    transpose_source: bool
    transpose_destination: bool

    def overwritten(self, operands: int) -> Iterable[int]:
        """The first."""
        return (0,)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """Gather by the inverse of the permutations, so that nothing is written beyond the destination."""
        destination, source = map(_bits, operands[:2])
        offsets, row_order, column_order = operands[2:]
        first: list[Tensor | None] = [None] * 4 if offsets is None else [*offsets.to(torch.int64)]
        logical = source.mT if self.transpose_source else source
        rows = _positions(self.rows, first[0], None, source)
        columns = _positions(self.columns, first[1], None, source)
        is_there = (rows < logical.shape[0]).unsqueeze(1) & (columns < logical.shape[1])
        picked = logical[rows.clamp_max(logical.shape[0] - 1)][:, columns.clamp_max(logical.shape[1] - 1)]
        if self.transpose_destination:
            picked, is_there, first = picked.mT, is_there.mT, [*first[:2], first[3], first[2]]
        to_rows = _sources(destination.shape[0], _positions(len(picked), first[2], row_order, source))
        to_columns = _sources(destination.shape[1], _positions(picked.shape[1], first[3], column_order, source))
        moved = picked[to_rows][:, to_columns]  # -1 takes the last, which is not kept
        is_taken = (to_rows >= 0).unsqueeze(1) & (to_columns >= 0) & is_there[to_rows][:, to_columns]
        destination.copy_(torch.where(is_taken, moved, destination))


class SumOfParts(Op, kind=Kind.REDUCTION):
    """``sum of scale[m] part[m]``, where part m is ``rows x columns`` elements of matrix m; ``[1, rows, columns]``.

    The first operand is scales, ``[matrices]``, the second offsets, rows and columns in turn, ``[2 matrices]``; either
    may be left out: 1, and 0. Then come the matrices; those behind the last scale add nothing.
    """

    rows: int
    columns: int

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """Add one matrix after the other."""
        scales, offsets, *matrices = operands
        total: Tensor | None = None
        for index, matrix in enumerate(matrices if scales is None else matrices[: len(scales)]):
            part = self._part(matrix, None if offsets is None else offsets[2 * index : 2 * index + 2])
            scaled = part if scales is None else part * scales[index]
            total = scaled if total is None else total + scaled
        if total is None:
            return matrices[0].new_zeros(1, self.rows, self.columns)
        return total.unsqueeze(0)

    def _part(self, matrix: Tensor, offset: Tensor | None) -> Tensor:
        if offset is None:
            return matrix[: self.rows, : self.columns]
        row, column = offset.to(torch.int64)
        rows, columns = _positions(self.rows, row, None, matrix), _positions(self.columns, column, None, matrix)
        is_there = (rows < matrix.shape[0]).unsqueeze(1) & (columns < matrix.shape[1])
        found = matrix[rows.clamp_max(matrix.shape[0] - 1)][:, columns.clamp_max(matrix.shape[1] - 1)]
        return torch.where(is_there, found, 0.0)
