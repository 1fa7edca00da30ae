"""Exported Swift through a compiler: language mode 6, warnings are errors, and what it makes is what it came from."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
import swift_compiler
import swift_reader
from encoding import Bench
from fake_device import App, photo
from networks import NETWORKS, training_graph
from openmps.formats import swift
from openmps.training.network import Network, NetworkShape, optimizer_factory
from swift_samples import CPU, POLICIES, descriptors, graph_of, graphs, images, others, with_gradients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Files = Mapping[str, bytes]
ADAM = mps.MPSNNOptimizerAdam(CPU, 1e-3)
PIXELS = swift.SwiftPreprocessing("grey", (0.0,), (1 / 255,))


def _training(name: str, style: str) -> mps.MPSNNGraph:
    network = NETWORKS[name](np.random.default_rng(0))
    network.image.handle, network.loss.input_labels.handle = mps.Handle("image"), mps.Handle("labels")
    return training_graph(Bench(CPU), network, style=mps.MPSNNTrainingStyle[style], needed=True)


def _with_normalization(name: str) -> mps.MPSNNGraph:
    """A network of trained convolutions and batch normalizations, of the graph's own optimizer."""
    network = Network.create(NetworkShape(32, 32, 3, 10, name), seed=0, optimizer=optimizer_factory("rmsprop", 1e-3))
    return network.training_graph(CPU, mps.MPSImageFeatureChannelFormat.FLOAT16, loss_weight=1 / 8, dropout_seed=3)


def _pooling(policy: Any) -> mps.MPSNNGraph:
    node = mps.MPSCNNPoolingAverageNode(images(1)[0], 3, 2)
    node.padding_policy = policy
    return with_gradients(node)


def _graphs() -> dict[str, mps.MPSNNGraph]:
    """Everything that is exported elsewhere, and one of each network."""
    found = {case.id: graph_of(*case.values) for case in graphs()}
    found |= {name: with_gradients(node) for name, node in others().items()}
    found |= {each.neuron_type.name: with_gradients(mps.MPSCNNNeuronNode(images(1)[0], each)) for each in descriptors()}
    found |= {repr(policy): _pooling(policy) for policy in POLICIES}
    for name in NETWORKS:
        found |= {f"{name} {style}": _training(name, style) for style in ("UPDATE_DEVICE_GPU", "UPDATE_DEVICE_CPU")}
    found |= {name: _with_normalization(name) for name in ("sample", "tiny")}
    return found


def _made(chosen: Mapping[str, mps.MPSNNGraph]) -> dict[str, mps.MPSNNGraph]:
    """Graphs that Swift can say, by the names of their classes; test_swift.py says which cannot."""
    found = {}
    for graph in chosen.values():
        try:
            swift.source(graph, optimizer=ADAM)
        except mps.MPSExportError:
            continue
        found[f"Net{len(found)}"] = graph
    return found


def _exports(chosen: Mapping[str, mps.MPSNNGraph]) -> dict[str, Files]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: swift.source(graph, name, optimizer=ADAM) for name, graph in _made(chosen).items()}


def test_everything_compiles_together(swift_stubs: Path, tmp_path: Path) -> None:
    exports = _exports(_graphs())
    assert len(exports) > 300
    swift_compiler.check(swift_stubs, tmp_path / "app", exports, "6")


def test_sources_are_laid_out_as_the_formatter_of_swift_wants(tmp_path: Path) -> None:
    assert swift_compiler.lint(tmp_path, _exports(_graphs())) == ""


@pytest.mark.parametrize("version", ["5", "6"])
def test_heads_compile_as_they_are_written(swift_stubs: Path, tmp_path: Path, version: str) -> None:
    """How to use a model: of one source and of two, for training, with preprocessing and without."""
    several = mps.MPSNNAdditionNode(*images(2))
    exports = {
        "Plain": swift.source(with_gradients(others()["loss"]), "Plain"),
        "Several": swift.source(mps.MPSNNGraph(CPU, several.result_image), "Several", preprocessing=PIXELS),
        "Trainer": swift.source(_training("digits", "UPDATE_DEVICE_GPU"), "Trainer", optimizer=ADAM),
    }
    lists = "images: [MPSImage], images1: [MPSImage], images2: [MPSImage], images3: [MPSImage], labels: [MPSState]"
    for name, files in exports.items():
        head = files[f"{name}.swift"].decode().partition("\nimport")[0]
        body = "\n".join(line[2:] for line in head.split("\n") if line.startswith("//      "))
        one = "image: MPSImage, image1: MPSImage, image2: MPSImage, image3: MPSImage"
        taken = f"device: MTLDevice, commandBuffer: MTLCommandBuffer, {one}, {lists}"
        program = f"{swift_compiler.HEAD}func use{name}({taken}) throws {{\n{body}\n_ = results\n"
        program += "_ = result\n}\n" if "let result =" in body else "}\n"
        exports[name] = {**files, f"Use{name}.swift": program.encode()}
    swift_compiler.check(swift_stubs, tmp_path / "app", exports, version)


