"""The three ways to update weights, and the graph's training styles: one network, the same weights by each."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from helpers import assert_close
from networks import Format, Weights, convolution, labels, losses, one_hot, softmax_loss
from openmps.core.image.batch_functions import MPSImageBatchIncrementReadCount
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSTrainingWarning
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionGradientNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionGradient,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.kernels.loss import MPSCNNLoss, MPSCNNLossDescriptor
from openmps.kernels.neuron import MPSCNNNeuron, MPSCNNNeuronGradient, MPSNNNeuronDescriptor
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerStochasticGradientDescent
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import (
    MPSCNNLossType,
    MPSCNNNeuronType,
    MPSCNNReductionType,
    MPSNNTrainingStyle,
)

Array = np.ndarray
Optimizer = Any
FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "mnist"
STEPS, IMAGES = 6, 8
RATE, MOMENTUM, BETA1, BETA2 = 0.02, 0.9, 0.9, 0.999
# Where a gradient is all rounding, Adam's step is too: this epsilon keeps such steps below what is compared.
EPSILON = 1e-3
FLOAT32 = 1e-6
"""The largest difference between ways, as a share of the largest weight: rounding, passed on over the steps."""


# --- data and network -------------------------------------------------------------------------------------------------


def pictures() -> tuple[Array, Array]:
    """Digits ``[N, 1, 28, 28]`` from 0 to 1 and their classes: MNIST's if the files are there, else blots of noise."""
    count = STEPS * IMAGES
    files = [FOLDER / f"train-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")]
    if all(file.is_file() for file in files):
        with gzip.open(files[0]) as images, gzip.open(files[1]) as classes:
            pixels = np.frombuffer(images.read(16 + count * 784), np.uint8, offset=16)
            return pixels.reshape(count, 1, 28, 28) / 255.0, np.frombuffer(classes.read(8 + count), np.uint8, offset=8)
    rng = np.random.default_rng(7)
    classes = rng.integers(0, 10, count)
    blots = rng.random((10, 1, 28, 28)) > 0.8
    return blots[classes] * rng.uniform(0.2, 1.0, (count, 1, 28, 28)), classes


PIXELS, CLASSES = pictures()


def batches(bench: Bench) -> Iterator[tuple[Any, list[Any]]]:
    for step in range(STEPS):
        chosen = slice(step * IMAGES, (step + 1) * IMAGES)
        yield bench.batch(PIXELS[chosen]), labels(bench, one_hot(CLASSES[chosen].astype(int), 10))


def make(kind: Callable[..., Any]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [kind(rng, (4, 5, 5, 1), "first"), kind(rng, (10, 28, 28, 4), "second")]


class Layers:
    """A convolution, ReLU and a fully connected layer, with their gradient kernels."""

    def __init__(self, bench: Bench, sources: list[Any]) -> None:
        relu, device = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU), bench.device
        self.pairs: list[tuple[Any, Any]] = [
            (MPSCNNConvolution(device, weights=sources[0]), MPSCNNConvolutionGradient(device, weights=sources[0])),
            (
                MPSCNNFullyConnected(device, weights=sources[1]),
                MPSCNNFullyConnectedGradient(device, weights=sources[1]),
            ),
        ]
        self.relu, self.relu_gradient = MPSCNNNeuron(device, relu), MPSCNNNeuronGradient(device, relu)
        descriptor = MPSCNNLossDescriptor(MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, MPSCNNReductionType.SUM)
        self.loss = MPSCNNLoss(device, descriptor)

    def encode(self, command_buffer: Any, images: Any, given: list[Any]) -> list[Any]:
        """Forward and backward; the gradient states of both layers."""
        (first, first_gradient), (second, second_gradient) = self.pairs
        hidden, one = first.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        MPSImageBatchIncrementReadCount(hidden, 1)
        active, signs = self.relu.encode_batch(command_buffer, hidden, destination_state_is_temporary=True)
        MPSImageBatchIncrementReadCount(active, 1)
        logits, two = second.encode_batch(command_buffer, active, destination_state_is_temporary=False)
        flow = self.loss.encode_batch(command_buffer, logits, given)
        flow = second_gradient.encode_batch(command_buffer, flow, active, two)
        flow = self.relu_gradient.encode_batch(command_buffer, flow, hidden, signs)
        first_gradient.encode_batch(command_buffer, flow, images, one)
        return [one[0], two[0]]


