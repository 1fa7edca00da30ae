"""Weights that a kernel keeps rounded to float16: an update writes them, too, and they are never behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from helpers import assert_close
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MTLCommandBufferError
from openmps.graph.graph import MPSNNGraph
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerStochasticGradientDescent
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.ops.op import Op
from openmps.ops.update.early_updates import EarlyUpdate
from openmps.ops.update.joined_updates import JoinedUpdate
from openmps.runtime.dispatch import Dispatch
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.types import MPSImageFeatureChannelFormat as Format

SIZE, OUTPUTS = 2 * 3 * 3 * 4, 2
RATE = 0.25
HALF, SINGLE = "rounded weights as float16", "rounded weights"
"""What a float16 image is multiplied with on a GPU and on the CPU; a kernel that is asked for them keeps them."""


def operations(command_buffer: Any) -> list[str]:
    """Names of all operations that are recorded."""
    works = [work for _, work in command_buffer.encodings]
    equations = [each for work in works if isinstance(work, Dispatch) for each in work.function.equations]
    return [type(op).__name__ for each in equations for op in updates_of(each.op)]


def updates_of(op: Op) -> tuple[Op, ...]:
    """The updates that an operation joins, or begins early; else itself."""
    return op.updates if isinstance(op, JoinedUpdate) else (op.update if isinstance(op, EarlyUpdate) else op,)


def check(kernel: Any) -> None:
    """All that follows from the weights is the weights, rounded by NumPy."""
    single = kernel.parameters.state().weights.tensor(torch.float32).cpu().numpy()
    with np.errstate(over="ignore"):
        half = single.astype(np.float16)
    assert kernel.parameters.used(HALF).cpu().numpy().ravel().tobytes() == half.tobytes()
    assert kernel.parameters.used(SINGLE).cpu().numpy().ravel().tobytes() == half.astype(np.float32).tobytes()


class Layer:
    """A convolution that keeps rounded weights, with gradients of its own making."""

    def __init__(self, device: torch.device, rng: np.random.Generator, folds: bool = False) -> None:
        self.bench = Bench.on(device)
        descriptor = MPSCNNConvolutionDescriptor(3, 3, 4, OUTPUTS)
        if folds:
            descriptor.set_batch_normalization_parameters_for_inference([0.5, 1.0], [2.0, 3.0])
        self.start = rng.normal(size=SIZE).astype(np.float32)
        self.source = ArrayConvolutionDataSource(descriptor, self.start, np.zeros(OUTPUTS))
        self.kernel = MPSCNNConvolution(self.bench.device, weights=self.source)
        self.slopes = rng.normal(size=SIZE).astype(np.float32)
        for name in (HALF, SINGLE):
            self.kernel.parameters.used(name)

    @property
    def state(self) -> Any:
        return self.kernel.parameters.state()

    def gradients(self, kernel: Any = None) -> Any:
        state: Any = (kernel or self.kernel).result_state(self.bench.empty((1, 4, 3, 3)))
        slopes = state.gradient_for_weights.tensor(torch.float32)
        slopes.copy_(torch.from_numpy(self.slopes[: len(slopes)]))
        return state

    def update(self, command_buffer: Any, optimizer: Any = None, **states: Any) -> None:
        states = {"convolution_source_state": self.state, "result_state": self.state} | states
        states = {"convolution_gradient_state": self.gradients()} | states
        optimizer = optimizer or MPSNNOptimizerStochasticGradientDescent(self.bench.device, RATE)
        optimizer.encode(command_buffer, **states)

    def reload(self, command_buffer: Any) -> None:
        self.kernel.reload_weights_and_biases(command_buffer, self.state)

    def weights(self) -> Any:
        return self.state.weights.tensor(torch.float32).cpu().numpy()


def test_an_update_by_hand_rounds(device: torch.device, rng: np.random.Generator) -> None:
    """Again and again, with one optimizer and with new gradient states; the reload has nothing to do."""
    layer = Layer(device, rng)
    expected = layer.start.astype(np.float64)
    optimizer = MPSNNOptimizerStochasticGradientDescent(layer.bench.device, RATE)
    for _ in range(3):
        command_buffer = layer.bench.command_buffer()
        layer.update(command_buffer, optimizer)
        layer.reload(command_buffer)
        assert operations(command_buffer) == ["StochasticGradientDescent"]
        finish(command_buffer)
        expected -= RATE * layer.slopes
        assert_close(layer.weights(), expected, 1e-6)
        check(layer.kernel)


def test_numbers_beyond_float16(device: torch.device, rng: np.random.Generator) -> None:
    layer = Layer(device, rng)
    layer.slopes[:4] = 4e5, -4e5, 4.0 * (layer.start[2] - 1e-7), 4.0 * (layer.start[3] - 65519.0)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer)
    layer.reload(command_buffer)
    finish(command_buffer)
    assert np.isinf(layer.kernel.parameters.used(HALF).cpu().numpy()).sum() == 2
    check(layer.kernel)


def test_an_update_without_a_reload_rounds(device: torch.device, rng: np.random.Generator) -> None:
    """The state is the kernel's own memory: what changes there is used at once, whatever the precision is."""
    layer = Layer(device, rng)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer)
    finish(command_buffer)
    assert not np.array_equal(layer.weights(), layer.start)
    check(layer.kernel)


