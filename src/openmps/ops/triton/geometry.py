"""Regions of pictures whose edge is repeated, in Triton, in one pass (`openmps.ops.geometry`)."""
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

_BLOCK = 1024
_WORD = 4
"""Bytes of a pixel that is moved as one number."""


@Launched
@triton.jit
def _clamped(x, made, high, height, width, top, left, row, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of a row of ``row`` numbers of a region of ``high`` rows."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    down = tl.minimum(tl.maximum(line % high + top, 0), height - 1)
    across = tl.minimum(tl.maximum(at // CHANNELS + left, 0), width - 1)
    first = x + (line // high * height + down) * width * CHANNELS
    tl.store(made + line * row + at, tl.load(first + across * CHANNELS + at % CHANNELS, at < row, 0), at < row)


def is_packed(x: Tensor) -> bool:
    """Whether an image ``[N, C, H, W]`` has pixels, whose channels lie side by side, without gaps."""
    return x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)


def clamped(x: Tensor, rows: range, columns: range) -> Tensor:
    """Those rows and columns of images; of those outside the nearest that there is."""
    pixels = x.permute(0, 2, 3, 1)
    if x.shape[1] * x.element_size() == _WORD and pixels.data_ptr() % _WORD == 0:
        pixels = pixels.contiguous().view(torch.int32)
    images, height, width, channels = pixels.shape
    made = pixels.new_empty(images, len(rows), len(columns), channels)
    row = len(columns) * channels
    _clamped[(images * len(rows), cdiv(row, _BLOCK))](
        pixels, made, len(rows), height, width, rows.start, columns.start, row, channels, _BLOCK
    )
    return made.view(x.dtype).permute(0, 3, 1, 2)
