"""Gradients as updates read them: all numbers of a parameter in one row, float32."""

from __future__ import annotations

import math

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
