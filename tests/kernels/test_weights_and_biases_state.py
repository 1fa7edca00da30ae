"""Weights and biases on the device as states: made from buffers or a descriptor, exported, reloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSLifetimeError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected,
)
from openmps.metal.device import MTLBuffer, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MTLStorageMode
from samples.convolution import Layer

CPU = mtl_device("cpu")
Array = np.ndarray


def floats(buffer: Any) -> Array:
    return buffer.contents().view(np.float32).copy()


DESCRIPTOR = MPSCNNConvolutionDescriptor(2, 3, 4, 5)
BYTES = (4 * 5 * 3 * 2 * 4, 4 * 5)
State = MPSCNNConvolutionWeightsAndBiasesState


def test_a_weights_state_of_a_descriptor(device: torch.device) -> None:
    mtl = mtl_device(device)
    state = State(mtl, DESCRIPTOR)
    assert [state.buffer_size_at_index(index) for index in (0, 1)] == list(BYTES)
    assert state.resource_at_index(0, allocate_memory=False) is None
    assert (state.weights.length, state.biases.length if state.biases else None) == BYTES
    assert state.weights is state.resource_at_index(0) and state.biases is state.resource_at_index(1)
    assert (state.weights_offset, state.biases_offset, state.device, state.is_temporary) == (0, 0, mtl, False)
    assert not floats(state.weights).any()
    depthwise = State(mtl, MPSCNNDepthWiseConvolutionDescriptor(3, 3, 4, 4))
    assert depthwise.buffer_size_at_index(0) == 4 * 4 * 3 * 3


def test_one_buffer_for_both(device: torch.device, rng: np.random.Generator) -> None:
    """Offsets in bytes; what the descriptor says is what is read and written, and the rest stays."""
    bench = Bench.on(device)
    layer = Layer(4, 5, 3, 2)
    drawn = rng.normal(size=2 + 5 + 1 + 120 + 3).astype(np.float32)
    buffer = bench.device.new_buffer(data=drawn)
    state = State(
        weights=buffer, weights_offset=32, biases=buffer, biases_offset=8, cnn_convolution_descriptor=layer.descriptor()
    )
    assert (state.weights, state.biases, state.weights_offset, state.biases_offset) == (buffer, buffer, 32, 8)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    command_buffer = bench.command_buffer()
    kernel.reload_weights_and_biases(command_buffer, state)
    exported = kernel.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    assert exported.biases is not None
    np.testing.assert_array_equal(floats(exported.weights), drawn[8:128])
    np.testing.assert_array_equal(floats(exported.biases), drawn[2:7])


@in_one_test
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"weights": 3}, MPSTypeError, "weights must be an MTLBuffer, got int. Make one with device.new_buffer"),
        ({"weights": "buffer", "biases": [1.0]}, MPSTypeError, "biases must be an MTLBuffer, got list"),
        ({}, MPSTypeError, "arguments must be weights, or device and cnn_convolution_descriptor alone"),
        ({"device": CPU}, MPSTypeError, "arguments must be weights, or device and cnn_convolution_descriptor alone"),
        (
            {"device": CPU, "cnn_convolution_descriptor": DESCRIPTOR, "weights_offset": 4},
            MPSTypeError,
            "cnn_convolution_descriptor alone",
        ),
        (
            {"device": "cpu", "cnn_convolution_descriptor": DESCRIPTOR},
            MPSTypeError,
            "device must be an MTLDevice, got str",
        ),
        (
            {"device": CPU, "cnn_convolution_descriptor": 4},
            MPSTypeError,
            "cnn_convolution_descriptor must be an MPSCNNConvolutionDescriptor, got int",
        ),
        ({"weights": "buffer", "weights_offset": 2}, MPSArgumentError, "weights_offset must be a multiple of 4 bytes"),
        ({"weights": "buffer", "biases_offset": 4.0}, MPSArgumentError, "biases_offset must be a multiple of 4 bytes"),
        (
            {"weights": "buffer", "cnn_convolution_descriptor": DESCRIPTOR},
            MPSArgumentError,
            "weights must hold 480 bytes, got 16",
        ),
        (
            {"weights": "large", "biases": "buffer", "cnn_convolution_descriptor": DESCRIPTOR},
            MPSArgumentError,
            "biases must hold 20 bytes, got 16",
        ),
        (
            {"weights": "large", "weights_offset": 24, "cnn_convolution_descriptor": DESCRIPTOR},
            MPSArgumentError,
            "weights must hold 480 bytes, got 476",
        ),
    ],
)
def test_weights_states_that_cannot_be_made(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    buffers = {"buffer": CPU.new_buffer(length=16), "large": CPU.new_buffer(length=500)}
    given = {name: buffers.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    if options.get("device") == "cpu":
        given["device"] = "cpu"
    with pytest.raises(kind) as caught:
        State(**given)
    assert str(caught.value).startswith("MPSCNNConvolutionWeightsAndBiasesState: ") and message in str(caught.value)


def test_buffers_of_one_device() -> None:
    ours, theirs = CPU.new_buffer(length=4), MTLDevice(torch.device("cpu")).new_buffer(length=4)
    with pytest.raises(MPSDeviceError, match="MPSCNNConvolutionWeightsAndBiasesState: resource 1 must belong to"):
        State(weights=ours, biases=theirs)


LAYERS: dict[Any, Layer] = {
    MPSCNNConvolution: Layer(4, 5, 3, 2),
    MPSCNNFullyConnected: Layer(4, 5, 3, 2),
    MPSCNNConvolutionTranspose: Layer(4, 5, 3, 2, stride=(2, 1)),
}


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_temporary_export(kind: Any, biases: bool, device: torch.device) -> None:
    """Private, good for the reads that it is given, and gone behind them; another kernel takes the numbers over."""
    bench = Bench.on(device)
    layer = replace(LAYERS[kind], biases=biases)
    kernel = kind(bench.device, weights=layer.source())
    blank = layer.source()
    blank._weights = np.zeros_like(blank._weights)
    other = kind(bench.device, weights=blank)
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer, result_state_can_be_temporary=True)
    assert (state.is_temporary, state.read_count, state.lives_on) == (True, 1, command_buffer)
    assert state.weights.storage_mode is MTLStorageMode.PRIVATE and (state.biases is not None) is biases
    other.reload_weights_and_biases(command_buffer, state)
    with pytest.raises(MPSLifetimeError, match="state must have reads left"):
        other.reload_weights_and_biases(command_buffer, state)
    with pytest.raises(MPSLifetimeError, match="resource 0 must have reads left"):
        state.weights  # noqa: B018
    finish(command_buffer)
    command_buffer = bench.command_buffer()
    found = other.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    np.testing.assert_array_equal(floats(found.weights), layer.weights().ravel().astype(np.float32))
    if biases:
        assert found.biases is not None
        np.testing.assert_array_equal(floats(found.biases), layer.bias_terms())


def test_an_export_can_be_updated_in_place_and_reloaded(device: torch.device) -> None:
    bench = Bench.on(device)
    layer = LAYERS[MPSCNNConvolution]
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    before = layer.weights().ravel().astype(np.float32)
    command_buffer = bench.command_buffer()
    state = forward.export_weights_and_biases(command_buffer, True)
    state.read_count = 2
    buffer: MTLBuffer = state.weights
    command_buffer.record("double", lambda: buffer.tensor(torch.float32).mul_(2))
    forward.reload_weights_and_biases(command_buffer, state)
    after = forward.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    np.testing.assert_array_equal(floats(after.weights), 2 * before)
