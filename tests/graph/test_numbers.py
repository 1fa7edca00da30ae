"""A graph's numbers: those of its kernels encoded one by one, and those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, encode, finish, numbers
from helpers import assert_close
from networks import NETWORKS, Format, Network, Weights, digits, labels, losses, named_gradients, run, training_graph
from openmps.core.image.image import MPSImage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxGradientNode, MPSCNNSoftMaxNode
from openmps.kernels.loss import MPSCNNLoss

Array = np.ndarray
IMAGES = 5


class _Format:
    """An allocator of ordinary images in one format, so that an encode alone stores what the graph would."""

    def __init__(self, channel_format: Format) -> None:
        self._format = channel_format

    def image(self, command_buffer: Any, image_descriptor: Any, kernel: Any) -> MPSImage:
        descriptor = image_descriptor.copy()
        descriptor.channel_format = self._format
        return MPSImage(command_buffer.device, descriptor)


def _one_by_one(
    bench: Bench, graph: MPSNNGraph, network: Network, images: Array, targets: Array
) -> tuple[dict[MPSNNFilterNode, Array], Array, dict[str, Array]]:
    """Results of all nodes, losses and gradients, from an encode of each kernel of a copy of the graph."""
    command_buffer = bench.command_buffer()
    given = labels(bench, targets)
    made: dict[MPSNNImageNode, Any] = {network.image: bench.batch(images)}
    states: dict[MPSNNFilterNode, Any] = {}
    for node, kernel in graph.copy().kernels.items():
        chosen = node.result_image.format
        kernel.destination_image_allocator = _Format(graph.format if chosen is Format.NONE else chosen)
        sources = [made[image] for image in node.sources]
        if isinstance(kernel, MPSCNNLoss):
            result = encode(kernel, command_buffer, sources, given)
        elif isinstance(node, MPSNNGradientFilterNode):
            if isinstance(node, MPSCNNSoftMaxGradientNode):
                sources[1] = made[node.forward.result_image]
            result = encode(kernel, command_buffer, sources, states[node.forward])
        else:
            result, states[node] = encode(kernel, command_buffer, sources, destination_state_is_temporary=False)
        made[node.result_image] = result
    finish(command_buffer)
    results = {image.producer: numbers(result) for image, result in made.items() if image.producer is not None}
    convolutions = [batch for batch in states.values() if batch and hasattr(batch[0], "gradient_for_weights")]
    return results, losses(given), named_gradients(convolutions)


@pytest.mark.parametrize("name", NETWORKS)
def test_graph_equals_torch(name: str, device: torch.device, rng: np.random.Generator) -> None:
    bench, network = Bench.on(device), NETWORKS[name](rng)
    images, targets = network.batch(rng, IMAGES)
    found = run(bench, network, training_graph(bench, network), images, targets)
    expected, gradient, gradients = network.torch(images.astype(np.float32), targets)
    assert_close(found.losses, expected, 1e-5, "losses")
    assert_close(found.image, gradient, 1e-5, "gradient of the images")
    assert set(found.gradients) == set(gradients)
    for layer, values in gradients.items():
        assert_close(found.gradients[layer], values, 1e-5, f"gradients of {layer}")


@pytest.mark.parametrize("image_format", [Format.FLOAT32, Format.FLOAT16], ids=lambda value: value.name)
@pytest.mark.parametrize("gradient_format", [None, Format.FLOAT32], ids=["graph format", "FLOAT32 gradients"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("in_any_order")
def test_graph_equals_its_kernels(
    name: str, image_format: Format, gradient_format: Format | None, device: torch.device, rng: np.random.Generator
) -> None:
    """Bit for bit, with rounding to half precision between the kernels too, and with a random dropout mask.

    Where sums are rounded once, for a graph's gradients may lie in a larger image, and be added up in another order;
    but for gradients of biases on a GPU: the ends of layers that are one pass there add them up in another order.
    """
    bench = Bench.on(device)
    network = digits(rng, keep=0.5) if name == "digits" else NETWORKS[name](rng)
    images, targets = network.batch(rng, IMAGES)
    graph = training_graph(bench, network, image_format=image_format, gradient_format=gradient_format)
    results, expected, gradients = _one_by_one(bench, graph, network, images, targets)
    found = run(bench, network, graph, images, targets)
    np.testing.assert_array_equal(found.losses, expected)
    np.testing.assert_array_equal(found.image, list(results.values())[-1])
    for layer, values in gradients.items():
        exact = len(values) - (len(network.sources[layer].bias) if device.type == "cuda" else 0)
        np.testing.assert_array_equal(found.gradients[layer][:exact], values[:exact], err_msg=layer)
        np.testing.assert_allclose(found.gradients[layer][exact:], values[exact:], rtol=0, atol=1e-6, err_msg=layer)


@pytest.mark.usefixtures("in_any_order")
@pytest.mark.parametrize("fusion", [True, False])
def test_every_interior_image_is_that_of_the_kernels(
    fusion: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """Exported, an image is there even where fusion would do without it; the others do not change."""
    bench, network = Bench.on(device), digits(rng, keep=0.5)
    images, targets = network.batch(rng, IMAGES)
    graph = training_graph(bench, network)
    results, *_ = _one_by_one(bench, graph, network, images, targets)
    for name in ("conv1", "relu1", "pool1", "relu2", "dropout"):
        image = network.nodes[name].result_image
        image.export_from_graph, image.image_allocator = True, MPSImage.default_allocator()
    exporting = training_graph(bench, network)
    exporting.allow_fusion = fusion
    intermediates: list[Any] = []
    command_buffer = bench.command_buffer()
    exporting.encode_batch(
        command_buffer, [bench.batch(images)], [labels(bench, targets)], intermediate_images=intermediates
    )
    finish(command_buffer)
    assert len(intermediates) == 5
    for name, batch in zip(("conv1", "relu1", "pool1", "relu2", "dropout"), intermediates, strict=True):
        np.testing.assert_array_equal(numbers(batch), results[network.nodes[name]], err_msg=name)


def test_dropout_masks_differ_between_encodes_and_repeat_in_a_new_graph(rng: np.random.Generator) -> None:
    bench, network = Bench.on(torch.device("cpu")), digits(rng, keep=0.5)
    images, targets = network.batch(rng, 2)
    first, second = training_graph(bench, network), training_graph(bench, network)
    runs = [run(bench, network, graph, images, targets).losses for graph in (first, first, second, second)]
    assert not np.array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    np.testing.assert_array_equal(runs[1], runs[3])


def test_float16_graph_is_within_its_rounding_of_float32(device: torch.device, rng: np.random.Generator) -> None:
    bench, network = Bench.on(device), digits(rng)
    images, targets = network.batch(rng, IMAGES)
    half = run(bench, network, training_graph(bench, network, image_format=Format.FLOAT16), images, targets)
    exact = run(bench, network, training_graph(bench, network), images, targets)
    assert not np.array_equal(half.losses, exact.losses)
    assert_close(half.losses, exact.losses, 4e-3, "losses")
    for layer, values in exact.gradients.items():
        assert_close(half.gradients[layer], values, 1e-2, layer)


def test_six_float32_layers_hold_1e_6(device: torch.device, rng: np.random.Generator) -> None:
    """The graph's format reaches every intermediate image, set after the graph was made."""
    bench = Bench.on(device)
    image = MPSNNImageNode()
    node: Any = None
    sources = [Weights.of(rng, (4, 1, 1, 4)) for _ in range(6)]
    for source in sources:
        node = MPSCNNConvolutionNode(image if node is None else node.result_image, source)
    graph = MPSNNGraph(bench.device, node.result_image)
    values = rng.normal(size=(2, 4, 3, 3))
    expected = values.astype(np.float32).astype(np.float64)
    for source in sources:
        kernel, bias = source.array[:, 0, 0].astype(np.float64), source.bias.astype(np.float64)
        expected = np.einsum("oc,nchw->nohw", kernel, expected) + bias[:, None, None]
    errors = {}
    for channel_format in (Format.FLOAT16, Format.FLOAT32):
        graph.format = channel_format
        command_buffer = bench.command_buffer()
        result = graph.encode_batch(command_buffer, [bench.batch(values)])
        finish(command_buffer)
        assert result is not None and result[0].feature_channel_format is channel_format
        errors[channel_format] = float(np.abs(numbers(result) - expected).max())
    assert errors[Format.FLOAT32] < 1e-6 < 1e-4 < errors[Format.FLOAT16] < 1e-2