def _capturing() -> Files:
    """A model with what captures it."""
    graph, made = App().graph(), mps.debug.make_golden(App().graph(), [photo().astype(np.float32)])
    results = {each.image.label: (each.image.array, each.limits) for each in made.results}
    return swift.source(graph, "Net", golden=swift.SwiftGolden({"image": photo()}, results), preprocessing=PIXELS)


@pytest.mark.parametrize("version", ["5", "6"])
def test_what_captures_compiles(swift_stubs: Path, tmp_path: Path, version: str) -> None:
    swift_compiler.check(swift_stubs, tmp_path / "app", {"Net": _capturing()}, version)


def test_what_swift_captures_is_read(swift_stubs: Path, tmp_path: Path) -> None:
    """The stub's images, each one row higher than the one before, with its place in every byte."""
    files = {name: content for name, content in _capturing().items() if name != "NetTests.swift"}
    program = """
let device = HostDevice()
let model = try Net(device: device, folder: folder, preprocessing: Net.preprocessing, capturing: true)
let image = MPSImage(width: 12, height: 12)
let capture = try NetCapture(of: model, [image], on: device.makeCommandQueue()!)
try capture.write(to: folder.appendingPathComponent("capture"), about: "a device")
"""
    assert swift_compiler.run(swift_stubs, tmp_path / "app", {"Net": files}, program) == []
    found = mps.debug.load_capture(tmp_path / "app" / "capture")
    assert found.about == "a device"
    assert [each.label for each in found.images] == ["image", *(str(node.label) for node in App().graph().kernels)]
    for place, each in enumerate(found.images[1:]):
        assert each.array.shape == (1, place + 1, 2, 3)
        assert each.channel_format.name == ("FLOAT16" if place % 2 == 0 else "FLOAT32")
        assert set(each.array.tobytes()) == {place}


def _numbers(source: Any) -> dict[str, Any]:
    def adler(values: Any) -> int:
        return zlib.adler32(np.ascontiguousarray(values).tobytes())

    if not hasattr(source, "weights"):
        rows = [getattr(source, each)() for each in ("gamma", "beta", "mean", "variance") if hasattr(source, each)]
        return {"label": source.label(), "epsilon": source.epsilon(), "rows": [adler(row) for row in rows]}
    biases = source.bias_terms()
    return {
        "label": source.label(),
        "weights": adler(source.weights()),
        "biases": None if biases is None else adler(biases),
    }


def test_every_node_class_runs_and_makes_the_same_nodes(swift_stubs: Path, tmp_path: Path) -> None:
    chosen = _first_of_each_class()
    exports = _exports(chosen)
    program = "".join(f'report("{name}") {{ try {name}(device: $0, folder: folder).graph }}\n' for name in exports)
    found = swift_compiler.run(swift_stubs, tmp_path / "app", exports, program)
    assert [each["name"] for each in found] == list(exports)
    for report, graph in zip(found, _made(chosen).values(), strict=True):
        assert "error" not in report, report
        name = report["name"]
        sources = list(map(_numbers, swift_reader.read(CPU, name, exports[name]).sources.values()))
        made = sorted(report["nodes"], key=lambda each: (each["class"], each["label"] or ""))
        nodes = sorted(graph.kernels, key=lambda each: (type(each).__name__, each.label or ""))
        for facts, node in zip(made, nodes, strict=True):
            _same_node(facts, node, sources)


def _same_node(made: dict[str, Any], node: mps.MPSNNFilterNode, sources: list[dict[str, Any]]) -> None:
    assert (made["class"], made["label"]) == (type(node).__name__, node.label)
    for label, value in made["given"].items():
        own = getattr(node, swift_reader.snake(label), None)
        if isinstance(value, dict):
            assert value in sources, made["class"]
        elif isinstance(value, int | float) and isinstance(own, int | float):
            assert np.float32(value) == np.float32(own), f"{made['class']}.{label}"
    policy = node.padding_policy
    if "Gradient" not in made["class"] and not isinstance(policy, mps.ExplicitPadding):
        assert made["method"] == int(policy.padding_method()), made["class"]


def _first_of_each_class() -> dict[str, mps.MPSNNGraph]:
    """One sample of each node class, nodes without samples, and the networks that are trained on the CPU."""
    found = {case.values[0].__name__: graph_of(*case.values) for case in reversed(graphs())}
    found |= {name: with_gradients(node) for name, node in others().items()}
    found |= {f"{name} trained": _training(name, "UPDATE_DEVICE_CPU") for name in NETWORKS}
    found |= {name: _with_normalization(name) for name in ("sample", "tiny")}
    return found


