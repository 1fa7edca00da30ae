"""An ML program on its way into a package: operations, constants, and the types of all values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmps.formats.coreml.blobs import BEGINNING, KINDS, BlobWriter
from openmps.formats.coreml.protos import Protos
from openmps.formats.onnx.problems import NodeError

WEIGHTS = "weights/weight.bin"
"""The file of weights, from the folder of the model's file on."""
OPSET, VERSION = "CoreML5", 6
"""Operations and files of macOS 12 and iOS 15."""
_LEAST = 10
"""Numbers that are written into the file of weights; fewer stand in the program."""
_FIELDS = {"FLOAT32": "floats", "INT32": "ints", "BOOL": "bools", "STRING": "strings"}
LARGEST_HALF = 65504.0
Shape = tuple[int, ...]


class Value(NamedTuple):
    """A value of the program, by its name."""

    name: str
    shape: Shape


class Program:
    """One function, whose real numbers are float32, or float16 between its inputs and outputs."""

    def __init__(self, protos: Protos, *, half: bool) -> None:
        self._protos, self.half = protos, half
        self.blobs = BlobWriter()
        self.message = protos.program.Program(version=1)
        self._function = self.message.functions["main"]
        self._function.opset = OPSET
        self._block = self._function.block_specializations[OPSET]
        self._taken: set[str] = set()

    @property
    def kind(self) -> str:
        """The type of real numbers."""
        return "FLOAT16" if self.half else "FLOAT32"

    # --- names --------------------------------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet, of the characters that names may have."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", wanted) or "_"
        plain = plain if not plain[0].isdigit() else f"_{plain}"
        found, count = plain, 2
        while found in self._taken:
            found, count = f"{plain}_{count}", count + 1
        self._taken.add(found)
        return found

    # --- types and constants ------------------------------------------------------------------------------------------

    def _describe(self, tensor: Any, kind: str, shape: Sequence[int]) -> None:
        tensor.dataType, tensor.rank = getattr(self._protos.program, kind), len(shape)
        for length in shape:
            tensor.dimensions.add().constant.size = length

    def fill(self, value: Any, constant: Any, kind: str | None = None) -> None:
        """Put numbers or a word into a value; many real numbers go into the file of weights."""
        array = np.asarray(constant)
        kind = kind or {"f": self.kind, "i": "INT32", "b": "BOOL", "U": "STRING"}[array.dtype.kind]
        self._describe(value.type.tensorType, kind, array.shape)
        if kind.startswith("FLOAT") and array.size >= _LEAST:
            value.blobFileValue.fileName = BEGINNING + WEIGHTS
            value.blobFileValue.offset = self.blobs.add(array, kind)
        elif kind == "FLOAT16":
            value.immediateValue.tensor.bytes.values = array.astype(KINDS[kind][0]).tobytes()
        else:
            field = getattr(value.immediateValue.tensor, _FIELDS[kind])
            field.values.extend(array.reshape(-1).tolist())

    def constant(self, array: Any, name: str, kind: str | None = None) -> Value:
        """A constant as a value of its own."""
        given = np.asarray(array)
        if self.half and given.dtype.kind == "f" and kind is None and np.abs(given).max(initial=0) > LARGEST_HALF:
            raise NodeError(f"a number of its {name} is beyond float16", "Write the package in float32")
        made = self._block.operations.add(type="const")
        output = made.outputs.add(name=self.fresh(name))
        self.fill(made.attributes["val"], given, kind)
        self.fill(made.attributes["name"], output.name)
        output.type.CopyFrom(made.attributes["val"].type)
        return Value(output.name, given.shape)

    # --- operations ---------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Shape) -> Value:
        """An input of float32."""
        found = self._function.inputs.add(name=self.fresh(name))
        self._describe(found.type.tensorType, "FLOAT32", shape)
        return Value(found.name, shape)

    def add(
        self, operation: str, name: str, shape: Shape, arguments: Mapping[str, Any], kind: str | None = None
    ) -> Value:
        """An operation; its arguments are values, lists of values, and constants, which become values.

        ``kind`` is the type of its result and of real constants, unless that is the program's.
        """
        title = self.fresh(name)
        bound = {
            key: [
                each if isinstance(each, Value) else self.constant(each, f"{title}_{key}", _kind_of(each, kind))
                for each in _several(value)
            ]
            for key, value in arguments.items()
        }
        made = self._block.operations.add(type=operation)
        for key, values in bound.items():
            for value in values:
                made.inputs[key].arguments.add(name=value.name)
        output = made.outputs.add(name=title)
        self._describe(output.type.tensorType, kind or self.kind, shape)
        self.fill(made.attributes["name"], title)
        return Value(title, shape)

    def cast(self, value: Value, name: str, kind: str) -> Value:
        """A value as numbers of another type."""
        word = {"FLOAT16": "fp16", "FLOAT32": "fp32"}[kind]
        return self.add("cast", name, value.shape, {"x": value, "dtype": word}, kind)

    def classify(self, probabilities: Value, labels: Sequence[str], label: str) -> tuple[str, str]:
        """The label of the largest probability, and probabilities by label: what they are called."""
        made = self._block.operations.add(type="classify")
        made.inputs["probabilities"].arguments.add(name=probabilities.name)
        classes = made.inputs["classes"].arguments.add().value
        self._describe(classes.type.listType.type.tensorType, "STRING", ())
        classes.type.listType.length.constant.size = len(labels)
        for each in labels:
            self.fill(classes.immediateValue.list.values.add(), each)
        first, second = self.fresh(label), self.fresh(f"{label}_probs")
        self._describe(made.outputs.add(name=first).type.tensorType, "STRING", ())
        found = made.outputs.add(name=second).type.dictionaryType
        self._describe(found.keyType.tensorType, "STRING", ())
        self._describe(found.valueType.tensorType, "FLOAT64", ())
        self.fill(made.attributes["name"], first)
        return first, second

    def finish(self, outputs: Sequence[str]) -> None:
        """Say what the function gives."""
        self._block.outputs.extend(outputs)


def _kind_of(constant: Any, kind: str | None) -> str | None:
    """The type of a real constant; None of any other."""
    return kind if np.asarray(constant).dtype.kind == "f" else None


def _several(value: Any) -> Sequence[Any]:
    """Values of an argument: a list of values is several, and any other list is one constant."""
    is_values = isinstance(value, list) and all(isinstance(each, Value) for each in value)
    return value if is_values else [value]
