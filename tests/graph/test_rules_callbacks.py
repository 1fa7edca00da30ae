"""What graphs ask of their user, and what copies and archives keep: rules 6.2, 6.8 (E2) and 7 of the notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from channel_sources import NORMALIZATIONS
from encoding import Bench, finish, numbers
from helpers import assert_close
from networks import Weights, convolution, digits, encode_numbers, item, labels, one_hot, scaled, training_graph
from openmps.types import MPSImageFeatureChannelFormat

Format = MPSImageFeatureChannelFormat
RNG = np.random.default_rng(0)


@pytest.fixture
def bench() -> Bench:
    return Bench.on(torch.device("cpu"))


def again(graph: mps.MPSNNGraph, registry: Any = None) -> mps.MPSNNGraph:
    """A graph after a way through an archive."""
    data = mps.MPSKeyedArchiver.archived_data(graph)
    unarchived: Any = mps.MPSKeyedUnarchiver.unarchived_object_of_class
    return unarchived(mps.MPSNNGraph, data, graph.device, registry=registry)


def encoded(bench: Bench, graph: mps.MPSNNGraph, *sources: np.ndarray) -> np.ndarray:
    command_buffer = bench.command_buffer()
    result = graph.encode_batch(command_buffer, [bench.batch(each) for each in sources])
    finish(command_buffer)
    assert result is not None
    return numbers(result)


# --- asked at each encode ---------------------------------------------------------------------------------------------


class Factor:
    """Answers one number after the other, and notes the shapes that it is told."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)
        self.shapes: list[tuple[int, ...]] = []

    def alpha(self, source_image: Any, destination_image: Any) -> float:
        self.shapes.append((source_image.width, source_image.feature_channels, destination_image.width))
        return self.answers.pop(0)

    scalar_weight = alpha


def test_6_2_a_gram_matrix_asks_for_its_factor_at_each_encode(bench: Bench) -> None:
    """Once an encode; an answer that comes back computes what it did."""
    node = mps.MPSNNGramMatrixCalculationNode(mps.MPSNNImageNode(), 9.0)
    node.property_call_back = asked = Factor(1.0, 2.0, 1.0)
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    graph.format = Format.FLOAT32
    values = RNG.random((2, 3, 2, 4))
    gram = np.einsum("nfyx,ncyx->ncf", values, values)[:, :, None, :]
    for alpha in (1.0, 2.0, 1.0):
        assert_close(encoded(bench, graph, values), alpha * gram, 1e-6)
    assert asked.answers == [] and set(asked.shapes) == {(4, 3, 3)}


def test_6_2_a_loss_asks_for_its_weight_at_each_encode(bench: Bench) -> None:
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    node = mps.MPSNNForwardLossNode(mps.MPSNNImageNode(), mps.MPSNNImageNode(), descriptor)
    node.property_call_back = Factor(1.0, 0.5)
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    graph.format = Format.FLOAT32
    values = [RNG.random((1, 2, 1, 3)) for _ in range(2)]
    first, second = encoded(bench, graph, *values), encoded(bench, graph, *values)
    assert np.any(first)
    assert_close(second, 0.5 * first, 1e-6)


@pytest.mark.parametrize("kind", [mps.MPSNNBilinearScaleNode, mps.MPSNNLanczosScaleNode])
def test_6_2_a_scale_asks_for_its_transform_at_each_encode(bench: Bench, kind: Any) -> None:
    """By the handle of its source: here columns 0 and 1, then 2 and 3, of a picture of four."""

    class Panning:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def transform(self, source_image: Any, handle: Any) -> Any:
            self.asked.append((source_image.width, handle.label()))
            return mps.MPSScaleTransform(1.0, 1.0, -2.0 * (len(self.asked) - 1), 0.0)

    provider = Panning()
    node = kind(mps.MPSNNImageNode(mps.Handle("picture")), provider, mps.MTLSize(2, 1, 1))
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    graph.format = Format.FLOAT32
    values = np.array([[[[1.0, 2.0, 5.0, 7.0]]]])
    first, second = encoded(bench, graph, values), encoded(bench, graph, values)
    assert provider.asked == [(4, "picture")] * 2
    if kind is mps.MPSNNBilinearScaleNode:
        assert_close(first, values[..., :2], 1e-6)
        assert_close(second, values[..., 2:], 1e-6)
    else:
        assert not np.allclose(first, second)


# --- losses of images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_image", [True, False])
def test_6_8_a_forward_loss_gives_an_end_for_its_labels(bench: Bench, is_image: bool) -> None:
    """E2: a plain image as labels has a gradient too; with stopGradient it has none. d(x - y)²/2: the signs differ."""
    image, target = mps.MPSNNImageNode(mps.Handle("image")), mps.MPSNNImageNode(mps.Handle("labels"))
    target.stop_gradient = not is_image
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    loss = mps.MPSNNForwardLossNode(scaled(image, 1.0).result_image, target, descriptor)
    ends = mps.MPSNNInitialGradientNode(loss.result_image).training_graph() or []
    assert len(ends) == 1 + is_image
    graph = mps.MPSNNGraph(bench.device, result_images=[end.result_image for end in ends])
    graph.format = Format.FLOAT32
    assert [handle.label() for handle in graph.source_image_handles] == ["image", "labels"], "E6"
    for end in ends:
        end.result_image.image_allocator = mps.MPSImage.default_allocator()
    graph = mps.MPSNNGraph(bench.device, result_images=[end.result_image for end in ends])
    graph.format = Format.FLOAT32
    made: list[Any] = []
    found = [item(encode_numbers(bench, graph, 3.0, 1.0, intermediate_images=made)), *map(item, made)]
    assert sorted(found) == sorted([4.0, -4.0][: len(ends)])


