"""The ten losses: value per element, gradients with respect to the prediction and to the label, four reductions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NAMES = (
    "mean_absolute_error mean_squared_error softmax_cross_entropy sigmoid_cross_entropy categorical_cross_entropy "
    "hinge huber cosine_distance log kullback_leibler"
).split()
NONE, SUM, MEAN, SUM_BY_NON_ZERO_WEIGHTS = range(4)


@dataclass(frozen=True)
class Parameters:
    kind: int
    reduction: int = SUM
    weight: float = 1.0
    label_smoothing: float = 0.0
    number_of_classes: int = 1
    epsilon: float = 1e-7
    delta: float = 1.0
    reduce_across_batch: bool = False


def _sigmoid(y: float) -> float:
    return 1.0 / (1.0 + math.exp(-y)) if y >= 0 else math.exp(y) / (1.0 + math.exp(y))


def _log(v: float) -> float:
    """The logarithm, with minus infinity at 0 and NaN below."""
    with np.errstate(all="ignore"):
        return float(np.log(v))


def _sign(v: float) -> float:
    return float(v > 0) - float(v < 0)


def smooth(t: float, p: Parameters) -> float:
    """`t*(1-e) + e/classes` for soft-max, `t*(1-e) + e/2` for sigmoid cross-entropy; other labels stay."""
    e = p.label_smoothing
    if e > 0 and NAMES[p.kind] == "softmax_cross_entropy":
        return t * (1 - e) + e / p.number_of_classes
    if e > 0 and NAMES[p.kind] == "sigmoid_cross_entropy":
        return t * (1 - e) + 0.5 * e
    return t


def _pointwise(name: str, y: float, t: float, p: Parameters) -> tuple[float, float]:
    """Loss and gradient of one element."""
    d = y - t
    if name == "mean_absolute_error":
        return abs(d), _sign(d)
    if name == "mean_squared_error":
        return d * d, 2 * d
    if name == "sigmoid_cross_entropy":
        return max(y, 0.0) - y * t + math.log1p(math.exp(-abs(y))), _sigmoid(y) - t
    if name == "categorical_cross_entropy":
        with np.errstate(all="ignore"):
            return (0.0, 0.0) if t == 0 else (-t * _log(y), float(np.divide(-t, y)))
    if name == "hinge":
        side = 2 * t - 1
        margin = 1 - side * y
        return max(0.0, margin), (-side if margin > 0 else 0.0)
    if name == "huber":
        if abs(d) <= p.delta:
            return 0.5 * d * d, d
        return 0.5 * p.delta**2 + p.delta * (abs(d) - p.delta), min(max(d, -p.delta), p.delta)
    if name == "log":
        e = p.epsilon
        value = -t * _log(y + e) - (1 - t) * _log(1 - y + e)
        with np.errstate(all="ignore"):
            return value, float(np.divide(y - t + e - 2 * e * t, (y + e) * (1 - y + e)))
    if name == "kullback_leibler":
        return (0.0 if t == 0 else t * (math.log(t) - y)), -t
    raise ValueError(name)


def _elements(y: np.ndarray, t: np.ndarray, p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Unweighted losses and gradients of one image `[C, H, W]`."""
    values, gradient = np.zeros(y.shape), np.zeros(y.shape)
    name = NAMES[p.kind]
    for row in range(y.shape[1]):
        for column in range(y.shape[2]):
            ys = [float(v) for v in y[:, row, column]]
            ts = [smooth(float(v), p) for v in t[:, row, column]]
            if name == "softmax_cross_entropy":
                largest = max(ys)
                total = largest + math.log(math.fsum(math.exp(v - largest) for v in ys))
                for c, (a, b) in enumerate(zip(ys, ts, strict=True)):
                    values[c, row, column] = -b * (a - total)
                    gradient[c, row, column] = math.exp(a - total) - b
            else:
                for c, (a, b) in enumerate(zip(ys, ts, strict=True)):
                    values[c, row, column], gradient[c, row, column] = _pointwise(name, a, b, p)
    return values, gradient


def _divisor(shape: tuple[int, ...], weights: np.ndarray | None, p: Parameters) -> float:
    """What the sum over `shape` = `[images, C, H, W]` is divided by."""
    if p.reduction == SUM:
        return 1.0
    if p.reduction == MEAN:
        images, channels, height, width = shape
        return float(images * height * width * (1 if NAMES[p.kind] == "softmax_cross_entropy" else channels))
    return float(math.prod(shape) if weights is None else np.count_nonzero(weights))


