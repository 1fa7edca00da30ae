"""Measures of pictures, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.site import BYTES, Site
from openmps.ops.numba.loop import lines, loop
from openmps.ops.numba.primitives import add, claim, finish, wait
from openmps.types import MPSImageEdgeMode


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


@loop("uint8[::1]", "int64", "int64", "int64", "uint8[::1]")
def _find_extremes(claims: Any, x: Any, step: int, rows: int, columns: int, made: Any) -> None:
    """The smallest and the largest byte, up to the row by which both are the ones that bytes end with."""
    least, most = np.uint8(255), np.uint8(0)
    for row in range(rows):
        bytes_ = x[row * step :][:columns]
        for column in range(columns):
            least, most = min(least, bytes_[column]), max(most, bytes_[column])
        if least == 0 and most == 255:
            break
    made[0], made[1] = least, most


def extremes(site: Site) -> Run | None:
    """`MinAndMax` of the bytes of one channel."""
    if site.formats != (BYTES, BYTES) or site.result.channels != 1:
        return None

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        (x, step), (rows, columns) = lines(given[0]), given[0].shape
        _find_extremes.run(1, 0, x, step, rows, columns, made.reshape(2))

    return run
