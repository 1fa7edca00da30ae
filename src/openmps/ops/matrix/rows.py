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
    # Rows in which numbers alone do not tell the order, of equal ones and of those that are none, are sorted.
    has_parts = count <= _FEW and x.shape[-1] >= _PARTS * _WORTH_PARTS and x.shape[-1] % _PARTS == 0
    values, places, rest = (_by_parts if has_parts else _at_once)(x, count)
    is_told = torch.cat([values[..., 1:], rest], -1) < values
    places = places + first if first else places
    if not bool(is_told.all()):
        is_open = ~is_told.all(-1)
        values[is_open], places[is_open] = _sorted(x[is_open], count, first)
    return values, places


_MANY_COLUMNS = 32
"""For fewer a sort is as fast."""
_PARTS, _WORTH_PARTS, _FEW = 16, 64, 4
"""How many parts a row is cut into, from how many columns of a part on, and up to how many numbers that are wanted."""


def _at_once(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest numbers, their columns, and the largest of all others."""
    values, places = torch.topk(x, count)
    return values, places, x.scatter(-1, places, -torch.inf).amax(-1, keepdim=True)


def _by_parts(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_at_once`: the largest numbers are among those of the columns of all parts that the largest maxima are of."""
    width = x.shape[-1] // _PARTS
    _, chosen, others = _one_by_one(x.unflatten(-1, (_PARTS, width)).amax(-2), count)
    columns = (chosen.unsqueeze(-2) + torch.arange(0, x.shape[-1], width).unsqueeze(-1)).flatten(-2)
    values, places, rest = _one_by_one(x.gather(-1, columns), count)
    return values, columns.gather(-1, places), torch.maximum(rest, others)


def _one_by_one(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_at_once` of few columns, which are overwritten."""
    values, places = list[Tensor](), list[Tensor]()
    for _ in range(count):
        value, place = x.max(-1, keepdim=True)
        x.scatter_(-1, place, -torch.inf)
        values.append(value)
        places.append(place)
    return torch.cat(values, -1), torch.cat(places, -1), x.amax(-1, keepdim=True)


def _sorted(x: Tensor, count: int, first: int) -> tuple[Tensor, Tensor]:
    values, columns = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :count], columns[..., :count] + first


class Largest(Op, of=largest, kind=Kind.REDUCTION, results=2):
    """`largest` numbers of each row, and their columns."""

    count: int
    first: int
