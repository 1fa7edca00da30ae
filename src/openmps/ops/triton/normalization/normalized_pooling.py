"""A normalization, a rectifier and a max pooling in Triton: `ops.normalization.normalized_pooling` in one pass.

The image between the neuron and the pooling never exists. Of each window a byte is kept, the tap that its maximum came
from, and the number that was normalized there, which is all that the sums for gamma and beta read.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window, pitch_of
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.normalization import batch_normalization as passes
from openmps.ops.triton.normalization import normalized_pooling_kernels as kernels

triton: Any = import_module("triton")

NOTHING = 255
"""The tap of a window whose gradient the neuron lets nothing of pass."""
_MOST_TAPS, _MOST_PHASES = 64, 16
_CHANNELS = 64
"""Channels of a tile at most."""
_POOLED, _GRADIENT = (512, 4), (1024, 4)
"""Numbers of a tile, and warps: what was fastest on an H200."""


def fits(window: Window) -> bool:
    """Whether the kernels take such windows: few taps, which are unrolled, and small strides."""
    return window.y.size * window.x.size <= _MOST_TAPS and window.y.stride * window.x.stride <= _MOST_PHASES


def _placement(window: Window) -> tuple[int, ...]:
    return (*window.size, *window.stride, window.y.first, window.x.first, *window.dilation)


def _tile(channels: int, numbers: int) -> tuple[int, int]:
    """Pixels and channels of a program."""
    columns = min(_CHANNELS, next_power_of_2(channels))
    return numbers // columns, columns


def pooled(
    x: Tensor, rows: passes.Rows, epsilon: float, how: passes.Activation, window: Window, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The pooled neurons in ``dtype``, their taps, and the numbers of ``x`` there."""
    images, channels = x.shape[:2]
    y, taps, winners = (
        torch.empty((images, *window.result, channels), dtype=each, device=x.device).permute(0, 3, 1, 2)
        for each in (dtype, torch.uint8, x.dtype)
    )
    (held, columns), pixels = _tile(channels, _POOLED[0]), images * window.y.result * window.x.result
    kernels.pooled[(cdiv(pixels, held) * cdiv(channels, columns),)](
        x, y, taps, winners, rows.filled(), pixels, channels, *window.source, *window.result, pitch_of(x),
        float(epsilon), float(how.b), rows.correction is not None, how.name, how.rounds, dtype == torch.float16,
        *_placement(window), held, columns, num_warps=_POOLED[1],
    )  # fmt: skip
    return y, taps, winners


def parameter_gradients(
    gradient: Tensor, taps: Tensor, winners: Tensor, rows: passes.Rows, epsilon: float, before: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """The gradients of gamma and beta, added to those ``before``; ``gradient`` is that of the pooled image."""
    grid = passes.Grid.of(winners, "pooled")
    parts = grid.rows_for(winners, 2 * grid.parts)
    kernels.pooled_parts[grid.all](
        gradient, taps, winners, parts, rows.filled(), grid.rows, grid.channels, pitch_of(gradient),
        rows.correction is not None, grid.held, grid.columns, num_warps=grid.warps,
    )  # fmt: skip
    return passes.added_up(grid, parts, rows, epsilon, before)


def data_gradient(
    gradient: Tensor, taps: Tensor, x: Tensor, rows: passes.Rows, epsilon: float, sums: Sequence[Tensor],
    pixels: float, window: Window, dtype: torch.dtype, *, rounds: bool,
) -> Tensor:  # fmt: skip
    """The gradient of ``x`` in ``dtype``; ``sums`` are none where mean and variance are constants."""
    images, channels = x.shape[:2]
    made = passes.like(x, dtype)
    (height, width), (step_y, step_x) = window.source, window.stride
    (held, columns), blocks = (
        _tile(channels, _GRADIENT[0]),
        images * cdiv(height, step_y) * cdiv(width, step_x),
    )
    kernels.pooled_gradient[(cdiv(blocks, held) * cdiv(channels, columns),)](
        gradient, taps, x, made, rows.filled(), tuple(sums) or (x, x), blocks, channels, height, width,
        *window.result, pitch_of(gradient), pitch_of(x), float(pixels), float(epsilon), rows.correction is not None,
        bool(sums), rounds, *_placement(window), held, columns, num_warps=_GRADIENT[1],
    )  # fmt: skip
    return made
