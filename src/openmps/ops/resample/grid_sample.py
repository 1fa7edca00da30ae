"""Sampling an image at the places that a second image holds (MPSNNGridSample.h, macOS 10.15)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op
from openmps.ops.resample.resample import sample
from openmps.ops.resample.stretch import Corners
from openmps.types import MPSImageEdgeMode


def grid_sample(
    x: Tensor,
    grid: Tensor,
    edge_mode: MPSImageEdgeMode,
    origin: tuple[int, int] | None = None,
    corners: Corners = Corners.CENTRES,
) -> Tensor:
    """Bilinear interpolation at the positions in ``grid``, whose channel 0 is across and channel 1 down.

    Without ``origin`` the grid holds positions from -1, the centre of the first pixel, to 1, that of the last::

        u = (grid[n, 0, y, x] + 1) / 2 * (W - 1)        v = (grid[n, 1, y, x] + 1) / 2 * (H - 1)

    which is PyTorch's ``grid_sample(align_corners=True)``; with ``corners`` of EDGES ``((g + 1) * W - 1) / 2``, its
    ``align_corners=False``; with STEPS the number of the pixel itself. With ``origin`` it holds distances in pixels::

        u = origin[1] + x + grid[n, 0, y, x]            v = origin[0] + y + grid[n, 1, y, x]

    Args:
        x: The source, [N, C, H, W].
        grid: [N, 2, h, w].
        edge_mode: What pixels outside the source are: ``ZERO`` 0, ``CLAMP`` the nearest of the edge.
        origin: Row and column of the source that result pixel (0, 0) belongs to, where the grid holds distances.
        corners: What positions count.

    Returns:
        [N, C, h, w], channels-last. A grid value that is not a number gives results that are none.
    """
    across, down = (grid[:, axis : axis + 1].to(torch.float64) for axis in (0, 1))
    height, width = x.shape[2:]
    if origin is None:
        return sample(x, _positions(down, height, corners), _positions(across, width, corners), edge_mode)
    top, left = origin
    rows = torch.arange(grid.shape[2], dtype=torch.float64, device=x.device) + top
    columns = torch.arange(grid.shape[3], dtype=torch.float64, device=x.device) + left
    return sample(x, down + rows[:, None], across + columns, edge_mode)


def _positions(numbers: Tensor, length: int, corners: Corners) -> Tensor:
    """Pixels that a grid's numbers point to."""
    if corners is Corners.STEPS:
        return numbers
    if corners is Corners.EDGES:
        return ((numbers + 1.0) * length - 1.0) * 0.5
    return (numbers + 1.0) * (0.5 * (length - 1))


class GridSample(Op, of=grid_sample, kind=Kind.WINDOW):
    """`grid_sample` of an image and a grid."""

    edge_mode: MPSImageEdgeMode
    origin: tuple[int, int] | None
    corners: Corners = Corners.CENTRES
