"""Who makes and who reads each value of a model, for those who look for patterns of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from openmps.formats.onnx.model import Array, Model, Node


class Uses:
    """The operators of a model by the values between them; values that are ``wanted`` are read outside, too."""

    def __init__(self, model: Model, wanted: Sequence[str]) -> None:
        self.nodes = model.nodes
        self._constants, self._inputs = model.constants, model.inputs
        self.makers = {name: node for node in model.nodes for name in node.outputs if name}
        self.outputs = {*wanted, *(tensor.name for tensor in model.outputs)}
        self.count = Counter(name for node in model.nodes for name in node.inputs if name)
        self._readers: dict[str, list[Node]] = {}
        for node in model.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)

    def varying(self) -> set[str]:
        """The values that depend on the model's inputs, those that depend on their shapes alone left out."""
        found = {tensor.name for tensor in self._inputs}
        for node in self.nodes:
            if node.operator not in ("Shape", "Size") and found.intersection(node.inputs):
                found.update(name for name in node.outputs if name)
        return found

    def constant(self, name: str) -> Array | None:
        """A constant of the model or of a Constant operator; None for anything else."""
        maker = self.makers.get(name)
        if maker is None or maker.operator != "Constant":
            return self._constants.get(name)
        value = maker.attributes.get("value", maker.attributes.get("value_float", maker.attributes.get("value_ints")))
        return np.asarray(value) if isinstance(value, np.ndarray | float | list) else None

    def reader(self, node: Node) -> Node | None:
        """The one node that reads what a node gives, if it is read once and does not come out."""
        name = node.outputs[0]
        if self.count[name] != 1 or name in self.outputs:
            return None
        return self._readers[name][0]

    def maker(self, name: str, operator: str) -> Node | None:
        """The node of a type that makes a value for one reader alone."""
        node = self.makers.get(name)
        return node if node is not None and node.operator == operator and self.reader(node) is not None else None


def other(node: Node, name: str) -> str:
    """The other operand of an operator with two."""
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]
