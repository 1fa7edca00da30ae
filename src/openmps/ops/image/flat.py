"""Sums and extremes of neighbours over bytes on the CPU, by NumPy.

NumPy's loops over 8 and 16 bit numbers are several times as fast as PyTorch's where what is read does not begin at a
multiple of a vector. Pictures are rows of numbers without gaps, one behind the other: neighbours lie a fixed distance
apart, and what is made of the end of one row and the beginning of the next is left out at last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Flat = NDArray[Any]


def rows_of(region: Tensor) -> Flat:
    """One image ``[C, H, W]`` as rows ``[H, W C]``: those of the memory where it lies channels-last."""
    height, width, channels = region.shape[1], region.shape[2], region.shape[0]
    return region.permute(1, 2, 0).reshape(height, width * channels).numpy()


def neighbour_sums(x: Flat, size: int, distance: int) -> Flat:
    """The sums of ``size`` numbers that lie ``distance`` apart, of each that has so many behind it.

    Sums of two, four, eight … neighbours, those together that the size's binary digits name.
    """
    count = len(x) - (size - 1) * distance
    total: Flat | None = None
    powers, taken, length = x, 0, 1
    while taken < size:
        if size & length:
            part = powers[taken * distance : taken * distance + count]
            if total is None:
                total = part
            elif total.base is not None:  # a part of what others are made of
                total = total + part
            else:
                total += part
            taken += length
        if taken < size:
            reach = length * distance
            powers = powers[:-reach] + powers[reach:]
        length *= 2
    assert total is not None
    return total


def rounded_means(region: Tensor, spans: tuple[list[int], list[int]], result: Tensor) -> None:
    """The means over windows of one image of bytes ``[C, H + kh - 1, W + kw - 1]``, rounded, into ``result``.

    Windows are ``spans`` of rows and of columns, one over the other. Their sizes are odd, so that nothing lies halfway.
    """
    channels = region.shape[0]
    total = int(np.prod(spans[0], dtype=np.int64) * np.prod(spans[1], dtype=np.int64))
    rows = rows_of(region)
    stride, height = rows.shape[1], result.shape[1]
    x: Flat = rows.astype(np.uint16 if total * 255 + total // 2 < 1 << 16 else np.uint32).ravel()
    for distance, lengths in ((stride, spans[0]), (channels, spans[1])):
        for length in lengths:
            x = neighbour_sums(x, length, distance)
    x = (x + x.dtype.type(total // 2)) // x.dtype.type(total)
    whole = np.empty(height * stride, np.uint8)
    whole[: len(x)] = x
    width = result.shape[2] * channels
    rows_of(result)[...] = whole.reshape(height, stride)[:, :width]
