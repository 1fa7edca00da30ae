"""Counts of bytes, and what follows from them, in Triton (`openmps.ops.image.statistics`)."""
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

_BYTES = 256
_BLOCK = 2048
_BLOCKS = 16
"""Of pixels that a program counts."""


@Launched
@triton.jit
def _byte_counts(x, counts, pixels, channels, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, BYTES: tl.constexpr):
    """The bytes of one channel of some blocks of pixels."""
    channel = tl.program_id(1)
    total = tl.zeros([BYTES], tl.int32)
    for step in range(BLOCKS):
        at = (tl.program_id(0).to(tl.int64) * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at * channels + channel, at < pixels, 0).to(tl.int32)
        total += tl.histogram(value, BYTES, mask=at < pixels)
    tl.atomic_add(counts + channel * BYTES + tl.arange(0, BYTES), total.to(tl.int64))


def byte_counts(x: Tensor, count: int) -> Tensor:
    """How often each byte is in each of the first channels of all images, int64 ``[count, 256]``."""
    counts = torch.zeros(count, _BYTES, dtype=torch.int64, device=x.device)
    pixels = x.numel() // x.shape[1]
    grid = cdiv(pixels, _BLOCK * _BLOCKS), count
    _byte_counts[grid](x, counts, pixels, x.shape[1], _BLOCKS, _BLOCK, _BYTES)
    return counts


@Launched
@triton.jit
def _moments(counts, made, largest, less, BYTES: tl.constexpr):
    """Those of one channel."""
    channel, byte = tl.program_id(0), tl.arange(0, BYTES)
    numbers, count = byte.to(tl.float64), tl.load(counts + channel * BYTES + byte).to(tl.float64)
    total = tl.sum(count, 0)
    mean = tl.sum(count * numbers, 0) / total
    variance = tl.sum(count * (numbers - mean) * (numbers - mean), 0) / (total - less)
    tl.store(made + 2 * channel, (mean / largest).to(tl.float32))
    tl.store(made + 2 * channel + 1, (variance / (largest * largest)).to(tl.float32))


def moments(counts: Tensor, *, is_sample: bool) -> Tensor:
    """Mean and variance of numbers of 0 … 1 by the counts of their bytes ``[C, 256]``: float32 ``[C, 1, 2]``."""
    made = torch.empty(len(counts), 1, 2, dtype=torch.float32, device=counts.device)
    _moments[(len(counts),)](counts, made, _BYTES - 1, int(is_sample), _BYTES)
    return made
