"""What tests of networks with normalizations share: neurons, formats, steps of training, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from openmps.graph.compile.program import Program
from openmps.training import TrainableBatchNormalizationDataSource
from replay_twin import replaying_queue
from rounding import rounded_once

Format = mps.MPSImageFeatureChannelFormat
FLOAT16, FLOAT32 = Format.FLOAT16, Format.FLOAT32
NEURONS: dict[str, Callable[[Any], Any]] = {
    "relu": mps.MPSCNNNeuronReLUNode,
    "leaky relu": lambda image: mps.MPSCNNNeuronReLUNode(image, 0.25),
    "relu n": lambda image: mps.MPSCNNNeuronReLUNNode(image, 0.0, 0.75),
}
FORMATS = [(FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (FLOAT16, FLOAT16)]
"""Of images and of their gradients."""


class NormalizedNetwork:
    """Convolutions of 1 by 1 and normalizations, whose nodes a test joins; their gradients and updates."""

    result: mps.MPSNNImageNode

    def __init__(self, channels: int, rate: float) -> None:
        self._channels, generator = channels, np.random.default_rng(channels)
        self._optimizer: Any = lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, rate)
        self.norms: list[TrainableBatchNormalizationDataSource] = []
        descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, channels, channels)
        weights = [generator.normal(0, 0.5, (channels, 1, 1, channels)).astype(np.float32) for _ in range(2)]
        self.layers = [
            mps.TrainableConvolutionDataSource(descriptor, each, label=label, optimizer=self._optimizer)
            for each, label in zip(weights, ("first", "second"), strict=True)
        ]

    def normalized(self, source: Any, label: str = "norm") -> mps.MPSCNNBatchNormalizationNode:
        """One more normalization."""
        norm = TrainableBatchNormalizationDataSource(self._channels, label=label, optimizer=self._optimizer)
        self.norms.append(norm)
        return mps.MPSCNNBatchNormalizationNode(source, norm)

    def ends(self, image: Any, gradient_format: Format) -> None:
        """Derive the training graph; gradients are stored in a format."""

        def store(gradient: Any, *_: Any) -> None:
            gradient.result_image.format = gradient_format

        made = mps.MPSNNInitialGradientNode(image).training_graph(None, store)
        assert made is not None
        self.result = made[0].result_image

    def graph(self, bench: Bench, channel_format: Format, *, fusion: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion, graph.stop_on_non_finite = channel_format, fusion, False
        return graph


def both(
    make: Callable[[], NormalizedNetwork], device: torch.device, shape: tuple[int, ...], channel_format: Format
) -> tuple[list[Any], list[Any], Program]:
    """What a network gives fused and replayed, and step by step; and the fused program.

    On the CPU rounded once, for the two sum numbers that lie in other places.
    """
    found, program = [], None
    for fusion in (True, False):
        bench, network = Bench.on(device), make()
        if fusion:
            bench.queue = replaying_queue(device)
        graph = network.graph(bench, channel_format, fusion=fusion)
        with rounded_once() if device.type == "cpu" else nullcontext():
            found.append(trained(network, graph, bench, shape, channel_format is FLOAT16))
        program = programs(graph, shape, channel_format) if fusion else program
    assert program is not None
    return found[0], found[1], program


def programs(graph: mps.MPSNNGraph, shape: tuple[int, ...], channel_format: Format) -> Program:
    images, channels, height, width = shape
    descriptor = mps.MPSImageDescriptor(channel_format, width, height, channels)
    return graph.program_for([descriptor], images)


def trained(network: Any, graph: mps.MPSNNGraph, bench: Bench, shape: tuple[int, ...], half: bool) -> list[Any]:
    """Gradients of the source in three steps, then all parameters."""
    generator, found = np.random.default_rng(7), []
    for _ in range(3):
        pixels = generator.normal(0, 1, shape).astype(np.float16 if half else np.float32)
        command_buffer = bench.command_buffer()
        batch = mps.MPSImageBatch.from_numpy(bench.device, pixels.transpose(0, 2, 3, 1))
        result: Any = graph.encode_batch(command_buffer, [batch])
        finish(command_buffer)
        found.append(numbers(result))
    arrays = [array for source in (*network.layers, *network.norms) for array in source.arrays().values()]
    return [*found, *arrays]


def assert_alike(found: list[Any], expected: list[Any], device: torch.device, channel_format: Format) -> None:
    """Equal bit for bit, as `both` rounds on the CPU; on a GPU to the rounding of the format.

    There some may end on the other side of a mask.
    """
    for one, other in zip(found, expected, strict=True):
        if device.type == "cpu":
            np.testing.assert_array_equal(one, other)
        else:
            bound = 2e-2 if channel_format is FLOAT16 else 1e-4
            np.testing.assert_allclose(one, other, rtol=bound, atol=bound * float(np.abs(other).max() + 0.1))


def count(program: Program, kind: type) -> int:
    return sum(isinstance(equation.op, kind) for equation in program.function.equations)
