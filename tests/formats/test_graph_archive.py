"""Archives of graphs: the same numbers, the same handles, the same sharing, and nothing that a document can forge."""

from __future__ import annotations

import copy
import json
import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers
from in_one_test import in_one_test
from networks import (
    NETWORKS,
    Outcome,
    Weights,
    convolution,
    digits,
    encode_numbers,
    item,
    run,
    scaled,
    shared,
    training_graph,
)
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.formats.archive.container import pack, unpack
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.neuron import MPSCNNNeuronPReLUNode, MPSCNNNeuronReLUNode, MPSCNNNeuronTanHNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingAverageNode
from openmps.graph.nodes.softmax import MPSCNNLogSoftMaxNode, MPSCNNSoftMaxNode
from openmps.graph.summary import graph_summary
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.optimizers import MPSNNOptimizerAdam
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import (
    MPSCNNConvolutionWeightsLayout,
    MPSCNNWeightsQuantizationType,
    MPSDataType,
    MPSImageFeatureChannelFormat,
    MPSKernelOptions,
    MPSNNPaddingMethod,
    MPSNNTrainingStyle,
)
from samples.convolution import ArraySource

Format = MPSImageFeatureChannelFormat
ORDINARY = MPSImage.default_allocator()


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def again(graph: MPSNNGraph, registry: Any = None) -> MPSNNGraph:
    """A graph after a way through an archive, which is the same from then on."""
    data = MPSKeyedArchiver.archived_data(graph)
    found = MPSKeyedUnarchiver.unarchived_object_of_class(MPSNNGraph, data, graph.device, registry=registry)
    assert MPSKeyedArchiver.archived_data(found) == data
    return found


def same(first: Outcome, second: Outcome) -> None:
    np.testing.assert_array_equal(first.losses, second.losses)
    assert (first.image is None) == (second.image is None)
    if first.image is not None:
        np.testing.assert_array_equal(first.image, second.image)
    assert first.gradients.keys() == second.gradients.keys()
    for name, values in first.gradients.items():
        np.testing.assert_array_equal(values, second.gradients[name])


class Margin:
    """A padding policy of a user: the result gets a margin."""

    def __init__(self, margin: int) -> None:
        self.margin = margin
        self.calls = 0

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        self.calls += 1
        suggested.width += self.margin
        return suggested

    def archived(self) -> dict[str, Any]:
        return {"margin": self.margin}


class Allocator:
    """An image allocator of a user, which counts."""

    def __init__(self, made: int = 0) -> None:
        self.made = made

    def image(self, command_buffer: Any, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        self.made += 1
        return MPSImage(command_buffer.device, image_descriptor)

    def archived(self) -> dict[str, Any]:
        return {"made": self.made}


class Named:
    """A handle of a user."""

    def __init__(self, name: str) -> None:
        self.name = name

    def label(self) -> str:
        return self.name

    def archived(self) -> dict[str, Any]:
        return {"name": self.name}


REGISTRY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Margin": lambda values: Margin(values["margin"]),
    "Allocator": lambda values: Allocator(values["made"]),
    "Named": lambda values: Named(values["name"]),
}


# --- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("image_format", [Format.FLOAT16, Format.FLOAT32])
def test_training_graphs(name: str, image_format: Format, bench: Bench, rng: np.random.Generator) -> None:
    network = NETWORKS[name](rng)
    images, targets = network.batch(rng, 3)
    graph = training_graph(bench, network, image_format=image_format)
    same(run(bench, network, again(graph), images, targets), run(bench, network, graph, images, targets))


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_graphs(name: str, bench: Bench, rng: np.random.Generator) -> None:
    network = NETWORKS[name](rng)
    images, _ = network.batch(rng, 3)
    graph = MPSNNGraph(bench.device, network.loss.sources[0])
    results = []
    for each in (graph, again(graph)):
        result = each.encode_batch(command_buffer := bench.command_buffer(), [bench.batch(images)])
        finish(command_buffer)
        results.append(numbers(result))
    np.testing.assert_array_equal(*results)


