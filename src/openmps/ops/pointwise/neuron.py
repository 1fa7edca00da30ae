"""Neurons: pointwise activations and their derivatives (MPSCNNNeuron.h, MPSCNNNeuronType.h, macOS 10.13; GeLU 10.15).

Each function returns a new tensor in the memory format of ``x``, also for the neuron that does nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from openmps.cpu import CpuChoice
from openmps.errors import MPSArgumentError
from openmps.ops import triton
from openmps.ops.op import Op
from openmps.types import MPSCNNNeuronType

_FEW_CHANNELS = 12
"""Fewer are many times slower on the CPU where each has a number of its own."""


def neuron(x: Tensor, kind: MPSCNNNeuronType, a: float, b: float, c: float, data: Tensor | None = None) -> Tensor:
    """``f(x)`` of the neuron ``kind``.

    ==============  ==================================  ==================================
    kind            f(x)                                f'(x)
    ==============  ==================================  ==================================
    NONE            x                                   1
    RELU            x >= 0 ? x : a*x                    x >= 0 ? 1 : a
    LINEAR          a*x + b                             a
    SIGMOID         s = 1 / (1 + e^-x)                  s * (1 - s)
    HARD_SIGMOID    clamp(a*x + b, 0, 1)                0 <= a*x + b <= 1 ? a : 0
    TANH            a * tanh(b*x)                       a * b * (1 - tanh(b*x)^2)
    ABSOLUTE        abs(x)                              sign(x), 0 at 0
    SOFT_PLUS       a * log(1 + e^(b*x))                a * b * sigmoid(b*x)
    SOFT_SIGN       x / (1 + abs(x))                    1 / (1 + abs(x))^2
    ELU             x >= 0 ? x : a * (e^x - 1)          x >= 0 ? 1 : a * e^x
    PRELU           x >= 0 ? x : data[channel] * x      x >= 0 ? 1 : data[channel]
    RELU_N          v = min(x >= 0 ? x : a*x, b)        v >= b ? 0 : (x >= 0 ? 1 : a)
    POWER           (a*x + b)^c                         a * c * (a*x + b)^(c - 1)
    EXPONENTIAL     c^(a*x + b), c = -1 for base e      a * ln(c) * f(x)
    LOGARITHM       log_c(a*x + b), c = -1 for base e   a / (ln(c) * (a*x + b))
    GELU            x * P, P = (1 + erf(x / sqrt 2))/2  P + x * e^(-x^2 / 2) / sqrt(2 pi)
    ==============  ==================================  ==================================

    ``data`` holds the ``a`` of each channel of ``x`` for PRELU. A NaN stays a NaN. A negative base of POWER with a
    broken exponent gives NaN.
    """
    return _row(kind).function(x, _Parameters(a, b, c, data))


def neuron_gradient(
    gradient: Tensor,
    x: Tensor,
    kind: MPSCNNNeuronType,
    a: float,
    b: float,
    c: float,
    data: Tensor | None = None,
) -> Tensor:
    """``gradient * f'(x)``, with the derivatives of ``neuron``'s table; ``x`` is the forward source.

    At 0 the rectifying neurons have the derivative of the positive side, and ABSOLUTE has 0.
    """
    row, given = _row(kind), _Parameters(a, b, c, data)
    if triton.runs_on(x.device):
        from openmps.ops.triton.pointwise import neuron as kernels

        if kernels.takes(gradient, x, kind, c):
            slopes = _slopes(x, given) if kind is MPSCNNNeuronType.PRELU else None
            return kernels.neuron_gradient(gradient, x, kind, a, b, slopes)
    return row.gradient(gradient, x, given)


def replace_nan(x: Tensor, number: float) -> Tensor:
    """``number`` where ``x`` is NaN."""
    return torch.where(torch.isnan(x), x.new_full((), number), x)


def printed_gelu_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """``gradient (P + sqrt(2 / pi) x e^(-x^2 / 2))``: as MPSCNNNeuron.h prints it, but for a parenthesis too many.

    The derivative of `neuron` has half of the second term.
    """
    slope = torch.special.erf(x * math.sqrt(0.5)).add_(1.0).mul_(0.5)
    return slope.addcmul_(x.square().mul_(-0.5).exp_(), x, value=math.sqrt(2.0 / math.pi)).mul_(gradient)


_ONE_OPERATION = frozenset(
    {
        *(MPSCNNNeuronType.NONE, MPSCNNNeuronType.RELU, MPSCNNNeuronType.SIGMOID, MPSCNNNeuronType.ABSOLUTE),
        MPSCNNNeuronType.GELU,
    }
)


class _Parameters(NamedTuple):
    a: float
    b: float
    c: float
    data: Tensor | None


@dataclass(frozen=True, slots=True)
class _Row:
    function: Callable[[Tensor, _Parameters], Tensor]
    gradient: Callable[[Tensor, Tensor, _Parameters], Tensor]


def _row(kind: MPSCNNNeuronType) -> _Row:
    row = _NEURONS.get(kind)
    if row is None:
        rule = "must be a neuron of MPSCNNNeuronType"
        raise MPSArgumentError("MPSNNNeuronDescriptor", "neuron_type", rule, repr(kind))
    return row


# A comparison and a selection are many times slower on the CPU than torch's activations, which read each operand once.
# Those turn at x > 0 or x <= 0: a threshold moved by the smallest step makes them turn at x >= 0.


def _smallest_step(x: Tensor) -> float:
    """The smallest positive number of ``x``'s type, or the smallest normal one where this thread flushes the others."""
    information = torch.finfo(x.dtype)
    keeps_subnormals = sys.float_info.min * 0.5 > 0.0
    return information.smallest_normal * (information.eps if keeps_subnormals else 1.0)


