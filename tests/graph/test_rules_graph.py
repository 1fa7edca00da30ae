"""Rules of `MPSNNGraph`, numbered as in the notes on the headers: 6.5 construction, 6.6 encode, 6.7 fusions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers, temporary_copy
from helpers import assert_close
from networks import Weights, convolution, digits, encode_numbers, item, labels, scaled, softmax_loss, training_graph
from openmps.types import MPSImageFeatureChannelFormat

Format = MPSImageFeatureChannelFormat
ORDINARY = mps.MPSImage.default_allocator()


@pytest.fixture
def bench() -> Bench:
    return Bench.on(torch.device("cpu"))


# --- nothing to do ----------------------------------------------------------------------------------------------------


def idle(bench: Bench, results: int = 1) -> tuple[mps.MPSNNGraph, mps.MPSNNImageNode]:
    image = mps.MPSNNImageNode(mps.Handle("x"))
    nodes = [scaled(image, 2.0).result_image for _ in range(results)]
    with pytest.warns(mps.MPSTrainingWarning, match="^MPSNNGraph: there is nothing to do, so encodes return None"):
        graph = mps.MPSNNGraph(bench.device, result_images=nodes, results_are_needed=[False] * results)
    return graph, image


@pytest.mark.parametrize("results", [1, 2])
def test_6_5_a_graph_with_nothing_to_do_builds_and_returns_none(bench: Bench, results: int) -> None:
    """A result that is not needed and nothing else to do: a warning when it is made, None from encodes."""
    graph, image = idle(bench, results)
    assert graph.kernels == {} and not graph.result_image_is_needed
    assert graph.source_image_handles == [image.handle], "what it would take if its results were needed"
    assert graph.intermediate_image_handles == [] and graph.source_state_handles == []
    intermediates: list[Any] = []
    assert encode_numbers(bench, graph, 1.0, intermediate_images=intermediates) is None
    command_buffer = bench.command_buffer()
    assert graph.encode_batch(command_buffer, [bench.images(np.ones((2, 1, 1, 1)))], None, intermediates) is None
    finish(command_buffer)
    assert intermediates == []
    heard: list[Any] = []
    assert graph.execute_async([bench.filled((1, 1, 1, 1), 1.0)], lambda *answer: heard.append(answer)) is None
    graph.reload_from_data_sources()
    assert graph.stale_weights() == [] and "0 filter(s)" in graph.debug_description
    assert encode_numbers(bench, graph.copy(), 1.0) is None


def test_6_5_a_graph_with_nothing_to_do_takes_reads_and_checks_its_sources(bench: Bench) -> None:
    graph, _ = idle(bench, 2)
    command_buffer = bench.command_buffer()
    source = temporary_copy(command_buffer, bench.filled((1, 1, 1, 1), 1.0))
    assert isinstance(source, mps.MPSTemporaryImage)
    source.read_count = graph.read_count_for_source_image_at_index(0)
    assert graph.encode(command_buffer, [source]) is None
    assert source.read_count == 0
    with pytest.raises(mps.MPSLifetimeError):
        graph.encode(command_buffer, [source])
    with pytest.raises(mps.MPSArgumentError, match="source_images must have 1 entry, one for each input: 'x', got 0"):
        graph.encode(command_buffer, [])
    finish(command_buffer)


def test_6_5_a_training_graph_whose_layers_have_no_update_does_nothing(bench: Bench, rng: np.random.Generator) -> None:
    with pytest.warns(mps.MPSTrainingWarning, match="there is nothing to do.*set result_image_is_needed"):
        graph = training_graph(bench, network := digits(rng), needed=False, export=False)
    images, targets = network.batch(rng, 2)
    command_buffer = bench.command_buffer()
    assert graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)]) is None
    finish(command_buffer)


# --- several results --------------------------------------------------------------------------------------------------


def three(bench: Bench, needed: list[bool] | None) -> tuple[mps.MPSNNGraph, list[mps.MPSNNFilterNode]]:
    """x -> 2x -> 6x -> 24x; the results are the last, the first and the middle one."""
    first = scaled(mps.MPSNNImageNode(), 2.0)
    middle = scaled(first.result_image, 3.0)
    last = scaled(middle.result_image, 4.0)
    nodes: list[mps.MPSNNFilterNode] = [last, first, middle]
    for node in nodes:
        node.result_image.image_allocator = ORDINARY
        node.result_image.format = Format.FLOAT32
    graph = mps.MPSNNGraph(bench.device, result_images=[node.result_image for node in nodes], results_are_needed=needed)
    return graph, nodes


@pytest.mark.parametrize(
    ("needed", "result", "others", "filters"),
    [
        (None, 24.0, [2.0, 6.0], 3),
        ([True, True, True], 24.0, [2.0, 6.0], 3),
        ([True, False, False], 24.0, [], 3),
        ([False, True, True], None, [2.0, 6.0], 2),
        ([False, True, False], None, [2.0], 1),
    ],
)
def test_6_5_results_that_are_not_needed_are_pruned_back_to_the_first_that_is(
    bench: Bench, needed: list[bool] | None, result: float | None, others: list[float], filters: int
) -> None:
    graph, nodes = three(bench, needed)
    assert len(graph.kernels) == filters
    made: list[Any] = []
    found = encode_numbers(bench, graph, 1.0, intermediate_images=made)
    assert (None if found is None else item(found)) == result
    assert [item(each) for each in made] == others
    assert graph.result_handle is graph.interface.handle(nodes[0].result_image)


def test_6_5_the_result_may_be_an_interior_node(bench: Bench) -> None:
    """What comes behind it is not run."""
    first = scaled(mps.MPSNNImageNode(), 2.0)
    scaled(first.result_image, 3.0)
    graph = mps.MPSNNGraph(bench.device, first.result_image)
    assert [*graph.kernels] == [first]


def test_6_6_exported_images_come_first_and_have_handles(bench: Bench) -> None:
    """E3, E13: exported images as they are made, then the results but the first; the handles are the former's alone."""
    graph, nodes = three(bench, None)
    names = ["last", "first", "middle"]
    for node, name in zip(nodes, names, strict=True):
        node.result_image.handle = mps.Handle(name)
    nodes[2].result_image.export_from_graph = True
    graph = mps.MPSNNGraph(bench.device, result_images=[node.result_image for node in nodes])
    assert [handle.label() for handle in graph.intermediate_image_handles] == ["middle"]
    made: list[Any] = []
    encode_numbers(bench, graph, 1.0, intermediate_images=made)
    assert [item(each) for each in made] == [6.0, 2.0]