OFFERED: dict[str, tuple[Any, MPSDataType, dict[str, Any]]] = {
    "nothing": (np.float32, MPSDataType.FLOAT32, {}),
    "float32": (np.float32, MPSDataType.FLOAT32, {"kernel_weights_data_type": MPSDataType.FLOAT32}),
    "float16": (np.float32, MPSDataType.FLOAT32, {"kernel_weights_data_type": MPSDataType.FLOAT16}),
    "no precision": (np.float32, MPSDataType.FLOAT32, {"kernel_weights_data_type": None}),
    "half weights": (np.float16, MPSDataType.FLOAT16, {"kernel_weights_data_type": MPSDataType.FLOAT16}),
    "layout": (np.float32, MPSDataType.FLOAT32, {"weights_layout": MPSCNNConvolutionWeightsLayout.OHWI}),
    "ranges": (np.uint8, MPSDataType.UINT8, {"ranges_for_uint8_kernel": np.float32([[-1, 1], [0, 2]])}),
    "table": (
        np.uint8,
        MPSDataType.UINT8,
        {
            "weights_quantization_type": MPSCNNWeightsQuantizationType.LOOKUP_TABLE,
            "lookup_table_for_uint8_kernel": np.linspace(-1, 1, 256, dtype=np.float32),
        },
    ),
}
"""What data sources may offer besides the methods that they must have: the type of their weights, optional methods."""


@pytest.mark.parametrize("image_format", [Format.FLOAT16, Format.FLOAT32])
@pytest.mark.parametrize("offered", OFFERED)
def test_what_a_data_source_offers(offered: str, image_format: Format, bench: Bench, rng: np.random.Generator) -> None:
    dtype, kind, methods = OFFERED[offered]
    weights = (255 * rng.random((2, 3, 3, 4)) if dtype is np.uint8 else rng.normal(size=(2, 3, 3, 4))).astype(dtype)
    source: Any = ArraySource(MPSCNNConvolutionDescriptor(3, 3, 4, 2), weights, np.float32([1, 2]), kind)
    vars(source).update({name: lambda value=value: value for name, value in methods.items()})
    graph = MPSNNGraph(bench.device, MPSCNNConvolutionNode(MPSNNImageNode(), source).result_image)
    graph.format = image_format
    images, results = rng.normal(size=(2, 4, 5, 5)), []
    for each in (graph, again(graph)):
        result = each.encode_batch(command_buffer := bench.command_buffer(), [bench.batch(images, image_format)])
        finish(command_buffer)
        results.append(numbers(result))
    np.testing.assert_array_equal(*results)


@pytest.mark.filterwarnings("ignore:.*has no update:openmps.errors.MPSTrainingWarning")
def test_every_kind_of_node(bench: Bench, rng: np.random.Generator) -> None:
    """Those of the catalogue that no network above has, forward and gradient; the lists say that none is missing."""
    image = MPSNNImageNode(Handle("image"))
    now: Any = convolution(image, Weights.of(rng, (4, 3, 3, 2), "conv")).result_image
    now = MPSCNNNeuronPReLUNode(now, [0.5, -0.5, 0.25, 2.0]).result_image
    now = MPSCNNNeuronTanHNode(now, 1.5, 0.5).result_image
    now = MPSCNNPoolingAverageNode(now, kernel_width=3, kernel_height=2, stride_in_pixels_x=1, stride_in_pixels_y=2)
    now = MPSNNConcatenationNode([now.result_image, now.result_image]).result_image
    now = MPSCNNLogSoftMaxNode(MPSCNNSoftMaxNode(now).result_image)
    gradient = MPSNNImageNode(Handle("gradient"))
    (last,) = now.training_graph(gradient) or []
    graph = MPSNNGraph(bench.device, last.result_image)
    graph.format = Format.FLOAT32
    found = again(graph)
    assert [type(node) for node in found.kernels] == [type(node) for node in graph.kernels]
    sources = {"image": rng.normal(size=(1, 2, 6, 6)), "gradient": rng.normal(size=(1, 8, 3, 6))}
    order = [str(handle.label()) for handle in graph.source_image_handles]
    assert [handle.label() for handle in found.source_image_handles] == order
    results = []
    for each in (graph, found):
        given = [bench.image(sources[name]) for name in order]
        result = each.encode(command_buffer := bench.command_buffer(), given)
        finish(command_buffer)
        results.append(numbers(result))
    assert np.any(results[0])
    np.testing.assert_array_equal(*results)


