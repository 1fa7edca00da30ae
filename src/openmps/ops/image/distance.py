"""Distances to the nearest pixel that is not 0 (MPSImageDistanceTransform.h, macOS 10.13.4).

Exact, in two passes: d(y, x), the distance to the nearest such pixel of the same column, then along each row::

    D(y, x)² = min over x' of (x - x')² + d(y, x')²

The second is a chain of minima over neighbours, step i of which adds ``2 i - 1`` to both, as ``i² = 1 + 3 + 5 + …``:
squares are int32, and the steps end where one changes nothing, after as many as the largest distance along a row. On a
GPU, which would have to be waited for, the minima are taken as they stand, block by block.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.ops.geometry import ROWS, Axis, Window, read
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_FAR = 1 << 15
"""A row beyond every picture, with what a result may show beside it: textures have 16,384."""
_NOTHING = (1 << 31) - 4 * _FAR
"""The square of a distance to nothing; a step adds less than what int32 has above it."""
_BAND = 1 << 15
"""Squares that are in a cache at a time, on the CPU."""
_BLOCK = 1 << 22
"""Sums of two squares that are in memory at a time."""


def distances(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """The distance in pixels of each pixel of a window of 1 x 1 pixels to the nearest one that is not 0, by channel.

    All of the source counts, and what the edge mode continues; infinite where there is none.
    """
    rows, columns = _around(window.y), _around(window.x)
    squares = _squares(read(x, Window(columns, rows), edge_mode) != 0)
    first, left = window.y.first - rows.first, window.x.first - columns.first
    part = squares[:, :, first : first + window.y.result, left : left + window.x.result]
    return torch.where(part >= _NOTHING, torch.inf, part.to(torch.float64).sqrt_()).to(x.dtype)


def _around(axis: Axis) -> Axis:
    """The pixels of the source and of the result, and those between them."""
    first = min(0, axis.first)
    return Axis(axis.source, max(axis.source, axis.first + axis.result) - first, offset=first)


def _squares(is_seed: Tensor) -> Tensor:
    """The squared distances to the nearest pixel that is true, int32 ``[N, C, H, W]``."""
    height, width = is_seed.shape[2:]
    row = torch.arange(height, dtype=torch.int32, device=is_seed.device)[:, None]
    before = torch.where(is_seed, row, -_FAR).cummax(ROWS).values
    behind = torch.where(is_seed, row, 2 * _FAR).flip(ROWS).cummin(ROWS).values.flip(ROWS)
    down = torch.minimum(row - before, behind - row)
    if is_seed.device.type != "cpu":
        return _along_rows(down)
    found = torch.where(down >= _FAR, _NOTHING, down * down).contiguous()
    rows = found.view(-1, width)
    for part in rows.split(max(1, _BAND // width)):
        _by_steps(part.numpy())
    return found


def _by_steps(squares: NDArray[np.int32]) -> None:
    """The second pass in place, of squared distances along columns ``[rows, W]``."""
    width = squares.shape[1]
    before, moved = squares.copy(), np.empty_like(squares)
    for step in range(1, width):
        # In place of one buffer behind the other: what a step reads is what the one before it left.
        np.add(before, 2 * step - 1, out=moved)
        np.minimum(before[:, 1:], moved[:, :-1], out=squares[:, 1:])
        np.minimum(squares[:, :-1], moved[:, 1:], out=squares[:, :-1])
        if np.array_equal(squares, before):
            return
        before[...] = squares


def _along_rows(down: Tensor) -> Tensor:
    """The second pass, of distances along columns, as it stands."""
    height, width = down.shape[-2:]
    squares = torch.where(down >= _FAR, _NOTHING, down.to(torch.int64).square()).view(-1, width)
    column = torch.arange(width, device=down.device)
    rows = max(1, _BLOCK // (width * width))
    columns = max(1, _BLOCK // (rows * width))
    found = torch.empty_like(squares)
    for part, into in zip(squares.split(rows), found.split(rows), strict=True):
        for first in range(0, width, columns):
            apart = (column[first : first + columns, None] - column).square_()
            torch.amin(part[:, None, :] + apart, 2, out=into[:, first : first + columns])
    return found.clamp_max_(_NOTHING).to(torch.int32).view(*down.shape[:-2], height, width)


class Distances(Op, of=distances, kind=Kind.REDUCTION):
    """`distances` of a picture."""

    window: Window
    edge_mode: MPSImageEdgeMode
