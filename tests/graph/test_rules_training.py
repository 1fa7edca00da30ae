"""Rules of training graphs, numbered as in the notes on the headers: 6.8 derivation, 6.9 updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from channel_sources import NORMALIZATIONS
from encoding import Bench, finish, numbers
from helpers import assert_close
from networks import Weights, convolution, labels, one_hot, scaled, softmax_loss
from openmps.graph.nodes.node import MPSNNGradientFilterNode
from openmps.types import MPSImageFeatureChannelFormat, MPSNNTrainingStyle
from trainable_sources import RATE, DeviceSgd, HostSgd

Format = MPSImageFeatureChannelFormat
GPU, CPU = MPSNNTrainingStyle.UPDATE_DEVICE_GPU, MPSNNTrainingStyle.UPDATE_DEVICE_CPU


@pytest.fixture
def bench() -> Bench:
    return Bench.on(torch.device("cpu"))


# --- nodes that say what their gradients are --------------------------------------------------------------------------


class Twice(mps.MPSCNNNeuronLinearNode):
    """2x, with a gradient of its own: three times the incoming one, so that it can be told from the usual one."""

    def __init__(self, source: mps.MPSNNImageNode) -> None:
        super().__init__(source, 2.0)
        self.asked = 0

    def gradient_filter(self, source: Any = None, sources: Any = None) -> Any:
        self.asked += 1
        return mps.MPSCNNNeuronLinearNode(source, 3.0)


class TwiceByAll(Twice):
    """The same by the other method."""

    def gradient_filter(self, source: Any = None, sources: Any = None) -> Any:
        raise AssertionError("the nearest override is asked")

    def gradient_filters(self, source: Any = None, sources: Any = None) -> Any:
        self.asked += 1
        return [mps.MPSCNNNeuronLinearNode(source, 3.0)]


@pytest.mark.parametrize("kind", [Twice, TwiceByAll])
def test_6_8_a_subclass_that_overrides_its_gradient_filter_is_asked_by_it(bench: Bench, kind: type[Twice]) -> None:
    image, gradient = mps.MPSNNImageNode(), mps.MPSNNImageNode()
    node = kind(image)
    calls: list[Any] = []
    last = scaled(node.result_image, 5.0)
    (terminus,) = last.training_graph(gradient, lambda *call: calls.append(call)) or []
    assert node.asked == 1 and calls[-1][:3] == (terminus, node, image)
    graph = mps.MPSNNGraph(bench.device, terminus.result_image)
    graph.format = Format.FLOAT32
    sources = [bench.filled((1, 1, 1, 1), 7.0) for _ in graph.source_image_handles]
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, sources)
    finish(command_buffer)
    assert result is not None and result.numpy().item() == 7.0 * 5.0 * 3.0


def test_6_8_an_override_may_change_what_the_framework_makes(bench: Bench, rng: np.random.Generator) -> None:
    class Frozen(mps.MPSCNNConvolutionNode):
        def gradient_filter(self, source: Any = None, sources: Any = None) -> Any:
            made: Any = super().gradient_filter(source, sources)
            made.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_NONE
            return made

    node = Frozen(mps.MPSNNImageNode(), DeviceSgd.of(rng, (2, 3, 3, 1)))
    (terminus,) = softmax_loss(node.result_image).training_graph() or []
    assert isinstance(terminus, mps.MPSCNNConvolutionGradientNode)
    assert terminus.training_style is MPSNNTrainingStyle.UPDATE_DEVICE_NONE


@pytest.mark.parametrize("answer", [None, [], "two", [mps.MPSNNImageNode()]])
def test_6_8_an_override_returns_the_gradient_nodes_of_its_sources(answer: Any) -> None:
    class Wrong(mps.MPSCNNNeuronReLUNode):
        def gradient_filters(self, source: Any = None, sources: Any = None) -> Any:
            return super().gradient_filters(source) * 2 if answer == "two" else answer

    node = Wrong(mps.MPSNNImageNode())
    node.label = "mine"
    with pytest.raises(mps.MPSTypeError, match=r"^Wrong 'mine': gradient_filters\(\) must return the gradient nodes"):
        softmax_loss(node.result_image).training_graph()


# --- ends -------------------------------------------------------------------------------------------------------------


def two_inputs(rng: np.random.Generator, make: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """conv a of one image plus conv b of another: two ends."""
    sources = {name: make(rng, (2, 3, 3, 2), name) for name in "ab"}
    parts = [convolution(mps.MPSNNImageNode(mps.Handle(name)), source) for name, source in sources.items()]
    loss = softmax_loss(mps.MPSNNAdditionNode(parts[0].result_image, parts[1].result_image).result_image)
    return loss, sources, parts


def test_6_8_all_ends_given_to_a_graph_train_all_layers(bench: Bench, rng: np.random.Generator) -> None:
    loss, sources, _ = two_inputs(rng, DeviceSgd.of)
    ends = loss.training_graph() or []
    assert [end.label for end in ends] == ["b", "a"], "newest last, as they are made"
    graph = mps.MPSNNGraph(
        bench.device, result_images=[end.result_image for end in ends], results_are_needed=[False, False]
    )
    graph.format = Format.FLOAT32
    assert {handle.label() for handle in graph.source_image_handles} == {"a", "b"}
    images = {name: rng.random((3, 2, 2, 2)) for name in "ab"}
    targets = np.zeros((3, 2, 2, 2))
    targets[:, 0] = 1.0
    order = [str(handle.label()) for handle in graph.source_image_handles]
    command_buffer = bench.command_buffer()
    made = graph.encode_batch(command_buffer, [bench.batch(images[name]) for name in order], [labels(bench, targets)])
    finish(command_buffer)
    assert made is None and [source.calls for source in sources.values()] == [1, 1]


def test_6_8_one_end_of_two_leaves_a_layer_behind_and_says_so(bench: Bench, rng: np.random.Generator) -> None:
    loss, sources, _ = two_inputs(rng, DeviceSgd.of)
    end = (loss.training_graph() or [])[0]
    graph = mps.MPSNNGraph(bench.device, end.result_image, False)
    images = [bench.batch(rng.random((1, 2, 2, 2))) for _ in graph.source_image_handles]
    command_buffer = bench.command_buffer()
    with pytest.warns(mps.MPSTrainingWarning, match=r"MPSCNNConvolutionNode 'a': no gradient node is in this graph"):
        graph.encode_batch(command_buffer, images, [labels(bench, np.ones((1, 2, 2, 2)) / 2)])
    finish(command_buffer)
    assert [source.calls for source in sources.values()] == [0, 1]


def test_6_8_what_is_linked_by_states_alone_is_not_followed(rng: np.random.Generator) -> None:
    """A training graph derived from a gradient node's own result does not go back by the forward node's state."""
    node = convolution(mps.MPSNNImageNode(), Weights.of(rng, (2, 3, 3, 2)))
    gradient = node.gradient_filter(mps.MPSNNImageNode())
    last = scaled(gradient.result_image, 2.0)
    gradient.result_image.stop_gradient = True
    made: list[Any] = []
    last.training_graph(mps.MPSNNImageNode(), lambda *call: made.append(call[1]))
    assert made == [last]


def test_6_8_a_fan_out_is_summed_before_its_producer_is_differentiated(bench: Bench) -> None:
    """d(2x + 3x)/dx: the stem's gradient is asked once, with the whole sum."""
    image, gradient = mps.MPSNNImageNode(), mps.MPSNNImageNode()
    stem = scaled(image, 7.0)
    both = mps.MPSNNAdditionNode(
        scaled(stem.result_image, 2.0).result_image, scaled(stem.result_image, 3.0).result_image
    )
    made: list[Any] = []
    (end,) = both.training_graph(gradient, lambda *call: made.append(call)) or []
    assert [call[1] for call in made].count(stem) == 1
    assert [call[1] for call in made].count(None) == 1, "one addition, which mirrors no node"
    graph = mps.MPSNNGraph(bench.device, end.result_image)
    graph.format = Format.FLOAT32
    command_buffer = bench.command_buffer()
    result = graph.encode(command_buffer, [bench.filled((1, 1, 1, 1), 1.0) for _ in graph.source_image_handles])
    finish(command_buffer)
    assert result is not None and result.numpy().item() == 7.0 * (2.0 + 3.0)


