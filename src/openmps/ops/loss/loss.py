"""Losses: the value and its gradients, in one go (MPSCNNLoss.h, macOS 10.13.4) or apart (macOS 10.15)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from openmps.errors import MPSArgumentError
from openmps.ops import triton
from openmps.ops.geometry import empty_image, pitch_of
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.softmax import log_softmax
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
    hinge_signs: bool = True
    """Whether the hinge loss multiplies by ``2t - 1``; by ``t`` otherwise."""
    exact_slope: bool = False
    """Whether the gradient of softmax cross entropy is ``softmax(y) * sum(t) - t`` instead of ``softmax(y) - t``."""
    ones_of_pixels: bool = False
    """Whether the cosine distance adds 1 for each pixel instead of each image."""
    multiplies_weights: bool = False
    """Whether weights are multiplied by the descriptor's instead of standing in its place."""
    counts_channels: bool = False
    """Whether MEAN of softmax cross entropy across a batch divides by the channels, too."""
    divides_gradient: bool = False
    """Whether `loss_gradient` divides by what MEAN divides the loss by."""

    def __post_init__(self) -> None:
        if self.kind not in _LOSSES:
            raise _refusal("loss_type", "must be a loss of MPSCNNLossType", repr(self.kind))
        if self.reduction not in _REDUCTIONS:
            raise _refusal("reduction_type", "must be a reduction of MPSCNNReductionType", repr(self.reduction))
        if self.kind is MPSCNNLossType.COSINE_DISTANCE and self.reduction is not MPSCNNReductionType.SUM:
            raise _refusal("reduction_type", "must be SUM for the cosine distance", repr(self.reduction))
        if self.number_of_classes < 1:
            raise _refusal("number_of_classes", "must be at least 1", self.number_of_classes)
        for name in ("delta", "epsilon"):
            if not getattr(self, name) >= 0.0:
                raise _refusal(name, "must be at least 0", getattr(self, name))
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise _refusal("label_smoothing", "must be a share of 0 to 1", self.label_smoothing)


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

    Softmax cross entropy takes float16 predictions too: it computes in float32, gives float32 losses, and rounds the
    gradient once, to float16.
    """
    found = _at_once(y, t, weights, parameters)
    if found is not None:
        return found
    terms = element_terms(y, t, parameters)
    scale = _scale(y, weights, parameters)
    values = terms.value()
    if terms.half_gradient is not None:
        gradient = terms.half_gradient(scale)
    else:
        gradient = terms.gradient()
        if _is_scale(scale):
            gradient.mul_(scale)
    if _is_scale(scale):
        values.mul_(scale)
    return _reduced(values, weights, parameters), gradient


def _at_once(y: Tensor, t: Tensor, weights: Tensor | None, parameters: LossParameters) -> tuple[Tensor, Tensor] | None:
    """Softmax cross entropy of images of few pixels in Triton; None for everything else."""
    is_soft_max = parameters.kind is MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY
    is_plain = is_soft_max and weights is None and not parameters.exact_slope
    reduces = parameters.reduction is not MPSCNNReductionType.NONE and not parameters.reduce_across_batch
    if not is_plain or not reduces or not y.numel() or not triton.runs_on(y.device):
        return None
    from openmps.ops.triton.loss import loss as kernels

    pitches, pixels = (pitch_of(y), pitch_of(t)), y.shape[2] * y.shape[3]
    is_float = {y.dtype, t.dtype} <= {torch.float16, torch.float32}
    fits = pixels <= kernels.MOST_PIXELS and y.shape[1] <= kernels.MOST_CLASSES and t.shape == y.shape
    if not is_float or not fits or pitches[0] is None or pitches[1] is None:
        return None
    e, divisor = parameters.label_smoothing, 1.0
    labels = (1.0 - e, e * _SMOOTHING_TARGET[parameters.kind](parameters))
    if parameters.reduction is MPSCNNReductionType.MEAN:
        divisor = float(pixels)
    elif parameters.reduction is MPSCNNReductionType.SUM_BY_NON_ZERO_WEIGHTS:
        divisor = float(pixels * y.shape[1])
    return kernels.soft_max_cross_entropy(y, t, (pitches[0], pitches[1]), parameters.weight, labels, divisor)


def forward_loss(y: Tensor, t: Tensor, weights: Tensor | None, parameters: LossParameters) -> Tensor:
    """The value of `loss` alone."""
    values = element_terms(y, t, parameters).value()
    scale = _scale(y, weights, parameters)
    if _is_scale(scale):
        values.mul_(scale)
    return _reduced(values, weights, parameters)


def loss_gradient(
    gradient: Tensor,
    y: Tensor,
    t: Tensor,
    weights: Tensor | None,
    parameters: LossParameters,
    *,
    of_labels: bool = False,
) -> Tensor:
    """The gradient that flows back through a loss: with respect to ``y``, or to the labels ``t``.

    ``gradient * weight * slope``, with the slopes of `loss` for the predictions and these for the labels, which
    smoothing by e multiplies by ``1 - e``:

    ===========================  ==============================================
    kind                         gradient with respect to the labels
    ===========================  ==============================================
    MEAN_ABSOLUTE_ERROR          -sign(y - t)
    MEAN_SQUARED_ERROR           -2 * (y - t)
    SOFT_MAX_CROSS_ENTROPY       -log_softmax(y)
    SIGMOID_CROSS_ENTROPY        -y
    CATEGORICAL_CROSS_ENTROPY    -log(y)
    HINGE                        1 - (2t - 1) * y > 0 ? -2 * y : 0
    HUBER                        -clamp(y - t, -delta, delta)
    COSINE_DISTANCE              -y
    LOG                          log(1 - y + eps) - log(y + eps)
    KULLBACK_LEIBLER_DIVERGENCE  log(t) + 1 - y, and 0 where t is 0
    ===========================  ==============================================

    ``gradient`` is that of the loss image: ``[N, C, H, W]``, or ``[N, 1, 1, 1]`` for every number of an image. No
    reduction divides it: for MEAN the result is the sum's gradient. Where the loss was reduced across the batch, image
    0 holds the gradient of all. The softmax cross entropy's slope ``softmax(y) - t`` is the derivative where labels sum
    to 1 and ``gradient * weight`` is the same for all channels of a pixel.
    """
    terms = element_terms(y, t, parameters)
    result = terms.label_gradient() if of_labels else terms.gradient()
    scale = _scale(y, weights, parameters)
    if of_labels and _is_smoothed(parameters):
        result.mul_(1.0 - parameters.label_smoothing)
    if _is_scale(scale):
        result.mul_(scale)
    is_of_all = parameters.reduce_across_batch and parameters.reduction is not MPSCNNReductionType.NONE
    if parameters.divides_gradient:
        axes = (0, *_mean_axes(parameters)) if is_of_all else _mean_axes(parameters)
        result.div_(math.prod(y.shape[axis] for axis in axes))
    return result.mul_(gradient[:1] if is_of_all else gradient)


def element_terms(y: Tensor, t: Tensor, parameters: LossParameters) -> LossTerms:
    """The loss of each element and its derivatives, for smoothed labels, without the weight."""
    return _LOSSES[parameters.kind](y, _smoothed(_like(y, t), parameters), parameters)


def _scale(y: Tensor, weights: Tensor | None, parameters: LossParameters) -> Tensor | float:
    """The factor of each element: the descriptor's weight, or the weights instead."""
    if weights is None:
        return parameters.weight
    if parameters.kind is MPSCNNLossType.COSINE_DISTANCE:
        raise _refusal("weights", "cannot be given for the cosine distance, whose weight is one number", "an image")
    scale = weights.to(_dtype(y))
    return scale * parameters.weight if parameters.multiplies_weights else scale


