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


_SHIFT: Any = tl.constexpr(1.5 * 2.0**23)
"""Behind which float32 has no places for fractions."""


@triton.jit
def stored(value, LARGEST: tl.constexpr):
    """Numbers as bytes, ``LARGEST`` for 1: cut to 0 … 1, rounded to nearest, NaN is 0. As they are where that is 0."""
    if LARGEST > 0:
        value = tl.minimum(tl.maximum(value, 0.0), 1.0) * LARGEST + _SHIFT
        # The lowest byte of such a number is the byte.
        value = value.to(tl.int32, bitcast=True).to(tl.uint8)
    return value


@Overlapping
@triton.jit
def _decode_unorm(elements, numbers, count, maximum, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """A block of elements, wherever they are in the image."""
    in_turn(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(elements + at, at < count, 0).to(tl.float32)
    tl.store(numbers + at, tl.div_rn(value, tl.zeros([BLOCK], tl.float32) + maximum), at < count)


def decode_unorm(elements: Tensor, maximum: int, room: Tensor | None = None) -> Tensor:
    """``elements / maximum``, float32, for elements in memory without gaps; in ``room``, which lies alike."""
    numbers, count = torch.empty_like(elements, dtype=torch.float32) if room is None else room, elements.numel()
    _decode_unorm[(cdiv(count, _BLOCK),)](elements, numbers, count, float(maximum), _BLOCK)
    return numbers


@Overlapping
@triton.jit
def _encode_unorm(numbers, elements, count, LARGEST: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """A block of numbers, wherever they are in the image."""
    in_turn(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(numbers + at, at < count, 0).to(tl.float32)
    tl.store(elements + at, stored(value, LARGEST), at < count)


def encode_unorm(numbers: Tensor, maximum: int, room: Tensor | None = None) -> Tensor:
    """``maximum * numbers`` as bytes, of memory without gaps: cut to 0 … ``maximum``, rounded to nearest; NaN is 0.

    In ``room``, which lies alike, where it is given.
    """
    elements, count = torch.empty_like(numbers, dtype=torch.uint8) if room is None else room, numbers.numel()
    # A product and a sum are rounded each by itself.
    _encode_unorm[(cdiv(count, _BLOCK),)](numbers, elements, count, maximum, _BLOCK, enable_fp_fusion=False)
    return elements
