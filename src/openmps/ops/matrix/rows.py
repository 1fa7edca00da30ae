"""Functions of each row of matrices ``[B, rows, columns]`` (MPSMatrixSoftMax.h, macOS 10.13; MPSMatrixFindTopK.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.softmax import log_softmax, log_softmax_gradient, softmax, softmax_gradient


def as_pixels(matrix: Tensor) -> Tensor:
    """Rows as images of one pixel: ``[B, rows, columns]`` as ``[B rows, columns, 1, 1]``."""
    return matrix.reshape(-1, matrix.shape[-1], 1, 1)


class RowSoftMax(Op, kind=Kind.REDUCTION):
    """`softmax` of each row, or its logarithm."""

    is_logarithm: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `softmax` and `log_softmax`."""
        (x,) = operands
        return (log_softmax if self.is_logarithm else softmax)(as_pixels(x)).view(x.shape)


class RowSoftMaxGradient(Op, kind=Kind.REDUCTION):
    """The gradient of `RowSoftMax` from the gradient of its result, and that result."""

    is_logarithm: bool

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `softmax_gradient` and `log_softmax_gradient`."""
        gradient, y = operands
        function = log_softmax_gradient if self.is_logarithm else softmax_gradient
        return function(as_pixels(gradient), as_pixels(y)).view(y.shape)


def largest(x: Tensor, *, count: int, first: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest numbers of each row, in descending order, and their columns, counted from ``first``.

    Of equal numbers the one of the lowest column comes first; NaN counts as the largest, and -0 equals 0.
    """
    if x.is_cuda or x.shape[-1] < _MANY_COLUMNS:
        return _sorted(x, count, first)
    # Rows in which numbers alone do not tell the order, of equal ones and of those that are none, are sorted. One more
    # number shows whether the last is the only one of its size.
    more, places = torch.topk(x, min(count + 1, x.shape[-1]))
    is_told = (more[..., 1:] < more[..., :-1]).all(-1)
    values, columns = more[..., :count], places[..., :count] + first
    if not bool(is_told.all()):
        values[~is_told], columns[~is_told] = _sorted(x[~is_told], count, first)
    return values, columns


_MANY_COLUMNS = 32
"""For fewer a sort is as fast."""


def _sorted(x: Tensor, count: int, first: int) -> tuple[Tensor, Tensor]:
    values, columns = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :count], columns[..., :count] + first


class Largest(Op, of=largest, kind=Kind.REDUCTION, results=2):
    """`largest` numbers of each row, and their columns."""

    count: int
    first: int
