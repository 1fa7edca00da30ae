"""MPSNNGraph: what it is made of, its handles, its results, and copies of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers
from networks import (
    Weights,
    digits,
    encode_numbers,
    item,
    run,
    scaled,
    training_graph,
)
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSError,
)
from openmps.graph.compile.interface import Results
from openmps.graph.compile.passes import Network
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolution
from openmps.metal.device import MTLDevice
from openmps.ops import triton
from openmps.types import MPSImageFeatureChannelFormat, MPSNNTrainingStyle
from trainable_sources import DeviceSgd

Format = MPSImageFeatureChannelFormat
ORDINARY, TEMPORARY = MPSImage.default_allocator(), MPSTemporaryImage.default_allocator()


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_sources_come_in_the_order_of_a_walk_from_the_result(bench: Bench) -> None:
    """Depth first, sources in argument order, each input once."""
    a, b, c = (MPSNNImageNode(Handle(name)) for name in "abc")
    left = MPSNNAdditionNode(scaled(b, 1.0).result_image, a)
    right = MPSNNAdditionNode(c, b)
    graph = MPSNNGraph(bench.device, MPSNNAdditionNode(left.result_image, right.result_image).result_image)
    assert graph.source_image_handles == [b.handle, a.handle, c.handle]
    assert graph.source_state_handles == [] and graph.result_state_handles is None
    assert graph.intermediate_image_handles == []
    graph.format = Format.FLOAT32
    assert item(encode_numbers(bench, graph, 1.0, 10.0, 100.0)) == 1 + 10 + 100 + 1


def test_a_training_graph_takes_the_image_before_the_labels(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    network.loss.input_labels.handle = Handle("labels")
    graph = training_graph(bench, network)
    assert [handle.label() for handle in graph.source_image_handles] == ["image"]
    assert [handle.label() for handle in graph.source_state_handles] == ["labels"]


def test_nodes_without_a_handle_get_one_each(bench: Bench) -> None:
    x, y = MPSNNImageNode(), MPSNNImageNode()
    graph = MPSNNGraph(bench.device, MPSNNAdditionNode(x, y).result_image)
    first, second = graph.source_image_handles
    assert first is not second and first.label() is None
    assert graph.source_image_handles == [first, second], "the same objects each time"
    assert graph.result_handle not in (first, second)
    named = Handle("result")
    graph = MPSNNGraph(bench.device, (node := scaled(x, 1.0)).result_image)
    node.result_image.handle = named
    assert graph.result_handle is named


# --- results ----------------------------------------------------------------------------------------------------------


def test_the_result_may_be_an_interior_node(bench: Bench) -> None:
    image = MPSNNImageNode()
    first = scaled(image, 2.0)
    scaled(first.result_image, 100.0)
    assert item(encode_numbers(bench, MPSNNGraph(bench.device, first.result_image), 3.0)) == 6.0


def test_further_results_are_intermediates(bench: Bench) -> None:
    """Exported images as they are made, then the results but the first, in their order."""
    image = MPSNNImageNode()
    nodes = [scaled(image, float(factor)) for factor in range(2, 7)]
    for index, node in enumerate(nodes):
        node.result_image.handle = Handle(str(index))
    nodes[4].result_image.export_from_graph = True
    for node in nodes:
        node.result_image.image_allocator = ORDINARY
    results = [nodes[index].result_image for index in (3, 0, 4, 2)]
    graph = MPSNNGraph(bench.device, result_images=results)
    intermediates: list[MPSImage] = []
    result = encode_numbers(bench, graph, 1.0, intermediate_images=intermediates)
    assert item(result) == 5.0 and graph.result_handle.label() == "3"
    assert [handle.label() for handle in graph.intermediate_image_handles] == ["4"], "those of exported images alone"
    assert [item(image) for image in intermediates] == [6.0, 2.0, 4.0]


def test_exported_images_come_in_the_order_in_which_they_are_made(bench: Bench) -> None:
    image = MPSNNImageNode()
    first = scaled(image, 2.0)
    second = scaled(first.result_image, 2.0)
    last = MPSNNAdditionNode(second.result_image, first.result_image)
    for node, name in ((second, "second"), (first, "first")):
        node.result_image.handle = Handle(name)
        node.result_image.export_from_graph, node.result_image.image_allocator = True, ORDINARY
    graph = MPSNNGraph(bench.device, last.result_image)
    intermediates: list[MPSImage] = [bench.filled((1, 1, 1, 1), 0.0)]
    encode_numbers(bench, graph, 1.0, intermediate_images=intermediates)
    assert [handle.label() for handle in graph.intermediate_image_handles] == ["first", "second"]
    assert [item(image) for image in intermediates[1:]] == [2.0, 4.0], "appended to what is there"
    assert isinstance(encode_numbers(bench, graph, 1.0), MPSImage), "nobody has to take them"


def test_unneeded_results_are_pruned_back_to_what_is_needed(bench: Bench) -> None:
    image, other = MPSNNImageNode(), MPSNNImageNode()
    first = scaled(image, 2.0)
    second = scaled(MPSNNAdditionNode(first.result_image, other).result_image, 1.0)
    results = [second.result_image, first.result_image]
    graph = MPSNNGraph(bench.device, result_images=results, results_are_needed=[False, True])
    assert len(graph.kernels) == 1 and not graph.result_image_is_needed
    assert len(graph.source_image_handles) == 1, "the input of the pruned part is gone too"
    first.result_image.image_allocator = ORDINARY
    graph = MPSNNGraph(bench.device, result_images=results, results_are_needed=[False, True])
    intermediates: list[MPSImage] = []
    assert encode_numbers(bench, graph, 3.0, intermediate_images=intermediates) is None
    assert [item(each) for each in intermediates] == [6.0]
    assert MPSNNGraph(bench.device, result_images=results).result_image_is_needed, "None: all of them"


def test_what_is_exported_is_needed(bench: Bench) -> None:
    node = scaled(MPSNNImageNode(), 2.0)
    node.result_image.export_from_graph, node.result_image.image_allocator = True, ORDINARY
    graph = MPSNNGraph(bench.device, node.result_image, False)
    intermediates: list[MPSImage] = []
    assert encode_numbers(bench, graph, 3.0, intermediate_images=intermediates) is None
    assert item(intermediates[0]) == 6.0


def test_unneeded_gradients_of_the_image_are_not_computed(bench: Bench, rng: np.random.Generator) -> None:
    """The weights' gradients are the same without; where Triton runs another kernel sums those of the first layer."""
    network = digits(rng)
    images, targets = network.batch(rng, 3)
    with_result, without = (training_graph(bench, network, needed=needed) for needed in (True, False))
    first, second = (run(bench, network, graph, images, targets) for graph in (with_result, without))
    assert first.image is not None and second.image is None
    for name, values in first.gradients.items():
        least = 3e-7 * np.abs(values).max() if triton.runs_on(bench.device.torch_device) else 0.0
        np.testing.assert_allclose(second.gradients[name], values, rtol=0.0, atol=least)
    (last,) = (kernel for node, kernel in without.kernels.items() if node.name.endswith("GradientNode 'conv1'"))
    assert int(last.gradient_option) == 2, "weights and biases only"


