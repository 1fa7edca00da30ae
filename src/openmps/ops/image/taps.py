"""Weighted sums of neighbours on the CPU: pixels that lie apart by as much are added up a whole picture at a time.

The libraries' convolutions make many channels of many; pictures have a few, each of which is weighed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from openmps.ops.geometry import ROWS

_BLOCK = 8
"""Results along an axis that one product makes."""
_PIXELS = {1: np.float32, 2: np.complex64, 4: np.complex128}
"""What has as many bytes as a pixel of so many channels."""
_FEW = 8
"""Weights along an axis that are added up sooner than products are made."""


def sum_of_taps(region: Tensor, weights: Sequence[Sequence[float]]) -> Tensor:
    """Of a region ``[N, C, H + kh - 1, W + kw - 1]`` the windows' sums by weights of kh rows, ``[N, C, H, W]``."""
    rows, columns = region.shape[2] - len(weights) + 1, region.shape[3] - len(weights[0]) + 1
    total: Tensor | None = None
    for j, row in enumerate(weights):
        for i, weight in enumerate(row):
            pixels = region[:, :, j : j + rows, i : i + columns]
            total = pixels * weight if total is None else total.add_(pixels, alpha=weight)
    assert total is not None
    return total


def sums_along(region: Tensor, weights: Tensor, dimension: int) -> Tensor:
    """The same by weights along one axis, float64; the other axis keeps its length."""
    can_turn = dimension == ROWS or (region.shape[1] in _PIXELS and region.dtype == torch.float32)
    if len(weights) > _FEW and can_turn and math.isfinite(region.sum()):
        # Weights of 0 would carry what is no number beyond its windows.
        return _products(region, weights.to(region.dtype), dimension)
    numbers = weights.tolist()
    return sum_of_taps(region, [[each] for each in numbers] if dimension == ROWS else [numbers])


def _products(region: Tensor, weights: Tensor, dimension: int) -> Tensor:
    """By products with a matrix of the weights, of a few results each; along columns of the picture turned."""
    images, channels, height, width = region.shape
    rows = region.permute(0, 2, 3, 1).reshape(images, height, width * channels)
    length = region.shape[dimension] - len(weights) + 1
    size = (length, width) if dimension == ROWS else (height, length)
    made = region.new_empty(images, size[0], size[1] * channels)
    for each, into in zip(rows, made, strict=True):
        if dimension == ROWS:
            _down(each, weights, into)
        else:
            turned = _turned(each, channels)
            sums = _down(turned, weights, turned.new_empty(length, height * channels))
            into.copy_(_turned(sums, channels))
    return made.view(images, *size, channels).permute(0, 3, 1, 2)


def _down(x: Tensor, weights: Tensor, made: Tensor) -> Tensor:
    """The sums down the columns of a matrix."""
    size, (length, width) = len(weights), made.shape
    blocks, rest = divmod(length, _BLOCK)
    matrix = weights.new_zeros(_BLOCK, _BLOCK + size - 1)
    for row in range(_BLOCK):
        matrix[row, row : row + size] = weights
    if blocks:
        parts = x.as_strided((blocks, _BLOCK + size - 1, width), (_BLOCK * width, width, 1))
        whole = made[: blocks * _BLOCK].view(blocks, _BLOCK, width)
        torch.bmm(matrix.expand(blocks, -1, -1), parts, out=whole)
    if rest:
        torch.mm(matrix[:rest, : rest + size - 1], x[blocks * _BLOCK :], out=made[blocks * _BLOCK :])
    return made


def _turned(x: Tensor, channels: int) -> Tensor:
    """Rows ``[H, W C]`` of pixels as columns: ``[W, H C]``."""
    pixels = x.numpy().view(_PIXELS[channels])
    return torch.from_numpy(np.ascontiguousarray(pixels.T).view(np.float32))
