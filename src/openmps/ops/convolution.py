"""Convolution and fully connected layers with their gradients (MPSCNNConvolution.h, macOS 10.13 and 10.13.4).

Weights are OHWI, ``[O, kernel_height, kernel_width, I / groups]``. Seen as ``[O, I / groups, kernel_height,
kernel_width]`` they are the engine's channels-last weights as they lie in memory: no call here copies them.
Convolution is correlation: the kernel is not turned round. Parameter gradients are sums over the batch and all pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import Axis, Window, read, read_adjoint
from openmps.types import MPSImageEdgeMode

# torch multiplies float32 matrices on the CPU with MKL, which on an AMD processor took up to twice oneDNN's time. This
# operator is oneDNN's product; torch does not promise that it stays, and does very well without it.
_onednn_product = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class ConvolutionGradients(NamedTuple):
    """What a gradient pass computed; ``None`` where it was not asked for."""

    source: Tensor | None  # like the source
    weights: Tensor | None  # OHWI, contiguous
    biases: Tensor | None  # [O]


def convolution(
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    window: Window,
    *,
    groups: int = 1,
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO,
    allow_tf32: bool = False,
) -> Tensor:
    """Correlate an image with ``weights``.

    With ``E`` the source, continued beyond its edges by ``edge_mode``, and ``c`` running through the channels of the
    group that ``q`` belongs to::

        Y[n, q, y, x] = biases[q] + Σ(j, i, c) weights[q, j, i, c] · E[n, c, window.y.taps(y)[j], window.x.taps(x)[i]]

    A depthwise convolution of multiplier ``m`` has ``groups = I`` and weights ``[I · m, kh, kw, 1]``.

    Args:
        x: The source, [N, I, window.y.source, window.x.source].
        weights: OHWI, [O, window.y.size, window.x.size, I / groups].
        biases: [O], or ``None`` for 0.
        window: The source pixels that each result pixel reads.
        groups: Number of groups; divides I and O.
        edge_mode: ``ZERO`` (the framework's default) or ``CLAMP``.
        allow_tf32: Whether a GPU may round float32 factors to 10 bits, which is several times as fast.

    Returns:
        [N, O, window.y.result, window.x.result].
    """
    window = _without_idle_stride(window)
    operand = _operand(x, window, edge_mode)
    kernel = weights.permute(0, 3, 1, 2)
    with precision(x, allow_tf32):
        return torch.conv2d(operand.image, kernel, biases, operand.stride, operand.padding, window.dilation, groups)


def convolution_gradient(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    window: Window,
    *,
    groups: int = 1,
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO,
    with_source: bool = True,
    with_parameters: bool = True,
    allow_tf32: bool = False,
) -> ConvolutionGradients:
    """Return the exact adjoint of ``convolution`` with the same windows (MPSCNNConvolutionGradient, macOS 10.13.4).

    With ``G`` the gradient for the result and ``E`` the continued source::

        source[n, c, v, u]  = Σ weights[q, j, i, c] · G[n, q, y, x]   over all (q, j, i, y, x) that read E at (c, v, u)
        weights[q, j, i, c] = Σ(n, y, x) G[n, q, y, x] · E[n, c, window.y.taps(y)[j], window.x.taps(x)[i]]
        biases[q]           = Σ(n, y, x) G[n, q, y, x]

    With ``CLAMP``, what was read outside the source is added to the nearest pixel of the edge.

    Args:
        gradient: The gradient for the result, [N, O, window.y.result, window.x.result].
        x: The source of the forward pass.
        weights: Its weights, OHWI.
        window: Its windows.
        groups: Its number of groups.
        edge_mode: Its edge mode.
        with_source: Whether to compute the gradient for the source.
        with_parameters: Whether to compute those for the weights and biases.
        allow_tf32: Whether a GPU may round float32 factors to 10 bits, which is several times as fast.
    """
    if not (with_source or with_parameters):
        return ConvolutionGradients(None, None, None)
    window = _without_idle_stride(window)
    operand = _operand(x, window, edge_mode)
    kernel = weights.permute(0, 3, 1, 2)
    with precision(x, allow_tf32):
        if with_parameters and _must_step_first(operand, window):
            for_region, _ = _backward(gradient, operand, kernel, window, groups, (with_source, False))
            _, for_kernel = _backward(gradient, _stepped(operand, window), kernel, window, groups, (False, True))
        else:
            for_region, for_kernel = _backward(
                gradient, operand, kernel, window, groups, (with_source, with_parameters)
            )
    if for_region is not None and not operand.is_source:
        for_region = read_adjoint(for_region, window, edge_mode)
    return ConvolutionGradients(
        source=for_region,
        weights=None if for_kernel is None else for_kernel.permute(0, 2, 3, 1).contiguous(),
        # Apart, because the engine takes longer to add them up than a sum of its own does.
        biases=gradient.sum((0, 2, 3)) if with_parameters else None,
    )


def fully_connected(x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Multiply the whole image by ``weights`` (MPSCNNFullyConnected, macOS 10.13).

    ::

        Y[n, q] = biases[q] + Σ(y, x, c) weights[q, y, x, c] · X[n, c, y, x]

    Args:
        x: The source, [N, I, kernel_height, kernel_width]: its size is the kernel's.
        weights: OHWI, [O, kernel_height, kernel_width, I].
        biases: [O], or ``None`` for 0.

    Returns:
        [N, O, 1, 1].
    """
    result = _product(_flat(x), weights.flatten(1), biases)
    return result[:, None, None, :].permute(0, 3, 1, 2)


def fully_connected_gradient(
    gradient: Tensor, x: Tensor, weights: Tensor, *, with_source: bool = True, with_parameters: bool = True
) -> ConvolutionGradients:
    """Return the adjoint of ``fully_connected`` (MPSCNNFullyConnectedGradient, macOS 10.13.4).

    With ``G`` the gradient for the result::

        source[n, c, y, x]  = Σ(q) weights[q, y, x, c] · G[n, q]
        weights[q, y, x, c] = Σ(n) G[n, q] · X[n, c, y, x]
        biases[q]           = Σ(n) G[n, q]

    Args:
        gradient: The gradient for the result, [N, O, 1, 1].
        x: The source of the forward pass, [N, I, kernel_height, kernel_width].
        weights: Its weights, OHWI.
        with_source: Whether to compute the gradient for the source.
        with_parameters: Whether to compute those for the weights and biases.
    """
    incoming = gradient.flatten(1)
    for_source = for_weights = for_biases = None
    if with_source:
        flat = _product(incoming, weights.flatten(1).t())
        for_source = flat.unflatten(1, weights.shape[1:]).permute(0, 3, 1, 2)
    if with_parameters:
        for_weights = _product(incoming.t(), _flat(x).t()).view(weights.shape)
        for_biases = incoming.sum(0)
    return ConvolutionGradients(for_source, for_weights, for_biases)


def sub_pixels(plain: Tensor, factor: int, height: int, width: int) -> Tensor:
    """Spread blocks of channels over blocks of pixels (MPSCNNSubPixelConvolutionDescriptor, macOS 10.13).

    With ``f = factor`` and ``C = channels / f²``, block-major, as TensorFlow's depth_to_space::

        Y[n, c, y, x] = plain[n, C (f (y mod f) + x mod f) + c, y // f, x // f]

    Args:
        plain: [N, f² C, rows, columns].
        factor: The scale factor f.
        height: Rows to return, at most f times those of ``plain``.
        width: Columns likewise.

    Returns:
        [N, C, height, width].
    """
    images, channels, rows, columns = plain.shape
    block = (factor, factor, channels // factor**2)
    pixels = plain.permute(0, 2, 3, 1).unflatten(3, block).transpose(2, 3)
    whole = pixels.reshape(images, rows * factor, columns * factor, block[2]).permute(0, 3, 1, 2)
    return whole[:, :, :height, :width]


def library_padding(window: Window, edge_mode: MPSImageEdgeMode) -> tuple[int, int] | None:
    """Return the padding (vertical, horizontal) that makes a library's convolution read ``window`` from the source.

    ``None`` where there is none: the region must then be read first.
    """
    vertical, horizontal = _padding(window.y), _padding(window.x)
    if vertical is None or horizontal is None:
        return None
    return (vertical, horizontal) if edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source else None


def _padding(axis: Axis) -> int | None:
    # Padding by a whole window and more is legal, but not every engine behind the call takes it.
    return axis.symmetric_padding(axis.extent - 1)


def _without_idle_stride(window: Window) -> Window:
    """Return the same windows, with a horizontal stride of 1 where there is only one column of them.

    That stride means nothing, but where it is 2 or more and the vertical one is 1, oneDNN 3.12 gives wrong rows for
    images of one channel.
    """
    if window.x.result == 1 and window.x.stride > 1 and window.y.stride == 1:
        return replace(window, x=replace(window.x, stride=1))
    return window


class _Operand(NamedTuple):
    """What the engine's convolution is given; pairs are (vertical, horizontal)."""

    image: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]  # zeros on both sides
    is_source: bool  # whether the image is the source as a whole


def _operand(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> _Operand:
    padding = library_padding(window, edge_mode)
    if padding is not None:
        return _Operand(regular(x), window.stride, padding, True)
    return _Operand(regular(read(x, window, edge_mode)), window.stride, (0, 0), False)


def regular(x: Tensor) -> Tensor:
    """Return the same image with the strides of channels-last memory in dimensions of length 1 as well.

    A view may have any stride there. torch rightly takes it for contiguous, but passes the stride on to oneDNN, which
    then gives wrong gradients for weights.
    """
    if 1 not in x.shape or not x.is_contiguous(memory_format=torch.channels_last):
        return x
    _, channels, height, width = x.shape
    return x.as_strided(x.shape, (height * width * channels, 1, width * channels, channels))


def _must_step_first(operand: _Operand, window: Window) -> bool:
    """Whether the weights' gradient must not be computed with a stride.

    For strided 1 by 1 kernels over few channels, oneDNN's x86 code writes past the end of its work space (its issue
    6035, still there in 3.12).
    """
    return window.size == (1, 1) and operand.stride != (1, 1) and operand.image.device.type == "cpu"


def _stepped(operand: _Operand, window: Window) -> _Operand:
    """Give the same 1 by 1 windows a stride of 1: the image is reduced to the pixels that they read."""
    rows = slice(0, (window.y.result - 1) * operand.stride[0] + 1, operand.stride[0])
    columns = slice(0, (window.x.result - 1) * operand.stride[1] + 1, operand.stride[1])
    return operand._replace(image=regular(operand.image[:, :, rows, columns]), stride=(1, 1), is_source=False)


def _backward(
    gradient: Tensor, operand: _Operand, kernel: Tensor, window: Window, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients for the operand's image and for the kernel, OIHW; ``None`` where they are not wanted."""
    if wanted == (False, False):
        return None, None
    for_image, for_kernel, _ = torch.ops.aten.convolution_backward(
        regular(gradient),
        operand.image,
        kernel,
        None,
        operand.stride,
        operand.padding,
        window.dilation,
        False,  # transposed
        (0, 0),
        groups,
        (*wanted, False),
    )
    return for_image, for_kernel


_as_it_is = nullcontext()
_precision_lock = threading.Lock()


def precision(x: Tensor, allow_tf32: bool) -> AbstractContextManager[None]:
    """Return the context in which a convolution of ``x`` is launched."""
    return _float32() if x.is_cuda and x.dtype == torch.float32 and not allow_tf32 else _as_it_is


@contextmanager
def _float32() -> Generator[None]:
    """Keep cuDNN from rounding float32 to TF32, as torch lets it by default.

    torch has only a setting of the whole process for this: it is given back as soon as the work is launched.
    """
    cudnn: Any = torch.backends.cudnn  # its annotations lack `conv`
    setting = cudnn.conv
    with _precision_lock:
        before = setting.fp32_precision
        setting.fp32_precision = "ieee"
        try:
            yield
        finally:
            setting.fp32_precision = before


def _flat(x: Tensor) -> Tensor:
    """Return each image as one row in the order of the weights; free in channels-last memory."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _product(rows: Tensor, columns: Tensor, biases: Tensor | None = None) -> Tensor:
    """Return ``rows @ columns.T + biases``, contiguous: [M, K] by [N, K] gives [M, N]."""
    on_cpu = rows.device.type == "cpu" and rows.dtype == torch.float32
    if on_cpu and _onednn_product is not None and rows.numel():
        return _onednn_product(rows, columns, biases, "none", [], "")
    if biases is None:
        return torch.mm(rows, columns.t())
    return torch.addmm(biases, rows, columns.t())
