"""What an encode hands out: read counts, formats, allocators, exported states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers, temporary_copy
from in_one_test import in_one_test
from networks import (
    digits,
    encode_numbers,
    item,
    scaled,
    training_graph,
)
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.errors import (
    MPSArgumentError,
    MPSLifetimeError,
    MPSTypeError,
)
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.kernels.neuron import MPSCNNNeuron, MPSNNNeuronDescriptor
from openmps.types import MPSImageFeatureChannelFormat

Format = MPSImageFeatureChannelFormat
ORDINARY, TEMPORARY = MPSImage.default_allocator(), MPSTemporaryImage.default_allocator()


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_temporary_results_can_be_read_once(bench: Bench) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    graph.format, graph.destination_image_allocator = Format.FLOAT32, TEMPORARY
    command_buffer = bench.command_buffer()
    for encode_graph in (
        lambda: graph.encode(command_buffer, [bench.filled((2, 3, 1, 1), 1.5)]),
        lambda: graph.encode_batch(command_buffer, [bench.images(np.ones((2, 3, 1, 1)))]),
    ):
        result: Any = encode_graph()
        first = result if isinstance(result, MPSImage) else result[0]
        assert isinstance(first, MPSTemporaryImage) and first.read_count == 1
        reader = MPSCNNNeuron(bench.device, MPSNNNeuronDescriptor())
        reader.destination_image_allocator = ORDINARY
        read = reader.encode if isinstance(result, MPSImage) else reader.encode_batch
        kept = read(command_buffer, result)
        assert first.read_count == 0 and kept is not None
        with pytest.raises(MPSLifetimeError):
            read(command_buffer, result)
    finish(command_buffer)


@pytest.mark.parametrize("batch", [True, False])
def test_an_exported_result_stands_in_both_places(bench: Bench, batch: bool) -> None:
    node = scaled(MPSNNImageNode(), 2.0)
    node.result_image.export_from_graph = True
    graph = MPSNNGraph(bench.device, node.result_image)
    graph.destination_image_allocator = TEMPORARY
    intermediates: list[Any] = []
    command_buffer = bench.command_buffer()
    image = bench.filled((1, 1, 1, 1), 1.0)
    result: Any = (
        graph.encode_batch(command_buffer, [[image, image]], None, intermediates)
        if batch
        else graph.encode(command_buffer, [image], None, intermediates)
    )
    assert intermediates == [result] and graph.intermediate_image_handles == [graph.result_handle]
    assert (result[0] if batch else result).read_count == 2
    finish(command_buffer)


def test_exported_images_are_temporary_unless_told(bench: Bench) -> None:
    image = MPSNNImageNode()
    first = scaled(image, 2.0)
    first.result_image.export_from_graph = True
    graph = MPSNNGraph(bench.device, scaled(first.result_image, 2.0).result_image)
    intermediates: list[MPSImage] = []
    command_buffer = bench.command_buffer()
    graph.encode(command_buffer, [bench.filled((1, 1, 1, 1), 1.0)], intermediate_images=intermediates)
    (exported,) = intermediates
    assert isinstance(exported, MPSTemporaryImage) and exported.read_count == 1
    finish(command_buffer)


@in_one_test
@pytest.mark.parametrize(("given", "left"), [(3, 0), (5, 2), (2, 1), (1, 0)])
@pytest.mark.parametrize("batch", [True, False])
def test_sources_lose_the_reads_that_filters_make(bench: Bench, given: int, left: int, batch: bool) -> None:
    """Three filters read the image: three reads are taken, or one where there are fewer (the header says both)."""
    image = MPSNNImageNode()
    total = MPSNNAdditionNode(MPSNNAdditionNode(image, image).result_image, scaled(image, 1.0).result_image)
    graph = MPSNNGraph(bench.device, total.result_image)
    assert graph.read_count_for_source_image_at_index(0) == 3
    command_buffer = bench.command_buffer()
    values = np.full((2, 1, 1, 1), 2.0)
    source: Any = temporary_copy(command_buffer, bench.batch(values) if batch else bench.image(values))
    for each in source if batch else [source]:
        each.read_count = given
    result: Any = (graph.encode_batch if batch else graph.encode)(command_buffer, [source])
    assert [each.read_count for each in (source if batch else [source])] == [left] * (2 if batch else 1)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), 6.0)


def test_read_counts_of_states(bench: Bench, rng: np.random.Generator) -> None:
    graph = training_graph(bench, digits(rng))
    assert graph.read_count_for_source_state_at_index(0) == 1
    for index in (-1, 1, "0", True):
        with pytest.raises(MPSArgumentError, match="^MPSNNGraph: index must be an integer from 0, below 1"):
            graph.read_count_for_source_state_at_index(index)


def test_a_source_without_reads_left_is_refused(bench: Bench) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    command_buffer = bench.command_buffer()
    source: Any = temporary_copy(command_buffer, bench.filled((1, 1, 1, 1), 1.0))
    graph.encode(command_buffer, [source])
    with pytest.raises(MPSLifetimeError, match=r"source_images\[0\] must have reads left"):
        graph.encode(command_buffer, [source])
    finish(command_buffer)


# --- formats and allocators -------------------------------------------------------------------------------------------


def test_formats(bench: Bench) -> None:
    """The graph's at the time of the encode, unless the node says otherwise; nodes are read when the graph is made."""
    image = MPSNNImageNode()
    first = scaled(image, 1.0)
    second = scaled(first.result_image, 1.0)
    second.result_image.format = Format.UNORM8
    third = scaled(second.result_image, 1.0)
    assert third.result_image.format is Format.UNORM8
    third.result_image.format = Format.NONE
    for node in (first, second):
        node.result_image.export_from_graph, node.result_image.image_allocator = True, ORDINARY
    graph = MPSNNGraph(bench.device, third.result_image)
    second.result_image.format = Format.FLOAT32
    assert graph.format is Format.FLOAT16
    for chosen in (Format.FLOAT16, Format.FLOAT32, Format.UNORM16, Format.FLOAT16):
        graph.format = chosen
        intermediates: list[MPSImage] = []
        result = encode_numbers(bench, graph, 0.31, intermediate_images=intermediates)
        assert [each.feature_channel_format for each in (*intermediates, result)] == [chosen, Format.UNORM8, chosen]
        assert abs(item(result) - round(0.31 * 255) / 255) < 1e-3
    for wrong in (Format.NONE, 17, "FLOAT32"):
        with pytest.raises(MPSArgumentError, match="^MPSNNGraph: format must be UNORM8, UNORM16, FLOAT16, FLOAT32"):
            graph.format = wrong


