"""MPSCNNYOLOLoss and its descriptor: numbers through labels objects, every property, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, Bench, encode, finish, keep_results, numbers
from helpers import assert_close
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss import (
    MPSCNNLoss,
    MPSCNNLossDescriptor,
    MPSCNNLossLabels,
    MPSCNNYOLOLoss,
    MPSCNNYOLOLossDescriptor,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from oracles import loss as loss_oracle
from oracles import yolo_loss as oracle
from oracles.loss import MEAN, NONE, SUM, SUM_BY_NON_ZERO_WEIGHTS
from oracles.yolo_loss import Parameters
from samples.loss import detector_descriptor, detector_labels

CPU = mtl_device("cpu")
Type, Reduction = MPSCNNLossType, MPSCNNReductionType
ANCHORS = ((1.0, 2.0), (1.5, 1.0), (3.0, 2.5))
TYPICAL = (Type.MEAN_SQUARED_ERROR, Type.HUBER, Type.SIGMOID_CROSS_ENTROPY, Type.SOFT_MAX_CROSS_ENTROPY)
SHAPE = (2, 24, 3, 2)
"""Three boxes and three classes."""


def _descriptor(*, anchors: Any = ANCHORS, reduction: Reduction = Reduction.SUM, **values: Any) -> Any:
    descriptor = MPSCNNYOLOLossDescriptor(*TYPICAL, reduction, anchors)
    for name, value in values.items():
        setattr(descriptor, name, value)
    return descriptor


def _labels(bench: Bench, t: np.ndarray, weights: Any = None, whole: bool = False) -> Any:
    _, channels, height, width = t.shape
    return MPSCNNLossLabels.batch(
        bench.device,
        t.transpose(0, 2, 3, 1),
        weights=None if weights is None else weights.transpose(0, 2, 3, 1),
        loss_image_size=MTLSize(width, height, channels) if whole else None,
    )


def _evaluate(bench: Bench, descriptor: Any, y: np.ndarray, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Losses and gradient."""
    kernel = MPSCNNYOLOLoss(bench.device, descriptor)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    gradient = kernel.encode_batch(command_buffer, bench.batch(y), labels)
    finish(command_buffer)
    return np.concatenate([numbers(each.loss_image()) for each in labels]), numbers(gradient)


def _images(p: Parameters, rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=shape).astype(np.float32).astype(np.float64), detector_labels(shape, p, rng)


# --- numbers ---------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("across", [False, True], ids=["each image", "across batch"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("reduction", [NONE, SUM, MEAN, SUM_BY_NON_ZERO_WEIGHTS])
def test_reductions_and_weights(reduction, weighted, across, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    p = Parameters(ANCHORS, reduction=reduction, reduce_across_batch=across)
    y, t = _images(p, rng)
    weights = rng.integers(0, 3, size=SHAPE).astype(np.float64) if weighted else None
    labels = _labels(bench, t, weights, whole=reduction == NONE)
    found = _evaluate(bench, detector_descriptor(p), y, labels)
    for actual, wanted, what in zip(found, oracle.loss(y, t, weights, p), ("loss", "gradient"), strict=True):
        assert_close(actual, wanted, 1e-5, what)


def test_every_value_reaches_the_mathematics(device: torch.device, rng: np.random.Generator) -> None:
    """Each of them changes loss or gradient as it does in the formulas."""
    bench = Bench.on(device)
    plain = Parameters(ANCHORS)
    y, t = _images(plain, rng, (2, 24, 6, 6))
    changes: list[dict[str, Any]] = [
        {"rescore": False},
        {"presence": 0.3},
        {"absence": 0.8},
        *({name: 0.5} for name in ("scale_xy", "scale_wh", "scale_no_object", "scale_object", "scale_class")),
        {"xy": loss_oracle.Parameters(0, weight=0.5)},
        {"wh": loss_oracle.Parameters(6, delta=0.1)},
        {"confidence": loss_oracle.Parameters(3, label_smoothing=0.2)},
        {"classes": loss_oracle.Parameters(2, label_smoothing=0.3, number_of_classes=3)},
    ]
    before = oracle.loss(y, t, None, plain)[1]
    for change in changes:
        p = replace(plain, **change)
        expected = oracle.loss(y, t, None, p)
        assert np.abs(expected[1] - before).max() > 1e-3, f"{change} must be seen"
        found = _evaluate(bench, detector_descriptor(p), y, _labels(bench, t))
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, wanted, 1e-5, str(change))


