"""Random changes of images in plain loops: what words decide, and what is then done to each pixel.

Word w of image n in step s is word w % 4 of Philox4x32-10 with the key (seed, seed >> 32) and the counter
(s, n, w // 4, s >> 32).
"""

from __future__ import annotations

import math

import numpy as np

from oracles.dropout import WORD, philox4x32

ZERO, CLAMP, MIRROR = 0, 1, 2


def word(seed: int, step: int, image: int, index: int) -> int:
    counter = (step & WORD, image, index // 4, step >> 32)
    return philox4x32(counter, (seed & WORD, seed >> 32))[index % 4]


def below(word: int, count: int) -> int:
    return word * count // 2**32


def share(word: int) -> float:
    return (word // 256) / 2**23 - 1


class Draws:
    """What is drawn for one image."""

    def __init__(self, seed: int, step: int, image: int) -> None:
        words = [word(seed, step, image, index) for index in range(16)]
        self.is_mirrored = words[0] >= 2**31
        self.crop, self.turn, self.cut = words[1:3], words[3], words[4:6]
        self.brightness, self.contrast = share(words[6]), share(words[7])
        self.slide = words[8:10]


def augmented(
    x: np.ndarray,
    seed: int,
    step: int = 0,
    first: int = 0,
    *,
    flips: bool = False,
    crop: int = 0,
    translation: int = 0,
    rotation: float = 0.0,
    padding_mode: int = ZERO,
    cut_out: int = 0,
    brightness: float = 0.0,
    contrast: float = 0.0,
    mean: tuple[float, ...] = (),
    standard_deviation: tuple[float, ...] = (),
) -> np.ndarray:
    """Images [N, C, H, W], recoloured, then placed, then cut out."""
    images, channels, height, width = x.shape
    means, deviations = mean or (0.0,) * channels, standard_deviation or (1.0,) * channels
    result = np.zeros(x.shape)
    for n in range(images):
        drawn = Draws(seed, step, first + n)
        factor, offset = 1 + contrast * drawn.contrast, brightness * drawn.brightness
        right, down = (below(each, 2 * crop + 1) - crop for each in drawn.crop)
        slide_x, slide_y = (below(each, 128 * translation + 1) / 64 - translation for each in drawn.slide)
        angle = math.radians(rotation * (below(drawn.turn, 1025) - 512) / 512)
        column, row = below(drawn.cut[0], width) - cut_out // 2, below(drawn.cut[1], height) - cut_out // 2
        for c in range(channels):
            plane = ((x[n, c] - 0.5) * factor + 0.5 + offset - means[c]) / deviations[c]
            for j in range(height):
                for i in range(width):
                    if row <= j < row + cut_out and column <= i < column + cut_out:
                        continue
                    a, b = i + right + slide_x - (width - 1) / 2, j + down + slide_y - (height - 1) / 2
                    u = math.cos(angle) * a - math.sin(angle) * b + (width - 1) / 2
                    v = math.sin(angle) * a + math.cos(angle) * b + (height - 1) / 2
                    u = width - 1 - u if drawn.is_mirrored and flips else u
                    result[n, c, j, i] = bilinear(plane, v, u, padding_mode)
    return result


def bilinear(plane: np.ndarray, v: float, u: float, padding_mode: int) -> float:
    """A picture at a place between four pixels."""
    top, left = math.floor(v), math.floor(u)
    total = 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - abs(v - row)) * (1 - abs(u - column))
            if weight > 0:
                total += weight * pixel(plane, row, column, padding_mode)
    return total


def pixel(plane: np.ndarray, row: int, column: int, padding_mode: int) -> float:
    """A pixel of a picture that goes on beyond its edges."""
    place = []
    for index, length in zip((row, column), plane.shape, strict=True):
        if padding_mode == ZERO and not 0 <= index < length:
            return 0.0
        while padding_mode == MIRROR and not 0 <= index < length:
            index = 0 if length == 1 else -index if index < 0 else 2 * (length - 1) - index
        place.append(min(max(index, 0), length - 1))
    return float(plane[tuple(place)])


def mixing_share(seed: int, step: int, image: int, alpha: float) -> float:
    """By the ratio T / sqrt(2 alpha + T**2) of Student's T of 2 alpha degrees, which Bailey's method draws."""
    u, v = ((word(seed, step, image, index) + 0.5) / 2**32 for index in (12, 13))
    sign = 1 if word(seed, step, image, 14) >= 2**31 else -1
    student = sign * math.sqrt(2 * alpha * (u ** (-1 / alpha) - 1)) * abs(math.cos(2 * math.pi * v))
    return round((1 + student / math.sqrt(2 * alpha + student**2)) / 2 * 2**16) / 2**16


def mixed(x: np.ndarray, alpha: float, seed: int, step: int = 0, first: int = 0) -> np.ndarray:
    """Images [N, ...], each mixed with its neighbour."""
    result = x.copy()
    for n in range(len(x) // 2 * 2):
        share = mixing_share(seed, step, first + n, alpha)
        result[n] = share * x[n] + (1 - share) * x[n + 1 if n % 2 == 0 else n - 1]
    return result
