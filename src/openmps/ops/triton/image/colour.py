"""Colours in Triton, in one pass (`openmps.ops.image.colour`)."""
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
from openmps.ops.triton.geometry import is_packed

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024


def takes(x: Tensor) -> bool:
    """Whether images are of float32, in pixels without gaps."""
    return x.dtype == torch.float32 and is_packed(x)


@Launched
@triton.jit
def _gray(x, made, pixels, red, green, blue, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of pixels."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < pixels
    first = x + at * CHANNELS
    value = tl.load(first, is_there) * red + tl.load(first + 1, is_there) * green
    if CHANNELS > 2:
        value += tl.load(first + 2, is_there) * blue
    tl.store(made + at, value, is_there)


def gray(x: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """The weighted sum of the first three of two or more channels, ``[N, 1, H, W]``."""
    images, channels, height, width = x.shape
    made = x.new_empty(images, 1, height, width)
    _gray[(cdiv(made.numel(), _BLOCK),)](x, made, made.numel(), *weights, channels, _BLOCK)
    return made


@Launched
@triton.jit
def _premultiplied(x, made, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of numbers, wherever they are in the image."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = at % CHANNELS
    value = tl.load(x + at, at < count)
    alpha = tl.load(x + at - channel + (CHANNELS - 1), at < count)
    tl.store(made + at, tl.where(channel == CHANNELS - 1, value, value * alpha), at < count)


def premultiplied(x: Tensor) -> Tensor:
    """Channels times the last one, alpha, which stays."""
    made = torch.empty_like(x)
    _premultiplied[(cdiv(x.numel(), _BLOCK),)](x, made, x.numel(), x.shape[1], _BLOCK)
    return made
