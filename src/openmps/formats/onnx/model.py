"""A model as it is read: nodes, constants, inputs and outputs, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.formats.onnx.problems import NodeError

Array = NDArray[Any]
_UNNAMED = ("", "?", "*", "-1", "None")
"""What exporters write for lengths that are not known: nothing ties two of them together."""


class Unread:
    """An attribute of a kind that is not read, such as a graph."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


Attribute = int | float | str | list[int] | list[float] | list[str] | Array | Unread


@dataclass(frozen=True)
class Node:
    """One operator: its inputs and outputs by name, "" where one is left out, and its attributes."""

    name: str
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    fault: str = ""
    """Why it is no operator that ONNX has."""
    original: str = ""
    """What the file calls the operator, where that is another format's."""
    refusal: NodeError | None = None
    """Why nothing in ONNX's terms says what the file does."""

    @property
    def title(self) -> str:
        """How errors call it."""
        return self.name or next((name for name in self.outputs if name), "")

    def given(self, name: str) -> bool:
        """Whether an attribute is there."""
        return name in self.attributes

    def integer(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else _wrong(name, "a whole number")

    def decimal(self, name: str, default: float) -> float:
        """A number."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else _wrong(name, "a number")

    def text(self, name: str, default: str) -> str:
        """Text."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else _wrong(name, "text")

    def integers(self, name: str, default: list[int] | None = None) -> list[int]:
        """Whole numbers; the attribute must be there if there is no default."""
        value = self.attributes.get(name, default)
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            return _wrong(name, "a list of whole numbers")
        return [int(each) for each in value]

    def decimals(self, name: str, default: list[float] | None = None) -> list[float]:
        """Numbers."""
        value = self.attributes.get(name, default)
        if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
            return _wrong(name, "a list of numbers")
        return [float(each) for each in value]

    def tensor(self, name: str) -> Array:
        """A tensor."""
        value = self.attributes.get(name)
        return value if isinstance(value, np.ndarray) else _wrong(name, "a tensor")


def _wrong(name: str, rule: str) -> Any:
    raise NodeError(f"its attribute {name} is not {rule}", "Export the model again")


def length_name(length: Any) -> Any:
    """A length of a shape, None for the name of one that only says that it is not known."""
    return None if isinstance(length, str) and length.strip() in _UNNAMED else length


@dataclass(frozen=True)
class Tensor:
    """An input or an output: its name, its ONNX number type, and its lengths: numbers, names of variable ones, None."""

    name: str
    kind: int
    lengths: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Model:
    """A model: what it takes and gives, its constants by name, and its nodes in an order in which they can run."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    opset: int
    size: int
    """Bytes of the file and of the external data that was read."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """Constants that cannot be read, and why."""
    parameters: frozenset[str] | None = None
    """Constants that are trained; None where the model does not say."""

    def kinds(self) -> dict[str, Tensor]:
        """The outputs by name."""
        return {tensor.name: tensor for tensor in self.outputs}


_NAME = 200  # characters of a name in an error


def contradiction(
    inputs: Iterable[Tensor], outputs: Sequence[Tensor], nodes: Iterable[Node], constants: Iterable[str]
) -> str:
    """Why not every value is made once, before it is read; "" where each is."""
    known = set(constants)
    if not all(tensor.name for tensor in (*inputs, *outputs)):
        return "an input or an output has no name"
    for tensor in inputs:
        if tensor.name in known:
            return f"two inputs are called {tensor.name[:_NAME]!r}"
        known.add(tensor.name)
    for node in nodes:
        missing = next((name for name in node.inputs if name and name not in known), None)
        if missing is not None:
            return f"node {node.title[:_NAME]!r} reads {missing[:_NAME]!r}, which nothing before it makes"
        for name in filter(None, node.outputs):
            if name in known:
                return f"two values are called {name[:_NAME]!r}"
            known.add(name)
    missing = next((tensor.name for tensor in outputs if tensor.name not in known), None)
    if missing is not None:
        return f"nothing makes its output {missing[:_NAME]!r}"
    return "two outputs have one name" if len({tensor.name for tensor in outputs}) < len(outputs) else ""
