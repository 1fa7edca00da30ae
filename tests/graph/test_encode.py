"""Encodes: shapes and padding, sources and labels, command buffers, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers, temporary_copy
from helpers import assert_close
from networks import (
    Weights,
    convolution,
    digits,
    encode_numbers,
    item,
    labels,
    losses,
    run,
    scaled,
    softmax_loss,
    training_graph,
)
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.neuron import MPSCNNNeuronAbsoluteNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxNode
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.types import MPSImageFeatureChannelFormat, MPSNNPaddingMethod, MTLCommandBufferStatus

Format = MPSImageFeatureChannelFormat
ORDINARY, TEMPORARY = MPSImage.default_allocator(), MPSTemporaryImage.default_allocator()


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_one_graph_serves_images_of_every_size(bench: Bench, rng: np.random.Generator) -> None:
    image = MPSNNImageNode()
    source = Weights.of(rng, (4, 3, 3, 2))
    node = MPSCNNPoolingMaxNode(convolution(image, source).result_image, 2, 2)
    graph = MPSNNGraph(bench.device, node.result_image)
    graph.format = Format.FLOAT32
    for images, height, width in ((1, 5, 8), (3, 4, 4), (1, 5, 8), (2, 1, 1)):
        values = rng.normal(size=(images, 2, height, width))
        command_buffer = bench.command_buffer()
        batch = graph.encode_batch(command_buffer, [bench.images(values)])
        single = graph.encode(command_buffer, [bench.image(values)])
        finish(command_buffer)
        assert batch is not None and single is not None
        assert numbers(batch).shape == (images, 4, -(-height // 2), -(-width // 2))
        assert single.number_of_images == images
        np.testing.assert_array_equal(numbers(batch), numbers(single))


class _Enlarging:
    """A policy with the custom bit alone: one column more, the offset left as it is."""

    def __init__(self) -> None:
        self.calls = 0

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        self.calls += 1
        suggested.width += 1
        return suggested


def test_custom_policies_decide_the_size(bench: Bench) -> None:
    node = scaled(MPSNNImageNode(), 2.0)
    node.padding_policy = policy = _Enlarging()
    graph = MPSNNGraph(bench.device, scaled(node.result_image, 1.0).result_image)
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.filled((1, 1, 2, 3), 1.0)])
    finish(command_buffer)
    assert result is not None and policy.calls == 1
    assert numbers(result).tolist() == [[[[2.0, 2.0, 2.0, 0.0]] * 2]]


def test_pooling_nodes_clamp_where_kernels_read_zeros(bench: Bench) -> None:
    node = MPSCNNPoolingMaxNode(MPSNNImageNode(), 3, 1)
    graph = MPSNNGraph(bench.device, node.result_image)
    assert item(encode_numbers(bench, graph, -4.0)) == -4.0


def test_a_fully_connected_kernel_may_slide(bench: Bench, rng: np.random.Generator) -> None:
    """A 1x1 kernel on a larger image runs, and can be read."""
    source = Weights.of(rng, (3, 1, 1, 2))
    graph = MPSNNGraph(bench.device, MPSCNNFullyConnectedNode(MPSNNImageNode(), source).result_image)
    graph.format = Format.FLOAT32
    values = rng.normal(size=(1, 2, 4, 5))
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.image(values)])
    finish(command_buffer)
    assert result is not None
    expected = np.einsum("oc,nchw->nohw", source.array[:, 0, 0], values) + source.bias[:, None, None]
    assert_close(numbers(result)[..., :1, :1], expected[..., :1, :1], 1e-5)


def test_concatenation_pads_every_source_to_four_channels(bench: Bench, rng: np.random.Generator) -> None:
    left, right = MPSNNImageNode(), MPSNNImageNode()
    graph = MPSNNGraph(bench.device, MPSNNConcatenationNode([left, right]).result_image)
    graph.format = Format.FLOAT32
    x, y = rng.normal(size=(2, 7, 2, 3)), rng.normal(size=(2, 11, 2, 3))
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(x), bench.batch(y)])
    with pytest.raises(
        MPSArgumentError, match="sources must have the same width and height, got 3x2 of an input, 3x3 of an input"
    ):
        graph.encode_batch(command_buffer, [bench.batch(x), bench.batch(np.ones((2, 11, 3, 3)))])
    finish(command_buffer)
    found = numbers(result)
    assert found.shape == (2, 20, 2, 3)
    np.testing.assert_array_equal(found[:, :7], x.astype(np.float32))
    np.testing.assert_array_equal(found[:, 8:19], y.astype(np.float32))
    np.testing.assert_array_equal(found[:, [7, 19]], 0.0)


def test_softmax_of_an_inference_graph(bench: Bench, rng: np.random.Generator) -> None:
    """The sample's second graph, over the data sources of the first."""
    network = digits(rng)
    graph = MPSNNGraph(bench.device, MPSCNNSoftMaxNode(network.nodes["fc2"].result_image).result_image)
    images, _ = network.batch(rng, 4)
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(images)])
    finish(command_buffer)
    found = numbers(result)
    assert found.shape == (4, 10, 1, 1)
    assert_close(found.sum(1), np.ones((4, 1, 1)), 3e-3)


