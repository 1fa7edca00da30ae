"""`openmps.ops.pooling` in Triton, where nobody asks which pixel a result came from: one pass over memory."""
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

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _pooling(
    x, y, pixels, height, width, rows, columns, count, first_y, first_x, step_y, step_x, tap_y, tap_x,
    AVERAGES: tl.constexpr, CLAMPS: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels of the result times some channels."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_p, in_c = p < pixels, c < count
    column, row, image = p % columns, (p // columns) % rows, (p // (columns * rows)).to(tl.int64)
    found = tl.full([PIXELS, CHANNELS], 0.0 if AVERAGES else float("-inf"), tl.float32)
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
            found = found + e if AVERAGES else tl.maximum(found, e, _ALL)
    if AVERAGES:
        found /= TAPS_Y * TAPS_X
    tl.store(y + p.to(tl.int64)[:, None] * count + c[None, :], found, in_p[:, None] & in_c[None, :])


def max_pooling(x: Tensor, window: Window, *, clamps: bool) -> Tensor:
    """The largest value of each window of a channels-last image without gaps, on the current device."""
    return _pooled(x, empty_image(x, x.shape[1], window.result), window, averages=False, clamps=clamps)


def average_pooling(x: Tensor, window: Window) -> Tensor:
    """The sum of each window, with zeros outside, by the number of its taps: float32."""
    y = x.new_empty((x.shape[0], *window.result, x.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)
    return _pooled(x, y, window, averages=True, clamps=False)


def _pooled(x: Tensor, y: Tensor, window: Window, *, averages: bool, clamps: bool) -> Tensor:
    pixels = y.shape[0] * y.shape[2] * y.shape[3]
    if pixels:
        channels = min(triton.next_power_of_2(x.shape[1]), 64)
        block = max(1, min(_BLOCK // channels, triton.next_power_of_2(pixels)))
        _pooling[(triton.cdiv(pixels, block), triton.cdiv(x.shape[1], channels))](
            x, y, pixels, *window.source, *window.result, x.shape[1], window.y.first, window.x.first, *window.stride,
            *window.dilation, averages, clamps, *window.size, block, channels,
        )  # fmt: skip
    return y
