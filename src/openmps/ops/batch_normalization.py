"""Batch normalization: moments of a batch, also in pieces, and the normalization with its gradients.

Images are ``[N, C, H, W]``, everything else is one number a channel, ``[C]``. All passes subtract the mean before they
scale, and know the mean to twice the precision of a number: a large mean costs no digits of a small variance.
(MPSCNNBatchNormalization.h, macOS 10.13.4; Ioffe and Szegedy, arXiv 1502.03167.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_PIXELS = (0, 2, 3)


class Moments(NamedTuple):
    """Mean and variance of each channel; the mean is ``mean + correction``, the second one what rounding took."""

    mean: Tensor
    correction: Tensor
    variance: Tensor


@dataclass(frozen=True, slots=True)
class Normalization:
    """What a batch was normalized with: ``z = gamma (x - mean) / sqrt(variance + epsilon) + beta``."""

    moments: Moments
    gamma: Tensor
    beta: Tensor
    epsilon: float


class ParameterGradients(NamedTuple):
    """dL/dgamma and dL/dbeta."""

    gamma: Tensor
    beta: Tensor


def batch_moments(x: Tensor) -> Moments:
    """Mean and population variance ``sum (x - mean)^2 / M`` of the M pixels of each channel.

    The variance of a constant channel is 0, and its mean exactly that constant.
    """
    first = _column(x[0, :, 0, 0])
    centred = x - first
    mean = (first + centred.mean(_PIXELS, keepdim=True)).contiguous()
    torch.sub(x, mean, out=centred)
    correction = centred.mean(_PIXELS)
    variance = centred.square_().mean(_PIXELS).sub_(correction.square()).clamp_min_(0.0)
    return Moments(mean.view(-1), correction, variance)


def merged_moments(a: Moments, b: Moments, share: float) -> Moments:
    """The moments of two sets of pixels together, of which ``share`` of all pixels are in the second one.

    Every term of the variance is positive (Chan, Golub and LeVeque's pairwise scheme): nothing cancels.
    """
    difference = (b.mean - a.mean).add_(b.correction - a.correction)
    step = (difference * share).add_(a.correction)
    mean = a.mean + step
    # What the sum rounded off, exactly (Knuth's two-sum).
    kept = mean - a.mean
    correction = (a.mean - (mean - kept)).add_(step - kept)
    variance = torch.lerp(a.variance, b.variance, share).add_(difference.square_().mul_(share * (1.0 - share)))
    return Moments(mean, correction, variance)


def normalize(x: Tensor, how: Normalization) -> Tensor:
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta``."""
    scale = how.gamma * _inverse_deviation(how)
    shift = how.beta - how.moments.correction * scale
    return _affine(x, how.moments.mean, scale, shift)


def parameter_gradients(gradient: Tensor, x: Tensor, how: Normalization) -> ParameterGradients:
    """``dgamma = sum g xhat``, ``dbeta = sum g`` over the batch and its pixels, ``xhat = (x - mean) / sqrt(...)``.

    ``gradient`` is that of z: a fused neuron's derivative is in it already.
    """
    centred = (x - _column(how.moments.mean)).sub_(_column(how.moments.correction))
    beta = gradient.sum(_PIXELS)
    return ParameterGradients(centred.mul_(gradient).sum(_PIXELS).mul_(_inverse_deviation(how)), beta)


def data_gradient(
    gradient: Tensor, x: Tensor, how: Normalization, sums: ParameterGradients | None, pixels: int
) -> Tensor:
    """``gamma / sqrt(variance + epsilon) (g - dbeta / M - xhat dgamma / M)`` for each pixel of ``x``.

    ``sums`` are the parameter gradients of all M ``pixels`` that mean and variance were made of. Without them mean and
    variance are constants, and only the first term is left.
    """
    inverse = _inverse_deviation(how)
    scale = how.gamma * inverse
    if sums is None:
        return gradient * _column(scale)
    slope = scale * inverse * sums.gamma / -pixels
    level = (scale * sums.beta / -pixels).sub_(how.moments.correction * slope)
    return _affine(x, how.moments.mean, slope, level).addcmul_(gradient, _column(scale))


def _inverse_deviation(how: Normalization) -> Tensor:
    return (how.moments.variance + how.epsilon).rsqrt_()


def _affine(x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    centred = x - _column(mean)
    return torch.addcmul(_column(shift), centred, _column(scale), out=centred)


def _column(row: Tensor) -> Tensor:
    return row.view(1, -1, 1, 1)