def _is_scale(scale: Tensor | float) -> bool:
    return isinstance(scale, Tensor) or scale != 1.0


def _dtype(y: Tensor) -> torch.dtype:
    """The type that the losses of ``y`` are computed in."""
    return torch.float32 if y.dtype is torch.float16 else y.dtype


def _refusal(argument: str, rule: str, got: object) -> MPSArgumentError:
    return MPSArgumentError("MPSCNNLossDescriptor", argument, rule, got)


# --- labels and reductions -----------------------------------------------------------------------------------------

_SMOOTHING_TARGET: dict[MPSCNNLossType, Callable[[LossParameters], float]] = {
    MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY: lambda parameters: 1.0 / parameters.number_of_classes,
    MPSCNNLossType.SIGMOID_CROSS_ENTROPY: lambda parameters: 0.5,
}


def _like(y: Tensor, t: Tensor) -> Tensor:
    """``t`` in the type of the computation and the memory format of ``y``, so that the gradient has them too."""
    dtype = _dtype(y)
    return t if t.stride() == y.stride() and t.dtype == dtype else torch.empty_like(y, dtype=dtype).copy_(t)


def _is_smoothed(parameters: LossParameters) -> bool:
    return parameters.kind in _SMOOTHING_TARGET and parameters.label_smoothing > 0.0


def _smoothed(t: Tensor, parameters: LossParameters) -> Tensor:
    if not _is_smoothed(parameters):
        return t
    e = parameters.label_smoothing
    return (t * (1.0 - e)).add_(e * _SMOOTHING_TARGET[parameters.kind](parameters))


def _mean_axes(parameters: LossParameters) -> tuple[int, ...]:
    """The axes that MEAN of an image divides by."""
    is_per_pixel = parameters.kind is MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY
    counts_channels = parameters.counts_channels and parameters.reduce_across_batch
    return _IMAGE_AXES[1:] if is_per_pixel and not counts_channels else _IMAGE_AXES


