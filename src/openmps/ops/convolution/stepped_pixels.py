"""The pixels that windows of one pixel read, as an image of their own; and its gradient as that of the source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Axis, Window, empty_image, packed, pitch_of
from openmps.ops.op import Kind, Op

_FLOATS = (torch.float16, torch.float32)


def picked(x: Tensor, window: Window) -> Tensor:
    """``Y[n, c, y, x] = X[n, c, first + y stride, first + x stride]``, each axis by its own numbers.

    Windows are one pixel large, and all of them inside the source.
    """
    if (fast := _kernels(x)) is not None:
        return fast.picked(x, window)
    return packed(x[:, :, _places(window.y), _places(window.x)])


def spread(gradient: Tensor, window: Window) -> Tensor:
    """The adjoint of `picked`: 0 where nothing is read."""
    if (fast := _kernels(gradient)) is not None:
        return fast.spread(gradient, window)
    made = empty_image(gradient, gradient.shape[1], window.source).zero_()
    made[:, :, _places(window.y), _places(window.x)] = gradient
    return made


def _places(axis: Axis) -> slice:
    return slice(axis.first, axis.first + (axis.result - 1) * axis.stride + 1, axis.stride)


def _kernels(x: Tensor) -> Any:
    """The forms in Triton, if they take an image; else None."""
    fits = x.dtype in _FLOATS and x.numel() > 0 and pitch_of(x) is not None and triton.runs_on(x.device)
    if not fits:
        return None
    from openmps.ops.triton.convolution import stepped_pixels as kernels

    return kernels


class PickedPixels(Op, of=picked, kind=Kind.STORAGE, half=True, gives_view=True):
    """`picked` of an image."""

    window: Window


class SpreadPixels(Op, of=spread, kind=Kind.STORAGE, half=True):
    """`spread` of the gradient of what was picked."""

    window: Window