# --- copies and archives ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*there is nothing to do:openmps.errors.MPSTrainingWarning")
def test_7_a_graph_with_nothing_to_do_comes_back_from_an_archive(bench: Bench) -> None:
    network = digits(RNG)
    graph = training_graph(bench, network, needed=False, export=False)
    images, targets = network.batch(RNG, 2)
    for each in (again(graph), graph.copy()):
        assert each.kernels == {} and len(each.source_state_handles) == 1
        command_buffer = bench.command_buffer()
        assert each.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)]) is None
        finish(command_buffer)


class Doubling:
    """A callback with a way to be archived."""

    def alpha(self, source_image: Any, destination_image: Any) -> float:
        return 2.0

    def archived(self) -> dict[str, Any]:
        return {}


def test_7_callbacks_of_nodes_are_archived(bench: Bench) -> None:
    node = mps.MPSNNGramMatrixCalculationNode(mps.MPSNNImageNode())
    node.property_call_back = Doubling()
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    values = RNG.random((1, 2, 2, 2))
    for each in (again(graph, {"Doubling": lambda _: Doubling()}), graph.copy()):
        np.testing.assert_array_equal(encoded(bench, each, values), encoded(bench, graph, values))
    node.property_call_back = Factor(1.0)
    with pytest.raises(mps.MPSTypeError, match="Factor cannot be archived"):
        mps.MPSKeyedArchiver.archived_data(mps.MPSNNGraph(bench.device, node.result_image))


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_7_normalizations_are_copied_and_archived(bench: Bench, kind: str) -> None:
    make, source_class, _ = NORMALIZATIONS[kind]
    source = source_class(4)
    graph = mps.MPSNNGraph(bench.device, make(mps.MPSNNImageNode(), source).result_image)
    graph.format = Format.FLOAT32
    values = RNG.random((2, 4, 2, 3))
    before = encoded(bench, graph, values)
    twins = [again(graph), graph.copy()]
    source.scale = source.scale * 2
    graph.reload_from_data_sources()
    assert_close(encoded(bench, graph, values), 2 * before, 1e-6)
    np.testing.assert_array_equal(encoded(bench, twins[0], values), before)
    with pytest.warns(mps.MPSTrainingWarning, match="given newer weights"):  # a copy shares the data source
        np.testing.assert_array_equal(encoded(bench, twins[1], values), before)


def test_7_a_users_subclass_comes_back_as_the_frameworks_class(bench: Bench) -> None:
    """The archive keeps what the graph runs, not the nodes."""

    class Mine(mps.MPSCNNConvolutionNode):
        def __init__(self, source: Any, weights: Any) -> None:
            super().__init__(source, weights)
            self.note = "mine"

    node = Mine(mps.MPSNNImageNode(), Weights.of(RNG, (2, 3, 3, 2), "layer"))
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    found = again(graph)
    assert [type(each) for each in found.kernels] == [mps.MPSCNNConvolutionNode]
    values = RNG.random((1, 2, 4, 4))
    np.testing.assert_array_equal(encoded(bench, found, values), encoded(bench, graph, values))


def test_7_a_property_set_at_a_kernel_is_archived(bench: Bench) -> None:
    node = mps.MPSNNAdditionNode(image := mps.MPSNNImageNode(), image)
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    assert item(encode_numbers(bench, graph, 1.0)) == 2.0
    graph.kernels[node].bias = 3.0
    assert item(encode_numbers(bench, again(graph), 1.0)) == 5.0


def test_6_9_state_batches_of_other_lengths_are_refused(bench: Bench) -> None:
    graph = training_graph(bench, network := digits(RNG), export=True)
    images, _ = network.batch(RNG, 2)
    given = labels(bench, one_hot(np.zeros(3, int), 10))
    with pytest.raises(mps.MPSArgumentError, match=r"source_states\[0\] must hold 2 state\(s\), one an image, got 3"):
        graph.encode_batch(bench.command_buffer(), [bench.batch(images)], [given])


def test_6_1_nodes_of_a_graph_are_read_when_it_is_made(bench: Bench) -> None:
    """Padding, formats and handles that are changed later are those of later graphs."""
    node = convolution(mps.MPSNNImageNode(), Weights.of(RNG, (2, 3, 3, 2), "layer"))
    graph = mps.MPSNNGraph(bench.device, node.result_image)
    node.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
    node.result_image.format = Format.FLOAT32
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.image(RNG.random((1, 2, 5, 5)))])
    finish(command_buffer)
    assert result is not None and (result.width, result.feature_channel_format) == (5, Format.FLOAT16)
