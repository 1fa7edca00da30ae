"""Philox4x32-10 in plain integers, and the dropout mask made of it.

The framework leaves the generator open. openmps documents its choice: key (seed, seed >> 32), counter (step, image,
i // 4, step >> 32) and output word i % 4 for element i of an image's mask in H, W, C order; kept if word / 2^32 < p.
"""

from __future__ import annotations

import numpy as np

WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int = 10) -> tuple[int, ...]:
    """Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & WORD, (first >> 32) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def mask(
    shape: tuple[int, int, int, int],
    keep_probability: float,
    seed: int,
    step: int,
    first_image: int = 0,
    strides: tuple[int, int, int] = (1, 1, 1),
) -> np.ndarray:
    """Booleans `[N, C or 1, H or 1, W or 1]`; `strides` is (x, y, channel), 0 where one value serves a whole axis."""
    images, channels, height, width = shape
    width, height, channels = (n if s else 1 for n, s in zip((width, height, channels), strides, strict=True))
    result = np.zeros((images, channels, height, width), dtype=bool)
    for n in range(images):
        element = 0
        for row in range(height):
            for column in range(width):
                for c in range(channels):
                    counter = (step & WORD, first_image + n, element // 4, (step >> 32) & WORD)
                    word = philox4x32(counter, (seed & WORD, (seed >> 32) & WORD))[element % 4]
                    result[n, c, row, column] = word / 2**32 < keep_probability
                    element += 1
    return result


def forward(x: np.ndarray, mask: np.ndarray, keep_probability: float) -> np.ndarray:
    """`X * mask / p`, the mask stretched along its axes of length 1."""
    result = np.zeros(x.shape)
    for n, c, row, column in np.ndindex(*x.shape):
        at = tuple(0 if length == 1 else i for i, length in zip((n, c, row, column), mask.shape, strict=True))
        result[n, c, row, column] = x[n, c, row, column] / keep_probability if mask[at] else 0.0
    return result
