"""The data-source protocol as a graph uses it: load and purge in pairs, nothing read outside them, failures told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from networks import NETWORKS, Weights, digits, labels, shared, training_graph
from openmps.errors import MPSArgumentError, MPSError, MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionGradientNode, MPSCNNConvolutionNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.types import MPSNNTrainingStyle


@pytest.fixture
def bench() -> Bench:
    return Bench.on(torch.device("cpu"))


def balanced(sources: dict[str, Any]) -> bool:
    return all(source.loads == source.purges > 0 and not source.loaded for source in sources.values())


@pytest.mark.parametrize("name", NETWORKS)
def test_every_load_has_its_purge(bench: Bench, rng: np.random.Generator, name: str) -> None:
    """`Weights` raises if descriptor, type, weights or biases are asked for outside the pair."""
    network = NETWORKS[name](rng)
    graph = training_graph(bench, network)
    assert balanced(network.sources)
    reads = {key: source.reads for key, source in network.sources.items()}
    images, targets = network.batch(rng, 2)
    graph.encode_batch(command_buffer := bench.command_buffer(), [bench.batch(images)], [labels(bench, targets)])
    finish(command_buffer)
    assert {key: source.reads for key, source in network.sources.items()} == reads, "weights are not read to encode"
    graph.reload_from_data_sources()
    assert balanced(network.sources)
    assert {key: source.reads - reads[key] for key, source in network.sources.items()} == dict.fromkeys(reads, 1)


def test_nodes_need_the_label_only(rng: np.random.Generator) -> None:
    source = Weights.of(rng, (2, 3, 3, 1), "conv")
    MPSCNNConvolutionNode(MPSNNImageNode(), source)
    assert source.loads == 0


def test_a_load_that_fails(bench: Bench, rng: np.random.Generator) -> None:
    source = Weights.of(rng, (2, 3, 3, 1), "conv")
    node = MPSCNNConvolutionNode(MPSNNImageNode(), source)
    source.load = lambda: False
    with pytest.raises(MPSArgumentError, match=r"'conv'.*load\(\) must return True"):
        MPSNNGraph(bench.device, node.result_image)
    assert source.purges == 0, "nothing was loaded"


def test_a_source_that_raises_is_purged(bench: Bench, rng: np.random.Generator) -> None:
    class Broken(Weights):
        def weights(self) -> Any:
            raise OSError("the file is gone")

    source = Broken.of(rng, (2, 3, 3, 1))
    with pytest.raises(OSError, match="the file is gone"):
        MPSNNGraph(bench.device, MPSCNNConvolutionNode(MPSNNImageNode(), source).result_image)
    assert source.loads == source.purges == 1


def test_a_reload_must_keep_the_shape(bench: Bench, rng: np.random.Generator) -> None:
    source = Weights.of(rng, (2, 3, 3, 1))
    graph = MPSNNGraph(bench.device, MPSCNNConvolutionNode(MPSNNImageNode(), source).result_image)
    source.array = source.array[:1]
    with pytest.raises(MPSError, match="must"):
        graph.reload_from_data_sources()
    assert balanced({"": source})


def test_a_shared_source_is_reloaded_once(bench: Bench, rng: np.random.Generator) -> None:
    network = shared(rng)
    graph = training_graph(bench, network)
    before = network.sources["both"].reads
    graph.reload_from_data_sources()
    assert network.sources["both"].reads == before + 1


def test_sources_of_pruned_layers_are_left_alone(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    graph = MPSNNGraph(bench.device, network.nodes["pool1"].result_image)
    assert network.sources["conv1"].loads == 1 and network.sources["conv2"].loads == 0
    graph.reload_from_data_sources()
    assert network.sources["conv2"].loads == 0


def test_labels_name_the_kernels(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    network.nodes["conv2"].label = "second"
    kernels: Any = MPSNNGraph(bench.device, network.nodes["fc2"].result_image).kernels
    assert [kernel.label for kernel in kernels.values() if kernel.label] == ["conv1", "second", "fc1", "fc2"]
    assert network.sources["conv2"].name == "conv2"


def test_an_object_that_is_no_data_source(rng: np.random.Generator) -> None:
    class Half:
        def load(self) -> bool:
            return True

    with pytest.raises(MPSTypeError, match="^MPSCNNConvolutionNode: weights must be a data source.*got Half without"):
        MPSCNNConvolutionNode(MPSNNImageNode(), Half())


def test_another_source_for_the_gradient(bench: Bench, rng: np.random.Generator) -> None:
    """Allowed: the gradient is that of the other weights, and their source is the one that is asked for updates."""
    image, gradient = MPSNNImageNode(), MPSNNImageNode()
    mine, other = Weights.of(rng, (2, 3, 3, 1)), Weights.of(rng, (2, 3, 3, 1))
    node = MPSCNNConvolutionNode(image, mine)
    made = MPSCNNConvolutionGradientNode(gradient, image, node.convolution_gradient_state, other)
    made.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_NONE
    graph = MPSNNGraph(bench.device, made.result_image)
    kernels: Any = list(graph.kernels.values())
    assert [kernel.data_source for kernel in kernels] == [mine, other]
    assert kernels[0].parameters is not kernels[1].parameters