# --- optimizers: in NumPy, and the kernels ----------------------------------------------------------------------------


def gradients(state: Any) -> list[Array]:
    return [
        buffer.contents().view(np.float32).copy() for buffer in (state.gradient_for_weights, state.gradient_for_biases)
    ]


class HostSource(Weights):
    """Weights in arrays and an optimizer in NumPy."""

    time_step = 0
    adam = False

    @classmethod
    def of_adam(cls, *arguments: Any) -> HostSource:
        source = cls.of(*arguments)
        source.adam = True  # type: ignore[attr-defined]
        return source  # type: ignore[return-value]

    def descend(self, state: Any) -> None:
        assert self.bias is not None
        values = [self.array.ravel(), self.bias]
        if not self.time_step:
            self.first = [np.zeros_like(each) for each in values]
            self.second = [np.zeros_like(each) for each in values]
        self.time_step += 1
        step = self._adam if self.adam else self._sgd
        for index, slope in enumerate(gradients(state)):
            values[index] = values[index] - step(index, slope)
        self.array, self.bias = values[0].reshape(self.array.shape), values[1]

    def _sgd(self, index: int, slope: Array) -> Array:
        """Momentum that holds the learning rate."""
        self.first[index] = np.float32(MOMENTUM) * self.first[index] + np.float32(RATE) * slope
        return self.first[index]

    def _adam(self, index: int, slope: Array) -> Array:
        """Epsilon outside the correction of the bias."""
        self.first[index] = np.float32(BETA1) * self.first[index] + np.float32(1 - BETA1) * slope
        self.second[index] = np.float32(BETA2) * self.second[index] + np.float32(1 - BETA2) * slope * slope
        rate = RATE * np.sqrt(1 - BETA2**self.time_step) / (1 - BETA1**self.time_step)
        return np.float32(rate) * self.first[index] / (np.sqrt(self.second[index]) + np.float32(EPSILON))

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> bool:
        assert command_buffer is None
        self.descend(gradient_state)
        return True


def sgd(device: Any) -> Optimizer:
    return MPSNNOptimizerStochasticGradientDescent(device, RATE, momentum_scale=MOMENTUM)


def adam(device: Any) -> Optimizer:
    return MPSNNOptimizerAdam(device, RATE, beta1=BETA1, beta2=BETA2, epsilon=EPSILON)


OPTIMIZERS = {"sgd": (HostSource.of, sgd), "adam": (HostSource.of_adam, adam)}


class DeviceUpdate:
    """An optimizer and its vectors for one layer."""

    def __init__(self, bench: Bench, optimizer: Callable[[Any], Optimizer], lengths: tuple[int, int]) -> None:
        self.optimizer = optimizer(bench.device)
        names = ["input_momentum_vectors", "input_velocity_vectors"]
        self.vectors = {
            name: [MPSVector(descriptor=MPSVectorDescriptor(length), device=bench.device) for length in lengths]
            for name in names[: 2 if isinstance(self.optimizer, MPSNNOptimizerAdam) else 1]
        }

    def encode(self, command_buffer: Any, state: Any, source: Any, result: Any) -> None:
        self.optimizer.encode(
            command_buffer,
            convolution_gradient_state=state,
            convolution_source_state=source,
            result_state=result,
            **self.vectors,
        )


# --- the ways ---------------------------------------------------------------------------------------------------------

Held = list[Array]


def arrays(sources: list[Any]) -> Held:
    return [each.copy() for source in sources for each in (source.array.ravel(), source.bias)]


def exported(bench: Bench, kernels: list[Any]) -> Held:
    command_buffer = bench.command_buffer()
    states = [kernel.export_weights_and_biases(command_buffer) for kernel in kernels]
    finish(command_buffer)
    return [buffer.contents().view(np.float32).copy() for state in states for buffer in (state.weights, state.biases)]