def test_frozen_layers_have_no_gradients_of_weights_computed(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    options = {
        node.label: int(kernel.gradient_option)
        for node, kernel in training_graph(bench, network, export=False).kernels.items()
        if hasattr(kernel, "gradient_option")
    }
    assert options == dict.fromkeys(("fc2", "fc1", "conv2", "conv1"), 1), "data alone"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "result_image or result_images is needed"),
        ({"result_image": "x"}, "result 0 must be an MPSNNImageNode, got str"),
        ({"result_image": MPSNNImageNode()}, "result_image must be made by a filter node, got an input"),
        ({"result_images": []}, "result_images must be at least one"),
        ({"result_images": ["twice"]}, "result_images must be at least one, all different, got 2"),
        ({"result_images": ["one"], "results_are_needed": [True, False]}, "must say it of each of 1 results, got 2"),
    ],
)
def test_construction_is_checked(arguments: dict[str, Any], message: str) -> None:
    bench = Bench.on(torch.device("cpu"))
    node = scaled(MPSNNImageNode(), 2.0).result_image
    named = {"one": [node], "twice": [node, node]}
    if arguments.get("result_images"):
        arguments = {**arguments, "result_images": named[arguments["result_images"][0]]}
    with pytest.raises(MPSError, match=f"^MPSNNGraph: .*{message}"):
        MPSNNGraph(bench.device, **arguments)


def test_cycles_are_refused(bench: Bench) -> None:
    """No constructor makes one; a node that was tampered with does."""
    image = MPSNNImageNode()
    first = scaled(image, 1.0)
    second = scaled(first.result_image, 1.0)
    first._sources = (second.result_image,)
    for result in (first, second):
        with pytest.raises(MPSArgumentError, match="nodes must not form a cycle"):
            MPSNNGraph(bench.device, result.result_image)


