"""Colours: gray values, and what alpha is to them (MPSImageConversion.h and MPSImageThreshold.h, macOS 10.13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import empty_image
from openmps.ops.op import Kind, Op
from openmps.types import MPSAlphaType

_ALPHA = 3
_PREMULTIPLIES = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.PREMULTIPLIED


def gray(x: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """The gray value ``weights . (R, G, B)``, ``[N, 1, H, W]``, without alpha; of one channel the channel itself."""
    channels = min(x.shape[1], _ALPHA)
    if channels == 1:
        return x[:, :1]
    if (kernels := _kernels(x)) is not None:
        return kernels.gray(x, weights)
    if x.device.type == "cpu":  # as products of a matrix: of three numbers of four PyTorch adds one by one
        pixels = x.permute(0, 2, 3, 1).numpy()
        return torch.from_numpy(pixels[..., :channels] @ np.array(weights[:channels], pixels.dtype))[:, None]
    total = x[:, :1] * weights[0]
    for channel in range(1, channels):
        total.add_(x[:, channel : channel + 1], alpha=weights[channel])
    return total


def spread(value: Tensor, count: int) -> Tensor:
    """A gray value ``[N, 1, H, W]`` in the first three of ``count`` channels; the fourth one is 1."""
    if count == 1:
        return value
    whole = empty_image(value, count, (value.shape[2], value.shape[3]))
    whole[:, :_ALPHA] = value
    whole[:, _ALPHA:] = 1.0
    return whole


def convert_alpha(
    x: Tensor, source: MPSAlphaType, result: MPSAlphaType, background: tuple[float, float, float]
) -> Tensor:
    """Colours ``[N, 4, H, W]`` with alpha, as ``result`` says; a background shows where alpha is to be 1.

    ==================  ============================  ============================  ================
    from, to            ALPHA_IS_ONE                  NON_PREMULTIPLIED             PREMULTIPLIED
    ==================  ============================  ============================  ================
    ALPHA_IS_ONE        as it is                      as it is                      as it is
    NON_PREMULTIPLIED   ``a c + (1 - a) background``  as it is                      ``a c``
    PREMULTIPLIED       ``c + (1 - a) background``    ``c / a``, 0 where a is 0     as it is
    ==================  ============================  ============================  ================

    Alpha is 1 in the first row and in the first column.
    """
    if (source, result) == _PREMULTIPLIES and (kernels := _kernels(x)) is not None:
        return kernels.premultiplied(x)
    alpha = x[:, _ALPHA:]
    is_multiplied = source is MPSAlphaType.NON_PREMULTIPLIED and result is not source
    whole = x * alpha if is_multiplied else x.clone(memory_format=torch.channels_last)
    colour = whole[:, :_ALPHA]
    if is_multiplied:
        whole[:, _ALPHA:] = alpha
    if MPSAlphaType.ALPHA_IS_ONE in (source, result):
        whole[:, _ALPHA:] = 1.0
    if source is result or source is MPSAlphaType.ALPHA_IS_ONE:
        return whole
    if result is MPSAlphaType.NON_PREMULTIPLIED:
        colour.copy_(torch.where(alpha == 0.0, 0.0, colour / alpha))
        return whole
    if result is MPSAlphaType.ALPHA_IS_ONE and any(background):
        rest = 1.0 - alpha
        for channel, value in enumerate(background):
            colour[:, channel : channel + 1].add_(rest, alpha=value)
    return whole


def _kernels(x: Tensor) -> Any:
    """The module of faster forms where they take such images."""
    if not triton.runs_on(x.device):
        return None
    from openmps.ops.triton.image import colour as kernels

    return kernels if kernels.takes(x) else None


class Gray(Op, of=gray, kind=Kind.REDUCTION, gives_view=True):
    """`gray` of a picture."""

    weights: tuple[float, float, float]


class Spread(Op, of=spread, kind=Kind.STORAGE, gives_view=True):
    """`spread` of a gray value."""

    count: int


class ConvertAlpha(Op, of=convert_alpha, kind=Kind.REDUCTION):
    """`convert_alpha` of a picture."""

    source: MPSAlphaType
    result: MPSAlphaType
    background: tuple[float, float, float]

    @property
    def premultiplies(self) -> bool:
        """Whether colours are multiplied by alpha, and nothing else is done."""
        return (self.source, self.result) == _PREMULTIPLIES
