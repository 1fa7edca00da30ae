"""Losses: golden numbers, labels in every layout, weights, reductions, loss images, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError, MTLExecutionError
from openmps.kernels.loss import (
    MPSCNNLoss,
    MPSCNNLossDataDescriptor,
    MPSCNNLossDescriptor,
    MPSCNNLossLabels,
    MPSNNForwardLoss,
)
from openmps.ops.elements import DTYPES
from openmps.ops.loss.loss import Loss
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNLossType,
    MPSCNNReductionType,
    MPSDataLayout,
    MPSImageFeatureChannelFormat,
    MPSOffset,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles import loss as oracle
from replay_twin import replayer_of, replaying_queue
from samples.loss import described, labels_for

CPU = mtl_device("cpu")
Type, Reduction = MPSCNNLossType, MPSCNNReductionType
HWC = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS
CHW = MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
TYPES = [kind for kind in Type if kind.name != "COUNT"]


def _size(values: np.ndarray) -> MTLSize:
    """The size of one image ``[C, H, W]``."""
    channels, height, width = values.shape
    return MTLSize(width, height, channels)


def _data(values: np.ndarray, layout: MPSDataLayout = HWC) -> MPSCNNLossDataDescriptor:
    ordered = values.transpose(1, 2, 0) if layout is HWC else values
    return MPSCNNLossDataDescriptor(np.ascontiguousarray(ordered, np.float32), layout, _size(values))


def _labels(
    bench: Bench, t: np.ndarray, weights: np.ndarray | None = None, whole: bool = False, layout: MPSDataLayout = HWC
) -> list[MPSCNNLossLabels]:
    return [
        MPSCNNLossLabels(
            bench.device,
            _data(values, layout),
            weights_descriptor=None if weights is None else _data(weights[index], layout),
            loss_image_size=_size(values) if whole else None,
        )
        for index, values in enumerate(t)
    ]


def _evaluate(
    bench: Bench, descriptor: MPSCNNLossDescriptor, y: np.ndarray, labels: list[MPSCNNLossLabels] | MPSStateBatch
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and gradient."""
    kernel = MPSCNNLoss(bench.device, descriptor)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    gradient = kernel.encode_batch(command_buffer, bench.batch(y), labels)  # type: ignore[arg-type]
    finish(command_buffer)
    return np.concatenate([numbers(label.loss_image()) for label in labels]), numbers(gradient)  # type: ignore


# --- golden numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smoothing", "value", "slopes"),
    [
        (0.0, 0.407606, [0.090031, 0.244728, -0.334759]),
        (0.1, 0.507606, [0.056697, 0.211395, -0.268092]),
    ],
)
def test_golden_softmax_cross_entropy(smoothing, value, slopes, device: torch.device) -> None:
    bench = Bench.on(device)
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, label_smoothing=smoothing, number_of_classes=3)
    y, t = np.array([1, 2, 3.0]).reshape(1, 3, 1, 1), np.array([0, 0, 1.0]).reshape(1, 3, 1, 1)
    losses, gradient = _evaluate(bench, descriptor, y, _labels(bench, t))
    assert_digits(losses, value, 6)
    assert_digits(gradient, slopes, 6)


ROOT = float(np.log(2))
FORMULAS = [
    ("absolute", Type.MEAN_ABSOLUTE_ERROR, [3, -3, 1], [1, 1, 1], [2, 4, 0], [1, -1, 0]),
    ("squared, no half", Type.MEAN_SQUARED_ERROR, [3, 0.5], [1, 1], [4, 0.25], [4, -1]),
    ("softmax, no label", Type.SOFT_MAX_CROSS_ENTROPY, [1, 2, 3], [0, 0, 0], [0, 0, 0], [0.090031, 0.244728, 0.665241]),
    ("sigmoid", Type.SIGMOID_CROSS_ENTROPY, [0, 0], [0, 1], [ROOT, ROOT], [0.5, -0.5]),
    ("categorical", Type.CATEGORICAL_CROSS_ENTROPY, [0.5, 0.25], [1, 0], [ROOT, 0], [-2, 0]),
    ("hinge, labels 0 and 1", Type.HINGE, [0.5, 0.5, 2], [0, 1, 1], [1.5, 0.5, 0], [1, -1, 0]),
    ("huber", Type.HUBER, [3, -3, 0.5], [0, 0, 0], [2.5, 2.5, 0.125], [1, -1, 0.5]),
    ("log", Type.LOG, [0.5, 0.5], [1, 0], [ROOT, ROOT], [-2, 2]),
    ("divergence", Type.KULLBACK_LEIBLER_DIVERGENCE, [-2 * ROOT, 7], [0.5, 0], [0.5 * ROOT, 0], [-0.5, 0]),
]
"""One pixel: predictions, labels, losses, slopes. The headers print some with errors: what holds is worked out here."""


