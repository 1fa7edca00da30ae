"""Graphs whose biases, poolings, ReLUs and dropouts run as one step, against the same graphs step by step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from openmps.graph.compile.program import Program
from openmps.ops.convolution.convolution_end import ConvolutionEnd, ConvolutionEndGradient
from openmps.ops.op import Op
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient
from replay_twin import replaying_queue

pytestmark = pytest.mark.usefixtures("rules_of_a_gpu")

Format = mps.MPSImageFeatureChannelFormat
FLOAT16, FLOAT32 = Format.FLOAT16, Format.FLOAT32
FORMATS = [(FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (FLOAT16, FLOAT16)]
"""Of images and of their gradients."""
BATCH, SIDE, CHANNELS = 3, 6, 2


def neuron(source: Any) -> Any:
    return mps.MPSCNNNeuronReLUNode(source)


def leaky(source: Any) -> Any:
    return mps.MPSCNNNeuronReLUNode(source, 0.25)


def pooling(source: Any) -> Any:
    return mps.MPSCNNPoolingMaxNode(source, 2)


def wide_pooling(source: Any) -> Any:
    return mps.MPSCNNPoolingMaxNode(source, 3, 2)


def dropout(source: Any) -> Any:
    return mps.MPSCNNDropoutNode(source, 0.75, 5)


def shared_dropout(source: Any) -> Any:
    return mps.MPSCNNDropoutNode(source, 0.75, 5, mps.MTLSize(0, 0, 1))


CHAINS: dict[str, tuple[tuple[Any, ...], int]] = {
    "neuron": ((neuron,), 1),
    "neuron, pooling": ((neuron, pooling), 1),
    "pooling, neuron": ((pooling, neuron), 2),
    "pooling": ((pooling,), 1),
    "neuron, dropout": ((neuron, dropout), 1),
    "neuron, pooling, dropout": ((neuron, pooling, dropout), 1),
    "pooling, dropout": ((pooling, dropout), 1),
    "neuron, shared dropout": ((neuron, shared_dropout), 1),
    "neuron, wide pooling": ((neuron, wide_pooling), 0),
    "wide pooling, neuron": ((wide_pooling, neuron), 1),
    "leaky neuron": ((leaky,), 0),
    "leaky neuron, pooling": ((leaky, pooling), 1),
    "dropout alone": ((dropout,), 0),
}
"""What stands behind a layer, and how many steps of the kind become of it."""


class Network:
    """Two layers with the same nodes behind the first, their gradients and updates."""

    def __init__(self, chain: tuple[Any, ...], *, is_whole: bool, read: str, gradient_format: Format) -> None:
        generator = np.random.default_rng(3)
        optimizer: Any = lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.01)  # noqa: E731

        def layer(label: str, side: int, inputs: int) -> mps.TrainableConvolutionDataSource:
            weights = generator.normal(0, 0.5, (CHANNELS, side, side, inputs)).astype(np.float32)
            biases = generator.normal(0, 0.5, CHANNELS).astype(np.float32)
            descriptor = mps.MPSCNNConvolutionDescriptor(side, side, inputs, CHANNELS)
            return mps.TrainableConvolutionDataSource(descriptor, weights, biases, label=label, optimizer=optimizer)

        self.layers = [layer("first", SIDE if is_whole else 3, CHANNELS), layer("second", 1, CHANNELS)]
        image = mps.MPSNNImageNode()
        kind = mps.MPSCNNFullyConnectedNode if is_whole else mps.MPSCNNConvolutionNode
        first = kind(image, self.layers[0])
        self.nodes: list[Any] = [first]
        for make in chain:
            self.nodes.append(make(self.nodes[-1].result_image))
        last: Any = mps.MPSCNNConvolutionNode(self.nodes[-1].result_image, self.layers[1])
        if read:
            node = self.nodes[-1] if read == "the end" else first
            last = mps.MPSNNAdditionNode(mps.MPSCNNNeuronSigmoidNode(last.result_image).result_image, node.result_image)
        made = mps.MPSNNInitialGradientNode(last.result_image).training_graph(None, self._stored(gradient_format))
        assert made is not None
        self.result = made[0].result_image

    @staticmethod
    def _stored(gradient_format: Format) -> Any:
        def store(gradient: Any, *_: Any) -> None:
            gradient.result_image.format = gradient_format

        return store

    def graph(self, bench: Bench, channel_format: Format, *, fusion: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion, graph.stop_on_non_finite = channel_format, fusion, False
        return graph


def trained(network: Network, graph: mps.MPSNNGraph, bench: Bench, half: bool) -> list[Any]:
    """Gradients of the source in three steps, then all parameters."""
    generator, found = np.random.default_rng(7), []
    for _ in range(3):
        pixels = generator.integers(-2, 3, (BATCH, SIDE, SIDE, CHANNELS)).astype(np.float16 if half else np.float32)
        command_buffer = bench.command_buffer()
        batch = mps.MPSImageBatch.from_numpy(bench.device, pixels)
        result: Any = graph.encode_batch(command_buffer, [batch])
        finish(command_buffer)
        found.append(numbers(result))
    return [*found, *(array for source in network.layers for array in source.arrays().values())]


def both(device: torch.device, formats: tuple[Format, Format], **said: Any) -> tuple[list[Any], list[Any], Program]:
    """What a network gives fused and replayed, and step by step; and the fused program."""
    found, program = [], None
    for fusion in (True, False):
        bench, network = Bench.on(device), Network(gradient_format=formats[1], **said)
        if fusion:
            bench.queue = replaying_queue(device)
        graph = network.graph(bench, formats[0], fusion=fusion)
        found.append(trained(network, graph, bench, formats[0] is FLOAT16))
        if fusion:
            descriptor = mps.MPSImageDescriptor(formats[0], SIDE, SIDE, CHANNELS)
            program = graph.program_for([descriptor], BATCH)
    assert program is not None
    return found[0], found[1], program


def assert_alike(found: list[Any], expected: list[Any], device: torch.device, formats: tuple[Format, Format]) -> None:
    """Equal but for the order of the sums for biases, which updates bring into what follows."""
    bound = {FLOAT32: 1e-4, FLOAT16: 2e-2 if device.type == "cuda" else 4e-3}[formats[0]]
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(other).all()  # the bound is relative to the largest
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound * float(np.abs(other).max() + 0.1))


def count(program: Program, kind: type[Op]) -> int:
    return sum(isinstance(step.op, kind) for step in program.function.equations)


ENDS = LayerEnd, ConvolutionEnd
END_GRADIENTS = LayerEndGradient, ConvolutionEndGradient
CASES = [(name, is_whole) for name in CHAINS for is_whole in (False, True) if not (is_whole and "pooling" in name)]
"""Of the result of a fully connected layer there is one pixel, which nothing is pooled of."""


@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(each.name for each in pair))
@pytest.mark.parametrize(("name", "is_whole"), CASES)
def test_fused_training_equals_that_step_by_step(name: str, is_whole: bool, formats, device: torch.device) -> None:
    chain, fused = CHAINS[name]
    found, expected, program = both(device, formats, chain=chain, is_whole=is_whole, read="")
    assert_alike(found, expected, device, formats)
    ends = [sum(count(program, kind) for kind in kinds) for kinds in (ENDS, END_GRADIENTS)]
    assert ends == [fused, fused]


@pytest.mark.parametrize(
    ("name", "read"),
    list(itertools.product(("neuron", "neuron, dropout", "dropout alone"), ("the end", "the beginning"))),
)
def test_images_that_others_read_are_there(name: str, read: str, device: torch.device) -> None:
    said: Any = {"chain": CHAINS[name][0], "is_whole": False, "read": read}
    found, expected, _ = both(device, (FLOAT32, FLOAT32), **said)
    assert_alike(found, expected, device, (FLOAT32, FLOAT32))


def test_images_that_come_out_are_there(device: torch.device) -> None:
    """What stands before them is fused all the same."""
    bench, network = Bench.on(device), Network((neuron, dropout), is_whole=False, read="", gradient_format=FLOAT32)
    network.nodes[1].result_image.export_from_graph = True
    descriptor = mps.MPSImageDescriptor(FLOAT32, SIDE, SIDE, CHANNELS)
    program = network.graph(bench, FLOAT32, fusion=True).program_for([descriptor], BATCH)
    ends = [step.op for step in program.function.equations if isinstance(step.op, LayerEnd)]
    assert [op.mask for op in ends] == [None]