def test_losses_are_inputs_of_their_own(bench: Bench, rng: np.random.Generator) -> None:
    """A graph may end at a loss: its result is the gradient."""
    loss = softmax_loss(MPSNNImageNode())
    graph = MPSNNGraph(bench.device, loss.result_image)
    graph.format = Format.FLOAT32
    given = labels(bench, np.array([1.0, 0.0]).reshape(1, 2, 1, 1))
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.image(np.zeros((1, 2, 1, 1)))], given)
    finish(command_buffer)
    assert result is not None
    assert_close(numbers(result).ravel(), [-0.5, 0.5], 1e-6)
    assert_close(losses(given), [np.log(2.0)], 1e-6)


def test_policies_of_results_do_not_reach_back(bench: Bench, rng: np.random.Generator) -> None:
    node = MPSCNNConvolutionNode(MPSNNImageNode(), Weights.of(rng, (2, 3, 3, 1)))
    graph = MPSNNGraph(bench.device, node.result_image)
    node.padding_policy = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL)
    result = encode_numbers(bench, graph, 1.0)
    assert (result.width, result.height) == (1, 1), "nodes are read when the graph is made"


# --- encode -----------------------------------------------------------------------------------------------------------


def test_sources_are_checked(bench: Bench) -> None:
    x, y = MPSNNImageNode(Handle("left")), MPSNNImageNode()
    graph = MPSNNGraph(bench.device, MPSNNAdditionNode(x, y).result_image)
    graph.label = "net"
    one, two = bench.filled((1, 1, 1, 1), 1.0), bench.filled((2, 1, 1, 1), 1.0)
    command_buffer = bench.command_buffer()
    for wrong, message in (
        ([one], "source_images must have 2 entries, one for each input: 'left', one without a label, got 1"),
        ([one, two], r"source_images\[1\] must hold 1 image\(s\), like the first source, got 2"),
        (one, "source_images must be a sequence, one image a source, got MPSImage"),
        ([one, [one]], r"source_images\[1\] must be an MPSImage, got list. Use encode_batch"),
        (None, "source_images must be a sequence"),
    ):
        with pytest.raises(MPSError, match=f"^MPSNNGraph 'net': {message}"):
            graph.encode(command_buffer, wrong)
    for wrong, message in (
        ([[one], [one, one]], r"source_images\[1\] must hold 1 image\(s\)"),
        ([[], []], r"source_images\[0\] must hold at least one image"),
        ([one, one], r"source_images\[0\] must be a sequence of MPSImage, got MPSImage"),
        (bench.batch(np.ones((2, 1, 1, 1))), "source_images must be a sequence, one batch a source"),
    ):
        with pytest.raises(MPSError, match=f"^MPSNNGraph 'net': {message}"):
            graph.encode_batch(command_buffer, wrong)
    with pytest.raises(MPSArgumentError, match="source_states must be empty, got 1"):
        graph.encode(command_buffer, [one, one], labels(bench, np.ones((1, 1, 1, 1))))
    for argument in ("intermediate_images", "destination_states"):
        with pytest.raises(MPSTypeError, match=f"{argument} must be a list to append to, or None, got int"):
            graph.encode(command_buffer, [one, one], **{argument: 3})
    finish(command_buffer)