def test_6_6_exported_states_stand_in_the_order_of_their_handles(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    graph = training_graph(bench, network)
    images, targets = network.batch(rng, 1)
    made: list[Any] = []
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)], destination_states=made)
    finish(command_buffer)
    assert [batch[0].convolution.label for batch in made] == ["conv1", "conv2", "fc1", "fc2"], "as they are made"
    assert graph.result_state_handles is not None and len(graph.result_state_handles) == 4


def test_6_5_handles_are_those_of_the_nodes_or_the_graphs_own(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    network.loss.input_labels.handle = named = mps.Handle("labels")  # pyright: ignore[reportAttributeAccessIssue]
    graph = training_graph(bench, network)
    assert graph.source_image_handles == [network.image.handle]
    assert graph.source_state_handles == [named]
    unnamed = graph.result_handle
    assert unnamed is graph.result_handle and unnamed.label() is None


def test_6_5_inputs_are_in_the_order_of_a_walk_from_the_results(bench: Bench) -> None:
    """f(a, b) takes a, then b; several results are walked in the order of the list; each input counts once."""
    a, b, c = (mps.MPSNNImageNode(mps.Handle(name)) for name in "abc")
    total = mps.MPSNNAdditionNode(scaled(a, 1.0).result_image, b)
    other = mps.MPSNNAdditionNode(c, a)
    graph = mps.MPSNNGraph(bench.device, result_images=[other.result_image, total.result_image])
    assert [handle.label() for handle in graph.source_image_handles] == ["c", "a", "b"]
    assert [graph.read_count_for_source_image_at_index(index) for index in range(3)] == [1, 2, 1]


def test_6_6_a_synchronized_image_can_be_read(bench: Bench) -> None:
    """An exported image with MPSImage's allocator and synchronizeResource is for the CPU to look at."""
    first = scaled(mps.MPSNNImageNode(), 2.0)
    first.result_image.export_from_graph = first.result_image.synchronize_resource = True
    first.result_image.image_allocator = ORDINARY
    graph = mps.MPSNNGraph(bench.device, scaled(first.result_image, 2.0).result_image)
    made: list[Any] = []
    encode_numbers(bench, graph, 1.5, intermediate_images=made)
    assert item(made[0]) == 3.0


# --- padding and allocators -------------------------------------------------------------------------------------------


class Roomy:
    """A policy with the Custom bit alone: two more columns, the offset left alone (E7)."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def padding_method(self) -> mps.MPSNNPaddingMethod:
        return mps.MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(
        self, source_images: Any, source_states: Any, for_kernel: Any, suggested_descriptor: Any
    ) -> Any:
        self.asked.append((len(source_images), source_images[0].width, type(for_kernel)))
        suggested_descriptor.width += 2
        return suggested_descriptor


def test_6_7_a_custom_padding_policy_of_a_node_sizes_its_result(bench: Bench) -> None:
    """It is asked with the source's size and the kernel, and the next node reads what it made."""
    node = mps.MPSCNNPoolingMaxNode(mps.MPSNNImageNode(), 2, 2)
    node.padding_policy = policy = Roomy()
    graph = mps.MPSNNGraph(bench.device, scaled(node.result_image, 2.0).result_image)
    graph.format = Format.FLOAT32
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.filled((1, 1, 4, 6), 1.5)])
    finish(command_buffer)
    assert policy.asked and set(policy.asked) == {(1, 6, mps.MPSCNNPoolingMax)}
    assert result is not None and result.width == 3 + 2
    np.testing.assert_array_equal(numbers(result)[0, 0, :, :3], 3.0)