def _zero_made_positive(x: Tensor) -> Tensor:
    """``x`` with its zeros a step above zero; every other number keeps its sign, and its value but for rounding."""
    return x + _smallest_step(x)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale


def _times(x: Tensor, factor: float) -> Tensor:
    """``x``, multiplied in place."""
    return x if factor == 1.0 else x.mul_(factor)


_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def _in_place(backward: Callable[..., Tensor], gradient: Tensor, result: Tensor) -> Tensor:
    """The gradient of a function that its result tells, in the memory of that result: it is our own."""
    if gradient.dtype != result.dtype or gradient.shape != result.shape:
        return backward(gradient, result, grad_input=torch.empty_like(result))
    return backward(gradient, result, grad_input=result)


def _tanh_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    """By ``1 - tanh(y)^2``, or ``4 s (1 - s)`` with ``s = sigmoid(2 y)`` where MKL's tanh is slow: not on Intel's."""
    if x.is_cuda or CpuChoice.TANH.takes_intel:
        return _times(_in_place(_tanh_backward, gradient, torch.tanh(_scaled(x, p.b))), p.a * p.b)
    return _times(_in_place(_sigmoid_backward, gradient, (x * (2.0 * p.b)).sigmoid_()), 4.0 * p.a * p.b)


def _affine(x: Tensor, scale: float, bias: float) -> Tensor:
    return x * scale if bias == 0.0 else (x * scale).add_(bias)


def _linear(x: Tensor, scale: float, bias: float) -> Tensor:
    """`_affine` in one pass, which may round once instead of twice."""
    return x * scale if bias == 0.0 else torch.add(torch.full((), bias, dtype=x.dtype), x, alpha=scale)


def _rectify(x: Tensor, slope: float) -> Tensor:
    return x.clamp_min(0.0) if slope == 0.0 else functional.leaky_relu(x, slope)


def _rectify_gradient(gradient: Tensor, x: Tensor, slope: float) -> Tensor:
    if slope == 0.0:
        return torch.ops.aten.threshold_backward(gradient, x, -_smallest_step(x))
    return torch.ops.aten.leaky_relu_backward(gradient, _zero_made_positive(x), slope, False)


def _hard_sigmoid_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    value = _affine(x, p.a, p.b)
    above_one = 1.0 + torch.finfo(x.dtype).eps
    return torch.ops.aten.hardtanh_backward(gradient, value, -_smallest_step(x), above_one).mul_(p.a)


def _soft_plus(x: Tensor, p: _Parameters) -> Tensor:
    # Beyond 40, log(1 + e^x) is x in float64 too.
    return _scaled(functional.softplus(_scaled(x, p.b), 1.0, 40.0), p.a)