def test_a_temporary_gradient_state(device: torch.device, rng: np.random.Generator) -> None:
    """Its memory is given back behind the update, which is nothing to reload for."""
    layer = Layer(device, rng)
    command_buffer = layer.bench.command_buffer()
    gradient = MPSCNNConvolutionGradient(layer.bench.device, weights=layer.source)
    x = layer.bench.batch(np.ones((1, 4, 5, 5)))
    y, states = layer.kernel.encode_batch(command_buffer, x, destination_state_is_temporary=True)
    states[0].read_count += 1
    gradient.encode_batch(command_buffer, y, x, states)
    layer.update(command_buffer, convolution_gradient_state=states[0])
    layer.reload(command_buffer)
    assert "release" in command_buffer.encodings[-1][0]
    assert "TakeWeights" not in operations(command_buffer)
    finish(command_buffer)
    assert not np.array_equal(layer.weights(), layer.start)
    check(layer.kernel)


def blit(layer: Layer, command_buffer: Any) -> None:
    with command_buffer.blit_command_encoder() as encoder:
        encoder.fill_buffer(layer.state.weights, range(0, 40), 0x3F)


def vectors(layer: Layer, command_buffer: Any) -> None:
    """An update of the same memory that knows it as a vector."""
    own = MPSVector(layer.state.weights, MPSVectorDescriptor(SIZE))
    slopes = MPSVector(layer.bench.device.new_buffer(data=layer.slopes), MPSVectorDescriptor(SIZE))
    step = MPSNNOptimizerStochasticGradientDescent(layer.bench.device, RATE)
    step.encode(command_buffer, input_gradient_vector=slopes, input_values_vector=own, result_values_vector=own)


def other_weights(layer: Layer, command_buffer: Any) -> None:
    """Another kernel writes the same memory."""
    twin = MPSCNNConvolution(layer.bench.device, weights=layer.source)
    with command_buffer.blit_command_encoder() as encoder:
        weights = layer.state.weights
        encoder.copy_from_buffer(twin.parameters.weights_buffer, 0, weights, 0, weights.length)


def user_work(layer: Layer, command_buffer: Any) -> None:
    command_buffer.record("mine", lambda: layer.state.weights.tensor(torch.float32).fill_(0.1))


@pytest.mark.parametrize("write", [blit, vectors, other_weights, user_work], ids=lambda each: each.__name__)
def test_what_is_written_in_between_is_rounded(
    write: Callable[[Layer, Any], None], device: torch.device, rng: np.random.Generator
) -> None:
    layer = Layer(device, rng)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer)
    write(layer, command_buffer)
    layer.reload(command_buffer)
    assert operations(command_buffer).count("TakeWeights") == 1
    layer.reload(command_buffer)
    assert operations(command_buffer).count("TakeWeights") == 1, "and that was written, too"
    finish(command_buffer)
    check(layer.kernel)