def test_masks_of_dropout_go_on_where_they_were(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng, keep=0.5)
    graph = training_graph(bench, network)
    images, targets = network.batch(rng, 2)
    first = run(bench, network, graph, images, targets)
    found = again(graph)
    second = run(bench, network, graph, images, targets)
    same(run(bench, network, found, images, targets), second)
    assert not np.array_equal(first.losses, second.losses)


# --- everything that a graph shares with its user --------------------------------------------------------------------


def test_everything_public(bench: Bench) -> None:
    """Several sources, results, exported images, an unneeded result, handles of all kinds, and every property."""
    a, b = MPSNNImageNode(Handle("a")), MPSNNImageNode()
    left, right = scaled(a, 2.0), scaled(b, 3.0)
    both = MPSNNAdditionNode(right.result_image, left.result_image)
    both.label = "both"
    last = scaled(MPSNNAdditionNode(both.result_image, a).result_image, 10.0)
    left.result_image.export_from_graph, left.result_image.image_allocator = True, ORDINARY
    left.result_image.handle = both.result_image.handle = Named("shared handle")
    both.result_image.image_allocator, both.result_image.format = ORDINARY, Format.FLOAT16
    graph = MPSNNGraph(
        bench.device, result_images=[last.result_image, both.result_image], results_are_needed=[True, True]
    )
    graph.label, graph.options = "net", MPSKernelOptions.SKIP_API_VALIDATION
    graph.format, graph.output_state_is_temporary = Format.FLOAT32, True
    graph.allow_fusion, graph.stop_on_non_finite = False, True
    graph.destination_image_allocator = allocator = Allocator(5)
    found = again(graph, REGISTRY)
    for name in ("label", "options", "format", "output_state_is_temporary", "allow_fusion", "stop_on_non_finite"):
        assert getattr(found, name) == getattr(graph, name), name
    assert found.device is bench.device and found.result_image_is_needed
    assert found.destination_image_allocator.made == 5
    assert [handle.label() for handle in found.source_image_handles] == [None, "a"]
    assert found.source_image_handles == found.source_image_handles
    shared = found.interface.handles(found.interface.intermediates)
    assert [handle.label() for handle in shared] == ["shared handle"] * 2 and shared[0] is shared[1]
    assert found.intermediate_image_handles == shared[:1]
    assert found.source_state_handles == [] and found.result_state_handles is None
    assert [found.read_count_for_source_image_at_index(index) for index in range(2)] == [1, 2]
    for each in (graph, found):
        intermediates: list[MPSImage] = []
        assert item(encode_numbers(bench, each, 1.0, 10.0, intermediate_images=intermediates)) == 330.0
        assert [item(image) for image in intermediates] == [20.0, 23.0]
    assert allocator.made == found.destination_image_allocator.made == 6
    descriptors = [MPSImageDescriptor(Format.FLOAT32, 1, 1, 1)] * 2
    assert str(graph_summary(found, descriptors)) == str(graph_summary(graph, descriptors))
    assert repr(found) == repr(graph)


