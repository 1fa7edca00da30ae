"""Weights of 8 bits: what they stand for, which form is chosen, and that everything which takes a graph takes them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
import swift_reader
from networks import Weights, convolution
from openmps.cli import main
from openmps.debug import QuantizedForm, quantize
from openmps.formats import coreml, onnx, swift
from openmps.formats.archive.sources import ArchivedConvolutionWeights
from openmps.formats.quantization import quantized

CPU = mps.mtl_device("cpu")
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
LINEAR, TABLE = QuantizedForm
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 6, 5, 8)).astype(np.float32)
NORMAL, HEAVY = RNG.normal(size=(32, 3, 3, 8)), RNG.standard_t(2, (32, 3, 3, 32))


def numbers_of(source: Any) -> np.ndarray:
    """What bytes stand for, by the framework's documentation."""
    if source.table_array is not None:
        return source.table_array[source.weight_array]
    low, high = np.float64(source.range_array).T[:, :, None, None, None]
    return (source.weight_array / 255.0 * (high - low) + low).astype(np.float32)


def held(weights: Any) -> ArchivedConvolutionWeights:
    array = np.asarray(weights, np.float32)
    outputs, rows, columns, inputs = array.shape
    descriptor = mps.MPSCNNConvolutionDescriptor(columns, rows, inputs, outputs)
    return ArchivedConvolutionWeights(descriptor, array, None)


def network(*weights: np.ndarray) -> mps.MPSNNGraph:
    x = mps.MPSNNImageNode(mps.Handle("image"))
    for place, each in enumerate(weights):
        node = convolution(x, Weights(np.float32(each), np.arange(len(each), dtype=np.float32), f"conv{place}"))
        node.label = f"conv{place}"
        x = mps.MPSCNNNeuronReLUNode(node.result_image).result_image
    graph = mps.MPSNNGraph(CPU, x)
    graph.format = FLOAT32
    return graph


def result(graph: mps.MPSNNGraph) -> np.ndarray:
    command_buffer = graph.device.new_command_queue().command_buffer()
    images = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, IMAGES)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return images.numpy()


def again(graph: mps.MPSNNGraph, form: QuantizedForm | None = None) -> mps.MPSNNGraph:
    data = quantize(graph, [IMAGES], form).archived(graph)
    return mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, data, CPU)


def test_ranges_are_those_of_each_channel() -> None:
    weights = np.concatenate((NORMAL, 100 * NORMAL, np.full((1, 3, 3, 8), 0.3)))
    found = numbers_of(quantized(held(weights), LINEAR))
    rows, given = found.reshape(len(found), -1), np.float32(weights).reshape(len(found), -1)
    half_a_step = (given.max(1) - given.min(1)) / 510
    assert (np.abs(rows - given) <= half_a_step[:, None] * (1 + 1e-5) + 1e-7).all()
    for least in (np.min, np.max):
        assert np.allclose(least(rows, axis=1), least(given, axis=1), rtol=1e-6, atol=0)


def test_tables_hold_few_numbers_as_they_are_and_many_with_little_error() -> None:
    few = np.float32(RNG.choice(RNG.normal(size=200), (4, 3, 3, 8)))
    assert np.array_equal(numbers_of(quantized(held(few), TABLE)), few)
    errors = {}
    for form in QuantizedForm:
        errors[form] = np.sqrt(np.mean((numbers_of(quantized(held(HEAVY), form)) - np.float32(HEAVY)) ** 2))
    assert errors[TABLE] < errors[LINEAR] / 2, "of numbers with long tails"
    # Of normal numbers no table of 256 errs less than 0.00644 (Lloyd and Max): this one errs little more.
    normal = RNG.normal(size=(64, 3, 3, 64))
    error = np.sqrt(np.mean((numbers_of(quantized(held(normal), TABLE)) - np.float32(normal)) ** 2))
    assert 0.006 < error < 0.0085