def test_labels_are_checked(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    graph = training_graph(bench, network)
    images, targets = network.batch(rng, 2)
    batch, given = bench.batch(images), labels(bench, targets)
    command_buffer = bench.command_buffer()
    for states, message in (
        (None, r"must have 1 entry, one for each input, got 0\. Labels of a loss are .* MPSCNNLossLabels\.batch"),
        ([given[:1]], r"source_states\[0\] must hold 2 state\(s\), one an image, got 1"),
        ([labels(bench, targets[:, :4])], r"MPSCNNLoss.*labels\[0\] must be 1x1 with at least 10 channels"),
        ([given[0]], r"source_states\[0\] must be a sequence of MPSState"),
        (5, "source_states must be a sequence, one batch of states a state input, or None, got int"),
        (given[0], "source_states must be a sequence, one batch"),
    ):
        with pytest.raises(MPSError, match=message):
            graph.encode_batch(command_buffer, [batch], states)
    for wrong in (given[0], 5):
        with pytest.raises(MPSTypeError, match="source_states must be a sequence, one state a state input, or None"):
            graph.encode(command_buffer, [bench.image(images[:1])], wrong)
    with pytest.raises(MPSArgumentError, match=r"must hold 2 state\(s\), one an image, got 1. Use encode_batch"):
        graph.encode(command_buffer, [bench.image(images)], given[:1])
    finish(command_buffer)


def test_labels_may_have_more_channels_than_the_predictions(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    images, targets = network.batch(rng, 2)
    graph = training_graph(bench, network)
    expected = run(bench, network, graph, images, targets)
    wide = labels(bench, targets, channels=12)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [wide])
    finish(command_buffer)
    np.testing.assert_array_equal(losses(wide), expected.losses)


def test_single_images_train_too(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    images, targets = network.batch(rng, 1)
    graph = training_graph(bench, network)
    expected = run(bench, network, graph, images, targets)
    given, states = labels(bench, targets), []
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.image(images)], given, destination_states=states)
    finish(command_buffer)
    assert isinstance(result, MPSImage)
    np.testing.assert_array_equal(numbers(result), expected.image)
    np.testing.assert_array_equal(losses(given), expected.losses)
    assert len(states) == len(graph.result_state_handles or []) == 4


def test_command_buffers_are_checked(bench: Bench) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    image = bench.filled((1, 1, 1, 1), 1.0)
    with pytest.raises(MPSTypeError, match="command_buffer must be a command buffer, got NoneType"):
        graph.encode(None, [image])
    finish(done := bench.command_buffer())
    with pytest.raises(MTLCommandBufferError, match="^MPSNNGraph: command_buffer must not be committed yet"):
        graph.encode(done, [image])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_devices_do_not_mix() -> None:
    cpu, cuda = Bench.on(torch.device("cpu")), Bench.on(torch.device("cuda"))
    graph = MPSNNGraph(cpu.device, scaled(MPSNNImageNode(), 2.0).result_image)
    with pytest.raises(MPSDeviceError, match="^MPSNNGraph: command_buffer must belong to the device"):
        graph.encode(cuda.command_buffer(), [cuda.filled((1, 1, 1, 1), 1.0)])
    with pytest.raises(MPSDeviceError, match=r"^MPSNNGraph: source_images\[0\] must belong to the device"):
        graph.encode(cpu.command_buffer(), [cuda.filled((1, 1, 1, 1), 1.0)])


def test_a_failed_encode_leaves_nothing_behind(bench: Bench, rng: np.random.Generator) -> None:
    """Neither work, nor reads taken, nor a step of the dropout's random numbers."""
    network = digits(rng, keep=0.5)
    images, targets = network.batch(rng, 2)
    first, second = training_graph(bench, network), training_graph(bench, network)
    command_buffer = bench.command_buffer()
    source: Any = temporary_copy(command_buffer, bench.batch(images))
    with pytest.raises(MPSError, match="labels"):
        first.encode_batch(command_buffer, [source], [labels(bench, targets[:, :4])])
    assert source[0].read_count == 1
    finish(command_buffer)
    runs = [run(bench, network, graph, images, targets).losses for graph in (first, second)]
    np.testing.assert_array_equal(*runs)


