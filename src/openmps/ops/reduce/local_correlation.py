"""Correlation of two images over a window of displacements (MPSNNReduce.h, macOS 10.15)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window, read
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_LEAST_TILE = 8
"""Columns that one matrix product takes at least."""


def local_correlation(
    a: Tensor, b: Tensor, window: tuple[int, int], stride: tuple[int, int], edge_mode: MPSImageEdgeMode
) -> Tensor:
    """``Y[n (2 wx + 1) + m, y, x] = sum_c A[c, y, x] B[c, y + (n - wy) ty, x + (m - wx) tx]``.

    ``a`` is ``[N, C, H, W]``, ``b`` ``[N, C, H', W']``, read by ``edge_mode`` outside; ``window`` is ``(wy, wx)``,
    ``stride`` ``(ty, tx)``; m runs over 0 .. 2 wx, n over 0 .. 2 wy. The result is ``[N, (2 wy + 1)(2 wx + 1), H, W]``.

    For each n one batched matrix product of tiles of a row of A with the columns of B that they meet; what is wanted of
    a product is a band of its diagonals.
    """
    (wy, wx), (ty, tx) = window, stride
    images, channels, height, width = a.shape
    across, down = 2 * wx + 1, 2 * wy + 1
    # A tile holds the columns x, x + tx, x + 2 tx, …: with their like of B they correlate with a stride of 1.
    tile = min(max(2 * wx, _LEAST_TILE), -(-width // tx))
    tiles = -(-width // (tile * tx))
    columns = tiles * tile * tx
    result = a.new_empty((images, height, tiles, tile, tx, down, across))
    if result.numel() == 0:
        return a.new_zeros((images, across * down, height, width))
    left = _rows(a, Axis(width, columns), Axis(height, height), MPSImageEdgeMode.ZERO)
    shifted = Axis(b.shape[3], columns + 2 * wx * tx, offset=-wx * tx)
    right = _rows(b, shifted, Axis(b.shape[2], height + 2 * wy * ty, offset=-wy * ty), edge_mode)
    left = _tiles(left, tiles, tile, tile, tx).reshape(-1, tile, channels)
    right = _tiles(right, tiles, tile, tile + 2 * wx, tx).contiguous()
    for n in range(down):
        met = right[n * ty : n * ty + height].flatten(0, 3).transpose(1, 2)
        product = torch.bmm(left, met).view(height, images, tiles, tx, tile, -1)
        steps = product.stride()
        band = product.as_strided((*product.shape[:5], across), (*steps[:4], steps[4] + 1, 1))
        result[:, :, :, :, :, n] = band.permute(1, 0, 2, 4, 3, 5)
    return result.view(images, height, columns, down * across)[:, :, :width].permute(0, 3, 1, 2)


def _rows(x: Tensor, columns: Axis, rows: Axis, edge_mode: MPSImageEdgeMode) -> Tensor:
    """The pixels read, ``[rows, N, columns, C]``."""
    return read(x, Window(columns, rows), edge_mode).permute(2, 0, 3, 1).contiguous()


def _tiles(pixels: Tensor, tiles: int, step: int, length: int, stride: int) -> Tensor:
    """Overlapping tiles of every row, ``[rows, N, tiles, stride, length, C]``: a view.

    Tile (k, p) holds the pixels ``(k step + i) stride + p``, i = 0 .. length - 1.
    """
    rows, images, _, channels = pixels.shape
    row, image, column, channel = pixels.stride()
    return pixels.as_strided(
        (rows, images, tiles, stride, length, channels),
        (row, image, step * stride * column, column, stride * column, channel),
    )


class LocalCorrelation(Op, of=local_correlation, kind=Kind.CONTRACTION):
    """`local_correlation` of two images."""

    window: tuple[int, int]
    stride: tuple[int, int]
    edge_mode: MPSImageEdgeMode