class Noting:
    """An allocator that makes ordinary images and remembers for whom."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def image(self, command_buffer: Any, image_descriptor: Any, kernel: Any) -> Any:
        self.asked.append(type(kernel).__name__)
        return mps.MPSImage(command_buffer.device, image_descriptor)


def test_6_6_the_graphs_allocator_makes_the_result_and_the_nodes_the_exported_images(bench: Bench) -> None:
    first = scaled(mps.MPSNNImageNode(), 2.0)
    last = scaled(first.result_image, 3.0)
    first.result_image.export_from_graph = True
    first.result_image.image_allocator, last.result_image.image_allocator = Noting(), Noting()
    graph = mps.MPSNNGraph(bench.device, last.result_image)
    graph.destination_image_allocator = of_result = Noting()
    made: list[Any] = []
    result = encode_numbers(bench, graph, 1.0, intermediate_images=made)
    assert (item(result), item(made[0])) == (6.0, 2.0)
    asked = [first.result_image.image_allocator, of_result, last.result_image.image_allocator]
    assert [len(each.asked) for each in asked] == [1, 1, 0], "the result's node is not asked"


# --- formats ----------------------------------------------------------------------------------------------------------


def test_6_6_the_graphs_format_reaches_every_image_that_does_not_say(bench: Bench) -> None:
    """E8: set after construction; a node's own format stands; the result follows the same rule."""
    first = scaled(mps.MPSNNImageNode(), 1.0)
    said = scaled(first.result_image, 1.0)
    said.result_image.format = Format.FLOAT32
    last = scaled(said.result_image, 1.0)
    last.result_image.format = Format.NONE
    for node in (first, said):
        node.result_image.export_from_graph = True
    graph = mps.MPSNNGraph(bench.device, last.result_image)
    made: list[Any] = []
    assert encode_numbers(bench, graph, 1.0, intermediate_images=made).feature_channel_format is Format.FLOAT16
    graph.format = Format.UNORM8
    assert encode_numbers(bench, graph, 1.0, intermediate_images=made).feature_channel_format is Format.UNORM8
    formats = [each.feature_channel_format for each in made]
    assert formats == [Format.FLOAT16, Format.FLOAT32, Format.UNORM8, Format.FLOAT32]


def test_6_1_a_result_takes_the_format_of_its_first_source(bench: Bench) -> None:
    image, other = mps.MPSNNImageNode(), mps.MPSNNImageNode()
    image.format = Format.FLOAT32
    assert mps.MPSNNAdditionNode(image, other).result_image.format is Format.FLOAT32
    assert mps.MPSNNAdditionNode(other, image).result_image.format is Format.NONE


# --- the kernels of a graph -------------------------------------------------------------------------------------------


def test_6_5_a_property_of_a_graphs_kernel_counts_from_the_next_encode(bench: Bench) -> None:
    image = mps.MPSNNImageNode()
    node = mps.MPSNNAdditionNode(image, image)
    graph = mps.MPSNNGraph(bench.device, scaled(node.result_image, 2.0).result_image)
    kernel = graph.kernels[node]
    assert item(encode_numbers(bench, graph, 1.0)) == 4.0
    kernel.bias = 5.0
    assert item(encode_numbers(bench, graph, 1.0)) == 14.0
    assert item(encode_numbers(bench, graph.copy(), 1.0)) == 14.0
    kernel.bias = 0.0
    assert item(encode_numbers(bench, graph, 1.0)) == 4.0
    kernel.padding = Roomy()
    command_buffer = bench.command_buffer()
    assert (result := graph.encode(command_buffer, [bench.filled((1, 1, 1, 1), 1.0)])) is not None
    finish(command_buffer)
    assert result.width == 3


