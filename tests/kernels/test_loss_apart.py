"""MPSNNForwardLoss, MPSNNLossGradient, MPSNNInitialGradient: the value of a loss, what flows back, where it starts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, Bench, finish, keep_results, numbers, temporary_copy
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.state.gradient import MPSNNGradientState
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.kernels.arithmetic import MPSCNNAdd
from openmps.kernels.loss import (
    MPSCNNLoss,
    MPSCNNLossDescriptor,
    MPSCNNLossLabels,
    MPSNNForwardLoss,
    MPSNNInitialGradient,
    MPSNNLossGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MTLOrigin, MTLRegion, MTLSize
from oracles import loss as oracle
from replay_twin import assert_same
from samples.loss import described, labels_for

CPU = mtl_device("cpu")
Type, Reduction = MPSCNNLossType, MPSCNNReductionType
TYPES = [kind for kind in Type if kind.name != "COUNT"]
REDUCTIONS = [reduction for reduction in Reduction if reduction.name != "COUNT"]


def _predictions(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    positive = kind in (Type.CATEGORICAL_CROSS_ENTROPY, Type.LOG)
    values = rng.uniform(0.05, 0.95, size=shape) if positive else rng.normal(size=shape)
    return values.astype(np.float32).astype(np.float64)


def _pass(
    bench: Bench, forward: Any, gradient: Any, y: np.ndarray, t: np.ndarray, weights: Any = None, flow: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Loss images, and what flows back from ``flow``, ones by default, with the states of the forward encode."""
    keep_results(forward)
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    images, labels = bench.batch(y), bench.batch(t)
    factors = None if weights is None else bench.batch(weights)
    losses, states = forward.encode_batch(command_buffer, images, labels, factors, destination_state_is_temporary=False)
    incoming = None if flow is None else bench.batch(flow)
    if incoming is None:
        incoming = MPSNNInitialGradient(bench.device).encode_batch(command_buffer, losses)
    result = gradient.encode_batch(command_buffer, incoming, images, labels, factors, states)
    finish(command_buffer)
    return numbers(losses), numbers(result)


def _kernels(bench: Bench, descriptor: MPSCNNLossDescriptor) -> tuple[MPSNNForwardLoss, MPSNNLossGradient]:
    return MPSNNForwardLoss(bench.device, descriptor), MPSNNLossGradient(bench.device, descriptor)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smoothing", "value", "slopes"),
    [(0.0, 0.407606, [0.090031, 0.244728, -0.334759]), (0.1, 0.507606, [0.056697, 0.211395, -0.268092])],
)
def test_golden_softmax_cross_entropy(smoothing, value, slopes, device: torch.device) -> None:
    bench = Bench.on(device)
    descriptor = described(Type.SOFT_MAX_CROSS_ENTROPY, Reduction.SUM, label_smoothing=smoothing, number_of_classes=3)
    y, t = np.array([1, 2, 3.0]).reshape(1, 3, 1, 1), np.array([0, 0, 1.0]).reshape(1, 3, 1, 1)
    losses, gradient = _pass(bench, *_kernels(bench, descriptor), y, t)
    assert_digits(losses, value, 6)
    assert_digits(gradient, slopes, 6)


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.MEAN])
def test_golden_the_reduction_does_not_divide_the_gradient(reduction: Reduction, device: torch.device) -> None:
    """2 (y - t) from an initial gradient of 1; the loss itself is divided."""
    bench = Bench.on(device)
    y, t = np.array([3.0, 5.0]).reshape(1, 1, 1, 2), np.array([1.0, 1.0]).reshape(1, 1, 1, 2)
    losses, gradient = _pass(bench, *_kernels(bench, described(Type.MEAN_SQUARED_ERROR, reduction)), y, t)
    assert losses.item() == (20 if reduction is Reduction.SUM else 10)
    assert gradient.ravel().tolist() == [4, 8]


