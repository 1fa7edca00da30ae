"""Graphs as Swift: the source is followed statement by statement, and makes the same graph again, file by file."""

from __future__ import annotations

import os
import re
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import openmps as mps
import swift_reader
from encoding import Bench
from fake_device import App, photo
from graph.node_initializers import INITIALIZERS
from in_one_test import in_one_test
from networks import NETWORKS, Weights, convolution, training_graph
from openmps.formats import swift
from openmps.formats.archive.sources import StandIns
from openmps.formats.archive.values import Writer
from openmps.formats.swift.nodes import FORMS
from openmps.graph.nodes.catalog import SINCE, rows
from openmps.graph.nodes.neuron import MPSCNNNeuronNode
from openmps.graph.nodes.releases import IOS, newest
from openmps.training.network import Network, NetworkShape, optimizer_factory
from swift_samples import CPU, POLICIES, descriptors, graph_of, graphs, images, others, with_gradients

FLOAT16, FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT16, mps.MPSImageFeatureChannelFormat.FLOAT32
LABELS = {name: {tuple(form.split()) for form in forms} for forms, names in INITIALIZERS for name in names}
"""The initializers of each node class that the header has, by the names of their arguments."""


def plain(value: Any) -> Any:
    """A part of an archive's document; numbers as the float32 that they are computed with."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def document(graph: mps.MPSNNGraph) -> tuple[Any, Any, Any]:
    """All that an archive keeps of a graph: classes, arguments, labels, padding, formats, exports, kernels, weights."""
    writer = Writer(StandIns())
    root = plain(writer.value(graph))
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in writer.arrays.items()}
    return root, plain(writer.objects), arrays


def check(graph: mps.MPSNNGraph, **options: Any) -> swift_reader.Model:
    """Export a graph, follow the source, and compare what it makes."""
    files = swift.source(graph, "Net", **options)
    assert files == swift.source(graph, "Net", **options), "the same graph gives the same bytes"
    text = files["Net.swift"].decode()
    assert swift_reader.faults(text) == []
    model = swift_reader.read(graph.device, "Net", files)
    if not options.get("half"):
        assert document(model.graph) == document(graph)
    assert set(model.read) == set(files) - {"Net.swift"}
    for name, labels in model.called:
        if name in LABELS:
            assert tuple(map(swift_reader.snake, labels)) in LABELS[name], f"{name}({labels})"
    made = [name for name, _ in model.called if name in LABELS]
    concatenations = sum(isinstance(node, mps.MPSNNConcatenationGradientNode) for node in graph.kernels)
    assert len(made) == len(graph.kernels) - concatenations
    macos = text.partition("@available(macOS ")[2].partition(",")[0]
    assert newest([macos, *(SINCE[type(node).__name__] for node in graph.kernels)]) == macos
    assert f"@available(macOS {macos}, iOS {IOS[macos]}, tvOS {IOS[macos]}," in text
    return model


# --- networks ---------------------------------------------------------------------------------------------------------


def inference(network: Any) -> mps.MPSNNGraph:
    return mps.MPSNNGraph(CPU, network.loss.sources[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_followed_back_to_its_graph(name: str) -> None:
    network = NETWORKS[name](np.random.default_rng(0))
    network.image.handle = mps.Handle("image")
    model = check(inference(network))
    for label, source in network.sources.items():
        found = next(each for each in model.sources.values() if each.label() == label)
        assert found.weights().tobytes() == source.array.tobytes()
        assert found.bias_terms().tobytes() == source.bias.tobytes()


@pytest.mark.parametrize("style", ["UPDATE_DEVICE_GPU", "UPDATE_DEVICE_CPU", "UPDATE_DEVICE_NONE"])
@pytest.mark.parametrize("name", NETWORKS)
def test_its_training_graph_too(name: str, style: str) -> None:
    network = NETWORKS[name](np.random.default_rng(0))
    network.image.handle, network.loss.input_labels.handle = mps.Handle("image"), mps.Handle("labels")
    graph = training_graph(Bench(CPU), network, style=mps.MPSNNTrainingStyle[style], needed=True)
    optimizer = mps.MPSNNOptimizerAdam(CPU, 1e-3)
    model = check(graph, optimizer=optimizer)
    trained = [source for source in model.sources.values() if isinstance(source, swift_reader.TrainedWeights)]
    assert len(trained) == (0 if style == "UPDATE_DEVICE_NONE" else len(network.sources))
    text = swift.source(graph, "Net", optimizer=optimizer)["Net.swift"].decode()
    assert ("@objc(updateWithCommandBuffer:gradientState:sourceState:)" in text) == (style == "UPDATE_DEVICE_GPU")
    assert ("@objc(updateWithGradientState:sourceState:)" in text) == (style == "UPDATE_DEVICE_CPU")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("tiny", FLOAT16),
        ("tiny", FLOAT32),
        *zip(("sample", "mobilenet", "resnet18", "inception"), (FLOAT16, FLOAT32) * 2, strict=True),
    ],
    ids=str,
)
def test_the_networks_that_are_trained_by_name(name: str, form: Any) -> None:
    network = Network.create(NetworkShape(32, 32, 3, 10, name), seed=0, optimizer=optimizer_factory("adam", 1e-3))
    model = check(_with_label(network.inference_graph(CPU, form)))
    asked = mps.MPSDataType.FLOAT32 if form is FLOAT32 else mps.MPSDataType.FLOAT16
    assert set(model.precisions.values()) == {asked}
    graph = _with_label(network.training_graph(CPU, form, loss_weight=1 / 8, dropout_seed=3))
    graph.stop_on_non_finite = False  # ours alone
    model = check(graph)
    assert all(isinstance(each, swift_reader.TrainedWeights | swift_reader.TrainedNormalization)
               for each in model.sources.values())  # fmt: skip


def _with_label(graph: mps.MPSNNGraph) -> mps.MPSNNGraph:
    for image in graph.interface.inputs:
        image.handle = image.handle or mps.Handle("image")
    return graph


def test_it_computes_the_same() -> None:
    network = NETWORKS["digits"](np.random.default_rng(0))
    graph = inference(network)
    model = swift_reader.read(CPU, "Net", swift.source(graph, "Net"))
    bench, images = Bench(CPU), np.random.default_rng(1).random((2, 1, 12, 12))
    found = []
    for each in (graph, model.graph):
        command_buffer = bench.command_buffer()
        result = each.encode_batch(command_buffer, [bench.batch(images)])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(result.numpy())
    assert np.array_equal(*found)


# --- every node class -------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("kind", "entry", "sample"), graphs())
def test_every_sample_of_every_node_class(kind: Any, entry: Any, sample: Any) -> None:
    graph = graph_of(kind, entry, sample)
    if getattr(getattr(next(iter(graph.kernels)), "loss_descriptor", None), "labels_hold_raw_sizes", False):
        with pytest.raises(mps.MPSExportError, match="labels_hold_raw_sizes"):
            swift.source(graph)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(graph)


@in_one_test
@pytest.mark.parametrize("name", others())
def test_nodes_without_samples(name: str) -> None:
    node = others()[name]
    if name == "infinite":
        node.fill_value = float("-inf")
    check(with_gradients(node))


def test_every_node_class_is_exported() -> None:
    kinds = [row.node for row in rows()] + _subclasses(MPSCNNNeuronNode)
    missing = [kind.__name__ for kind in kinds if kind not in FORMS]
    assert missing == [], "add its row, with its release, to graph/nodes/catalog.py"
    assert [kind.__name__ for kind in kinds if kind.__name__ not in SINCE] == []
    assert {kind.__name__ for kind in FORMS} == set(SINCE)


def _subclasses(kind: type) -> list[type]:
    return [each for each in kind.__subclasses__() if each.__name__.startswith("MPS")] + [
        each for base in kind.__subclasses__() for each in _subclasses(base)
    ]


def test_every_exported_class_is_followed_somewhere() -> None:
    seen: set[type] = set()
    for case in graphs():
        seen.update(map(type, graph_of(*case.values).kernels))
    for node in others().values():
        seen.update(map(type, with_gradients(node).kernels))
    neurons = {type(mps.MPSCNNNeuronNode(x, d)) for x in images(1) for d in descriptors()}
    abstract = {MPSCNNNeuronNode}
    assert {kind.__name__ for kind in FORMS} - {kind.__name__ for kind in seen | neurons | abstract} == set()


@in_one_test
@pytest.mark.parametrize("descriptor", [*descriptors()], ids=lambda each: each.neuron_type.name)
def test_every_neuron_and_its_gradient(descriptor: mps.MPSNNNeuronDescriptor) -> None:
    (x,) = images(1)
    check(with_gradients(mps.MPSCNNNeuronNode(x, descriptor)))


@in_one_test
@pytest.mark.parametrize("descriptor", [*descriptors()], ids=lambda each: each.neuron_type.name)
def test_fused_neurons(descriptor: mps.MPSNNNeuronDescriptor) -> None:
    source = Weights.of(np.random.default_rng(0), (2, 3, 3, 1), "conv")
    source.made.fused_neuron_descriptor = descriptor
    if descriptor.neuron_type is mps.MPSCNNNeuronType.NONE:
        source.made.fused_neuron_descriptor = None
    check(mps.MPSNNGraph(CPU, convolution(images(1)[0], source).result_image))


@pytest.mark.filterwarnings("ignore:.*multiples of 4")
def test_a_descriptor_with_everything() -> None:
    rng = np.random.default_rng(0)
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 2, 8, 4)
    descriptor.stride_in_pixels_x, descriptor.dilation_rate_y, descriptor.groups = 2, 3, 2
    rows = [rng.normal(size=4).astype(np.float32) for _ in range(4)]
    descriptor.set_batch_normalization_parameters_for_inference(rows[0], rows[1] ** 2, rows[2], rows[3], 1e-3)
    source = mps.ArrayConvolutionDataSource(descriptor, rng.normal(size=(4, 2, 3, 4)), rows[0], "all of it")
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNConvolutionNode(images(1)[0], source).result_image)
    model = swift_reader.read(CPU, "Net", swift.source(graph, "Net"))
    (node,), (kernel,) = model.graph.kernels.keys(), model.graph.kernels.values()
    assert node.label == "all of it"
    found = kernel.parameters.descriptor
    assert (found.stride_in_pixels_x, found.dilation_rate_y, found.groups) == (2, 3, 2)
    assert np.array_equal(found.batch_normalization.scale, descriptor.batch_normalization.scale)
    assert np.array_equal(found.batch_normalization.shift, descriptor.batch_normalization.shift)


def test_folded_batch_normalization_has_biases() -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 2)
    descriptor.set_batch_normalization_parameters_for_inference([0.5, 1.0], [1.0, 4.0])
    source = mps.ArrayConvolutionDataSource(descriptor, np.ones((2, 1, 1, 1)), label="conv")
    files = swift.source(mps.MPSNNGraph(CPU, mps.MPSCNNConvolutionNode(images(1)[0], source).result_image))
    assert files["Model-conv.dat"] == np.array([1, 1, 0, 0], "<f4").tobytes()


# --- padding ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_padding_policies(policy: Any) -> None:
    node = mps.MPSCNNPoolingAverageNode(images(1)[0], 3, 2)
    node.padding_policy = policy
    check(with_gradients(node))


class Own:
    """A policy with a step of its own."""

    def padding_method(self) -> mps.MPSNNPaddingMethod:
        return mps.MPSNNPaddingMethod.CUSTOM | mps.MPSNNPaddingMethod.SIZE_SAME

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        return suggested


# --- what is set on images and graphs ---------------------------------------------------------------------------------


def test_handles_formats_exports_and_labels() -> None:
    (x,) = images(1)
    x.handle, x.format = mps.Handle('a "quoted" \\ name\n\u00e9'), FLOAT32
    first = mps.MPSCNNNeuronReLUNode(x, 0.1)
    first.label = "func"
    first.result_image.handle = mps.Handle("middle")
    first.result_image.export_from_graph = first.result_image.synchronize_resource = True
    first.result_image.image_allocator = mps.MPSImage.default_allocator()
    second = mps.MPSCNNNeuronReLUNode(first.result_image, 0.2)
    second.label = "func"
    second.result_image.stop_gradient = True
    assert second.result_state is not None
    second.result_state.handle, second.result_state.export_from_graph = mps.Handle("state"), True
    third = mps.MPSCNNNeuronReLUNode(first.result_image, 0.3)
    graph = mps.MPSNNGraph(CPU, [second.result_image, third.result_image])
    graph.format, graph.output_state_is_temporary, graph.label = FLOAT32, True, "graph"
    graph.destination_image_allocator = mps.MPSTemporaryImage.default_allocator()
    check(graph)


def test_a_changed_graph_is_exported_as_it_was_made() -> None:
    (x,) = images(1)
    node = mps.MPSCNNNeuronReLUNode(x)
    graph = mps.MPSNNGraph(CPU, node.result_image)
    before = swift.source(graph)
    node.result_image.export_from_graph, node.result_image.format = True, FLOAT32
    assert swift.source(graph) == before


def test_labels_that_are_one_file_elsewhere() -> None:
    (x,) = images(1)
    for label in ("a/b", "a:b", "A_B", "Net", "..", ""):
        source = Weights.of(np.random.default_rng(0), (1, 1, 1, 1), label)
        x = mps.MPSCNNConvolutionNode(x, source).result_image
    model = check(mps.MPSNNGraph(CPU, x))
    assert len({name.lower() for name in model.read}) == 6
    assert not any(set(name) & set('/\\:*?"<>|') for name in model.read)


def test_labels_that_are_too_long_for_files_or_the_same_elsewhere() -> None:
    labels = ["\u00e9", "e\u0301", "\u6f22" * 150, "\u6f22" * 150 + "b", "x" * 400]
    (x,) = images(1)
    for label in labels:
        source = Weights.of(np.random.default_rng(0), (1, 1, 1, 1), label)
        x = mps.MPSCNNConvolutionNode(x, source).result_image
    files = set(check(mps.MPSNNGraph(CPU, x)).read)
    assert len({unicodedata.normalize("NFC", file) for file in files}) == len(labels)
    assert max(len(file.encode()) for file in files) <= 210


def test_half_the_bytes() -> None:
    network = NETWORKS["digits"](np.random.default_rng(0))
    files, model = swift.source(inference(network), "Net", half=True), check(inference(network), half=True)
    for label, source in network.sources.items():
        found = next(each for each in model.sources.values() if each.label() == label)
        assert np.array_equal(found.weights(), source.array.astype(np.float16))
        assert found.bias_terms().tobytes() == source.bias.tobytes()
        start = -(-2 * source.array.size // 4) * 4
        assert len(files[f"Net-{label}.dat"]) == start + 4 * source.bias.size
    assert set(model.precisions.values()) == {mps.MPSDataType.FLOAT16}


# --- what cannot be said, and what goes wrong -------------------------------------------------------------------------


class Provider:
    def transform(self, source_image: Any, handle: Any) -> Any:
        return mps.MPSScaleTransform(1.0, 1.0, 0.0, 0.0)

    def alpha(self, source_image: Any, destination_image: Any) -> float:
        return 1.0

    def image(self, command_buffer: Any, image_descriptor: Any, kernel: Any) -> Any:
        return None


def test_an_error_lists_all_that_is_python() -> None:
    (x,) = images(1)
    scale = mps.MPSNNBilinearScaleNode(x, Provider(), mps.MTLSize(4, 4, 1))
    pool = mps.MPSCNNPoolingMaxNode(scale.result_image, 2)
    pool.label, pool.padding_policy = "pool", Own()
    gram = mps.MPSNNGramMatrixCalculationNode(pool.result_image)
    gram.property_call_back = Provider()
    added = mps.MPSNNAdditionNode(gram.result_image, gram.result_image)
    added.padding_policy = mps.ExplicitPadding(0, 0, 0, 0)
    added.result_image.image_allocator, added.result_image.export_from_graph = Provider(), True
    graph = mps.MPSNNGraph(CPU, added.result_image)
    graph.destination_image_allocator = Provider()
    with pytest.raises(mps.MPSExportError) as caught:
        swift.source(graph)
    words = ("transform_provider", "Own has a step", "property_call_back", "one source", "allocator", "allocator")
    assert len(caught.value.problems) == len(words)
    text = str(caught.value)
    assert all(word in text for word in words)
    assert text.count("\n") == len(words)
    assert "'pool'" in text


@in_one_test
@pytest.mark.parametrize(
    "name", ["", "net", "1Net", "My Net", "N\u00e9t", None, "Net-2", "Data", "MPSNet", "URL", "ObjCBool"]
)
def test_names_of_classes(name: Any) -> None:
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(images(1)[0]).result_image)
    with pytest.raises(mps.MPSArgumentError, match="name must be a name for a class of Swift"):
        swift.source(graph, name)


@pytest.mark.parametrize("arguments", [{"half": "yes"}, {"optimizer": "adam"}])
def test_other_arguments(arguments: dict[str, Any]) -> None:
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(images(1)[0]).result_image)
    with pytest.raises(mps.MPSTypeError):
        swift.source(graph, **arguments)
    with pytest.raises(mps.MPSTypeError, match="graph must be"):
        swift.source("graph")  # type: ignore[arg-type]


def test_a_folder_is_whole_or_not_there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = inference(NETWORKS["digits"](np.random.default_rng(0)))
    folder = swift.export(graph, tmp_path / "app", "Digits")
    assert sorted(os.listdir(folder)) == [
        *(f"Digits-{each}.dat" for each in ("conv1", "conv2", "fc1", "fc2")),
        "Digits.swift",
    ]
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == swift.source(graph, "Digits")
    with pytest.raises(mps.MPSFileError, match="must be a new folder"):
        swift.export(graph, tmp_path / "app", "Digits")
    with pytest.raises(mps.MPSFileError, match="could not be written"):
        swift.export(graph, tmp_path / "app" / "Digits-conv1.dat" / "app", "Digits")
    assert swift.export(graph, tmp_path / "new" / "app", "Digits").is_dir()

    def fail(*_: Any) -> None:
        raise mps.MPSFileError("write_atomic", "x", "could not be written")

    monkeypatch.setattr(swift, "write_atomic", fail)
    with pytest.raises(mps.MPSFileError):
        swift.export(graph, tmp_path / "other", "Digits")
    assert sorted(os.listdir(tmp_path)) == ["app", "new"]


def test_a_head_of_comments_alone() -> None:
    (x,) = images(1)
    x.handle = mps.Handle("a\n*/ }")
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(x).result_image)
    text = swift.source(graph, notes=["Trained on\nnothing."])["Model.swift"].decode()
    assert swift_reader.faults(text) == []
    head: Sequence[str] = text.split("\nimport")[0].strip().split("\n")
    assert all(line.startswith("//") for line in head)


# --- preprocessing ----------------------------------------------------------------------------------------------------


def test_the_app_must_say_what_it_does_to_images() -> None:
    node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("x")))
    graph = mps.MPSNNGraph(CPU, node.result_image)
    assert check(graph).guards == []
    assert "reprocessing" not in swift.source(graph, "Net")["Net.swift"].decode()
    given = swift.SwiftPreprocessing("BGR", (104.0, 117.5, 123.0), (1 / 255, 1.0, 2.0))
    assert check(graph, preprocessing=given).guards == [
        "guard preprocessing == Net.preprocessing else { throw NetError( description: "
        '"Net must be given images as \\(Net.preprocessing), " + "the app prepares them as \\(preprocessing)") }'
    ]
    text = swift.source(graph, "Net", preprocessing=given)["Net.swift"].decode()
    found = " ".join(text.replace("//", " ").split())
    value = 'order: "BGR", mean: [104.0, 117.5, 123.0], scale: [0.003921569, 1.0, 2.0] )'
    assert f"public static let preprocessing = NetPreprocessing( {value}" in found
    assert "public init(device: MTLDevice, folder: URL, preprocessing: NetPreprocessing) throws {" in found
    assert f"let preprocessing = NetPreprocessing( {value}" in found.partition("import")[0]
    for place in ("guard preprocessing", "public struct NetPreprocessing: Equatable"):
        assert text.count(place) == 1
    assert text.index("guard preprocessing") < text.index("let graph = MPSNNGraph(")
    with pytest.raises(mps.MPSTypeError, match="preprocessing must be"):
        swift.source(graph, "Net", preprocessing=("RGB", (0,), (1,)))  # type: ignore[arg-type]


# --- captures ---------------------------------------------------------------------------------------------------------


def golden_of(graph: mps.MPSNNGraph, given: np.ndarray) -> swift.SwiftGolden:
    made = mps.debug.make_golden(graph, [given.astype(np.float32)])
    results = {each.image.label: (each.image.array, each.limits) for each in made.results}
    return swift.SwiftGolden({made.sources[0].label: given}, results)


@pytest.mark.parametrize("preprocessing", [None, swift.SwiftPreprocessing("RGB", (0.0,) * 3, (1 / 255,) * 3)])
def test_a_graph_that_captures_is_the_same_until_it_is_asked(preprocessing: Any) -> None:
    graph, given = App().graph(), photo(2)
    options: dict[str, Any] = {"golden": golden_of(graph, given), "preprocessing": preprocessing}
    files = swift.source(graph, "Net", **options)
    assert document(swift_reader.read(CPU, "Net", files).graph) == document(graph)
    for name in ("Net.swift", "NetCapture.swift", "NetTests.swift"):
        text = files[name].decode()
        assert swift_reader.faults(text) == []
        assert not re.search(r"NAME|AVAILABLE|SOURCES|RESULTS|COUNT|ASKED|PREPARED", text)
    capturing = swift_reader.read(CPU, "Net", files, capturing=True).graph
    labels = [handle.label() for handle in capturing.intermediate_image_handles]
    trace = graph.trace([given])
    assert labels == [each.label for each in trace.of(mps.debug.TracedKind.IMAGE)]
    command_buffer, shown = mps.MPSCommandBuffer(CPU.new_command_queue()), []
    capturing.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, given)], None, shown)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    for label, batch in zip(labels, shown, strict=True):
        made = np.stack([image.numpy() for image in batch])
        np.testing.assert_allclose(made, trace[label], rtol=2**-8, atol=2**-11 * np.abs(made).max())  # fused or not


def test_the_golden_of_a_test_is_in_its_file() -> None:
    graph, given = App().graph(), photo(2)
    golden = golden_of(graph, given)
    files = swift.source(graph, "Net", golden=golden)
    text = files["NetTests.swift"].decode()
    assert 'Source(label: "image", width: 12, height: 12, channels: 3),' in text
    ((label, (array, limits)),) = golden.results.items()
    assert f'label: "{label}",\n      count: 5,\n' in text
    shown = re.search(r"limits: \[(\d.*)\]", text)
    assert shown is not None
    np.testing.assert_array_equal(np.float32(shown[1].split(", ")), np.float32(limits))
    assert files["Net-golden.dat"] == given.astype("<f2").tobytes() + array.astype("<f4").tobytes()
    assert files == swift.source(graph, "Net", golden=golden), "the same graph gives the same bytes"


def test_goldens_that_do_not_fit_are_refused() -> None:
    graph, given = App().graph(), photo(2)
    golden = golden_of(graph, given)
    with pytest.raises(mps.MPSArgumentError, match="golden must have sources and results"):
        swift.source(graph, golden=golden._replace(results={}))
    with pytest.raises(mps.MPSArgumentError, match="golden must have as many images of each"):
        swift.source(graph, golden=golden._replace(sources={"image": given[:1]}))
    network = NETWORKS["digits"](np.random.default_rng(0))
    trained = training_graph(Bench(CPU), network, needed=True)
    with pytest.raises(mps.MPSArgumentError, match="golden is for graphs that infer"):
        swift.source(trained, golden=golden)
