"""Graphs that hold old weights: named when asked, and warned of where another graph or kernel was given newer ones."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from networks import Format, Network, digits, labels, training_graph
from openmps.errors import MPSTrainingWarning
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolution
from openmps.kernels.optimizers import MPSNNOptimizerStochasticGradientDescent
from openmps.types import MPSNNTrainingStyle
from trainable_sources import DeviceSgd, HostSgd, sample, trainable

CPU, GPU = MPSNNTrainingStyle.UPDATE_DEVICE_CPU, MPSNNTrainingStyle.UPDATE_DEVICE_GPU
NAMES = [
    "MPSCNNConvolution 'conv1'",
    "MPSCNNConvolution 'conv2'",
    "MPSCNNFullyConnected 'fc1'",
    "MPSCNNFullyConnected 'fc2'",
]


class Scene:
    """A training graph and an inference graph over the same data sources."""

    def __init__(self, device: torch.device, make: Any, style: MPSNNTrainingStyle = GPU) -> None:
        self.bench = Bench.on(device)
        make = sample(self.bench.device) if make is sample else make
        self.network: Network = digits(np.random.default_rng(3), make)
        self.training = training_graph(self.bench, self.network, style=style, export=False)
        self.inference = self.predictor()

    def predictor(self) -> MPSNNGraph:
        graph = MPSNNGraph(self.bench.device, self.network.nodes["fc2"].result_image)
        graph.format = Format.FLOAT32
        return graph

    def train(self, steps: int = 1) -> list[str]:
        return self._warned(self._train, steps)

    def predict(self, graph: MPSNNGraph | None = None, encodes: int = 1) -> list[str]:
        return self._warned(lambda: self._predict(graph or self.inference), encodes)

    def _warned(self, call: Any, times: int) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(times):
                call()
        assert all(each.category is MPSTrainingWarning for each in caught)
        return [str(each.message) for each in caught]

    def _train(self) -> None:
        images, targets = self.network.batch(np.random.default_rng(0), 2)
        command_buffer = self.bench.command_buffer()
        self.training.encode_batch(command_buffer, [self.bench.batch(images)], [labels(self.bench, targets)])
        finish(command_buffer)

    def _predict(self, graph: MPSNNGraph) -> None:
        images, _ = self.network.batch(np.random.default_rng(0), 2)
        command_buffer = self.bench.command_buffer()
        graph.encode_batch(command_buffer, [self.bench.batch(images)])
        finish(command_buffer)


def sgd(device: Any) -> Any:
    return MPSNNOptimizerStochasticGradientDescent(device, 0.125)


SOURCES = {"the library's": (trainable(sgd), GPU), "the sample's": (sample, GPU), "on the CPU": (HostSgd.of, CPU)}


@pytest.mark.parametrize("kind", SOURCES)
def test_an_inference_graph_that_was_not_reloaded(kind: str, device: torch.device) -> None:
    """Named once, until it has caught up; what is trained is never named."""
    scene = Scene(device, *SOURCES[kind])
    assert (scene.predict(), scene.training.stale_weights(), scene.inference.stale_weights()) == ([], [], [])
    for _ in range(2):
        assert scene.train(2) == []
        assert scene.training.stale_weights() == [], "these data sources bring the weights back"
        assert scene.inference.stale_weights() == NAMES
        (message,) = scene.predict(encodes=3)
        assert message == (
            f"{', '.join(NAMES)}: another graph or kernel of the same data source was given newer weights: call "
            "reload_from_data_sources() before the encode, with a data source that brings the new weights; where the "
            "old ones are meant, give this graph a data source of its own"
        )
        scene.inference.reload_from_data_sources()
        assert (scene.predict(), scene.inference.stale_weights()) == ([], [])
    assert scene.predict(scene.predictor()) == [], "a graph that is made now reads what there is now"


def test_reloading_without_an_update_in_between_changes_nothing(device: torch.device) -> None:
    """The sample evaluates before it trains, and reloads each time."""
    scene = Scene(device, sample)
    for _ in range(2):
        scene.inference.reload_from_data_sources()
        assert scene.predict() == []
    assert scene.train() == []
    for _ in range(2):
        scene.inference.reload_from_data_sources()
        assert scene.predict() == []
    assert scene.train() == []


def test_a_data_source_that_keeps_its_first_weights(device: torch.device) -> None:
    """It trains on the device and never brings the weights back: reloading does not help, and that is said."""
    scene = Scene(device, DeviceSgd.of)
    assert scene.train() == []
    assert scene.training.stale_weights() == NAMES
    scene.inference.reload_from_data_sources()
    (message,) = scene.predict()
    assert message.startswith(", ".join(NAMES)) and "with a data source that brings the new weights" in message


@pytest.mark.parametrize("is_gone", [False, True], ids=["while the training graph lives", "when it is gone"])
def test_a_graph_that_is_made_after_training(is_gone: bool, device: torch.device) -> None:
    """Versions belong to the data source: first weights are old ones, whenever they are read."""
    for make, names in ((DeviceSgd.of, NAMES), (trainable(sgd), [])):
        scene = Scene(device, make)
        assert scene.train(2) == []
        if is_gone:
            del scene.training, scene.inference
            gc.collect()
        graph = scene.predictor()
        assert graph.stale_weights() == names
        messages = scene.predict(graph, encodes=2)
        assert len(messages) == bool(names), "said once"
        assert all(each.startswith(f"{', '.join(NAMES)}: another graph or kernel") for each in messages)


def test_a_data_source_that_the_program_changed(device: torch.device) -> None:
    """No kernel knows: asking finds it, and reloading one graph tells the others."""
    scene = Scene(device, trainable(sgd))
    scene.network.sources["conv2"]._weights = scene.network.sources["conv2"]._weights + np.float32(0.25)
    assert scene.inference.stale_weights() == scene.training.stale_weights() == [NAMES[1]]
    assert scene.predict() == []
    scene.inference.reload_from_data_sources()
    assert (scene.inference.stale_weights(), scene.predict()) == ([], [])
    (message,) = scene.train()
    assert message.startswith(f"{NAMES[1]}: another graph")


def test_kernels_and_graphs_know_of_each_other(device: torch.device) -> None:
    scene = Scene(device, trainable(sgd))
    source = scene.network.sources["fc1"]
    kernel = MPSCNNConvolution(scene.bench.device, weights=source)
    source._weights = source._weights * np.float32(2)
    kernel.reload_weights_and_biases_from_data_source()
    (message,) = scene.predict()
    assert message.startswith(f"{NAMES[2]}: another graph or kernel")


@pytest.mark.parametrize("is_ours", [True, False], ids=["the library's", "on the device"])
def test_steps_that_change_no_number_leave_no_graph_behind(is_ours: bool, device: torch.device) -> None:
    """At rate 0; the first step that changes something is warned of, committed or not."""
    optimizers: list[Any] = []

    def resting(device: Any) -> Any:
        optimizers.append(MPSNNOptimizerStochasticGradientDescent(device, 0.0))
        return optimizers[-1]

    scene = Scene(device, trainable(resting) if is_ours else DeviceSgd.of)
    for source in scene.network.sources.values():
        source.rate = 0.0  # of those that make an optimizer for each step
    for _ in range(2):
        assert all("did not move in 2 encodes" in each for each in scene.train())
        assert scene.predict(encodes=2) == [] == scene.inference.stale_weights()
    for each in optimizers:
        each.set_learning_rate(0.25)
    for source in scene.network.sources.values():
        source.rate = 0.25
    images, targets = scene.network.batch(np.random.default_rng(0), 2)
    command_buffer = scene.bench.command_buffer()
    scene.training.encode_batch(command_buffer, [scene.bench.batch(images)], [labels(scene.bench, targets)])
    (message,) = scene.predict(encodes=2)
    assert message.startswith(f"{', '.join(NAMES)}: another graph")
    finish(command_buffer)
    assert scene.inference.stale_weights() == NAMES


def test_a_copy_of_a_graph_has_weights_of_its_own(device: torch.device) -> None:
    """Over the same data sources where these offer no copies; it starts with the numbers of its original."""
    scene = Scene(device, HostSgd.of, CPU)
    twin = scene.inference.copy()
    assert scene.train() == []
    assert scene.predict(twin) != []
    assert scene.predict(twin.copy()) != []
    twin.reload_from_data_sources()
    assert scene.predict(twin) == []
    assert scene.predict(twin.copy()) == []


def test_a_graph_without_weights_has_nothing_to_say() -> None:

    bench = Bench.on(torch.device("cpu"))
    graph = MPSNNGraph(bench.device, MPSCNNNeuronReLUNode(MPSNNImageNode()).result_image)
    assert graph.stale_weights() == []
    graph.encode(bench.command_buffer(), [bench.empty((1, 1, 2, 2))])