def _reduced(values: Tensor, weights: Tensor | None, parameters: LossParameters) -> Tensor:
    ones = values.shape[2] * values.shape[3] if parameters.ones_of_pixels else 1
    is_mean = parameters.reduction is MPSCNNReductionType.MEAN
    return reduce_losses(
        values,
        weights,
        parameters.reduction,
        across_batch=parameters.reduce_across_batch,
        divided=_mean_axes(parameters) if is_mean else _IMAGE_AXES,
        constant=parameters.weight * ones if parameters.kind is MPSCNNLossType.COSINE_DISTANCE else 0.0,
    )


def reduce_losses(
    values: Tensor,
    weights: Tensor | None,
    reduction: MPSCNNReductionType,
    *,
    across_batch: bool = False,
    divided: tuple[int, ...] = _IMAGE_AXES,
    constant: float = 0.0,
) -> Tensor:
    """The loss image, or one number an image, of weighted element losses; see `loss`.

    MEAN, and SUM_BY_NON_ZERO_WEIGHTS, divide by what lies along the axes ``divided`` of an image; ``constant`` is added
    to each image's sum.
    """
    if reduction is MPSCNNReductionType.NONE:
        return values
    total = values.sum(_IMAGE_AXES, keepdim=True)
    if constant != 0.0:
        total.add_(constant)
    if not across_batch:
        return total.div_(_divisor(values, weights, reduction, divided))
    whole = torch.zeros_like(total)
    batch = total.sum(0, keepdim=True).div_(_divisor(values, weights, reduction, (0, *divided)))
    whole[:1].copy_(batch)
    return whole


def _divisor(
    values: Tensor, weights: Tensor | None, reduction: MPSCNNReductionType, axes: tuple[int, ...]
) -> Tensor | float:
    if reduction is MPSCNNReductionType.SUM:
        return 1.0
    if reduction is MPSCNNReductionType.SUM_BY_NON_ZERO_WEIGHTS and weights is not None:
        return weights.ne(0.0).sum(axes, keepdim=True).clamp_min_(1)
    return float(math.prod(values.shape[axis] for axis in axes))


_REDUCTIONS = frozenset(
    {
        MPSCNNReductionType.NONE,
        MPSCNNReductionType.SUM,
        MPSCNNReductionType.MEAN,
        MPSCNNReductionType.SUM_BY_NON_ZERO_WEIGHTS,
    }
)

# --- element losses ------------------------------------------------------------------------------------------------


class LossTerms(NamedTuple):
    """The losses of elements and their gradients, new tensors, each computed when it is called for.

    At most one of the gradients may be called for, once, and after the value: they share what they are made of.
    """

    value: Callable[[], Tensor]
    gradient: Callable[[], Tensor]
    label_gradient: Callable[[], Tensor]
    half_gradient: Callable[[Tensor | float], Tensor] | None = None
    """For float16 predictions: the gradient times a scale, rounded once."""


def _times_logarithm(t: Tensor, logarithm: Tensor) -> Tensor:
    """``t * logarithm``, and 0 where ``t`` is 0 and the logarithm minus infinity."""
    return (t * logarithm).masked_fill_((t == 0.0).logical_and_(logarithm == -math.inf), 0.0)


