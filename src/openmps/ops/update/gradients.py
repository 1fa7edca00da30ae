"""Gradients of all parameters of a network at once: sums over several encodes, and the limit of their norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op

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
