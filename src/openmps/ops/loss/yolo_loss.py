"""The loss of an object detector whose cells have several anchor boxes (MPSCNNLoss.h, macOS 10.14)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.ops.geometry import empty_image
from openmps.ops.loss.loss import LossParameters, LossTerms, element_terms, reduce_losses
from openmps.ops.op import Kind, Op
from openmps.types import MPSCNNLossType, MPSCNNReductionType

# The channels of one anchor box: X Y W H C, then one for each class.
_CENTER, _SIZE, _CONFIDENCE, _CLASSES = slice(0, 2), slice(2, 4), slice(4, 5), slice(5, None)
BOX_CHANNELS = 5
"""Channels of an anchor box that are not classes."""
_GUARD = 1e-5
"""Added to a size before its logarithm."""


@dataclass(frozen=True, slots=True)
class YOLOLossParameters:
    """What an ``MPSCNNYOLOLossDescriptor`` holds besides its anchor boxes, with its defaults."""

    center: LossParameters
    size: LossParameters
    confidence: LossParameters
    classes: LossParameters
    reduction: MPSCNNReductionType
    reduce_across_batch: bool = False
    rescore: bool = True
    scale_xy: float = 10.0
    scale_wh: float = 10.0
    scale_no_object: float = 5.0
    scale_object: float = 100.0
    scale_class: float = 2.0
    min_iou_for_object_presence: float = 0.7
    max_iou_for_object_absence: float = 0.3
    labels_hold_raw_sizes: bool = False
    passes_sigmoid: bool = True
    """Whether the gradient of x and y is that through the sigmoid; else that of p."""

    def __post_init__(self) -> None:
        for part in (self.center, self.size, self.confidence, self.classes):
            if part.kind is MPSCNNLossType.COSINE_DISTANCE:
                rule = "must be losses of single elements: the cosine distance is one of a whole image"
                raise MPSArgumentError("MPSCNNYOLOLossDescriptor", "loss types", rule, part.kind.name)


def yolo_loss(
    y: Tensor, t: Tensor, weights: Tensor | None, anchors: Tensor, parameters: YOLOLossParameters
) -> tuple[Tensor, Tensor]:
    """The loss of the predictions ``y`` for the labels ``t``, and its gradient with respect to ``y``.

    ``y``, ``t`` and ``weights`` are ``[N, (5 + K) A, H, W]`` for K classes and the A boxes of ``anchors``, ``[A, 2]``:
    (width, height), in cells. Box a owns the channels from ``(5 + K) a`` on, x y w h c f0 … of the predictions and
    X Y W H C T0 … of the labels: X and Y in the cell, from 0 to 1, W and H in cells, C 1 where there is an object, else
    0. Of each cell and box (aw, ah)::

        p      = sigmoid(x, y);  predicted box: centre p, size (aw e^w, ah e^h)
        fit    = IOU of (aw, ah) and (W, H) about one centre
        object = C == 1 and (fit is the cell's largest, the first of equals, or fit > min_iou_for_object_presence)
        none   = not object and fit < max_iou_for_object_absence
        target = object * (rescore ? IOU of the predicted box and (X, Y, W, H) : 1)

        loss   = object scale_xy xy(p; X, Y) + object scale_wh wh(w, h; log((W, H) / (aw, ah) + 1e-5))
               + (object scale_object + none scale_no_object) confidence(c; target)
               + object scale_class classes(f; T)

    with ``labels_hold_raw_sizes``, the labels' W and H are the logarithms already, of boxes of (aw e^W, ah e^H). Each
    of the four losses has its own parameters; ``weights`` take the place of their weights, element by element. Nothing
    flows back through masks and target; the gradient of x and y is that through the sigmoid, without
    ``passes_sigmoid`` that of p.

    The loss is ``[N, C, H, W]`` for NONE, else ``[N, 1, 1, 1]``: the sum of an image, for MEAN over ``W*H*C``, for
    SUM_BY_NON_ZERO_WEIGHTS over the number of weights that are not 0. No reduction divides the gradient.
    """
    count = anchors.shape[0]
    cells, labels = _by_box(y, count), _by_box(t.to(y.dtype), count)
    factors = None if weights is None else _by_box(weights.to(y.dtype), count)
    # One box size a column: the boxes of a cell lie side by side.
    boxes = anchors.to(y.dtype).t().repeat(1, y.shape[3])[None, :, None, :]
    values, gradient = (empty_image(cells, cells.shape[1], (y.shape[2], cells.shape[3])) for _ in range(2))
    raw, sizes = _sizes(labels[:, _SIZE], boxes, parameters.labels_hold_raw_sizes)
    center = torch.sigmoid(cells[:, _CENTER])
    present, absent = _presence(labels[:, _CONFIDENCE], boxes, sizes, count, parameters)
    target = objects = present.to(y.dtype)
    if parameters.rescore:
        predicted = cells[:, _SIZE].exp().mul_(boxes)
        overlap = _overlap(center, predicted, labels[:, _CENTER], sizes)
        target = overlap.masked_fill_(present.logical_not(), 0.0)

    p = parameters
    confidence = (objects * p.scale_object).add_(absent, alpha=p.scale_no_object)
    parts = (
        (_CENTER, center, labels[:, _CENTER], p.center, objects * p.scale_xy),
        (_SIZE, cells[:, _SIZE], raw, p.size, objects * p.scale_wh),
        (_CONFIDENCE, cells[:, _CONFIDENCE], target, p.confidence, confidence),
        (_CLASSES, cells[:, _CLASSES], labels[:, _CLASSES], p.classes, objects * p.scale_class),
    )
    for channels, predictions, targets, loss, scale in parts:
        factor = loss.weight if factors is None else factors[:, channels]
        _put(values[:, channels], gradient[:, channels], element_terms(predictions, targets, loss), scale, factor)
    if p.passes_sigmoid:
        gradient[:, _CENTER].mul_(center).mul_(1.0 - center)
    losses = _by_channel(values, count)
    reduced = reduce_losses(losses, weights, p.reduction, across_batch=p.reduce_across_batch)
    return reduced, _by_channel(gradient, count)


def _sizes(given: Tensor, boxes: Tensor, are_raw: bool) -> tuple[Tensor, Tensor]:
    """The logarithms and the sizes of the labels' boxes."""
    return (given, given.exp().mul_(boxes)) if are_raw else ((given / boxes).add_(_GUARD).log_(), given)


def _by_box(x: Tensor, count: int) -> Tensor:
    """``[N, count * C, H, W]`` as ``[N, C, H, W * count]``: no copy of channels-last memory."""
    images, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(images, height, width * count, channels // count).permute(0, 3, 1, 2)


def _by_channel(x: Tensor, count: int) -> Tensor:
    """The inverse of `_by_box`."""
    images, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(images, height, width // count, channels * count).permute(0, 3, 1, 2)


def _put(values: Tensor, gradient: Tensor, terms: LossTerms, scale: Tensor, factor: Tensor | float) -> None:
    """Write scaled losses and gradients; where the scale is 0, zeros whatever they are."""
    unused = scale == 0.0
    for place, numbers in ((values, terms.value()), (gradient, terms.gradient())):
        place.copy_(numbers.mul_(factor).mul_(scale).masked_fill_(unused, 0.0))


def _presence(
    confidence: Tensor, boxes: Tensor, sizes: Tensor, count: int, parameters: YOLOLossParameters
) -> tuple[Tensor, Tensor]:
    """Where there is an object for a box, and where there is none: ``[N, 1, H, W * count]``."""
    common = _area(torch.minimum(boxes, sizes))
    fit = _ratio(common, _area(boxes) + _area(sizes) - common)
    cells = fit.unflatten(3, (-1, count))
    best = cells == cells.amax(4, keepdim=True)
    best = best.logical_and_(best.cumsum(4) == 1).flatten(3, 4)
    present = best.logical_or_(fit > parameters.min_iou_for_object_presence).logical_and_(confidence == 1.0)
    absent = (fit < parameters.max_iou_for_object_absence).logical_and_(present.logical_not())
    return present, absent


def _overlap(center: Tensor, size: Tensor, other_center: Tensor, other_size: Tensor) -> Tensor:
    """Intersection over union of boxes given by centre and size."""
    low = torch.maximum(center - size / 2, other_center - other_size / 2)
    high = torch.minimum(center + size / 2, other_center + other_size / 2)
    common = _area((high - low).clamp_min_(0.0))
    return _ratio(common, _area(size) + _area(other_size) - common)


def _area(size: Tensor) -> Tensor:
    return size[:, :1] * size[:, 1:]


def _ratio(common: Tensor, union: Tensor) -> Tensor:
    """``common / union``, 0 for boxes without area."""
    return common / union.clamp_min(torch.finfo(union.dtype).tiny)


class YOLOLoss(Op, of=yolo_loss, kind=Kind.REDUCTION, results=2):
    """`yolo_loss` of predictions, labels, weights if there are any, and anchor boxes: the losses and the gradient."""

    parameters: YOLOLossParameters
