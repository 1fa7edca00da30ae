"""Softmax and its logarithm over the feature channels of each pixel.

MPSCNNSoftMax.h, macOS 10.13; the gradients 10.13.4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.op import Kind, Op

_FEW_CHANNELS = 16
_MANY_NUMBERS = 512


def softmax(x: Tensor) -> Tensor:
    """``y_k = e^(x_k) / sum_j e^(x_j)`` over the channels of ``[N, C, H, W]``, with the largest channel subtracted."""
    if triton.runs_on(x.device):
        from openmps.ops.triton.pointwise import softmax as kernels

        if kernels.takes(x):
            return kernels.softmax(x)
    return _over_channels(torch.softmax, x)


def softmax_gradient(gradient: Tensor, y: Tensor) -> Tensor:
    """``y_k * (g_k - sum_j g_j * y_j)``; ``y`` is the forward **result**, not its source."""
    return _over_channels(partial(torch.ops.aten._softmax_backward_data, input_dtype=y.dtype), gradient, y)


def log_softmax(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``y_k = x_k - ln sum_j e^(x_j)`` over the channels of ``[N, C, H, W]``, with the largest channel subtracted.

    With a ``dtype`` the numbers are converted to it first, on CUDA as they are read.
    """
    return _over_channels(partial(torch.log_softmax, dtype=dtype), x)


def log_softmax_gradient(gradient: Tensor, y: Tensor) -> Tensor:
    """``g_k - e^(y_k) * sum_j g_j``; ``y`` is the forward **result**, not its source."""
    return _over_channels(partial(torch.ops.aten._log_softmax_backward_data, input_dtype=y.dtype), gradient, y)


def _over_channels(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function(*tensors, channel_axis)``, with the channels innermost when they are so in memory.

    torch's softmax makes its operands contiguous in the order of their axes: naming the axes in the order of memory
    saves the copies and keeps channels-last. On the CPU few channels of many pixels are faster one behind the other.
    """
    first = tensors[0]
    if first.stride(1) != 1:
        return function(*tensors, 1)
    if first.shape[1] < _FEW_CHANNELS and first.numel() >= _MANY_NUMBERS and not first.is_cuda:
        planes = function(*(_rows(tensor).t().contiguous() for tensor in tensors), 0)
        images, channels, height, width = first.shape
        return planes.t().contiguous().view(images, height, width, channels).permute(0, 3, 1, 2)
    return function(*(tensor.permute(0, 2, 3, 1) for tensor in tensors), 3).permute(0, 3, 1, 2)


def _rows(image: Tensor) -> Tensor:
    """The pixels of an image as rows."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


class SoftMax(Op, of=softmax, kind=Kind.REDUCTION, half=True):
    """`softmax` of an image; of float16 computed in float32 and rounded once, as its logarithm is."""


class LogSoftMax(Op, of=log_softmax, kind=Kind.REDUCTION, half=True):
    """`log_softmax` of an image."""


class SoftMaxGradient(Op, of=softmax_gradient, kind=Kind.REDUCTION):
    """`softmax_gradient` of a gradient and the forward result."""


class LogSoftMaxGradient(Op, of=log_softmax_gradient, kind=Kind.REDUCTION):
    """`log_softmax_gradient` of a gradient and the forward result."""
