"""Reshape: the order of numbers, every way to say a shape, clip rectangles and channel slices, misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, encode, finish, keep_results, numbers, run
from openmps.core.state.gradient import MPSNNGradientState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.reshape import MPSNNReshape, MPSNNReshapeGradient
from openmps.runtime.devices import mtl_device
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from oracles import reshape as oracle
from samples.reshape import Shaped

CPU = mtl_device("cpu")
SHAPE = {"reshaped_width": 4, "reshaped_height": 1, "reshaped_feature_channels": 6}


def _counted(images: int = 2, channels: int = 4, height: int = 2, width: int = 3) -> np.ndarray:
    return np.arange(1.0, images * channels * height * width + 1).reshape(images, channels, height, width)


def test_channels_run_fastest(device: torch.device) -> None:
    """Two pixels of two channels become one pixel of four: first pixel, then second."""
    bench = Bench.on(device)
    kernel = MPSNNReshape(bench.device)
    destination = bench.empty((1, 4, 1, 1))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(np.array([[[[1, 2]], [[10, 20]]]])), destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination).ravel(), [1, 10, 2, 20])


@pytest.mark.parametrize("kind", ["image", "batch"])
@pytest.mark.parametrize("temporary", [None, False, True])
def test_the_encodes_of_macos_11(kind: str, temporary: bool | None, device: torch.device) -> None:
    """Each image of an object or of a batch for itself; with a state, the gradient goes the way back."""
    bench = Bench.on(device)
    x = _counted()
    kernel = MPSNNReshape(bench.device)
    keep_results(kernel)
    source = getattr(bench, kind)(x)
    command_buffer = bench.command_buffer()
    made = encode(kernel, command_buffer, [source], destination_state_is_temporary=temporary, **SHAPE)
    result, states = (made, None) if temporary is None else made
    back = None
    if states is not None:
        gradient = MPSNNReshapeGradient(bench.device)
        keep_results(gradient)
        back = encode(gradient, command_buffer, [result, source], states)
        first = states if kind == "image" else states[0]
        assert isinstance(first, MPSNNGradientState)
        assert first.is_temporary is False, "it holds no resources"
        assert first.read_count == 0
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), oracle.reshape(x, (6, 1, 4)))
    if back is not None:
        np.testing.assert_array_equal(numbers(back), x)


def test_the_shape_holds_for_one_encode(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNReshape(bench.device)
    source = bench.image(_counted())
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    first = kernel.encode(command_buffer, source, **SHAPE)
    second = kernel.encode(command_buffer, source)
    with pytest.raises(MPSArgumentError):
        kernel.encode(command_buffer, source, reshaped_width=5, reshaped_height=5, reshaped_feature_channels=5)
    third = kernel.encode(command_buffer, source)
    finish(command_buffer)
    assert (first.width, first.height, first.feature_channels) == (4, 1, 6)
    for same in (second, third):
        np.testing.assert_array_equal(numbers(same), _counted())


def test_a_custom_padding_policy_shapes_the_result(device: torch.device) -> None:
    """The way before macOS 11."""
    bench = Bench.on(device)
    kernel = MPSNNReshape(bench.device)
    kernel.padding = Shaped((24, 1, 1))
    found = run(bench, kernel, [bench.batch(_counted())])
    np.testing.assert_array_equal(found, oracle.reshape(_counted(), (24, 1, 1)))


def test_offset_and_edge_mode_mean_nothing(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNReshape(bench.device)
    kernel.offset = MPSOffset(1, -1, 0)
    destination = bench.batch(np.zeros((2, 8, 1, 3)))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(_counted()), destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination), oracle.reshape(_counted(), (8, 1, 3)))


def test_parts_on_both_sides(device: torch.device) -> None:
    """Channels 4 to 7 of the source fill a clip rectangle of the destination from channel 8 on; and back."""
    bench = Bench.on(device)
    x = _counted(channels=9)
    kernel = MPSNNReshape(bench.device)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 4
    kernel.destination_feature_channel_offset = 8
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(2, 4, 1))
    destination, source = bench.batch(np.full((2, 13, 7, 3), -7.0)), bench.batch(x)
    command_buffer = bench.command_buffer()
    states = kernel.result_state_batch(source, destination_image=destination)
    kernel.encode_batch(command_buffer, source, destination, states)
    gradient = MPSNNReshapeGradient(bench.device)
    keep_results(gradient)
    back = gradient.encode_batch(command_buffer, destination, source, states)
    finish(command_buffer)
    expected = np.full((2, 13, 7, 3), -7.0)
    expected[:, 8:11, 2:6, 1:3] = oracle.reshape(x[:, 4:8], (3, 4, 2))
    np.testing.assert_array_equal(numbers(destination), expected)
    returned = np.zeros(x.shape)
    returned[:, 4:8] = x[:, 4:8]
    np.testing.assert_array_equal(numbers(back), returned)


@pytest.mark.parametrize("channels", [5, 7, 1])
def test_a_gradient_of_another_size(channels: int) -> None:
    bench = Bench(CPU)
    gradient = MPSNNReshapeGradient(CPU)
    gradient.label = "back"
    flow, source = bench.empty((1, channels, 1, 4)), bench.empty((1, 4, 2, 3))
    rule = "^MPSNNReshapeGradient 'back': source_gradient must have as many numbers as source_image, 24, got "
    with pytest.raises(MPSArgumentError, match=rule):
        gradient.encode(bench.command_buffer(), flow, source, None, bench.empty((1, 4, 2, 3)))


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ((1, 4, 1, 5), "must take the 24 numbers of the source in a whole number of feature channels, got 5x1 pixels"),
        ((1, 40, 5, 5), "must take the 24 numbers of the source in a whole number of feature channels, got 5x5 pixels"),
        ((1, 5, 1, 4), r"must have at least 6 feature channels \(6 written from channel 0 on\), got 5"),
    ],
)
def test_destinations_that_do_not_fit(shape: Any, rule: str) -> None:
    bench = Bench(CPU)
    kernel = MPSNNReshape(CPU)
    with pytest.raises(MPSArgumentError, match=f"^MPSNNReshape: destination_image {rule}"):
        kernel.encode(bench.command_buffer(), bench.empty((1, 4, 2, 3)), bench.empty(shape))


def test_shapes_that_are_none() -> None:
    bench = Bench(CPU)
    kernel = MPSNNReshape(CPU)
    kernel.label = "r"
    source = bench.empty((1, 4, 2, 3))
    encode_into = lambda **shape: kernel.encode(bench.command_buffer(), source, **shape)  # noqa: E731
    names = "reshaped_width, reshaped_height, reshaped_feature_channels"
    with pytest.raises(MPSTypeError, match=f"^MPSNNReshape 'r': {names} must be given all three, .*, got reshaped_h"):
        encode_into(reshaped_height=4)
    with pytest.raises(MPSTypeError, match=f"^MPSNNReshape 'r': {names} must be given all three, and without a dest"):
        encode_into(destination_image=bench.empty((1, 6, 1, 4)), **SHAPE)
    with pytest.raises(MPSArgumentError, match=f"^MPSNNReshape 'r': {names} must multiply to 24, .* got 4, 1, 7"):
        encode_into(**SHAPE | {"reshaped_feature_channels": 7})
    for value in (0, -6, 6.0, True, "6"):
        rule = "^MPSNNReshape 'r': reshaped_feature_channels must be an integer of at least 1"
        with pytest.raises(MPSArgumentError, match=rule):
            encode_into(**SHAPE | {"reshaped_feature_channels": value})
