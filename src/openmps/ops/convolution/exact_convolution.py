"""Convolutions over float32 images where Triton runs: products of three TF32 ones, as exact as multiplications.

Of few small images, products of six bfloat16 ones, whose factors are made once.

A GPU's library multiplies and adds one by one, unless it may round factors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.small_gradients import is_small
from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode

MOST_PRODUCTS = 1 << 32
"""Of a weights' gradient: for more a library may be as fast."""
_LEAST_CHANNELS = 16
"""Fewer are padded by a form that takes a run of them at a time."""


def exact_convolution(
    x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode
) -> Tensor | None:
    """`convolution` of one group; None where it has no such form."""
    fits = x.dtype == weights.dtype == torch.float32 and weights.shape[3] >= _LEAST_CHANNELS and x.numel() > 0
    is_plain = x.is_contiguous(memory_format=torch.channels_last) and weights.is_contiguous()
    if not fits or not is_plain or not triton.runs_on(x.device):
        return None
    if is_small(len(x), weights, window, edge_mode):
        from openmps.ops.triton.convolution import split_operands as split

        return split.convolution(split.Operand.image(x, x.shape[1]), weights, biases, window)
    from openmps.ops.triton.convolution.fused_convolution import contraction

    clamps = edge_mode == MPSImageEdgeMode.CLAMP
    return contraction(x, weights, biases, None, window, clamps=clamps, rectifier="NONE", slope=0.0, limit=0.0)


def exact_source_gradient(gradient: Tensor, weights: Tensor, window: Window) -> Tensor | None:
    """The gradient for the source of such a convolution with zeros outside, by turned windows; None for strides."""
    if window.stride != (1, 1):
        return None
    turned = weights.flip(1, 2).permute(3, 1, 2, 0).contiguous()
    return exact_convolution(gradient, turned, None, window.turned(), MPSImageEdgeMode.ZERO)