def _mean_absolute_error(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    difference = y - t
    return LossTerms(difference.abs, difference.sign, lambda: difference.sign().neg_())


def _mean_squared_error(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    difference = y - t
    return LossTerms(difference.square, lambda: difference.mul_(2.0), lambda: difference.mul_(-2.0))


def _soft_max_cross_entropy(y: Tensor, t: Tensor, parameters: LossParameters) -> LossTerms:
    logarithm = log_softmax(y, t.dtype)

    def gradient() -> Tensor:
        slope = logarithm.exp_()
        if parameters.exact_slope:
            slope.mul_(t.sum(1, keepdim=True))
        return slope.sub_(t)

    def half_gradient(scale: Tensor | float) -> Tensor:
        slope, result = logarithm.exp_(), torch.empty_like(logarithm, dtype=y.dtype)
        if parameters.exact_slope:
            slope.mul_(t.sum(1, keepdim=True))
        if isinstance(scale, Tensor):
            return torch.mul(slope.sub_(t), scale, out=result)
        return torch.sub(slope.mul_(scale) if scale != 1.0 else slope, t, alpha=scale, out=result)

    return LossTerms(
        lambda: _times_logarithm(t, logarithm).neg_(),
        gradient,
        lambda: logarithm.neg_(),
        half_gradient if y.dtype is torch.float16 else None,
    )


def _sigmoid_cross_entropy(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    return LossTerms(
        # Beyond 40, log(1 + e^y) is y in float64 too.
        lambda: functional.softplus(y, 1.0, 40.0).addcmul_(y, t, value=-1.0),
        lambda: torch.sigmoid(y).sub_(t),
        y.neg,
    )


def _categorical_cross_entropy(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    def gradient() -> Tensor:
        return (t / y).masked_fill_((t == 0.0).logical_and_(y == 0.0), 0.0).neg_()

    return LossTerms(lambda: _times_logarithm(t, y.log()).neg_(), gradient, lambda: y.log().neg_())


def _hinge(y: Tensor, t: Tensor, parameters: LossParameters) -> LossTerms:
    sign = (t * 2.0).sub_(1.0) if parameters.hinge_signs else t.clone()
    margin = (sign * y).neg_().add_(1.0)
    return LossTerms(
        lambda: margin.clamp_min(0.0),
        lambda: sign.neg_().mul_(margin.gt(0.0)),
        lambda: (y * (-2.0 if parameters.hinge_signs else -1.0)).mul_(margin.gt(0.0)),
    )


def _huber(y: Tensor, t: Tensor, parameters: LossParameters) -> LossTerms:
    # With c the clamped difference d, c * (d - c/2) is d²/2 inside and delta * (|d| - delta/2) outside.
    difference = y - t
    clamped = difference.clamp(-parameters.delta, parameters.delta)
    return LossTerms(lambda: difference.sub_(clamped, alpha=0.5).mul_(clamped), lambda: clamped, lambda: clamped.neg_())


def _cosine_distance(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    return LossTerms(lambda: (y * t).neg_(), t.neg, y.neg)


def _log(y: Tensor, t: Tensor, parameters: LossParameters) -> LossTerms:
    epsilon = parameters.epsilon
    of_one = y + epsilon
    of_zero = (1.0 - y).add_(epsilon)

    def gradient() -> Tensor:
        slope = (y - t).add_((1.0 - 2.0 * t).mul_(epsilon))
        return slope.div_(of_one.mul_(of_zero))

    return LossTerms(
        lambda: (t * of_one.log()).add_((1.0 - t).mul_(of_zero.log())).neg_(),
        gradient,
        lambda: of_zero.log_().sub_(of_one.log_()),
    )


def _kullback_leibler_divergence(y: Tensor, t: Tensor, _: LossParameters) -> LossTerms:
    return LossTerms(
        lambda: torch.xlogy(t, t).sub_(_times_logarithm(t, y)),
        t.neg,
        lambda: t.log().add_(1.0).sub_(y).masked_fill_(t == 0.0, 0.0),
    )


_LOSSES: dict[MPSCNNLossType, Callable[[Tensor, Tensor, LossParameters], LossTerms]] = {
    MPSCNNLossType.MEAN_ABSOLUTE_ERROR: _mean_absolute_error,
    MPSCNNLossType.MEAN_SQUARED_ERROR: _mean_squared_error,
    MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY: _soft_max_cross_entropy,
    MPSCNNLossType.SIGMOID_CROSS_ENTROPY: _sigmoid_cross_entropy,
    MPSCNNLossType.CATEGORICAL_CROSS_ENTROPY: _categorical_cross_entropy,
    MPSCNNLossType.HINGE: _hinge,
    MPSCNNLossType.HUBER: _huber,
    MPSCNNLossType.COSINE_DISTANCE: _cosine_distance,
    MPSCNNLossType.LOG: _log,
    MPSCNNLossType.KULLBACK_LEIBLER_DIVERGENCE: _kullback_leibler_divergence,
}


class Loss(Op, kind=Kind.REDUCTION, results=2):
    """`loss` of predictions, labels and, if there are any, weights: the losses and the gradient."""

    parameters: LossParameters

    @property
    def takes_half(self) -> bool:
        """For softmax cross entropy, which computes in float32 and rounds the gradient once."""
        return self.parameters.kind is MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None]:
        """See `loss`; without the gradient where nobody reads it."""
        y, t, weights = operands
        if wanted[1]:
            return loss(y, t, weights, self.parameters)
        return forward_loss(y, t, weights, self.parameters), None


class ForwardLoss(Op, of=forward_loss, kind=Kind.REDUCTION):
    """`forward_loss` of predictions, labels and, if there are any, weights."""

    parameters: LossParameters


class LossGradient(Op, of=loss_gradient, kind=Kind.REDUCTION):
    """`loss_gradient` of a gradient, predictions, labels and, if there are any, weights."""

    parameters: LossParameters
    of_labels: bool


class InitialGradient(Op, kind=Kind.STORAGE, half=True):
    """Ones for each image of its operand, which is not looked at: the gradient of an image with itself."""

    channels: int
    height: int
    width: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """An image of ones."""
        return empty_image(operands[0], self.channels, (self.height, self.width)).fill_(1.0)
