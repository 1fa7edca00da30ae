"""Conventions of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import SOURCES, Case, Subject, graph_of, kernels, network, ordered, pixels
from mac_facts.fact import DEVICE, image
from oracles import conventions as oracle

Loss, Reduction = mps.MPSCNNLossType, mps.MPSCNNReductionType
Y = pixels([[[0.25, 0.5, 2.0], [1.0, 1.5, 0.75]]])
T = pixels([[[0, 1, 1], [1, 0, 0]]])
WEIGHTS = pixels([[[3, 1, 2], [0.5, 1, 4]]])
_UNFUSED = "no rule takes a loss, and none of convolutions runs in training"


def _descriptor(kind: Loss, reduction: Reduction = Reduction.SUM, **more: Any) -> mps.MPSCNNLossDescriptor:
    found = mps.MPSCNNLossDescriptor(kind, reduction)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def _labels(t: np.ndarray, weights: np.ndarray | None) -> mps.MPSCNNLossLabels:
    size = mps.MTLSize(t.shape[1], t.shape[0], t.shape[2])

    def data(values: np.ndarray) -> mps.MPSCNNLossDataDescriptor:
        return mps.MPSCNNLossDataDescriptor(values.astype(np.float32), size=size)

    of_weights = None if weights is None else data(weights)
    return mps.MPSCNNLossLabels(DEVICE, data(t), loss_image_size=mps.MTLSize(1, 1, 1), weights_descriptor=of_weights)


def _kernels(descriptor: mps.MPSCNNLossDescriptor, *more: np.ndarray) -> Subject:
    """Gradient and loss of `MPSCNNLoss`, and both of `MPSNNForwardLoss` and `MPSNNLossGradient`."""

    def make() -> Any:
        return (
            mps.MPSCNNLoss(DEVICE, descriptor),
            mps.MPSNNLossGradient(DEVICE, descriptor),
            mps.MPSNNForwardLoss(DEVICE, descriptor),
        )

    def encode(command_buffer: Any, joined: Any, gradient: Any, forward: Any) -> Sequence[Any]:
        labels = _labels(T, more[0] if more else None)
        images = [image(each) for each in (Y, T, *more)]
        return [
            joined.encode(command_buffer, images[0], labels),
            labels.loss_image(),
            gradient.encode(command_buffer, image([[[1]]]), *images),
            forward.encode(command_buffer, *images),
        ]

    return kernels(make, encode)


def _graph(descriptor: mps.MPSCNNLossDescriptor, *more: np.ndarray) -> Subject:
    """The same of their nodes."""

    def make(y: Any, *others: Any) -> Any:
        forward = mps.MPSNNForwardLossNode([y, *others], descriptor)
        made = mps.MPSNNInitialGradientNode(forward.result_image).training_graph(None)
        assert made
        return [mps.MPSCNNLossNode(y, descriptor).result_image, made[0].result_image, forward.result_image]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        labels, further = _labels(T, more[0] if more else None), list[Any]()
        made = graph.encode(command_buffer, ordered(graph, images), [labels], further)
        return [made, labels.loss_image(), *further]

    images = [image(each) for each in (Y, T, *more)]
    return network(make, *images, behind=False, encode=encode)


def _case(descriptor: mps.MPSCNNLossDescriptor, answers: Mapping[str, tuple[Any, Any]], *more: np.ndarray) -> Case:
    """Of a loss and its gradient by choice."""
    return Case(
        {choice: [gradient, loss, gradient, loss] for choice, (loss, gradient) in answers.items()},
        _kernels(descriptor, *more),
        _graph(descriptor, *more),
        unfused=_UNFUSED,
    )


# --- across a batch ---------------------------------------------------------------------------------------------------

_BATCH = np.stack([Y, Y[:, ::-1] / 2])
_ONE_HOT = np.eye(3)[np.array([[[0, 2]], [[1, 1]]])]
_ACROSS = _descriptor(Loss.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, reduce_across_batch=True)


def _batches() -> list[mps.MPSImageBatch]:
    return [mps.MPSImageBatch([image(each) for each in values]) for values in (_BATCH, _ONE_HOT)]


def _across_kernels() -> Subject:
    def make() -> Any:
        return mps.MPSNNForwardLoss(DEVICE, _ACROSS), mps.MPSCNNLoss(DEVICE, _ACROSS)

    def encode(command_buffer: Any, forward: Any, joined: Any) -> Sequence[Any]:
        y, t = _batches()
        labels = [_labels(each, None) for each in _ONE_HOT]
        joined.encode_batch(command_buffer, y, labels)
        return [*forward.encode_batch(command_buffer, y, t), *(each.loss_image() for each in labels)]

    return kernels(make, encode)


def _across_graph() -> Subject:
    def make() -> Sequence[Any]:
        y, t = (mps.MPSNNImageNode(mps.Handle(f"source {place}")) for place in range(2))
        forward, joined = mps.MPSNNForwardLossNode(y, t, _ACROSS), mps.MPSCNNLossNode(y, _ACROSS)
        return [graph_of([forward.result_image, joined.result_image])]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        labels = [_labels(each, None) for each in _ONE_HOT]
        made = graph.encode_batch(command_buffer, _batches(), [labels])
        return [*(made or ()), *(each.loss_image() for each in labels)]

    return Subject(make, encode, [each[0] for each in _batches()])


def _across(reading: str) -> list[float]:
    """Of both losses; the first image of each takes the whole."""
    return [oracle.entropy_of_batch(_BATCH, _ONE_HOT, reading), 0.0] * 2


# --- boxes ------------------------------------------------------------------------------------------------------------

_BOXES, _LABELS = pixels([[[0.25, -0.25, 0.125, 0.375, 0.5, 1, 2]]]), pixels([[[0.625, 0.75, 1.5, 2, 1, 1, 0]]])
_ANCHOR = (1.0, 2.0)


def _yolo_descriptor() -> mps.MPSCNNYOLOLossDescriptor:
    kinds = [Loss.MEAN_SQUARED_ERROR, Loss.HUBER, Loss.SIGMOID_CROSS_ENTROPY, Loss.SOFT_MAX_CROSS_ENTROPY]
    return mps.MPSCNNYOLOLossDescriptor(*kinds, Reduction.SUM, [_ANCHOR])


def _yolo_kernel() -> Subject:
    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        labels = _labels(_LABELS, None)
        return [made.encode(command_buffer, image(_BOXES), labels), labels.loss_image()]

    return kernels(lambda: mps.MPSCNNYOLOLoss(DEVICE, _yolo_descriptor()), encode)


def _yolo_graph() -> Subject:
    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        labels = _labels(_LABELS, None)
        return [graph.encode(command_buffer, [image(_BOXES)], [labels]), labels.loss_image()]

    return network(lambda y: mps.MPSCNNYOLOLossNode(y, _yolo_descriptor()), image(_BOXES), behind=False, encode=encode)


_YOLO = {"yolo_slope": ("sigmoid", "position"), "yolo_sizes": ("logarithms", "as_given"),
         "yolo_confidence": ("overlap", "one")}  # fmt: skip


def _yolo(name: str) -> Case:
    readings = {each: oracle.yolo_cell(_BOXES, _LABELS, _ANCHOR, name, each) for each in _YOLO[name]}
    return Case(
        {each: [slopes, value] for each, (value, slopes) in readings.items()},
        _yolo_kernel(),
        _yolo_graph(),
        unfused=_UNFUSED,
        besides=SOURCES | {*_YOLO},
    )


_ABSOLUTE = _descriptor(Loss.MEAN_ABSOLUTE_ERROR, weight=2.0)
_SQUARED = _descriptor(Loss.MEAN_SQUARED_ERROR, Reduction.MEAN)
_ENTROPY = -float((T * np.log(oracle.soft_max(Y))).sum())
CASES: Mapping[str, Case] = {
    **{name: _yolo(name) for name in _YOLO},
    "hinge_labels": _case(_descriptor(Loss.HINGE), {each: oracle.hinge(Y, T, each) for each in ("signs", "as_given")}),
    "soft_max_slope": _case(
        _descriptor(Loss.SOFT_MAX_CROSS_ENTROPY),
        {each: (_ENTROPY, oracle.soft_max_gradient(Y, T, each)) for each in ("difference", "derivative")},
    ),
    "cosine_distance": _case(
        _descriptor(Loss.COSINE_DISTANCE), {each: oracle.cosine_distance(Y, T, each) for each in ("image", "pixel")}
    ),
    "loss_weights": _case(
        _ABSOLUTE,
        {each: oracle.weighted_absolute(Y, T, WEIGHTS, 2.0, each) for each in ("image", "product")},
        WEIGHTS,
    ),
    "loss_gradient_mean": Case(
        {
            each: [
                2 * (Y - T),
                float(((Y - T) ** 2).mean()),
                oracle.squares_gradient(Y, T, 1.0, each),
                float(((Y - T) ** 2).mean()),
            ]
            for each in ("undivided", "divided")
        },
        _kernels(_SQUARED),
        _graph(_SQUARED),
        unfused=_UNFUSED,
    ),
    "batch_divisor": Case(
        {each: _across(each) for each in ("pixels", "numbers")},
        _across_kernels(),
        _across_graph(),
        unfused=_UNFUSED,
        besides=SOURCES | {"soft_max_slope"},
    ),
}