@pytest.mark.parametrize("network", [Network(), Network(images=[MPSNNImageNode()])], ids=["nothing", "another image"])
def test_filters_put_together_must_have_their_inputs(bench: Bench, network: Network) -> None:
    image = MPSNNImageNode()
    first = scaled(image, 1.0)
    second = scaled(first.result_image, 1.0)
    results = Results("MPSNNGraph", second.result_image, True, None, None)
    network.images.append(image)
    for filters in ([second, first], [second]):
        with pytest.raises(MPSArgumentError, match="network must list .* filters before those that read"):
            MPSNNGraph.assembled(bench.device, Network(filters, network.images), results)
    with pytest.raises(MPSArgumentError, match="network must list the inputs"):
        MPSNNGraph.assembled(bench.device, Network([first, second], network.images[:-1]), results)
    MPSNNGraph.assembled(bench.device, Network([first, second], network.images), results)


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_has_weights_of_its_own(bench: Bench, rng: np.random.Generator) -> None:
    class Copying(Weights):
        def copy(self, device: Any = None) -> Copying:
            self.copied_for = device
            return Copying(self.array.copy(), self.bias, self.name)

    image = MPSNNImageNode()
    own, plain = Copying.of(rng, (2, 1, 1, 2)), Weights.of(rng, (2, 1, 1, 2))
    first = MPSCNNConvolutionNode(image, own)
    second = MPSCNNConvolutionNode(first.result_image, own)
    last = MPSCNNConvolutionNode(second.result_image, plain)
    graph = MPSNNGraph(bench.device, last.result_image)
    graph.format, graph.label = Format.FLOAT32, "net"
    values = rng.normal(size=(1, 2, 3, 3))

    def result(of: MPSNNGraph) -> np.ndarray:
        found = of.encode(command_buffer := bench.command_buffer(), [bench.image(values)])
        finish(command_buffer)
        return numbers(found)

    before = result(graph)
    twin = graph.copy()
    assert own.copied_for is bench.device
    assert (twin.format, twin.label, twin.device) == (Format.FLOAT32, "net", bench.device)
    np.testing.assert_array_equal(result(twin), before)
    kernels: Any = list(twin.kernels.values())
    assert kernels[0].data_source is kernels[1].data_source is not own, "copied once, shared as before"
    assert kernels[0].parameters is kernels[1].parameters
    assert kernels[2].data_source is plain, "it offers no copy"
    own.array *= 2.0
    twin.reload_from_data_sources()
    np.testing.assert_array_equal(result(twin), before)
    graph.reload_from_data_sources()
    assert not np.array_equal(result(graph), before)
    assert isinstance(copy.copy(graph), MPSNNGraph)


@pytest.mark.filterwarnings("ignore:.*was given newer weights:openmps.errors.MPSTrainingWarning")
def test_a_copy_goes_on_where_the_original_is(bench: Bench, rng: np.random.Generator) -> None:
    """With the weights that the graph has trained, whether its data sources know them or not, and the next masks."""
    network = digits(rng, DeviceSgd.of, keep=0.5)
    graph = training_graph(bench, network, style=MPSNNTrainingStyle.UPDATE_DEVICE_GPU)
    images, targets = network.batch(rng, 2)
    for _ in range(2):
        run(bench, network, graph, images, targets)
    twin = graph.copy(bench.device)
    first, second = (run(bench, network, each, images, targets) for each in (twin, graph))
    np.testing.assert_array_equal(first.losses, second.losses)
    for name, values in first.gradients.items():
        np.testing.assert_array_equal(second.gradients[name], values)


def test_a_copy_has_what_was_set_at_the_kernels(bench: Bench, rng: np.random.Generator) -> None:
    graph = training_graph(bench, digits(rng))
    for kernel in graph.kernels.values():
        kernel.label = f"my {kernel.label}"
        if isinstance(kernel, MPSCNNConvolution):
            kernel.weights_fp16 = True
    twin = graph.copy()
    for node, kernel in graph.kernels.items():
        assert twin.kernels[node] is not kernel
        assert twin.kernels[node].label == kernel.label
        assert getattr(twin.kernels[node], "weights_fp16", None) == getattr(kernel, "weights_fp16", None)


@pytest.mark.filterwarnings("ignore:.*was given newer weights:openmps.errors.MPSTrainingWarning")
def test_a_copy_on_another_device_and_back(device: torch.device, rng: np.random.Generator) -> None:
    """Bit for bit on the CPU, where a second device has the numbers of the first."""
    home = Bench.on(torch.device("cpu"))
    away = Bench.on(device) if device.type == "cuda" else Bench(MTLDevice(device))
    network = digits(rng, DeviceSgd.of, keep=0.5)
    graph = training_graph(home, network, style=MPSNNTrainingStyle.UPDATE_DEVICE_GPU)
    images, targets = network.batch(rng, 2)
    run(home, network, graph, images, targets)
    there = graph.copy(away.device)
    back = there.copy(home.device)
    assert {kernel.device for kernel in there.kernels.values()} == {there.device} == {away.device}
    expected, found = run(home, network, graph, images, targets), run(away, network, there, images, targets)
    for outcome, limit in ((run(home, network, back, images, targets), 0.0), (found, 2e-5 * (device.type == "cuda"))):
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=limit)
        for name, values in expected.gradients.items():
            np.testing.assert_allclose(outcome.gradients[name], values, rtol=limit, atol=limit * np.abs(values).max())
    with pytest.raises(MPSDeviceError, match="must belong to the device"):
        run(home, network, there, images, targets)


def test_repr(bench: Bench, rng: np.random.Generator) -> None:
    assert repr(training_graph(bench, digits(rng))) == "<MPSNNGraph: 19 kernels, 1 source image(s)>"
    assert "MPSNNImageNode 'image' (input)" in repr(digits(rng).image)