@in_one_test
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name.lower())
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("across", [False, True], ids=["each image", "across batch"])
def test_every_loss(kind, reduction, weighted, across, device: torch.device, rng: np.random.Generator) -> None:
    """Value, gradients of predictions and of labels, as the formulas have them, from a gradient that is not 1."""
    if kind is Type.COSINE_DISTANCE and (reduction is not Reduction.SUM or weighted):
        pytest.skip("sums over the image, with one number as weight")
    bench, shape = Bench.on(device), (2, 3, 2, 4)
    y, t = _predictions(kind, shape, rng), labels_for(kind, shape)
    weights = rng.integers(0, 3, size=shape).astype(np.float64) if weighted else None
    numbers_ = {"weight": 0.75, "delta": 0.5, "epsilon": 1e-3, "label_smoothing": 0.2, "number_of_classes": 3}
    descriptor = described(kind, reduction, reduce_across_batch=across, **numbers_)
    p = oracle.Parameters(int(kind), int(reduction), reduce_across_batch=across, **numbers_)
    flow = rng.normal(size=shape if reduction is Reduction.NONE else (2, 1, 1, 1))
    expected = oracle.loss(y, t, weights, p)[0]
    for of_labels in (False, True):
        forward, gradient = _kernels(bench, descriptor)
        gradient.compute_label_gradients = of_labels
        losses, found = _pass(bench, forward, gradient, y, t, weights, flow)
        assert_close(losses, expected, 1e-5, "loss")
        assert_close(found, oracle.flow(flow, y, t, weights, p, of_labels), 1e-5, f"gradient, of labels: {of_labels}")


@in_one_test
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name.lower())
def test_together_they_are_the_loss_in_one(kind: Type, device: torch.device, rng: np.random.Generator) -> None:
    bench, shape = Bench.on(device), (2, 3, 2, 2)
    y, t = _predictions(kind, shape, rng), labels_for(kind, shape)
    reduction = Reduction.SUM if kind is Type.COSINE_DISTANCE else Reduction.MEAN
    descriptor = described(kind, reduction, weight=0.5, label_smoothing=0.1, number_of_classes=3)
    losses, gradient = _pass(bench, *_kernels(bench, descriptor), y, t)
    whole = MPSCNNLoss(bench.device, descriptor)
    keep_results(whole)
    labels = MPSCNNLossLabels.batch(bench.device, t.transpose(0, 2, 3, 1))
    command_buffer = bench.command_buffer()
    expected = whole.encode_batch(command_buffer, bench.batch(y), labels)
    finish(command_buffer)
    assert_same(gradient, numbers(expected), device)
    assert_same(losses, np.concatenate([numbers(each.loss_image()) for each in labels]), device)


def test_a_sum_of_losses_by_the_chain_rule(device: torch.device, rng: np.random.Generator) -> None:
    """f = 2 L1 + 3 L2 of the same predictions, from an initial gradient of f with itself."""
    bench, shape = Bench.on(device), (2, 3, 2, 2)
    y, t = rng.normal(size=shape), rng.normal(size=shape)
    pairs = [_kernels(bench, described(kind, Reduction.SUM)) for kind in (Type.MEAN_SQUARED_ERROR, Type.HUBER)]
    add = MPSCNNAdd(bench.device)
    add.primary_scale, add.secondary_scale = 2.0, 3.0
    command_buffer = bench.command_buffer()
    images, labels = bench.batch(y), bench.batch(t)
    losses = [forward.encode_batch(command_buffer, images, labels) for forward, _ in pairs]
    total = add.encode_batch(command_buffer, *losses)
    start = MPSNNInitialGradient(bench.device)
    keep_results(start)
    ones = start.encode_batch(command_buffer, total)
    flows = []
    for (_, gradient), scale in zip(pairs, (2.0, 3.0), strict=True):
        keep_results(gradient)
        gradient.weight = scale
        flows.append(gradient.encode_batch(command_buffer, ones, images, labels))
    finish(command_buffer)
    assert (numbers(ones) == 1.0).all()
    difference = y - t
    expected = 4 * difference + 3 * np.clip(difference, -1, 1)
    assert_close(sum(numbers(flow) for flow in flows), expected, 1e-5)


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.NONE], ids=lambda r: r.name.lower())
def test_finite_differences_of_the_kernels(reduction, device: torch.device, rng: np.random.Generator) -> None:
    """A square's differences are exact, up to float32's rounding."""
    bench, shape = Bench.on(device), (2, 3, 2, 2)
    y, t = rng.normal(size=shape), rng.normal(size=shape)
    weights = rng.uniform(0.5, 2.0, size=shape)
    descriptor = described(Type.MEAN_SQUARED_ERROR, reduction)
    flow = rng.normal(size=shape if reduction is Reduction.NONE else (2, 1, 1, 1))
    direction = rng.normal(size=shape)
    for of_labels in (False, True):
        forward, gradient = _kernels(bench, descriptor)
        gradient.compute_label_gradients = of_labels
        _, found = _pass(bench, forward, gradient, y, t, weights, flow)
        moved = [(y, t + s * direction) if of_labels else (y + s * direction, t) for s in (0.5, -0.5)]
        above, below = (_pass(bench, *_kernels(bench, descriptor), *pair, weights, flow)[0] for pair in moved)
        assert_close(((above - below) * flow).sum(), (found * direction).sum(), 1e-5)