def test_each_layer_gets_what_errs_less_in_its_results() -> None:
    graph = network(NORMAL, HEAVY)
    found = quantize(graph, [IMAGES])
    assert [each.label for each in found.layers] == ["conv0", "conv1"]
    assert set(found.layers[0].errors) == {LINEAR, TABLE}
    assert found.layers[1].form is TABLE
    trace = graph.trace([IMAGES])
    for layer, weights, source in zip(found.layers, (NORMAL, HEAVY), found.sources.values(), strict=True):
        rounded = numbers_of(source).astype(np.float16).astype(np.float64)
        before = {"conv0": "image", "conv1": next(each for each in trace if "ReLU" in each)}[layer.label]
        x = np.pad(trace[before].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
        exact, other = (np.einsum("nyxcij,oijc->nyxo", windows, each) for each in (np.float32(weights), rounded))
        biases = np.arange(len(weights))
        error = np.linalg.norm(other - exact) / np.linalg.norm(exact + biases)
        assert layer.error == pytest.approx(error, rel=1e-3)
        extra = 8 * len(weights) if layer.form is LINEAR else 1024
        assert layer.bytes == (4 * weights.size, weights.size + extra)
    assert found.facts()["bytes"] == found.bytes[1] == sum(each.bytes[1] for each in found.layers)


def _folded() -> mps.MPSCNNConvolutionDescriptor:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 8, 32)
    rows = {name: RNG.uniform(0.5, 2, 32).astype(np.float32) for name in ("mean", "variance", "gamma", "beta")}
    descriptor.set_batch_normalization_parameters_for_inference(**rows, epsilon=0.1)
    return descriptor


def _grouped() -> mps.MPSCNNConvolutionDescriptor:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 8, 32)
    descriptor.groups = 2
    return descriptor


DESCRIPTORS = {
    "folded batch normalization": _folded(),
    "groups": _grouped(),
    "depthwise": mps.MPSCNNDepthWiseConvolutionDescriptor(7, 7, 8, 32),
    "fused neuron": mps.MPSCNNConvolutionDescriptor(3, 3, 8, 32, neuron_filter=mps.MPSCNNNeuronTanH(CPU, 1.0, 1.0)),
}


@pytest.mark.parametrize("kind", DESCRIPTORS)
@pytest.mark.parametrize("form", QuantizedForm)
def test_errors_are_those_of_the_graph_in_8_bits(kind: str, form: QuantizedForm) -> None:
    descriptor = DESCRIPTORS[kind]
    source = mps.ArrayConvolutionDataSource(descriptor, RNG.normal(size=descriptor.weight_shape()), label="conv")
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("image")), source)
    twice = mps.MPSNNAdditionNode(node.result_image, node.result_image)  # an image is given up once
    graph = mps.MPSNNGraph(CPU, twice.result_image)
    graph.format = FLOAT32
    data = (found := quantize(graph, [IMAGES], form)).archived(graph)
    before, after = (
        result(each).astype(np.float64)
        for each in (graph, mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, data, CPU))
    )
    error = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 1e-4 < error < 0.02
    assert found.layers[0].error == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("form", QuantizedForm)
