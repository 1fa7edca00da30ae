"""Losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from encoding import Bench
from openmps.core.kernel.encode import ImageKernel
from openmps.kernels import loss as kernels
from openmps.metal.device import MTLDevice
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MTLSize
from oracles import loss, yolo_loss
from samples.sample import Array, Reading, Sample, Shape, configured, exact

LossType, Reduction = MPSCNNLossType, MPSCNNReductionType
_LOSS_DOMAINS = {
    LossType.CATEGORICAL_CROSS_ENTROPY: "unit",
    LossType.LOG: "unit",
}


def described(kind: MPSCNNLossType, reduction: MPSCNNReductionType, **parameters: Any) -> kernels.MPSCNNLossDescriptor:
    """A descriptor with these of its properties."""
    return configured(kernels.MPSCNNLossDescriptor(kind, reduction), parameters)


def labels_for(kind: MPSCNNLossType, shape: tuple[int, ...]) -> Array:
    """Labels that suit a loss."""
    random = np.random.default_rng(int(kind) + sum(shape))
    if kind in (LossType.SOFT_MAX_CROSS_ENTROPY, LossType.CATEGORICAL_CROSS_ENTROPY):
        chosen = random.integers(0, shape[1], size=(shape[0], *shape[2:]))
        return np.moveaxis(np.eye(shape[1])[chosen], -1, 1).copy()
    if kind in (LossType.HINGE, LossType.SIGMOID_CROSS_ENTROPY, LossType.LOG):
        return random.integers(0, 2, size=shape).astype(np.float64)
    if kind is LossType.KULLBACK_LEIBLER_DIVERGENCE:
        return exact(random.uniform(0.1, 0.9, size=shape))
    return exact(random.normal(size=shape))


def _labels_objects(bench: Bench, targets: Array, whole: bool) -> list[Any]:
    """Labels objects for ``[N, C, H, W]`` labels; ``whole`` loss images are for losses that are not reduced."""
    _, channels, height, width = targets.shape
    size = MTLSize(width, height, channels)
    rows = np.ascontiguousarray(targets.transpose(0, 2, 3, 1), dtype=np.float32)
    return [
        kernels.MPSCNNLossLabels(
            bench.device,
            kernels.MPSCNNLossDataDescriptor(row, size=size),
            loss_image_size=size if whole else None,
        )
        for row in rows
    ]


def _loss(kind: MPSCNNLossType, reduction: MPSCNNReductionType, shape: Shape, **parameters: Any) -> Sample:
    images = 4
    targets = labels_for(kind, (images, *shape))
    chosen = loss.Parameters(int(kind), int(reduction), **parameters)
    whole = reduction is Reduction.NONE

    def make(device: MTLDevice) -> ImageKernel:
        return kernels.MPSCNNLoss(device, configured(kernels.MPSCNNLossDescriptor(kind, reduction), parameters))

    def labels(bench: Bench, first: int, count: int) -> list[Any]:
        return _labels_objects(bench, targets[first : first + count], whole)

    return Sample(
        f"loss {kind.name.lower()}, {reduction.name.lower()}",
        make,
        (shape,),
        lambda sources, how: loss.loss(how[0].region(sources[0]), targets[: len(sources[0])], None, chosen)[1],
        domain=_LOSS_DOMAINS.get(kind, "normal"),
        traits=frozenset({"pointwise", "across channels", "labels"}),
        labels=labels,
    )


LOSSES = [
    _loss(LossType.MEAN_ABSOLUTE_ERROR, Reduction.NONE, (3, 2, 2)),
    _loss(LossType.MEAN_SQUARED_ERROR, Reduction.MEAN, (4, 3, 2), weight=0.5),
    _loss(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, (10, 1, 1), weight=0.25),
    _loss(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, (5, 2, 3), label_smoothing=0.1, number_of_classes=5),
    _loss(LossType.SIGMOID_CROSS_ENTROPY, Reduction.SUM, (1, 2, 3), label_smoothing=0.2),
    _loss(LossType.CATEGORICAL_CROSS_ENTROPY, Reduction.SUM, (5, 1, 2)),
    _loss(LossType.HINGE, Reduction.MEAN, (3, 2, 2)),
    _loss(LossType.HUBER, Reduction.SUM, (4, 2, 2), delta=0.5),
    _loss(LossType.COSINE_DISTANCE, Reduction.SUM, (4, 2, 1), weight=2.0),
    _loss(LossType.LOG, Reduction.SUM_BY_NON_ZERO_WEIGHTS, (2, 2, 2), epsilon=1e-3),
    _loss(LossType.KULLBACK_LEIBLER_DIVERGENCE, Reduction.NONE, (8, 1, 1)),
]


# --- loss and gradient apart -----------------------------------------------------------------------------------------

TRAITS = frozenset({"pointwise", "across channels", "labels", "label images"})
IMAGES = 4


@dataclass(frozen=True)
class _Case:
    """A loss with labels, and perhaps weights, as images."""

    kind: MPSCNNLossType
    reduction: MPSCNNReductionType
    shape: Shape
    weighted: bool
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        weights = ", weights" if self.weighted else ""
        return f"{self.kind.name.lower()}, {self.reduction.name.lower()}{weights}"

    @property
    def targets(self) -> Array:
        return labels_for(self.kind, (IMAGES, *self.shape))

    @property
    def weights(self) -> Array | None:
        random = np.random.default_rng(17)
        return random.integers(0, 3, size=(IMAGES, *self.shape)).astype(np.float64) if self.weighted else None

    @property
    def oracle(self) -> loss.Parameters:
        return loss.Parameters(int(self.kind), int(self.reduction), **self.parameters)

    def descriptor(self) -> kernels.MPSCNNLossDescriptor:
        return configured(kernels.MPSCNNLossDescriptor(self.kind, self.reduction), self.parameters)

    def operands(self, bench: Bench, first: int, count: int, single: bool) -> tuple[Any, ...]:
        """Labels and weights as images, and no states."""
        arrange = bench.image if single else bench.batch
        parts = (self.targets, self.weights)
        return (*(None if part is None else arrange(part[first : first + count]) for part in parts), None)

    def some(self, count: int) -> tuple[Array, Array | None]:
        """Labels and weights of the first images."""
        weights = self.weights
        return self.targets[:count], None if weights is None else weights[:count]


def _forward(kind: MPSCNNLossType, reduction: MPSCNNReductionType, shape: Shape, weighted=False, **more: Any) -> Sample:
    case = _Case(kind, reduction, shape, weighted, more)
    return Sample(
        f"forward loss {case.name}",
        lambda device: kernels.MPSNNForwardLoss(device, case.descriptor()),
        (shape,),
        lambda sources, how: loss.loss(sources[0], *case.some(len(sources[0])), case.oracle)[0],
        domain=_LOSS_DOMAINS.get(kind, "normal"),
        traits=TRAITS,
        operands=case.operands,
    )


FORWARD_LOSSES = [
    _forward(LossType.MEAN_SQUARED_ERROR, Reduction.NONE, (3, 2, 2), True),
    _forward(LossType.MEAN_ABSOLUTE_ERROR, Reduction.SUM, (4, 3, 2), weight=0.5),
    _forward(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, (5, 2, 3), label_smoothing=0.1, number_of_classes=5),
    _forward(LossType.HUBER, Reduction.SUM_BY_NON_ZERO_WEIGHTS, (1, 2, 3), True, delta=0.5),
    _forward(LossType.COSINE_DISTANCE, Reduction.SUM, (4, 2, 1), weight=2.0),
    _forward(LossType.LOG, Reduction.MEAN, (1, 1, 1), epsilon=1e-3),
]


def _backward(
    kind: MPSCNNLossType,
    reduction: MPSCNNReductionType,
    shape: Shape,
    weighted: bool = False,
    of_labels: bool = False,
    **more: Any,
) -> Sample:
    """The loss gradient, a kernel of two sources: the gradient of the loss image and the predictions."""
    case = _Case(kind, reduction, shape, weighted, more)

    def make(device: MTLDevice) -> ImageKernel:
        kernel = kernels.MPSNNLossGradient(device, case.descriptor())
        kernel.compute_label_gradients = of_labels
        return kernel

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        gradient, predictions = sources
        return loss.flow(gradient, predictions, *case.some(len(predictions)), case.oracle, of_labels)

    return Sample(
        f"loss gradient {case.name}{', of labels' if of_labels else ''}",
        make,
        (shape if reduction is Reduction.NONE else (1, 1, 1), shape),
        forward,
        domain=_LOSS_DOMAINS.get(kind, "normal"),
        traits=TRAITS,
        operands=case.operands,
    )


LOSS_GRADIENTS = [
    _backward(LossType.MEAN_SQUARED_ERROR, Reduction.NONE, (3, 2, 2), True),
    _backward(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, (5, 2, 3), label_smoothing=0.1, number_of_classes=5),
    _backward(LossType.SIGMOID_CROSS_ENTROPY, Reduction.SUM, (4, 1, 2), True, label_smoothing=0.2),
    _backward(LossType.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, (4, 1, 2), of_labels=True, weight=0.5),
    _backward(LossType.KULLBACK_LEIBLER_DIVERGENCE, Reduction.NONE, (8, 2, 1), of_labels=True),
    _backward(LossType.HUBER, Reduction.SUM, (1, 1, 1), delta=0.5),
]


def _initial(shape: Shape) -> Sample:
    return Sample(
        f"initial gradient of {'x'.join(map(str, shape))}",
        kernels.MPSNNInitialGradient,
        (shape,),
        lambda sources, how: np.ones(how[0].region(sources[0]).shape),
        traits=frozenset({"pointwise"}),
    )


INITIAL_GRADIENTS = [_initial((1, 1, 1)), _initial((5, 3, 4))]


# --- detectors -------------------------------------------------------------------------------------------------------


def detector_labels(shape: tuple[int, ...], p: yolo_loss.Parameters, random: np.random.Generator) -> Array:
    """Labels of images ``[N, (5 + K) A, H, W]``: an object in about half of the cells, told to all of its boxes."""
    images, channels, height, width = shape
    count = len(p.anchors)
    labels = np.zeros((images, height, width, count, channels // count))
    classes = channels // count - 5
    for cell in np.ndindex(images, height, width):
        if random.uniform() < 0.5:
            continue
        anchor = np.array(p.anchors[random.integers(count)]) * random.uniform(0.6, 1.5, size=2)
        box = labels[cell]
        box[:, 0:2] = random.uniform(0.1, 0.9, size=2)
        box[:, 2:4] = np.log(anchor / np.array(p.anchors)) if p.raw_labels else anchor
        box[:, 4] = 1.0
        if classes:
            box[:, 5 + random.integers(classes)] = 1.0
    return exact(np.moveaxis(labels.reshape(images, height, width, channels), -1, 1))


def detector_descriptor(p: yolo_loss.Parameters) -> kernels.MPSCNNYOLOLossDescriptor:
    """The same parameters for the kernel."""
    parts = (p.xy, p.wh, p.confidence, p.classes)
    kinds = [LossType(part.kind) for part in parts]
    descriptor = kernels.MPSCNNYOLOLossDescriptor(*kinds, Reduction(p.reduction), p.anchors)
    names = ("weight", "label_smoothing", "number_of_classes", "epsilon", "delta")
    subs = ("xy_loss_descriptor", "wh_loss_descriptor", "confidence_loss_descriptor", "classes_loss_descriptor")
    for sub, part in zip(subs, parts, strict=True):
        configured(getattr(descriptor, sub), {name: getattr(part, name) for name in names})
    scales = ("scale_xy", "scale_wh", "scale_no_object", "scale_object", "scale_class")
    for name in (*scales, "rescore", "reduce_across_batch"):
        setattr(descriptor, name, getattr(p, name))
    descriptor.min_iou_for_object_presence, descriptor.max_iou_for_object_absence = p.presence, p.absence
    descriptor.labels_hold_raw_sizes = p.raw_labels
    return descriptor


def _detector(name: str, classes: int, size: tuple[int, int], p: yolo_loss.Parameters) -> Sample:
    shape = ((5 + classes) * len(p.anchors), *size)
    targets = detector_labels((IMAGES, *shape), p, np.random.default_rng(len(name)))
    return Sample(
        f"detector {name}",
        lambda device: kernels.MPSCNNYOLOLoss(device, detector_descriptor(p)),
        (shape,),
        lambda sources, how: yolo_loss.loss(how[0].region(sources[0]), targets[: len(sources[0])], None, p)[1],
        traits=frozenset({"pointwise", "across channels", "labels"}),
        labels=lambda bench, first, count: _labels_objects(
            bench, targets[first : first + count], p.reduction == int(Reduction.NONE)
        ),
    )


ANCHORS = ((1.0, 2.0), (1.5, 1.0), (3.0, 2.5))
DETECTORS = [
    _detector("with its defaults", 4, (3, 2), yolo_loss.Parameters(ANCHORS)),
    _detector("without rescoring", 2, (2, 3), yolo_loss.Parameters(ANCHORS[:2], rescore=False, reduction=2)),
    _detector("of one box and raw labels", 3, (2, 2), yolo_loss.Parameters(ANCHORS[:1], reduction=0, raw_labels=True)),
]
