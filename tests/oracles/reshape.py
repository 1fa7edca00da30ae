"""Reshaping: number k of an image, counted along rows, columns, channels, is number k of the result."""

from __future__ import annotations

import numpy as np


def reshape(x: np.ndarray, size: tuple[int, int, int]) -> np.ndarray:
    """`size`: channels, height, width of the result; also the gradient, with the size of the source."""
    _, channels, height, width = x.shape
    result = np.zeros((x.shape[0], *size))
    for n in range(x.shape[0]):
        for k in range(channels * height * width):
            pixel, channel = divmod(k, channels)
            place, c = divmod(k, size[0])
            result[n, c, place // size[2], place % size[2]] = x[n, channel, pixel // width, pixel % width]
    return result
