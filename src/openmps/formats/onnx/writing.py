"""An ONNX model on its way into a file: names, constants, operators and the shapes of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openmps.formats.archive.sources import StandIns
from openmps.formats.onnx.model import Array
from openmps.graph.compile.program import Program
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNImageNode, handle_label

_OPSET, _IR = 21, 10
_BATCH = "N"

Layer = Callable[["Writer", Any, Any], None]
"""Writes one node of a graph, of which the kernel knows what was planned."""


class Writer:
    """A model on its way into a file."""

    def __init__(self, onnx: Any, graph: MPSNNGraph, program: Program) -> None:
        self._onnx, self._graph, self._program = onnx, graph, program
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._names: dict[MPSNNImageNode, str] = {}
        self._taken: set[str] = set()
        self.stand_ins = StandIns()
        interface = graph.interface
        self._inputs = [self.name(image) for image in interface.inputs]
        self._outputs = [interface.result, *interface.intermediates]

    # --- names --------------------------------------------------------------------------------------------------------

    def name(self, image: MPSNNImageNode) -> str:
        """The name of an image: its handle's label, if that is not taken."""
        if image not in self._names:
            label = handle_label(image.handle)
            producer = image.producer
            made = None if producer is None else producer.label
            self._names[image] = self.fresh(label or made or ("input" if producer is None else "image"))
            self._shapes[self._names[image]] = self.shape(image)
        return self._names[image]

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet."""
        found, count = wanted, 2
        while found in self._taken:
            found, count = f"{wanted}_{count}", count + 1
        self._taken.add(found)
        return found

    def shape(self, image: MPSNNImageNode) -> tuple[int, int, int]:
        """Channels, rows and columns of an image."""
        found = self._program.descriptors[image]
        return found.feature_channels, found.height, found.width

    # --- parts --------------------------------------------------------------------------------------------------------

    def constant(self, value: Array, name: str = "constant") -> str:
        """A constant, by its name."""
        found = self.fresh(name)
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(value), found))
        return found

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """An operator; the name of its output."""
        made = self._onnx.helper.make_node(operator, list(inputs), [output], name=f"{operator}:{output}", **attributes)
        self._nodes.append(made)
        return output

    def step(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """An operator whose output has no image."""
        return self.add(operator, inputs, self.fresh(operator.lower()), **attributes)

    # --- the model ----------------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Any:
        shape = [_BATCH, *self._shapes[name]]
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, shape)

    def model(self) -> Any:
        """The whole model."""
        helper = self._onnx.helper
        outputs = list(dict.fromkeys(self.name(image) for image in self._outputs))
        others = [name for name in self._names.values() if name not in (*self._inputs, *outputs)]
        graph = helper.make_graph(
            self._nodes,
            "openmps",
            [self._value(name) for name in self._inputs],
            [self._value(name) for name in outputs],
            self._constants,
            value_info=[self._value(name) for name in others],
        )
        version = helper.make_opsetid("", _OPSET)
        return helper.make_model(graph, opset_imports=[version], ir_version=_IR, producer_name="openmps")