def _soft_plus_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    return _times(torch.ops.aten.softplus_backward(gradient, x, p.b, 40.0), p.a * p.b)


def _elu_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    if p.a == 1.0:
        # Both sides agree at 0. Of what is not a number the engine makes 1 now and then; its sum is none either.
        if not x.is_cuda and not x.sum().isnan():
            return torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, False, x)
        return x.clamp_max(0.0).exp_().mul_(gradient)
    return torch.ops.aten.elu_backward(gradient, p.a, 1.0, 1.0, False, _zero_made_positive(x))


def _slopes(x: Tensor, p: _Parameters) -> Tensor:
    channels = x.shape[1]
    if p.data is None or p.data.numel() != channels:
        rule = f"must hold one slope for each of the {channels} channels of a PReLU"
        got = "none" if p.data is None else f"{p.data.numel()} values"
        raise MPSArgumentError("MPSNNNeuronDescriptor", "data", rule, got)
    return p.data.reshape(channels).to(device=x.device, dtype=x.dtype)


def _prelu(x: Tensor, slopes: Tensor) -> Tensor:
    """PReLU, on the CPU of few channels row by row: the engine takes the channels of a pixel together."""
    images, channels, height, width = x.shape
    if x.is_cuda or channels >= _FEW_CHANNELS or not x.is_contiguous(memory_format=torch.channels_last):
        return torch.prelu(x, slopes)
    every = slopes.expand(width, channels).reshape(-1)
    rows = torch.prelu(x.permute(0, 2, 3, 1).reshape(images * height, width * channels), every)
    return rows.view(images, height, width, channels).permute(0, 3, 1, 2)


def _prelu_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    # The sign of x, with 1 at 0; a PReLU of the slope -a takes -1 to a and leaves 1.
    sign = x.sign().add_(0.5).sign_()
    return torch.prelu(sign, -_slopes(x, p)).mul_(gradient)


def _relu_n(x: Tensor, p: _Parameters) -> Tensor:
    return x.clamp(0.0, p.b) if p.a == 0.0 else _rectify(x, p.a).clamp_max_(p.b)


def _relu_n_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    if p.a == 0.0:
        return torch.ops.aten.hardtanh_backward(gradient, x, -_smallest_step(x), p.b)
    below_limit = torch.ops.aten.threshold_backward(gradient, _rectify(x, p.a).neg_(), -p.b)
    return _rectify_gradient(below_limit, x, p.a)


def _power(x: Tensor, p: _Parameters) -> Tensor:
    return x.pow(p.c) if (p.a, p.b) == (1.0, 0.0) else _affine(x, p.a, p.b).pow_(p.c)


def _power_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    factor = p.a * p.c
    # A constant has the derivative 0, also where (a*x + b)^(c - 1) is infinite.
    return gradient * 0.0 if factor == 0.0 else _affine(x, p.a, p.b).pow_(p.c - 1.0).mul_(factor).mul_(gradient)


def _natural_logarithm(base: float) -> float:
    """``ln(base)``, with the framework's -1 for the base e."""
    if base == -1.0:
        return 1.0
    if base == 0.0:
        return -math.inf
    return math.log(base) if base > 0.0 else math.nan


def _exponential(x: Tensor, p: _Parameters) -> Tensor:
    if (p.a, p.b, p.c) == (1.0, 0.0, -1.0):
        return x.exp()
    exponent = _affine(x, p.a, p.b)
    # Without `out`, torch's power of a number forgets the memory format.
    return exponent.exp_() if p.c == -1.0 else torch.pow(p.c, exponent, out=exponent)


def _exponential_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    return _times(_exponential(x, p), p.a * _natural_logarithm(p.c)).mul_(gradient)


def _logarithm(x: Tensor, p: _Parameters) -> Tensor:
    logarithm = x.log() if (p.a, p.b) == (1.0, 0.0) else _affine(x, p.a, p.b).log_()
    return logarithm if p.c == -1.0 else logarithm.div_(_natural_logarithm(p.c))


