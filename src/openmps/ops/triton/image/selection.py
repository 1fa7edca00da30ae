"""`openmps.ops.image.selection` in Triton: images chosen, and mirrored, by number, in one pass each."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.image.augmentation import MOST_IMAGES, cut_of, tile_of

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK, _WORD = 1024, 4
"""Words of an image that a program moves, and bytes of a word."""


@triton.jit
def _number(numbers, first, image, HOLDS_FIRST: tl.constexpr):
    """The number of an image, UINT32."""
    if HOLDS_FIRST:
        first = tl.load(first)
    return tl.load(numbers + first + image).to(tl.int64) & 0xFFFFFFFF


@Launched
@triton.jit(do_not_specialize=["first"])
def _selected(x, y, numbers, first, images, words, HOLDS_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Some words of the image that the number of a result says; zeros where there is none."""
    image, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = _number(numbers, first, image, HOLDS_FIRST)
    found = tl.load(x + number * words + at, (at < words) & (number < images), 0)
    tl.store(y + image * words + at, found, at < words)


def takes(x: Tensor, numbers: Tensor, count: int) -> bool:
    """Whether these images and numbers lie as the kernels read them."""
    is_dense = x.is_contiguous(memory_format=torch.channels_last) and numbers.dim() == 1 and numbers.is_contiguous()
    return (
        is_dense
        and numbers.element_size() == _WORD
        and x.numel() > 0
        and 0 < count < MOST_IMAGES
        and x[0].numel() < 2**31
    )


def selected(x: Tensor, numbers: Tensor, first: int | Tensor, count: int) -> Tensor:
    """See `openmps.ops.image.selection.selected`, on a GPU."""
    images, channels, height, width = x.shape
    y = torch.empty((count, height, width, channels), dtype=x.dtype, device=x.device)
    pixels = x.permute(0, 2, 3, 1)
    is_wide = channels * height * width * x.element_size() % _WORD == 0 and x.data_ptr() % _WORD == 0
    rows, made = (
        each.flatten(1).view(torch.int32 if is_wide else {1: torch.uint8, 2: torch.int16}[x.element_size()])
        for each in (pixels, y)
    )
    words = rows.shape[1]
    block = min(_BLOCK, next_power_of_2(words))
    _selected[(cdiv(words, block), count)](
        rows, made, numbers.view(torch.int32), first, images, words, isinstance(first, Tensor), block
    )
    return y.permute(0, 3, 1, 2)


@Launched
@triton.jit(do_not_specialize=["first", "epoch", "low", "high"])
def _mirrored(
    x, y, numbers, first, epoch, low, high, height, width, channels, HOLDS_FIRST: tl.constexpr,
    HOLDS_EPOCH: tl.constexpr, ROWS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """A tile of an image, which its number and the epoch mirror or not."""
    image, zero, of_row = tl.program_id(1).to(tl.int64), tl.zeros([1], tl.int64), width * channels
    row, place = tile_of(of_row, ROWS, NUMBERS)
    if HOLDS_EPOCH:
        epoch = tl.load(epoch)
    number, none = zero + _number(numbers, first, image, HOLDS_FIRST), zero.to(tl.uint32)
    word, _, _, _ = tl.philox_impl(
        number.to(tl.uint32), none, none, none, (zero + low).to(tl.uint32), (zero + high).to(tl.uint32), 10
    )
    is_mirrored = ((word >> 31).to(tl.int64) + epoch) & 1
    source = place + tl.where(is_mirrored == 1, (width - 1 - 2 * (place // channels)) * channels, 0)
    base, is_in = image * height * of_row + row[:, None] * of_row, (row < height)[:, None] & (place < of_row)[None, :]
    tl.store(y + base + place[None, :], tl.load(x + base + source[None, :], is_in, 0), is_in)


def alternately_mirrored(x: Tensor, numbers: Tensor, first: int | Tensor, epoch: int | Tensor, seed: int) -> Tensor:
    """See `openmps.ops.image.selection.alternately_mirrored`."""
    y, (grid, *tile), (_, channels, height, width) = torch.empty_like(x), cut_of(x), x.shape
    _mirrored[grid](
        x, y, numbers.view(torch.int32), first, epoch, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, height, width,
        channels, isinstance(first, Tensor), isinstance(epoch, Tensor), *tile,
    )  # fmt: skip
    return y
