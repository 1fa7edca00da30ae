"""Convolutions whose weights are bits, and optionally whose source is (MPSCNNConvolution.h, macOS 10.13).

Bits are multiplied as float32 numbers: an engine's convolution is far faster than counting bits with tensor operations,
and sums of up to 2**24 numbers of magnitude 1 are exact in float32.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.convolution.convolution import convolution, fully_connected
from openmps.ops.geometry import Axis, Window, read
from openmps.ops.op import Kind, Op
from openmps.types import MPSCNNBinaryConvolutionType as Type
from openmps.types import MPSImageEdgeMode


class BinaryTerms(NamedTuple):
    """What surrounds the sum of a binary convolution; ``None`` is 0 for a bias and 1 for a scale."""

    input_bias: Tensor | None = None  # [I], added to the source first
    input_scale: Tensor | None = None  # [I], multiplied with it next
    output_scale: Tensor | None = None  # [O], multiplied with the sum
    output_bias: Tensor | None = None  # [O], added last


NO_TERMS = BinaryTerms()


def binary_weights(bits: Tensor, kind: Type) -> Tensor:
    """The float32 numbers that bits (0 or 1, any shape) stand for: -1 and 1, or 0 and 1 with ``AND``."""
    numbers = bits.to(torch.float32)
    return numbers if kind == Type.AND else numbers.mul_(2.0).sub_(1.0)


class Border(Enum):
    """What lies beyond the edge of an image whose bits are read, where the edge mode is ``ZERO``."""

    NUMBERS = auto()
    """Numbers of 0, with the terms: a bit of 1 without them."""
    ZERO_BITS = auto()
    """Bits of 0."""
    NOTHING = auto()
    """Nothing: these taps add nothing."""


def binary_convolution(
    x: Tensor,
    weights: Tensor,
    window: Window,
    kind: Type,
    *,
    terms: BinaryTerms = NO_TERMS,
    use_beta: bool = False,
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO,
    border: Border = Border.NUMBERS,
) -> Tensor:
    """Correlate an image with bits.

    With ``E`` the source, continued beyond its edges by ``edge_mode``, and ``t = (E + input_bias) * input_scale``::

        BINARY_WEIGHTS  S = Σ(j, i, c) weights[q, j, i, c] · t[c]
        XNOR            S = Σ(j, i, c) weights[q, j, i, c] · (t[c] < 0 ? -1 : 1)
        AND             S = Σ(j, i, c) weights[q, j, i, c] · (t[c] < 0 ? 0 : 1)
        Y[n, q, y, x] = S · output_scale[q] · beta[n, y, x] + output_bias[q]

    The source is continued first: beyond the edge of ``ZERO``, ``t`` is ``input_bias * input_scale``, whose bit is 1 if
    there are no terms. NaN and -0 are not below 0: their bit is 1. XNOR and AND give exact integers for up to 2**24
    products.

    Args:
        x: The source, [N, I, window.y.source, window.x.source].
        weights: The numbers of `binary_weights`, OHWI, [O, window.y.size, window.x.size, I].
        window: The source pixels that each result pixel reads.
        kind: What is multiplied.
        terms: Biases and scales.
        use_beta: Whether ``beta`` is the mean of `mean_magnitude` over the window instead of 1.
        edge_mode: ``ZERO`` (the framework's default) or ``CLAMP``.
        border: What XNOR and AND take for the bits beyond the edge of ``ZERO``.

    Returns:
        [N, O, window.y.result, window.x.result].
    """
    result = _sum(x, weights, window, kind, terms, edge_mode, border)
    if terms.output_scale is not None:
        result = result.mul_(_row(terms.output_scale))
    if use_beta:
        # The mean over every window; always divided by the number of taps.
        ones = x.new_ones((1, *window.size, 1))
        total = convolution(mean_magnitude(x, terms), ones, None, window, edge_mode=edge_mode)
        result = result.mul_(total.div_(window.y.size * window.x.size))
    return result if terms.output_bias is None else result.add_(_row(terms.output_bias))


def mean_magnitude(x: Tensor, terms: BinaryTerms) -> Tensor:
    """``A[n, y, x] = (1 / I) Σ(c) |(X + input_bias) * input_scale|``, [N, 1, H, W]."""
    return _with_input_terms(x, terms).abs().mean(1, keepdim=True)


def _sum(
    x: Tensor,
    weights: Tensor,
    window: Window,
    kind: Type,
    terms: BinaryTerms,
    edge_mode: MPSImageEdgeMode,
    border: Border,
) -> Tensor:
    if kind == Type.BINARY_WEIGHTS and terms.input_bias is None and terms.input_scale is None:
        return _correlation(x, weights, window, edge_mode, is_integral=False)
    inside = Window(x=_over_region(window.x), y=_over_region(window.y))
    if kind != Type.BINARY_WEIGHTS and border is not Border.NUMBERS and edge_mode == MPSImageEdgeMode.ZERO:
        outside = -1.0 if kind == Type.XNOR and border is Border.ZERO_BITS else 0.0
        region = read(_bits(_with_input_terms(x, terms), kind).sub_(outside), window, edge_mode).add_(outside)
        return _correlation(region, weights, inside, edge_mode, is_integral=True)
    # What follows turns the zeros beyond the edge into other numbers, so they are read before.
    region = _with_input_terms(read(x, window, edge_mode), terms)
    if kind == Type.BINARY_WEIGHTS:
        return _correlation(region, weights, inside, edge_mode, is_integral=False)
    return _correlation(_bits(region, kind), weights, inside, edge_mode, is_integral=True)


def _bits(numbers: Tensor, kind: Type) -> Tensor:
    """1 for what is not below 0; 0 for what is, -1 for XNOR."""
    bits = torch.logical_not(numbers < 0).to(numbers.dtype)
    return bits if kind == Type.AND else bits.mul_(2.0).sub_(1.0)


def _correlation(
    x: Tensor, weights: Tensor, window: Window, edge_mode: MPSImageEdgeMode, *, is_integral: bool
) -> Tensor:
    if window.source == window.size and window.result == (1, 1) and not window.leaves_source:
        result = fully_connected(x, weights, None)
    else:
        # Numbers of magnitude 1 lose nothing in TF32.
        result = convolution(x, weights, None, window, edge_mode=edge_mode, allow_tf32=is_integral)
    # Fast convolution algorithms pass through fractions on their way to an integer.
    return result.round_() if is_integral else result


def _over_region(axis: Axis) -> Axis:
    """The same windows over the region that they read, as `read` gives it."""
    return Axis(axis.read, axis.result, axis.size, axis.stride, axis.dilation, offset=axis.extent // 2)


def _with_input_terms(x: Tensor, terms: BinaryTerms) -> Tensor:
    if terms.input_bias is not None:
        x = x + _row(terms.input_bias)
    return x if terms.input_scale is None else x * _row(terms.input_scale)


def _row(numbers: Tensor) -> Tensor:
    return numbers.view(1, -1, 1, 1)


class BinaryConvolution(Op, kind=Kind.CONTRACTION):
    """`binary_convolution` of a source, weights and the four terms, None for those that are left out."""

    window: Window
    edge_mode: MPSImageEdgeMode
    type: Type
    use_beta: bool
    border: Border = Border.NUMBERS

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `binary_convolution`."""
        x, weights, *terms = operands
        return binary_convolution(
            x,
            weights,
            self.window,
            self.type,
            terms=BinaryTerms(*terms),
            use_beta=self.use_beta,
            edge_mode=self.edge_mode,
            border=self.border,
        )