def test_6_8_a_fault_of_the_handler_is_the_callers(rng: np.random.Generator) -> None:
    def handler(*_: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        softmax_loss(convolution(mps.MPSNNImageNode(), Weights.of(rng, (2, 3, 3, 2))).result_image).training_graph(
            None, handler
        )


# --- gradients go with their layer ------------------------------------------------------------------------------------


def test_6_8_a_gradient_of_another_layers_image_is_refused(bench: Bench, rng: np.random.Generator) -> None:
    """Equal shapes would hide it."""
    one, other = (convolution(mps.MPSNNImageNode(), Weights.of(rng, (2, 3, 3, 2), name)) for name in ("one", "other"))
    node = mps.MPSCNNConvolutionGradientNode(
        mps.MPSNNImageNode(), other.sources[0], one.convolution_gradient_state, one.weights
    )
    with pytest.raises(mps.MPSArgumentError, match="source_image must be an image of MPSCNNConvolutionNode 'one'"):
        mps.MPSNNGraph(bench.device, node.result_image)


# --- updates ----------------------------------------------------------------------------------------------------------


def normalized(bench: Bench, kind: str, style: MPSNNTrainingStyle, losses: int = 1) -> tuple[mps.MPSNNGraph, Any]:
    """A normalization before some losses, each derived by itself."""
    make, source_class, _ = NORMALIZATIONS[kind]
    source = source_class(4)
    node = make(mps.MPSNNImageNode(), source)
    node.training_style = style
    ends: list[Any] = []
    for factor in range(losses):
        ends += softmax_loss(scaled(node.result_image, 1.0 + factor).result_image).training_graph() or []
    graph = mps.MPSNNGraph(
        bench.device, result_images=[end.result_image for end in ends], results_are_needed=[False] * losses
    )
    graph.format = Format.FLOAT32
    return graph, source


def pass_through(bench: Bench, graph: mps.MPSNNGraph, rng: np.random.Generator, images: int = 3) -> None:
    states = [labels(bench, one_hot(rng.integers(0, 4, images), 4)) for _ in graph.source_state_handles]
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(rng.random((images, 4, 1, 1)))], states)
    finish(command_buffer)


