"""Graphs whose normalizations run with the neurons behind them, against the same graphs step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from normalized_networks import FLOAT16, FLOAT32, FORMATS, NEURONS, Format, assert_alike, count, programs, trained
from openmps.graph import compiler
from openmps.graph import fusion as rules
from openmps.graph.program import Program
from openmps.ops.batch_normalization import Normalize
from openmps.ops.normalized_neuron import NormalizedNeuron, NormalizedNeuronSums, PassedSums
from openmps.ops.projected_neuron import ProjectedGradients, ProjectedNeuron, ProjectedSums, SpreadSums
from openmps.training import TrainableBatchNormalizationDataSource
from replay_twin import replaying_queue

OTHERS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": mps.MPSCNNNeuronSigmoidNode,
    "leaky relu n": lambda image: mps.MPSCNNNeuronReLUNNode(image, 0.25, 0.75),
}
SHAPES = [(2, 1, 3, 3), (3, 3, 2, 1), (1, 4, 4, 4), (5, 5, 1, 1)]


@pytest.fixture(autouse=True)
def _rules_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU does without these rules: here it runs the slow forms of what they make."""
    monkeypatch.setattr(compiler, "fuse", lambda *given, in_passes, packs: rules.fuse(*given, in_passes=True))


class Network:
    """A convolution, a normalization, an image added to it if one is, and a neuron; their gradients and updates."""

    def __init__(
        self,
        channels: int,
        neuron: Callable[[Any], Any],
        added: str,
        gradient_format: Format,
        mean: tuple[int, ...] = (),
    ) -> None:
        generator = np.random.default_rng(channels)
        optimizer: Any = lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.1)  # noqa: E731

        def layer(label: str) -> mps.TrainableConvolutionDataSource:
            weights = generator.normal(0, 0.5, (channels, 1, 1, channels)).astype(np.float32)
            descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, channels, channels)
            return mps.TrainableConvolutionDataSource(descriptor, weights, label=label, optimizer=optimizer)

        def normalized(source: Any, label: str) -> Any:
            norm = TrainableBatchNormalizationDataSource(channels, label=label, optimizer=optimizer)
            self.norms.append(norm)
            return mps.MPSCNNBatchNormalizationNode(source, norm)

        self.norms: list[TrainableBatchNormalizationDataSource] = []
        self.layers = [layer("first"), layer("second")]
        image = mps.MPSNNImageNode()
        first = mps.MPSCNNConvolutionNode(image, self.layers[0]).result_image
        self.normalization = normalized(first, "norm")
        total: Any = self.normalization
        if added == "projection":
            total = mps.MPSNNAdditionNode(total.result_image, normalized(first, "projection").result_image)
        elif added:
            total = mps.MPSNNAdditionNode([image, first][added == "source"], total.result_image)
        self.before = total
        activation = neuron(total.result_image)
        if mean:
            size = {"kernel_height": mean[0], "kernel_width": mean[1]}
            strides = {"stride_in_pixels_x": 1, "stride_in_pixels_y": 1}
            activation = mps.MPSCNNPoolingAverageNode(activation.result_image, **size, **strides)
            activation.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
        last = mps.MPSCNNConvolutionNode(activation.result_image, self.layers[1])
        joined = mps.MPSNNAdditionNode(last.result_image, total.result_image) if added == "read" else last
        begin = mps.MPSNNInitialGradientNode(joined.result_image)

        def store(gradient: Any, *_: Any) -> None:
            gradient.result_image.format = gradient_format

        made = begin.training_graph(None, store)
        assert made is not None
        self.result = made[0].result_image

    def graph(self, bench: Bench, channel_format: Format, *, fusion: bool) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(bench.device, self.result)
        graph.format, graph.allow_fusion, graph.stop_on_non_finite = channel_format, fusion, False
        return graph


