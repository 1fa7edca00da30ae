"""Convolution with weights of one bit, `words[O, ky, kx, ceil(I/32)]`, from the printed formulas, bit by bit."""

from __future__ import annotations

import numpy as np

from oracles.geometry import ZERO, Axis, read, windows

BINARY_WEIGHTS = 0
XNOR = 1
AND = 2


def weight_bit(words: np.ndarray, q: int, j: int, i: int, channel: int) -> int:
    """Channel `c` is bit `c % 32`, from the lowest, of word `c // 32`."""
    return int(words[q, j, i, channel // 32]) >> (channel % 32) & 1


def pack(bits: np.ndarray) -> np.ndarray:
    """Words of bits `[..., channels]`; the bits beyond the last channel are ones, which must not matter."""
    channels = bits.shape[-1]
    words = np.zeros((*bits.shape[:-1], -(-channels // 32)), dtype=np.uint64)
    for position in range(words.shape[-1] * 32):
        bit = bits[..., position].astype(np.uint64) if position < channels else np.uint64(1)
        words[..., position // 32] += bit << np.uint64(position % 32)
    return words.astype(np.uint32)


def product(number: float, weight: int, kind: int) -> float:
    bit = 0 if number < 0 else 1
    if kind == BINARY_WEIGHTS:
        return number if weight else -number
    if kind == XNOR:
        return 1.0 if bit == weight else -1.0
    return float(bit & weight)


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
    magnitude = _mean_magnitude(x, input_bias, input_scale)
    for y, u, taps in windows(rows, columns):
        total, scale = np.zeros((images, outputs)), np.zeros(images)
        for j, i, row, column in taps:
            pixel = _prepared(read(x, row, column, edge), input_bias, input_scale)
            scale += read(magnitude, row, column, edge)[:, 0] / (rows.size * columns.size)
            for n in range(images):
                for q in range(outputs):
                    for c in range(channels):
                        total[n, q] += product(pixel[n, c], weight_bit(words, q, j, i, c), kind)
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
