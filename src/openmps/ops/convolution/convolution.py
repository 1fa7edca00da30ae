"""Convolution and fully connected layers with their gradients (MPSCNNConvolution.h, macOS 10.13 and 10.13.4).

Weights are OHWI, ``[O, kernel_height, kernel_width, I / groups]``. Seen as ``[O, I / groups, kernel_height,
kernel_width]`` they are the engine's channels-last weights as they lie in memory: no call here copies them.
Convolution is correlation: the kernel is not turned round. Parameter gradients are sums over the batch and all pixels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.convolution.library_convolution import backward, launching, operand_of, placed, stepped
from openmps.ops.convolution.patch_convolution import small_convolution
from openmps.ops.convolution.pixel_products import pixel_convolution, pixel_gradients
from openmps.ops.convolution.triton_forms import (
    MOST_PRODUCTS,
    depthwise_gradient,
    exact_convolution,
    exact_source_gradient,
    few_outputs,
    few_outputs_gradient,
    runs_in_triton,
    small_gradients,
)
from openmps.ops.convolution.weights_gradient import weights_gradient, weights_gradient_in_place
from openmps.ops.geometry import Window, read_adjoint
from openmps.ops.matrix.products import product, product_of_rows, two_products, wide_product
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode

_FEW_CHANNELS = 4
"""Of a group whose gradients of biases oneDNN makes with those of weights."""


class ConvolutionGradients(NamedTuple):
    """What a gradient pass computed; ``None`` where it was not asked for."""

    source: Tensor | None  # like the source
    weights: Tensor | None  # OHWI, contiguous
    biases: Tensor | None  # [O]


def take_weights(
    given_weights: Tensor | None,
    given_biases: Tensor | None,
    weights: Tensor,
    biases: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    folded_weights: Tensor | None,
    folded_biases: Tensor | None,
    rounded: tuple[Tensor, ...],
) -> None:
    """Write given numbers over weights, OHWI, and biases, and what follows from these into memory that stays.

    With ``scale`` and ``shift``, one number an output channel, ``folded_weights = weights scale`` and
    ``folded_biases = biases scale + shift``. ``rounded`` are those weights, or the folded ones, rounded to float16.
    What is None stays as it is.
    """
    if given_weights is not None:
        weights.view(-1).copy_(given_weights)
    if given_biases is not None and biases is not None:
        biases.copy_(given_biases)
    used = weights
    if scale is not None and shift is not None and folded_weights is not None and folded_biases is not None:
        used = torch.mul(weights, scale.view(-1, 1, 1, 1), out=folded_weights)
        if biases is None:
            folded_biases.copy_(shift)
        else:
            torch.mul(biases, scale, out=folded_biases).add_(shift)
    for each in rounded:
        each.copy_(used if each.dtype == torch.float16 else used.to(torch.float16))


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
    x, weights = multiplied(x, weights)
    if groups == 1 and (x.dtype != torch.float32 or not allow_tf32):
        for form in (small_convolution, exact_convolution):
            if (found := form(x, weights, biases, window, edge_mode)) is not None:
                return found
    if (found := pixel_convolution(x, weights, biases, window, groups)) is not None:
        return found
    window, padding = placed(window, edge_mode)
    operand = operand_of(x, window, padding, edge_mode)
    kernel = weights.permute(0, 3, 1, 2)
    own = None if biases is None or biases.dtype != x.dtype else biases
    with launching(x, allow_tf32):
        result = torch.conv2d(operand.image, kernel, own, operand.stride, operand.padding, window.dilation, groups)
    return result if own is biases else with_biases(result, biases)


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
    with_biases: bool = True,
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
        with_biases: Whether to compute that for the biases, too.
        allow_tf32: Whether a GPU may round float32 factors to 10 bits, which is several times as fast.
    """
    if not (with_source or with_parameters):
        return ConvolutionGradients(None, None, None)
    if groups == 1 and not allow_tf32:
        wanted = with_source, with_parameters, with_parameters and with_biases
        if (made := small_gradients(gradient, x, weights, window, edge_mode, wanted)) is not None:
            return ConvolutionGradients(*made)
    gradient, x, weights = multiplied(gradient, x, weights)
    if with_parameters and x.dtype == torch.float16:
        return _half_gradients(gradient, x, weights, window, groups, edge_mode, (with_source, with_biases))
    if not allow_tf32 and groups == 1 and with_parameters and runs_in_triton(gradient, x, window, edge_mode):
        wanted = with_source, with_biases
        found = _exact_gradients(gradient, x, weights, window, edge_mode, wanted)
        if found is not None:
            return found
    products = pixel_gradients(gradient, x, weights, window, groups, (with_source, with_parameters))
    if products is not None:
        return ConvolutionGradients(*products, gradient.sum((0, 2, 3)) if with_parameters and with_biases else None)
    wanted = with_source, with_parameters, with_parameters and with_biases
    return _library_gradients(gradient, x, weights, window, groups, edge_mode, wanted, allow_tf32=allow_tf32)