def test_states_and_their_handles(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    network.loss.input_labels.handle = Handle("labels")
    network.nodes["fc2"].convolution_gradient_state.handle = Handle("fc2 state")
    graph = training_graph(bench, network)
    found = again(graph)
    assert [handle.label() for handle in found.source_state_handles] == ["labels"]
    labels = [handle.label() for handle in found.result_state_handles or []]
    assert labels == [handle.label() for handle in graph.result_state_handles or []] and "fc2 state" in labels
    assert found.read_count_for_source_state_at_index(0) == 1


def test_an_unneeded_result_that_no_filter_makes(bench: Bench) -> None:
    image, other = MPSNNImageNode(), MPSNNImageNode()
    first = scaled(image, 2.0)
    second = scaled(MPSNNAdditionNode(first.result_image, other).result_image, 1.0)
    second.result_image.handle = Handle("unneeded")
    first.result_image.image_allocator = ORDINARY
    results = [second.result_image, first.result_image]
    found = again(MPSNNGraph(bench.device, result_images=results, results_are_needed=[False, True]))
    assert not found.result_image_is_needed and len(found.kernels) == 1
    assert found.result_handle.label() == "unneeded"
    intermediates: list[MPSImage] = []
    assert encode_numbers(bench, found, 3.0, intermediate_images=intermediates) is None
    assert [item(each) for each in intermediates] == [6.0]


def test_an_unneeded_gradient_stays_uncomputed(bench: Bench, rng: np.random.Generator) -> None:
    network = digits(rng)
    graph = training_graph(bench, network, needed=False)
    images, targets = network.batch(rng, 2)
    found = again(graph)
    same(run(bench, network, found, images, targets), run(bench, network, graph, images, targets))
    (last,) = (kernel for node, kernel in found.kernels.items() if node.name.endswith("GradientNode 'conv1'"))
    assert int(last.gradient_option) == 2, "weights and biases only"


def test_the_archive_is_of_the_graph_and_not_of_its_nodes(bench: Bench) -> None:
    """Nodes are read when a graph is made; what is done to them later is in neither."""
    image = MPSNNImageNode()
    first = scaled(image, 2.0)
    last = scaled(first.result_image, 3.0)
    first.result_image.export_from_graph, first.result_image.image_allocator = True, ORDINARY
    graph = MPSNNGraph(bench.device, last.result_image)
    first.result_image.export_from_graph, last.result_image.export_from_graph = False, True
    last.result_image.format = Format.UNORM8
    last.padding_policy = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
    found = again(graph)
    for each in (graph, found):
        intermediates: list[MPSImage] = []
        assert item(encode_numbers(bench, each, 1.5, intermediate_images=intermediates)) == 9.0
        assert [item(each) for each in intermediates] == [3.0]


def test_custom_policies_and_allocators_of_nodes(bench: Bench, rng: np.random.Generator) -> None:
    policy, allocator = Margin(2), Allocator()
    image = MPSNNImageNode()
    first, second = (MPSCNNPoolingAverageNode(image, 3, 1) for _ in range(2))
    first.padding_policy = second.padding_policy = policy
    first.result_image.export_from_graph, first.result_image.image_allocator = True, allocator
    graph = MPSNNGraph(bench.device, MPSNNAdditionNode(first.result_image, second.result_image).result_image)
    found = again(graph, REGISTRY)
    pools: Any = list(found.kernels.values())[:2]
    assert pools[0].padding is pools[1].padding and pools[0].padding.margin == 2
    values = rng.normal(size=(1, 2, 4, 4))
    results = []
    for each in (graph, found):
        intermediates: list[MPSImage] = []
        command_buffer = bench.command_buffer()
        result = each.encode(command_buffer, [bench.image(values)], intermediate_images=intermediates)
        finish(command_buffer)
        assert numbers(result).shape == numbers(intermediates[0]).shape == (1, 2, 2, 4)
        results.append(numbers(result))
    np.testing.assert_array_equal(*results)
    assert type(pools[0].destination_image_allocator) is Allocator
    assert pools[0].destination_image_allocator.made == 1, "the one that its node has"
    with pytest.raises(MPSFileError, match=r"registry must have '(Margin|Allocator)'"):
        again(graph)


def test_a_handle_that_cannot_be_archived(bench: Bench) -> None:
    class Other:
        def label(self) -> str:
            return "x"

    graph = MPSNNGraph(bench.device, scaled(MPSNNImageNode(Other()), 2.0).result_image)
    with pytest.raises(MPSTypeError, match=r"Other cannot be archived.*Give the class a method archived\(\)"):
        MPSKeyedArchiver.archived_data(graph)


def test_execute_async(bench: Bench) -> None:
    found = again(MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 4.0).result_image))
    seen: queue.Queue[Any] = queue.Queue()
    result = found.execute_async([bench.filled((1, 1, 1, 1), 2.0)], lambda image, error: seen.put((image, error)))
    assert seen.get(timeout=30) == (result, None)
    assert item(result) == 8.0


