"""Random changes of training images: mirrored, moved, turned, recoloured, cut out, mixed.

What is done to an image follows from random words of its own, `image_words`: a pure function of a seed, of the number
of the step and of the image's place in the whole batch. Every number of an image is then computed from words by
integers and float64 products, so that devices and splits of a batch agree on it::

    below(word, n) = floor(word n / 2**32)                    a whole number from 0 to n - 1
    share(word)    = floor(word / 2**8) / 2**23 - 1           a number from -1 up to, not including, 1
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, cast

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.layout.pad import continued
from openmps.ops.op import Kind, Op
from openmps.ops.random.random import philox, split_words
from openmps.ops.resample.resample import sample
from openmps.types import MPSImageEdgeMode

TURNS = 1025
"""Angles that an image is turned by, from the largest to one side to that to the other, equally spaced."""
STEPS_PER_PIXEL = 64
"""Distances that an image is slid by are multiples of a 64th of a pixel."""
_WORDS_PER_BLOCK = 4
_SHARES_PER_ONE = 1 << 16
"""Shares of a mixture are multiples of this fraction: beyond the last bits of powers and cosines, which devices round
differently."""


class Word(IntEnum):
    """What the words of an image decide, in order; the last ones are those of a mixture."""

    FLIP = 0
    CROP_ACROSS = 1
    CROP_DOWN = 2
    TURN = 3
    CUT_ACROSS = 4
    CUT_DOWN = 5
    BRIGHTNESS = 6
    CONTRAST = 7
    SLIDE_ACROSS = 8
    SLIDE_DOWN = 9
    RADIUS = 12
    ANGLE = 13
    SIDE = 14


def image_words(
    images: int, seed: int, step: int | Tensor, first_image: int, first_word: int, count: int, device: torch.device
) -> Tensor:
    """Random words of some images, int64 ``[images, count]``.

    Word ``w`` is word ``w % 4`` of Philox4x32-10 with the key ``(seed, seed >> 32)`` and the counter ``(step, image,
    w // 4, step >> 32)``, each reduced to 32 bits, where ``image`` counts from ``first_image`` and ``w`` from
    ``first_word``, a multiple of 4. ``step`` may be an int64 tensor without axes.
    """
    if triton.runs_on(device):
        from openmps.ops.triton.image import augmentation as kernels

        return kernels.image_words(images, seed, step, first_image, first_word, count, device)
    low, high = split_words(step)
    image = torch.arange(first_image, first_image + images, device=device).view(images, 1)
    first = first_word // _WORDS_PER_BLOCK
    block = torch.arange(first, first - (-count // _WORDS_PER_BLOCK), device=device)
    words = philox((low, image, block, high), split_words(seed))
    return torch.stack(cast(list[Tensor], list(words)), dim=-1).view(images, -1)[:, :count]


class ImageWords(Op, kind=Kind.RANDOM, half=True):
    """`image_words` for the images of a batch, of which the shape alone is looked at, and the number of the encode.

    ``share`` says which of the equal shares of a batch this one is.
    """

    takes_device_numbers = True

    seed: int
    share: int
    first: int
    count: int

    @property
    def gives_half(self) -> bool:
        """No: words are integers."""
        return False

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `image_words`."""
        x, step = operands
        return image_words(len(x), self.seed, step, self.share * len(x), self.first, self.count, x.device)


def _below(words: Tensor, count: int) -> Tensor:
    return (words * count) >> 32


def _share(words: Tensor) -> Tensor:
    return (words >> 8).to(torch.float64) * 2.0**-23 - 1.0


# --- colours ----------------------------------------------------------------------------------------------------------


def recoloured(x: Tensor, words: Tensor, channels: Tensor, brightness: float, contrast: float) -> Tensor:
    """``Y = ((X - 1/2) c + 1/2 + b - mean) / deviation``, for pixels from 0 to 1.

    Args:
        x: Images, [N, C, H, W].
        words: Their words; ``b`` is ``brightness share(word)``, ``c`` is ``1 + contrast share(word)``.
        channels: Mean and standard deviation of each channel, float64 [2, C].
        brightness: The most that is added or taken away.
        contrast: The most that the factor departs from 1.

    Returns:
        [N, C, H, W].
    """
    if triton.runs_on(x.device):
        from openmps.ops.triton.image import augmentation as kernels

        if kernels.takes(x, words):
            of = Word.BRIGHTNESS, Word.CONTRAST
            return kernels.recoloured(x, words, channels, brightness, contrast, of)
    factor = _share(words[:, Word.CONTRAST, None]) * contrast + 1.0
    offset = _share(words[:, Word.BRIGHTNESS, None]) * brightness + 0.5 - factor * 0.5
    mean, deviation = channels
    scale, bias = (factor / deviation).to(x.dtype), ((offset - mean) / deviation).to(x.dtype)
    # Two roundings, as each device makes them.
    return (x * scale[..., None, None]).add_(bias[..., None, None])


class Recoloured(Op, of=recoloured, kind=Kind.WINDOW):
    """`recoloured` of images, their words, and their channels' means and deviations."""

    brightness: float
    contrast: float


# --- places -----------------------------------------------------------------------------------------------------------


def placed(
    x: Tensor,
    words: Tensor,
    turns: Tensor | None,
    flips: bool,
    crop: int,
    slide: int,
    edge_mode: MPSImageEdgeMode,
) -> Tensor:
    """Mirror, crop, slide and turn images in one pass of bilinear sampling; by whole pixels numbers are copied.

    Result pixel (x, y) of W by H is the source at column a, of an image that is mirrored at ``W - 1 - a``, and row v::

        a = cos (x + dx - (W - 1) / 2) - sin (y + dy - (H - 1) / 2) + (W - 1) / 2
        v = sin (x + dx - (W - 1) / 2) + cos (y + dy - (H - 1) / 2) + (H - 1) / 2
        dx = below(word, 2 crop + 1) - crop + (below(word, 128 slide + 1) / 64 - slide)       dy likewise

    Args:
        x: Images, [N, C, H, W].
        words: Their words; an image is mirrored where the highest bit of its word is set.
        turns: Cosine and sine of `TURNS` angles, float64 [TURNS, 2], of which ``below(word, TURNS)`` chooses one; None
            where none is turned.
        flips: Whether images are mirrored.
        crop: Whole pixels that they are moved by at most.
        slide: Pixels that they are slid by at most, between pixels too.
        edge_mode: What lies outside: ``ZERO``, ``CLAMP`` or ``MIRROR``.

    Returns:
        [N, C, H, W], channels-last.
    """
    if triton.runs_on(x.device):
        from openmps.ops.triton.image import augmentation as kernels

        if kernels.takes(x, words):
            of = Word.FLIP, Word.CROP_ACROSS, Word.CROP_DOWN, Word.TURN, Word.SLIDE_ACROSS, Word.SLIDE_DOWN
            return kernels.placed(x, words, turns, crop, slide, edge_mode, of, flips=flips)
    height, width = x.shape[2:]
    mirrored = words[:, Word.FLIP] >> 31 if flips else None
    right, down = (_below(words[:, each], 2 * crop + 1) - crop for each in (Word.CROP_ACROSS, Word.CROP_DOWN))
    columns, rows = (torch.arange(length, device=x.device) for length in (width, height))
    across, below = columns + right[:, None], rows + down[:, None]
    if turns is None and not slide:
        return _copied(x, below, _mirrored(across, mirrored, width), edge_mode)
    u, v = across.to(torch.float64)[:, None], below.to(torch.float64)[..., None]
    if slide:
        u, v = (
            each + (_below(words[:, word, None, None], 2 * STEPS_PER_PIXEL * slide + 1).to(torch.float64) / 64 - slide)
            for each, word in ((u, Word.SLIDE_ACROSS), (v, Word.SLIDE_DOWN))
        )
    if turns is not None:
        u, v = _turned(u, v, turns[_below(words[:, Word.TURN], TURNS)], (width - 1) / 2, (height - 1) / 2)
    u = _mirrored(u, mirrored, width)
    if edge_mode == MPSImageEdgeMode.MIRROR:
        # Between pixels, too: what is reflected about a pixel's centre is what lies there.
        u, v, edge_mode = continued(u, width, edge_mode), continued(v, height, edge_mode), MPSImageEdgeMode.CLAMP
    return sample(x, v[:, None], u[:, None], edge_mode)


def _turned(u: Tensor, v: Tensor, turns: Tensor, middle: float, centre: float) -> tuple[Tensor, Tensor]:
    """Positions [N, 1, W] and [N, H, 1] turned about the centre: both [N, H, W]."""
    cosine, sine = turns.view(-1, 2, 1, 1).unbind(1)
    x, y = u - middle, v - centre
    return x * cosine - y * sine + middle, x * sine + y * cosine + centre


def _mirrored(columns: Tensor, mirrored: Tensor | None, width: int) -> Tensor:
    """Columns ``c``, those of images that are mirrored ``W - 1 - c``."""
    if mirrored is None:
        return columns
    of_image = mirrored.view(-1, *[1] * (columns.dim() - 1))
    return columns * (1 - 2 * of_image) + (width - 1) * of_image


def _copied(x: Tensor, rows: Tensor, columns: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor:
    """The pixels at whole rows [N, h] and columns [N, w]."""
    images, channels, height, width = x.shape
    size = (images, rows.shape[1], columns.shape[1])
    inside = None
    if edge_mode == MPSImageEdgeMode.ZERO:
        (down, inside_rows), (right, inside_columns) = _clamped(rows, height), _clamped(columns, width)
        inside = inside_rows[:, :, None] & inside_columns[:, None]
    else:
        down, right = continued(rows, height, edge_mode), continued(columns, width, edge_mode)
    first = torch.arange(images, device=x.device).view(-1, 1) * height
    index = ((first + down) * width)[:, :, None] + right[:, None]
    table = x.permute(0, 2, 3, 1).reshape(images * height * width, channels)
    found = table.index_select(0, index.view(-1)).view(*size, channels)
    if inside is not None:
        found.masked_fill_(inside.logical_not()[..., None], 0)
    return found.permute(0, 3, 1, 2)


def _clamped(index: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """An index that is there, and whether it was."""
    found = index.clamp(0, length - 1)
    return found, found == index


class Placed(Op, of=placed, kind=Kind.WINDOW):
    """`placed` of images, their words, and the turns to choose from."""

    flips: bool
    crop: int
    slide: int
    edge_mode: MPSImageEdgeMode


# --- squares ----------------------------------------------------------------------------------------------------------


def cut_out(x: Tensor, words: Tensor, size: int) -> Tensor:
    """Zeros in a square of each image; its row and column ``size // 2`` is that of a pixel of the image.

    Args:
        x: Images, [N, C, H, W].
        words: Their words, which choose the pixel: ``below(word, W)`` and ``below(word, H)``.
        size: Rows and columns of the square, of which some may lie outside.

    Returns:
        [N, C, H, W].
    """
    height, width = x.shape[2:]
    across, down = (
        _inside(words[:, word], length, size) for word, length in ((Word.CUT_ACROSS, width), (Word.CUT_DOWN, height))
    )
    return x.masked_fill((down[:, :, None] & across[:, None])[:, None], 0)


def _inside(words: Tensor, length: int, size: int) -> Tensor:
    """Which of ``length`` rows or columns lie in each image's square, [N, length]."""
    first = _below(words, length)[:, None] - size // 2
    places = torch.arange(length, device=words.device)
    return (places >= first) & (places < first + size)


class CutOut(Op, of=cut_out, kind=Kind.WINDOW, half=True):
    """`cut_out` of images and their words."""

    size: int


# --- mixtures ---------------------------------------------------------------------------------------------------------


def mixed(x: Tensor, words: Tensor, alpha: float) -> Tensor:
    """``Y[n] = s X[n] + (1 - s) X[n ^ 1]``: each image mixed with its neighbour, the last of an odd number as it is.

    ``s`` follows the beta distribution of two equal parameters, by two words and the highest bit of a third (Luc
    Devroye, "Random variate generation in one line of code", 1996)::

        U = (word + 1/2) / 2**32      V likewise
        s = 1/2 -+ 1/2 / sqrt(1 + 1 / ((U ** (-1 / alpha) - 1) cos(2 pi V) ** 2))

    Args:
        x: Images, [N, C, H, W].
        words: Their words, from that of the radius on.
        alpha: Both parameters of the distribution, above 0.

    Returns:
        [N, C, H, W].
    """
    kept = mixing_shares(words, alpha)
    pairs = len(x) // 2 * 2
    kept[pairs:] = 1.0
    other = torch.zeros_like(x)
    other[0:pairs:2], other[1:pairs:2] = x[1:pairs:2], x[0:pairs:2]
    own, others = (each.to(x.dtype).view(-1, 1, 1, 1) for each in (kept, 1.0 - kept))
    return (x * own).add_(other.mul_(others))


def mixing_shares(words: Tensor, alpha: float) -> Tensor:
    """``s`` of `mixed`, float64 [N], rounded to a multiple of 2**-16."""
    radius, angle, side = words[:, :3].unbind(1)
    u, v = ((each.to(torch.float64) + 0.5) * 2.0**-32 for each in (radius, angle))
    cosine = torch.cos(v * (2.0 * torch.pi))
    odds = (torch.pow(u, -1.0 / alpha) - 1.0) * cosine * cosine
    distance = 0.5 / torch.sqrt(1.0 + 1.0 / odds)
    share = 0.5 + distance * ((side >> 31) * 2 - 1)
    return torch.round(share * _SHARES_PER_ONE) / _SHARES_PER_ONE


class Mixed(Op, of=mixed, kind=Kind.REDUCTION):
    """`mixed` of images and their words."""

    alpha: float
