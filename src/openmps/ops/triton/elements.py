"""Elements of images to numbers, and numbers to elements, in Triton, in one pass (`openmps.ops.elements`)."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024


@Overlapping
@triton.jit
def _decode_unorm(stored, numbers, count, maximum, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """A block of elements, wherever they are in the image."""
    in_turn(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(stored + at, at < count, 0).to(tl.float32)
    tl.store(numbers + at, tl.div_rn(value, tl.zeros([BLOCK], tl.float32) + maximum), at < count)


def decode_unorm(stored: Tensor, maximum: int, room: Tensor | None = None) -> Tensor:
    """``stored / maximum``, float32, for elements in memory without gaps; in ``room``, which lies alike."""
    numbers = torch.empty_like(stored, dtype=torch.float32) if room is None else room
    _decode_unorm[(cdiv(stored.numel(), _BLOCK),)](stored, numbers, stored.numel(), float(maximum), _BLOCK)
    return numbers


@Overlapping
@triton.jit
def _encode_unorm(numbers, stored, count, maximum, shift, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """A block of numbers, wherever they are in the image."""
    in_turn(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(numbers + at, at < count, 0).to(tl.float32)
    value = tl.where(value > 0.0, tl.minimum(value, 1.0), 0.0)  # NaN is 0
    rounded = (value * maximum + shift) - shift
    tl.store(stored + at, rounded.to(tl.int32).to(tl.uint8), at < count)


def encode_unorm(numbers: Tensor, maximum: int, shift: float, room: Tensor | None = None) -> Tensor:
    """``maximum * numbers`` as bytes, of memory without gaps: cut to 0 … ``maximum``, rounded to nearest; NaN is 0.

    Behind ``shift`` float32 has no places for fractions. In ``room``, which lies alike, where it is given.
    """
    stored = torch.empty_like(numbers, dtype=torch.uint8) if room is None else room
    count = numbers.numel()
    # A product and a sum are rounded each by itself.
    _encode_unorm[(cdiv(count, _BLOCK),)](numbers, stored, count, float(maximum), shift, _BLOCK, enable_fp_fusion=False)
    return stored