def test_more_label_channels_than_predictions(device: torch.device, rng: np.random.Generator) -> None:
    """Surplus channels of labels and weights, and those beside the slice of the predictions, enter no sum."""
    bench = Bench.on(device)
    y, t = rng.normal(size=(2, 3, 2, 2)), rng.normal(size=(2, 3, 2, 2))
    padding = np.full((2, 4, 2, 2), np.nan)
    weights = np.ones((2, 3, 2, 2))
    wide = [np.concatenate([values, padding], axis=1) for values in (t, weights)]
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    forward.source_feature_channel_offset, forward.source_feature_channel_max_count = 4, 3
    gradient.secondary_source_feature_channel_offset, gradient.secondary_source_feature_channel_max_count = 4, 3
    losses, found = _pass(bench, forward, gradient, np.concatenate([padding, y], axis=1), *wide)
    assert_close(losses.ravel(), ((y - t) ** 2).sum(axis=(1, 2, 3)), 1e-5)
    assert_close(found, 2 * (y - t), 1e-5)


def test_labels_in_half_precision(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 3, 2, 2)), rng.integers(0, 9, size=(1, 3, 2, 2)).astype(np.float64)
    forward = MPSNNForwardLoss(bench.device, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    keep_results(forward)
    command_buffer = bench.command_buffer()
    losses = forward.encode_batch(command_buffer, bench.batch(y), bench.batch(t, FLOAT16))
    half = forward.encode_batch(command_buffer, bench.batch(t, FLOAT16), bench.batch(t))
    single = bench.filled((1, 1, 1, 1), 7.0)
    forward.encode_batch(command_buffer, bench.batch(t + 512, FLOAT16), bench.batch(t), None, None, [single])
    finish(command_buffer)
    assert_close(numbers(losses).item(), ((y - t) ** 2).sum(), 1e-5)
    assert half[0].feature_channel_format is FLOAT16
    assert numbers(single).item() == 512.0**2 * 12, "too large for float16, hence the destination of float32"


# --- states and properties -------------------------------------------------------------------------------------------


def test_properties(device: torch.device) -> None:
    bench = Bench.on(device)
    values = {"weight": 2.0, "label_smoothing": 0.1, "epsilon": 0.5, "delta": 3.0}
    fixed = {"number_of_classes": 4, "reduce_across_batch": True}
    descriptor = described(Type.HUBER, Reduction.MEAN, **values, **fixed)
    for kernel in _kernels(bench, descriptor):
        assert (kernel.loss_type, kernel.reduction_type) == (Type.HUBER, Reduction.MEAN)
        assert {name: getattr(kernel, name) for name in (*values, *fixed)} == {**values, **fixed}
        told = kernel.loss_descriptor
        assert {name: getattr(told, name) for name in vars(descriptor)} == vars(descriptor)
        for name in ("loss_type", "reduction_type", *fixed):
            with pytest.raises(AttributeError):
                setattr(kernel, name, 1)
        for name in values:
            setattr(kernel, name, 0.25)
            assert getattr(kernel, name) == 0.25
            with pytest.raises(MPSTypeError, match=f"^{type(kernel).__name__}: {name} must be a number, got 'x'"):
                setattr(kernel, name, "x")
        with pytest.raises(MPSArgumentError, match=f"^{type(kernel).__name__}: delta must be at least 0, got -1"):
            kernel.delta = -1
        twin = kernel.copy()
        twin.weight = 9.0
        assert kernel.weight == 0.25
        assert descriptor.weight == 2.0
    assert MPSNNLossGradient(bench.device, descriptor).compute_label_gradients is False
    for name in ("weight", "label_smoothing", "epsilon", "delta", "loss_type"):
        with pytest.raises(AttributeError):
            setattr(MPSCNNLoss(bench.device, descriptor), name, 1)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Type.MEAN_SQUARED_ERROR, "weight", 3.0),
        (Type.SIGMOID_CROSS_ENTROPY, "label_smoothing", 0.5),
        (Type.LOG, "epsilon", 0.1),
        (Type.HUBER, "delta", 0.25),
    ],
    ids=lambda value: str(getattr(value, "name", value)).lower(),
)
def test_adjusted_values_travel_in_the_state(kind, name, value, device: torch.device, rng: np.random.Generator) -> None:
    """They are those of the time of the encode, whatever the gradient kernel has; without states it has its own."""
    bench, shape = Bench.on(device), (2, 3, 2, 2)
    y, t = _predictions(kind, shape, rng), labels_for(kind, shape)
    plain = oracle.Parameters(int(kind), int(Reduction.SUM))
    adjusted = dataclasses.replace(plain, **{name: value})
    forward, gradient = _kernels(bench, described(kind, Reduction.SUM))
    setattr(forward, name, value)
    losses, found = _pass(bench, forward, gradient, y, t)
    assert_close(losses, oracle.loss(y, t, None, adjusted)[0], 1e-5)
    assert_close(found, oracle.loss(y, t, None, adjusted)[1], 1e-5)
    assert getattr(gradient, name) == getattr(plain, name)
    command_buffer = bench.command_buffer()
    ones = bench.batch(np.ones((2, 1, 1, 1)))
    alone = gradient.encode_batch(command_buffer, ones, bench.batch(y), bench.batch(t))
    setattr(gradient, name, value)
    changed = gradient.encode_batch(command_buffer, ones, bench.batch(y), bench.batch(t))
    finish(command_buffer)
    assert_close(numbers(alone), oracle.loss(y, t, None, plain)[1], 1e-5)
    np.testing.assert_array_equal(numbers(changed), found)


