"""Large files are written in parts: byte for byte as others write them, and without copies of the weights."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import openmps as mps
from networks import Weights
from openmps.formats import coreml, mlx, onnx
from openmps.formats.onnx.writing import ModelParts
from openmps.formats.safetensors_parts import SafetensorsParts

KINDS = "bool uint8 int8 int16 uint16 float16 int32 uint32 float32 float64 int64 uint64".split()
SIZE = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 3, 64)
CPU = mps.mtl_device("cpu")


@pytest.mark.parametrize("metadata", [None, {"k": "v\u2028\x1f"}])
def test_safetensors_are_those_of_its_own_writer(metadata: dict[str, str] | None, rng: np.random.Generator) -> None:
    arrays = {
        f'{place}\u00e9"\\\n\x7f': rng.normal(size=(3, place)).astype(kind) for place, kind in enumerate(KINDS)
    } | {"number": np.array(3, np.float32), "none": np.zeros((0, 4), np.float32)}
    parts = SafetensorsParts({**arrays, "turned": np.arange(12.0).reshape(3, 4).T}, metadata)
    wanted = save({**arrays, "turned": np.ascontiguousarray(np.arange(12.0).reshape(3, 4).T)}, metadata)
    assert b"".join(parts) == wanted
    assert parts.size == len(wanted)


def test_parts_of_an_onnx_model_are_the_model(rng: np.random.Generator) -> None:
    package = pytest.importorskip("onnx")
    graph = deep(rng, 64, 1)
    writer = onnx.saving.operators(graph, SIZE, "tests")[0]
    turned = np.arange(12.0).reshape(3, 4).T
    writer.constants |= {"none": np.zeros((0, 2)), "long": np.zeros(1 << 21, bool), "turned": turned}
    parts = writer.parts(package)
    data = b"".join(parts)
    assert isinstance(parts, ModelParts) and parts.size == len(data)
    assert package.ModelProto.FromString(data) == writer.model(package)


def deep(rng: np.random.Generator, channels: int, layers: int) -> mps.MPSNNGraph:
    image = mps.MPSNNImageNode(mps.Handle("x"))
    for layer in range(layers):
        source = Weights.of(rng, (channels, 3, 3, channels), f"conv{layer}")
        image = mps.MPSCNNConvolutionNode(image, source).result_image
    return mps.MPSNNGraph(CPU, image)


def _written(graph: mps.MPSNNGraph, folder: Path) -> dict[str, Callable[[], Any]]:
    size = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 3, 192)
    found: dict[str, Callable[[], Any]] = {
        "archive": lambda: mps.MPSKeyedArchiver.archive(graph, folder / "net.mps"),
        "MLX": lambda: mlx.export(graph, folder / "mlx", size),
    }
    if find_spec("onnx") is not None:
        found["ONNX"] = lambda: onnx.save(graph, folder / "net.onnx", size)
    if find_spec("coremltools") is not None:
        found["Core ML"] = lambda: coreml.save(graph, folder / "net.mlpackage", size, half=True)
    return found


def test_writing_copies_a_layer_at_a_time(tmp_path: Path, rng: np.random.Generator) -> None:
    """NumPy's and Python's memory: what torch holds is the graph itself."""
    layers, channels = 8, 192
    graph, total = deep(rng, channels, layers), layers * 4 * 9 * channels**2
    for name, write in _written(deep(rng, channels, 1), tmp_path / "first").items():
        (tmp_path / "first").mkdir(exist_ok=True)
        write()  # what is imported
        (tmp_path / name).mkdir()
        tracemalloc.start()
        _written(graph, tmp_path / name)[name]()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < total / 2, (name, most / total)
