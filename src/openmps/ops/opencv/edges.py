"""Canny's edges, by OpenCV's sums and components; see `openmps.ops.opencv.table`."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.ops.image.canny import STEEP, Canny
from openmps.ops.image.separable import Separable
from openmps.ops.opencv.form import BYTES, FLOATS, Array, Run, Site, border_of, is_centred
from openmps.ops.opencv.windows import has_few_taps, weights_of


def canny(site: Site) -> Run | None:
    """`Canny` of a picture of one channel that `Separable` has blurred."""
    blur, op = site.ops
    assert isinstance(blur, Separable)
    assert isinstance(op, Canny)
    is_known = site.formats in ((BYTES, BYTES), (BYTES, FLOATS), (FLOATS, BYTES), (FLOATS, FLOATS))
    if not is_known or site.result.channels != 1 or not is_centred(site.window) or not has_few_taps(blur.window):
        return None
    down, across = weights_of(blur.profile, blur.window.size, site.unit)
    scale = site.scale

    def run(cv2: Any, given: list[Array], made: Array, border: int) -> None:
        border, size = border_of(cv2, op.edge_mode), (made.shape[0] + 2, made.shape[1] + 2)
        smooth = cv2.sepFilter2D(given[0], cv2.CV_32F, across, down, borderType=border)
        # Each with a frame of a pixel, so that neighbours lie at one distance.
        length, along_rows, along_columns = (np.zeros(size, np.float32) for _ in range(3))
        inner = [each[1:-1, 1:-1] for each in (along_rows, along_columns)]
        for order, into in zip(((1, 0), (0, 1)), inner, strict=True):
            cv2.Sobel(smooth, cv2.CV_32F, *order, dst=into, ksize=3, borderType=border)
        cv2.magnitude(*inner, magnitude=length[1:-1, 1:-1])
        weak = _ridge(length, along_rows, along_columns, op.low)
        found = np.zeros(size, made.dtype)
        found.ravel()[_joined(cv2, weak, weak[length.ravel()[weak] > op.high], size)] = scale
        made[...] = found[1:-1, 1:-1]

    return run


def _ridge(length: Array, across: Array, down: Array, low: float) -> Array:
    """The places where lengths above ``low`` are largest in their own direction, counted row by row."""
    place, columns = np.flatnonzero(length > low), length.shape[1]
    along, steep, flat = (each.ravel()[place] for each in (length, down, across))
    step = np.where((flat > 0) == (steep > 0), columns + 1, columns - 1)
    steep, flat = np.abs(steep), np.abs(flat)
    step[flat < STEEP * steep] = columns
    step[steep <= STEEP * flat] = 1
    stands_out = (along > length.ravel()[place - step]) & (along >= length.ravel()[place + step])
    return place[stands_out]


def _joined(cv2: Any, weak: Array, strong: Array, size: tuple[int, int]) -> Array:
    """The places of components that have a strong one."""
    if not len(strong):
        return strong
    is_weak = np.zeros(size, np.uint8)
    is_weak.ravel()[weak] = 1
    count, labels = cv2.connectedComponents(is_weak, connectivity=8, ltype=cv2.CV_32S)
    is_kept = np.zeros(count, np.bool_)
    is_kept[labels.ravel()[strong]] = True
    return weak[is_kept[labels.ravel()[weak]]]