def test_two_command_buffers_in_flight(bench: Bench, rng: np.random.Generator) -> None:
    """Results belong to their own encode, whatever runs when."""
    network = digits(rng)
    graph = MPSNNGraph(bench.device, network.nodes["fc2"].result_image)
    graph.format = Format.FLOAT32
    values = [rng.random((4, 1, 12, 12)) for _ in range(6)]
    buffers, results = [], []
    for each in values:
        buffers.append(bench.command_buffer())
        results.append(graph.encode_batch(buffers[-1], [bench.images(each)]))
        buffers[-1].commit()
    for buffer, each, result in zip(reversed(buffers), reversed(values), reversed(results), strict=True):
        buffer.wait_until_completed()
        expected = graph.encode_batch(alone := bench.command_buffer(), [bench.images(each)])
        finish(alone)
        np.testing.assert_array_equal(numbers(result), numbers(expected))


def test_a_command_buffer_that_commits_and_continues(bench: Bench) -> None:
    """Temporary images live on over the commit."""
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    graph.destination_image_allocator = TEMPORARY
    command_buffer = MPSCommandBuffer(command_queue=bench.queue)
    image: Any = bench.filled((1, 1, 1, 1), 1.0)
    for _ in range(3):
        image = graph.encode(command_buffer, [image])
        command_buffer.commit_and_continue()
    graph.destination_image_allocator = ORDINARY
    result = graph.encode(command_buffer, [image])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result is not None and item(result) == 16.0
    assert command_buffer.status is MTLCommandBufferStatus.COMPLETED


def test_graphs_chain_on_one_command_buffer(bench: Bench, rng: np.random.Generator) -> None:
    """The exported image of one graph is the source of another, without ever being ordinary."""
    first = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 3.0).result_image)
    first.destination_image_allocator = TEMPORARY
    second = MPSNNGraph(bench.device, MPSCNNNeuronAbsoluteNode(MPSNNImageNode()).result_image)
    command_buffer = bench.command_buffer()
    between = first.encode_batch(command_buffer, [bench.images(-np.ones((2, 1, 1, 1)))])
    result = second.encode_batch(command_buffer, [between])
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), 3.0)


# --- execute_async ----------------------------------------------------------------------------------------------------


def test_execute_async(bench: Bench) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    done, seen = threading.Event(), []

    def handler(image: MPSImage | None, error: Exception | None) -> None:
        seen.append((image, None if image is None else item(image), error))
        done.set()

    result = graph.execute_async([bench.filled((1, 1, 1, 1), 4.0)], handler)
    assert done.wait(30)
    assert seen == [(result, 8.0, None)]
    assert graph.execute_async([bench.filled((1, 1, 1, 1), 4.0)]) is not None, "nobody has to listen"
    for wrong in ([], [None]):
        with pytest.raises(MPSError, match="^MPSNNGraph: source_images"):
            graph.execute_async(wrong, handler)
    with pytest.raises(MPSTypeError, match="completion_handler must be callable, got str"):
        graph.execute_async([bench.filled((1, 1, 1, 1), 4.0)], "done")


def test_what_a_completion_handler_raises_is_logged(bench: Bench, logged: Any) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    fault = ValueError("mine")

    def handler(*given: Any) -> None:
        raise fault

    graph.execute_async([bench.filled((1, 1, 1, 1), 1.0)], handler)
    told = threading.Event()
    graph.execute_async([bench.filled((1, 1, 1, 1), 1.0)], lambda *_: told.set())
    assert told.wait(30)
    assert [record.exc_info[1] for record in logged.records if record.exc_info] == [fault]


def test_execute_async_tells_what_went_wrong(bench: Bench) -> None:
    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 2.0).result_image)
    graph.stop_on_non_finite = True
    done, seen = threading.Event(), []

    def handler(*given: Any) -> None:
        seen.append(given)
        done.set()

    assert graph.execute_async([bench.filled((1, 1, 1, 1), float("nan"))], handler) is not None
    assert done.wait(30)
    ((image, error),) = seen
    assert image is None and "source image 0 of the graph" in str(error)
