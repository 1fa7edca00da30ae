"""Filters of single pixels in Triton, from pictures to pictures in one pass (`openmps.ops.image.one_pass`).

Pictures are of bytes or float32 numbers, in pixels without gaps; bytes of a result are rounded once.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from torch import Tensor

from openmps.ops.pointwise.arithmetic import Arithmetic
from openmps.ops.triton.ahead import Launched, Launches
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.elements import decode_unorm, encode_unorm, stored
from openmps.ops.triton.image.words import are_words, packed, pointer, unpacked

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK, _MANY_BYTES = 1024, 4096
_NO_LIMITS = -math.inf, math.inf
_KINDS = {Arithmetic.ADD: 0, Arithmetic.SUBTRACT: 1, Arithmetic.MULTIPLY: 2, Arithmetic.DIVIDE: 3}


@Launched
@triton.jit
def _combined(
    x, y, made, count, first, second, bias, least, most, KIND: tl.constexpr, HAS_LIMITS: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of numbers, wherever they are in the image."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < count
    a = tl.load(x + at, is_there, 0).to(tl.float32) * first
    b = tl.load(y + at, is_there, 0).to(tl.float32) * second
    if KIND == 0:
        value = a + b
    elif KIND == 1:
        value = a - b
    elif KIND == 2:
        value = a * b
    else:
        value = tl.div_rn(a, b)
    value += bias
    if HAS_LIMITS:
        value = tl.where(value < least, least, tl.where(value > most, most, value))  # NaN stays
    tl.store(made + at, stored(value, LARGEST), is_there)


def combined(
    kind: Arithmetic, x: Tensor, y: Tensor, made: Tensor, scales: tuple[float, float], bias: float,
    limits: tuple[float, float], largest: int,
) -> Launches:  # fmt: skip
    """`openmps.ops.pointwise.arithmetic.arithmetic` of two pictures into ``made``; bytes are ``largest`` for 1."""
    count, has_limits, block = made.numel(), limits != _NO_LIMITS, _BLOCK if largest == 0 else _MANY_BYTES
    arguments = x, y, made, count, *scales, bias, *limits, _KINDS[kind], has_limits, largest, block
    return Launches.of(_combined, (cdiv(count, block),), arguments)


@Launched
@triton.jit
def _thresholded(
    x, made, pixels, unit, weights, limit, above, other, CHANNELS: tl.constexpr, KEEPS_ABOVE: tl.constexpr,
    KEEPS_OTHER: tl.constexpr, LARGEST: tl.constexpr, IS_PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of pixels."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < pixels
    one = tl.zeros([BLOCK], tl.float32) + unit
    # Of words the first element is all of a pixel.
    element = tl.load(pointer(x, IS_PACKED) + at * (1 if IS_PACKED else CHANNELS), is_there, 0)
    value = tl.div_rn((element & 0xFF if IS_PACKED else element).to(tl.float32), one)
    if CHANNELS > 1:
        value *= weights[0]
        for channel in tl.static_range(1, CHANNELS if CHANNELS < 3 else 3):
            if IS_PACKED:
                number = (element >> (8 * channel)) & 0xFF
            else:
                number = tl.load(x + at * CHANNELS + channel, is_there, 0)
            value += tl.div_rn(number.to(tl.float32), one) * weights[channel]
    is_above = value > limit
    kept_above = value if KEEPS_ABOVE else tl.zeros([BLOCK], tl.float32) + above
    kept_other = value if KEEPS_OTHER else tl.zeros([BLOCK], tl.float32) + other
    tl.store(made + at, stored(tl.where(is_above, kept_above, kept_other), LARGEST), is_there)


def thresholded(
    x: Tensor, made: Tensor, limit: float, above: float | None, other: float | None, *, unit: float = 1.0,
    weights: tuple[float, float, float] = (1.0, 0.0, 0.0), largest: int = 0,
) -> Launches:  # fmt: skip
    """Of each pixel's gray value v, of elements divided by ``unit``: ``above`` where ``v > limit``, else ``other``.

    None is v itself. The result has one channel; bytes are ``largest`` for 1, or the number as it is for 0.
    """
    pixels = made.numel()
    arguments = (
        x, made, pixels, unit, weights, limit, above or 0.0, other or 0.0, x.shape[1], above is None, other is None,
        largest, are_words(x), _BLOCK,
    )  # fmt: skip
    return Launches.of(_thresholded, (cdiv(pixels, _BLOCK),), arguments, enable_fp_fusion=False)


@Launched
@triton.jit
def _premultiplied_words(x, made, count, unit, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """A block of pixels of four bytes."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(pointer(x, True) + at, at < count, 0)
    alpha = (words >> 24).to(tl.float32) * unit
    factor = tl.join(tl.join(alpha, alpha), tl.join(alpha, tl.full([BLOCK], 1.0, tl.float32)))
    value = unpacked(words, True).to(tl.float32) * unit * factor
    tl.store(pointer(made, True) + at, packed(stored(value, LARGEST), True), at < count)


@Launched
@triton.jit
def _premultiplied(x, made, count, unit, CHANNELS: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """A block of numbers, wherever they are in the image."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = at % CHANNELS
    value = tl.load(x + at, at < count, 0).to(tl.float32) * unit
    alpha = tl.load(x + (at - channel + (CHANNELS - 1)), at < count, 0).to(tl.float32) * unit
    tl.store(made + at, stored(tl.where(channel == CHANNELS - 1, value, value * alpha), LARGEST), at < count)


def premultiplied(x: Tensor, made: Tensor, unit: float = 1.0, largest: int = 0) -> Launches:
    """Elements times ``unit``, and times that of the last channel, alpha, which stays; bytes are ``largest`` for 1."""
    count, channels = x.numel(), x.shape[1]
    if are_words(x, made):
        count //= channels
        return Launches.of(_premultiplied_words, (cdiv(count, _BLOCK),), (x, made, count, unit, largest, _BLOCK))
    return Launches.of(_premultiplied, (cdiv(count, _BLOCK),), (x, made, count, unit, channels, largest, _BLOCK))


def converted(x: Tensor, made: Tensor, largest: int, *, is_decoded: bool) -> None:
    """Bytes as numbers, or numbers as bytes, ``largest`` for 1."""
    (decode_unorm if is_decoded else encode_unorm)(x, largest, made)
