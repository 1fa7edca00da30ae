"""ML programs: the operations of a function, as a model in ONNX's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmps.errors import MPSFileError
from openmps.formats.coreml.blobs import Array
from openmps.formats.coreml.draft import FLOAT, HALF, INTEGER, Draft, unknown
from openmps.formats.coreml.features import Features, image_input
from openmps.formats.coreml.operations import OPERATIONS
from openmps.formats.coreml.packages import READER, damaged
from openmps.formats.coreml.values import UNPACK, Lengths, Values, shape_of
from openmps.formats.onnx.model import Model, Tensor
from openmps.formats.onnx.problems import NodeError

_TYPES = {"FLOAT16": HALF, "FLOAT32": FLOAT, "INT32": INTEGER}


class Operation:
    """One operation: its arguments by name, each a value that is computed or a constant, and its outputs."""

    def __init__(self, draft: Draft, arguments: Mapping[str, list[Any]], outputs: Sequence[str], shapes: Any) -> None:
        self.draft, self.outputs = draft, outputs
        self._arguments, self._shapes = arguments, shapes

    # --- arguments ----------------------------------------------------------------------------------------------------

    def given(self, argument: str) -> bool:
        """Whether an argument is there."""
        return bool(self._arguments.get(argument))

    def name(self, argument: str = "x") -> str:
        """The value that an argument is."""
        return self.names(argument)[0]

    def names(self, argument: str) -> list[str]:
        """The values that an argument is."""
        found = self._arguments.get(argument)
        if not found:
            raise NodeError(f"its argument {argument} is missing")
        return [each if isinstance(each, str) else self.draft.constant(each.value) for each in found]

    def optional(self, argument: str) -> str | None:
        """The value that an argument is; None where it is left out."""
        return self.name(argument) if self.given(argument) else None

    def shape(self, argument: str = "x") -> Lengths:
        """The lengths of a value."""
        constant = self.constant(argument) if self._is_constant(argument) else None
        return self._shapes[self.name(argument)] if constant is None else constant.shape

    def _is_constant(self, argument: str) -> bool:
        found = self._arguments.get(argument, [""])[0]
        return isinstance(found, Constant) or found in self.draft.constants

    def lengths(self, argument: str = "x", count: int = 2) -> list[int]:
        """The last lengths of a value, which must be known."""
        found = [length for length in self.shape(argument)[-count:] if length is not None]
        if len(found) < count:
            raise NodeError("the size of its input is not known", "Export it for inputs of one size")
        return found

    @property
    def rank(self) -> int:
        """The axes of the argument ``x``."""
        return len(self.shape())

    # --- constants ----------------------------------------------------------------------------------------------------

    def constant(self, argument: str) -> Any:
        """A constant; None where it is left out."""
        found = self._arguments.get(argument)
        if not found:
            return None
        if isinstance(found[0], Constant):
            return found[0].value
        if found[0] not in self.draft.constants:
            raise NodeError(f"it computes its {argument} from the model's inputs", "Export it as a constant")
        return self.draft.constants[found[0]]

    def array(self, argument: str) -> Array:
        """Numbers that must be there."""
        found = self.constant(argument)
        if not isinstance(found, np.ndarray):
            raise NodeError(f"its {argument} is missing, or is no array of numbers")
        return found

    def integers(self, argument: str, default: list[int] | None = None) -> list[int]:
        """Whole numbers."""
        found = self.constant(argument)
        if found is None and default is not None:
            return default
        return [int(each) for each in self.array(argument).reshape(-1)]

    def integer(self, argument: str, default: int) -> int:
        """One whole number."""
        return int(self.decimal(argument, default))

    def decimal(self, argument: str, default: float) -> float:
        """One number."""
        return float(self.array(argument).reshape(())) if self.given(argument) else default

    def flag(self, argument: str, *, default: bool) -> bool:
        """Yes or no."""
        return bool(self.array(argument).reshape(())) if self.given(argument) else default

    def text(self, argument: str, default: str) -> str:
        """A word."""
        found = self.constant(argument)
        if found is not None and not isinstance(found, str):
            raise NodeError(f"its {argument} is no word")
        return default if found is None else found

    # --- what becomes of it -------------------------------------------------------------------------------------------

    def becomes(self, operator: str, inputs: Sequence[Any], **attributes: Any) -> None:
        """One operator of ONNX."""
        self.draft.add(operator, inputs, self.outputs[0], **attributes)


class Constant(NamedTuple):
    """An argument that is a constant by itself."""

    value: Any


class _Program:
    """A function of an ML program on its way to a model."""

    def __init__(self, message: Any, values: Values, what: str) -> None:
        self._message, self._values, self._what = message, values, what
        self._before = values.blobs.size
        self.draft = Draft()
        self._words: dict[str, Any] = {}
        """Constants that are no numbers."""
        self._shapes: dict[str, Lengths] = {}
        self.labels: tuple[str, ...] = ()

    def model(self, features: Features) -> Model:
        block, inputs = self._block(features.function)
        tensors = [self._input(each, features) for each in inputs]
        for operation in block.operations:
            self._operation(operation)
        kept = [name for name in map(str, block.outputs) if name not in self._words]
        return self.draft.model(tensors, kept, self._message.ByteSize() + self._values.blobs.size - self._before)

    def _block(self, name: str) -> tuple[Any, Any]:
        """The block of a function, for the operations that it names, and its inputs."""
        functions = self._message.mlProgram.functions
        if name not in functions:
            raise damaged(self._what, f"it holds no function {name[:80]!r}")
        function = functions[name]
        blocks = function.block_specializations
        if function.opset not in blocks:
            raise damaged(self._what, f"its function holds no block for {str(function.opset)[:80]!r}")
        return blocks[function.opset], function.inputs

    def _input(self, given: Any, features: Features) -> Tensor:
        name, tensor = str(given.name), given.type.tensorType
        lengths = shape_of(tensor)
        self._shapes[name] = lengths
        if name in features.images:
            return image_input(self.draft, name, lengths)
        return Tensor(name, _TYPES.get(self._values.kind(tensor), 0), lengths)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _operation(self, given: Any) -> None:
        draft, outputs = self.draft, [str(each.name) for each in given.outputs]
        for each in given.outputs:
            self._shapes[str(each.name)] = shape_of(each.type.tensorType)
        draft.title, draft.kind = outputs[0] if outputs else "", str(given.type)
        inputs = [str(each.name) for value in given.inputs.values() for each in value.arguments if each.name]
        pictures = [name for name in inputs if name not in self._words]
        draft.tried(lambda: self._write(given, outputs), pictures, outputs)

    def _write(self, given: Any, outputs: list[str]) -> None:
        """One operation: a constant, or what its row of the table makes of it."""
        if given.type == "const":
            self._keep(outputs[0], self._values.value(given.attributes["val"], outputs[0]))
            return
        arguments = {str(key): self._argument(value, str(key)) for key, value in given.inputs.items()}
        arguments |= {
            str(key): [Constant(self._values.value(value, str(key)))]
            for key, value in given.attributes.items()
            if str(key) not in arguments and str(key) != "name"
        }
        made = Operation(self.draft, arguments, outputs, self._shapes)
        if given.type in UNPACK:
            known = {key: made.constant(key) for key in arguments}
            self._keep(outputs[0], self._values.unpack(str(given.type), known))
        elif given.type == "classify":
            self._classify(made)
        elif given.type in OPERATIONS and not given.blocks:
            OPERATIONS[str(given.type)](made)
        else:
            raise unknown(str(given.type))

    def _keep(self, name: str, value: Any) -> None:
        if name in self.draft.constants or name in self._words:
            raise MPSFileError(READER, self._what, "must give each value a name of its own", repr(name[:80]))
        (self.draft.constants if isinstance(value, np.ndarray) else self._words)[name] = value

    def _argument(self, value: Any, what: str) -> list[Any]:
        """What an argument is made of: names of values, and constants."""
        found: list[Any] = []
        for each in value.arguments:
            if each.WhichOneof("binding") == "value":
                found.append(Constant(self._values.value(each.value, what)))
            else:
                name = str(each.name)
                found.append(Constant(self._words[name]) if name in self._words else name)
        return found

    def _classify(self, operation: Operation) -> None:
        """The labels of a classifier, and probabilities as they are before they are taken apart by label."""
        label, probabilities = operation.outputs
        self._words[label] = None
        self.labels = tuple(str(each) for each in operation.constant("classes") or ())
        self.draft.add("Identity", [operation.name("probabilities")], probabilities)


def read_program(message: Any, values: Values, features: Features, what: str) -> tuple[Model, tuple[str, ...]]:
    """The model of an ML program, and the labels of its classes; ``values`` are those of all programs of a package.

    Raises:
        MPSFileError: The package is damaged.
    """
    program = _Program(message, values, what)
    return program.model(features), program.labels
