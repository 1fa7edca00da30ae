"""`openmps.ops.image.augmentation` in Triton: words, colours and places in a pass each.

To the same bits, but for sums of four pixels, which are rounded in another order.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.types import MPSImageEdgeMode

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_WORDS, _TILE, _PLACES = 256, 2048, 512
"""Blocks of four words, numbers of images, and numbers from between pixels, that a program makes; float64 places of the
last take four times the registers."""
_SAME_BITS: dict[str, Any] = {"enable_fp_fusion": False}
"""A product and a sum are rounded each by itself."""
_SIGNED = 2**63


# --- words ------------------------------------------------------------------------------------------------------------


@Launched
@triton.jit(do_not_specialize=["step", "low", "high", "first_image", "first"])
def _image_words(
    words, step, low, high, first_image, first, images, count, blocks, HOLDS_STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Four words at a time of some images, as many of them as are asked for."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, block = at // blocks, at % blocks
    zero = (at * 0).to(tl.int64)
    if HOLDS_STEP:
        step = tl.load(step)
    w0, w1, w2, w3 = tl.philox_impl(
        (zero + step).to(tl.uint32), (zero + first_image + image).to(tl.uint32), (zero + first + block).to(tl.uint32),
        ((zero + step) >> 32).to(tl.uint32), (zero + low).to(tl.uint32), (zero + high).to(tl.uint32), 10,
    )  # fmt: skip
    word, place = 4 * block, words + image * count + 4 * block
    is_in = image < images
    tl.store(place, w0.to(tl.int64), is_in & (word < count))
    tl.store(place + 1, w1.to(tl.int64), is_in & (word + 1 < count))
    tl.store(place + 2, w2.to(tl.int64), is_in & (word + 2 < count))
    tl.store(place + 3, w3.to(tl.int64), is_in & (word + 3 < count))


def image_words(
    images: int, seed: int, step: int | Tensor, first_image: int, first_word: int, count: int, device: torch.device
) -> Tensor:
    """See `openmps.ops.image.augmentation.image_words`."""
    words = torch.empty((images, count), dtype=torch.int64, device=device)
    blocks, is_held = -(-count // 4), isinstance(step, Tensor)
    counted = step if is_held else (step + _SIGNED) % 2**64 - _SIGNED  # as a signed number of 64 bits
    _image_words[(cdiv(images * blocks, _WORDS),)](
        words, counted, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, first_image, first_word // 4, images, count, blocks,
        is_held, _WORDS,
    )  # fmt: skip
    return words


# --- colours ----------------------------------------------------------------------------------------------------------


@triton.jit
def _share(words, place):
    """A number from -1 up to 1."""
    return (tl.load(words + place) >> 8).to(tl.float64) * 1.1920928955078125e-07 - 1.0


@triton.jit
def tile_of(numbers, ROWS: tl.constexpr, NUMBERS: tl.constexpr):
    """Some rows of an image, and some of the numbers of each."""
    across = tl.cdiv(numbers, NUMBERS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    return row, tl.program_id(0) % across * NUMBERS + tl.arange(0, NUMBERS)


@Launched
@triton.jit
def _recoloured(
    x, y, words, factors, height, width, channels, apart, down, across, BRIGHTNESS: tl.constexpr,
    CONTRAST: tl.constexpr, OF_BRIGHTNESS: tl.constexpr, OF_CONTRAST: tl.constexpr, ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
):  # fmt: skip
    """A tile of an image, whose words lie ``apart`` from those of the next; ``factors`` are means and deviations."""
    image, numbers = tl.program_id(1).to(tl.int64), width * channels
    row, number = tile_of(numbers, ROWS, NUMBERS)
    mean = tl.load(factors + number % channels * across)
    deviation = tl.load(factors + down + number % channels * across)
    factor = _share(words, image * apart + OF_CONTRAST) * CONTRAST + 1.0
    offset = _share(words, image * apart + OF_BRIGHTNESS) * BRIGHTNESS + 0.5 - factor * 0.5
    scale, bias = (factor / deviation).to(tl.float32), ((offset - mean) / deviation).to(tl.float32)
    is_in = (row < height)[:, None] & (number < numbers)[None, :]
    place = image * height * numbers + row[:, None] * numbers + number[None, :]
    tl.store(y + place, tl.load(x + place, is_in, 0.0) * scale[None, :] + bias[None, :], is_in)


def takes(x: Tensor, words: Tensor) -> bool:
    """Whether `recoloured` and `placed` are for images that lie so, and for these words."""
    is_dense = x.is_contiguous(memory_format=torch.channels_last) and words.stride(1) == 1
    fits = 0 < len(x) < MOST_IMAGES and 0 < x[0].numel() < 2**31 and max(x.shape[2:]) < _LARGEST_SIDE
    return is_dense and fits and x.dtype == torch.float32


MOST_IMAGES = 1 << 16
"""A launch has fewer programs along its second axis."""
_LARGEST_SIDE = 1 << 24
"""Sides are below it: float32 holds their halves."""


def cut_of(x: Tensor, tile: int = _TILE) -> tuple[tuple[int, int], int, int]:
    """Programs for an image, and for all; rows and numbers of the tile of each."""
    images, channels, height, width = x.shape
    numbers = min(tile // 2, next_power_of_2(width * channels))
    rows = min(tile // numbers, next_power_of_2(height))
    return (cdiv(height, rows) * cdiv(width * channels, numbers), images), rows, numbers


def recoloured(
    x: Tensor, words: Tensor, channels: Tensor, brightness: float, contrast: float, of: tuple[int, int]
) -> Tensor:
    """See `openmps.ops.image.augmentation.recoloured`; ``of`` are the places of the words for both."""
    y, (grid, *tile) = torch.empty_like(x), cut_of(x)
    _recoloured[grid](
        x, y, words, channels, x.shape[2], x.shape[3], x.shape[1], words.stride(0), *channels.stride(),
        float(brightness), float(contrast), *map(int, of), *tile, **_SAME_BITS,
    )  # fmt: skip
    return y


# --- places -----------------------------------------------------------------------------------------------------------


@triton.jit
def _below(words, place, count):
    """A whole number below ``count``."""
    return ((tl.load(words + place) * count) >> 32).to(tl.int32)


@triton.jit
def _continued(index, length, EDGE: tl.constexpr):
    """The index that one of an axis stands for."""
    if EDGE == "MIRROR":
        last = length - 1
        period = tl.maximum(2 * last, 1)
        rest = index % period
        rest = tl.where(rest < 0, rest + period, rest)
        index = tl.where(last > 0, last - tl.abs(rest - last), 0)
    else:
        index = tl.minimum(tl.maximum(index, 0), length - 1)
    return index


@Launched
@triton.jit
def _placed(
    x, y, words, height, width, channels, apart, CROP: tl.constexpr, FLIPS: tl.constexpr, OF_FLIP: tl.constexpr,
    OF_ACROSS: tl.constexpr, OF_DOWN: tl.constexpr, EDGE: tl.constexpr, ROWS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """A tile of an image: whole pixels, from the rows and columns where they are."""
    image, numbers = tl.program_id(1).to(tl.int64), width * channels
    goal, number = tile_of(numbers, ROWS, NUMBERS)
    row = goal + _below(words, image * apart + OF_DOWN, 2 * CROP + 1) - CROP
    column = number // channels + _below(words, image * apart + OF_ACROSS, 2 * CROP + 1) - CROP
    if FLIPS:
        column = tl.where(tl.load(words + image * apart + OF_FLIP) >> 31 == 1, width - 1 - column, column)
    is_in = (goal < height)[:, None] & (number < numbers)[None, :]
    inside, first = is_in, image * height * numbers
    if EDGE == "ZERO":
        inside &= ((row >= 0) & (row < height))[:, None] & ((column >= 0) & (column < width))[None, :]
    place = _continued(column, width, EDGE) * channels + number % channels
    place = first + _continued(row, height, EDGE)[:, None] * numbers + place[None, :]
    tl.store(y + first + goal[:, None] * numbers + number[None, :], tl.load(x + place, inside, 0.0), is_in)


@triton.jit
def _between(position, length, EDGE: tl.constexpr):
    """The first of the two pixels that a position lies between, and how far from it the position is."""
    if EDGE == "MIRROR":
        last = length - 1.0
        period = tl.maximum(2.0 * last, 1.0)
        rest = position - tl.floor(position / period) * period
        rest = tl.where(rest < 0.0, rest + period, rest)
        position = tl.where(last > 0.0, last - tl.abs(rest - last), 0.0)
    if EDGE == "ZERO":
        position = tl.minimum(tl.maximum(position, -1.0), length * 1.0)
    else:
        position = tl.minimum(tl.maximum(position, 0.0), length - 1.0)
    base = tl.floor(position)
    return base.to(tl.int32), position - base


@Launched
@triton.jit
def _sampled(
    x, y, words, turns, height, width, channels, apart, CROP: tl.constexpr, SLIDE: tl.constexpr, TURNS: tl.constexpr,
    FLIPS: tl.constexpr, OF_FLIP: tl.constexpr, OF_ACROSS: tl.constexpr, OF_DOWN: tl.constexpr, OF_TURN: tl.constexpr,
    OF_SLIDE_ACROSS: tl.constexpr, OF_SLIDE_DOWN: tl.constexpr, EDGE: tl.constexpr, ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
):  # fmt: skip
    """A tile of an image, each pixel between four others; positions are float64."""
    image, numbers = tl.program_id(1).to(tl.int64), width * channels
    goal, number = tile_of(numbers, ROWS, NUMBERS)
    words += image * apart
    v = (goal + _below(words, OF_DOWN, 2 * CROP + 1) - CROP).to(tl.float64)[:, None]
    u = (number // channels + _below(words, OF_ACROSS, 2 * CROP + 1) - CROP).to(tl.float64)[None, :]
    if SLIDE:
        u += _below(words, OF_SLIDE_ACROSS, 128 * SLIDE + 1).to(tl.float64) * 0.015625 - SLIDE
        v += _below(words, OF_SLIDE_DOWN, 128 * SLIDE + 1).to(tl.float64) * 0.015625 - SLIDE
    if TURNS:
        turn = turns + 2 * _below(words, OF_TURN, TURNS)
        cosine, sine = tl.load(turn), tl.load(turn + 1)
        across, down = u - (width - 1) * 0.5, v - (height - 1) * 0.5
        u = across * cosine - down * sine + (width - 1) * 0.5
        v = across * sine + down * cosine + (height - 1) * 0.5
    if FLIPS:
        u = tl.where(tl.load(words + OF_FLIP) >> 31 == 1, width - 1 - u, u)
    row, below = _between(v, height, EDGE)
    column, beside = _between(u, width, EDGE)
    is_in = (goal < height)[:, None] & (number < numbers)[None, :]
    first, channel = image * height * numbers, (number % channels)[None, :]
    total = tl.zeros([ROWS, NUMBERS], tl.float32)
    for tap_y in tl.static_range(2):
        by_row, r = below if tap_y else 1.0 - below, row + tap_y
        for tap_x in tl.static_range(2):
            weight, c = (by_row * (beside if tap_x else 1.0 - beside)).to(tl.float32), column + tap_x
            # Beside the last pixel there is nothing, with a weight of 0.
            inside = is_in & (r >= 0) & (r < height) & (c >= 0) & (c < width)
            total += tl.load(x + first + r * numbers + c * channels + channel, inside, 0.0) * weight
    tl.store(y + first + goal[:, None] * numbers + number[None, :], total, is_in)


def placed(
    x: Tensor,
    words: Tensor,
    turns: Tensor | None,
    crop: int,
    slide: int,
    edge_mode: MPSImageEdgeMode,
    of: Sequence[int],
    *,
    flips: bool,
) -> Tensor:
    """See `openmps.ops.image.augmentation.placed`.

    ``of`` are the places of the words for mirrors, for crops, across and down, for turns, and for slides.
    """
    y, places, size = torch.empty_like(x), [*map(int, of)], (x.shape[2], x.shape[3], x.shape[1], words.stride(0))
    if turns is None and not slide:
        grid, *tile = cut_of(x)
        _placed[grid](x, y, words, *size, crop, flips, *places[:3], edge_mode.name, *tile)
        return y
    grid, *tile = cut_of(x, _PLACES)
    angles, count = (words, 0) if turns is None else (turns.contiguous(), len(turns))
    _sampled[grid](
        x, y, words, angles, *size, crop, slide, count, flips, *places, edge_mode.name, *tile, **_SAME_BITS
    )  # fmt: skip
    return y
