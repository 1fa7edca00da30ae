"""The gradients of convolutions of few small images where Triton runs: a library's kernels are made for larger work.

Where all factors are float32 they are split into parts of few digits first, once for all gradients. A float32 gradient
and float16 images and weights, as a network with float16 images and gradients of float32 has them, are multiplied as
they are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Window, pitch_of
from openmps.types import MPSImageEdgeMode

_MOST_PIXELS, _MOST_PRODUCTS = 1 << 13, 1 << 29
"""Of all images of a batch: for more a library's kernels are faster, as was measured on an H200."""
_LEAST_CHANNELS = 16
"""Of both images: fewer are padded."""
_OPERANDS = frozenset({(torch.float16, torch.float16), (torch.float32, torch.float32), (torch.float32, torch.float16)})
"""Of a gradient, and of the image and the weights."""


def small_gradients(
    gradient: Tensor, x: Tensor, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:  # fmt: skip
    """`convolution_gradient` of one group, for source, weights and biases; None where it has no such form."""
    if not triton.runs_on(x.device) or not _fits(gradient, x, weights, window, edge_mode):
        return None
    pitch, pitch_of_x = pitch_of(gradient), pitch_of(x)
    if pitch is None or pitch_of_x is None:
        return None
    source, factors, biases = wanted
    sums = gradient.sum((0, 2, 3), dtype=torch.float32) if biases else None
    if gradient.dtype == x.dtype == torch.float32:
        from openmps.ops.triton.convolution import split_operands as split

        operands = split.Operand.image(gradient, pitch), split.Operand.image(x, pitch_of_x)
        parts = split.split(*operands, split.Operand.weights(weights))
        return (
            split.source_gradient(parts[0], parts[2], weights.shape, window) if source else None,
            split.weights_gradient(parts[0], parts[1], weights.shape, window) if factors else None,
            sums,
        )
    from openmps.ops.triton.convolution import small_gradients as kernels

    return (
        kernels.source_gradient(gradient, weights, window, pitch) if source else None,
        kernels.weights_gradient(gradient, x, window, pitch, pitch_of_x) if factors else None,
        sums,
    )


def _fits(gradient: Tensor, x: Tensor, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    is_known = (gradient.dtype, x.dtype) in _OPERANDS and x.dtype == weights.dtype
    return is_known and is_small(len(x), weights, window, edge_mode)


def is_small(images: int, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether windows over so many images, by weights OHWI of one group, are those that the kernels here are for."""
    is_plain = window.stride == (1, 1) and (edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source)
    pixels = images * max(window.y.source * window.x.source, window.y.result * window.x.result)
    is_little = 0 < pixels <= _MOST_PIXELS and pixels * weights.numel() <= _MOST_PRODUCTS
    is_little = is_little and min(weights.shape[0], weights.shape[3]) >= _LEAST_CHANNELS
    return is_plain and is_little and window.size != (1, 1) and weights.is_contiguous()