def test_6_5_shapes_that_come_back_find_their_program(bench: Bench, rng: np.random.Generator) -> None:
    """To plan for one set of shapes places the windows of kernels, which is no change of the user's."""
    node = convolution(mps.MPSNNImageNode(), Weights.of(rng, (2, 3, 3, 1)))
    pool = mps.MPSCNNPoolingMaxNode(node.result_image, 2, 2)
    graph = mps.MPSNNGraph(bench.device, pool.result_image)
    descriptors = [mps.MPSImageDescriptor(Format.FLOAT32, width, 5, 1) for width in (5, 8)]
    programs = [graph.program_for([each]) for each in descriptors]
    assert programs[0] is not programs[1]
    assert [graph.program_for([each]) for each in descriptors] == programs
    graph.reload_from_data_sources()
    assert [graph.program_for([each]) for each in descriptors] == programs
    graph.kernels[pool].edge_mode = mps.MPSImageEdgeMode.ZERO
    assert graph.program_for([descriptors[0]]) is not programs[0]


# --- in words ---------------------------------------------------------------------------------------------------------


def test_6_7_debug_description_names_every_node_its_images_formats_and_padding(
    bench: Bench, rng: np.random.Generator
) -> None:
    """E15."""
    network = digits(rng, keep=0.5)
    network.nodes["pool1"].result_image.format = Format.FLOAT32
    graph = training_graph(bench, network, image_format=Format.FLOAT16)
    text = graph.debug_description
    lines = text.splitlines()
    assert lines[1:3] == ["source image 0: image 0 'image'", "source state 0: state 0"]
    filters = lines[3 : 3 + len(graph.kernels)]
    for place, (line, (node, kernel)) in enumerate(zip(filters, graph.kernels.items(), strict=True)):
        assert line.startswith(f"{place}: {node.name} by {type(kernel).__name__}: ")
        assert ("padding" in line) is not isinstance(node, mps.MPSNNGradientFilterNode)
    assert "image 0 'image' -> image 1, state 1, float16, padding same, centered, remainder top left" in filters[0]
    assert filters[2].endswith("image 2 -> image 3, state 3, float32, padding TensorFlow average pooling")
    assert lines[-5].startswith("result: image 21") and lines[-1] == "result state 3: state 10"


def test_6_7_debug_description_says_what_is_not_needed(bench: Bench) -> None:
    first = scaled(mps.MPSNNImageNode(), 2.0)
    first.result_image.export_from_graph = True
    graph = mps.MPSNNGraph(bench.device, scaled(first.result_image, 2.0).result_image, False)
    assert graph.debug_description.splitlines()[-2:] == [
        "result: an image that no filter makes, which is not needed",
        "intermediate image 0: image 1",
    ]


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["none", "two", "another class"])
def test_6_6_source_states_are_checked(bench: Bench, rng: np.random.Generator, wrong: str) -> None:
    network = digits(rng)
    graph = training_graph(bench, network)
    images, targets = network.batch(rng, 2)
    given = labels(bench, targets)
    states: Any = {"none": None, "two": [given, given], "another class": [[mps.MPSState(bench.device)] * 2]}[wrong]
    with pytest.raises(mps.MPSError):
        graph.encode_batch(bench.command_buffer(), [bench.batch(images)], states)


def test_6_6_two_losses_take_their_labels_in_the_order_of_the_handles(bench: Bench) -> None:
    image = mps.MPSNNImageNode()
    both = [softmax_loss(scaled(image, factor).result_image) for factor in (1.0, 2.0)]
    for loss, name in zip(both, "ab", strict=True):
        loss.input_labels.handle = mps.Handle(name)
    total = mps.MPSNNAdditionNode(both[1].result_image, both[0].result_image)
    graph = mps.MPSNNGraph(bench.device, total.result_image)
    graph.format = Format.FLOAT32
    assert [handle.label() for handle in graph.source_state_handles] == ["b", "a"]
    values = np.array([[[[0.3]], [[-0.2]]]])
    targets = [np.array([[[[1.0]], [[0.0]]]]), np.array([[[[0.0]], [[1.0]]]])]
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(values)], [labels(bench, each) for each in targets])
    finish(command_buffer)

    def gradient(factor: float, target: np.ndarray) -> np.ndarray:
        exponentials = np.exp(factor * values)
        return exponentials / exponentials.sum(1, keepdims=True) - target

    assert result is not None
    assert_close(numbers(result), gradient(2.0, targets[0]) + gradient(1.0, targets[1]), 1e-6)
