"""The weights' gradient of a convolution of many channels over float16 images in Triton, tap by tap.

A tile has channels of one tap, so that addresses are those of pixels. Products are summed in float32, by many programs
over pixels of their own each; their sums are added in a fixed order.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_MULTIPROCESSORS = 132
"""Of an H200."""
_SMALL = 4
"""Warps of a program of which a multiprocessor runs two."""
_BUSY = 0.95
"""Share of the multiprocessors that has to have work."""
_FEW = 64
"""Output channels of the smallest tiles."""
_ROOM = 3 * 64 << 10
"""Bytes of three stages of the largest tiles."""
_LEAST_PIXELS = 512
"""Pixels that a program sums at least."""


@triton.jit
def _under(x, image, y, x_, there, channel, is_in, rows, columns, pitch):
    """Some channels of the pixels under one tap; zeros where it is outside."""
    inside = there & (y >= 0) & (y < rows) & (x_ >= 0) & (x_ < columns)
    place = ((image.to(tl.int64) * rows + y) * columns + x_) * pitch
    return tl.load(x + place[:, None] + channel[None, :], inside[:, None] & is_in[None, :], 0.0)


@Launched
@triton.jit
def _taps_gradient(
    gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, rows, columns, pitch, pitch_of_x,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    FIRST_Y: tl.constexpr, FIRST_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
    AT_ONCE: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Some output channels by some channels under one tap, or under three of a row, summed over a program's pixels."""
    across, down = tl.cdiv(inputs, CHANNELS), tl.cdiv(outputs, OUTPUTS)
    block, groups = tl.program_id(0), TAPS_Y * (TAPS_X // AT_ONCE)
    part, group = block // (across * groups * down), block // across % groups
    output = block // (across * groups) % down * OUTPUTS + tl.arange(0, OUTPUTS)
    channel = block % across * CHANNELS + tl.arange(0, CHANNELS)
    is_out, is_in = output < outputs, channel < inputs
    tap_y = group // (TAPS_X // AT_ONCE) * DILATION_Y + FIRST_Y
    tap_x = group % (TAPS_X // AT_ONCE) * AT_ONCE * DILATION_X + FIRST_X
    begin, end, lane = part * each, tl.minimum(pixels, (part + 1) * each), tl.arange(0, PIXELS)
    # Where the next pixels are, without divisions: so many columns, rows and images further, and what is carried.
    column, row = (begin + lane) % result_columns, (begin + lane) // result_columns % result_rows
    image = (begin + lane) // (result_columns * result_rows)
    rest = PIXELS % (result_rows * result_columns)
    more_images, more_rows = PIXELS // (result_rows * result_columns), rest // result_columns
    more_columns = rest % result_columns
    total = tl.zeros([OUTPUTS, CHANNELS], tl.float32)
    second, third = total, total
    for first in range(begin, end, PIXELS):
        there = first + lane < end
        place = gradient + (first + lane).to(tl.int64)[:, None] * pitch + output[None, :]
        flow = tl.trans(tl.load(place, there[:, None] & is_out[None, :], 0.0))
        y, u = row * STRIDE_Y + tap_y, column * STRIDE_X + tap_x
        value = _under(x, image, y, u, there, channel, is_in, rows, columns, pitch_of_x)
        total = tl.dot(flow, value, total)
        if AT_ONCE == 3:
            value = _under(x, image, y, u + DILATION_X, there, channel, is_in, rows, columns, pitch_of_x)
            second = tl.dot(flow, value, second)
            value = _under(x, image, y, u + 2 * DILATION_X, there, channel, is_in, rows, columns, pitch_of_x)
            third = tl.dot(flow, value, third)
        column += more_columns
        is_over = column >= result_columns
        column = tl.where(is_over, column - result_columns, column)
        row += more_rows + is_over.to(tl.int32)
        is_over = row >= result_rows
        row = tl.where(is_over, row - result_rows, row)
        image += more_images + is_over.to(tl.int32)
    place = parts + (part * outputs + output).to(tl.int64)[:, None] * (TAPS_Y * TAPS_X * inputs) + channel[None, :]
    place += group * AT_ONCE * inputs
    is_there = is_out[:, None] & is_in[None, :]
    tl.store(place, total, is_there)
    if AT_ONCE == 3:
        tl.store(place + inputs, second, is_there)
        tl.store(place + 2 * inputs, third, is_there)


class _Tile(NamedTuple):
    """Output channels and channels of a program, pixels that it reads at a time; taps of a row; warps and stages.

    What was fastest on an H200, of ResNet-50's windows. Three taps of a row read each pixel's gradient once.
    """

    outputs: int
    channels: int
    pixels: int
    taps: int
    warps: int
    stages: int

    @classmethod
    def of(cls, outputs: int, channels: int, taps_across: int, *, is_roomy: bool) -> _Tile:
        """That for a gradient of this size, where a program has room for large tiles or not."""
        taps = 3 if taps_across % 3 == 0 else 1
        if outputs <= _FEW:
            return cls(max(16, next_power_of_2(outputs)), 64, 32, taps, 4, 5)
        if taps == 1 and outputs > 2 * _FEW and channels > _FEW:
            return cls(256, 128, 64, 1, 8, 3)
        if taps == 3 and outputs > 2 * _FEW and channels <= _FEW and is_roomy:
            return cls(256, 64, 64, 3, 8, 3)
        if taps == 1 or outputs > 4 * _FEW or channels <= _FEW or not is_roomy:
            return cls(128, 64, 64, taps, 8, 4)
        return cls(256, 64, 64, 3, 16, 3) if outputs > 2 * _FEW else cls(128, 128, 64, 3, 16, 3)


@cache
def _is_roomy(device: torch.device) -> bool:
    """Whether a multiprocessor has memory for three stages of the largest tiles, as an H100 and later ones have."""
    return device.type == "cuda" and torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= _ROOM


@cache
def _parts(blocks: int, pixels: int, places: int) -> int:
    """Over how many programs to spread the pixels of each of so many blocks: few, but no place for one stays empty."""
    most = max(1, min(4 * places // blocks, pixels // _LEAST_PIXELS))
    used = [blocks * count / (cdiv(blocks * count, places) * places) for count in range(1, most + 1)]
    return next((at for at, share in enumerate(used, 1) if share > _BUSY), used.index(max(used)) + 1)


def weights_gradient(gradient: Tensor, x: Tensor, window: Window, pitch: int, pitch_of_x: int) -> Tensor:
    """The gradient for the weights of one group, OHWI, float32; the edges are zeros.

    Both operands are float16 with their channels side by side, ``pitch`` numbers from one pixel to the next.
    """
    images, outputs, result_rows, result_columns = gradient.shape
    _, inputs, rows, columns = x.shape
    tile, pixels = (
        _Tile.of(outputs, inputs, window.x.size, is_roomy=_is_roomy(x.device)),
        images * result_rows * result_columns,
    )
    blocks = cdiv(outputs, tile.outputs) * cdiv(inputs, tile.channels)
    blocks *= window.y.size * window.x.size // tile.taps
    each = cdiv(pixels, _parts(blocks, pixels, _MULTIPROCESSORS * (2 if tile.warps == _SMALL else 1)))
    each = cdiv(each, tile.pixels) * tile.pixels
    count = cdiv(pixels, each)
    parts = torch.empty((count, outputs, *window.size, inputs), dtype=torch.float32, device=x.device)
    _taps_gradient[(blocks * count,)](
        gradient, x, parts, pixels, outputs, inputs, each, result_rows, result_columns, rows, columns, pitch,
        pitch_of_x, *window.size, *window.stride, window.y.first, window.x.first, *window.dilation, tile.taps,
        tile.outputs, tile.channels, tile.pixels, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts[0] if count == 1 else parts.sum(0)