@in_one_test
@pytest.mark.parametrize(("name", "kind", "y", "t", "values", "slopes"), FORMULAS, ids=[row[0] for row in FORMULAS])
def test_golden_formulas(name, kind, y, t, values, slopes, device: torch.device) -> None:
    bench = Bench.on(device)
    predictions, given = (np.asarray(each, np.float64).reshape(1, -1, 1, 1) for each in (y, t))
    losses, gradient = _evaluate(bench, described(kind, Reduction.NONE), predictions, _labels(bench, given, whole=True))
    assert_digits(losses, [float(v) for v in values], 5)
    assert_digits(gradient, [float(v) for v in slopes], 5)


def test_golden_cosine_distance(device: torch.device) -> None:
    """Over the whole image, here of two pixels, not over the channels of each."""
    bench = Bench.on(device)
    y, t = np.array([1.0, 2.0]).reshape(1, 1, 1, 2), np.array([3.0, 4.0]).reshape(1, 1, 1, 2)
    losses, gradient = _evaluate(bench, described(Type.COSINE_DISTANCE, Reduction.SUM), y, _labels(bench, t))
    assert losses.ravel().tolist() == [1 - 11]
    assert gradient.ravel().tolist() == [-3, -4]


def test_golden_smoothing_without_classes(device: torch.device) -> None:
    """`number_of_classes` is 1 unless it is set: each label gains e, not e / C."""
    bench = Bench.on(device)
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, label_smoothing=0.1)
    assert descriptor.number_of_classes == 1
    y, t = np.array([1, 2, 3.0]).reshape(1, 3, 1, 1), np.array([0, 0, 1.0]).reshape(1, 3, 1, 1)
    losses, gradient = _evaluate(bench, descriptor, y, _labels(bench, t))
    assert_digits(losses, 0.1 * 2.407606 + 0.1 * 1.407606 + 0.407606, 5)
    assert_digits(gradient, [0.090031 - 0.1, 0.244728 - 0.1, 0.665241 - 1.0], 5)
    descriptor = described(Type.SIGMOID_CROSS_ENTROPY, Reduction.SUM, label_smoothing=0.1)
    assert_digits(_evaluate(bench, descriptor, np.zeros((1, 1, 1, 1)), _labels(bench, t[:, 2:]))[1], 0.5 - 0.95, 6)


MEANS = [
    (Type.MEAN_SQUARED_ERROR, Reduction.MEAN, False, [4 / 12, 4 / 12]),
    (Type.MEAN_SQUARED_ERROR, Reduction.MEAN, True, [8 / 24, 0]),
    (Type.MEAN_SQUARED_ERROR, Reduction.SUM, True, [8, 0]),
    (Type.MEAN_SQUARED_ERROR, Reduction.SUM_BY_NON_ZERO_WEIGHTS, False, [4 / 12, 4 / 12]),
    (Type.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, False, [np.log(3) / 4, np.log(3) / 4]),
    (Type.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, True, [2 * np.log(3) / 8, 0]),
]


@pytest.mark.parametrize(("kind", "reduction", "across", "expected"), MEANS)
def test_golden_divisors(kind, reduction, across: bool, expected: list[float], device: torch.device) -> None:
    """Two images of four pixels and three channels: W H C, but W H with softmax; times the images across a batch."""
    bench = Bench.on(device)
    t = np.zeros((2, 3, 2, 2))
    t[:, 1, 0, 1] = 1.0 if kind is Type.SOFT_MAX_CROSS_ENTROPY else 2.0
    descriptor = described(kind, reduction, reduce_across_batch=across)
    losses, gradient = _evaluate(bench, descriptor, np.zeros(t.shape), _labels(bench, t))
    assert_digits(losses, expected, 5)
    slope = 1 / 3 - 1 if kind is Type.SOFT_MAX_CROSS_ENTROPY else -4
    assert_digits(gradient[:, 1, 0, 1], [slope, slope], 5)