def _library_gradients(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    window: Window,
    groups: int,
    edge_mode: MPSImageEdgeMode,
    wanted: tuple[bool, bool, bool],
    *,
    allow_tf32: bool,
) -> ConvolutionGradients:
    """The gradients that are wanted for source, weights and biases, by the engine's libraries."""
    with_source, with_parameters, with_biases = wanted
    window, padding = placed(window, edge_mode)
    operand = operand_of(x, window, padding, edge_mode)
    kernel = weights.permute(0, 3, 1, 2)
    with launching(x, allow_tf32):
        # For strided 1 by 1 kernels over few channels, oneDNN's x86 code for the weights' gradient writes past the end
        # of its work space (its issue 6035, still there in 3.12).
        has_fault = window.size == (1, 1) and operand.stride != (1, 1) and operand.image.device.type == "cpu"
        for_biases = None
        if with_parameters and has_fault:
            for_region, *_ = backward(gradient, operand, kernel, window, groups, (with_source, False, False))
            _, for_kernel, _ = backward(
                gradient, stepped(operand, window), kernel, window, groups, (False, True, False)
            )
        else:
            # oneDNN adds the biases up on its way where it sums few channels; else a sum of its own is faster.
            at_once = with_biases and x.shape[1] // groups <= _FEW_CHANNELS and not x.is_cuda
            made = with_source, with_parameters, at_once
            for_region, for_kernel, for_biases = backward(gradient, operand, kernel, window, groups, made)
        if for_biases is None and with_biases:
            for_biases = gradient.sum((0, 2, 3))
    if for_region is not None and not operand.is_source:
        for_region = read_adjoint(for_region, window, edge_mode)
    return ConvolutionGradients(
        source=for_region,
        weights=None if for_kernel is None else for_kernel.permute(0, 2, 3, 1).contiguous(),
        biases=for_biases,
    )


def _exact_gradients(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    window: Window,
    edge_mode: MPSImageEdgeMode,
    wanted: tuple[bool, bool],
) -> ConvolutionGradients | None:
    """The gradients from float32 operands of one group in Triton; None if they cannot be, or are many sums."""
    if x.dtype != torch.float32 or gradient.shape[2] * gradient.shape[3] * len(x) * weights.numel() > MOST_PRODUCTS:
        return None
    for_weights = weights_gradient_in_place(gradient, x, window, edge_mode)
    if for_weights is None:
        return None
    source = exact_source_gradient(gradient, weights, window) if wanted[0] else None
    if wanted[0] and source is None:
        more: Any = {"edge_mode": edge_mode, "with_parameters": False}
        source = convolution_gradient(gradient, x, weights, window, **more).source
    return ConvolutionGradients(source, for_weights, gradient.sum((0, 2, 3)) if wanted[1] else None)


def _half_gradients(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    window: Window,
    groups: int,
    edge_mode: MPSImageEdgeMode,
    wanted: tuple[bool, bool],
) -> ConvolutionGradients:
    """The gradients from float16 operands: the source's is float16, those of weights and biases are float32 sums."""
    more: Any = {"groups": groups, "edge_mode": edge_mode}
    source = None
    if wanted[0]:
        source = convolution_gradient(gradient, x, weights, window, with_parameters=False, **more).source
    if groups == 1:
        for_weights = weights_gradient(gradient, x, window, edge_mode)
    elif (found := depthwise_gradient(gradient, x, window, groups, edge_mode)) is not None:
        for_weights = found
    else:
        wide = gradient.float(), x.float(), weights.float()
        for_weights = convolution_gradient(*wide, window, with_source=False, **more).weights
    for_biases = gradient.sum((0, 2, 3), dtype=torch.float32) if wanted[1] else None
    return ConvolutionGradients(source, for_weights, for_biases)


def fully_connected(x: Tensor, weights: Tensor, biases: Tensor | None, *, wide: bool = False) -> Tensor:
    """Multiply the whole image by ``weights`` (MPSCNNFullyConnected, macOS 10.13).

    ::

        Y[n, q] = biases[q] + Σ(y, x, c) weights[q, y, x, c] · X[n, c, y, x]

    Args:
        x: The source, [N, I, kernel_height, kernel_width]: its size is the kernel's.
        weights: OHWI, [O, kernel_height, kernel_width, I].
        biases: [O], or ``None`` for 0.
        wide: Whether float16 operands give their sums as they are in float32.

    Returns:
        [N, O, 1, 1].
    """
    rows, columns = _flat(x), weights.flatten(1)
    if (found := few_outputs(rows, columns, biases, wide=wide)) is not None:
        return found[:, None, None, :].permute(0, 3, 1, 2)
    rows, columns = multiplied(rows, columns)
    if wide and rows.dtype == torch.float16:
        sums = wide_product(rows, columns.t())
        result = sums if biases is None else sums.add_(biases)
    else:
        result = product_of_rows(rows, columns, biases)
    return result[:, None, None, :].permute(0, 3, 1, 2)


