"""Losses: the value and the initial gradient in one go (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from openmps.errors import MPSArgumentError
from openmps.ops.softmax import log_softmax
from openmps.types import MPSCNNLossType, MPSCNNReductionType

_IMAGE_AXES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class LossParameters:
    """What an ``MPSCNNLossDescriptor`` holds, with its defaults."""

    kind: MPSCNNLossType
    reduction: MPSCNNReductionType
    weight: float = 1.0
    label_smoothing: float = 0.0
    number_of_classes: int = 1
    epsilon: float = 1e-7
    delta: float = 1.0
    reduce_across_batch: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _LOSSES:
            raise _refusal("loss_type", "must be a loss of MPSCNNLossType", repr(self.kind))
        if self.reduction not in _REDUCTIONS:
            raise _refusal("reduction_type", "must be a reduction of MPSCNNReductionType", repr(self.reduction))
        if self.kind is MPSCNNLossType.COSINE_DISTANCE and self.reduction is not MPSCNNReductionType.SUM:
            raise _refusal("reduction_type", "must be SUM for the cosine distance", repr(self.reduction))
        if self.number_of_classes < 1:
            raise _refusal("number_of_classes", "must be at least 1", self.number_of_classes)


def loss(y: Tensor, t: Tensor, weights: Tensor | None, parameters: LossParameters) -> tuple[Tensor, Tensor]:
    """The loss of the predictions ``y`` for the labels ``t``, and its gradient with respect to ``y``.

    ``y``, ``t`` and ``weights`` are ``[N, C, H, W]``. Element losses, each multiplied by the descriptor's ``weight``,
    or by ``weights`` instead where they are given:

    ===========================  ===============================================  ==================================
    kind                         element loss                                     gradient
    ===========================  ===============================================  ==================================
    MEAN_ABSOLUTE_ERROR          abs(y - t)                                       sign(y - t)
    MEAN_SQUARED_ERROR           (y - t)^2                                        2 * (y - t)
    SOFT_MAX_CROSS_ENTROPY       -t * log_softmax(y), over channels               softmax(y) - t
    SIGMOID_CROSS_ENTROPY        log(1 + e^y) - y * t                             sigmoid(y) - t
    CATEGORICAL_CROSS_ENTROPY    -t * log(y)                                      -t / y
    HINGE                        max(0, 1 - (2t - 1) * y), t in {0, 1}            1 - (2t - 1) * y > 0 ? 1 - 2t : 0
    HUBER                        abs(y - t) <= delta ? (y - t)^2 / 2              clamp(y - t, -delta, delta)
                                 : delta * (abs(y - t) - delta / 2)
    COSINE_DISTANCE              1 - sum(y * t) of the image                      -t
    LOG                          -t * log(y + eps) - (1 - t) * log(1 - y + eps)   (y - t + eps - 2 * eps * t)
                                                                                  / ((y + eps) * (1 - y + eps))
    KULLBACK_LEIBLER_DIVERGENCE  t * (log(t) - y), y a logarithm                  -t
    ===========================  ===============================================  ==================================

    A label 0 adds nothing to a loss of the form ``t * log(...)``, also where the logarithm is infinite. With
    ``label_smoothing`` e > 0 the labels become ``t * (1 - e) + e / number_of_classes`` (softmax cross entropy) or
    ``t * (1 - e) + e / 2`` (sigmoid cross entropy).

    The loss is ``[N, C, H, W]`` for the reduction NONE, else ``[N, 1, 1, 1]``: the sum of an image, divided by
    ``W*H*C`` for MEAN (``W*H`` for softmax cross entropy), or for SUM_BY_NON_ZERO_WEIGHTS by the number of weights that
    are not 0 (``W*H*C`` without weights; the loss is 0 when all are 0). With ``reduce_across_batch`` the first image
    holds that of the whole batch and the others 0.

    The gradient is that of the **sum**, as in the framework: no reduction divides it.
    """
    rule = _LOSSES[parameters.kind]
    if weights is not None and rule.constant != 0.0:
        raise _refusal("weights", "cannot be given for the cosine distance, whose weight is one number", "an image")
    values, gradient = rule.evaluate(y, _smoothed(_like(y, t), parameters), parameters)
    scale = parameters.weight if weights is None else weights.to(y.dtype)
    if isinstance(scale, Tensor) or scale != 1.0:
        values.mul_(scale)
        gradient.mul_(scale)
    return _reduced(values, weights, parameters, rule.constant * parameters.weight), gradient


def _refusal(argument: str, rule: str, got: object) -> MPSArgumentError:
    return MPSArgumentError("MPSCNNLossDescriptor", argument, rule, got)


# --- labels and reductions -----------------------------------------------------------------------------------------

_SMOOTHING_TARGET: dict[MPSCNNLossType, Callable[[LossParameters], float]] = {
    MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY: lambda parameters: 1.0 / parameters.number_of_classes,
    MPSCNNLossType.SIGMOID_CROSS_ENTROPY: lambda parameters: 0.5,
}


def _like(y: Tensor, t: Tensor) -> Tensor:
    """``t`` in the type and memory format of ``y``, so that the gradient has them too."""
    return t if t.stride() == y.stride() and t.dtype == y.dtype else torch.empty_like(y).copy_(t)


def _smoothed(t: Tensor, parameters: LossParameters) -> Tensor:
    target = _SMOOTHING_TARGET.get(parameters.kind)
    e = parameters.label_smoothing
    return t if target is None or e <= 0.0 else (t * (1.0 - e)).add_(e * target(parameters))


def _reduced(values: Tensor, weights: Tensor | None, parameters: LossParameters, constant: float) -> Tensor:
    """The loss image or numbers of weighted element losses; ``constant`` is added to each image's sum."""
    divisor = _REDUCTIONS[parameters.reduction]
    if divisor is None:
        return values
    total = values.sum(_IMAGE_AXES, keepdim=True)
    if constant != 0.0:
        total.add_(constant)
    if not parameters.reduce_across_batch:
        return total.div_(divisor(values, weights, parameters, _IMAGE_AXES))
    whole = torch.zeros_like(total)
    batch = total.sum(0, keepdim=True).div_(divisor(values, weights, parameters, (0, *_IMAGE_AXES)))
    whole[:1].copy_(batch)
    return whole