def test_golden_weights(device: torch.device) -> None:
    """A weight for each label takes the place of the descriptor's; zeros do not count where that is asked."""
    bench = Bench.on(device)
    y, t = np.array([1.0, 3, 5]).reshape(1, 3, 1, 1), np.zeros((1, 3, 1, 1))
    weights = np.array([2.0, 0, 4]).reshape(1, 3, 1, 1)
    for given, reduction, value, slopes in (
        (None, Reduction.SUM, 0.5 * 35, [1, 3, 5]),
        (weights, Reduction.SUM, 2 * 1 + 4 * 25, [4, 0, 40]),
        (weights, Reduction.SUM_BY_NON_ZERO_WEIGHTS, (2 * 1 + 4 * 25) / 2, [4, 0, 40]),
        (0 * weights, Reduction.SUM_BY_NON_ZERO_WEIGHTS, 0, [0, 0, 0]),
    ):
        descriptor = described(Type.MEAN_SQUARED_ERROR, reduction, weight=0.5)
        losses, gradient = _evaluate(bench, descriptor, y, _labels(bench, t, given))
        assert (losses.item(), gradient.ravel().tolist()) == (value, slopes)


# --- against the oracle ----------------------------------------------------------------------------------------------


def _predictions(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    draw = rng.uniform(0.05, 0.95, size=shape) if kind in (Type.CATEGORICAL_CROSS_ENTROPY, Type.LOG) else None
    values = rng.normal(size=shape) if draw is None else draw
    return values.astype(np.float32).astype(np.float64)


@in_one_test
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("reduction", [r for r in Reduction if r.name != "COUNT"], ids=lambda r: r.name.lower())
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_every_loss_and_reduction(kind, reduction, weighted, device: torch.device, rng: np.random.Generator) -> None:
    if kind is Type.COSINE_DISTANCE and (reduction is not Reduction.SUM or weighted):
        pytest.skip("sums over the image, with one number as weight")
    bench = Bench.on(device)
    shape = (2, 3, 2, 4)
    y, t = _predictions(kind, shape, rng), labels_for(kind, shape)
    weights = None
    if weighted:
        weights = rng.integers(0, 3, size=shape).astype(np.float64)
        weights[1] = 0.0
    descriptor = described(kind, reduction, weight=0.75, delta=0.5, epsilon=1e-3)
    labels = _labels(bench, t, weights, whole=reduction is Reduction.NONE)
    losses, gradient = _evaluate(bench, descriptor, y, labels)
    parameters = oracle.Parameters(int(kind), int(reduction), weight=0.75, delta=0.5, epsilon=1e-3)
    values, slopes = oracle.loss(y, t, weights, parameters)
    assert_close(losses, values, 1e-5, "loss")
    assert_close(gradient, slopes, 1e-5, "gradient")


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.MEAN, Reduction.SUM_BY_NON_ZERO_WEIGHTS])
@pytest.mark.parametrize("kind", [Type.MEAN_SQUARED_ERROR, Type.SOFT_MAX_CROSS_ENTROPY], ids=lambda k: k.name)
def test_reduced_across_the_batch(kind, reduction, device: torch.device, rng: np.random.Generator) -> None:
    """The first loss image holds the batch's, the others 0; the gradient does not change."""
    bench = Bench.on(device)
    shape = (3, 4, 2, 2)
    y, t = _predictions(kind, shape, rng), labels_for(kind, shape)
    weights = rng.integers(0, 3, size=shape).astype(np.float64)
    descriptor = described(kind, reduction, reduce_across_batch=True)
    losses, gradient = _evaluate(bench, descriptor, y, _labels(bench, t, weights))
    parameters = oracle.Parameters(int(kind), int(reduction), reduce_across_batch=True)
    values, slopes = oracle.loss(y, t, weights, parameters)
    assert_close(losses, values, 1e-5)
    assert not losses[1:].any()
    alone = oracle.loss(y, t, weights, dataclasses.replace(parameters, reduce_across_batch=False))[1]
    assert_close(gradient, slopes, 1e-5)
    assert_close(gradient, alone, 1e-5)