def test_the_order_of_updates_and_reloads(device: torch.device, rng: np.random.Generator) -> None:
    """Numbers of another state, then an update of them: the last word counts."""
    layer = Layer(device, rng)
    given = rng.normal(size=SIZE).astype(np.float32)
    other = MPSCNNConvolutionWeightsAndBiasesState(
        weights=layer.bench.device.new_buffer(data=given), biases=layer.bench.device.new_buffer(data=np.zeros(2, "f4"))
    )
    for first in ("update", "other"):
        command_buffer = layer.bench.command_buffer()
        if first == "update":
            layer.update(command_buffer)
        layer.kernel.reload_weights_and_biases(command_buffer, other)
        if first == "other":
            layer.update(command_buffer)
        layer.reload(command_buffer)
        finish(command_buffer)
        assert_close(layer.weights(), given - (RATE * layer.slopes if first == "other" else 0.0), 1e-6)
        check(layer.kernel)


def test_another_command_buffer_knows_nothing_of_the_update(device: torch.device, rng: np.random.Generator) -> None:
    layer = Layer(device, rng)
    command_buffer = MPSCommandBuffer(layer.bench.queue)
    layer.update(command_buffer)
    command_buffer.commit_and_continue()
    layer.reload(command_buffer)
    assert operations(command_buffer) == ["TakeWeights"]
    finish(command_buffer)
    check(layer.kernel)


def test_an_open_encoder_is_refused(device: torch.device, rng: np.random.Generator) -> None:
    """It would write behind a reload that records nothing."""
    layer = Layer(device, rng)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer)
    encoder = command_buffer.blit_command_encoder()
    for reload in (layer.reload, lambda buffer: layer.kernel.parameters.reload_from("me", buffer, layer.state)):
        with pytest.raises(MTLCommandBufferError, match="encoder"):
            reload(command_buffer)
    encoder.end_encoding()
    finish(command_buffer)


def test_folded_weights_are_made_again(device: torch.device, rng: np.random.Generator) -> None:
    """They are no rounding of the weights."""
    layer = Layer(device, rng, folds=True)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer)
    layer.reload(command_buffer)
    assert operations(command_buffer) == ["StochasticGradientDescent", "TakeWeights"]
    finish(command_buffer)
    fresh = MPSCNNConvolutionDescriptor(3, 3, 4, OUTPUTS)
    fresh.set_batch_normalization_parameters_for_inference([0.5, 1.0], [2.0, 3.0])
    expected = MPSCNNConvolution(layer.bench.device, weights=ArrayConvolutionDataSource(fresh, layer.weights()))
    for name in (HALF, SINGLE):
        assert torch.equal(layer.kernel.parameters.used(name), expected.parameters.used(name))


def test_a_result_elsewhere_leaves_the_kernel(device: torch.device, rng: np.random.Generator) -> None:
    layer = Layer(device, rng)
    other = MPSCNNConvolutionWeightsAndBiasesState(layer.bench.device, layer.source.descriptor())
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer, result_state=other)
    finish(command_buffer)
    np.testing.assert_array_equal(layer.weights(), layer.start)
    check(layer.kernel)
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer, convolution_source_state=other, result_state=layer.state)
    layer.reload(command_buffer)
    assert operations(command_buffer) == ["StochasticGradientDescent"]
    finish(command_buffer)
    assert_close(layer.weights(), layer.start - 2 * RATE * layer.slopes, 1e-6)
    check(layer.kernel)