_Divisor = Callable[[Tensor, Tensor | None, LossParameters, tuple[int, ...]], Tensor | float]


def _elements(values: Tensor, axes: tuple[int, ...]) -> float:
    return float(math.prod(values.shape[axis] for axis in axes))


def _mean_divisor(values: Tensor, _weights: Tensor | None, parameters: LossParameters, axes: tuple[int, ...]) -> float:
    per_pixel = parameters.kind is MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY
    return _elements(values, tuple(axis for axis in axes if not (per_pixel and axis == 1)))


def _non_zero_divisor(
    values: Tensor, weights: Tensor | None, _parameters: LossParameters, axes: tuple[int, ...]
) -> Tensor | float:
    if weights is None:
        return _elements(values, axes)
    return weights.ne(0.0).sum(axes, keepdim=True).clamp_min_(1)


_REDUCTIONS: dict[MPSCNNReductionType, _Divisor | None] = {
    MPSCNNReductionType.NONE: None,
    MPSCNNReductionType.SUM: lambda _values, _weights, _parameters, _axes: 1.0,
    MPSCNNReductionType.MEAN: _mean_divisor,
    MPSCNNReductionType.SUM_BY_NON_ZERO_WEIGHTS: _non_zero_divisor,
}

# --- element losses ------------------------------------------------------------------------------------------------
# Each returns new tensors: the element losses and their gradient, both without the weight.

_Pair = tuple[Tensor, Tensor]


def _times_logarithm(t: Tensor, logarithm: Tensor) -> Tensor:
    """``t * logarithm``, and 0 where ``t`` is 0 and the logarithm minus infinity."""
    return (t * logarithm).masked_fill_((t == 0.0).logical_and_(logarithm == -math.inf), 0.0)


def _mean_absolute_error(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    difference = y - t
    return difference.abs(), difference.sign()


def _mean_squared_error(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    difference = y - t
    return difference.square(), difference.mul_(2.0)


def _soft_max_cross_entropy(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    logarithm = log_softmax(y)
    return _times_logarithm(t, logarithm).neg_(), logarithm.exp().sub_(t)


def _sigmoid_cross_entropy(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    # Beyond 40, log(1 + e^y) is y in float64 too.
    return functional.softplus(y, 1.0, 40.0).addcmul_(y, t, value=-1.0), torch.sigmoid(y).sub_(t)


def _categorical_cross_entropy(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    quotient = (t / y).masked_fill_((t == 0.0).logical_and_(y == 0.0), 0.0)
    return _times_logarithm(t, y.log()).neg_(), quotient.neg_()


def _hinge(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    sign = (t * 2.0).sub_(1.0)
    margin = (sign * y).neg_().add_(1.0)
    active = margin.gt(0.0)
    return margin.clamp_min_(0.0), sign.neg_().mul_(active)


def _huber(y: Tensor, t: Tensor, parameters: LossParameters) -> _Pair:
    # With c the clamped difference d, c * (d - c/2) is d²/2 inside and delta * (|d| - delta/2) outside.
    difference = y - t
    clamped = difference.clamp(-parameters.delta, parameters.delta)
    return difference.sub_(clamped, alpha=0.5).mul_(clamped), clamped


def _cosine_distance(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    return (y * t).neg_(), t.neg()


def _log(y: Tensor, t: Tensor, parameters: LossParameters) -> _Pair:
    epsilon = parameters.epsilon
    of_one = y + epsilon
    of_zero = (1.0 - y).add_(epsilon)
    values = (t * of_one.log()).add_((1.0 - t).mul_(of_zero.log())).neg_()
    slope = (y - t).add_(epsilon).sub_(t, alpha=2.0 * epsilon)
    return values, slope.div_(of_one.mul_(of_zero))


def _kullback_leibler_divergence(y: Tensor, t: Tensor, _: LossParameters) -> _Pair:
    return torch.xlogy(t, t).sub_(_times_logarithm(t, y)), t.neg()


@dataclass(frozen=True, slots=True)
class _Loss:
    evaluate: Callable[[Tensor, Tensor, LossParameters], _Pair]
    constant: float = 0.0


_LOSSES: dict[MPSCNNLossType, _Loss] = {
    MPSCNNLossType.MEAN_ABSOLUTE_ERROR: _Loss(_mean_absolute_error),
    MPSCNNLossType.MEAN_SQUARED_ERROR: _Loss(_mean_squared_error),
    MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY: _Loss(_soft_max_cross_entropy),
    MPSCNNLossType.SIGMOID_CROSS_ENTROPY: _Loss(_sigmoid_cross_entropy),
    MPSCNNLossType.CATEGORICAL_CROSS_ENTROPY: _Loss(_categorical_cross_entropy),
    MPSCNNLossType.HINGE: _Loss(_hinge),
    MPSCNNLossType.HUBER: _Loss(_huber),
    MPSCNNLossType.COSINE_DISTANCE: _Loss(_cosine_distance, constant=1.0),
    MPSCNNLossType.LOG: _Loss(_log),
    MPSCNNLossType.KULLBACK_LEIBLER_DIVERGENCE: _Loss(_kullback_leibler_divergence),
}
