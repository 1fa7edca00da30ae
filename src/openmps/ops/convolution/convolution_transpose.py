"""Transposed convolution with its gradients (MPSCNNConvolution.h, macOS 10.13 and 10.15).

The source is taken apart by the stride: ``Z[s i] = X[i]``, zeros between, ``(source - 1) s + 1`` pixels long. The
weights, OHWI ``[O, kernel_height, kernel_width, I / groups]`` with O the channels made here, are correlated with Z as
they are. That is the adjoint of a plain convolution from the result to the source, whose weights are these turned round
with inputs and outputs exchanged: no zero is ever stored.

An axis here counts the pixels of Z: `Axis.offset` is the pixel of Z under the centre of the first window, windows of
neighbouring result pixels are 1 pixel of Z apart, and `Axis.stride` is the distance in Z between two source pixels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from openmps.cpu import CpuChoice
from openmps.ops.convolution.convolution import (
    Contraction,
    ContractionGradient,
    ConvolutionGradients,
    convolution,
    convolution_gradient,
    multiplied,
    with_biases,
)
from openmps.ops.convolution.library_convolution import launching, library_padding, regular
from openmps.ops.geometry import Axis, Window, empty_image, read_adjoint
from openmps.types import MPSImageEdgeMode

_ZERO = MPSImageEdgeMode.ZERO
_FEW_CHANNELS = 8
"""Of a result, whose blocks are put together faster than oneDNN makes them."""


def convolution_transpose(
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    window: Window,
    *,
    groups: int = 1,
    allow_tf32: bool = False,
) -> Tensor:
    """Correlate the source, taken apart by the stride, with ``weights``.

    With ``Z`` as above, 0 outside its pixels, and ``c`` running through the channels of the group of ``q``::

        Y[n, q, y, x] = biases[q] + Σ(j, i, c) weights[q, j, i, c] · Z[n, c, v, u]
        v = y + window.y.first + j window.y.dilation,  u = x + window.x.first + i window.x.dilation

    Args:
        x: The source, [N, I, window.y.source, window.x.source].
        weights: OHWI, [O, window.y.size, window.x.size, I / groups].
        biases: [O], or ``None`` for 0.
        window: Pixels of Z that each result pixel reads.
        groups: Number of groups; divides I and O.
        allow_tf32: Whether a GPU may round float32 factors to 10 bits, which is several times as fast.

    Returns:
        [N, O, window.y.result, window.x.result].
    """
    x, weights = multiplied(x, weights)
    if groups > 1 and x.dtype == torch.float16:
        # The engine rounds sums before the biases are added: with grouped kernels that shows in the last digit.
        x, weights = x.float(), weights.float()
    # Only those source rows and columns that reach any result pixel.
    y, x_axis = _mirrored(window.y), _mirrored(window.x)
    rows, columns = _reaching(y), _reaching(x_axis)
    mirrored = Window(x=_cut(x_axis, columns), y=_cut(y, rows))
    if not rows or not columns:
        return with_biases(empty_image(x, weights.shape[0], window.result).zero_(), biases)
    source = regular(x[:, :, rows.start : rows.stop, columns.start : columns.stop])
    kernel = turned(weights, groups).permute(0, 3, 1, 2)
    padding = library_padding(mirrored, _ZERO)
    with launching(x, allow_tf32):
        if padding is not None:
            own = None if biases is None or biases.dtype != x.dtype else biases
            # The library crops both sides alike; result rows and columns past its own last ones are its output padding.
            axes = zip((mirrored.y, mirrored.x), padding, strict=True)
            extra = [axis.source + 2 * before - axis.read for axis, before in axes]
            is_whole = groups == 1 and padding == (0, 0) and not any(extra)
            if is_whole and kernel.shape[1] <= _FEW_CHANNELS and _is_apart(source, mirrored):
                return _blocks(source, kernel, own)
            result = torch.conv_transpose2d(
                source, kernel, own, mirrored.stride, padding, extra, groups, mirrored.dilation
            )
            return result if own is biases else with_biases(result, biases)
        whole = torch.conv_transpose2d(source, kernel, None, mirrored.stride, 0, 0, groups, mirrored.dilation)
    return with_biases(read_adjoint(whole, mirrored, _ZERO), biases)


def _is_apart(source: Tensor, mirrored: Window) -> bool:
    """Whether each source pixel makes a block of result pixels of its own, and a product of matrices is fastest."""
    is_apart = mirrored.stride == mirrored.size and mirrored.dilation == (1, 1)
    return is_apart and source.device.type == "cpu" and source.dtype == torch.float32 and CpuChoice.BLOCKS.takes_intel


def _blocks(source: Tensor, kernel: Tensor, biases: Tensor | None) -> Tensor:
    """The blocks, by weights ``[I, O, rows, columns]``."""
    images, channels, height, width = source.shape
    _, outputs, rows, columns = kernel.shape
    pixels = source.permute(0, 2, 3, 1).reshape(-1, channels)
    matrix = kernel.permute(0, 2, 3, 1).reshape(channels, -1)
    made = torch.mm(pixels, matrix).view(images, height, width, rows, columns, outputs).transpose(2, 3)
    whole = made.reshape(images, height * rows, width * columns, outputs)
    # Of memory of its own: where nothing had to move it is the product.
    return (whole if biases is None else whole.add_(biases)).permute(0, 3, 1, 2)


def convolution_transpose_gradient(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    window: Window,
    *,
    groups: int = 1,
    with_source: bool = True,
    with_parameters: bool = True,
    with_biases: bool = True,
    allow_tf32: bool = False,
) -> ConvolutionGradients:
    """Return the exact adjoint of ``convolution_transpose`` (MPSCNNConvolutionTransposeGradient, macOS 10.15).

    With ``G`` the gradient for the result, 0 outside its pixels, and ``v``, ``u`` as there::

        source[n, c, b, a]  = Σ(q, j, i) weights[q, j, i, c] · G[n, q, s b - window.y.first - j d, …]   (columns alike)
        weights[q, j, i, c] = Σ(n, y, x) G[n, q, y, x] · Z[n, c, v, u]
        biases[q]           = Σ(n, y, x) G[n, q, y, x]

    Args:
        gradient: The gradient for the result, [N, O, window.y.result, window.x.result].
        x: The source of the forward pass.
        weights: Its weights, OHWI.
        window: Its windows.
        groups: Its number of groups.
        with_source: Whether to compute the gradient for the source.
        with_parameters: Whether to compute those for the weights and biases.
        with_biases: Whether to compute that for the biases, too.
        allow_tf32: Whether a GPU may round float32 factors to 10 bits, which is several times as fast.
    """
    gradient, x, weights = multiplied(gradient, x, weights)
    mirrored = Window(x=_mirrored(window.x), y=_mirrored(window.y))
    kernel = turned(weights, groups)
    for_source = for_weights = for_biases = None
    if with_source:
        for_source = convolution(gradient, kernel, None, mirrored, groups=groups, allow_tf32=allow_tf32)
    if with_parameters:
        # The plain convolution reads the gradient and makes the source: their parts are exchanged.
        for_turned = convolution_gradient(
            x, gradient, kernel, mirrored, groups=groups, with_source=False, with_biases=False, allow_tf32=allow_tf32
        ).weights
        for_weights = None if for_turned is None else turned(for_turned, groups)
    if with_parameters and with_biases:
        half = gradient.dtype == torch.float16
        for_biases = gradient.sum((0, 2, 3), dtype=torch.float32 if half else gradient.dtype)
    return ConvolutionGradients(for_source, for_weights, for_biases)


def turned(weights: Tensor, groups: int) -> Tensor:
    """Return the weights of the plain convolution from the result to the source; its own inverse.

    OHWI ``[O, kh, kw, I / groups]`` gives ``[I, kh, kw, O / groups]``, contiguous: in each group inputs and outputs are
    exchanged, and the kernel is turned by 180 degrees.
    """
    _, height, width, inputs = weights.shape
    grouped = weights.unflatten(0, (groups, -1)).flip(2, 3)
    return grouped.permute(0, 4, 2, 3, 1).reshape(groups * inputs, height, width, -1).contiguous()


def _mirrored(axis: Axis) -> Axis:
    """Return the windows of the plain convolution: from the result, which it reads, to the source, which it makes."""
    offset = 1 - axis.extent % 2 - axis.offset
    return Axis(axis.result, axis.source, axis.size, axis.stride, axis.dilation, offset)


def _reaching(mirrored: Axis) -> range:
    """Source pixels of which at least the first to the last tap overlap the result."""
    begin = max(0, -((mirrored.first + mirrored.extent - 1) // mirrored.stride))
    end = min(mirrored.result, (mirrored.source - 1 - mirrored.first) // mirrored.stride + 1)
    return range(begin, max(begin, end))


def _cut(mirrored: Axis, some: range) -> Axis:
    return replace(mirrored, result=max(1, len(some)), offset=mirrored.offset + some.start * mirrored.stride)


class ConvolutionTranspose(Contraction, of=convolution_transpose):
    """`convolution_transpose` of an image, by weights and biases, which may be left out."""

    window: Window
    groups: int = 1
    allow_tf32: bool = False


class ConvolutionTransposeGradient(ContractionGradient, of=convolution_transpose_gradient):
    """`convolution_transpose_gradient`."""

    window: Window
    groups: int = 1
    allow_tf32: bool = False
