"""Neurons and batch normalization of matrices ``[B, rows, columns]``, one feature vector a row.

MPSMatrixNeuron.h, macOS 10.13; MPSMatrixBatchNormalization.h, macOS 10.14. Vectors are ``[B or 1, columns]``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops.matrix.rows import as_pixels
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.neuron import neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType


def _argument(x: Tensor, bias: Tensor | None, alpha: float) -> Tensor:
    """``alpha x + bias``."""
    scaled = x if alpha == 1.0 else x * alpha
    return scaled if bias is None else scaled + bias.unsqueeze(1)


class _OfNeuron(Op, kind=Kind.REDUCTION):
    """The base of the operations with a neuron."""

    function: MPSCNNNeuronType
    a: float
    b: float
    c: float
    alpha: float = 1.0


class MatrixNeuron(_OfNeuron):
    """``f(alpha x + bias)`` of a matrix, a bias that may be left out, and a PReLU's slopes, one a column."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `openmps.ops.pointwise.neuron.neuron`."""
        x, bias, slopes = operands
        argument = as_pixels(_argument(x, bias, self.alpha))
        return neuron(argument, self.function, self.a, self.b, self.c, slopes).view(x.shape)


class MatrixNeuronGradient(_OfNeuron, results=2):
    """The gradients of a `MatrixNeuron`'s matrix and bias, from that of its result and the forward operands."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """``alpha g f'(alpha x + bias)``, and the sums over the rows of ``g f'(alpha x + bias)``."""
        gradient, x, bias, slopes = operands
        argument = as_pixels(_argument(x, bias, self.alpha))
        given = as_pixels(gradient), argument, self.function, self.a, self.b, self.c, slopes
        found = neuron_gradient(*given).view(x.shape)
        return found if self.alpha == 1.0 else found * self.alpha, found.sum(1)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each column, that of the population."""
    variance, mean = torch.var_mean(x, 1, correction=0)
    return mean, variance


class Statistics(Op, of=statistics, kind=Kind.REDUCTION, results=2):
    """`statistics` of the columns."""


def _standardized(x: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """``(x - mean) / s``, and ``1 / s`` with ``s = sqrt(variance + epsilon)``."""
    inverse = (variance + epsilon).rsqrt().unsqueeze(1)
    return (x - mean.unsqueeze(1)) * inverse, inverse


def normalized(
    x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor | None, beta: Tensor | None, *, epsilon: float
) -> Tensor:
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta``, column by column; without gamma 1, without beta 0."""
    result, _ = _standardized(x, mean, variance, epsilon)
    if gamma is not None:
        result = result * gamma.unsqueeze(1)
    return result if beta is None else result + beta.unsqueeze(1)


class NormalizedColumns(Op, of=normalized, kind=Kind.REDUCTION):
    """`normalized` matrix, from mean, variance, gamma and beta; the last two may be left out."""

    epsilon: float


def normalized_gradient(
    gradient: Tensor, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor | None, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, gamma and beta, where mean and variance are those of the columns of x.

    With M rows and ``n = (x - mean) / s``: ``gamma / s (g - sum g / M - n sum(g n) / M)``, ``sum(g n)`` and ``sum g``.
    """
    standardized, inverse = _standardized(x, mean, variance, epsilon)
    of_gamma, of_beta = (gradient * standardized).sum(1), gradient.sum(1)
    shares = standardized * of_gamma.unsqueeze(1) + of_beta.unsqueeze(1)
    factor = inverse if gamma is None else inverse * gamma.unsqueeze(1)
    return (gradient - shares / x.shape[1]) * factor, of_gamma, of_beta


class NormalizedColumnsGradient(Op, of=normalized_gradient, kind=Kind.REDUCTION, results=3):
    """`normalized_gradient` of a gradient, the forward source, mean, variance and gamma, which may be left out."""

    epsilon: float


class ZerosLike(Op, of=torch.zeros_like, kind=Kind.REDUCTION):
    """As many zeros as the operand has numbers, whatever they are."""