def test_single_images_and_one_object(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    p = Parameters(ANCHORS)
    y, t = _images(p, rng)
    losses, slopes = oracle.loss(y, t, None, p)
    kernel = MPSCNNYOLOLoss(bench.device, detector_descriptor(p))
    keep_results(kernel)
    labels, again = _labels(bench, t), _labels(bench, t)
    destination = bench.empty((1, *SHAPE[1:]))
    command_buffer = bench.command_buffer()
    whole = kernel.encode(command_buffer, bench.image(y), labels)
    one = encode(kernel, command_buffer, [bench.image(y[1:])], again[1], destination)
    finish(command_buffer)
    assert one is destination
    assert_close(numbers(whole), slopes, 1e-5)
    assert_close(numbers(destination), slopes[1:], 1e-5)
    assert_close(np.concatenate([numbers(each.loss_image()) for each in labels]), losses, 1e-5)
    assert_close(numbers(again[1].loss_image()), losses[1:], 1e-5)
    assert not numbers(again[0].loss_image()).any()


def test_offset_channels_and_clip_rect(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    p = Parameters(ANCHORS)
    y, t = _images(p, rng)
    wide = np.full((2, 32, 5, 4), np.nan)
    wide[:, 4:28, 1:4, 2:] = y
    kernel = MPSCNNYOLOLoss(bench.device, detector_descriptor(p))
    kernel.offset = MPSOffset(2, 1, 0)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 24
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 1, 0), MTLSize(2, 3, 1))
    destination = bench.batch(np.full((2, 24, 5, 4), -7.0))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(wide), _labels(bench, t), destination)
    finish(command_buffer)
    expected = np.full((2, 24, 5, 4), -7.0)
    expected[:, :, 1:4, 1:3] = oracle.loss(y, t, None, p)[1]
    assert_close(numbers(destination), expected, 1e-5)