POLICY = mps.ExplicitPadding
PLACED = [
    (POLICY(1, 2, 3, 4), (5, 4, 2, 1, 1)),
    (POLICY(0, -1, 2, 1, ceil_mode=True), (3, 3, 2, 3, 1)),
    (POLICY.pytorch(1, count_include_pad=False), (3, 3, 1, 1, 2)),
    (POLICY(2, 0, 1, 1, ceil_mode=True), (2, 5, 3, 2, 1)),
]
"""Policies, and width and height of a kernel, its strides and dilation."""


@pytest.mark.parametrize("is_transpose", [False, True], ids=["convolution", "transpose"])
def test_explicit_padding_places_the_same_windows(swift_stubs: Path, tmp_path: Path, is_transpose: bool) -> None:
    exports, program, wanted = {}, "let device = HostDevice()\n", []
    for place, (policy, (width, height, across, down, dilation)) in enumerate(PLACED):
        name = f"Net{place}"
        exports[name] = swift.source(_pooling(policy), name)
        kind = "MPSCNNConvolutionTranspose" if is_transpose else "MPSCNNPoolingAverage"
        program += (
            f"do {{\n  let kernel = {kind}()\n  (kernel.kernelWidth, kernel.kernelHeight) = ({width}, {height})\n"
        )
        program += f"  (kernel.strideInPixelsX, kernel.strideInPixelsY) = ({across}, {down})\n"
        program += f"  (kernel.dilationRateX, kernel.dilationRateY) = ({dilation}, {dilation})\n"
        program += f"  let model = try {name}(device: device, folder: folder)\n"
        program += "  show(placed(model.graph.nodes[0].paddingPolicy, kernel, 12, 11))\n}\n"
        spans = tuple((side - 1) * dilation + 1 for side in (width, height))
        wanted.append(_placed(policy, spans, (across, down), is_transpose))
    assert swift_compiler.run(swift_stubs, tmp_path / "app", exports, program) == wanted


def _placed(policy: Any, spans: Any, strides: Any, is_transpose: bool) -> dict[str, int]:
    """The formulas of PyTorch's windows."""
    found = {}
    sides = (("width", "x", 12, policy.left, policy.right), ("height", "y", 11, policy.top, policy.bottom))
    for (size, offset, length, low, high), span, stride in zip(sides, spans, strides, strict=True):
        if is_transpose:
            found[size] = (length - 1) * stride + span - low - high
            found[offset] = span // 2 - (span - 1 - low)
            continue
        starts = range(-low, length + high - span + 1, stride)
        count = len(starts)
        if policy.ceil_mode and starts[-1] + span < length + high and starts[-1] + stride < length:
            count += 1
        found[size], found[offset] = count, span // 2 - low
    return found


def test_what_is_wrong_is_an_error_that_says_so(swift_stubs: Path, tmp_path: Path) -> None:
    graph = _training("digits", "UPDATE_DEVICE_CPU")
    exports: dict[str, Files] = {
        "Missing": {"Missing.swift": swift.source(graph, "Missing")["Missing.swift"]},
        "Short": {name: content[: None if name.endswith(".swift") else -1]
                  for name, content in swift.source(graph, "Short").items()},
        "Pixels": swift.source(graph, "Pixels", preprocessing=PIXELS),
        "Memory": swift.source(graph, "Memory", optimizer=ADAM),
        "States": swift.source(graph, "States"),
        "Refused": swift.source(graph, "Refused"),
    }  # fmt: skip
    said = 'PixelsPreprocessing(order: "grey", mean: [1], scale: [1])'
    program = f"""
report("Missing") {{ try Missing(device: $0, folder: folder).graph }}
report("Short") {{ try Short(device: $0, folder: folder).graph }}
report("Pixels") {{ try Pixels(device: $0, folder: folder, preprocessing: {said}).graph }}
let small = HostDevice()
small.most = 8
report("Memory") {{ _ in try Memory(device: small, folder: folder).graph }}
MPSNNFilterNode.leavesStates = false
report("States") {{ try States(device: $0, folder: folder).graph }}
MPSNNFilterNode.leavesStates = true
MPSNNGraph.devicesRunGraphs = false
report("Refused") {{ try Refused(device: $0, folder: folder).graph }}
"""
    found = {
        each["name"]: each["error"] for each in swift_compiler.run(swift_stubs, tmp_path / "app", exports, program)
    }
    assert "Missing-conv1.dat cannot be read: " in found["Missing"]
    length = len(exports["Short"]["Short-conv1.dat"])
    assert f"Short-conv1.dat must hold {length + 1} bytes, got {length}" in found["Short"]
    assert "Pixels must be given images as grey, (pixels - [0.0]) * [0.0039" in found["Pixels"]
    assert "the app prepares them as grey, (pixels - [1.0]) * [1.0]" in found["Pixels"]
    assert "the device has no memory for" in found["Memory"]
    assert "leaves no MPS" in found["States"]
    assert found["Refused"] == "the device cannot run the graph"
