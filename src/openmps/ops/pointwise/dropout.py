"""Dropout: a random mask that is a pure function of seed, step and position (MPSCNNDropout.h, macOS 10.13.4)."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.op import Kind, Op
from openmps.ops.random.random import philox, split_words

_WORDS_PER_BLOCK = 4
_PART = 2**15
"""Counters of a part, of each thread: a quarter of a mebibyte for each word."""
_NUMBERS = 2**15
"""Numbers of a part that are dropped or kept, of each thread; the engine gives a thread no fewer."""
_WORDS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
"""Integers as long as a number of each type."""


def dropout_mask(
    size: tuple[int, int, int, int],
    keep_probability: float,
    *,
    seed: int,
    step: int | Tensor,
    first_image: int = 0,
    mask_strides: tuple[int, int, int] = (1, 1, 1),
    device: torch.device | str,
) -> Tensor:
    """The boolean mask of a batch, ``True`` where a value is kept.

    ``size`` is ``(N, C, H, W)``. ``mask_strides`` is ``(x, y, channel)``, each 0 or 1: with 0 one value of the mask is
    shared along that axis. The result is ``[N, C or 1, H or 1, W or 1]``.

    Element ``i`` of an image's mask, counted over the mask's own height, width and channels (channels fastest), is word
    ``i % 4`` of Philox4x32-10 with the key ``(seed, seed >> 32)`` and the counter
    ``(step, image, i // 4, step >> 32)``, each reduced to 32 bits, where ``image`` counts from ``first_image``. It is
    kept when ``word / 2**32 < keep_probability``. A batch that is encoded in parts therefore gets the masks of the
    whole batch, on every device.

    ``step`` counts the batches that one kernel has encoded. It may be an int64 tensor without axes on ``device``, so
    that recorded work can be replayed with another step.
    """
    images, channels, height, width = size
    stride_x, stride_y, stride_channel = mask_strides
    grid = (height if stride_y else 1, width if stride_x else 1, channels if stride_channel else 1)
    count = math.prod(grid)
    # word / 2**32 < p is word < ceil(p * 2**32): the product is exact in float64.
    limit = math.ceil(keep_probability * 2.0**32)
    place = torch.device(device)
    if triton.runs_on(place):
        from openmps.ops.triton.pointwise.dropout import dropout_mask as mask_at_once

        kept = mask_at_once(images, count, limit, seed, step, first_image, place)
        return kept.view(images, *grid).permute(0, 3, 1, 2)
    blocks = -(-count // _WORDS_PER_BLOCK)
    step_low, step_high = split_words(step)
    image = torch.arange(first_image, first_image + images, device=device).view(images, 1)
    block, key = torch.arange(blocks, device=device), split_words(seed)
    kept = torch.empty((images, blocks, _WORDS_PER_BLOCK), dtype=torch.bool, device=device)
    # The CPU makes some words at a time, whose rounds stay in its caches: they take half the time.
    part = _PART * torch.get_num_threads()
    together = max(1, part // max(1, images)) if block.device.type == "cpu" else blocks
    for first in range(0, blocks, together):
        some = slice(first, first + together)
        words = philox((step_low, image, block[some], step_high), key)
        for index, word in enumerate(words):
            torch.lt(cast(Tensor, word), limit, out=kept[:, some, index])
    return kept.view(images, blocks * _WORDS_PER_BLOCK)[:, :count].reshape(images, *grid).permute(0, 3, 1, 2)


def dropout(x: Tensor, mask: Tensor, keep_probability: float) -> Tensor:
    """``x * mask / p`` for ``x`` ``[N, C, H, W]`` and a mask that broadcasts to it.

    What is dropped becomes 0, also an infinity or a NaN.
    """
    if triton.runs_on(x.device):
        from openmps.ops.triton.pointwise import dropout as kernels

        if kernels.takes(x, mask):
            return kernels.dropout(x, mask, keep_probability)
    if x.is_cuda:
        return torch.where(mask, x / keep_probability, 0.0)
    if x.shape == mask.shape and x.dtype in _WORDS and all(map(_is_packed, (x, mask))):
        return _dropout_in_parts(x, mask, keep_probability)
    # This selects x where the mask is above 0. torch.where branches at every element on the CPU, and a conversion from
    # bool takes several times longer than one from bytes.
    selector = mask.view(torch.uint8).to(x.dtype)
    return torch.ops.aten.threshold_backward(x, selector, 0.0).div_(keep_probability)


def _is_packed(image: Tensor) -> bool:
    """Whether all numbers lie in channels-last order, one behind the other."""
    return image.is_contiguous(memory_format=torch.channels_last)


def _dropout_in_parts(x: Tensor, mask: Tensor, keep_probability: float) -> Tensor:
    """`dropout` on the CPU, of some numbers at a time, which stay in the cache.

    What is dropped becomes 0 by a product of the bits of a number with the mask's 0 or 1.
    """
    result = torch.empty_like(x, memory_format=torch.channels_last)
    word = _WORDS[x.dtype]
    part = _NUMBERS * max(2, torch.get_num_threads())
    kept = torch.empty(min(part, x.numel()), dtype=word, device=x.device)
    numbers, places, bits = (each.permute(0, 2, 3, 1).reshape(-1) for each in (x, result, mask.view(torch.uint8)))
    for some, place, bit in zip(numbers.split(part), places.split(part), bits.split(part), strict=True):
        torch.div(some, keep_probability, out=place)
        place.view(word).mul_(kept[: len(bit)].copy_(bit))
    return result


class DropoutMask(Op, kind=Kind.RANDOM, half=True):
    """`dropout_mask` for an image, whose shape alone is looked at, and the number of the encode.

    ``share`` says which of the equal shares of a batch this one is.
    """

    takes_device_numbers = True

    keep_probability: float
    seed: int
    strides: tuple[int, int, int]
    share: int = 0

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `dropout_mask`."""
        x, step = operands
        size = (x.shape[0], x.shape[1], x.shape[2], x.shape[3])
        return dropout_mask(
            size,
            self.keep_probability,
            seed=self.seed,
            step=step,
            first_image=self.share * x.shape[0],
            mask_strides=self.strides,
            device=x.device,
        )


class Dropout(Op, of=dropout, half=True):
    """`dropout` of an image, or of a gradient, by a mask: one division."""

    keep_probability: float
