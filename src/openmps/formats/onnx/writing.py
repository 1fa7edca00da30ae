"""A graph in ONNX's terms, on its way into a file: names, constants, operators and the shapes of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
_LENGTH_DELIMITED = 2
"""What protobuf calls fields that begin with their length."""

Layer = Callable[["Writer", Any, Any], None]
"""Writes one node of a graph, of which the kernel knows what was planned."""
_Layer = TypeVar("_Layer")


def layer_of(layers: Mapping[type, _Layer], node: MPSNNFilterNode) -> _Layer | None:
    """How nodes of a class are written, by the nearest class in a table; weights of one bit are none of any format."""
    if isinstance(node, MPSCNNBinaryConvolutionNode):
        return None
    return next((layers[kind] for kind in type(node).__mro__ if kind in layers), None)


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
        made = self._without_constants(onnx, batch)
        for name, array in self.constants.items():  # into the model itself: each step before copies what it is given
            made.graph.initializer.add().MergeFrom(_tensor(onnx, name, array))
            made.graph.initializer[-1].raw_data = array.tobytes()
        return made

    def parts(self, onnx: Any) -> ModelParts:
        """The whole as a file, for batches of any number of images."""
        return ModelParts(onnx, self._without_constants(onnx, None), self.constants)

    def _without_constants(self, onnx: Any, batch: int | None) -> Any:
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
        return helper.make_model(graph, opset_imports=[version], ir_version=_IR, producer_name="openmps")


class ModelParts:
    """A model's file in parts that are made when it is gone through: constants stay where they are until then.

    Parsed it is the model with its constants, which protobuf would copy twice to write it: fields of a message may
    stand in any order, so those of the graph come last, and its constants behind them.
    """

    def __init__(self, onnx: Any, model: Any, constants: Mapping[str, Array]) -> None:
        self._number = {
            name: kind.DESCRIPTOR.fields_by_name[name].number
            for kind, name in (
                (onnx.ModelProto, "graph"), (onnx.GraphProto, "initializer"), (onnx.TensorProto, "raw_data")
            )
        }  # fmt: skip
        graph = model.graph.SerializeToString()
        model.ClearField("graph")
        self._constants = [(self._head(onnx, name, array), array) for name, array in constants.items()]
        count = len(graph) + sum(len(head) + array.nbytes for head, array in self._constants)
        self._start = model.SerializeToString() + self._field("graph", count) + graph
        self.size = len(self._start) + count - len(graph)
        """Bytes of the whole."""

    def _head(self, onnx: Any, name: str, array: Array) -> bytes:
        """What stands before the numbers of a constant."""
        tensor = _tensor(onnx, name, array).SerializeToString() + self._field("raw_data", array.nbytes)
        return self._field("initializer", len(tensor) + array.nbytes) + tensor

    def _field(self, name: str, length: int) -> bytes:
        """The tag and the length of a field of so many bytes."""
        return _varint(self._number[name] << 3 | _LENGTH_DELIMITED) + _varint(length)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._start
        for head, array in self._constants:
            yield head
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _tensor(onnx: Any, name: str, array: Array) -> Any:
    """A constant without its numbers."""
    return onnx.TensorProto(name=name, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)


def _varint(number: int) -> bytes:
    """A whole number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