@pytest.mark.parametrize("temporary", [False, True], ids=["permanent", "temporary"])
def test_states_made_before_the_encode(temporary: bool, device: torch.device) -> None:
    bench = Bench.on(device)
    y, t = np.full((2, 3, 1, 1), 2.0), np.zeros((2, 3, 1, 1))
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    keep_results(gradient)
    forward.weight = 0.5
    command_buffer = bench.command_buffer()
    images, labels, ones = bench.batch(y), bench.batch(t), bench.batch(np.ones((2, 1, 1, 1)))
    states = (
        forward.temporary_result_state_batch(command_buffer, images)
        if temporary
        else forward.result_state_batch(images)
    )
    assert states is not None
    assert [type(state) for state in states] == [MPSNNGradientState] * 2
    forward.encode_batch(command_buffer, images, labels, None, states)
    forward.weight = 100.0
    assert [state.read_count for state in states] == [int(temporary)] * 2
    found = gradient.encode_batch(command_buffer, ones, images, labels, None, states)
    assert [state.read_count for state in states] == [0, 0]
    if temporary:
        with pytest.raises(MPSLifetimeError, match="^MPSNNLossGradient: source_states must have reads left"):
            gradient.encode_batch(command_buffer, ones, images, labels, None, states)
    finish(command_buffer)
    assert (numbers(found) == 2.0).all()
    assert (states[0].source_width, states[0].source_height) == (1, 1)


def test_single_images(device: torch.device, rng: np.random.Generator) -> None:
    """An addition to the framework: image objects, also with several images in them."""
    bench = Bench.on(device)
    y, t, weights = rng.normal(size=(3, 2, 3, 2, 2))
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM, weight=7.0))
    keep_results(forward)
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    images = [bench.image(values) for values in (y, t, weights)]
    losses, state = forward.encode(command_buffer, *images, destination_state_is_temporary=False)
    ones = MPSNNInitialGradient(bench.device).encode(command_buffer, losses)
    flow = gradient.encode(command_buffer, ones, *images, state)
    again = gradient.encode(command_buffer, losses, *images, None, bench.empty((2, 3, 2, 2)))
    finish(command_buffer)
    sums = (weights * (y - t) ** 2).sum(axis=(1, 2, 3), keepdims=True)
    assert_close(numbers(losses), sums, 1e-5)
    assert_close(numbers(flow), weights * 2 * (y - t), 1e-5)
    assert_close(numbers(again), sums * weights * 2 * (y - t), 1e-5)


