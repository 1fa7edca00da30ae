"""Padding rules of five frameworks, each written out by itself, on one axis unless a name says otherwise.

A placement is ``(result, before)``: how many windows there are, and how many pixels before the source the first starts.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, trunc

import numpy as np

VALID, SAME, FULL = -1, 0, 1


def framework(
    source: int, kernel: int, stride: int, dilation: int, style: int, align: str, low: bool
) -> tuple[int, int]:
    """Metal Performance Shaders, forward filters: counts windows one by one, then centres or aligns what they read."""
    extent = len(range(0, (kernel - 1) * dilation + 1))
    allowed = source + style * (extent - 1)
    result = len(range(0, max(allowed, 0), stride))
    missing = stride * result - stride + extent - source
    sides = {"centered": trunc(Fraction(missing + low, 2)), "top left": missing, "bottom right": 0}
    return result, sides[align]


def tensorflow(source: int, kernel: int, stride: int, dilation: int, same: bool) -> tuple[int, int]:
    """TensorFlow's SAME and VALID."""
    extent = (kernel - 1) * dilation + 1
    if not same:
        return ceil(Fraction(source - extent + 1, stride)), 0
    result = ceil(Fraction(source, stride))
    return result, max((result - 1) * stride + extent - source, 0) // 2


def onnx_auto(source: int, kernel: int, stride: int, dilation: int, upper: bool) -> tuple[int, int]:
    """ONNX's auto_pad SAME_UPPER and SAME_LOWER."""
    extent = (kernel - 1) * dilation + 1
    result = ceil(Fraction(source, stride))
    total = max((result - 1) * stride + extent - source, 0)
    return result, total // 2 if upper else total - total // 2


def pytorch_size(source: int, kernel: int, stride: int, dilation: int, pad: int, ceil_mode: bool) -> int:
    """PyTorch's pooling size; with ceil_mode the last window starts inside the source or its left padding."""
    exact = Fraction(source + 2 * pad - dilation * (kernel - 1) - 1, stride) + 1
    result = ceil(exact) if ceil_mode else floor(exact)
    return result - 1 if ceil_mode and (result - 1) * stride >= source + pad else result


def caffe_average_pooling(image: np.ndarray, kernel: int, stride: int, pad: int) -> np.ndarray:
    """Caffe's average pooling of an [H, W] image."""
    height, width = image.shape
    sizes: list[int] = []
    for length in (height, width):
        pooled = ceil(Fraction(length + 2 * pad - kernel, stride)) + 1
        if pad and (pooled - 1) * stride >= length + pad:
            pooled -= 1
        sizes.append(pooled)
    result = np.zeros(sizes)
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            top, left = row * stride - pad, column * stride - pad
            bottom, right = min(top + kernel, height + pad), min(left + kernel, width + pad)
            area = (bottom - top) * (right - left)
            window = image[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
            result[row, column] = window.sum() / area
    return result


def taps(result: int, before: int, kernel: int, stride: int, dilation: int) -> list[list[int]]:
    """The source positions of each window's taps."""
    return [[-before + stride * i + dilation * p for p in range(kernel)] for i in range(result)]


def convolve(values: np.ndarray, weights: np.ndarray, positions: list[list[int]]) -> np.ndarray:
    """Weighted sums over taps; taps outside read 0."""
    result = np.zeros(len(positions))
    for i, window in enumerate(positions):
        for weight, position in zip(weights, window, strict=True):
            if 0 <= position < len(values):
                result[i] += weight * values[position]
    return result


def maximum(values: np.ndarray, positions: list[list[int]]) -> np.ndarray:
    """Largest value under the taps that lie inside."""
    return np.array([max(values[t] for t in window if 0 <= t < len(values)) for window in positions])


def average(
    image: np.ndarray, rows: list[list[int]], columns: list[list[int]], zero_pad: tuple[int, int]
) -> np.ndarray:
    """Average pooling with edge mode clamp: ``zero_pad`` (x, y) pixels around the image count as zeros."""
    height, width = image.shape
    across, down = zero_pad
    result = np.zeros((len(rows), len(columns)))
    for i, window_rows in enumerate(rows):
        for j, window_columns in enumerate(columns):
            total, count = 0.0, 0
            for y in window_rows:
                for x in window_columns:
                    count += -down <= y < height + down and -across <= x < width + across
                    total += image[y, x] if 0 <= y < height and 0 <= x < width else 0.0
            result[i, j] = total / count
    return result
