"""How convolutions are given to PyTorch's libraries: oneDNN on the CPU, cuDNN on a GPU."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.locks import new_reentrant_lock
from openmps.ops.geometry import Window, read
from openmps.types import MPSImageEdgeMode


@lru_cache(maxsize=1024)
def placed(window: Window, edge_mode: MPSImageEdgeMode) -> tuple[Window, tuple[int, int] | None]:
    """Return the windows as the library is to place them, and its padding; see `library_padding`.

    Where there is only one column of windows their horizontal stride means nothing, but where it is 2 or more and the
    vertical one is 1, oneDNN 3.12 gives wrong rows for images of one channel: it becomes 1.
    """
    if window.x.result == 1 and window.x.stride > 1 and window.y.stride == 1:
        window = replace(window, x=replace(window.x, stride=1))
    return window, library_padding(window, edge_mode)


def library_padding(window: Window, edge_mode: MPSImageEdgeMode) -> tuple[int, int] | None:
    """Return the padding (vertical, horizontal) that makes a library's convolution read ``window`` from the source.

    ``None`` where there is none: the region must then be read first.
    """
    # Padding by a whole window and more is legal, but not every engine behind the call takes it.
    vertical, horizontal = (axis.symmetric_padding(axis.extent - 1) for axis in (window.y, window.x))
    if vertical is None or horizontal is None:
        return None
    return (vertical, horizontal) if edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source else None


class Operand(NamedTuple):
    """What the engine's convolution is given; pairs are (vertical, horizontal)."""

    image: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]  # zeros on both sides
    is_source: bool  # whether the image is the source as a whole


def operand_of(x: Tensor, window: Window, padding: tuple[int, int] | None, edge_mode: MPSImageEdgeMode) -> Operand:
    """Return what the engine is given for windows and padding as `placed` returns them."""
    if padding is not None:
        return Operand(regular(x), window.stride, padding, True)
    return Operand(regular(read(x, window, edge_mode)), window.stride, (0, 0), False)


def regular(x: Tensor) -> Tensor:
    """Return the same image with the strides of channels-last memory in dimensions of length 1 as well.

    A view may have any stride there. torch rightly takes it for contiguous, but passes the stride on to oneDNN, which
    then gives wrong gradients for weights.
    """
    if 1 not in x.shape or not x.is_contiguous(memory_format=torch.channels_last):
        return x
    _, channels, height, width = x.shape
    return x.as_strided(x.shape, (height * width * channels, 1, width * channels, channels))


def stepped(operand: Operand, window: Window) -> Operand:
    """Give the same 1 by 1 windows a stride of 1: the image is reduced to the pixels that they read."""
    rows = slice(0, (window.y.result - 1) * operand.stride[0] + 1, operand.stride[0])
    columns = slice(0, (window.x.result - 1) * operand.stride[1] + 1, operand.stride[1])
    return operand._replace(image=regular(operand.image[:, :, rows, columns]), stride=(1, 1), is_source=False)


def backward(
    gradient: Tensor, operand: Operand, kernel: Tensor, window: Window, groups: int, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients for the operand's image, the kernel, OIHW, and biases; ``None`` where not wanted."""
    if not any(wanted):
        return None, None, None
    return torch.ops.aten.convolution_backward(
        regular(gradient),
        operand.image,
        kernel,
        [kernel.shape[0]],
        operand.stride,
        operand.padding,
        window.dilation,
        False,  # transposed
        (0, 0),
        groups,
        wanted,
    )


_as_it_is = nullcontext()
_setting_lock = new_reentrant_lock()  # a signal handler may launch one while its thread launches another


def launching(x: Tensor, allow_tf32: bool) -> AbstractContextManager[None]:
    """Return the context in which a convolution of ``x`` is launched: equal work gives equal bits."""
    return _by_cudnn(x.dtype == torch.float32 and not allow_tf32) if x.is_cuda else _as_it_is


@contextmanager
def _by_cudnn(exact: bool) -> Generator[None]:
    """Keep cuDNN from sums in an order that changes, and from rounding float32 to TF32 where ``exact``.

    torch lets it do both by default, and has only settings of the whole process for this: they are given back as soon
    as the work is launched.
    """
    cudnn: Any = torch.backends.cudnn  # its annotations lack `conv`
    with _setting_lock:
        before = cudnn.deterministic, cudnn.conv.fp32_precision
        cudnn.deterministic = True
        if exact:
            cudnn.conv.fp32_precision = "ieee"
        try:
            yield
        finally:
            cudnn.deterministic, cudnn.conv.fp32_precision = before