def test_reads_of_temporary_images(device: torch.device) -> None:
    """Labels and weights are read like sources: once an encode, then their memory comes back."""
    bench = Bench.on(device)
    command_buffer = bench.command_buffer()
    y, t, weights = (temporary_copy(command_buffer, bench.batch(np.ones((2, 3, 2, 2)))) for _ in range(3))
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    for images in (y, t):
        for image in images:
            image.read_count = 2
    ones = MPSNNInitialGradient(bench.device).encode_batch(
        command_buffer, forward.encode_batch(command_buffer, y, t, weights)
    )
    assert [images[0].read_count for images in (y, t, weights)] == [1, 1, 0]
    with pytest.raises(MPSLifetimeError, match="^MPSNNLossGradient: weights must have reads left"):
        gradient.encode_batch(command_buffer, ones, y, t, weights)
    assert [images[0].read_count for images in (ones, y, t)] == [1, 1, 1]
    keep_results(gradient)
    found = gradient.encode_batch(command_buffer, ones, y, t)
    blocks = [image.storage.block for images in (ones, y, t, weights) for image in images]
    finish(command_buffer)
    assert not any(block.is_allocated for block in blocks)
    assert not numbers(found).any()
    command_buffer = bench.command_buffer()
    both = temporary_copy(command_buffer, bench.batch(np.ones((2, 3, 2, 2))))
    with pytest.raises(MPSLifetimeError, match="^MPSNNForwardLoss: source_images must have 2 reads left"):
        forward.encode_batch(command_buffer, both, both)


# --- initial gradients -----------------------------------------------------------------------------------------------


def test_initial_gradient(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    kernel = MPSNNInitialGradient(bench.device)
    keep_results(kernel)
    source = bench.batch(np.full((2, 5, 3, 4), np.nan), FLOAT16)
    destination = bench.batch(np.full((2, 8, 4, 4), -7.0))
    command_buffer = bench.command_buffer()
    found = kernel.encode_batch(command_buffer, source)
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(2, 1, 1))
    kernel.encode_batch(command_buffer, source, destination)
    finish(command_buffer)
    assert found[0].feature_channel_format is FLOAT16
    np.testing.assert_array_equal(numbers(found), np.ones((2, 5, 3, 4)))
    written = np.full((2, 8, 4, 4), -7.0)
    written[:, :5, 2, 1:3] = 1.0
    np.testing.assert_array_equal(numbers(destination), written)
    assert kernel.result_state(source[0]) is None


# --- destinations ----------------------------------------------------------------------------------------------------


def test_larger_destinations_are_written_in_part(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 3, 2, 2)), rng.normal(size=(1, 3, 2, 2))
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    into = [bench.batch(np.full((1, 4, 3, 3), -7.0)) for _ in range(2)]
    command_buffer = bench.command_buffer()
    forward.encode_batch(command_buffer, bench.batch(y), bench.batch(t), destination_images=into[0])
    ones = bench.batch(np.ones((1, 1, 1, 1)))
    gradient.encode_batch(command_buffer, ones, bench.batch(y), bench.batch(t), destination_gradients=into[1])
    finish(command_buffer)
    expected = np.full((2, 4, 3, 3), -7.0)
    expected[0, 0, 0, 0] = ((y - t) ** 2).sum()
    expected[1, :3, :2, :2] = 2 * (y - t)[0]
    assert_close(np.concatenate([numbers(each) for each in into]), expected, 1e-5)


def test_formats_of_results(device: torch.device) -> None:
    bench = Bench.on(device)
    forward, gradient = _kernels(bench, described(Type.MEAN_SQUARED_ERROR, Reduction.SUM))
    command_buffer = bench.command_buffer()
    y = bench.batch(np.zeros((1, 3, 1, 1)), FLOAT16)
    losses = forward.encode_batch(command_buffer, y, y)
    assert losses[0].feature_channel_format is FLOAT16
    ones = bench.batch(np.ones((1, 1, 1, 1)), FLOAT32)
    assert gradient.encode_batch(command_buffer, ones, y, y)[0].feature_channel_format is FLOAT32
    finish(command_buffer)
