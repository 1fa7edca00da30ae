"""Encoding into a given destination with the properties set by hand equals the path that sets them itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SWEPT, class_of, having
from encoding import Bench, Outcome, encode, finish, numbers, parameter_gradients, shape_of, train, trained
from helpers import assert_close
from in_one_test import in_one_test_of_each
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import GradientSample, Sample, configured, placed_like

TOLERANCE = 2e-6
UNTOUCHED = -7.0


def _prefixes(kernel: Any) -> tuple[str, ...]:
    return ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)


def _placed_like(kernel: Any, other: Any) -> None:
    """The offsets, edge modes and channel slices of another kernel of the class."""
    placed_like(kernel, other)
    for prefix in _prefixes(kernel):
        for name in ("edge_mode", "source_feature_channel_offset", "source_feature_channel_max_count"):
            setattr(kernel, prefix + name, getattr(other, prefix + name))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_forward(sample: Sample, device: torch.device) -> None:
    """An encode that returns its result leaves the offset that it used in the kernel."""
    bench = Bench.on(device)
    sources = sample.sources()
    expected = trained(sample, bench.device)
    found = train(
        bench,
        sample,
        sources,
        bench.batch,
        prepare=lambda kernel: _placed_like(kernel, expected.kernel),
        destination=lambda: bench.batch(np.full(expected.result.shape, UNTOUCHED)),
    )
    # The CPU does the same work both times; cuDNN's grouped convolutions do not repeat their sums bit for bit.
    tolerance = 0.0 if device.type == "cpu" else TOLERANCE
    assert_close(found.result, expected.result, tolerance, "result")
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(actual, wanted, tolerance, "gradient")


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_the_descriptor_method_sets_what_the_encode_sets(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    expected = train(bench, sample, sources, bench.image)
    kernel = sample.make(bench.device)
    descriptor = kernel.destination_image_descriptor([bench.image(values) for values in sources])
    found = (descriptor.number_of_images, descriptor.feature_channels, descriptor.height, descriptor.width)
    assert found == expected.result.shape
    for prefix in _prefixes(kernel):
        assert getattr(kernel, prefix + "offset") == getattr(expected.kernel, prefix + "offset")


def _by_hand(gradient: Any, backward: GradientSample, forward: Any, result: tuple[int, ...]) -> None:
    """Set on a gradient kernel what the framework's documentation tells to set, from the forward kernel alone."""
    prefix, read = _prefixes(forward)[backward.source], _prefixes(forward)[backward.secondary]
    offset, clip = getattr(forward, prefix + "offset"), forward.clip_rect
    gradient.primary_source_feature_channel_offset = forward.destination_feature_channel_offset
    gradient.primary_source_feature_channel_max_count = result[1]
    gradient.secondary_edge_mode = getattr(forward, read + "edge_mode")
    gradient.destination_feature_channel_offset = getattr(forward, prefix + "source_feature_channel_offset")
    if backward.reads_result:
        gradient.secondary_source_feature_channel_offset = forward.destination_feature_channel_offset
        gradient.secondary_source_feature_channel_max_count = result[1]
        gradient.secondary_offset = MPSOffset(clip.origin.x, clip.origin.y, 0)
    else:
        for name in ("source_feature_channel_offset", "source_feature_channel_max_count", "offset"):
            setattr(gradient, "secondary_" + name, getattr(forward, read + name))
    for axis in "xy":
        size = getattr(forward, prefix + ("kernel_width" if axis == "x" else "kernel_height"))
        dilation = getattr(forward, f"{prefix}dilation_rate_{axis}")
        is_even = ((size - 1) * dilation + 1) % 2 == 0
        setattr(gradient, f"kernel_offset_{axis}", int(is_even) - getattr(offset, axis))
        if len(_prefixes(forward)) == 2:
            stride = getattr(forward, f"{read}stride_in_pixels_{axis}")
            setattr(gradient, f"secondary_stride_in_pixels_{axis}", stride)
        if hasattr(forward, "zero_pad_size_x"):
            setattr(gradient, f"zero_pad_size_{axis}", getattr(forward, f"zero_pad_size_{axis}"))
    if len(_prefixes(forward)) == 2:
        gradient.secondary_stride_in_feature_channels = getattr(forward, f"{read}stride_in_feature_channels")
    configured(gradient, backward.by_hand(forward))


def _encode_by_hand(
    bench: Bench, sample: Sample, backward: GradientSample, forward: Outcome, images: list[Any], flow: Any, result: Any
) -> tuple[np.ndarray, Any]:
    gradient = backward.make(bench.device)
    _by_hand(gradient, backward, forward.kernel, _written(forward))
    if hasattr(gradient, "source_size"):
        clip = forward.kernel.clip_rect.size
        gradient.primary_offset = MPSOffset(forward.kernel.clip_rect.origin.x, forward.kernel.clip_rect.origin.y, 0)
        gradient.source_size = clip
    shape = shape_of(images[backward.source])
    destination = bench.batch(np.zeros(shape))
    command_buffer = bench.command_buffer()
    secondary = result if backward.reads_result else images[backward.secondary]
    states = _fresh_states(forward, images, backward)
    encode(gradient, command_buffer, [flow, secondary], states, destination)
    finish(command_buffer)
    return numbers(destination), states


def _same_parameters(states: Any, expected: Outcome) -> None:
    if expected.weights is not None:
        weights, biases = parameter_gradients(states)()
        assert_close(weights, expected.weights, TOLERANCE, "weights")
        assert_close(biases, expected.biases, TOLERANCE, "biases")