def test_every_intermediate_is_rounded_to_its_format(bench: Bench) -> None:
    image = MPSNNImageNode()
    graph = MPSNNGraph(bench.device, scaled(scaled(image, 1.0).result_image, 1.0).result_image)
    graph.format = Format.UNORM8
    assert item(encode_numbers(bench, graph, 0.5)) == pytest.approx(128 / 255)
    assert item(encode_numbers(bench, graph, -3.0)) == 0.0 and item(encode_numbers(bench, graph, 3.0)) == 1.0


class _Allocator:
    """Makes ordinary images and remembers what it was asked for; changes the descriptor on the way."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.asked: list[MPSImageDescriptor] = []
        self.made: list[MPSImage] = []

    def image(self, command_buffer: Any, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        self.asked.append(image_descriptor.copy())
        descriptor = image_descriptor.copy()
        for name, value in self.changes.items():
            setattr(descriptor, name, value)
        self.made.append(MPSImage(command_buffer.device, descriptor))
        return self.made[-1]


def test_the_graphs_allocator_makes_the_result(bench: Bench) -> None:
    node = scaled(MPSNNImageNode(), 2.0)
    theirs, mine = _Allocator(), _Allocator()
    node.result_image.image_allocator = theirs
    graph = MPSNNGraph(bench.device, node.result_image)
    assert graph.destination_image_allocator is ORDINARY
    graph.destination_image_allocator = mine
    values = np.arange(12.0).reshape(3, 2, 1, 2)
    command_buffer = bench.command_buffer()
    result: Any = graph.encode_batch(command_buffer, [bench.batch(values)])
    single: Any = graph.encode(command_buffer, [bench.image(values)])
    finish(command_buffer)
    assert theirs.asked == [] and [*result, single] == mine.made
    assert [descriptor.number_of_images for descriptor in mine.asked] == [1, 1, 1, 3]
    np.testing.assert_array_equal(numbers(result), 2 * values)
    np.testing.assert_array_equal(numbers(single), 2 * values)
    with pytest.raises(MPSTypeError, match="destination_image_allocator must have a method image"):
        graph.destination_image_allocator = None


def test_an_allocator_may_choose_the_format(bench: Bench) -> None:
    """And the numbers then come in it unrounded, as a kernel alone would write them."""
    node = scaled(MPSNNImageNode(), 1.0)
    graph = MPSNNGraph(bench.device, node.result_image)
    graph.destination_image_allocator = _Allocator(channel_format=Format.FLOAT32)
    result = encode_numbers(bench, graph, 0.3)
    assert graph.format is Format.FLOAT16
    assert result.feature_channel_format is Format.FLOAT32 and item(result) == float(np.float32(0.3))
    graph.destination_image_allocator = ORDINARY
    assert item(encode_numbers(bench, graph, 0.3)) == float(np.float16(0.3))


@pytest.mark.parametrize("changes", [{"width": 2}, {"feature_channels": 3}, {"number_of_images": 2}])
def test_an_allocator_must_not_choose_the_size(bench: Bench, changes: dict[str, int]) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 1.0).result_image)
    graph.destination_image_allocator = _Allocator(**changes)
    with pytest.raises(MPSArgumentError, match="image allocator must make images as the descriptor says"):
        encode_numbers(bench, graph, 1.0)


def test_images_do_not_share_memory(bench: Bench) -> None:
    """The gradient of a concatenation of one image hands its source on; writing to one image changes no other."""
    image = MPSNNImageNode()
    handed_on = MPSNNConcatenationNode([image])
    made = scaled(image, 2.0)
    for source in (image, made.result_image):
        last = handed_on.gradient_filter(source)
        exported = made.result_image
        exported.export_from_graph, exported.image_allocator = True, ORDINARY
        graph = MPSNNGraph(bench.device, last.result_image)
        graph.format = Format.FLOAT32
        given, intermediates = bench.filled((1, 4, 1, 1), 1.0), []
        command_buffer = bench.command_buffer()
        result = graph.encode(command_buffer, [given], intermediate_images=intermediates)
        finish(command_buffer)
        images = [given, *intermediates, result]
        before = [float(each.numpy().flat[0]) for each in images]
        assert before == ([1.0, 1.0] if source is image else [1.0, 2.0, 2.0])
        for index, each in enumerate(images):
            each.write_bytes(np.full((1, 1, 4), 7.0 + index, np.float32))
        assert [float(each.numpy().flat[0]) for each in images] == [7.0 + index for index in range(len(images))]


# --- states -----------------------------------------------------------------------------------------------------------


def test_exported_states(bench: Bench, rng: np.random.Generator) -> None:
    image = MPSNNImageNode()
    dropout = MPSCNNDropoutNode(image, 0.5, 3)
    relu = MPSCNNNeuronReLUNode(dropout.result_image)
    for node, name in ((dropout, "mask"), (relu, "relu")):
        assert node.result_state is not None
        node.result_state.handle, node.result_state.export_from_graph = Handle(name), True
    graph = MPSNNGraph(bench.device, relu.result_image)
    graph.format = Format.FLOAT32
    assert [handle.label() for handle in graph.result_state_handles or []] == ["mask", "relu"]
    states: list[Any] = []
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(np.ones((3, 2, 4, 4)))], destination_states=states)
    finish(command_buffer)
    masks, relus = states
    assert len(masks) == len(relus) == 3 and masks[0] is masks[2] and relus[0] is not relus[1]
    np.testing.assert_array_equal(numbers(result), 2.0 * masks[0].mask_data().transpose(0, 3, 1, 2))
    assert relus[0].source_width == 4 and not masks[0].is_temporary


def test_exported_states_may_be_temporary(bench: Bench) -> None:
    relu = MPSCNNNeuronReLUNode(MPSNNImageNode())
    assert relu.result_state is not None
    relu.result_state.export_from_graph = True
    graph = MPSNNGraph(bench.device, relu.result_image)
    assert not graph.output_state_is_temporary
    graph.output_state_is_temporary = True
    states: list[Any] = []
    command_buffer = bench.command_buffer()
    graph.encode(command_buffer, [bench.filled((1, 1, 1, 1), 1.0)], destination_states=states)
    assert states[0].lives_on is command_buffer and states[0].read_count == 1
    finish(command_buffer)