def test_the_reduction_does_not_scale_the_gradient(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 3, 2, 2)), rng.normal(size=(1, 3, 2, 2))
    found = [
        _evaluate(bench, described(Type.MEAN_SQUARED_ERROR, reduction), y, _labels(bench, t))[1]
        for reduction in (Reduction.SUM, Reduction.MEAN)
    ]
    np.testing.assert_array_equal(*found)
    assert_close(found[0], 2 * (y - t), 1e-5)


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [HWC, CHW], ids=["hwc", "chw"])
@pytest.mark.parametrize("form", ["array", "bytes", "list"])
def test_layouts_and_forms(layout: MPSDataLayout, form: str, rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 2, 4)).astype(np.float32)
    ordered = np.ascontiguousarray(values.transpose(1, 2, 0) if layout is HWC else values)
    data: Any = {"array": ordered, "bytes": ordered.tobytes(), "list": ordered.ravel().tolist()}[form]
    descriptor = MPSCNNLossDataDescriptor(data, layout, MTLSize(4, 2, 3))
    assert (descriptor.layout, descriptor.size) == (layout, MTLSize(4, 2, 3))
    labels = MPSCNNLossLabels(CPU, descriptor)
    np.testing.assert_array_equal(numbers(labels.labels_image())[0], values)
    assert labels.labels_image().feature_channel_format is MPSImageFeatureChannelFormat.FLOAT32
    assert labels.weights_image() is None


def test_spaced_rows_and_planes(rng: np.random.Generator) -> None:
    """``bytes_per_row`` spaces rows, ``bytes_per_image`` planes of channels; both count bytes."""
    values = rng.normal(size=(3, 2, 4)).astype(np.float32)
    rows = np.full((2, 20), np.nan, np.float32)
    rows[:, :12] = values.transpose(1, 2, 0).reshape(2, 12)
    descriptor = MPSCNNLossDataDescriptor(rows.tobytes(), HWC, MTLSize(4, 2, 3))
    descriptor.bytes_per_row = 80
    np.testing.assert_array_equal(descriptor.values(), values)
    planes = np.full((3, 3, 6), np.nan, np.float32)
    planes[:, :2, :4] = values
    descriptor = MPSCNNLossDataDescriptor(planes.tobytes(), CHW, MTLSize(4, 2, 3))
    descriptor.bytes_per_row, descriptor.bytes_per_image = 24, 72
    np.testing.assert_array_equal(descriptor.values(), values)


@pytest.mark.parametrize(
    ("row", "image", "layout"), [(8, 0, HWC), (1000, 0, HWC), (0, 1000, CHW), (0, 8, CHW), (50, 0, HWC), (-48, 0, HWC)]
)
def test_bad_spacing(row: int, image: int, layout: MPSDataLayout) -> None:
    descriptor = MPSCNNLossDataDescriptor(np.zeros(24, np.float32).tobytes(), layout, MTLSize(4, 2, 3))
    descriptor.bytes_per_row, descriptor.bytes_per_image = row, image
    with pytest.raises(MPSArgumentError, match="^MPSCNNLossDataDescriptor: bytes_per_row and bytes_per_image must"):
        MPSCNNLossLabels(CPU, descriptor)


def test_labels_are_copied(device: torch.device) -> None:
    bench = Bench.on(device)
    data = np.ones((1, 1, 3), np.float32)
    labels = MPSCNNLossLabels(bench.device, MPSCNNLossDataDescriptor(data, HWC, MTLSize(1, 1, 3)))
    data[:] = 5
    assert numbers(labels.labels_image()).ravel().tolist() == [1, 1, 1]


def test_size_defaults_to_one_pixel() -> None:
    descriptor = MPSCNNLossDataDescriptor([1.0, 2.0, 3.0])
    assert descriptor.size == MTLSize(1, 1, 3)


def test_more_label_channels_than_predictions(device: torch.device, rng: np.random.Generator) -> None:
    """Twelve channels of labels for ten classes: padding that is no number is not looked at."""
    bench = Bench.on(device)
    y = rng.normal(size=(2, 10, 1, 1)).astype(np.float32).astype(np.float64)
    t = np.zeros((2, 12, 1, 1))
    t[0, 3], t[1, 9], t[:, 10:] = 1, 1, np.nan
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, weight=0.5)
    losses, gradient = _evaluate(bench, descriptor, y, _labels(bench, t))
    values, slopes = oracle.loss(y, t[:, :10], None, oracle.Parameters(2, int(Reduction.SUM), weight=0.5))
    assert_close(losses, values, 1e-5)
    assert_close(gradient, slopes, 1e-5)
    weights = np.full((2, 12, 1, 1), 2.0)
    weights[:, 10:] = np.nan
    losses, _ = _evaluate(bench, descriptor, y, _labels(bench, t, weights))
    assert_close(losses, values * 4, 1e-5)


