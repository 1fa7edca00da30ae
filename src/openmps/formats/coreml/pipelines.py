"""Pipelines of networks, of which each takes what those before it give, as one model in ONNX's terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from openmps.errors import MPSFileError
from openmps.formats.coreml.blobs import Array
from openmps.formats.coreml.draft import BYTE, FLOAT, OPSET
from openmps.formats.coreml.features import Features
from openmps.formats.coreml.packages import READER, damaged
from openmps.formats.onnx.model import Model, Node, Tensor

ReadOne = Callable[[Any], tuple[Model, tuple[str, ...]]]
"""Reads the message of one network: the model, and the labels of its classes."""


def models_of(message: Any, kind: str) -> Sequence[Any]:
    """The models of a pipeline, in their order."""
    return (message.pipeline if kind == "pipeline" else getattr(message, kind).pipeline).models


def read_pipeline(
    models: Sequence[Any], features: Features, read_one: ReadOne, what: str
) -> tuple[Model, tuple[str, ...]]:
    """The model of a chain of networks, and the labels of the last one's classes.

    Raises:
        MPSFileError: A network takes something that none before it gives, or an image that one gives.
    """
    chain, labels = _Chain([*features.images, *features.arrays], what), ()
    for message in models:
        model, labels = read_one(message)
        chain.add(model)
    return chain.model(features.outputs), labels


class _Chain:
    """Networks that are put one behind the other: features keep their names, and all else is told apart by number."""

    def __init__(self, inputs: Sequence[str], what: str) -> None:
        self._what, self._given = what, inputs
        self._known = {name: name for name in inputs}
        """The value of each feature."""
        self._inputs: dict[str, Tensor] = {}
        self._last: list[Tensor] = []
        self._constants: dict[str, Array] = {}
        self._nodes: list[Node] = []
        self._size = self._count = 0

    def add(self, model: Model) -> None:
        """One more network."""
        self._count += 1
        renamed = {tensor.name: self._source(tensor) for tensor in model.inputs}
        gives = {tensor.name: self._fresh(tensor.name) for tensor in model.outputs}
        renamed |= {name: gives[name] for name in gives if name not in renamed}

        def named(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(renamed.get(name, self._inner(name)) if name else "" for name in names)

        self._constants |= {named([name])[0]: array for name, array in model.constants.items()}
        self._nodes += [replace(each, inputs=named(each.inputs), outputs=named(each.outputs)) for each in model.nodes]
        self._last = [replace(tensor, name=renamed[tensor.name]) for tensor in model.outputs]
        self._known |= {tensor.name: renamed[tensor.name] for tensor in model.outputs}
        self._size += model.size

    def _inner(self, name: str) -> str:
        return f"{self._count}:{name}"

    def _fresh(self, name: str) -> str:
        return self._inner(name) if name in self._known else name

    def _source(self, tensor: Tensor) -> str:
        """The value that an input of a network is. A row is what one before it may give as an image of one pixel."""
        name = self._known.get(tensor.name)
        if name is None:
            why = f"nothing before its network {self._count} gives {tensor.name[:80]!r}"
            raise damaged(self._what, why)
        if name == tensor.name and name in self._given:
            self._inputs.setdefault(name, tensor)
            return name
        if tensor.kind == BYTE:
            rule = f"must have networks that give arrays: its network {self._count} takes an image of another one"
            raise MPSFileError(READER, self._what, rule, repr(tensor.name[:80]), "Save the networks by themselves")
        if tensor.lengths is None or len(tensor.lengths) != 2:
            return name
        row = self._inner(f"{tensor.name}:row")
        self._nodes.append(Node(tensor.name, "Flatten", "", (name,), (row,), {"axis": 1}, original="pipeline"))
        return row

    def model(self, outputs: Sequence[str]) -> Model:
        """The whole, which gives what the last network does, and what the pipeline says besides."""
        own = [tensor.name for tensor in self._last]
        known = [self._known[name] for name in outputs if name in self._known]
        more = dict.fromkeys(name for name in known if name not in (*own, *self._given))
        ports = [*self._last, *(Tensor(name, FLOAT, None) for name in more)]
        return Model(tuple(self._inputs.values()), tuple(ports), self._constants, tuple(self._nodes), OPSET, self._size)