def test_an_archive_swift_onnx_and_core_ml_compute_with_them(form: QuantizedForm, tmp_path: Path) -> None:
    graph = network(NORMAL, HEAVY)
    found = again(graph, form)
    sources = [kernel.data_source for kernel in found.kernels.values() if hasattr(kernel, "data_source")]
    arrays = [numbers_of(each) for each in sources]
    assert {each.weight_array.dtype for each in sources} == {np.dtype(np.uint8)}
    rounded = result(network(*(each.astype(np.float16).astype(np.float32) for each in arrays)))
    assert np.array_equal(result(found), rounded)
    files = swift.source(found, "Net")
    text = files["Net.swift"].decode()
    assert swift_reader.faults(text) == []
    assert np.array_equal(result(swift_reader.read(CPU, "Net", files).graph), rounded)
    assert {"uInt8", "10.14"} <= {*text.replace(",", " ").replace(".u", " u").split()}
    onnx.save(found, tmp_path / "net.onnx", mps.MPSImageDescriptor(FLOAT32, 5, 6, 8))
    package = pytest.importorskip("onnx")
    model = package.load(tmp_path / "net.onnx")
    constants = {each.name: package.numpy_helper.to_array(each) for each in model.graph.initializer}
    for place, array in enumerate(arrays):
        assert np.array_equal(constants[f"conv{place}.weights"], array.transpose(0, 3, 1, 2))
    if find_spec("coremltools") is not None:
        coreml.save(found, tmp_path / "net.mlpackage", mps.MPSImageDescriptor(FLOAT32, 5, 6, 8), batch=len(IMAGES))
        model = coreml.network(tmp_path / "net.mlpackage").model(CPU)
        (there,) = model.run({"image": IMAGES.transpose(0, 3, 1, 2)}).values()
        wanted = result(network(*arrays)).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(there, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", QuantizedForm)
def test_every_device_computes_with_them(form: QuantizedForm, device: torch.device) -> None:
    graph = network(NORMAL, HEAVY)
    data = quantize(graph, [IMAGES], form).archived(graph)
    found = mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, data, mps.mtl_device(device))
    sources = [kernel.data_source for kernel in found.kernels.values() if hasattr(kernel, "data_source")]
    wanted = result(network(*(numbers_of(each).astype(np.float16).astype(np.float32) for each in sources)))
    np.testing.assert_allclose(result(found), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_what_keeps_its_weights_is_named() -> None:
    x = convolution(mps.MPSNNImageNode(mps.Handle("image")), Weights(np.float32(NORMAL), None, "wide")).result_image
    source = Weights(np.ones((2, 1, 1, 32), np.float32), None, "narrow")
    narrow = mps.MPSCNNConvolutionNode(x, source)
    transposed = mps.MPSCNNConvolutionTransposeNode(
        x, narrow.convolution_gradient_state, Weights(np.ones((4, 3, 3, 32), np.float32))
    )
    narrow.label, transposed.label = "narrow", "up"
    both = [narrow.result_image, transposed.result_image]
    graph = mps.MPSNNGraph(CPU, result_images=both, results_are_needed=[True, True])
    found = quantize(graph, [IMAGES], TABLE)
    assert set(found.left_out) == {"narrow", "up"}
    assert "takes float32 weights alone for transposed" in found.left_out["up"]
    assert "narrow keeps its weights: ranges or a table" in str(found)
    done = again(network(NORMAL))
    with pytest.raises(mps.MPSArgumentError, match=r"conv0: its weights are of 8 bits already"):
        quantize(done, [IMAGES])
    with pytest.raises(mps.MPSNonFiniteError, match=r"weights of 'conv0' must be finite"):
        quantize(network(NORMAL * np.inf), [IMAGES])
    with pytest.raises(mps.MPSNonFiniteError, match=r"results of 'conv0' must be finite, for their errors"):
        quantize(network(NORMAL), [np.where(IMAGES.max() == IMAGES, np.float32(np.nan), IMAGES)])
    with pytest.raises(mps.MPSArgumentError, match="source_images must"):
        quantize(graph, [])
    with pytest.raises(mps.MPSTypeError, match=r"one ndarray by itself. Give a list: \[source_images\]"):
        quantize(graph, IMAGES)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("unflushed", "in_an_empty_folder")
def test_the_command_writes_an_archive_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    mps.MPSKeyedArchiver.archive(network(NORMAL, HEAVY), Path("net.mps"))
    np.savez("images.npz", image=IMAGES)
    given = ["quantize", "net.mps", "small.mps", "--samples", "images.npz", "--report", "report.json"]
    assert main(given) == 0
    facts = json.loads(Path("report.json").read_text())
    assert [each["layer"] for each in facts["layers"]] == ["conv0", "conv1"]
    assert "conv1  table" in capsys.readouterr().out
    sizes = [Path(name).stat().st_size for name in ("net.mps", "small.mps")]
    assert sizes[0] - sizes[1] > 0.7 * facts["float32_bytes"]
    assert main(given) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert main(["quantize", "net.mps", "other.mps", "--samples", "images.npz", "--form", "cubic"]) == 2
    assert main(["quantize", "net.mps", "other.mps", "--samples", "images.npz", "--data", "."]) == 2
    assert not Path("other.mps").exists()
    np.save("image.npy", IMAGES)
    assert main(["run", "small.mps", "--input", "image=image.npy"]) == 0
    assert np.array_equal(np.load("result.npy"), result(again(network(NORMAL, HEAVY))))