@pytest.mark.parametrize("kind", [kind for kind in Type if kind is not Type.COUNT], ids=lambda kind: kind.name)
def test_a_label_that_the_predictions_have_no_channel_for(kind: Type, device: torch.device) -> None:
    """Class 2 of predictions of two channels has no loss: that is refused, not 0."""
    bench, y, t = Bench.on(device), np.full((3, 2, 1, 2), 0.5), np.zeros((3, 4, 1, 2))
    t[:, 0], t[1, 0, 0, 1], t[1, 2, 0, 1] = 1, 0, 1
    descriptor = described(kind, Reduction.SUM)
    rule = (
        r"labels must label the 2 channel.* got a label in channel 2 of image 1, pixel \(1, 0\)\. Give the predictions"
    )
    for labels in (_labels(bench, t), MPSCNNLossLabels.batch(bench.device, t.transpose(0, 2, 3, 1))):
        with pytest.raises(MTLExecutionError, match=rule):
            _evaluate(bench, descriptor, y, labels)
    for channel_format in DTYPES:
        forward, command_buffer = MPSNNForwardLoss(bench.device, descriptor), bench.command_buffer()
        keep_results(forward)
        losses = forward.encode_batch(command_buffer, bench.batch(y), bench.batch(t, channel_format))
        command_buffer.commit()
        with pytest.raises(MTLExecutionError, match=rule):
            losses.numpy()


def test_class_numbers_in_the_place_of_labels(device: torch.device) -> None:
    """The way to one-hot labels is said wherever class numbers may have been meant."""
    bench, classes = Bench.on(device), np.array([2, 0])
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM)
    y, how = np.zeros((2, 3, 1, 1)), r"one-hot.*numpy\.eye\(classes, dtype='float32'\)\[numbers\]"
    for given in (classes, torch.from_numpy(classes), classes.reshape(2, 1, 1)):
        with pytest.raises(MPSArgumentError, match=how):
            MPSCNNLossLabels.batch(bench.device, given)  # type: ignore[arg-type]
    for labels in (
        MPSCNNLossLabels.batch(bench.device, classes.reshape(2, 1)),
        [MPSCNNLossLabels(bench.device, MPSCNNLossDataDescriptor([float(number)])) for number in classes],
    ):
        with pytest.raises(MPSArgumentError, match=f"at least 3 channels.*{how}"):
            _evaluate(bench, descriptor, y, labels)
    with pytest.raises(MPSArgumentError, match=f"at least 3 channels.*{how}"):
        MPSNNForwardLoss(bench.device, descriptor).encode_batch(
            bench.command_buffer(), bench.batch(y), bench.batch(classes.reshape(2, 1, 1, 1))
        )
    _evaluate(bench, descriptor, y, MPSCNNLossLabels.batch(bench.device, np.eye(3, dtype="float32")[classes]))


def test_labels_from_images(device: torch.device, rng: np.random.Generator) -> None:
    """Images are kept, not copied; half precision will do."""
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 3, 2, 2)), rng.integers(0, 4, size=(1, 3, 2, 2)).astype(np.float64)
    image = bench.image(t, MPSImageFeatureChannelFormat.FLOAT16)
    weights = bench.image(np.full(t.shape, 2.0))
    labels = MPSCNNLossLabels(bench.device, labels_image=image, weights_image=weights)
    assert labels.labels_image() is image
    assert labels.weights_image() is weights
    descriptor = described(Type.MEAN_SQUARED_ERROR, Reduction.SUM)
    losses, _ = _evaluate(bench, descriptor, y, [labels])
    assert_close(losses.item(), 2 * ((y - t) ** 2).sum(), 1e-5)


