"""Convolution by windows of 3 x 3 pixels in tiles, after Winograd: fewer products than there are taps.

A tile of ``m x m`` result pixels needs ``n x n`` source pixels, ``n = m + 2``. With ``B``, ``G`` and ``A`` from the
points at which two polynomials are multiplied (Toom and Cook)::

    Y = A' [ sum over channels of (G g G') * (B' d B) ] A

The products over channels are ``n n`` products of matrices for a whole row of tiles: ``n n / m m`` multiplications a
result number and channel instead of 9. For ``m = 2`` the points are 0, 1, -1 and infinity; for ``m = 4`` they are 0,
5/7, -5/7, 7/5, -7/5 and infinity, whose rounding errors are about twice those of the convolution itself.

An error is relative to the largest number of a tile. A number that is not finite would spread in its tile: images with
one, or with a number beyond 2^64, are left to the convolution itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode

_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 5 / 7, -5 / 7, 7 / 5, -7 / 5)}
"""By the side of a tile; infinity besides."""
_MOST_WEIGHTS = 2.0**48
"""Sum of magnitudes of weights in tiles that no image with numbers below 2^64 makes too large."""
_MOST_CHANNELS = 2**17
"""Products of input and output channels for the larger tiles, whose weights take four times the memory."""
_GAIN = 1.05
"""Less is not worth the memory."""
_CACHED = 2**19
"""Numbers of a strip of tiles on their way that stay in a core's cache."""
_MOST_NUMBERS = 2**31
"""Of an image, which the library's sum of squares counts in 32 bits."""
_FEW_TILES = 96
"""Of a strip, whose products would wait for their weights."""


@dataclass(frozen=True, slots=True, eq=False)
class _Tiling:
    """The matrices of one side of tiles."""

    side: int
    filters: Tensor
    """``G``, float64, ``[n, 3]``."""
    source: Tensor
    """``B'`` for rows and columns at once, ``[n n, n n]``."""
    result: Tensor
    """``A'`` for rows and columns at once, ``[m m, n n]``."""

    @property
    def reach(self) -> int:
        """The side of a tile of the source."""
        return self.side + 2


@lru_cache(maxsize=8)
def _tiling(side: int) -> _Tiling:
    points = torch.tensor(_POINTS[side], dtype=torch.float64)
    count = len(points)
    differences = points[:, None] - points[None, :]
    differences.fill_diagonal_(1.0)
    scales = torch.cat([differences.prod(1), torch.ones(1, dtype=torch.float64)])

    def powers(length: int) -> Tensor:
        """Each point's powers, and the highest one alone for infinity."""
        rows = points[:, None] ** torch.arange(length)
        last = functional.one_hot(torch.tensor([length - 1]), length)
        return torch.cat([rows, last.to(torch.float64)])

    source = torch.linalg.inv(powers(count + 1)).t() * scales[:, None]
    result = powers(side).t()
    both = [torch.kron(each, each).to(torch.float32).contiguous() for each in (source, result)]
    return _Tiling(side, powers(3) / scales[:, None], *both)