def test_another_device(rng: np.random.Generator, device: torch.device) -> None:
    """A graph of the CPU comes back on any device."""
    cpu, bench = Bench.on(torch.device("cpu")), Bench.on(device)
    network = digits(rng)
    data = MPSKeyedArchiver.archived_data(training_graph(cpu, network))
    found = MPSKeyedUnarchiver.unarchived_object_of_class(MPSNNGraph, data, bench.device)
    images, targets = network.batch(rng, 2)
    assert {kernel.device for kernel in found.kernels.values()} == {bench.device}
    losses = run(bench, network, found, images, targets).losses
    np.testing.assert_allclose(losses, network.torch(images, targets)[0].reshape(-1), rtol=1e-4)


# --- data sources -----------------------------------------------------------------------------------------------------


def adam(device: Any) -> MPSNNOptimizerAdam:
    return MPSNNOptimizerAdam(device, 1e-2)


class Trained(TrainableConvolutionDataSource):
    """A data source that is archived with its numbers as they are now, its optimizer's too."""

    def archived(self) -> dict[str, Any]:
        return {"descriptor": self.descriptor(), "label": self.label(), **self.training_state()}

    @classmethod
    def of(cls, rng: np.random.Generator, shape: Any, label: str) -> Trained:
        drawn = Weights.of(rng, shape, label)
        return cls(drawn.made, drawn.array, drawn.bias, label, optimizer=adam)

    @classmethod
    def restored(cls, values: dict[str, Any]) -> Trained:
        descriptor, label = values.pop("descriptor"), values.pop("label")
        source = cls(descriptor, values["weights"], values["biases"], label, optimizer=adam)
        source.restore_training_state(values)
        return source


def weights_of(graph: MPSNNGraph) -> dict[str, np.ndarray]:
    return {
        str(kernel.label): kernel.parameters.weights.cpu().numpy().copy()
        for kernel in graph.kernels.values()
        if hasattr(kernel, "parameters")
    }


@pytest.mark.parametrize("make", [digits, shared])
def test_training_goes_on_to_the_same_weights(make: Any, bench: Bench, rng: np.random.Generator) -> None:
    network = make(rng, Trained.of)
    graph = training_graph(bench, network, style=MPSNNTrainingStyle.UPDATE_DEVICE_GPU, needed=False)
    images, targets = network.batch(rng, 4)
    for _ in range(3):
        run(bench, network, graph, images, targets)
    data = MPSKeyedArchiver.archived_data(graph)
    found = MPSKeyedUnarchiver.unarchived_object_of_class(
        MPSNNGraph, data, bench.device, registry={"Trained": Trained.restored}
    )
    before = weights_of(graph)
    for name, values in weights_of(found).items():
        np.testing.assert_array_equal(values, before[name])
    for _ in range(3):
        same(run(bench, network, found, images, targets), run(bench, network, graph, images, targets))
    after = weights_of(graph)
    for name, values in weights_of(found).items():
        np.testing.assert_array_equal(values, after[name])
        assert not np.array_equal(values, before[name])


def test_one_data_source_comes_back_as_one(bench: Bench, rng: np.random.Generator) -> None:
    """Whether it can be archived or its numbers are kept; node labels of their own change nothing."""
    for make, registry in ((Weights.of, None), (Trained.of, {"Trained": Trained.restored})):
        network = shared(rng, make)
        network.nodes["first"].label = "another name"
        found = again(training_graph(bench, network), registry)
        kernels: Any = [kernel for kernel in found.kernels.values() if hasattr(kernel, "parameters")]
        assert len(kernels) == 6
        assert len({id(kernel.data_source) for kernel in kernels}) == 2, "forward and gradient, twice, and fc"
        assert len({id(kernel.parameters) for kernel in kernels}) == 2
        assert "another name" in {kernel.label for kernel in kernels}