def test_half_precision(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    p = Parameters(ANCHORS)
    y, t = _images(p, rng)
    y = y.astype(np.float16).astype(np.float64)
    kernel = MPSCNNYOLOLoss(bench.device, detector_descriptor(p))
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    found = kernel.encode_batch(command_buffer, bench.batch(y, FLOAT16), _labels(bench, t))
    finish(command_buffer)
    assert found[0].feature_channel_format is FLOAT16
    assert_close(numbers(found), oracle.loss(y, t, None, p)[1], 2.0**-11 * 1.01)


# --- properties ------------------------------------------------------------------------------------------------------

DEFAULTS = {
    "scale_xy": 10.0,
    "scale_wh": 10.0,
    "scale_no_object": 5.0,
    "scale_object": 100.0,
    "scale_class": 2.0,
    "min_iou_for_object_presence": 0.7,
    "max_iou_for_object_absence": 0.3,
}


def test_defaults_and_properties() -> None:
    descriptor = _descriptor(reduction=Reduction.MEAN)
    assert {name: getattr(descriptor, name) for name in DEFAULTS} == DEFAULTS
    assert (descriptor.rescore, descriptor.reduce_across_batch, descriptor.labels_hold_raw_sizes) == (
        True,
        False,
        False,
    )
    assert descriptor.reduction_type is Reduction.MEAN
    parts = ("xy", "wh", "confidence", "classes")
    for part, kind in zip(parts, TYPICAL, strict=True):
        own = getattr(descriptor, f"{part}_loss_descriptor")
        assert (own.loss_type, own.reduction_type, own.weight) == (kind, Reduction.MEAN, 1.0)
    values = {name: 0.125 + number for number, name in enumerate(DEFAULTS)}
    for name, value in values.items():
        setattr(descriptor, name, value)
    descriptor.reduce_across_batch = True
    descriptor.wh_loss_descriptor.delta = 0.25
    mine = MPSCNNLossDescriptor(Type.MEAN_ABSOLUTE_ERROR, Reduction.NONE)
    descriptor.xy_loss_descriptor = mine
    assert descriptor.xy_loss_descriptor is mine
    kernel = MPSCNNYOLOLoss(CPU, descriptor)
    descriptor.scale_xy = mine.weight = 99.0
    assert {name: getattr(kernel, name) for name in values} == values
    assert (kernel.reduction_type, kernel.reduce_across_batch, kernel.number_of_anchor_boxes) == (
        Reduction.MEAN,
        True,
        3,
    )
    np.testing.assert_array_equal(kernel.anchor_boxes, np.float32(ANCHORS))
    losses = (kernel.loss_xy, kernel.loss_wh, kernel.loss_confidence, kernel.loss_classes)
    assert all(type(each) is MPSCNNLoss for each in losses)
    assert [each.loss_type for each in losses] == [Type.MEAN_ABSOLUTE_ERROR, *TYPICAL[1:]]
    assert {each.reduction_type for each in losses} == {Reduction.MEAN}, "one reduction for all"
    assert all(each.reduce_across_batch for each in losses)
    assert (kernel.loss_xy.weight, kernel.loss_wh.delta) == (1.0, 0.25)
    assert kernel.loss_descriptor.scale_wh == values["scale_wh"]
    for name in (*values, "reduction_type", "anchor_boxes", "number_of_anchor_boxes", "loss_xy", "loss_classes"):
        with pytest.raises(AttributeError):
            setattr(kernel, name, getattr(kernel, name))


@pytest.mark.parametrize("form", ["array", "nested", "flat", "bytes"])
def test_forms_of_anchor_boxes(form: str) -> None:
    array = np.array(ANCHORS, np.float32)
    given: Any = {"array": array, "nested": ANCHORS, "flat": array.ravel().tolist(), "bytes": array.tobytes()}[form]
    descriptor = MPSCNNYOLOLossDescriptor(*TYPICAL, Reduction.SUM, given, 2)
    array[:] = 9
    assert descriptor.number_of_anchor_boxes == 2
    np.testing.assert_array_equal(descriptor.anchor_boxes, np.float32(ANCHORS[:2]))
    descriptor.number_of_anchor_boxes = 3
    np.testing.assert_array_equal(descriptor.anchor_boxes, np.float32(ANCHORS))
    descriptor.anchor_boxes[:] = 9
    descriptor.anchor_boxes = descriptor.anchor_boxes[:1]
    assert descriptor.number_of_anchor_boxes == 1
    assert MPSCNNYOLOLoss(CPU, descriptor).anchor_boxes.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("how", [MPSCNNYOLOLossDescriptor.copy, copy.copy])
def test_copies_of_descriptors(how: Any) -> None:
    descriptor = _descriptor(scale_xy=3.0)
    twin = how(descriptor)
    twin.scale_xy, twin.anchor_boxes, twin.wh_loss_descriptor.delta = 4.0, ((9.0, 9.0),), 0.5
    assert (descriptor.scale_xy, descriptor.wh_loss_descriptor.delta) == (3.0, 1.0)
    assert descriptor.number_of_anchor_boxes == 3
    assert "HUBER" in repr(descriptor)
    assert "3 anchor box(es)" in repr(descriptor)


# --- what is refused -------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("anchors", "error", "message"),
    [
        ([1.0, 2.0, 3.0], MPSArgumentError, r"must be pairs of width and height, got numbers shaped \(3,\)"),
        ([[1.0, 2.0, 3.0]] * 2, MPSArgumentError, "must be pairs of width and height, got numbers shaped"),
        ([], MPSArgumentError, "must be pairs"),
        (3.0, MPSArgumentError, "must be pairs"),
        ([[1.0, 0.0]], MPSArgumentError, "must be positive numbers"),
        ([[1.0, np.nan]], MPSArgumentError, "must be positive numbers"),
        ([["a", "b"]], MPSTypeError, "must be float32 numbers, got list"),
        ([[1.0], [1.0, 2.0]], MPSTypeError, "must be float32 numbers, got list"),
        (b"12345", MPSArgumentError, "must be whole float32 numbers, got 5 bytes"),
    ],
)
def test_wrong_anchor_boxes(anchors: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^MPSCNNYOLOLossDescriptor: anchor_boxes {message}"):
        _descriptor(anchors=anchors)


@pytest.mark.parametrize("count", [0, 4, -1, 1.5, True, "2"])
def test_wrong_numbers_of_anchor_boxes(count: Any) -> None:
    with pytest.raises(MPSArgumentError, match="number_of_anchor_boxes must be an integer of 1 to 3, as there are"):
        MPSCNNYOLOLossDescriptor(*TYPICAL, Reduction.SUM, ANCHORS, count)


def test_wrong_descriptors() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNYOLOLoss: loss_descriptor must be an MPSCNNYOLOLossDescriptor, got"):
        MPSCNNYOLOLoss(CPU, MPSCNNLossDescriptor(Type.HUBER))  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="type must be one of MEAN_ABSOLUTE"):
        MPSCNNYOLOLossDescriptor(*TYPICAL[:3], 77, Reduction.SUM, ANCHORS)  # type: ignore[arg-type]
    for name in ("xy", "wh", "confidence", "classes"):
        with pytest.raises(MPSTypeError, match=f"{name}_loss_descriptor must be an MPSCNNLossDescriptor, got int"):
            setattr(_descriptor(), f"{name}_loss_descriptor", 3)
        descriptor = _descriptor(**{f"{name}_loss_descriptor": MPSCNNLossDescriptor(Type.COSINE_DISTANCE)})
        with pytest.raises(MPSArgumentError, match="loss types must be losses of single elements"):
            MPSCNNYOLOLoss(CPU, descriptor)
    for name in DEFAULTS:
        with pytest.raises(MPSTypeError, match=f"^MPSCNNYOLOLossDescriptor: {name} must be a number, got 'much'"):
            MPSCNNYOLOLoss(CPU, _descriptor(**{name: "much"}))
    with pytest.raises(MPSArgumentError, match="reduction_type must be one of NONE, SUM"):
        MPSCNNYOLOLoss(CPU, _descriptor(reduction_type=9))


