"""Canny's edges, by OpenCV's sums and components; see `openmps.ops.opencv.table`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from openmps.cpu.parts import run_parts
from openmps.ops.image.canny import STEEP, Canny
from openmps.ops.image.library_form import Array, Run, bands, is_centred
from openmps.ops.image.separable import Separable
from openmps.ops.image.site import BYTES, FLOATS, Site
from openmps.ops.opencv import border_of
from openmps.ops.opencv.windows import has_few_taps, weights_of
from openmps.types import MPSImageEdgeMode


def canny(site: Site) -> Run | None:
    """`Canny` of a picture of one channel that `Separable` has blurred."""
    blur, op = site.ops
    assert isinstance(blur, Separable)
    assert isinstance(op, Canny)
    is_known = site.formats in ((BYTES, BYTES), (BYTES, FLOATS), (FLOATS, BYTES), (FLOATS, FLOATS))
    if (
        op.ties != "earlier"
        or not is_known
        or site.result.channels != 1
        or not is_centred(site.window)
        or not has_few_taps(blur.window)
    ):
        return None
    down, across = weights_of(blur.profile, blur.window.size, site.unit)
    scale = site.scale

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        border, (height, width) = border_of(cv2, op.edge_mode), made.shape
        length = np.zeros((height + 2, width + 2), np.float32)  # with a frame, so that neighbours lie at one distance
        parts = list(bands(height, width, len(down) // 2 + 1))
        found: list[Any] = [None] * len(parts)

        def find(index: int) -> None:
            read, rows, part = parts[index]
            smooth = cv2.sepFilter2D(given[0][read], cv2.CV_32F, across, down, borderType=border)
            steps = [
                cv2.Sobel(smooth, cv2.CV_32F, *order, ksize=3, borderType=border)[part] for order in ((1, 0), (0, 1))
            ]
            inner = length[1:-1, 1:-1][rows]
            cv2.magnitude(*steps, magnitude=inner)
            row, column = np.divmod(np.flatnonzero(inner > op.low), width)
            place = (row + rows.start + 1) * (width + 2) + column + 1
            found[index] = place, steps[0][row, column], steps[1][row, column]

        run_parts(find, range(len(parts)), torch.get_num_threads())
        weak = _ridge(length, *(np.concatenate(each) for each in zip(*found, strict=True)))
        edges = _joined(cv2, weak, weak[length.ravel()[weak] > op.high], length.shape)
        made[...] = 0
        made[edges // (width + 2) - 1, edges % (width + 2) - 1] = scale

    return run


def _ridge(length: Array, place: Array, across: Array, down: Array) -> Array:
    """Those of some places, counted row by row, whose lengths are largest in their own direction."""
    columns, lengths = length.shape[1], length.ravel()
    step = np.where((across > 0) == (down > 0), columns + 1, columns - 1)
    flat, steep = np.abs(across), np.abs(down)
    step[flat < STEEP * steep] = columns
    step[steep <= STEEP * flat] = 1
    here = lengths[place]
    return place[(here > lengths[place - step]) & (here >= lengths[place + step])]


def _joined(cv2: Any, weak: Array, strong: Array, size: tuple[int, ...]) -> Array:
    """The places of components that have a strong one."""
    if not len(strong):
        return strong
    is_weak = np.zeros(size, np.uint8)
    is_weak.ravel()[weak] = 1
    count, labels = cv2.connectedComponents(is_weak, connectivity=8, ltype=cv2.CV_32S)
    is_kept = np.zeros(count, np.bool_)
    is_kept[labels.ravel()[strong]] = True
    return weak[is_kept[labels.ravel()[weak]]]
