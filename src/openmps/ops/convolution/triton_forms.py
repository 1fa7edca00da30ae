"""The forms of convolutions and fully connected layers where Triton runs: which of its kernels operands are for.

Each is None where it has no such form. Float32 factors are multiplied as exactly as by multiplications one by one, as a
GPU's library does unless it may round factors: a product is made of three products of TF32, or, for few small images,
which a library's kernels are not made for, of six of bfloat16 whose factors are split once. A float32 gradient and
float16 images and weights, as a network with float16 images and gradients of float32 has them, are multiplied as they
are stored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Window, pitch_of
from openmps.types import MPSImageEdgeMode

MOST_PRODUCTS = 1 << 32
"""Of a weights' gradient: for more a library may be as fast."""
_LEAST_CHANNELS = 16
"""Fewer are padded by a form that takes a run of them at a time."""
_MOST_PIXELS, _MOST_SMALL_PRODUCTS = 1 << 13, 1 << 29
"""Of all images of a batch: for more a library's kernels are faster, as was measured on an H200."""
_OPERANDS = frozenset({(torch.float16, torch.float16), (torch.float32, torch.float32), (torch.float32, torch.float16)})
"""Of a gradient, and of the image and the weights."""
_MOST_OUTPUTS, _MOST_IMAGES, _MOST_NUMBERS = 16, 1024, 1 << 21
"""Outputs, images and numbers of all images of a fully connected layer as classifiers end with."""
_MOST_FACTORS = 1 << 22
"""Of one image by more outputs: for more nothing was measured."""
_FLOATS = {torch.float16, torch.float32}


def exact_convolution(
    x: Tensor, weights: Tensor, biases: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode
) -> Tensor | None:
    """`convolution` of one group; None where it has no such form."""
    fits = x.dtype == weights.dtype == torch.float32 and weights.shape[3] >= _LEAST_CHANNELS and x.numel() > 0
    is_plain = x.is_contiguous(memory_format=torch.channels_last) and weights.is_contiguous()
    if not fits or not is_plain or not triton.runs_on(x.device):
        return None
    if _is_small(len(x), weights, window, edge_mode):
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
    from openmps.ops.triton.beside import beside

    sums = gradient.sum((0, 2, 3), dtype=torch.float32) if wanted[2] else None
    if gradient.dtype == x.dtype == torch.float32:
        from openmps.ops.triton.convolution import split_operands as split

        operands = split.Operand.image(gradient, pitch), split.Operand.image(x, pitch_of_x)
        flow, image, factors = split.split(*operands, split.Operand.weights(weights))
        by_source = partial(split.source_gradient, flow, factors, weights.shape, window)
        by_weights = partial(split.weights_gradient, flow, image, weights.shape, window)
    else:
        from openmps.ops.triton.convolution import small_gradients as kernels

        by_source = partial(kernels.source_gradient, gradient, weights, window, pitch)
        by_weights = partial(kernels.weights_gradient, gradient, x, window, pitch, pitch_of_x)
    if wanted[0] and wanted[1]:
        return *beside(x.device, by_source, by_weights), sums
    return by_source() if wanted[0] else None, by_weights() if wanted[1] else None, sums


def depthwise_gradient(
    gradient: Tensor, x: Tensor, window: Window, groups: int, edge_mode: MPSImageEdgeMode
) -> Tensor | None:
    """The weights' gradient of a group a channel in Triton; None if it cannot be."""
    pitches = pitch_of(gradient), pitch_of(x)
    fits = groups == x.shape[1] and pitches[0] is not None and pitches[1] is not None
    if not fits or min(gradient.numel(), x.numel()) == 0 or not runs_in_triton(gradient, x, window, edge_mode):
        return None
    from openmps.ops.triton.convolution import convolution as kernels

    if window.y.size * window.x.size > kernels.MOST_TAPS:
        return None
    return kernels.depthwise_gradient(gradient, x, window, pitches[0] or 0, pitches[1] or 0)


def runs_in_triton(gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether windows over images can be summed there: where they leave the source are zeros."""
    is_plain = edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source
    pixels = gradient.shape[0] * max(window.y.result * window.x.result, window.y.source * window.x.source)
    is_float = gradient.dtype == x.dtype and x.dtype in (torch.float16, torch.float32)
    return is_float and is_plain and pixels < 2**30 and triton.runs_on(x.device)


def _fits(gradient: Tensor, x: Tensor, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    is_known = (gradient.dtype, x.dtype) in _OPERANDS and x.dtype == weights.dtype
    return is_known and _is_small(len(x), weights, window, edge_mode)


def _is_small(images: int, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether windows over so many images, by weights OHWI of one group, are those that the kernels here are for."""
    is_plain = window.stride == (1, 1) and (edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source)
    pixels = images * max(window.y.source * window.x.source, window.y.result * window.x.result)
    is_little = 0 < pixels <= _MOST_PIXELS and pixels * weights.numel() <= _MOST_SMALL_PRODUCTS
    is_little = is_little and min(weights.shape[0], weights.shape[3]) >= _LEAST_CHANNELS
    return is_plain and is_little and window.size != (1, 1) and weights.is_contiguous()


def few_outputs(x: Tensor, weights: Tensor, biases: Tensor | None, *, wide: bool) -> Tensor | None:
    """``x @ weights.T + biases`` of rows; float16 of such factors unless ``wide``. None where there is no such form."""
    is_row = len(x) == 1 and weights.numel() <= _MOST_FACTORS
    if not _is_classifier(x, weights, biases, _MOST_FACTORS if is_row else _MOST_OUTPUTS):
        return None
    from openmps.ops.triton.convolution.few_outputs import few_outputs as at_once

    is_half = not wide and x.dtype == weights.dtype == torch.float16
    return at_once(x, weights, biases, torch.float16 if is_half else torch.float32)


def few_outputs_gradient(gradient: Tensor, x: Tensor, weights: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
    """The gradients of source, weights and biases, None for what is not ``wanted``; or None: there is no such form.

    The weights' and the biases' are float32; the biases' comes with the weights' alone.
    """
    with_source, with_parameters, with_biases = wanted
    if not (with_source or with_parameters) or not _is_classifier(x, weights, gradient):
        return None
    from openmps.ops.triton.convolution.few_outputs import few_outputs_gradient as at_once

    source, sums, biases = at_once(gradient, x, weights, with_source=with_source, with_parameters=with_parameters)
    return source, sums, biases if with_biases else None


def _is_classifier(x: Tensor, weights: Tensor, other: Tensor | None, most_outputs: int = _MOST_OUTPUTS) -> bool:
    given = (x, weights) if other is None else (x, weights, other)
    is_small = 0 < len(weights) <= most_outputs and len(x) <= _MOST_IMAGES and 0 < x.numel() <= _MOST_NUMBERS
    if not is_small or not {each.dtype for each in given} <= _FLOATS or not triton.runs_on(x.device):
        return False
    return all(each.is_contiguous() for each in given)
