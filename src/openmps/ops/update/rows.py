"""Gradients as updates read them: all numbers of a parameter in one row, float32; sums of rows, and their norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


class Row(Op, kind=Kind.STORAGE, gives_view=True):
    """All numbers of a tensor in one row."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """The numbers, sharing their memory where they lie without gaps."""
        return operands[0].reshape(-1)


class AddRow(Op):
    """All numbers of a tensor in one row, added to those before; to zeros where there are none."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> Tensor:
        """The sums."""
        before, given = operands
        assert given is not None
        row = given.reshape(-1)
        return torch.add(row, 0.0) if before is None else before + row


class PartOfRow(Op, kind=Kind.STORAGE, gives_view=True):
    """Some of the numbers of a row, from ``first`` on, in a shape."""

    first: int
    shape: tuple[int, ...]

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """The numbers, sharing their memory."""
        return operands[0][self.first : self.first + math.prod(self.shape)].view(self.shape)


_norms: Any = torch.ops.aten._foreach_norm.Scalar


class AddNumbers(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """Numbers added to others: the second half of the operands to the first half."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The first half."""
        return range(operands // 2)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Add each to its other; in a few launches on CUDA."""
        half = len(operands) // 2
        torch.ops.aten._foreach_add_.List([*operands[:half]], [*operands[half:]])


class NormScale(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """The factor that keeps the norm of all gradients to a limit: ``min(1, limit / sqrt(sum (r g)^2))``.

    Operands: the limit, the gradients, and where the factor goes, one number. ``rescales`` are the optimizers' factors
    r of each. Squares are added up in float64: none overflows.
    """

    takes_device_numbers = True

    rescales: tuple[float, ...]

    def overwritten(self, operands: int) -> Iterable[int]:
        """The last."""
        return (operands - 1,)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See the class."""
        limit, *gradients, scale = operands
        norms = torch.ops.aten._foreach_mul.ScalarList(_norms(gradients, 2.0, torch.float64), self.rescales)
        scale.copy_((limit / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1.0))
