"""The forms of `openmps.ops.convolution.stepped_pixels` in Triton: pixels as rows, whose channels lie side by side."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from openmps.ops.geometry import Window, empty_image, pitch_of
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_NUMBERS, _CHANNELS = 4096, 256


@Launched
@triton.jit
def _picked(
    x, y, pixels, channels, pitch, height, width, rows, columns, first_y, first_x, step_y, step_x,
    HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some pixels and channels of what is picked."""
    across = tl.cdiv(channels, COLUMNS)
    p = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    c = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    column, row, image = p % columns, (p // columns) % rows, (p // (columns * rows)).to(tl.int64)
    at = ((image * height + first_y + row * step_y) * width + first_x + column * step_x) * pitch
    there = (p < pixels)[:, None] & (c < channels)[None, :]
    value = tl.load(x + at[:, None] + c[None, :], there)
    tl.store(y + p.to(tl.int64)[:, None] * channels + c[None, :], value, there)


@Launched
@triton.jit
def _spread(
    gradient, dx, pixels, channels, pitch, height, width, rows, columns, first_y, first_x, step_y, step_x,
    HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some pixels and channels of the source's gradient."""
    across = tl.cdiv(channels, COLUMNS)
    p = tl.program_id(0) // across * HELD + tl.arange(0, HELD)
    c = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    u, v, image = p % width - first_x, (p // width) % height - first_y, (p // (width * height)).to(tl.int64)
    column, row = u // step_x, v // step_y
    is_read = (u >= 0) & (v >= 0) & (column * step_x == u) & (row * step_y == v) & (column < columns) & (row < rows)
    there = (p < pixels)[:, None] & (c < channels)[None, :]
    at = ((image * rows + row) * columns + column) * pitch
    value = tl.load(gradient + at[:, None] + c[None, :], there & is_read[:, None], 0.0)
    tl.store(dx + p.to(tl.int64)[:, None] * channels + c[None, :], value, there)


def picked(x: Tensor, window: Window) -> Tensor:
    """The pixels that windows of one pixel read."""
    y = empty_image(x, x.shape[1], window.result)
    _launch(_picked, x, y, window)
    return y


def spread(gradient: Tensor, window: Window) -> Tensor:
    """The adjoint."""
    dx = empty_image(gradient, gradient.shape[1], window.source)
    _launch(_spread, gradient, dx, window)
    return dx


def _launch(kernel: Any, given: Tensor, made: Tensor, window: Window) -> None:
    images, channels, height, width = made.shape
    columns = min(_CHANNELS, next_power_of_2(channels))
    held, pixels = _NUMBERS // columns, images * height * width
    kernel[(cdiv(pixels, held) * cdiv(channels, columns),)](
        given, made, pixels, channels, pitch_of(given), *window.source, *window.result, window.y.first, window.x.first,
        *window.stride, held, columns, num_warps=4,
    )  # fmt: skip
