"""The mask of `openmps.ops.dropout` in Triton: one launch, the same bits."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 256
"""Blocks of four words that a program makes."""


@Launched
@triton.jit(do_not_specialize=["step", "low", "high", "limit", "first_image", "count"])
def _dropout_mask(mask, step, low, high, limit, first_image, count, HOLDS_STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Elements of one image's mask, counted over height, width and channels."""
    if HOLDS_STEP:
        step = tl.load(step)
    image = tl.program_id(1)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = (block * 0).to(tl.int64)
    c0, c1 = (zero + step).to(tl.uint32), (zero + first_image + image).to(tl.uint32)
    c2, c3 = block.to(tl.uint32), ((zero + step) >> 32).to(tl.uint32)
    k0, k1 = (zero + low).to(tl.uint32), (zero + high).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, c2, c3, k0, k1, 10)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    at = tl.program_id(0) * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    kept = words.to(tl.int64) < limit
    tl.store(mask + image.to(tl.int64) * count + at, kept.to(tl.uint8), at < count)


def dropout_mask(
    images: int, count: int, limit: int, seed: int, step: int | Tensor, first_image: int, device: torch.device
) -> Tensor:
    """Booleans ``[images, count]`` on the current device: whether a word lies below ``limit``."""
    mask = torch.empty((images, count), dtype=torch.uint8, device=device)
    if mask.numel():
        # As a signed number of 64 bits; its words are the same.
        is_held = isinstance(step, Tensor)
        counted = step if is_held else (step + 2**63) % 2**64 - 2**63
        grid = triton.cdiv(count, 4 * _BLOCK), images
        _dropout_mask[grid](
            mask, counted, seed & 0xFFFFFFFF, seed >> 32, limit, first_image, count, is_held, _BLOCK,
        )  # fmt: skip
    return mask.view(torch.bool)
