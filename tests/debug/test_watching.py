"""Watching command buffers: what kernels by hand, graphs and updates compute, as it lies in memory afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import openmps as mps
from helpers import assert_close
from openmps.training import Network, NetworkShape, optimizer_factory
from planted_networks import program

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32


def _convolution(device: mps.MTLDevice, rng: np.random.Generator) -> mps.MPSCNNConvolution:
    weights = rng.normal(size=(2, 3, 3, 1)).astype(np.float32)
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(3, 3, 1, 2), weights, label="conv1")
    kernel = mps.MPSCNNConvolution(device, source)
    kernel.label = "conv1"
    return kernel


def test_kernels_encoded_by_hand(device: torch.device, rng: np.random.Generator) -> None:
    made = mps.mtl_device(device)
    convolution, relu = _convolution(made, rng), mps.MPSCNNNeuronReLU(made)
    gradient = mps.MPSCNNConvolutionGradient(made, convolution.data_source)
    for kernel in (convolution, relu, gradient):
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    pixels = rng.normal(size=(5, 5, 1)).astype(np.float32)
    image = mps.MPSImage.from_numpy(made, pixels)
    command_buffer = made.new_command_queue().command_buffer()
    first, state = convolution.encode(command_buffer, image, destination_state_is_temporary=False)
    watch = mps.debug.watch(command_buffer)
    second = relu.encode(command_buffer, first)
    third = relu.encode(command_buffer, second)
    back = gradient.encode(command_buffer, first, image, state)
    command_buffer.commit()
    trace = watch.trace()
    for label, result in {"conv1": first, "MPSCNNNeuronReLU": second, "MPSCNNNeuronReLU 2": third}.items():
        assert np.array_equal(trace[label][0], result.numpy()), label
        assert trace.entry(label).kind is mps.TracedKind.IMAGE
    entry = trace.entry("conv1 gradient")
    assert entry.kind is mps.TracedKind.GRADIENT
    assert np.array_equal(entry.array[0], back.numpy())
    assert np.array_equal(trace["conv1/weights"], convolution.data_source.weights())
    given = trace["conv1 gradient/weights_gradient"].reshape(-1)
    assert np.array_equal(given, state.gradient_for_weights.tensor(torch.float32).cpu().numpy())
    explained = command_buffer.explain()
    assert {work.reason for work in explained.works} == {"not replayed: it is looked into"}


def _trained(device: mps.MTLDevice, pixels: np.ndarray, watched: int) -> tuple[dict[str, np.ndarray], mps.Trace | None]:
    """The weights after some steps, of which one may be watched."""
    network = Network.create(NetworkShape(8, 8, 1, 3, "tiny"), seed=4, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.training_graph(device, FLOAT32, loss_weight=1.0, dropout_seed=0)
    queue, trace = device.new_command_queue(), None
    for number in range(5):
        command_buffer = mps.MPSCommandBuffer(queue)
        labels = mps.MPSCNNLossLabels.batch(device, np.eye(3)[[0, 1]])
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pixels)], [labels])
        watch = mps.debug.watch(command_buffer) if number == watched else None
        command_buffer.commit()
        command_buffer.wait_until_completed()
        trace = watch.trace() if watch is not None else trace
    return network.arrays(), trace


def test_a_watched_step_trains_as_others_do(device: torch.device, rng: np.random.Generator) -> None:
    """Fused, replayed on a GPU, or watched: a training goes on to the same weights, but for rounding."""
    made, pixels = mps.mtl_device(device), rng.integers(0, 256, (2, 8, 8, 1)).astype(np.uint8)
    (plain, _), (watched, trace) = _trained(made, pixels, -1), _trained(made, pixels, 3)
    for name, array in plain.items():
        assert_close(watched[name], array, 1e-4, name)
    assert trace is not None
    assert {"relu1", "pool1 gradient", "first_norm", "second_conv gradient/weights_gradient"} <= set(trace)
    assert any("'relu1'" in note for note in trace.notes), "fused by an encode"
    assert any(label.startswith("MPSNNOptimizerAdam") for label in trace)


def test_what_overflows_still_fails_and_is_seen() -> None:
    names = program()
    graph = names["graph"]
    graph.stop_on_non_finite, device = True, graph.device
    images = names["images"].copy()
    images[0, 0, 0, 0] = np.nan
    command_buffer = device.new_command_queue().command_buffer()
    graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, images)], [names["labels"]])
    watch = mps.debug.watch(command_buffer)
    command_buffer.commit()
    trace = watch.trace()
    assert trace.entry("conv1").statistics.not_finite > 0
    assert any("must be finite" in note for note in trace.notes)
    with pytest.raises(mps.MTLExecutionError) as failure:
        command_buffer.wait_until_completed()
    assert isinstance(failure.value.__cause__, mps.MPSNonFiniteError)


def test_work_whose_steps_are_not_known_is_named() -> None:
    device = mps.mtl_device("cpu")
    ran: list[int] = []
    command_buffer = device.new_command_queue().command_buffer()
    watch = mps.debug.watch(command_buffer)
    command_buffer.record("mine", lambda: ran.append(1))
    command_buffer.commit()
    assert watch.trace().notes == ("its steps are not known: mine",)
    assert ran == [1]


def test_what_is_refused() -> None:
    device = mps.mtl_device("cpu")
    command_buffer = device.new_command_queue().command_buffer()
    watch = mps.debug.watch(command_buffer)
    with pytest.raises(mps.MTLCommandBufferError, match="trace needs a committed buffer.*Call commit first"):
        watch.trace()
    command_buffer.commit()
    with pytest.raises(mps.MTLCommandBufferError, match="must not be committed yet"):
        mps.debug.watch(command_buffer)
    with pytest.raises(mps.MPSTypeError, match="must be a command buffer"):
        mps.debug.watch(None)  # pyright: ignore[reportArgumentType]
