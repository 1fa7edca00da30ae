"""Softmax in Triton for a few pixels of many channels, as classifiers end with: all threads share a pixel."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_MOST_PIXELS = 128
"""Of more, PyTorch has a warp for each, and enough of them."""
_FEWEST_CHANNELS, _MOST_CHANNELS = 128, 8192


@Launched
@triton.jit
def _softmax(x, y, channels, CHANNELS: tl.constexpr):
    """One pixel. Infinities and what is not a number come out as by the formula."""
    at = tl.arange(0, CHANNELS)
    is_in = at < channels
    place = tl.program_id(0).to(tl.int64) * channels + at
    value = tl.load(x + place, is_in, float("-inf")).to(tl.float32)
    power = tl.where(is_in, tl.exp(value - tl.max(value, 0)), 0.0)
    tl.store(y + place, (power / tl.sum(power, 0)).to(y.dtype.element_ty), is_in)


def takes(x: Tensor) -> bool:
    """Whether `softmax` is for an image of this shape."""
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    return (
        x.dtype in (torch.float16, torch.float32)
        and 0 < pixels <= _MOST_PIXELS
        and _FEWEST_CHANNELS <= x.shape[1] <= _MOST_CHANNELS
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def softmax(x: Tensor) -> Tensor:
    """See `openmps.ops.pointwise.softmax.softmax`."""
    images, channels, height, width = x.shape
    y = torch.empty((images, height, width, channels), dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
    _softmax[(images * height * width,)](x, y, channels, next_power_of_2(channels))
    return y