def test_gradients_of_a_part_of_the_weights(device: torch.device, rng: np.random.Generator) -> None:
    layer = Layer(device, rng)
    small = MPSCNNConvolution(layer.bench.device, MPSCNNConvolutionDescriptor(3, 3, 2, OUTPUTS), np.zeros(SIZE // 2))
    command_buffer = layer.bench.command_buffer()
    layer.update(command_buffer, convolution_gradient_state=layer.gradients(small))
    layer.reload(command_buffer)
    assert operations(command_buffer) == ["StochasticGradientDescent", "TakeWeights"]
    finish(command_buffer)
    half = SIZE // 2
    assert_close(layer.weights()[:half], layer.start[:half] - RATE * layer.slopes[:half], 1e-6)
    check(layer.kernel)


# --- graphs -----------------------------------------------------------------------------------------------------------


def train(bench: Bench, graph: MPSNNGraph, shape: tuple[int, ...], classes: int, steps: int = 3) -> list[str]:
    """What the last of some steps records."""
    generator, found = np.random.default_rng(1), []
    batch = mps.MPSImageBatch.from_numpy(bench.device, generator.random(shape).astype(np.float16))
    for _ in range(steps):
        one_hot = np.eye(classes, dtype=np.float32)[generator.integers(0, classes, shape[0])]
        labels = mps.MPSCNNLossLabels.batch(bench.device, one_hot)
        command_buffer = MPSCommandBuffer(bench.queue)
        graph.encode_batch(command_buffer, [batch], [labels])
        found = operations(command_buffer)
        finish(command_buffer)
    return found


def convolutions(graph: MPSNNGraph) -> list[Any]:
    return [kernel for kernel in graph.kernels.values() if isinstance(kernel, MPSCNNConvolution)]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_a_training_graph_only_updates(optimizer: str, device: torch.device) -> None:
    """No step rounds weights apart from its updates."""
    bench = Bench.on(device)
    network = SampleNetwork.create(NetworkShape(28, 28, 1, 10), seed=1, optimizer=optimizer_factory(optimizer, 1e-3))
    graph = network.training_graph(bench.device, Format.FLOAT16, loss_weight=1.0, dropout_seed=1)
    kernels = convolutions(graph)
    before = [kernel.parameters.weights.clone() for kernel in kernels]
    found = train(bench, graph, (4, 28, 28, 1), 10)
    assert "TakeWeights" not in found
    assert sum(name in ("Adam", "StochasticGradientDescent", "RmsProp") for name in found) == len(kernels) > 1
    for kernel, old in zip(kernels, before, strict=True):
        assert not torch.equal(kernel.parameters.weights, old)
        check(kernel)


class Clipped(TrainableConvolutionDataSource):
    """Weights that are set by hand behind each update."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        super().update(command_buffer, gradient_state, source_state)
        command_buffer.record("clip", lambda: source_state.weights.tensor(torch.float32).clamp_(-0.05, 0.05))
        return source_state


class Own(ArrayConvolutionDataSource):
    """An optimizer call of the user's own."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        step = MPSNNOptimizerAdam(command_buffer.device, 1e-2)
        count = self._weights.size
        vectors = {
            name: [MPSVector(device=command_buffer.device, descriptor=MPSVectorDescriptor(n)) for n in (count, 3)]
            for name in ("input_momentum_vectors", "input_velocity_vectors")
        }
        step.encode(
            command_buffer,
            convolution_gradient_state=gradient_state,
            convolution_source_state=source_state,
            result_state=source_state,
            **vectors,
        )
        return source_state


@pytest.mark.parametrize(("kind", "reloads"), [(Clipped, 1), (Own, 0)], ids=["a write behind it", "a call by hand"])
def test_updates_of_a_data_source(kind: Any, reloads: int, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    descriptor = MPSCNNConvolutionDescriptor(4, 4, 2, 3)
    options = {} if kind is Own else {"optimizer": lambda device: MPSNNOptimizerAdam(device, 1e-2)}
    source = kind(descriptor, rng.normal(size=(3, 4, 4, 2)) * 0.1, np.zeros(3), label="fc", **options)
    image = mps.MPSCNNFullyConnectedNode(mps.MPSNNImageNode(), source).result_image
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    graph = MPSNNGraph(bench.device, mps.MPSCNNLossNode(image, loss).training_graph()[0].result_image, False)
    graph.format = Format.FLOAT16
    (kernel,) = convolutions(graph)
    before = kernel.parameters.weights.clone()
    assert train(bench, graph, (5, 4, 4, 2), 3).count("TakeWeights") == reloads
    assert not torch.equal(kernel.parameters.weights, before)
    assert kind is Own or float(kernel.parameters.weights.abs().max()) <= 0.0500001
    check(kernel)