def both(
    make: Callable[[], Network], device: torch.device, shape: tuple[int, ...], channel_format: Format
) -> tuple[list[Any], list[Any], Program]:
    """What a network gives fused and replayed, and step by step; and the fused program."""
    found, program = [], None
    for fusion in (True, False):
        bench, network = Bench.on(device), make()
        if fusion:
            bench.queue = replaying_queue(device)
        graph = network.graph(bench, channel_format, fusion=fusion)
        found.append(trained(network, graph, bench, shape, channel_format is FLOAT16))
        program = programs(graph, shape, channel_format) if fusion else program
    assert program is not None
    return found[0], found[1], program


@pytest.mark.parametrize("added", ["", "image", "source", "projection"])
@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(each.name for each in pair))
@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_training_equals_that_step_by_step(shape, name: str, formats, added: str, device: torch.device) -> None:
    def make() -> Network:
        return Network(shape[1], NEURONS[name], added, formats[1])

    found, expected, program = both(make, device, shape, formats[0])
    assert_alike(found, expected, device, formats[0])
    is_projection = added == "projection"
    assert count(program, ProjectedNeuron if is_projection else NormalizedNeuron) == 1
    sums = ProjectedSums if is_projection else PassedSums if added else NormalizedNeuronSums
    assert count(program, sums) == 1
    assert count(program, ProjectedGradients) == is_projection
    assert not is_projection or not count(program, Normalize)


@pytest.mark.parametrize("added", ["image", "source"])
@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(each.name for each in pair))
@pytest.mark.parametrize("shape", [(2, 3, 3, 4), (5, 9, 2, 2)], ids=str)
def test_the_mean_of_whole_images(shape, formats, added: str, device: torch.device) -> None:
    def make(*mean: int) -> Network:
        return Network(shape[1], NEURONS["relu"], added, formats[1], mean)

    found, expected, program = both(lambda: make(*shape[2:]), device, shape, formats[0])
    assert_alike(found, expected, device, formats[0])
    assert count(program, SpreadSums) == 1
    found, expected, program = both(lambda: make(shape[2] - 1, shape[3]), device, shape, formats[0])
    assert_alike(found, expected, device, formats[0])
    assert not count(program, SpreadSums), "means of some pixels overlap"


@pytest.mark.parametrize("name", OTHERS)
def test_other_neurons_stay_apart(name: str, device: torch.device) -> None:
    found, expected, program = both(lambda: Network(3, OTHERS[name], "", FLOAT32), device, (2, 3, 2, 2), FLOAT32)
    assert_alike(found, expected, device, FLOAT32)
    assert not count(program, NormalizedNeuron)


@pytest.mark.parametrize("added", ["", "image", "read"])
def test_what_others_read_is_there(added: str, device: torch.device) -> None:
    """An image before the neuron that is exported, or that another filter reads."""

    def make() -> Network:
        network = Network(3, NEURONS["relu"], added, FLOAT16)
        image = network.before.result_image
        if added != "read":
            image.export_from_graph, image.image_allocator = True, mps.MPSImage.default_allocator()
        return network

    found, expected, program = both(make, device, (2, 3, 2, 2), FLOAT16)
    assert_alike(found, expected, device, FLOAT16)
    assert not count(program, NormalizedNeuron)


def test_the_cpu_has_nothing_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    bench = Bench.on(torch.device("cpu"))
    graph = Network(3, NEURONS["relu"], "", FLOAT32).graph(bench, FLOAT32, fusion=True)
    assert not count(programs(graph, (2, 3, 2, 2), FLOAT32), NormalizedNeuron)


def test_explain_names_what_runs_as_a_part(device: torch.device) -> None:
    bench, network = Bench.on(device), Network(3, NEURONS["relu"], "image", FLOAT32)
    network.normalization.label, network.before.label = "a norm", "a sum"
    program = programs(network.graph(bench, FLOAT32, fusion=True), (2, 3, 2, 2), FLOAT32)
    labels = {stage.label for stage in program.fused}
    assert {"a norm", "a sum"} <= labels