def _logarithm_gradient(gradient: Tensor, x: Tensor, p: _Parameters) -> Tensor:
    if (p.a, p.b, p.c) == (1.0, 0.0, -1.0):
        return gradient / x
    base = _times(_affine(x, p.a, p.b), _natural_logarithm(p.c))
    return torch.div(_scaled(gradient, p.a), base, out=base)


_NEURONS: dict[MPSCNNNeuronType, _Row] = {
    MPSCNNNeuronType.NONE: _Row(lambda x, _: x.clone(), lambda g, _x, _p: g.clone()),
    MPSCNNNeuronType.RELU: _Row(lambda x, p: _rectify(x, p.a), lambda g, x, p: _rectify_gradient(g, x, p.a)),
    MPSCNNNeuronType.LINEAR: _Row(lambda x, p: _linear(x, p.a, p.b), lambda g, _, p: g * p.a),
    MPSCNNNeuronType.SIGMOID: _Row(
        lambda x, _: torch.sigmoid(x), lambda g, x, _: _in_place(_sigmoid_backward, g, torch.sigmoid(x))
    ),
    MPSCNNNeuronType.HARD_SIGMOID: _Row(lambda x, p: _affine(x, p.a, p.b).clamp_(0.0, 1.0), _hard_sigmoid_gradient),
    MPSCNNNeuronType.TANH: _Row(lambda x, p: _scaled(torch.tanh(_scaled(x, p.b)), p.a), _tanh_gradient),
    MPSCNNNeuronType.ABSOLUTE: _Row(lambda x, _: x.abs(), lambda g, x, _: x.sign().mul_(g)),
    MPSCNNNeuronType.SOFT_PLUS: _Row(_soft_plus, _soft_plus_gradient),
    MPSCNNNeuronType.SOFT_SIGN: _Row(
        lambda x, _: x / x.abs().add_(1.0), lambda g, x, _: g / x.abs().add_(1.0).square_()
    ),
    MPSCNNNeuronType.ELU: _Row(lambda x, p: functional.elu(x, p.a), _elu_gradient),
    MPSCNNNeuronType.PRELU: _Row(lambda x, p: _prelu(x, _slopes(x, p)), _prelu_gradient),
    MPSCNNNeuronType.RELU_N: _Row(_relu_n, _relu_n_gradient),
    MPSCNNNeuronType.POWER: _Row(_power, _power_gradient),
    MPSCNNNeuronType.EXPONENTIAL: _Row(_exponential, _exponential_gradient),
    MPSCNNNeuronType.LOGARITHM: _Row(_logarithm, _logarithm_gradient),
    MPSCNNNeuronType.GELU: _Row(
        lambda x, _: functional.gelu(x), lambda g, x, _: torch.ops.aten.gelu_backward(g, x, approximate="none")
    ),
}


class _OfNeuron(Op):
    """The base of the operations."""

    function: MPSCNNNeuronType
    a: float
    b: float
    c: float


class Neuron(_OfNeuron):
    """`neuron` of an image; a PReLU takes its slopes as a second operand."""

    @property
    def takes_half(self) -> bool:
        """Where the function is one operation, which rounds once."""
        if self.function is MPSCNNNeuronType.TANH:
            return (self.a, self.b) == (1.0, 1.0)
        return self.function in _ONE_OPERATION or (self.function is MPSCNNNeuronType.RELU_N and self.a == 0.0)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `neuron`."""
        x, *slopes = operands
        return neuron(x, self.function, self.a, self.b, self.c, *slopes)


class NeuronGradient(_OfNeuron):
    """`neuron_gradient` of a gradient and the forward source; a PReLU takes its slopes as a third operand."""

    @property
    def takes_half(self) -> bool:
        """For rectifiers and GeLU, one operation each: the others multiply numbers that were rounded."""
        is_rectifier = self.function is MPSCNNNeuronType.RELU and self.a == 0.0
        return is_rectifier or self.function is MPSCNNNeuronType.GELU

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `neuron_gradient`."""
        gradient, x, *slopes = operands
        return neuron_gradient(gradient, x, self.function, self.a, self.b, self.c, *slopes)


class ReplaceNaN(Op, of=replace_nan, half=True):
    """`replace_nan` of an image."""

    number: float


class PrintedGeLUGradient(Op, of=printed_gelu_gradient):
    """`printed_gelu_gradient` of a gradient and the forward source."""
