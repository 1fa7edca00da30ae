"""Windows of pictures by weights in Triton, channel by channel (`openmps.ops.image.windows` and `separable`)."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import ROWS
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.geometry import is_packed

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
MOST_TAPS = 96
"""Of a sum along an axis: its weights are arguments of the kernel."""
_TYPES = torch.uint8, torch.float32


def takes(region: Tensor) -> bool:
    """Whether windows of a region can be summed: of bytes or float32, in pixels without gaps."""
    return region.dtype in _TYPES and is_packed(region)


@Launched
@triton.jit
def _sum_of_taps(
    region, weights, made, bias, height, width, across, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers; rows of the region have ``across`` pixels."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    first = region + (line // height * (height + ROWS - 1) + line % height) * across * CHANNELS
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(ROWS):
        for i in range(COLUMNS):
            numbers = tl.load(first + (j * across + i) * CHANNELS + at, is_there, 0).to(tl.float32)
            total += tl.load(weights + j * COLUMNS + i) * numbers
    tl.store(made + line * width * CHANNELS + at, total + bias, is_there)


def sum_of_taps(region: Tensor, weights: Tensor, bias: float) -> Tensor:
    """Sums of the windows of a region ``[N, C, H + kh - 1, W + kw - 1]`` by weights ``[kh, kw]``, and bias: float32."""
    (images, channels, high, across), (rows, columns) = region.shape, weights.shape
    height, width = high - rows + 1, across - columns + 1
    made = region.new_empty((images, height, width, channels), dtype=torch.float32).permute(0, 3, 1, 2)
    taps = weights.to(torch.float32).contiguous()
    grid = images * height, cdiv(width * channels, _BLOCK)
    _sum_of_taps[grid](region, taps, made, float(bias), height, width, across, channels, rows, columns, _BLOCK)
    return made


@Launched
@triton.jit
def _sum_along(
    region, weights, made, scale, height, high, width, across, IS_DOWN: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a row of numbers; an image of the region has ``high`` rows of ``across`` pixels."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width * CHANNELS
    first = region + (line // height * high + line % height) * across * CHANNELS
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TAPS):
        pixel = i * across if IS_DOWN else i
        total += weights[i] * tl.load(first + pixel * CHANNELS + at, is_there, 0).to(tl.float32)
    tl.store(made + line * width * CHANNELS + at, total * scale, is_there)


def sum_along(region: Tensor, weights: tuple[float, ...], dimension: int, scale: float) -> Tensor:
    """Sums of neighbours along an axis by weights, times ``scale``, float32: as many as there are whole windows."""
    images, channels, high, across = region.shape
    less, is_down = len(weights) - 1, dimension == ROWS
    height, width = (high - less, across) if is_down else (high, across - less)
    made = region.new_empty((images, height, width, channels), dtype=torch.float32).permute(0, 3, 1, 2)
    _sum_along[(images * height, cdiv(width * channels, _BLOCK))](
        region, weights, made, scale, height, high, width, across, is_down, channels, len(weights), _BLOCK
    )
    return made