@pytest.mark.parametrize("channels", [4, 12, 23, 25])
def test_wrong_channels(channels: int) -> None:
    bench = Bench(CPU)
    kernel = MPSCNNYOLOLoss(CPU, _descriptor())
    kernel.label = "boxes"
    image = np.zeros((1, channels, 2, 2))
    rule = r"\(5 \+ classes\) \* 3 feature channels for 3 anchor box\(es\)"
    with pytest.raises(
        MPSArgumentError, match=f"^MPSCNNYOLOLoss 'boxes': source_image must have {rule}, got {channels}"
    ):
        kernel.encode_batch(bench.command_buffer(), bench.batch(image), _labels(bench, image))


def test_wrong_labels() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNYOLOLoss(CPU, _descriptor())
    images = bench.batch(np.zeros(SHAPE))

    def refused(error: type[Exception], message: str, labels: Any) -> None:
        with pytest.raises(error, match=f"^MPSCNNYOLOLoss: {message}"):
            kernel.encode_batch(bench.command_buffer(), images, labels)

    refused(MPSArgumentError, "labels are needed", None)
    refused(MPSTypeError, "labels must be a sequence of MPSState", 7)
    refused(
        MPSArgumentError,
        "labels must be one MPSCNNLossLabels an image, 2, got 1",
        _labels(bench, np.zeros((1, *SHAPE[1:]))),
    )
    refused(MPSArgumentError, r"labels\[0\] must be 2x3 with at least 24", _labels(bench, np.zeros((2, 8, 3, 2))))
    whole = _labels(bench, np.zeros(SHAPE), whole=True)
    refused(MPSArgumentError, r"labels\[0\].loss_image\(\) must be \(1, 1, 1\)", whole)