def test_softmax_and_its_gradient(device: torch.device, rng: np.random.Generator) -> None:
    """The gradient node names the forward source, the kernel is handed the forward result."""
    bench = Bench.on(device)
    image = MPSNNImageNode()
    softmax = MPSCNNSoftMaxNode(image)
    incoming = MPSNNImageNode()
    graph = MPSNNGraph(bench.device, softmax.gradient_filter(incoming).result_image)
    graph.format = Format.FLOAT32
    values, flow = rng.normal(size=(2, 5, 3, 2)), rng.normal(size=(2, 5, 3, 2))
    x = torch.tensor(values.astype(np.float32), dtype=torch.float64, requires_grad=True)
    torch.softmax(x, 1).backward(torch.tensor(flow.astype(np.float32), dtype=torch.float64))
    assert graph.source_image_handles  # the gradient comes first: it is the first argument
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(flow), bench.batch(values)])
    finish(command_buffer)
    assert x.grad is not None
    assert_close(numbers(result), x.grad, 1e-5)


def test_a_leaky_relu_that_rounds_two_numbers_to_one_trains_alike_with_fusion(device: torch.device) -> None:
    """The first of the pixels that its rounding makes equal takes the gradient of the pooling behind it."""
    bench, image = Bench.on(device), MPSNNImageNode()
    relu = mps.MPSCNNNeuronReLUNode(image, 0.3)
    pool = mps.MPSCNNPoolingMaxNode(relu.result_image, 2, 2)
    (last,) = mps.MPSNNInitialGradientNode(pool.result_image).training_graph() or [None]
    assert last is not None
    larger = -np.random.default_rng(0).uniform(1, 2, 200).astype(np.float32)
    pixels = np.full((200, 1, 2, 2), -5, np.float32)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = np.nextafter(larger, np.float32(-9)), larger
    found: list[Array] = []
    for fusion in (True, False):
        graph = MPSNNGraph(bench.device, last.result_image)
        graph.format, graph.allow_fusion = Format.FLOAT32, fusion
        command_buffer = bench.command_buffer()
        result: Any = graph.encode_batch(command_buffer, [bench.batch(pixels)])
        finish(command_buffer)
        found.append(numbers(result))
    np.testing.assert_array_equal(*found)
    assert {tuple(each.ravel() != 0) for each in found[0]} >= {(True, False, False, False), (False, True, False, False)}