def fully_connected_gradient(
    gradient: Tensor,
    x: Tensor,
    weights: Tensor,
    *,
    with_source: bool = True,
    with_parameters: bool = True,
    with_biases: bool = True,
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
        with_biases: Whether to compute that for the biases, too.
    """
    wanted = with_source, with_parameters, with_biases
    incoming, rows, columns = gradient.flatten(1), _flat(x), weights.flatten(1)
    for_source = for_weights = for_biases = None
    if (found := few_outputs_gradient(incoming, rows, columns, wanted)) is not None:
        for_source, for_weights, for_biases = found
    else:
        incoming, rows, columns = multiplied(incoming, rows, columns)
        if with_source and with_parameters and x.is_cuda and rows.dtype == torch.float32:
            for_source, for_weights = two_products((incoming, columns), (incoming.t(), rows))
        else:
            for_source = product(incoming, columns) if with_source else None
            if with_parameters:
                for_weights = (wide_product if rows.dtype == torch.float16 else product)(incoming.t(), rows)
        if with_parameters and with_biases:
            for_biases = incoming.sum(0, dtype=torch.float32 if rows.dtype == torch.float16 else rows.dtype)
    if for_source is not None:
        for_source = for_source.unflatten(1, weights.shape[1:]).permute(0, 3, 1, 2)
    return ConvolutionGradients(
        for_source, None if for_weights is None else for_weights.view(weights.shape), for_biases
    )


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


def multiplied(*operands: Tensor) -> tuple[Tensor, ...]:
    """Return operands as the engine multiplies them: all float16 where a GPU has them so, else no float16."""
    halves = sum(each.dtype == torch.float16 for each in operands)
    if not halves or (halves == len(operands) and operands[0].is_cuda):
        return operands
    return tuple(each.to(torch.float32) for each in operands)


def with_biases(result: Tensor, biases: Tensor | None) -> Tensor:
    """Add biases to a result [N, O, H, W] in place: float32 to a float16 result too, rounded once."""
    return result if biases is None else result.add_(biases.view(-1, 1, 1))


def _flat(x: Tensor) -> Tensor:
    """Return each image as one row in the order of the weights; free in channels-last memory."""
    return x.permute(0, 2, 3, 1).flatten(1)


class Contraction(Op, kind=Kind.CONTRACTION, half=True):
    """The base of sums of products: float16 operands come as they are stored.

    A GPU multiplies float16 by float16, sums in float32 and rounds once; the CPU, which has no fast float16, multiplies
    the same numbers in float32.
    """


class ContractionGradient(Contraction, kind=Kind.CONTRACTION_GRADIENT, results=3):
    """The base of gradients of a gradient, the forward source and the weights: for source, weights and biases."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> ConvolutionGradients:
        """See the function; what nobody reads is left out."""
        said = {"with_source": wanted[0], "with_parameters": any(wanted[1:]), "with_biases": wanted[2]}
        return self._function(*operands, **said, **vars(self))


class Convolution(Contraction, of=convolution):
    """`convolution` of an image, by weights and biases, which may be left out."""

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int = 1
    allow_tf32: bool = False


class ConvolutionGradient(ContractionGradient, of=convolution_gradient):
    """`convolution_gradient`."""

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int = 1
    allow_tf32: bool = False


class FullyConnected(Contraction, of=fully_connected):
    """`fully_connected` of an image, by weights and biases, which may be left out."""

    wide: bool = False


class FullyConnectedGradient(ContractionGradient, of=fully_connected_gradient):
    """`fully_connected_gradient`."""


class SubPixels(Op, of=sub_pixels, kind=Kind.STORAGE, half=True, gives_view=True):
    """`sub_pixels` of a plain convolution's result."""

    factor: int
    height: int
    width: int


class CopyNumbers(Op, kind=Kind.UPDATE, has_effect=True):
    """Numbers written over others, in pairs of operands: what is written, what it becomes."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The first of each pair."""
        return range(0, operands, 2)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Copy."""
        for numbers, given in zip(operands[::2], operands[1::2], strict=True):
            numbers.view(-1).copy_(given)


class TakeWeights(Op, of=take_weights, kind=Kind.UPDATE, has_effect=True):
    """New weights and biases, and what follows from them: `take_weights` of the operands."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """Weights and biases, folded and rounded ones too."""
        return (2, 3, 6, 7, 8)