def _written(forward: Outcome) -> tuple[int, ...]:
    images, channels = forward.result.shape[:2]
    return images, channels - forward.kernel.destination_feature_channel_offset


def _fresh_states(forward: Outcome, images: list[Any], backward: GradientSample) -> Any:
    """States without parameter gradients yet; none where the mathematics needs none."""
    if backward.parameters is not None:
        return forward.kernel.result_state_batch(*images)
    return forward.states if backward.needs_state else None


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(gradients=True), ids=str)
def test_gradients_with_properties_by_hand(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    forward = train(bench, sample, sources, bench.batch)
    images = [bench.batch(values) for values in sources]
    flow, result = bench.batch(sample.incoming(forward.result.shape)), bench.batch(forward.result)
    for backward, expected in zip(sample.gradients, forward.gradients, strict=True):
        found, states = _encode_by_hand(bench, sample, backward, forward, images, flow, result)
        assert_close(found, expected, TOLERANCE, "gradient")
        _same_parameters(states, forward)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["ignores offset", "random"], gradients=True), ids=str)
def test_gradients_by_hand_of_a_placed_forward(sample: Sample, device: torch.device) -> None:
    """Other offsets, a clip rectangle and channel slices on both sides.

    Only pooling gradients can be told which gradient pixels to use; the others get the clip rectangle's alone.
    """
    bench = Bench.on(device)
    sources = [np.concatenate([np.full_like(_four(x), np.nan), x], axis=1) for x in sample.sources()]
    plain = train(bench, sample, sample.sources(), bench.batch).result.shape
    width, height = max(1, plain[3] - 1), max(1, plain[2] - 1)
    shape = (plain[0], plain[1] + 8, height + 2, width + 3)

    def place(kernel: Any) -> None:
        for number, prefix in enumerate(_prefixes(kernel)):
            setattr(kernel, prefix + "source_feature_channel_offset", 4)
            setattr(kernel, prefix + "source_feature_channel_max_count", sources[number].shape[1] - 4)
            setattr(kernel, prefix + "offset", MPSOffset(1 - number, -1, 0))
        kernel.destination_feature_channel_offset = 8
        kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(width, height, 1))

    flow = sample.random("flow").normal(size=shape)
    forward = train(
        bench,
        sample,
        sources,
        bench.batch,
        prepare=place,
        destination=lambda: bench.batch(np.zeros(shape)),
        incoming=flow,
    )
    images, result = [bench.batch(values) for values in sources], bench.batch(forward.result)
    cut = flow[:, :, 1 : 1 + height, 2 : 2 + width]
    for backward, expected in zip(sample.gradients, forward.gradients, strict=True):
        is_pooling = hasattr(backward.make(bench.device), "source_size")
        given = bench.batch(flow if is_pooling else cut)
        found, states = _encode_by_hand(bench, sample, backward, forward, images, given, result)
        assert_close(found, expected, TOLERANCE, "gradient")
        _same_parameters(states, forward)


def _four(values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(values[:, :1], (values.shape[0], 4, *values.shape[2:]))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", having(without=["ignores offset", "random", "resampled"], gradients=True), ids=str)
def test_some_pixels_of_the_gradient(sample: Sample, device: torch.device) -> None:
    """`primary_offset` drops the gradient pixels before it; the offsets then belong to the first one that is used."""
    bench = Bench.on(device)
    sources = sample.sources()
    forward = train(bench, sample, sources, bench.batch)
    flow = sample.incoming(forward.result.shape)
    height, width = flow.shape[2:]
    down, across = height // 2, width // 3
    masked = flow.copy()
    masked[:, :, :down] = 0.0
    masked[:, :, :, :across] = 0.0
    expected = train(bench, sample, sources, bench.batch, incoming=masked)
    images, result = [bench.batch(values) for values in sources], bench.batch(forward.result)
    for backward, wanted in zip(sample.gradients, expected.gradients, strict=True):
        if backward.needs_state and backward.parameters is None:
            continue  # what such a state holds belongs to the whole gradient
        gradient = backward.make(bench.device)
        _by_hand(gradient, backward, forward.kernel, _written(forward))
        prefix = _prefixes(forward.kernel)[backward.source]
        read = _prefixes(forward.kernel)[backward.secondary]
        strides = [getattr(forward.kernel, f"{prefix}stride_in_pixels_{axis}") for axis in "xy"]
        right, lower = across * strides[0], down * strides[1]
        steps = [getattr(forward.kernel, f"{read}stride_in_pixels_{axis}") for axis in "xy"]
        gradient.primary_offset = MPSOffset(across, down, 0)
        offset = gradient.secondary_offset
        shift = (across, down) if backward.reads_result else (across * steps[0], down * steps[1])
        if forward.kernel.is_backwards:
            # The first pixel used reads as many pixels further on in the source taken apart by the stride.
            gradient.kernel_offset_x += across
            gradient.kernel_offset_y += down
        else:
            gradient.secondary_offset = MPSOffset(offset.x + shift[0], offset.y + shift[1], 0)
            gradient.kernel_offset_x -= right
            gradient.kernel_offset_y -= lower
        destination = bench.batch(np.zeros(sources[backward.source].shape))
        command_buffer = bench.command_buffer()
        secondary = result if backward.reads_result else images[backward.secondary]
        states = _fresh_states(forward, images, backward)
        encode(gradient, command_buffer, [bench.batch(flow), secondary], states, destination)
        finish(command_buffer)
        assert_close(numbers(destination), wanted, TOLERANCE, "gradient")
        _same_parameters(states, expected)
