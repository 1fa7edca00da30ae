"""Convolutions with what stands behind them as one operation: a max pooling, and its gradient; or GeLU.

Each equals `ops.convolution` and `ops.pointwise.layer_end` one after the other, rounded to float16 where that was
stored so. Few channels are one kernel in Triton each: neither the image between nor its gradient exists there. The
gradient does so where nobody asks for that of the source, as in a network's first layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import Contraction, Convolution, ConvolutionGradient, convolution, multiplied
from openmps.ops.convolution.patch_convolution import GELU, small_convolution
from openmps.ops.geometry import Window, pitch_of
from openmps.ops.op import Kind
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient
from openmps.ops.pointwise.neuron import Neuron, neuron
from openmps.types import MPSImageEdgeMode

_MOST_FACTORS, _MOST_OUTPUTS, _MOST_NUMBERS = 64, 64, 2**30
"""Numbers of a window, and output channels, whose sums fit into the registers of a program, and numbers of images."""


class ConvolutionEnd(Contraction, results=2):
    """`LayerEnd` of `Convolution`, without ReLU and dropout: of an image, weights, and biases or None."""

    convolution: Convolution
    end: LayerEnd
    rounds: bool
    """Whether the convolution's result was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See the class."""
        x, weights = multiplied(*operands[:2])
        window, op = self.end.window, self.convolution
        if window is not None and _is_plain(op) and triton.runs_on(x.device):
            from openmps.ops.triton.convolution import convolution_pooled as kernels

            if kernels.takes(x, weights, op.window, window):
                return kernels.pooled(x, weights, operands[2], op.window, window)
        y = op.run((True,), x, weights, None)
        assert isinstance(y, Tensor)
        return self.end.run(wanted, y.to(torch.float16) if self.rounds else y, operands[2])


class ConvolutionEndGradient(Contraction, kind=Kind.CONTRACTION_GRADIENT, results=4):
    """`ConvolutionGradient` of `LayerEndGradient`: for source, weights and biases, and the sums of the latter.

    Operands are the gradient for the pooled image, what the forward pass kept, the source and the weights.
    """

    end: LayerEndGradient
    convolution: ConvolutionGradient
    rounds: bool
    """Whether the gradient of the convolution's result was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor | None, ...]:
        """See the class."""
        gradient, taps, x, weights = operands
        if wanted[1] and not (wanted[0] or wanted[2]):
            found = self._at_once(operands, with_sums=wanted[3])
            if found is not None:
                return None, found[0], None, found[1]
        flow, sums = self.end.run((any(wanted[:3]), wanted[3]), gradient, taps)
        if flow is None or not any(wanted[:3]):
            return None, None, None, sums
        flow = flow.to(torch.float16) if self.rounds else flow
        return (*self.convolution.run(wanted[:3], *multiplied(flow, x, weights)), sums)

    def _at_once(self, operands: Sequence[Tensor], *, with_sums: bool) -> tuple[Tensor, Tensor | None] | None:
        """The weights' gradient in Triton, and the sums where they are asked for; None where it is not for these."""
        (gradient, taps, x, weights), pool, op = operands, self.end.window, self.convolution
        pitches = [pitch_of(each) for each in (gradient, taps, x)]
        is_moved = gradient.dtype == torch.float16 or not self.rounds
        if pool is None or not _is_plain(op) or not triton.runs_on(x.device) or not is_moved or None in pitches[:2]:
            return None
        if pitches[2] is not None and _can_sum(gradient, x, weights):
            from openmps.ops.triton.pointwise.layer_end import layer_end_weights_gradient as sums_at_once

            share = self.end.keep_probability
            return sums_at_once((gradient, taps, x), pitches, weights.shape, op.window, pool, share)
        from openmps.ops.triton.convolution import convolution_tap_rows as kernels

        spread = kernels.Spread(gradient, taps, pool)
        is_for = not with_sums and self.end.keep_probability == 1.0 and kernels.takes_spread(spread, x, op.window)
        return (kernels.weights_gradient(spread, x, op.window), None) if is_for else None


class GeluConvolution(Contraction):
    """`convolution` of an image by weights and biases, which may be left out, rounded if it was stored so, then GeLU.

    Few channels are one kernel in Triton.
    """

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int
    allow_tf32: bool
    neuron: Neuron
    rounds: bool
    """Whether the convolution's result was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        x, weights, biases = operands
        x, weights = multiplied(x, weights)
        if self.groups == 1 and (self.rounds or x.dtype == torch.float32) and not self._by_library(x):
            found = small_convolution(x, weights, biases, self.window, self.edge_mode, GELU)
            if found is not None:
                return found
        more: Any = {"groups": self.groups, "edge_mode": self.edge_mode, "allow_tf32": self.allow_tf32}
        y = convolution(x, weights, biases, self.window, **more)
        y = y.to(torch.float16) if self.rounds else y
        return neuron(y, self.neuron.function, self.neuron.a, self.neuron.b, self.neuron.c)

    def _by_library(self, x: Tensor) -> bool:
        """Whether factors are rounded to TF32."""
        return self.allow_tf32 and x.dtype == torch.float32


def _can_sum(gradient: Tensor, x: Tensor, weights: Tensor) -> bool:
    """Whether the sums of a window's numbers by output channels fit into the registers of a program."""
    outputs, *factors = weights.shape
    fits = outputs <= _MOST_OUTPUTS and math.prod(factors) <= _MOST_FACTORS
    is_float = {gradient.dtype, x.dtype} <= {torch.float16, torch.float32}
    return fits and is_float and 0 < max(x.numel(), gradient.numel()) < _MOST_NUMBERS


def _is_plain(op: Convolution | ConvolutionGradient) -> bool:
    """Whether a convolution has one group, and zeros outside the source if it reads there."""
    return op.groups == 1 and (op.edge_mode == MPSImageEdgeMode.ZERO or not op.window.leaves_source)
