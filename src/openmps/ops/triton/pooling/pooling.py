"""`openmps.ops.pooling.pooling` in Triton, where nobody asks which pixel a result came from: one pass over memory."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _pooling(
    x, y, pixels, height, width, rows, columns, count, first_y, first_x, step_y, step_x, tap_y, tap_x,
    HOW: tl.constexpr, DIVISOR: tl.constexpr, CLAMPS: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the result times some channels."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_p, in_c = p < pixels, c < count
    column, row, image = p % columns, (p // columns) % rows, (p // (columns * rows)).to(tl.int64)
    found = tl.full([PIXELS, CHANNELS], float("-inf") if HOW == "largest" else 0.0, tl.float32)
    # A loop for rows of taps, lest a window of a whole image takes a second to compile.
    for row_of_taps in range(TAPS_Y):
        v = first_y + row * step_y + row_of_taps * tap_y
        for tap in tl.static_range(TAPS_X):
            u = first_x + column * step_x + tap * tap_x
            if CLAMPS:
                y_, x_, is_in = tl.minimum(tl.maximum(v, 0), height - 1), tl.minimum(tl.maximum(u, 0), width - 1), in_p
            else:
                y_, x_, is_in = v, u, in_p & (v >= 0) & (v < height) & (u >= 0) & (u < width)
            at = ((image * height + y_) * width + x_) * count
            e = tl.load(x + at[:, None] + c[None, :], is_in[:, None] & in_c[None, :], 0.0).to(tl.float32)
            if HOW == "largest":
                found = tl.maximum(found, e, _ALL)
            else:
                found += e * e if HOW == "norm" else e
    if DIVISOR != 1:
        found /= DIVISOR
    if HOW == "norm":
        found = tl.sqrt_rn(found)
    tl.store(y + p.to(tl.int64)[:, None] * count + c[None, :], found, in_p[:, None] & in_c[None, :])


def max_pooling(x: Tensor, window: Window, *, clamps: bool) -> Tensor:
    """The largest value of each window of a channels-last image without gaps, on the current device."""
    return _pooled(x, empty_image(x, x.shape[1], window.result), window, "largest", clamps=clamps)


def average_pooling(x: Tensor, window: Window) -> Tensor:
    """The sum of each window, with zeros outside, by the number of its taps: float32."""
    return _pooled(x, _wide(x, window), window, "sum", window.size[0] * window.size[1])


def sum_pooling(x: Tensor, window: Window) -> Tensor:
    """The sum of each window, with zeros outside: float32."""
    return _pooled(x, _wide(x, window), window, "sum")


def l2_norm_pooling(x: Tensor, window: Window) -> Tensor:
    """The root of the sum of the squares of each window, with zeros outside: float32."""
    return _pooled(x, _wide(x, window), window, "norm")


def _wide(x: Tensor, window: Window) -> Tensor:
    """Memory for results in float32."""
    return x.new_empty((x.shape[0], *window.result, x.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)


def _pooled(x: Tensor, y: Tensor, window: Window, how: str, divisor: int = 1, *, clamps: bool = False) -> Tensor:
    pixels = y.shape[0] * y.shape[2] * y.shape[3]
    if pixels:
        channels = min(next_power_of_2(x.shape[1]), 64)
        block = max(1, min(_BLOCK // channels, next_power_of_2(pixels)))
        _pooling[(cdiv(pixels, block), cdiv(x.shape[1], channels))](
            x, y, pixels, *window.source, *window.result, x.shape[1], window.y.first, window.x.first, *window.stride,
            *window.dilation, how, divisor, clamps, *window.size, block, channels,
        )  # fmt: skip
    return y
