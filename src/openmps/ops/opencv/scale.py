"""Scaling of pictures, by OpenCV; see `openmps.ops.opencv.table`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.site import BYTES, Site
from openmps.ops.resample.image_scale import ScaleFilter, ScaleImage, Scaling
from openmps.types import MPSImageEdgeMode

_TILE = 256
"""Rows and columns made together: positions are float32, of the tile's own corner."""
_MARGIN = 2
"""Source pixels around what a tile reads."""


def scaled(site: Site) -> Run | None:
    """Bilinear `ScaleImage` of bytes, continued by its edge: as a map, with weights in float32.

    The library's own scaling of bytes has weights of eleven bits.
    """
    op = site.ops[0]
    assert isinstance(op, ScaleImage)
    is_bilinear = op.filter is ScaleFilter.BILINEAR and op.edge_mode == MPSImageEdgeMode.CLAMP
    if not is_bilinear or site.formats != (BYTES, BYTES) or site.result.channels not in (1, 3, 4):
        return None
    tiles = [(down, across) for down in _tiles(op.rows) for across in _tiles(op.columns)]

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, flags = given[0], cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        for (rows, into_rows, down), (columns, into_columns, across) in tiles:
            into = made[into_rows, into_columns]
            matrix = np.array([[across[0], 0.0, across[1]], [0.0, down[0], down[1]]])
            size = into.shape[1], into.shape[0]
            cv2.warpAffine(x[rows, columns], matrix, size, dst=into, flags=flags, borderMode=cv2.BORDER_REPLICATE)

    return run


def _tiles(axis: Scaling) -> list[tuple[slice, slice, tuple[float, float]]]:
    """Of each tile the pixels that are read, those made, and the step and the start among the pixels read."""
    found: list[tuple[slice, slice, tuple[float, float]]] = []
    last = axis.axis.source - 1
    for first in range(0, axis.axis.result, _TILE):
        into = slice(first, min(first + _TILE, axis.axis.result))
        ends = sorted(axis.position(pixel) for pixel in (into.start, into.stop - 1))
        begin = min(max(math.floor(ends[0]) - _MARGIN, 0), last)
        end = max(min(math.ceil(ends[1]) + _MARGIN, last), begin)
        found.append((slice(begin, end + 1), into, (1.0 / axis.scale, axis.position(into.start) - begin)))
    return found