@pytest.mark.filterwarnings("ignore:.*the weights did not move:openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize("style", [GPU, CPU])
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_6_9_a_normalization_is_updated_once_a_batch(
    bench: Bench, rng: np.random.Generator, kind: str, style: MPSNNTrainingStyle, losses: int
) -> None:
    """Scales and shifts before mean and variance, however many images and gradient nodes there are."""
    graph, source = normalized(bench, kind, style, losses)
    for _ in range(2):
        source.log.clear()
        pass_through(bench, graph, rng)
        suffix = "" if style is GPU else " on the CPU"
        assert source.log == [each + suffix for each in NORMALIZATIONS[kind][2]]


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_6_9_two_gradient_nodes_of_a_normalization_give_the_sum(bench: Bench, kind: str) -> None:
    """Against a graph for each loss alone."""
    values = np.random.default_rng(1).random((3, 4, 1, 2))
    targets = np.broadcast_to(one_hot(np.array([0, 2, 1]), 4), values.shape)

    def gradients(factors: list[float]) -> np.ndarray:
        make, source_class, _ = NORMALIZATIONS[kind]
        kept: list[Any] = []
        source = source_class(4)
        source.update_gamma_and_beta = lambda _, states: kept.append(states)
        node = make(mps.MPSNNImageNode(), source)
        nodes = [softmax_loss(scaled(node.result_image, factor).result_image) for factor in factors]
        ends = [end for loss in nodes for end in loss.training_graph() or []]
        images = [end.result_image for end in ends]
        graph = mps.MPSNNGraph(bench.device, result_images=images, results_are_needed=[False] * len(ends))
        graph.format = Format.FLOAT32
        command_buffer = bench.command_buffer()
        graph.encode_batch(command_buffer, [bench.batch(values)], [labels(bench, targets) for _ in nodes])
        finish(command_buffer)
        (states,) = kept
        each = [states] if isinstance(states, mps.MPSState) else list(states)
        rows = [(state.gradient_for_gamma, state.gradient_for_beta) for state in each]
        if kind == "batch":
            rows = [(state.gradient_for_gamma(), state.gradient_for_beta()) for state in each]
        return np.sum([[np.asarray(row.contents()).view(np.float32) for row in pair] for pair in rows], 0)

    whole = gradients([1.0, 2.0])
    assert np.abs(whole).max() > 1e-2
    assert_close(whole, gradients([1.0]) + gradients([2.0]), 1e-5)


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_6_9_reload_from_data_sources_reads_normalizations(bench: Bench, rng: np.random.Generator, kind: str) -> None:
    """Each read is a load and a purge, and the next encode computes with the new numbers."""
    make, source_class, _ = NORMALIZATIONS[kind]
    source = source_class(4)
    graph = mps.MPSNNGraph(bench.device, make(mps.MPSNNImageNode(), source).result_image)
    graph.format = Format.FLOAT32
    assert source.log.count("load") == source.log.count("purge") > 0
    values = rng.random((2, 4, 2, 3))

    def result() -> np.ndarray:
        command_buffer = bench.command_buffer()
        made = graph.encode_batch(command_buffer, [bench.batch(values)])
        finish(command_buffer)
        assert made is not None
        return numbers(made)

    before = result()
    source.scale = source.scale * 2
    np.testing.assert_array_equal(result(), before)
    source.log.clear()
    graph.reload_from_data_sources()
    assert source.log == ["load", "purge"] * (len(source.log) // 2) and source.log
    assert_close(result(), 2 * before, 1e-6)


@pytest.mark.parametrize("style", [GPU, CPU])
@pytest.mark.parametrize("images", [1, 4])
def test_6_9_a_convolution_is_updated_once_a_batch(
    bench: Bench, rng: np.random.Generator, style: MPSNNTrainingStyle, images: int
) -> None:
    """In a graph that shares its data source with another graph too: the other one asks nothing."""
    calls: list[Any] = []

    class Counting(DeviceSgd if style is GPU else HostSgd):  # type: ignore[misc]
        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            calls.append(command_buffer is None)
            return super().update(command_buffer, gradient_state, source_state)

    source = Counting.of(rng, (2, 1, 1, 2), "layer")
    node = convolution(mps.MPSNNImageNode(), source)
    node.training_style = style
    (end,) = softmax_loss(node.result_image).training_graph() or []
    graph = mps.MPSNNGraph(bench.device, end.result_image, False)
    other = mps.MPSNNGraph(bench.device, convolution(mps.MPSNNImageNode(), source).result_image)
    given = [bench.batch(rng.random((images, 2, 1, 1)))]
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, given, [labels(bench, one_hot(np.zeros(images, int), 2))])
    finish(command_buffer)
    assert calls == [style is CPU]
    command_buffer = bench.command_buffer()
    with pytest.warns(mps.MPSTrainingWarning, match="another graph or kernel of the same data source"):
        other.encode_batch(command_buffer, given)
    finish(command_buffer)
    assert len(calls) == 1 and RATE


def test_6_9_two_styles_over_one_data_source_are_two_layers(bench: Bench, rng: np.random.Generator) -> None:
    asked: list[bool] = []

    class Asked(Weights):
        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            asked.append(command_buffer is not None)

    source = Asked.of(rng, (2, 1, 1, 2), "both")
    first = convolution(mps.MPSNNImageNode(), source)
    second = convolution(first.result_image, source)
    second.training_style = CPU
    (end,) = softmax_loss(second.result_image).training_graph() or []
    graph = mps.MPSNNGraph(bench.device, end.result_image, False)
    command_buffer = bench.command_buffer()
    images = [bench.batch(rng.random((2, 2, 1, 1)))]
    graph.encode_batch(command_buffer, images, [labels(bench, one_hot(np.zeros(2, int), 2))])
    finish(command_buffer)
    assert asked == [True, False]


def test_6_1_gradient_nodes_are_updated_on_the_device_unless_told(rng: np.random.Generator) -> None:
    """They take over the style of the forward node that makes them; there are no second derivatives."""
    node = convolution(mps.MPSNNImageNode(), DeviceSgd.of(rng, (2, 3, 3, 1)))
    styles = []
    for style in (None, CPU):
        node.training_style = node.training_style if style is None else style
        gradient: Any = node.gradient_filter(mps.MPSNNImageNode())
        styles.append(gradient.training_style)
    assert styles == [GPU, CPU]
    assert isinstance(gradient, MPSNNGradientFilterNode)
    for refuse in (gradient.gradient_filter, gradient.gradient_filters):
        with pytest.raises(mps.MPSTypeError, match="no second derivatives"):
            refuse(mps.MPSNNImageNode())
