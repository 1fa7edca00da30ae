"""MPSTrainingWarning: a layer that learns nothing is named, once; one that learns, or need not, is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from networks import Network, Weights, convolution, digits, labels, one_hot, residual, softmax_loss, training_graph
from openmps.errors import MPSTrainingWarning
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.convolution import MPSCNNFullyConnectedNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode
from openmps.types import MPSNNTrainingStyle
from trainable_sources import DeviceSgd, values

NONE, CPU, GPU = (
    MPSNNTrainingStyle.UPDATE_DEVICE_NONE,
    MPSNNTrainingStyle.UPDATE_DEVICE_CPU,
    MPSNNTrainingStyle.UPDATE_DEVICE_GPU,
)


class Learning(DeviceSgd):
    """A step on the device or on the CPU, as it is asked; ``returns`` says whether it owns up to it."""

    returns = True

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        if command_buffer is None:
            step = self.rate * values(gradient_state, "gradient_for_weights")
            self.array = self.array - step.reshape(self.array.shape)
            return self.returns
        state = super().update(command_buffer, gradient_state, source_state)
        return state if self.returns else None


class Still(Learning):
    rate = 0.0


class Forgetful(Learning):
    returns = False


class ByHand(Weights):
    """Its numbers are changed in NumPy, and read again by a reload."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> None:
        self.array = self.array + np.float32(0.01)


def where(names: str, kind: type[Weights]) -> Callable[..., Weights]:
    """Makes `kind` for some layers, sources that learn for the others."""

    def make(rng: np.random.Generator, shape: Any, label: str) -> Weights:
        return (kind if label in names.split() else Learning).of(rng, shape, label)

    return make


