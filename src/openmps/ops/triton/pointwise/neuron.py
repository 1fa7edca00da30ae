"""`openmps.ops.pointwise.neuron` in Triton: gradients of neurons that PyTorch computes in several passes."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv
from openmps.types import MPSCNNNeuronType

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 2048
_Kind = MPSCNNNeuronType
_TAKEN = frozenset({_Kind.SIGMOID, _Kind.TANH, _Kind.SOFT_SIGN, _Kind.ELU, _Kind.PRELU, _Kind.EXPONENTIAL})


@triton.jit
def _exp(x):
    """e^x to its last digits: what rounding took of the exponent of 2 comes back as a factor."""
    x = tl.where(x < -104.0, -104.0, tl.where(x > 89.0, 89.0, x))
    power = x * 1.4426950408889634
    rest = tl.fma(x, tl.zeros_like(x) + 1.4426950216293335, -power) + x * 1.9259629911e-8
    return tl.exp2(power) * (1.0 + rest * 0.6931471805599453)


@triton.jit
def normal(z):
    """The share P of normal numbers below z, and ``D = z e^(-z^2 / 2) / sqrt(2 pi)``: GeLU is z P, its slope P + D.

    ``e^(z^2 / 2)`` times the share above z is a polynomial in ``1 / (1 + 0.28 z)`` to 6e-8 of itself, for z of at least
    0 (least squares by weights that follow the largest errors). The quotient is a root, which costs a GPU one step.
    """
    t = 1.0 + 0.28 * tl.abs(z)
    t = tl.rsqrt(t * t)
    tail = 0.02329591 * t - 0.08584094
    tail = tail * t + 0.07494444
    tail = tail * t + 0.01487456
    tail = tail * t + 0.0574264
    tail = tail * t + 0.09028558
    tail = tail * t + 0.10139365
    tail = tail * t + 0.11192928
    power = tl.exp2(z * z * -0.7213475204444817)
    tail = (tail * t + 0.11169115) * t * power
    return tl.where(z < 0.0, tail, 1.0 - tail), z * power * 0.3989422804014327


@triton.jit
def _slope(x, a, b, KIND: tl.constexpr):
    """f'(x), by forms in which nothing cancels."""
    if KIND == "SIGMOID":
        e = _exp(-tl.abs(x))
        slope = e / ((1.0 + e) * (1.0 + e))
    elif KIND == "TANH":
        e = _exp(-2.0 * tl.abs(x * b))
        slope = a * b * (4.0 * e / ((1.0 + e) * (1.0 + e)))
    elif KIND == "SOFT_SIGN":
        d = 1.0 + tl.abs(x)
        slope = 1.0 / (d * d)
    elif KIND == "EXPONENTIAL":
        slope = a * _exp(x * a + b)
    else:
        slope = tl.where(x >= 0.0, 1.0, a * _exp(x))
    return slope


@Launched
@triton.jit
def _gradient(gradient, x, slopes, result, count, channels, a, b, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """A block of numbers, wherever they are in the image; ``slopes`` are those of PReLU, one a channel."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_in = at < count
    v = tl.load(x + at, is_in, 0.0)
    if KIND == "PRELU":
        slope = tl.where(v < 0.0, tl.load(slopes + at % channels, is_in, 0.0), 1.0)
    else:
        slope = _slope(v, a, b, KIND)
    tl.store(result + at, tl.load(gradient + at, is_in, 0.0) * slope, is_in)


def takes(gradient: Tensor, x: Tensor, kind: MPSCNNNeuronType, c: float) -> bool:
    """Whether `gradient` is for these numbers and this neuron: powers have the base e."""
    return (
        kind in _TAKEN
        and (kind is not _Kind.EXPONENTIAL or c == -1.0)
        and gradient.dtype == x.dtype == torch.float32
        and gradient.shape == x.shape
        and all(each.is_contiguous(memory_format=torch.channels_last) for each in (gradient, x))
        and x.numel() > 0
    )


def neuron_gradient(
    gradient: Tensor, x: Tensor, kind: MPSCNNNeuronType, a: float, b: float, slopes: Tensor | None
) -> Tensor:
    """``gradient * f'(x)``."""
    result = torch.empty_like(x)
    _gradient[(cdiv(x.numel(), _BLOCK),)](
        gradient, x, x if slopes is None else slopes.contiguous(), result, x.numel(), x.shape[1], float(a), float(b),
        kind.name, _BLOCK,
    )  # fmt: skip
    return result
