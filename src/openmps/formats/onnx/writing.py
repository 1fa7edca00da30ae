"""A graph in ONNX's terms, on its way into a file: names, constants, operators and the shapes of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from openmps.formats.archive.sources import StandIns
from openmps.formats.onnx.model import Array, Node
from openmps.graph.compile.program import Program
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNBinaryConvolutionNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode, handle_label

_OPSET, _IR = 21, 10
_BATCH = "N"

Layer = Callable[["Writer", Any, Any], None]
_Layer = TypeVar("_Layer")


def layer_of(layers: Mapping[type, _Layer], node: MPSNNFilterNode) -> _Layer | None:
    """How nodes of a class are written, by the nearest class in a table; weights of one bit are none of any format."""
    if isinstance(node, MPSCNNBinaryConvolutionNode):
        return None
    return next((layers[kind] for kind in type(node).__mro__ if kind in layers), None)


"""Writes one node of a graph, of which the kernel knows what was planned."""


class Writer:
    """A graph as operators and constants."""

    def __init__(self, graph: MPSNNGraph, program: Program) -> None:
        self._program = program
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self._names: dict[MPSNNImageNode, str] = {}
        self._taken: set[str] = set()
        self.stand_ins = StandIns()
        interface = graph.interface
        self.inputs = [self.name(image) for image in interface.inputs]
        self._outputs = [interface.result, *interface.intermediates]

    # --- names --------------------------------------------------------------------------------------------------------

    def name(self, image: MPSNNImageNode) -> str:
        """The name of an image: its handle's label, if that is not taken."""
        if image not in self._names:
            label = handle_label(image.handle)
            producer = image.producer
            made = None if producer is None else producer.label
            self._names[image] = self.fresh(label or made or ("input" if producer is None else "image"))
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
        """A constant, by its name. Of large arrays no copy is made."""
        found = self.fresh(name)
        self.constants[found] = np.asarray(value)
        return found

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """An operator; the name of its output."""
        self.nodes.append(Node(f"{operator}:{output}", operator, "", tuple(inputs), (output,), attributes))
        return output

    def step(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """An operator whose output has no image."""
        return self.add(operator, inputs, self.fresh(operator.lower()), **attributes)

    # --- what comes of it ---------------------------------------------------------------------------------------------

    def outputs(self) -> list[str]:
        """The names of what the graph gives, each once."""
        return list(dict.fromkeys(self.name(image) for image in self._outputs))

    def lengths(self) -> dict[str, tuple[int, int, int]]:
        """Channels, rows and columns of every value that an image holds."""
        return {self._names[image]: self.shape(image) for image in self._names}

    def model(self, onnx: Any, batch: int | None = None) -> Any:
        """The whole as a model of the onnx package, for batches of so many images; of any number unless said."""
        helper, outputs = onnx.helper, self.outputs()
        shapes = self.lengths()

        def value(name: str) -> Any:
            return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch or _BATCH, *shapes[name]])

        nodes = [
            helper.make_node(node.operator, list(node.inputs), list(node.outputs), name=node.name, **node.attributes)
            for node in self.nodes
        ]
        others = [name for name in shapes if name not in (*self.inputs, *outputs)]
        graph = helper.make_graph(
            nodes, "openmps", [*map(value, self.inputs)], [*map(value, outputs)], value_info=[*map(value, others)]
        )
        version = helper.make_opsetid("", _OPSET)
        made = helper.make_model(graph, opset_imports=[version], ir_version=_IR, producer_name="openmps")
        for name, array in self.constants.items():  # into the model itself: each step before copies what it is given
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            made.graph.initializer.add(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())
        return made
