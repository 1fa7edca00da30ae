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
def packed(value, IS_PACKED: tl.constexpr):
    """Elements as they are stored, of which words are made again."""
    if IS_PACKED:
        low, high = tl.split(value.to(tl.uint32))
        even, odd = tl.split(low | (high << 16))
        value = even | (odd << 8)
    return value


@triton.jit
def pointer(elements, IS_PACKED: tl.constexpr):
    return elements.to(tl.pointer_type(tl.uint32), bitcast=True) if IS_PACKED else elements


def are_words(*images: Tensor) -> bool:
    """Whether the pixels of pictures without gaps are of four bytes, each at a multiple of four."""
    return all(
        each.shape[1] == _WORD and each.dtype == torch.uint8 and each.data_ptr() % _WORD == 0 for each in images
    )
