"""Pixels of four bytes as words in Triton: one load, and one store, of four numbers."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_WORD = 4
"""Bytes."""


@triton.jit
def unpacked(elements, IS_PACKED: tl.constexpr):
    """Elements one by one: of a block of words their bytes, channels 0 and 2, 1 and 3."""
    if IS_PACKED:
        pairs = tl.join(elements & 0xFF00FF, (elements >> 8) & 0xFF00FF)
        elements = tl.join(pairs & 0xFFFF, pairs >> 16)
    return elements


@triton.jit
def numbers(elements, IS_PACKED: tl.constexpr):
    """Elements as float32 numbers, one by one as `unpacked` has them; bytes of words times 2^-149.

    The bits of a small whole number are those of so many times the smallest float: nothing is converted, which the
    slowest pipe does, nor subtracted. Products of such numbers are exact, and take no longer than others.
    """
    if IS_PACKED:
        low = tl.join(elements & 0xFF, (elements >> 8) & 0xFF)
        high = tl.join((elements >> 16) & 0xFF, elements >> 24)
        elements = tl.join(low, high).to(tl.float32, bitcast=True)
    return elements.to(tl.float32)


@triton.jit
def packed(value, IS_PACKED: tl.constexpr):
    """Elements as they are stored, of which words are made again."""
    if IS_PACKED:
        low, high = tl.split(value.to(tl.uint32))
        even, odd = tl.split(low | (high << 16))
        value = even | (odd << 8)
    return value


@triton.jit
def pointer(elements, IS_PACKED: tl.constexpr):
    """Where elements are; of words, to be read as such."""
    return elements.to(tl.pointer_type(tl.uint32), bitcast=True) if IS_PACKED else elements


def are_words(*images: Tensor) -> bool:
    """Whether the pixels of pictures without gaps are of four bytes, each at a multiple of four."""
    return all(each.shape[1] == _WORD and each.dtype == torch.uint8 and each.data_ptr() % _WORD == 0 for each in images)