def warned(
    network: Network, graph: MPSNNGraph, encodes: int = 5, behind: Callable[[], object] = lambda: None
) -> list[str]:
    """What is said over some encodes of ones, with something else behind each of them."""
    bench = Bench.on(torch.device("cpu"))
    images, targets = network.batch(np.random.default_rng(0), 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(encodes):
            command_buffer = bench.command_buffer()
            graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
            finish(command_buffer)
            behind()
    assert all(each.category is MPSTrainingWarning for each in caught)
    return [str(each.message) for each in caught]


@pytest.fixture
def bench() -> Bench:
    return Bench.on(torch.device("cpu"))


@pytest.mark.parametrize("style", [CPU, GPU])
def test_a_graph_that_learns_is_not_spoken_to(
    bench: Bench, rng: np.random.Generator, style: MPSNNTrainingStyle
) -> None:
    network = digits(rng, Learning.of)
    assert warned(network, training_graph(bench, network, style=style, export=False)) == []
    inference = MPSNNGraph(bench.device, network.nodes["fc2"].result_image)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            inference.encode(command_buffer := bench.command_buffer(), [bench.filled((1, 1, 12, 12), 1.0)])
            finish(command_buffer)
    # What is trained on the device, these sources do not give: a later graph has the numbers from before.
    assert ["was given newer weights" in str(each.message) for each in caught] == [True] * (style is GPU)


def test_layers_without_an_update_are_named(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, where("conv2 fc2", Weights))
    (message,) = warned(network, training_graph(bench, network, style=GPU, export=False))
    assert message.startswith(
        "MPSCNNFullyConnectedGradientNode 'fc2', MPSCNNConvolutionGradientNode 'conv2': the data source has no update()"
    )


def test_style_none_says_that_it_is_meant(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, where("conv2", Weights))
    assert warned(network, training_graph(bench, network, style=NONE)) == []


@pytest.mark.parametrize("style", [CPU, GPU])
def test_still_layers_are_named_once(bench: Bench, rng: np.random.Generator, style: MPSNNTrainingStyle) -> None:
    network = digits(rng, where("conv1 fc1", Still))
    graph = training_graph(bench, network, style=style, export=False)
    assert warned(network, graph, encodes=1) == [], "it is too early to say"
    (message,) = warned(network, graph)
    assert message.startswith(
        "MPSCNNFullyConnectedGradient 'fc1', MPSCNNConvolutionGradient 'conv1': the weights did not move in 2 encodes"
    )


def test_layers_that_no_gradient_reaches_do_not_move(bench: Bench, rng: np.random.Generator) -> None:
    """A ReLU that is dead everywhere: the layers before it learn nothing."""
    network = digits(rng, Learning.of)
    network.sources["conv2"].bias = np.full(8, -100.0, np.float32)
    (message,) = warned(network, training_graph(bench, network, style=GPU, export=False))
    assert message.startswith("MPSCNNFullyConnectedGradient 'fc1', ") or "'conv2'" in message
    assert "'conv1'" in message and "did not move" in message


def test_layers_without_labels_are_told_apart(bench: Bench, rng: np.random.Generator) -> None:
    """Two layers of one name: only the one that stands still counts."""
    image = MPSNNImageNode()
    first = convolution(image, Learning.of(rng, (2, 3, 3, 1)))
    second = MPSCNNFullyConnectedNode(first.result_image, Still.of(rng, (3, 4, 4, 2)))
    third = MPSCNNFullyConnectedNode(second.result_image, Learning.of(rng, (3, 1, 1, 3)))
    network = Network(image, softmax_loss(third.result_image), {}, (1, 4, 4), 3, lambda x, t, p: x)
    (message,) = warned(network, training_graph(bench, network, style=GPU, export=False))
    assert message.startswith("MPSCNNFullyConnectedGradient: the weights did not move")


@pytest.mark.parametrize("style", [CPU, GPU])
def test_updates_in_place_that_are_not_returned_are_named(
    bench: Bench, rng: np.random.Generator, style: MPSNNTrainingStyle
) -> None:
    """On a Mac these layers would not learn. (On the CPU nothing is in place: the layer stands still.)"""
    network = digits(rng, where("fc1", Forgetful))
    (message,) = warned(network, training_graph(bench, network, style=style, export=False))
    assert message.startswith("MPSCNNFullyConnectedGradient 'fc1': ")
    expected = (
        "update() changed source_state in place and returned None" if style is GPU else "the weights did not move"
    )
    assert expected in message


@pytest.mark.parametrize("style", [CPU, GPU])
def test_weights_that_the_user_reloads_are_no_updates_in_place(
    bench: Bench, rng: np.random.Generator, style: MPSNNTrainingStyle
) -> None:
    network = digits(rng, where("conv1 fc1", ByHand))
    graph = training_graph(bench, network, style=style, export=False)
    by_hand = [kernel for kernel in graph.kernels.values() if getattr(kernel, "label", None) in ("conv1", "fc1")]
    assert (
        warned(network, graph, behind=lambda: [each.reload_weights_and_biases_from_data_source() for each in by_hand])
        == []
    )


# --- a terminus that was not given to the graph -----------------------------------------------------------------------


def two_inputs(rng: np.random.Generator, make: Any = Learning.of) -> tuple[Network, list[MPSNNFilterNode]]:
    """Two convolutions side by side, of the image and of another one: two termini."""
    image, other = MPSNNImageNode(), MPSNNImageNode()
    sides = [convolution(each, make(rng, (2, 3, 3, 1), name)) for each, name in ((image, "left"), (other, "right"))]
    both = MPSNNAdditionNode(sides[0].result_image, sides[1].result_image)
    last = MPSCNNFullyConnectedNode(both.result_image, make(rng, (3, 4, 4, 2), "fc"))
    network = Network(image, softmax_loss(last.result_image), {}, (1, 4, 4), 3, lambda x, t, p: x)
    return network, network.loss.training_graph() or []


def encode_both(graph: MPSNNGraph) -> list[str]:
    bench = Bench.on(torch.device("cpu"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            command_buffer = bench.command_buffer()
            values = np.random.default_rng(0).random((2, 1, 4, 4))
            given = labels(bench, one_hot(np.array([0, 2]), 3))
            graph.encode_batch(command_buffer, [bench.batch(values), bench.batch(values)], [given])
            finish(command_buffer)
    return [str(each.message) for each in caught]


def test_a_lost_terminus_is_named(bench: Bench, rng: np.random.Generator) -> None:
    _, termini = two_inputs(rng)
    assert len(termini) == 2
    (message,) = encode_both(MPSNNGraph(bench.device, termini[0].result_image, False))
    lost = {"left": "right", "right": "left"}[str(termini[0].label)]
    assert message.startswith(f"MPSCNNConvolutionNode '{lost}': no gradient node is in this graph")
    _, termini = two_inputs(rng)
    results = [node.result_image for node in termini]
    assert encode_both(MPSNNGraph(bench.device, result_images=results, results_are_needed=[False, False])) == []


def test_layers_behind_a_stop_are_not_lost(bench: Bench, rng: np.random.Generator) -> None:
    """Transfer learning, told by stop_gradient on an image or by the handler."""
    network = digits(rng, Learning.of)
    network.nodes["pool1"].result_image.stop_gradient = True
    assert warned(network, training_graph(bench, network, style=GPU, export=False)) == []
    network = digits(rng, Learning.of)

    def stop(gradient: Any, forward: Any, *_: Any) -> None:
        gradient.result_image.stop_gradient = forward.label == "conv2"

    (terminus,) = network.loss.training_graph(None, stop) or []
    assert warned(network, MPSNNGraph(bench.device, terminus.result_image, False)) == []


def test_one_way_round_a_stop_is_enough_to_be_lost(bench: Bench, rng: np.random.Generator) -> None:
    """A residual branch that is stopped leaves the way around it."""
    network = residual(rng, Learning.of)

    def stop(gradient: Any, forward: Any, *_: Any) -> None:
        gradient.result_image.stop_gradient = forward is not None and forward.label == "conv2"

    def stopped() -> list[Any]:
        return network.loss.training_graph(None, stop) or []

    termini = stopped()
    assert [node.label for node in termini] == ["conv2", "conv0"]
    assert warned(network, MPSNNGraph(bench.device, result_images=[node.result_image for node in termini])) == []
    network = residual(rng, Learning.of)  # whose data sources know no graph yet
    termini = stopped()
    (message,) = warned(network, MPSNNGraph(bench.device, termini[0].result_image, False))
    assert message.startswith("MPSCNNConvolutionNode 'conv0': no gradient node")


def test_a_failed_encode_is_no_ground_for_judgement(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, Learning.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    graph.stop_on_non_finite = True
    images, targets = network.batch(rng, 2)
    images[0, 0, 0, 0] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            command_buffer = bench.command_buffer()
            graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
            command_buffer.commit()
            with pytest.raises(RuntimeError, match="MPSNNGraph"):
                command_buffer.wait_until_completed()
    assert caught == []
