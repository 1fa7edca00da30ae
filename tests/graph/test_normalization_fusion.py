"""Graphs whose normalizations run with the neurons behind them, against the same graphs step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import openmps as mps
from encoding import Bench
from normalized_networks import (
    FLOAT16,
    FLOAT32,
    FORMATS,
    NEURONS,
    Format,
    NormalizedNetwork,
    assert_alike,
    both,
    count,
    programs,
)
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, NormalizedNeuronSums, PassedSums
from openmps.ops.normalization.projected_neuron import ProjectedGradients, ProjectedNeuron, ProjectedSums, SpreadSums
from pairs import pairs

pytestmark = pytest.mark.usefixtures("rules_of_a_gpu")

OTHERS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": mps.MPSCNNNeuronSigmoidNode,
    "leaky relu n": lambda image: mps.MPSCNNNeuronReLUNNode(image, 0.25, 0.75),
}
ADDED = ["", "image", "source", "projection"]
SHAPES = [(2, 1, 3, 3), (3, 3, 2, 1), (1, 4, 4, 4), (5, 5, 1, 1)]


class Network(NormalizedNetwork):
    """A convolution, a normalization, an image added to it if one is, and a neuron; their gradients and updates."""

    def __init__(
        self,
        channels: int,
        neuron: Callable[[Any], Any],
        added: str,
        gradient_format: Format,
        mean: tuple[int, ...] = (),
    ) -> None:
        super().__init__(channels, 0.1)
        image = mps.MPSNNImageNode()
        first = mps.MPSCNNConvolutionNode(image, self.layers[0]).result_image
        self.normalization = self.normalized(first)
        total: Any = self.normalization
        if added == "projection":
            total = mps.MPSNNAdditionNode(total.result_image, self.normalized(first, "projection").result_image)
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
        self.ends(joined.result_image, gradient_format)


@pytest.mark.parametrize(("shape", "name", "formats", "added"), pairs(SHAPES, [*NEURONS], FORMATS, ADDED), ids=str)
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
