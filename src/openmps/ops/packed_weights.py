"""Float32 weights of a convolution as the CPU's libraries take them fastest, and the convolutions by them.

=====================  ============================================  ==================================================
windows                weights                                       computed by
=====================  ============================================  ==================================================
one pixel each, small  a matrix ``[I, O]``                           a product of matrices: no library call is cheaper
one pixel each         an order ``[O]`` of channels, where each      copies
                       row of the matrix is one 1 among zeros
any                    packed for oneDNN                             oneDNN, with biases, an added image or a gate
=====================  ============================================  ==================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.library_convolution import operand_of, placed, regular
from openmps.types import MPSImageEdgeMode

_SMALL = 2**24
"""Multiplications and additions of a product that is not worth oneDNN's preparation, some 50 us at each call."""


def packed_weights(
    weights: Tensor, biases: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode, groups: int, images: int
) -> Tensor:
    """Float32 weights, OHWI, for a convolution of so many images; never memory of ``weights`` itself."""
    if groups == 1 and window.size == window.stride == (1, 1) and window.is_whole:
        rows = weights.flatten(1)
        if biases is None and (order := _order(rows)) is not None:
            return order
        if 2 * max(images, 1) * window.y.result * window.x.result * rows.numel() <= _SMALL:
            return rows.t().clone(memory_format=torch.contiguous_format)
    window, padding = placed(window, edge_mode)
    size = window.region if padding is None else window.source
    where = (padding or (0, 0), window.stride, window.dilation, groups)
    kernel = weights.permute(0, 3, 1, 2)
    shape = (max(images, 1), kernel.shape[1] * groups, *size)
    return torch.ops.mkldnn._reorder_convolution_weight(kernel, *where, shape)


def are_packed(weights: Tensor) -> bool:
    """Whether these are weights as `packed_weights` gives them."""
    return weights.is_mkldnn or weights.ndim != 4


def _order(rows: Tensor) -> Tensor | None:
    """The channel that each row takes as it is; None if a row does anything else."""
    taken = rows != 0
    if not bool((taken.sum(1) == 1).all()):
        return None
    order = taken.to(torch.uint8).argmax(1)
    return order if bool((rows.gather(1, order[:, None]) == 1).all()) else None


def by_packed_weights(
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    addend: Tensor | None,
    gate: str,
    window: Window,
    edge_mode: MPSImageEdgeMode,
    groups: int,
) -> Tensor:
    """``gate(convolution(x) + biases)`` or ``convolution(x) + biases + addend`` of a float32 image.

    Without either unless `takes_more`. The addend lies in memory as the result does.
    """
    if weights.ndim <= 2:
        images, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(-1, channels)
        if weights.ndim == 1:
            y = pixels.index_select(1, weights)
        else:
            y = torch.mm(pixels, weights) if biases is None else torch.addmm(biases, pixels, weights)
        return y.view(images, height, width, -1).permute(0, 3, 1, 2)
    window, padding = placed(window, edge_mode)
    operand = operand_of(x, window, padding, edge_mode)
    where = (operand.padding, operand.stride, window.dilation, groups)
    run = torch.ops.mkldnn._convolution_pointwise
    if addend is None:
        return run(operand.image, weights, biases, *where, gate, [], "")
    return run.binary(operand.image, regular(addend), weights, biases, *where, "add", None, None, [], None)


def takes_more(weights: Tensor) -> bool:
    """Whether an addend or a gate can be part of the convolution by these weights."""
    return weights.is_mkldnn