def side_of_tiles(window: Window, edge_mode: MPSImageEdgeMode, groups: int, images: int, weights: Tensor) -> int:
    """The side of tiles by which a float32 convolution with weights, OHWI, is faster; 0 where it is not.

    By rates that were measured, in nanoseconds, where others had used the caches between: the same work is done in the
    same way each time.
    """
    fits = window.size == (3, 3) and window.stride == window.dilation == (1, 1) and groups == 1
    if not fits or (edge_mode != MPSImageEdgeMode.ZERO and window.leaves_source):
        return 0
    outputs, _, _, inputs = weights.shape
    rows, columns = window.result
    products = inputs * outputs
    pixels = images * rows * columns
    least = (163e3 + pixels * (9 * products / 78 + 0.094 * outputs)) / _GAIN
    chosen = 0
    for side in _POINTS:
        squares, tiles = (side + 2) ** 2, images * -(-rows // side) * -(-columns // side)
        took = 204e3 + squares * (products * (tiles / 67.6 + 0.124) + tiles * (inputs + outputs / 2))
        if took < least and (side == 2 or products <= _MOST_CHANNELS):
            chosen, least = side, took
    return chosen


class Tiles:
    """Weights of a convolution in tiles."""

    def __init__(self, weights: Tensor, biases: Tensor | None, window: Window, side: int) -> None:
        tiling = self._tiling = _tiling(side)
        g = tiling.filters
        changed = torch.einsum("ai,bj,oijc->abco", g, g, weights.to(torch.float64))
        self._weights = changed.flatten(0, 1).to(torch.float32).contiguous()
        self._biases = biases
        self._window = window
        self.are_moderate = bool(changed.abs().sum() < _MOST_WEIGHTS)
        """Whether their products are finite for all images that `convolve` takes."""

    def convolve(self, x: Tensor, activation: Any) -> Tensor | None:
        """The convolution of a float32 image, and a neuron of it; None for an image that it would be wrong for."""
        side, window = self._tiling.side, self._window
        rows, columns = (-(-length // side) for length in window.result)
        source = _padded(x, window, rows * side + 2, columns * side + 2)
        flat = source.view(-1)
        if flat.numel() >= _MOST_NUMBERS or not math.isfinite(torch.dot(flat, flat).item()):
            return None
        outputs = self._weights.shape[2]
        result = source.new_empty((len(x), rows * side, columns * side, outputs))
        tiles = result.view(len(x), rows, side, columns, side, outputs)
        together, strip = self._strips(len(x), rows, columns)
        for image in range(0, len(x), together):
            for row in range(0, rows, strip):
                part = source[image : image + together, row * side :]
                made = self._strip(part, min(strip, rows - row), columns)
                if self._biases is not None:
                    made.add_(self._biases)
                if activation is not None:
                    made = activation.of(made)
                target = tiles[image : image + together, row : row + strip]
                target.copy_(made.view(side, side, *target.shape[:2], columns, outputs).permute(2, 3, 0, 4, 1, 5))
        return result[:, : window.y.result, : window.x.result].permute(0, 3, 1, 2)

    def _strips(self, images: int, rows: int, columns: int) -> tuple[int, int]:
        """How many images, and how many rows of tiles, are computed together."""
        reach, inputs, outputs = self._weights.shape
        tiles = max(_CACHED // (reach * (2 * inputs + outputs)), _FEW_TILES)
        strip = min(rows, max(1, -(-tiles // columns)))
        strip = -(-rows // -(-rows // strip))
        return (max(1, min(images, tiles // (rows * columns))) if strip == rows else 1), strip

    def _strip(self, source: Tensor, rows: int, columns: int) -> Tensor:
        """Some rows of tiles of images that begin there: ``[m m, tiles, O]``."""
        side, reach = self._tiling.side, self._tiling.reach
        images, channels = len(source), source.shape[3]
        image, line, pixel, _ = source.stride()
        shape = (reach, reach, images, rows, columns, channels)
        seen = source.as_strided(shape, (line, pixel, image, side * line, side * pixel, 1))
        squares, tiles = reach * reach, images * rows * columns
        pixels = seen.reshape(squares, tiles * channels)
        products = torch.bmm(torch.mm(self._tiling.source, pixels).view(squares, tiles, channels), self._weights)
        return torch.mm(self._tiling.result, products.view(squares, -1)).view(side * side, tiles, -1)


def _padded(x: Tensor, window: Window, height: int, width: int) -> Tensor:
    """The region of so many rows and columns that windows read, with zeros outside the source, ``[N, H, W, C]``."""
    up, left = -window.y.first, -window.x.first
    down, right = height - up - window.y.source, width - left - window.x.source
    return functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, right, up, down)).contiguous()
