"""Core ML models for tests, message by message; and packages as networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openmps.formats import coreml
from openmps.formats.coreml.protos import require_protos
from openmps.formats.onnx import OnnxModel
from openmps.runtime.devices import mtl_device

Array = np.ndarray
CPU = mtl_device("cpu")
FIELDS = {"f": ("FLOAT32", "floats"), "i": ("INT32", "ints"), "b": ("BOOL", "bools"), "U": ("STRING", "strings")}


class Operation(NamedTuple):
    """One operation: its type, its output and the shape of that, and its arguments: names of values, or constants.

    A name of a value begins with a percent sign, as Core ML prints them; several stand in a tuple.
    """

    kind: str
    output: str
    shape: Sequence[int]
    arguments: Mapping[str, Any]


def op(kind: str, output: str, shape: Sequence[int], /, **arguments: Any) -> Operation:
    """An operation of ``%x`` unless said."""
    first = {} if "x" in arguments or "values" in arguments else {"x": "%x"}
    return Operation(kind, output, shape, {**first, **arguments})


def program(
    operations: Sequence[Operation],
    outputs: Sequence[str],
    shape: Sequence[int] = (1, 4, 6, 6),
    *,
    opset: str = "CoreML6",
) -> Any:
    """The message of an ML program with one input, ``x``."""
    protos = require_protos("tests")
    made = protos.model.Model(specificationVersion=7)
    feature = made.description.input.add(name="x").type.multiArrayType
    feature.shape.extend(shape)
    made.mlProgram.version = 1
    function = made.mlProgram.functions["main"]
    function.opset = opset
    _describe(function.inputs.add(name="x").type.tensorType, protos.program.FLOAT32, shape)
    block = function.block_specializations[opset]
    block.outputs.extend(outputs)
    for each in operations:
        operation = block.operations.add(type=each.kind)
        _describe(operation.outputs.add(name=each.output).type.tensorType, protos.program.FLOAT32, each.shape)
        for name, value in each.arguments.items():
            for one in value if isinstance(value, tuple) else (value,):
                binding = operation.inputs[name].arguments.add()
                if isinstance(one, str) and one.startswith("%"):
                    binding.name = one[1:]
                else:
                    fill(binding.value, one)
    for name in outputs:
        made.description.output.add(name=name)
    return made


def _describe(tensor: Any, kind: int, shape: Sequence[int]) -> None:
    tensor.dataType, tensor.rank = kind, len(shape)
    for length in shape:
        tensor.dimensions.add().constant.size = length


def fill(value: Any, constant: Any) -> None:
    """Put numbers or words into a value."""
    protos, array = require_protos("tests"), np.asarray(constant)
    kind, field = FIELDS[array.dtype.kind]
    _describe(value.type.tensorType, getattr(protos.program, kind), array.shape)
    numbers = array.astype(np.float32) if kind == "FLOAT32" else array
    getattr(value.immediateValue.tensor, field).values.extend(numbers.reshape(-1).tolist())


def neural(layers: Sequence[tuple[str, str, Mapping[str, Any]]], shape: Sequence[int] = (4, 6, 6)) -> Any:
    """The message of a neural network: each layer's kind, its name, which is its output's, and fields of parameters.

    A layer reads the one before it, or those that ``input`` names; arrays are weights.
    """
    made = require_protos("tests").model.Model(specificationVersion=4)
    made.description.input.add(name="x").type.multiArrayType.shape.extend(shape)
    before = "x"
    for kind, name, fields in layers:
        layer = made.neuralNetwork.layers.add(name=name)
        layer.input.extend(fields.get("input", [before]))
        layer.output.extend(fields.get("output", [name]))
        getattr(layer, kind).SetInParent()
        for path, value in fields.items():
            if path not in ("input", "output"):
                _set(getattr(layer, kind), path.split("__"), value)
        before = name
    made.description.output.add(name=before)
    return made


def _set(message: Any, path: Sequence[str], value: Any) -> None:
    *inner, last = path
    for name in inner:
        message = getattr(message, name)
    if callable(value):
        value(getattr(message, last))
    elif isinstance(value, np.ndarray):
        getattr(message, last).floatValue.extend(value.astype(np.float32).reshape(-1).tolist())
    elif isinstance(value, list):
        getattr(message, last).extend(value)
    elif value is None:
        getattr(message, last).SetInParent()
    else:
        setattr(message, last, value)


def pipeline(models: Sequence[Any], source: Any, outputs: Sequence[str], kind: str = "pipeline") -> Any:
    """Models one behind the other, the inputs of the first, and what the pipeline says that it gives."""
    made = require_protos("tests").model.Model(specificationVersion=7)
    made.description.input.extend(source.description.input)
    for name in outputs:
        made.description.output.add(name=name)
    (made.pipeline if kind == "pipeline" else getattr(made, kind).pipeline).models.extend(models)
    return made


def borders(*sides: tuple[int, int]) -> Callable[[Any], None]:
    """What puts starts and ends of edges into a message."""

    def put(amounts: Any) -> None:
        for start, end in sides:
            amounts.borderAmounts.add(startEdgeSize=start, endEdgeSize=end)

    return put


def saved(message: Any, folder: Path) -> Path:
    """A model in a file."""
    path = folder / "model.mlmodel"
    path.write_bytes(message.SerializeToString())
    return path


def packaged(message: Any, folder: Path, weights: bytes) -> Path:
    """A model in a package, with a file of weights."""
    package = folder / "model.mlpackage"
    data = package / "Data" / "com.apple.CoreML"
    (data / "weights").mkdir(parents=True)
    (data / "model.mlmodel").write_bytes(message.SerializeToString())
    (data / "weights" / "weight.bin").write_bytes(weights)
    entries = {"a": {"path": "com.apple.CoreML/model.mlmodel"}}
    (package / "Manifest.json").write_text(json.dumps({"itemInfoEntries": entries, "rootModelIdentifier": "a"}))
    return package


def ours(path: Path, **options: Any) -> OnnxModel:
    """The model of a file or a package, ready to run."""
    return coreml.network(path, **options).model(CPU)


def results(message: Any, x: Array, folder: Path) -> dict[str, Array]:
    """What openmps makes of a message for an input."""
    return ours(saved(message, folder)).run({"x": x})
