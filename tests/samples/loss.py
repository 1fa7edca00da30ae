"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from encoding import Bench
from openmps.core.kernel import ImageKernel
from openmps.kernels import loss as kernels
from openmps.metal.device import MTLDevice
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MTLSize
from oracles import loss
from samples.sample import Array, Sample, Shape, configured, exact

LossType, Reduction = MPSCNNLossType, MPSCNNReductionType
_LOSS_DOMAINS = {
    LossType.CATEGORICAL_CROSS_ENTROPY: "unit",
    LossType.LOG: "unit",
}


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


def _loss(kind: MPSCNNLossType, reduction: MPSCNNReductionType, shape: Shape, **parameters: Any) -> Sample:
    images = 4
    targets = labels_for(kind, (images, *shape))
    chosen = loss.Parameters(int(kind), int(reduction), **parameters)
    whole = reduction is Reduction.NONE

    def make(device: MTLDevice) -> ImageKernel:
        return kernels.MPSCNNLoss(device, configured(kernels.MPSCNNLossDescriptor(kind, reduction), parameters))

    def labels(bench: Bench, first: int, count: int) -> list[Any]:
        size = MTLSize(shape[2], shape[1], shape[0])
        rows = np.ascontiguousarray(targets.transpose(0, 2, 3, 1), dtype=np.float32)[first : first + count]
        return [
            kernels.MPSCNNLossLabels(
                bench.device,
                kernels.MPSCNNLossDataDescriptor(row, size=size),
                loss_image_size=size if whole else None,
            )
            for row in rows
        ]

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
