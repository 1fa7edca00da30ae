"""Canny's edges (MPSImageConvolution.h, macOS 11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, read
from openmps.ops.image.windows import sobel_pair
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

Comparison = Callable[[Tensor, Tensor], Tensor]
STEEP = math.tan(math.pi / 8)
"""Of the sectors of 45 degrees around rows and columns."""


def canny(blurred: Tensor, low: float, high: float, edge_mode: MPSImageEdgeMode, ties: str = "earlier") -> Tensor:
    """1 on the edges of a blurred picture, else 0, channel by channel.

    G is the length of Sobel's two differences. Kept are pixels where G is above that of the neighbour before, up or
    left, in the direction of the gradient to the nearest 45 degrees, and not below that of the one behind; outside the
    picture G is 0. Of two equal neighbours the ``earlier`` one is kept, the ``later`` one, ``both`` or ``none``, as
    ``ties`` says. Of these, strong ones, ``G > high``, are edges, and so are weak ones, ``G > low``, that other edges
    touch.
    """
    height, width = blurred.shape[2:]
    window = Window(Axis(width, width, 3), Axis(height, height, 3))
    across, down = sobel_pair(read(blurred, window, edge_mode))
    length = torch.hypot(across, down)
    is_ridge = _is_ridge(length, across, -down, *_TIES[ties])
    return _joined(is_ridge & (length > high), is_ridge & (length > low)).to(blurred.dtype)


_TIES: Mapping[str, tuple[Comparison, Comparison]] = {
    "earlier": (torch.gt, torch.ge), "later": (torch.ge, torch.gt), "both": (torch.ge, torch.ge),
    "none": (torch.gt, torch.gt),
}  # fmt: skip
"""How a length is compared with that before and that behind."""


def _is_ridge(length: Tensor, across: Tensor, down: Tensor, before: Comparison, behind: Comparison) -> Tensor:
    """Where the gradient is longest along its own direction; ``down`` grows with the rows."""
    height, width = length.shape[2:]
    framed = functional.pad(length, (1, 1, 1, 1))

    def beside(row: int, column: int) -> Tensor:
        return framed[:, :, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    is_level = down.abs() <= STEEP * across.abs()
    is_upright = across.abs() < STEEP * down.abs()
    falls = across * down > 0.0
    result = torch.zeros_like(length, dtype=torch.bool)
    for chosen, (row, column) in (
        (is_level, (0, -1)),
        (is_upright & ~is_level, (-1, 0)),
        (falls & ~is_level & ~is_upright, (-1, -1)),
        (~falls & ~is_level & ~is_upright, (-1, 1)),
    ):
        result |= chosen & before(length, beside(row, column)) & behind(length, beside(-row, -column))
    return result


def _joined(strong: Tensor, weak: Tensor) -> Tensor:
    """Strong pixels, and the weak ones that a chain of weak neighbours joins to them."""
    found = strong
    while True:
        grown = _spread(_spread(found, ROWS), COLUMNS).logical_and_(weak)
        if torch.equal(grown, found):
            return found
        found = grown


def _spread(x: Tensor, dimension: int) -> Tensor:
    """Also the neighbours before and behind along a dimension."""
    length, wide = x.shape[dimension] - 1, x.clone()
    wide.narrow(dimension, 0, length).logical_or_(x.narrow(dimension, 1, length))
    wide.narrow(dimension, 1, length).logical_or_(x.narrow(dimension, 0, length))
    return wide


class Canny(Op, of=canny, kind=Kind.REDUCTION):
    """`canny` of a blurred picture."""

    low: float
    high: float
    edge_mode: MPSImageEdgeMode
    ties: str = "earlier"
