"""Convolution with weights of one bit, `words[O, ky, kx, ceil(I/32)]`, from the printed formulas, bit by bit."""

from __future__ import annotations

import numpy as np

from oracles.geometry import ZERO, Axis, read, windows

BINARY_WEIGHTS = 0
XNOR = 1
AND = 2


def weight_bits(words: np.ndarray, channels: int) -> np.ndarray:
    """`[O, ky, kx, channels]`: channel `c` is bit `c % 32`, from the lowest, of word `c // 32`."""
    places = np.arange(channels)
    return words[..., places // 32].astype(np.int64) >> places % 32 & 1


def pack(bits: np.ndarray) -> np.ndarray:
    """Words of bits `[..., channels]`; the bits beyond the last channel are ones, which must not matter."""
    channels = bits.shape[-1]
    words = np.zeros((*bits.shape[:-1], -(-channels // 32)), dtype=np.uint64)
    for position in range(words.shape[-1] * 32):
        bit = bits[..., position].astype(np.uint64) if position < channels else np.uint64(1)
        words[..., position // 32] += bit << np.uint64(position % 32)
    return words.astype(np.uint32)


def products(pixel: np.ndarray, weights: np.ndarray, kind: int) -> np.ndarray:
    """Of numbers `[N, C]` and bits `[O, C]`, each with each: `[N, O, C]`."""
    numbers, weights = pixel[:, None, :], weights[None]
    bits = np.where(numbers < 0, 0, 1)
    if kind == BINARY_WEIGHTS:
        return np.where(weights == 1, numbers, -numbers)
    if kind == XNOR:
        return np.where(bits == weights, 1.0, -1.0)
    return (bits & weights).astype(np.float64)


def forward(
    x: np.ndarray,
    words: np.ndarray,
    kind: int,
    rows: Axis,
    columns: Axis,
    edge: int = ZERO,
    *,
    input_bias: np.ndarray | None = None,
    input_scale: np.ndarray | None = None,
    output_scale: np.ndarray | None = None,
    output_bias: np.ndarray | None = None,
    beta: bool = False,
) -> np.ndarray:
    images, channels = x.shape[:2]
    outputs = words.shape[0]
    result = np.zeros((images, outputs, rows.result, columns.result))
    bits, magnitude = weight_bits(words, channels), _mean_magnitude(x, input_bias, input_scale)
    for y, u, taps in windows(rows, columns):
        total, scale = np.zeros((images, outputs)), np.zeros(images)
        for j, i, row, column in taps:
            pixel = _prepared(read(x, row, column, edge), input_bias, input_scale)
            scale += read(magnitude, row, column, edge)[:, 0] / (rows.size * columns.size)
            total += products(pixel, bits[:, j, i], kind).sum(axis=2)
        if output_scale is not None:
            total = total * output_scale
        if beta:
            total = total * scale[:, None]
        result[:, :, y, u] = total if output_bias is None else total + output_bias
    return result


def _prepared(pixel: np.ndarray, bias: np.ndarray | None, scale: np.ndarray | None) -> np.ndarray:
    """Numbers `[N, C]` with the bias added first, then scaled."""
    if bias is not None:
        pixel = pixel + bias
    return pixel if scale is None else pixel * scale


def _mean_magnitude(x: np.ndarray, bias: np.ndarray | None, scale: np.ndarray | None) -> np.ndarray:
    """`A[n, y, x]`, with an axis for its one channel."""
    result = np.zeros((x.shape[0], 1, *x.shape[2:]))
    for v in range(x.shape[2]):
        for u in range(x.shape[3]):
            result[:, 0, v, u] = np.abs(_prepared(x[:, :, v, u], bias, scale)).sum(axis=1) / x.shape[1]
    return result