def test_updated_weights_are_archived_if_the_data_source_writes_them(bench: Bench, rng: np.random.Generator) -> None:
    """An archivable data source speaks for itself; numbers in the place of another one are those of the graph."""

    class Stale(Trained):
        def archived(self) -> dict[str, Any]:
            return {**super().archived(), "weights": self.first}

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.first = self.weights().copy()

    class Plain(TrainableConvolutionDataSource):
        @classmethod
        def of(cls, rng: np.random.Generator, shape: Any, label: str) -> Any:
            made = Trained.of(rng, shape, label)
            return cls(made.descriptor(), made.weights(), made.bias_terms(), label, optimizer=adam)

    registry = {"Stale": Stale.restored, "Trained": Trained.restored}
    for kind, is_kept in ((Stale, False), (Trained, True), (Plain, True)):
        network = digits(np.random.default_rng(3), kind.of)
        graph = training_graph(bench, network, style=MPSNNTrainingStyle.UPDATE_DEVICE_GPU)
        run(bench, network, graph, *network.batch(rng, 2))
        data = MPSKeyedArchiver.archived_data(graph)
        restored = MPSKeyedUnarchiver(data, bench.device, registry=registry).decode_root_object()
        now, found = weights_of(graph), weights_of(restored)
        assert all(np.array_equal(found[name], values) for name, values in now.items()) is is_kept, kind


def test_a_graph_that_has_lost_its_updates_computes_the_same(bench: Bench, rng: np.random.Generator) -> None:
    """A data source without archived() comes back as numbers, which nobody updates; gradients are still exported."""
    network = digits(rng, lambda *drawn: Weights.of(*drawn))
    graph = training_graph(bench, network)
    images, targets = network.batch(rng, 2)
    expected = run(bench, network, graph, images, targets)
    found = again(graph)
    for _ in range(2):
        same(run(bench, network, found, images, targets), expected)


def test_reload_from_data_sources(bench: Bench, rng: np.random.Generator) -> None:
    found = again(MPSNNGraph(bench.device, convolution(MPSNNImageNode(), Weights.of(rng, (1, 1, 1, 1))).result_image))
    (kernel,) = found.kernels.values()
    kernel.data_source.weight_array = np.full((1, 1, 1, 1), 5.0, np.float32)
    kernel.data_source.bias_array = np.zeros(1, np.float32)
    assert item(encode_numbers(bench, found, 2.0)) != 10.0
    found.reload_from_data_sources()
    assert item(encode_numbers(bench, found, 2.0)) == 10.0


def test_a_copy_of_what_came_out(bench: Bench, rng: np.random.Generator) -> None:
    network = shared(rng)
    images, targets = network.batch(rng, 2)
    graph = training_graph(bench, network)
    twin = again(graph).copy(bench.device)
    same(run(bench, network, twin, images, targets), run(bench, network, graph, images, targets))
    kernels: Any = [kernel for kernel in twin.kernels.values() if hasattr(kernel, "parameters")]
    assert len({id(kernel.parameters) for kernel in kernels}) == 2


# --- documents that no graph has written -----------------------------------------------------------------------------


def _document(bench: Bench) -> tuple[dict[str, Any], Any]:
    network = NETWORKS["concatenated"](np.random.default_rng(5))
    return unpack(MPSKeyedArchiver.archived_data(training_graph(bench, network)), "test")


