"""`openmps.ops.image.augmentation` in Triton: words, colours, whole pixels in a pass each, to the same bits."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.triton.ahead import Launched
from openmps.types import MPSImageEdgeMode

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_WORDS, _NUMBERS = 256, 2048
"""Blocks of four words, and numbers of images, that a program makes."""
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
    _image_words[(triton.cdiv(images * blocks, _WORDS),)](
        words, counted, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, first_image, first_word // 4, images, count, blocks,
        is_held, _WORDS,
    )  # fmt: skip
    return words


# --- colours ----------------------------------------------------------------------------------------------------------


@triton.jit
def _share(words, place):
    """A number from -1 up to 1."""
    return (tl.load(words + place) >> 8).to(tl.float64) * 1.1920928955078125e-07 - 1.0


@Launched
@triton.jit
def _recoloured(
    x, y, words, rows, pixels, channels, apart, down, across, BRIGHTNESS: tl.constexpr, CONTRAST: tl.constexpr,
    OF_BRIGHTNESS: tl.constexpr, OF_CONTRAST: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of an image, whose words lie ``apart`` from those of the next; rows are means and deviations."""
    image, pixel = tl.program_id(1).to(tl.int64), tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, CHANNELS)
    is_in = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    mean = tl.load(rows + channel * across, channel < channels, 0.0)
    deviation = tl.load(rows + down + channel * across, channel < channels, 1.0)
    factor = _share(words, image * apart + OF_CONTRAST) * CONTRAST + 1.0
    offset = _share(words, image * apart + OF_BRIGHTNESS) * BRIGHTNESS + 0.5 - factor * 0.5
    scale, bias = (factor / deviation).to(tl.float32), ((offset - mean) / deviation).to(tl.float32)
    place = (image * pixels + pixel)[:, None] * channels + channel[None, :]
    tl.store(y + place, tl.load(x + place, is_in, 0.0) * scale[None, :] + bias[None, :], is_in)


def takes(x: Tensor, words: Tensor) -> bool:
    """Whether `recoloured` and `placed` are for images that lie so, and for these words."""
    is_dense = x.is_contiguous(memory_format=torch.channels_last) and words.stride(1) == 1
    return is_dense and x.dtype == torch.float32 and x.numel() > 0 and x.shape[1] <= _NUMBERS and len(x) < _MOST_IMAGES


_MOST_IMAGES = 1 << 16
"""A launch has fewer programs along its second axis."""


def _cut(x: Tensor) -> tuple[tuple[int, int], int, int]:
    """Programs for an image, and for all; pixels and channels of each."""
    images, channels, height, width = x.shape
    columns = triton.next_power_of_2(channels)
    held = _NUMBERS // columns
    return (triton.cdiv(height * width, held), images), held, columns


def recoloured(
    x: Tensor, words: Tensor, channels: Tensor, brightness: float, contrast: float, of: tuple[int, int]
) -> Tensor:
    """See `openmps.ops.image.augmentation.recoloured`; ``of`` are the places of the words for both."""
    y, (grid, held, columns) = empty_image(x, x.shape[1], (x.shape[2], x.shape[3])), _cut(x)
    _recoloured[grid](
        x, y, words, channels, x.shape[2] * x.shape[3], x.shape[1], words.stride(0), *channels.stride(),
        float(brightness), float(contrast), *map(int, of), held, columns, **_SAME_BITS,
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
    OF_ACROSS: tl.constexpr, OF_DOWN: tl.constexpr, EDGE: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of an image: whole ones, from where they are."""
    image, pixel = tl.program_id(1).to(tl.int64), tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel, pixels = tl.arange(0, CHANNELS), height * width
    row = pixel // width + _below(words, image * apart + OF_DOWN, 2 * CROP + 1) - CROP
    column = pixel % width + _below(words, image * apart + OF_ACROSS, 2 * CROP + 1) - CROP
    if FLIPS:
        column = tl.where(tl.load(words + image * apart + OF_FLIP) >> 31 == 1, width - 1 - column, column)
    is_in = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    inside = is_in
    if EDGE == "ZERO":
        inside &= ((row >= 0) & (row < height) & (column >= 0) & (column < width))[:, None]
    place = image * pixels + _continued(row, height, EDGE) * width + _continued(column, width, EDGE)
    found = tl.load(x + place[:, None] * channels + channel[None, :], inside, 0.0)
    tl.store(y + (image * pixels + pixel)[:, None] * channels + channel[None, :], found, is_in)


def placed(
    x: Tensor, words: Tensor, crop: int, edge_mode: MPSImageEdgeMode, of: tuple[int, int, int], *, flips: bool
) -> Tensor:
    """See `openmps.ops.image.augmentation.placed`, without slides and turns.

    ``of`` are the places of the words for mirrors and crops, across and down.
    """
    y, (grid, held, columns) = empty_image(x, x.shape[1], (x.shape[2], x.shape[3])), _cut(x)
    _placed[grid](
        x, y, words, x.shape[2], x.shape[3], x.shape[1], words.stride(0), crop, flips, *map(int, of), edge_mode.name,
        held,
        columns,
    )  # fmt: skip
    return y
