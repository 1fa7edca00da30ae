"""The loss of a detector with anchor boxes: value and gradient of every number, box by box."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from oracles import loss as losses
from oracles.loss import MEAN, NONE, SUM, SUM_BY_NON_ZERO_WEIGHTS

Box = tuple[float, float, float, float]
"""Centre and size."""


@dataclass(frozen=True)
class Parameters:
    anchors: tuple[tuple[float, float], ...]
    xy: losses.Parameters = field(default_factory=lambda: losses.Parameters(1))
    wh: losses.Parameters = field(default_factory=lambda: losses.Parameters(6))
    confidence: losses.Parameters = field(default_factory=lambda: losses.Parameters(3))
    classes: losses.Parameters = field(default_factory=lambda: losses.Parameters(2))
    reduction: int = SUM
    reduce_across_batch: bool = False
    rescore: bool = True
    scale_xy: float = 10.0
    scale_wh: float = 10.0
    scale_no_object: float = 5.0
    scale_object: float = 100.0
    scale_class: float = 2.0
    presence: float = 0.7
    absence: float = 0.3
    raw_labels: bool = False


def _exp(v: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(v))


def _sigmoid(v: float) -> float:
    return 1 / (1 + _exp(-v))


def iou(one: Box, other: Box) -> float:
    """Intersection over union."""
    sides = []
    for axis in (0, 1):
        low = max(one[axis] - one[axis + 2] / 2, other[axis] - other[axis + 2] / 2)
        high = min(one[axis] + one[axis + 2] / 2, other[axis] + other[axis + 2] / 2)
        sides.append(max(0.0, high - low))
    common = sides[0] * sides[1]
    union = one[2] * one[3] + other[2] * other[3] - common
    return common / union if union else 0.0


def _part(y: np.ndarray, t: np.ndarray, weights: np.ndarray | None, p: losses.Parameters) -> tuple[list, list]:
    """Losses and slopes of the channels of one box's part."""
    shape = (1, len(y), 1, 1)
    factors = None if weights is None else weights.reshape(shape)
    values, slopes = losses.loss(y.reshape(shape), t.reshape(shape), factors, replace(p, reduction=NONE))
    return values.ravel().tolist(), slopes.ravel().tolist()


def fits(label: np.ndarray, p: Parameters) -> list[float]:
    """How well each box of a cell `[A, 5 + K]` fits the label in its channels."""
    found = []
    for (aw, ah), row in zip(p.anchors, label, strict=True):
        w, h = _true_size(row, (aw, ah), p)
        found.append(iou((0.0, 0.0, aw, ah), (0.0, 0.0, w, h)))
    return found


def _true_size(label: np.ndarray, anchor: tuple[float, float], p: Parameters) -> tuple[float, float]:
    if p.raw_labels:
        return anchor[0] * math.exp(label[2]), anchor[1] * math.exp(label[3])
    return float(label[2]), float(label[3])


def _cell(
    y: np.ndarray, t: np.ndarray, weights: np.ndarray | None, p: Parameters, rescored: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and gradients of one cell, `[A, 5 + K]`; the confidence targets come from the predictions `rescored`."""
    values, slopes = np.zeros(y.shape), np.zeros(y.shape)
    fit = fits(t, p)
    for a, (aw, ah) in enumerate(p.anchors):
        w, h = _true_size(t[a], (aw, ah), p)
        present = t[a, 4] == 1 and (a == fit.index(max(fit)) or fit[a] > p.presence)
        absent = not present and fit[a] < p.absence
        seen = rescored[a]
        predicted = (_sigmoid(seen[0]), _sigmoid(seen[1]), aw * _exp(seen[2]), ah * _exp(seen[3]))
        target = iou(predicted, (t[a, 0], t[a, 1], w, h)) if p.rescore else 1.0
        center = np.array([_sigmoid(v) for v in y[a, :2]])
        raw = t[a, 2:4] if p.raw_labels else np.log(np.array([w / aw, h / ah]) + 1e-5)
        parts = [
            (slice(0, 2), center, t[a, :2], p.xy, p.scale_xy if present else 0.0),
            (slice(2, 4), y[a, 2:4], raw, p.wh, p.scale_wh if present else 0.0),
            (
                slice(4, 5),
                y[a, 4:5],
                np.array([target if present else 0.0]),
                p.confidence,
                p.scale_object if present else p.scale_no_object if absent else 0.0,
            ),
            (slice(5, None), y[a, 5:], t[a, 5:], p.classes, p.scale_class if present else 0.0),
        ]
        for channels, prediction, label, loss, scale in parts:
            if not scale or not len(prediction):
                continue
            factors = None if weights is None else weights[a, channels]
            found, derived = _part(prediction, label, factors, loss)
            values[a, channels] = np.array(found) * scale
            slopes[a, channels] = np.array(derived) * scale
        slopes[a, :2] *= center * (1 - center)
    return values, slopes


def loss(
    y: np.ndarray, t: np.ndarray, weights: np.ndarray | None, p: Parameters, rescored: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Losses (`[N, C, H, W]`, or `[N, 1, 1, 1]` reduced) and the gradient of their sum.

    ``rescored`` are the predictions that the targets of the confidence come from: `y` unless they are held.
    """
    count = len(p.anchors)
    images, _, height, width = y.shape
    values, slopes = np.zeros(y.shape), np.zeros(y.shape)
    held = y if rescored is None else rescored
    for n, row, column in np.ndindex(images, height, width):
        pixel = (n, slice(None), row, column)
        cell = [None if part is None else part[pixel].reshape(count, -1) for part in (y, t, weights, held)]
        found = _cell(cell[0], cell[1], cell[2], p, cell[3])
        values[pixel], slopes[pixel] = (part.ravel() for part in found)
    return _reduced(values, weights, p), slopes


def _reduced(values: np.ndarray, weights: np.ndarray | None, p: Parameters) -> np.ndarray:
    if p.reduction == NONE:
        return values
    result = np.zeros((len(values), 1, 1, 1))
    groups = [range(len(values))] if p.reduce_across_batch else [range(n, n + 1) for n in range(len(values))]
    for group in groups:
        total = values[list(group)].sum()
        divisor = 1.0
        if p.reduction == MEAN or (p.reduction == SUM_BY_NON_ZERO_WEIGHTS and weights is None):
            divisor = float(values[list(group)].size)
        elif p.reduction == SUM_BY_NON_ZERO_WEIGHTS:
            divisor = float(np.count_nonzero(weights[list(group)]))
        result[group.start] = total / divisor if divisor else 0.0
    return result
