"""Rows as columns (MPSImageTranspose.h, macOS 10.13)."""

from __future__ import annotations

from torch import Tensor

from openmps.ops.op import Kind, Op


def transposed(x: Tensor) -> Tensor:
    """Rows of ``[N, C, H, W]`` as columns: ``[N, C, W, H]``, a view."""
    return x.permute(0, 1, 3, 2)


class Transposed(Op, of=transposed, kind=Kind.STORAGE, half=True, gives_view=True):
    """`transposed` picture."""