def checkpointing(bench: Bench, host: Any, optimizer: Any) -> Held:
    """Way 1: read on the CPU, update the data source, make kernels from it anew."""
    sources = make(host)
    for images, given in batches(bench):
        layers, command_buffer = Layers(bench, sources), bench.command_buffer()
        states = layers.encode(command_buffer, images, given)
        for state in states:
            state.synchronize(command_buffer)
        finish(command_buffer)
        for source, state in zip(sources, states, strict=True):
            source.descend(state)
    return arrays(sources)


def reloading(bench: Bench, host: Any, optimizer: Any) -> Held:
    """Way 2: update the data source, reload both kernels of each layer."""
    sources = make(host)
    layers = Layers(bench, sources)
    for images, given in batches(bench):
        command_buffer = bench.command_buffer()
        states = layers.encode(command_buffer, images, given)
        finish(command_buffer)
        for source, state, kernels in zip(sources, states, layers.pairs, strict=True):
            source.descend(state)
            for kernel in kernels:
                kernel.reload_weights_and_biases_from_data_source()
                assert not kernel.holds_stale_weights()
    held = exported(bench, [forward for forward, _ in layers.pairs])
    for mine, theirs in zip(held, arrays(sources), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return held


def on_the_device(bench: Bench, host: Any, optimizer: Any) -> Held:
    """Way 3: the update encoded, both kernels reloaded from the state, and no wait before the end."""
    sources = make(Weights.of)
    layers = Layers(bench, sources)
    updates = [DeviceUpdate(bench, optimizer, (source.array.size, source.bias.size)) for source in sources]
    for images, given in batches(bench):
        command_buffer = bench.command_buffer()
        states = layers.encode(command_buffer, images, given)
        for (forward, gradient), state, update in zip(layers.pairs, states, updates, strict=True):
            weights = forward.export_weights_and_biases(command_buffer, result_state_can_be_temporary=True)
            weights.read_count = 3
            update.encode(command_buffer, state, weights, weights)
            for kernel in (forward, gradient):
                kernel.reload_weights_and_biases(command_buffer, weights)
            assert weights.read_count == 0
            assert forward.weights_version == gradient.weights_version
        command_buffer.commit()
    return exported(bench, [forward for forward, _ in layers.pairs])


def nodes(sources: list[Any], style: MPSNNTrainingStyle, *, export: bool = False) -> MPSNNImageNode:
    """The same network as nodes; the image that its training graph ends in."""
    hidden = MPSCNNNeuronReLUNode(convolution(MPSNNImageNode(), sources[0]).result_image)
    logits = MPSCNNFullyConnectedNode(hidden.result_image, sources[1])

    def choose(gradient: Any, forward: Any, *_: Any) -> None:
        if isinstance(gradient, MPSCNNConvolutionGradientNode):
            gradient.training_style = style
            forward.convolution_gradient_state.export_from_graph = export

    (terminus,) = softmax_loss(logits.result_image).training_graph(None, choose) or []
    return terminus.result_image


def graph_over(bench: Bench, sources: list[Any], style: MPSNNTrainingStyle, *, export: bool = False) -> MPSNNGraph:
    graph = MPSNNGraph(bench.device, nodes(sources, style, export=export), export)
    graph.format = Format.FLOAT32
    return graph


def in_graph(graph: MPSNNGraph) -> list[Any]:
    kernels = {kernel.label: kernel for kernel in graph.kernels.values() if isinstance(kernel, MPSCNNConvolution)}
    return [kernels["first"], kernels["second"]]


def graph_on_the_cpu(bench: Bench, host: Any, optimizer: Any) -> Held:
    sources = make(host)
    graph = graph_over(bench, sources, MPSNNTrainingStyle.UPDATE_DEVICE_CPU)
    for images, given in batches(bench):
        command_buffer = bench.command_buffer()
        graph.encode_batch(command_buffer, [images], [given])
        finish(command_buffer)
        assert graph.stale_weights() == []
    return exported(bench, in_graph(graph))


def graph_on_the_device(bench: Bench, host: Any, optimizer: Any) -> Held:
    def trainable(*arguments: Any) -> Any:
        drawn = Weights.of(*arguments)
        return TrainableConvolutionDataSource(drawn.made, drawn.array, drawn.bias, drawn.name, optimizer=optimizer)

    sources = make(trainable)
    graph = graph_over(bench, sources, MPSNNTrainingStyle.UPDATE_DEVICE_GPU)
    for images, given in batches(bench):
        command_buffer = bench.command_buffer()
        graph.encode_batch(command_buffer, [images], [given])
        command_buffer.commit()
    held = exported(bench, in_graph(graph))
    assert graph.stale_weights() == [], "the data source brings the weights back"
    return held


def graph_by_hand(bench: Bench, host: Any, optimizer: Any) -> Held:
    """No style at all: the states are exported, the program updates the sources and reloads the graph."""
    sources = make(host)
    graph = graph_over(bench, sources, MPSNNTrainingStyle.UPDATE_DEVICE_NONE, export=True)
    for images, given in batches(bench):
        command_buffer, made = bench.command_buffer(), []
        graph.encode_batch(command_buffer, [images], [given], destination_states=made)
        finish(command_buffer)
        by_label = {state.kernel.label: state for (state, *_) in made}
        for source in sources:
            source.descend(by_label[source.name])
        assert len(graph.stale_weights()) == 2
        graph.reload_from_data_sources()
        assert graph.stale_weights() == []
    return exported(bench, in_graph(graph))


def graph_by_hand_on_the_device(bench: Bench, host: Any, optimizer: Any) -> Held:
    """The exported states are temporary, and read by updates that the program encodes behind the graph."""
    sources = make(Weights.of)
    graph = graph_over(bench, sources, MPSNNTrainingStyle.UPDATE_DEVICE_NONE, export=True)
    graph.output_state_is_temporary = True
    updates = {source.name: DeviceUpdate(bench, optimizer, (source.array.size, source.bias.size)) for source in sources}
    for images, given in batches(bench):
        command_buffer, made = bench.command_buffer(), []
        graph.encode_batch(command_buffer, [images], [given], destination_states=made)
        for state, *_ in made:
            assert state.is_temporary and state.read_count == 1
            kernel = state.kernel
            weights = kernel.export_weights_and_biases(command_buffer, result_state_can_be_temporary=True)
            weights.read_count = 2
            updates[kernel.label].encode(command_buffer, state, weights, weights)
            kernel.reload_weights_and_biases(command_buffer, weights)  # the graph's gradient kernels share the weights
        command_buffer.commit()
    return exported(bench, in_graph(graph))


WAYS = [
    checkpointing,
    reloading,
    on_the_device,
    graph_on_the_cpu,
    graph_on_the_device,
    graph_by_hand,
    graph_by_hand_on_the_device,
]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_way_gives_the_same_weights(kind: str, device: torch.device) -> None:
    bench = Bench.on(device)
    host, optimizer = OPTIMIZERS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error", MPSTrainingWarning)
        found = {way.__name__: way(bench, host, optimizer) for way in WAYS}
    start = arrays(make(Weights.of))
    tolerance = FLOAT32 if device.type == "cpu" else 1e-4
    for name, held in found.items():
        for mine, expected, before in zip(held, found["reloading"], start, strict=True):
            assert_close(mine, expected, tolerance, name)
            moved = np.abs(mine - before).max()
            assert moved > 100 * tolerance * max(1.0, np.abs(expected).max()), "a step is much larger than the rounding"


def test_the_steps_go_downhill() -> None:
    bench = Bench.on(torch.device("cpu"))
    sources = make(HostSource.of)
    layers = Layers(bench, sources)
    images, _ = next(batches(bench))
    held = []
    for _ in range(STEPS):
        given = labels(bench, one_hot(CLASSES[:IMAGES].astype(int), 10))
        command_buffer = bench.command_buffer()
        states = layers.encode(command_buffer, images, given)
        finish(command_buffer)
        held.append(losses(given).sum())
        for source, state, kernels in zip(sources, states, layers.pairs, strict=True):
            source.array = source.array - 0.005 * gradients(state)[0].reshape(source.array.shape)
            for kernel in kernels:
                kernel.reload_weights_and_biases_from_data_source()
    assert held == sorted(held, reverse=True) and held[-1] < 0.5 * held[0]