def _ratio(total: float, divisor: float) -> float:
    return total / divisor if divisor else 0.0


def _cosine(y: np.ndarray, t: np.ndarray, p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """`weight * (1 - sum y*t)` over each whole image: a scalar weight, and a sum whatever the reduction."""
    values = [p.weight * (1 - math.fsum((y[n] * t[n]).ravel())) for n in range(y.shape[0])]
    if p.reduce_across_batch:
        values = [math.fsum(values) if n == 0 else 0.0 for n in range(y.shape[0])]
    return np.array(values).reshape(-1, 1, 1, 1), -p.weight * t


def loss(y: np.ndarray, t: np.ndarray, weights: np.ndarray | None, p: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Values (`[N, C, H, W]` unreduced, else `[N, 1, 1, 1]`) and `dL/dy`, which ignores the reduction.

    Weights per label replace the scalar weight. Across the batch, everything lands in the first image.
    """
    if NAMES[p.kind] == "cosine_distance":
        return _cosine(y, t, p)
    values, gradient = np.zeros(y.shape), np.zeros(y.shape)
    for n in range(y.shape[0]):
        scale = p.weight if weights is None else weights[n]
        losses, slopes = _elements(y[n], t[n], p)
        values[n], gradient[n] = scale * losses, scale * slopes
    if p.reduction == NONE:
        return values, gradient
    reduced = np.zeros((y.shape[0], 1, 1, 1))
    for n in range(y.shape[0]):
        if not p.reduce_across_batch:
            mine = None if weights is None else weights[n]
            reduced[n] = _ratio(values[n].sum(), _divisor((1, *y.shape[1:]), mine, p))
        elif n == 0:
            reduced[n] = _ratio(values.sum(), _divisor(y.shape, weights, p))
    return reduced, gradient


def _label_slope(name: str, y: float, t: float, p: Parameters) -> float:
    """Derivative of one element's loss with respect to its label, before smoothing."""
    d = y - t
    if name == "mean_absolute_error":
        return -_sign(d)
    if name == "mean_squared_error":
        return -2 * d
    if name == "sigmoid_cross_entropy":
        return -y
    if name == "categorical_cross_entropy":
        return -_log(y)
    if name == "hinge":
        return -2 * y if 1 - (2 * t - 1) * y > 0 else 0.0
    if name == "huber":
        return -d if abs(d) <= p.delta else -p.delta * _sign(d)
    if name == "log":
        return _log(1 - y + p.epsilon) - _log(y + p.epsilon)
    if name == "cosine_distance":
        return -y
    if name == "kullback_leibler":
        return 0.0 if t == 0 else math.log(t) + 1 - y
    raise ValueError(name)


def label_slopes(y: np.ndarray, t: np.ndarray, p: Parameters) -> np.ndarray:
    """Derivatives of the element losses of `[N, C, H, W]` with respect to the labels, unweighted."""
    name = NAMES[p.kind]
    smoothed = p.label_smoothing > 0 and name in ("softmax_cross_entropy", "sigmoid_cross_entropy")
    result = np.zeros(y.shape)
    for n, c, row, column in np.ndindex(*y.shape):
        if name == "softmax_cross_entropy":
            others = [float(v) for v in y[n, :, row, column]]
            largest = max(others)
            total = largest + math.log(math.fsum(math.exp(v - largest) for v in others))
            slope = total - float(y[n, c, row, column])
        else:
            slope = _label_slope(name, float(y[n, c, row, column]), smooth(float(t[n, c, row, column]), p), p)
        result[n, c, row, column] = slope * (1 - p.label_smoothing if smoothed else 1.0)
    return result


def flow(
    gradient: np.ndarray,
    y: np.ndarray,
    t: np.ndarray,
    weights: np.ndarray | None,
    p: Parameters,
    of_labels: bool = False,
) -> np.ndarray:
    """What flows back: gradient of the loss images (`[N, 1, 1, 1]` for every element of an image) times weighted slope.

    The reduction does not matter, but for the batch's total, which lies in image 0.
    """
    if of_labels:
        slopes = label_slopes(y, t, p) * (p.weight if weights is None else weights)
    else:
        slopes = loss(y, t, weights, p)[1]
    result = np.zeros(y.shape)
    for index in np.ndindex(*y.shape):
        n, c, row, column = index
        if p.reduce_across_batch and p.reduction != NONE:
            n = 0
        incoming = gradient[n, 0, 0, 0] if gradient.shape[1:] == (1, 1, 1) else gradient[n, c, row, column]
        result[index] = slopes[index] * incoming
    return result
