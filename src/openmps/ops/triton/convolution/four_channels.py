"""Rows of three float16 numbers as rows of four in Triton, in one pass: libraries read pixels of eight bytes."""
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

_ROWS = 1024


@Launched
@triton.jit(do_not_specialize=["count"])
def _four_channels(x, y, count, ROWS: tl.constexpr):
    """Some rows, each written as one number of 64 bits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_in, bits = row < count, tl.zeros([ROWS], tl.int64)
    for channel in tl.static_range(3):
        number = tl.load(x + row * 3 + channel, is_in, 0)
        bits |= (number.to(tl.int64) & 0xFFFF) << (16 * channel)
    tl.store(y + row, bits, is_in)


def four_channels(x: Tensor) -> Tensor:
    """``[..., 3]`` without gaps, float16, as ``[..., 4]``, the last of which are 0."""
    y = torch.empty((*x.shape[:-1], 4), dtype=x.dtype, device=x.device)
    count = x.numel() // 3
    _four_channels[(cdiv(count, _ROWS),)](x.view(torch.int16), y.view(torch.int64), count, _ROWS)
    return y
