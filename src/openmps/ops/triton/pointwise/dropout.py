"""`ops.pointwise.dropout` in Triton: the mask in one launch, the same bits, and what it keeps in another one."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 256
"""Blocks of four words that a program makes."""


@Launched
@triton.jit(do_not_specialize=["step", "low", "high", "most", "first_image", "count"])
def _dropout_mask(
    mask, step, low, high, most, first_image, count, HOLDS_STEP: tl.constexpr, JOINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Elements of one image's mask, counted over height, width and channels; four to a word if it ``JOINS`` them."""
    if HOLDS_STEP:
        step = tl.load(step)
    image = tl.program_id(1)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = (block * 0).to(tl.int64)
    c0, c1 = (zero + step).to(tl.uint32), (zero + first_image + image).to(tl.uint32)
    c2, c3 = block.to(tl.uint32), ((zero + step) >> 32).to(tl.uint32)
    k0, k1 = (zero + low).to(tl.uint32), (zero + high).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, c2, c3, k0, k1, 10)
    limit = (zero + most).to(tl.uint32)
    w0, w1 = (w0 <= limit).to(tl.int32), (w1 <= limit).to(tl.int32)
    w2, w3 = (w2 <= limit).to(tl.int32), (w3 <= limit).to(tl.int32)
    if JOINS:
        words = w0 | (w1 << 8) | (w2 << 16) | (w3 << 24)
        tl.store(mask + image.to(tl.int64) * (count // 4) + block, words, block < count // 4)
    else:
        words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
        at = tl.program_id(0) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
        tl.store(mask + image.to(tl.int64) * count + at, words.to(tl.uint8), at < count)


@Launched
@triton.jit
def _dropout(x, mask, result, count, keep_probability, BLOCK: tl.constexpr):
    """A block of numbers, wherever they are in the image."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask + at, at < count, 0) != 0
    value = tl.load(x + at, at < count, 0.0).to(tl.float32)
    quotient = tl.div_rn(value, tl.zeros([BLOCK], tl.float32) + keep_probability)
    tl.store(result + at, tl.where(kept, quotient, 0.0).to(result.dtype.element_ty), at < count)


def takes(x: Tensor, mask: Tensor) -> bool:
    """Whether `dropout` is for these images and their mask."""
    both = x, mask
    return (
        x.dtype in (torch.float16, torch.float32)
        and x.shape == mask.shape
        and all(each.is_contiguous(memory_format=torch.channels_last) for each in both)
        and x.numel() > 0
    )


def dropout(x: Tensor, mask: Tensor, keep_probability: float) -> Tensor:
    """``x / p`` where the mask keeps it, else 0."""
    result = torch.empty_like(x)
    grid = (cdiv(x.numel(), 4 * _BLOCK),)
    _dropout[grid](x, mask.view(torch.uint8), result, x.numel(), float(keep_probability), 4 * _BLOCK)
    return result


def dropout_mask(
    images: int, count: int, limit: int, seed: int, step: int | Tensor, first_image: int, device: torch.device
) -> Tensor:
    """Booleans ``[images, count]`` on the current device: whether a word lies below ``limit``."""
    if limit <= 0:
        return torch.zeros((images, count), dtype=torch.bool, device=device)
    mask = torch.empty((images, count), dtype=torch.uint8, device=device)
    if mask.numel():
        joins = count % 4 == 0
        # As a signed number of 64 bits; its words are the same.
        is_held = isinstance(step, Tensor)
        counted = step if is_held else (step + 2**63) % 2**64 - 2**63
        grid = cdiv(count, 4 * _BLOCK), images
        _dropout_mask[grid](
            mask.view(torch.int32) if joins else mask, counted, seed & 0xFFFFFFFF, seed >> 32, limit - 1, first_image,
            count, is_held, joins, _BLOCK,
        )  # fmt: skip
    return mask.view(torch.bool)
