"""Graphs whose poolings run with the normalizations and neurons before them, against the same graphs step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from normalized_networks import FLOAT16, FLOAT32, FORMATS, NEURONS, assert_alike, count, programs, trained
from openmps.graph import compiler
from openmps.graph import fusion as rules
from openmps.ops.normalized_pooling import NormalizedPooling, NormalizedPoolingGradient, NormalizedPoolingSums
from openmps.ops.pooling import MaxPoolingGradient
from openmps.training import TrainableBatchNormalizationDataSource

POOLS: dict[str, Callable[[Any], Any]] = {
    "3 by 2": lambda image: mps.MPSCNNPoolingMaxNode(image, 3, 2),
    "2 by 2": lambda image: mps.MPSCNNPoolingMaxNode(image, 2),
    "3 by 1": lambda image: mps.MPSCNNPoolingMaxNode(image, 3, 1),
}
SHAPES = [(2, 1, 6, 6), (3, 5, 7, 4), (1, 9, 5, 1)]


@pytest.fixture(autouse=True)
def _rules_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU does without these rules: here it runs the slow forms of what they make."""
    monkeypatch.setattr(compiler, "fuse", lambda *given, in_passes, packs: rules.fuse(*given, in_passes=True))


class Network:
    """A convolution, a normalization, a neuron, a pooling and a convolution; their gradients and updates."""

    def __init__(self, channels: int, neuron: str, pool: str, gradient_format: Any, read: str = "") -> None:
        generator = np.random.default_rng(channels)
        optimizer: Any = lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.01)  # noqa: E731

        def layer(label: str) -> mps.TrainableConvolutionDataSource:
            weights = generator.normal(0, 0.5, (channels, 1, 1, channels)).astype(np.float32)
            descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, channels, channels)
            return mps.TrainableConvolutionDataSource(descriptor, weights, label=label, optimizer=optimizer)

        self.layers = [layer("first"), layer("second")]
        self.norms = [TrainableBatchNormalizationDataSource(channels, label="norm", optimizer=optimizer)]
        first = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.layers[0])
        norm = mps.MPSCNNBatchNormalizationNode(first.result_image, self.norms[0])
        activation = NEURONS[neuron](norm.result_image)
        pooled = POOLS[pool](activation.result_image)
        if read == "exported":
            image = activation.result_image
            image.export_from_graph, image.image_allocator = True, mps.MPSImage.default_allocator()
        total: Any = pooled
        if read == "twice":
            total = mps.MPSNNAdditionNode(pooled.result_image, POOLS[pool](activation.result_image).result_image)
        last = mps.MPSCNNConvolutionNode(total.result_image, self.layers[1])
        begin = mps.MPSNNInitialGradientNode(last.result_image)

        def store(gradient: Any, *_: Any) -> None:
            gradient.result_image.format = gradient_format

        made = begin.training_graph(None, store)
        assert made is not None
        self.result = made[0].result_image

    def graph(self, bench: Bench, channel_format: Any, *, fusion: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion, graph.stop_on_non_finite = channel_format, fusion, False
        return graph


def both(make: Callable[[], Network], device: torch.device, shape: tuple[int, ...], channel_format: Any) -> Any:
    """What a network gives fused, and step by step; and the fused program."""
    found: list[Any] = []
    program: Any = None
    for fusion in (True, False):
        bench, network = Bench.on(device), make()
        graph = network.graph(bench, channel_format, fusion=fusion)
        found.append(trained(network, graph, bench, shape, channel_format is FLOAT16))
        program = programs(graph, shape, channel_format) if fusion else program
    return *found, program


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(each.name for each in pair))
@pytest.mark.parametrize("neuron", ["relu", "relu n"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_training_equals_that_step_by_step(shape, neuron: str, formats, pool: str, device: torch.device) -> None:
    def make() -> Network:
        return Network(shape[1], neuron, pool, formats[1])

    found, expected, program = both(make, device, shape, formats[0])
    assert_alike(found, expected, device, formats[0])
    for kind in (NormalizedPooling, NormalizedPoolingSums, NormalizedPoolingGradient):
        assert count(program, kind) == 1
    assert not count(program, MaxPoolingGradient)


@pytest.mark.parametrize(("neuron", "read"), [("leaky relu", ""), ("relu", "exported"), ("relu", "twice")])
def test_what_stands_in_the_way(neuron: str, read: str, device: torch.device) -> None:
    """A neuron that passes a part of a gradient, and images between that come out or that others read."""
    shape = (2, 3, 6, 5)
    found, expected, program = both(lambda: Network(3, neuron, "3 by 2", FLOAT32, read), device, shape, FLOAT32)
    assert_alike(found, expected, device, FLOAT32)
    assert not count(program, NormalizedPooling)
