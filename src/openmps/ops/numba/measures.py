"""Measures of pictures, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops import opencv
from openmps.ops.elements import decode
from openmps.ops.image.library_form import Array, Run, packed_pictures
from openmps.ops.image.site import BYTES, FLOATS, Site
from openmps.ops.numba.loop import lines, loop, loops
from openmps.ops.numba.primitives import add, claim, finish, wait
from openmps.types import MPSImageEdgeMode

MOST_CHANNELS = 4
"""Of a picture whose extremes are found."""
_ALL = 255
"""The largest byte."""


@loop("uint8[::1]", "int64", "int64", "int64[::1]")
def _count(claims: Any, x: Any, step: int, columns: int, counts: Any) -> None:
    """How often each byte is there: eight at a time, of which two that follow one another have other counters."""
    own, byte = np.zeros((4, 256), np.uint32), np.uint64(255)
    one = np.uint32(1)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            bytes_ = x[row * step :][:columns]
            whole = columns // 8 * 8
            eights = bytes_[:whole].view(np.uint64)
            for place in range(len(eights)):
                value = eights[place]
                own[0, value & byte] += one
                own[1, (value >> np.uint64(8)) & byte] += one
                own[2, (value >> np.uint64(16)) & byte] += one
                own[3, (value >> np.uint64(24)) & byte] += one
                own[0, (value >> np.uint64(32)) & byte] += one
                own[1, (value >> np.uint64(40)) & byte] += one
                own[2, (value >> np.uint64(48)) & byte] += one
                own[3, value >> np.uint64(56)] += one
            for place in range(whole, columns):
                own[0, bytes_[place]] += 1
        for value in range(256):
            add(counts, value, np.int64(own[0, value] + own[1, value] + own[2, value] + own[3, value]))
        own[:] = np.uint32(0)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def byte_counts(x: Tensor) -> Tensor:
    """How often each byte is in images of one channel ``[N, 1, H, W]``, int64 ``[1, 256]``."""
    counts = np.zeros(256, np.int64)
    for image in x[:, 0].contiguous().numpy():
        _count.run(len(image), image.size, *lines(image), image.shape[1], counts)
    return torch.from_numpy(counts)[None]


def _widen(x: Any, least: Any, most: Any) -> None:
    """Lower and raise the extremes of as many numbers side by side; NaN becomes both, and stays."""
    for place in range(len(x)):
        value = x[place]
        least[place] = value if value < least[place] or value != value else least[place]
        most[place] = value if value > most[place] or value != value else most[place]


@loops(
    "T[::1], int64, int64, int64, S[:, :, ::1]",
    [(each, each) for each in ("uint8", "float32")],
    uses=(_widen,),
)
def _find_extremes(claims: Any, x: Any, step: int, columns: int, channels: int, found: Any) -> None:
    """The smallest and the largest number of each channel, by the rows that a thread has taken at a time.

    Those that are there before are the largest and the smallest that there may be.
    """
    width = 240  # side by side, a multiple of any number of channels
    least, most = np.empty(width, x.dtype), np.empty(width, x.dtype)
    first, last = claim(claims)
    while first < last:
        least[:], most[:] = found[first, 0, 0], found[first, 1, 0]
        for row in range(first, last):
            for begin in range(0, columns, width):
                _widen(x[row * step + begin :][: min(width, columns - begin)], least, most)
        for place in range(width):
            ends, low, high = found[first, :, place % channels], least[place], most[place]
            ends[0] = low if low < ends[0] or low != low else ends[0]
            ends[1] = high if high > ends[1] or high != high else ends[1]
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def extremes(site: Site) -> Run | None:
    """`MinAndMax` of bytes; OpenCV has a faster function of one channel."""
    channels = site.result.channels
    if channels == 1 and opencv.is_installed():
        return None
    if site.formats not in ((BYTES, BYTES), (BYTES, FLOATS)) or channels > MOST_CHANNELS:
        return None
    numbers = decode(torch.arange(256, dtype=torch.uint8), BYTES).numpy()

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        ends = _ends(given[0])
        made.reshape(2, channels)[...] = ends if made.dtype == np.uint8 else numbers[ends]

    return run


def min_and_max(x: Tensor) -> Tensor:
    """`openmps.ops.image.statistics.min_and_max` of float32 images of few channels."""
    return torch.from_numpy(np.stack([_ends(image).T for image in packed_pictures(x)]))[:, :, None]


def _ends(picture: Array) -> Array:
    """The smallest and the largest number of each channel, ``[2, C]``; NaN anywhere gives NaN."""
    rows, channels = len(picture), 1 if picture.ndim == 2 else picture.shape[2]
    found = np.empty((rows, 2, channels), picture.dtype)
    # Also of rows whose band has its extremes with the first of them.
    found[:, 0], found[:, 1] = (_ALL, 0) if picture.dtype == np.uint8 else (np.inf, -np.inf)
    _find_extremes[picture.dtype.name, picture.dtype.name].run(
        rows, picture.size, *lines(picture), picture[0].size, channels, found
    )
    return np.stack([found[:, 0].min(0), found[:, 1].max(0)])
