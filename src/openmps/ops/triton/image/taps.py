"""Windows of pictures by weights in Triton, channel by channel (`openmps.ops.image.windows` and `separable`)."""
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
_TYPES = torch.uint8, torch.float32


def takes(region: Tensor) -> bool:
    """Whether the numbers of a region lie so that a row of a result is read in a row."""
    return region.dtype in _TYPES and region.is_contiguous(memory_format=torch.channels_last)


@Launched
@triton.jit
def _sum_of_taps(
    region, weights, made, bias, height, row, wide, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of ``row`` numbers; those of the region have ``wide``."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = region + (line // height * (height + ROWS - 1) + line % height) * wide
    total = tl.zeros([BLOCK], tl.float32) + bias
    for j in range(ROWS):
        for i in range(COLUMNS):
            numbers = tl.load(first + j * wide + i * channels + at, at < row, 0).to(tl.float32)
            total += tl.load(weights + j * COLUMNS + i) * numbers
    tl.store(made + line * row + at, total, at < row)


def sum_of_taps(region: Tensor, weights: Tensor, bias: float = 0.0) -> Tensor:
    """Of a region ``[N, C, H + kh - 1, W + kw - 1]`` the sums of windows by weights ``[kh, kw]``, float32, and bias."""
    (images, channels, high, across), (rows, columns) = region.shape, weights.shape
    height, width = high - rows + 1, across - columns + 1
    made = torch.empty(
        (images, channels, height, width), dtype=torch.float32, device=region.device, memory_format=torch.channels_last
    )
    taps = weights.to(torch.float32).contiguous()
    grid = images * height, cdiv(width * channels, _BLOCK)
    _sum_of_taps[grid](
        region, taps, made, float(bias), height, width * channels, across * channels, channels, rows, columns, _BLOCK
    )
    return made