def test_labels_of_a_whole_batch(device: torch.device, rng: np.random.Generator) -> None:
    """One array for all of them gives the numbers of single objects."""
    bench = Bench.on(device)
    y, t = rng.normal(size=(3, 4, 2, 2)), rng.normal(size=(3, 4, 2, 2))
    weights = rng.uniform(size=t.shape)
    descriptor = described(Type.HUBER, Reduction.MEAN)
    pixels, factors = t.transpose(0, 2, 3, 1), weights.transpose(0, 2, 3, 1)
    batch = MPSCNNLossLabels.batch(bench.device, pixels, weights=factors)
    expected = _evaluate(bench, descriptor, y, _labels(bench, t, weights))
    for found, wanted in zip(_evaluate(bench, descriptor, y, batch), expected, strict=True):
        assert_close(found, wanted, 1e-6)
    flat = MPSCNNLossLabels.batch(bench.device, np.eye(4)[[0, 3]])
    assert [numbers(label.labels_image()).ravel().tolist() for label in flat] == [[1, 0, 0, 0], [0, 0, 0, 1]]  # type: ignore
    with pytest.raises(MPSArgumentError, match=r"^MPSCNNLossLabels: labels must be shaped \[N, C\] or"):
        MPSCNNLossLabels.batch(bench.device, np.zeros(3))


# --- loss images and the encode --------------------------------------------------------------------------------------


def test_loss_images(device: torch.device) -> None:
    bench = Bench.on(device)
    t = np.zeros((1, 3, 2, 4))
    (small,), (whole,) = _labels(bench, t), _labels(bench, t, whole=True)
    assert small.loss_image() is small.loss_image()
    for labels, size in ((small, (1, 1, 1)), (whole, (4, 2, 3))):
        image = labels.loss_image()
        assert (image.width, image.height, image.feature_channels) == size
        assert image.feature_channel_format is MPSImageFeatureChannelFormat.FLOAT32
    assert small.resource_size() > 0


def test_labels_can_be_used_again(device: torch.device) -> None:
    """A second encode overwrites the loss."""
    bench = Bench.on(device)
    t = np.zeros((2, 3, 1, 1))
    labels = _labels(bench, t)
    descriptor = described(Type.MEAN_SQUARED_ERROR, Reduction.SUM)
    for value in (1.0, 2.0):
        losses, _ = _evaluate(bench, descriptor, np.full((2, 3, 1, 1), value), labels)
        assert losses.ravel().tolist() == [3 * value**2] * 2


def test_offset_and_clip_rect(device: torch.device, rng: np.random.Generator) -> None:
    """Labels have the size of the clip rectangle; the gradient lands in it."""
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 2, 4, 5)), rng.normal(size=(1, 2, 2, 3))
    kernel = MPSCNNLoss(bench.device, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    kernel.offset = MPSOffset(1, 2, 0)
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 0, 0), MTLSize(3, 2, 1))
    destination = bench.filled((1, 2, 3, 6), -7.0)
    (labels,) = _labels(bench, t)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(y), labels, destination)
    finish(command_buffer)
    part = y[:, :, 2:4, 1:4]
    expected = np.full((1, 2, 3, 6), -7.0)
    expected[:, :, 0:2, 2:5] = 2 * (part - t)
    assert_close(numbers(destination), expected, 1e-5)
    assert_close(numbers(labels.loss_image()).item(), ((part - t) ** 2).sum(), 1e-5)


def test_properties() -> None:
    descriptor = described(
        Type.HUBER,
        Reduction.MEAN,
        weight=2.0,
        label_smoothing=0.1,
        number_of_classes=4,
        epsilon=0.5,
        delta=3.0,
        reduce_across_batch=True,
    )
    kernel = MPSCNNLoss(CPU, descriptor)
    descriptor.weight = 99.0
    assert (kernel.loss_type, kernel.reduction_type, kernel.weight) == (Type.HUBER, Reduction.MEAN, 2.0)
    assert (kernel.label_smoothing, kernel.number_of_classes) == (0.1, 4)
    assert (kernel.epsilon, kernel.delta, kernel.reduce_across_batch) == (0.5, 3.0, True)
    plain = MPSCNNLossDescriptor(Type.LOG)
    assert (plain.reduction_type, plain.weight, plain.label_smoothing) == (Reduction.NONE, 1.0, 0.0)
    assert (plain.number_of_classes, plain.epsilon, plain.delta, plain.reduce_across_batch) == (1, 1e-7, 1.0, False)
    assert descriptor.copy().weight == 99.0


# --- what is refused -------------------------------------------------------------------------------------------------


