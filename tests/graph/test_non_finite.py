"""stop_on_non_finite: the first kernel, image and channel at fault are named, and nothing is updated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from networks import Format, Network, digits, labels, training_graph
from openmps.errors import MPSNonFiniteError, MTLExecutionError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.neuron import MPSCNNNeuronExponentialNode, MPSCNNNeuronLinearNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.types import MPSCNNNeuronType, MPSNNTrainingStyle
from trainable_sources import DeviceSgd, HostSgd

GPU = MPSNNTrainingStyle.UPDATE_DEVICE_GPU
Array = np.ndarray


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def weights_in(graph: MPSNNGraph) -> Array:
    kernels: Any = [kernel for kernel in graph.kernels.values() if hasattr(kernel, "parameters")]
    return np.concatenate([kernel.parameters.weights.cpu().numpy().ravel() for kernel in kernels])


def step(bench: Bench, graph: MPSNNGraph, images: Array, targets: Array) -> None:
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
    finish(command_buffer)


def failure(bench: Bench, graph: MPSNNGraph, images: Array, targets: Array) -> MPSNonFiniteError:
    """The error of one encode, after which the weights are what they were."""
    before = weights_in(graph)
    with pytest.raises(MTLExecutionError) as caught:
        step(bench, graph, images, targets)
    assert isinstance(caught.value.__cause__, MPSNonFiniteError)
    np.testing.assert_array_equal(weights_in(graph), before)
    return caught.value.__cause__


def checked(bench: Bench, network: Network, image_format: Format = Format.FLOAT32) -> MPSNNGraph:
    graph = training_graph(bench, network, style=GPU, export=False, needed=False, image_format=image_format)
    assert graph.stop_on_non_finite is False
    graph.stop_on_non_finite = True
    return graph


def test_no_update_on_the_cpu_either(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, HostSgd.of)
    graph = training_graph(bench, network, style=MPSNNTrainingStyle.UPDATE_DEVICE_CPU, export=False)
    graph.stop_on_non_finite = True
    images, targets = network.batch(rng, 2)
    before = {name: source.array for name, source in network.sources.items()}
    images[1, 0, 3, 3] = np.nan
    assert "image 1, channel 0, pixel (3, 3)" in str(failure(bench, graph, images, targets))
    assert all(source.array is before[name] for name, source in network.sources.items())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_in_a_source_image(bench: Bench, rng: np.random.Generator, value: float) -> None:
    network = digits(rng, DeviceSgd.of, keep=0.5)
    graph = checked(bench, network)
    images, targets = network.batch(rng, 3)
    step(bench, graph, images, targets)
    bad = images.copy()
    bad[2, 0, 5, 7] = value
    error = failure(bench, graph, bad, targets)
    assert str(error).startswith(
        f"source image 0 of the graph: result must be finite, got {value} in image 2, channel 0, pixel (7, 5)"
    )
    before = weights_in(graph)
    step(bench, graph, images, targets)
    assert not np.array_equal(weights_in(graph), before), "later encodes go on"


def test_in_a_weight(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, DeviceSgd.of)
    network.sources["conv2"].array[3, 1, 1, 2] = np.nan
    error = failure(bench, checked(bench, network), *network.batch(rng, 2))
    assert error.who == "MPSCNNConvolution 'conv2'"
    assert "nan in image 0, channel 3" in str(error) and "Its weights are not finite" in str(error)


@pytest.mark.parametrize("kind", ["labels", "weights of the labels"])
def test_in_a_label(bench: Bench, rng: np.random.Generator, kind: str) -> None:
    network = digits(rng, DeviceSgd.of)
    graph = checked(bench, network)
    images, targets = network.batch(rng, 2)
    bad, weights = targets.copy(), np.ones_like(targets)
    (bad if kind == "labels" else weights)[1, 4] = np.nan
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, bad, weights)])
    command_buffer.commit()
    with pytest.raises(MTLExecutionError, match=f"MPSCNNLoss: {kind} must be finite, got nan in image 1, channel 4"):
        command_buffer.wait_until_completed()


def test_in_the_predictions_of_the_first_kernel_that_overflows(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, DeviceSgd.of)
    network.sources["fc1"].array *= 1e30
    network.sources["fc2"].array *= 1e30
    error = failure(bench, checked(bench, network), *network.batch(rng, 2))
    assert error.who == "MPSCNNFullyConnected 'fc2'"
    assert "Its sources are finite" in str(error)


def test_overflow_of_float16(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, DeviceSgd.of)
    network.sources["conv1"].array[:] = 3e4
    images, targets = network.batch(rng, 2)
    error = failure(bench, checked(bench, network, Format.FLOAT16), images, targets)
    assert error.who == "MPSCNNConvolution 'conv1'"
    assert "inf in image 0, channel 0" in str(error) and "FLOAT16 holds numbers up to 65504" in str(error)


def test_overflow_of_a_float16_gradient(bench: Bench, rng: np.random.Generator) -> None:
    """The loss is finite: the gradient images behind it are not, and no weight takes them."""
    network = digits(rng, DeviceSgd.of, weight=1e6)
    images, targets = network.batch(rng, 2)
    step(bench, checked(bench, digits(rng, DeviceSgd.of, weight=1e6)), images, targets)
    error = failure(bench, checked(bench, network, Format.FLOAT16), images, targets)
    assert error.who == "MPSCNNLoss"
    assert "inf" in str(error) and "lower the weight of the loss" in str(error)


def test_overflow_in_the_gradient_of_the_weights_alone(bench: Bench) -> None:
    """Every image is finite, the sum over their pixels is not."""
    image, gradient = MPSNNImageNode(), MPSNNImageNode()
    weights = np.array([1e-30, 2e-30]).reshape(2, 1, 1, 1)
    node = MPSCNNConvolutionNode(image, DeviceSgd(weights, np.zeros(2), "conv"))
    graph = MPSNNGraph(bench.device, node.gradient_filter(gradient).result_image)
    graph.format, graph.stop_on_non_finite = Format.FLOAT32, True
    flow = np.ones((1, 2, 2, 2))
    flow[:, 0] = 0.0
    sources = [bench.batch(flow), bench.batch(np.full((1, 1, 2, 2), 3e38))]
    graph.encode_batch(command_buffer := bench.command_buffer(), sources)
    command_buffer.commit()
    message = "MPSCNNConvolutionGradient 'conv': gradient of the weights must be finite, got inf for output channel 1"
    with pytest.raises(MTLExecutionError, match=message):
        command_buffer.wait_until_completed()
    np.testing.assert_array_equal(weights_in(graph)[:2], weights.ravel().astype(np.float32))


def test_in_the_result_of_an_inference_graph(bench: Bench) -> None:
    """No loss, no weights: the result is looked at."""
    image = MPSNNImageNode()
    first = MPSCNNNeuronLinearNode(image, 100.0)
    last = MPSCNNNeuronExponentialNode(first.result_image)
    last.label = "exp"
    assert last.descriptor.neuron_type is MPSCNNNeuronType.EXPONENTIAL
    graph = MPSNNGraph(bench.device, last.result_image)
    graph.format, graph.stop_on_non_finite = Format.FLOAT32, True
    good, bad = np.ones((2, 3, 1, 2)) * 0.1, np.ones((2, 3, 1, 2)) * 0.1
    bad[1, 2, 0, 1] = 1.0
    buffers = [bench.command_buffer() for _ in range(3)]
    for command_buffer, values in zip(buffers, (good, bad, good), strict=True):
        graph.encode_batch(command_buffer, [bench.batch(values)])
        command_buffer.commit()
    buffers[0].wait_until_completed()
    with pytest.raises(MTLExecutionError, match=r"MPSCNNNeuron 'exp': .* inf in image 1, channel 2, pixel \(1, 0\)"):
        buffers[1].wait_until_completed()
    buffers[2].wait_until_completed()


def test_large_numbers_are_not_infinite(bench: Bench) -> None:
    """Their sum overflows; they do not."""
    graph = MPSNNGraph(bench.device, MPSCNNNeuronLinearNode(MPSNNImageNode()).result_image)
    graph.format, graph.stop_on_non_finite = Format.FLOAT32, True
    graph.encode_batch(command_buffer := bench.command_buffer(), [bench.batch(np.full((2, 1, 4, 4), 3e38))])
    finish(command_buffer)


def test_without_it_training_goes_on(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, DeviceSgd.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    images, targets = network.batch(rng, 2)
    images[0, 0, 0, 0] = np.nan
    step(bench, graph, images, targets)
    assert np.isnan(weights_in(graph)).any()