def _graph(document: dict[str, Any]) -> dict[str, Any]:
    return document["objects"][-1]


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Put the last of ``path`` where the others lead to."""

    def change(graph: dict[str, Any]) -> None:
        *ahead, last, value = path
        place: Any = graph
        for key in ahead:
            place = place[key]
        place[last] = value

    return change


@in_one_test
@pytest.mark.parametrize(
    "change",
    [
        _set("filters", []),
        _set("filters", None),
        _set("filters", 0, None),
        _set("filters", 0, "class", "os.system"),
        _set("filters", 0, "class", "MPSNNFilterNode"),
        _set("filters", 0, "class", ["MPSCNNSoftMaxNode"]),
        _set("filters", 0, "arguments", {}),
        _set("filters", 0, "arguments", "source", {"image": 0.5}),
        _set("filters", 0, "arguments", "source", {"image": True}),
        _set("filters", 0, "arguments", "source", {"image": -1}),
        _set("filters", 0, "arguments", "source", {"image": 1}),
        _set("filters", 0, "arguments", "source", {"image": 10**30}),
        _set("filters", 0, "arguments", "source", {"state": [0, 0]}),
        _set("filters", 0, "arguments", "source", None),
        _set("filters", 0, "arguments", "weights", {"image": 0}),
        _set("filters", 0, "arguments", "shell", "rm"),
        _set("filters", 0, "properties", "_sources", 1),
        _set("filters", 0, "properties", "training_style", {"enum": "MPSNNTrainingStyle", "value": 9}),
        _set("filters", 0, "result", "handle", 7),
        _set("filters", 0, "result", "image_allocator", "x"),
        _set("filters", 0, "result", "format", {"enum": "MPSImageFeatureChannelFormat", "value": 77}),
        _set("filters", 0, "states", []),
        _set("filters", 0, "states", 0, {"producer": None}),
        _set("filters", 0, "kernel", "_weights", 1),
        _set("filters", 0, "kernel", "clip_rect", 1),
        _set("filters", 0, "kernel", None),
        _set("filters", 2, "arguments", "sources", {"images": []}),
        _set("filters", 2, "arguments", "sources", {"images": [99]}),
        _set("filters", -1, "arguments", "convolution_gradient_state", {"state": [0]}),
        _set("filters", -1, "arguments", "convolution_gradient_state", {"state": [99, 0]}),
        _set("filters", -1, "arguments", "convolution_gradient_state", {"state": [2, 0]}),
        _set("inputs", [{}] * 0),
        _set("inputs", 0, {"producer": 1}),
        _set("input_states", []),
        _set("input_states", [{"source_state": [0, 0], "properties": {}}]),
        _set("results", []),
        _set("results", [{"image": 0}]),
        _set("results", [{"image": -1}]),
        _set("results", [{"image": 3}, {"image": 3}]),
        _set("results", [{"unmade": {}}]),
        _set("result_image_is_needed", "yes"),
        _set("properties", "format", 4),
        _set("properties", "allow_fusion", 1),
        _set("properties", "kernels", {}),
        lambda graph: graph["input_states"].append(graph["input_states"][0]),
        lambda graph: graph.pop("results"),
        lambda graph: graph["filters"].reverse(),
    ],
    ids=range(47),
)
def test_forged_graphs_are_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    bench = Bench.on(torch.device("cpu"))
    document, arrays = _document(bench)
    again_ = json.loads(json.dumps(document))
    assert MPSKeyedUnarchiver(pack(again_, arrays), bench.device).decode_root_object().kernels
    change(_graph(again_))
    with pytest.raises(MPSFileError, match=r"^MPSKeyedUnarchiver: object \d+ \(MPSNNGraph\) cannot be made again"):
        MPSKeyedUnarchiver(pack(again_, arrays), bench.device)


def test_a_gradient_of_a_concatenation_belongs_to_one_of_its_sources(bench: Bench) -> None:
    image = MPSNNImageNode()
    parts = [scaled(image, 1.0).result_image, scaled(image, 2.0).result_image]
    both = MPSNNConcatenationNode([parts[0], parts[1], parts[0]])
    gradients: Any = both.gradient_filters(MPSNNImageNode())
    assert [node.index for node in gradients] == [0, 1, 2]
    gradients[0].index = 2
    for value in (1, 3, -1, True, "0"):
        with pytest.raises(ValueError, match=r"index must be a place of source_image among the sources .* of \[0, 2\]"):
            gradients[0].index = value


def test_archives_have_no_nodes_alone(bench: Bench) -> None:
    for node in (MPSNNImageNode(), scaled(MPSNNImageNode(), 1.0), MPSCNNNeuronReLUNode(MPSNNImageNode())):
        with pytest.raises(MPSTypeError, match=r"cannot be archived"):
            MPSKeyedArchiver.archived_data(node)
    assert copy.copy(MPSNNGraph(bench.device, scaled(MPSNNImageNode(), 1.0).result_image)).kernels