def _refused(labels: Any, error: type[Exception], message: str, descriptor: Any = None, images: int = 1) -> None:
    bench = Bench(CPU)
    kernel = MPSCNNLoss(CPU, descriptor or described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    kernel.label = "l"
    with pytest.raises(error, match=f"^MPSCNNLoss 'l': {message}"):
        kernel.encode_batch(bench.command_buffer(), bench.batch(np.zeros((images, 3, 2, 2))), labels)


def test_wrong_labels() -> None:
    bench = Bench(CPU)
    good = _labels(bench, np.zeros((3, 3, 2, 2)))
    _refused(None, MPSArgumentError, "labels are needed")
    _refused([], MPSArgumentError, "labels must be one MPSCNNLossLabels an image, 1, got 0")
    _refused(good, MPSArgumentError, "labels must be one MPSCNNLossLabels an image, 2, got 3", images=2)
    _refused([1], MPSTypeError, r"labels\[0\] must be an MPSState")
    _refused(7, MPSTypeError, "labels must be a sequence of MPSState")
    smaller = _labels(bench, np.zeros((1, 3, 1, 2)))
    _refused(smaller, MPSArgumentError, r"labels\[0\] must be 2x2 with at least 3 channels.*got 2x1x3")
    fewer = _labels(bench, np.zeros((1, 2, 2, 2)))
    _refused(fewer, MPSArgumentError, r"labels\[0\] must be 2x2 with at least 3 channels")
    whole = _labels(bench, np.zeros((1, 3, 2, 2)), whole=True)
    _refused(whole, MPSArgumentError, r"labels\[0\].loss_image\(\) must be \(1, 1, 1\)")
    unreduced = described(Type.MEAN_SQUARED_ERROR, Reduction.NONE)
    _refused(good[:1], MPSArgumentError, r"labels\[0\].loss_image\(\) must be \(2, 2, 3\)", unreduced)
    some = [*_labels(bench, np.zeros((1, 3, 2, 2)), np.zeros((1, 3, 2, 2))), good[0]]
    _refused(some, MPSArgumentError, "labels must all have weights, or none", images=2)
    from openmps.core.state.state import MPSState

    _refused([MPSState(CPU, buffer_size=4)], MPSTypeError, r"labels\[0\] must be an MPSCNNLossLabels, got MPSState")
    cosine = described(Type.COSINE_DISTANCE, Reduction.SUM)
    _refused(some[:1], MPSArgumentError, r"labels\[0\] must have no weights", cosine)


def test_wrong_descriptors() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNLoss: loss_descriptor must be an MPSCNNLossDescriptor"):
        MPSCNNLoss(CPU, Type.HUBER)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="^MPSCNNLossDescriptor: type must be one of MEAN_ABSOLUTE"):
        MPSCNNLossDescriptor(77)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="^MPSCNNLossDescriptor: reduction_type must be SUM"):
        MPSCNNLoss(CPU, described(Type.COSINE_DISTANCE, Reduction.MEAN))
    with pytest.raises(MPSArgumentError, match="^MPSCNNLossDescriptor: number_of_classes must be at least 1"):
        MPSCNNLoss(CPU, described(Type.LOG, Reduction.MEAN, number_of_classes=0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["a", "b"],), MPSTypeError, "data must be float32 numbers, got list"),
        (
            ([1.0, 2.0], HWC, MTLSize(1, 1, 3)),
            MPSArgumentError,
            "data must hold 1 x 1 x 3 = 3 numbers, at least one, got 2",
        ),
        (([1.0], HWC, MTLSize(0, 1, 1)), MPSArgumentError, "data must hold 0 x 1 x 1"),
        (([1.0], 5), MPSArgumentError, "layout must be"),
        (([1.0], HWC, (1, 1, 1)), MPSTypeError, "size must be an MTLSize"),
        ((b"123",), MPSArgumentError, "data must be whole float32 numbers"),
    ],
)
def test_wrong_data(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^MPSCNNLossDataDescriptor: {message}"):
        MPSCNNLossDataDescriptor(*arguments)


def test_wrong_label_arguments() -> None:
    bench = Bench(CPU)
    data = MPSCNNLossDataDescriptor([1.0, 2.0])
    image = bench.empty((1, 2, 1, 1))
    with pytest.raises(MPSTypeError, match="^MPSCNNLossLabels: labels must be a labels_descriptor or a labels_image"):
        MPSCNNLossLabels(CPU)
    with pytest.raises(MPSTypeError, match="labels must be a labels_descriptor or a labels_image"):
        MPSCNNLossLabels(CPU, data, labels_image=image)
    with pytest.raises(MPSTypeError, match="descriptor must be an MPSCNNLossDataDescriptor"):
        MPSCNNLossLabels(CPU, [1.0])  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="weights must have the labels' size"):
        MPSCNNLossLabels(CPU, data, weights_descriptor=MPSCNNLossDataDescriptor([1.0]))
    with pytest.raises(MPSTypeError, match="labels_image must be an MPSImage"):
        MPSCNNLossLabels(CPU, labels_image=data)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="labels_image must hold exactly one image, got 2"):
        MPSCNNLossLabels(CPU, labels_image=bench.empty((2, 2, 1, 1)))
    with pytest.raises(MPSTypeError, match="loss_image_size must be an MTLSize"):
        MPSCNNLossLabels(CPU, data, loss_image_size=(1, 1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("weighting", ["none", "one number", "one a label"])
def test_softmax_cross_entropy_reads_float16_as_it_is_stored(
    weighting: str, device: torch.device, rng: np.random.Generator
) -> None:
    """The same numbers as from float32 images, the gradient rounded once; nothing runs that only converts."""
    bench = Bench.on(device)
    y = rng.standard_normal((3, 8, 2, 5)).astype(np.float16)
    t = np.eye(8)[rng.integers(0, 8, (3, 2, 5))].transpose(0, 3, 1, 2)
    weights = rng.random(t.shape) if weighting == "one a label" else None
    factor = 0.3 if weighting == "one number" else 1.0
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.MEAN, weight=factor, label_smoothing=0.1)
    kernel = MPSCNNLoss(bench.device, descriptor)
    keep_results(kernel)
    found = []
    for channel_format in (MPSImageFeatureChannelFormat.FLOAT32, MPSImageFeatureChannelFormat.FLOAT16):
        labels = _labels(bench, t, weights)
        command_buffer = bench.command_buffer()
        gradient = kernel.encode_batch(command_buffer, bench.batch(y, channel_format), labels)
        finish(command_buffer)
        found.append((numbers([each.loss_image() for each in labels]), numbers(gradient)))
    (losses, gradient), (half_losses, half_gradient) = found
    assert_close(half_losses, losses, 1e-6)
    assert_close(half_gradient, gradient.astype(np.float16), 0.0 if device.type == "cpu" else 1e-3)

    y_half, loss = torch.tensor(y, device=device), Loss(descriptor.parameters())
    _, slope = loss.run((True, True), y_half, torch.tensor(t, dtype=torch.float32, device=device), None)
    assert loss.takes_half
    assert slope is not None
    assert slope.dtype is torch.float16


def test_labels_are_no_part_of_what_is_planned(device: torch.device, rng: np.random.Generator) -> None:
    """Encodes with other labels of the same shape find the plan of the first one; with weights there is another."""
    bench = Bench.on(device)
    y = rng.random((2, 3, 1, 1))
    kernel = MPSCNNLoss(bench.device, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    source, destination = bench.batch(y), bench.batch(y)
    planned = []
    for weights in (None, None, y, y):
        kernel.encode_batch(bench.command_buffer(), source, _labels(bench, y, weights), destination)
        planned.append(len(kernel._configuration.plans))
    assert planned[1] == planned[0]
    assert planned[2:] == [planned[0] + 1] * 2


def test_a_label_without_a_channel_in_a_replay(device: torch.device) -> None:
    """A GPU's capture cannot refuse: the loss of the image is NaN, those of the others are right."""
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    loss = MPSCNNLoss(bench.device, described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM))
    keep_results(loss)
    source = bench.batch(np.zeros((3, 2, 1, 1)))
    classes = [(0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 2, 1), (1, 1, 1)]
    for given in classes:
        labels = MPSCNNLossLabels.batch(bench.device, np.eye(4, dtype=np.float32)[list(given)])
        command_buffer = bench.command_buffer()
        loss.encode_batch(command_buffer, source, labels)
        command_buffer.commit()
        is_fine = max(given) < 2
        if not is_fine and not bench.device.is_cuda:
            with pytest.raises(MTLExecutionError, match="got a label in channel 2 of image 1"):
                command_buffer.wait_until_completed()
            continue
        command_buffer.wait_until_completed()
        losses = [each.loss_image().numpy().item() for each in labels]
        assert [*map(np.isnan, losses)] == [each >= 2 for each in given]
        np.testing.assert_allclose([each for each in losses if not np.isnan(each)], np.log(2), rtol=1e-5)
    assert replayer_of(bench.queue).captures
