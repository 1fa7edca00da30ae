"""The weights of a recurrent layer that is trained: matrices of the user's (MPSRNNLayer.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from openmps.checks import flag, listed, memory_for
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext, OperandKernel
from openmps.core.vector import MPSMatrix, MPSMatrixDescriptor, MPSTemporaryMatrix
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.kernels.recurrent.descriptors import MPSRNNDescriptor, descriptors
from openmps.kernels.recurrent.layer import (
    INPUTS,
    PARTS,
    Form,
    Layer,
    Place,
    matrix_id,
    read_layer,
)
from openmps.kernels.recurrent.sequences import SequenceOperand
from openmps.kernels.recurrent.states import check_list
from openmps.kernels.recurrent.weight_blocks import (
    Layout,
    flat_matrices,
    made_together,
    new_matrices,
    some_matrices,
)
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.recurrent import JoinRows, PartsOf, RowsOf
from openmps.ops.op import Value
from openmps.types import MPSDataType, MPSRNNMatrixId, MTLOrigin

GRADIENTS = "weight_gradients"
"""The argument of gradients of weights."""


class Copy(NamedTuple):
    """What the plan of a copy depends on besides shapes."""

    source: str
    result: str
    origin: tuple[int, int]


_sizes_of = attrgetter("_elements.sizes")


class TrainedLayer(OperandKernel):
    """A recurrent layer whose weights are matrices that encodes are given."""

    _form = Setting[Form]()

    def __init__(self, device: MTLDevice, rnn_descriptor: MPSRNNDescriptor, trainable_weights: list[MPSMatrix]) -> None:
        super().__init__(device)
        check_list(self.name, "trainable_weights", trainable_weights)
        (descriptor,) = descriptors(self.name, rnn_descriptor, None)
        layer = read_layer(self.name, device, descriptor)
        self._form = layer.form
        places = layer.form.places
        self._sizes = [(1, *layer.form.shape(place)) for place in places]
        self._layout = Layout(
            tuple([layer.form.shape(place) for place in places]),
            tuple(layer.form.parts_in_turn()),
            tuple([tuple([places.index(place) for place in each.places()]) for each in layer.form.stretches()]),
        )
        made = self._new("trainable_weights", self._type)
        for matrix, place in zip(made, places, strict=True):
            matrix.memory().copy_(torch.from_numpy(np.ascontiguousarray(layer.weights[place])))
        trainable_weights += made

    @property
    def input_feature_channels(self) -> int:
        """Numbers of a vector of the source."""
        return self._form.inputs

    @property
    def output_feature_channels(self) -> int:
        """Numbers of a vector of the result."""
        return self._form.outputs

    @property
    def _type(self) -> MPSDataType:
        return MPSDataType.FLOAT32 if self._form.is_float32 else MPSDataType.FLOAT16

    @property
    def _places(self) -> tuple[Place, ...]:
        """The weights that there are, in the framework's order."""
        return self._form.places

    # --- weights ------------------------------------------------------------------------------------------------------

    def _new(self, argument: str, data_type: MPSDataType) -> list[MPSMatrix]:
        """Matrices of zeros like the layer's weights, those that are read at once one behind the other."""
        with memory_for(self.name, argument):
            return new_matrices(self._device, self._layout, data_type)

    def create_weight_matrices(self, matrices_out: list[MPSMatrix]) -> None:
        """Append matrices of zeros like the layer's weights."""
        check_list(self.name, "matrices_out", matrices_out)
        matrices_out += self._new("matrices_out", self._type)

    def create_weight_gradient_matrices(
        self, matrices_out: list[MPSMatrix], data_type: MPSDataType = MPSDataType.FLOAT32
    ) -> None:
        """Append matrices of zeros for gradients, like the layer's weights but FLOAT32 or FLOAT16 as asked."""
        check_list(self.name, "matrices_out", matrices_out)
        matrices_out += self._new("matrices_out", self._gradient_type(data_type))

    def create_temporary_weight_gradient_matrices(
        self, matrices_out: list[MPSMatrix], data_type: MPSDataType, command_buffer: CommandBuffer
    ) -> None:
        """The same with matrices that live on a command buffer, each with a read count of 1."""
        check_list(self.name, "matrices_out", matrices_out)
        check_command_buffer(self.name, command_buffer, self._device)
        data_type = self._gradient_type(data_type)
        shapes = [self._form.shape(place) for place in self._places]
        matrices_out += [
            MPSTemporaryMatrix(command_buffer, MPSMatrixDescriptor(*shape, data_type=data_type)) for shape in shapes
        ]

    def _gradient_type(self, data_type: MPSDataType) -> MPSDataType:
        kind = member(self.name, "data_type", MPSDataType, data_type)
        if kind not in FLOATS:
            raise MPSArgumentError(self.name, "data_type", "must be FLOAT32 or FLOAT16", kind.name)
        return kind

    def encode_copy_weights(
        self,
        command_buffer: CommandBuffer,
        weights: Sequence[MPSMatrix],
        matrix_id: MPSRNNMatrixId,  # the framework's word
        matrix: MPSMatrix,
        copy_from_weights_to_matrix: bool,
        matrix_offset: MTLOrigin = MTLOrigin(0, 0, 0),  # frozen
    ) -> None:
        """Record a copy between one of ``weights``, or of their gradients, and a part of ``matrix``.

        The part has an output channel a row and an input channel a column, biases and diagonal memory weights one row;
        it begins at row ``matrix_offset.x``, column ``matrix_offset.y``.

        Raises:
            MPSArgumentError: The layer has no such weights, or ``matrix`` is too small.
        """
        who = self.name
        given, place = self._listed("weights", weights), self._place_of(matrix_id)
        if not isinstance(matrix_offset, MTLOrigin) or matrix_offset.z != 0:
            raise MPSArgumentError(who, "matrix_offset", "must be an MTLOrigin(row, column, 0)", matrix_offset)
        mine = given[self._places.index(place)]
        named = {"weights": mine, "matrix": matrix}
        if not flag(who, "copy_from_weights_to_matrix", copy_from_weights_to_matrix):
            named = dict(reversed(named.items()))
        source, result = named
        arguments = Argument(source, MPSMatrix, FLOATS), Argument(result, MPSMatrix, FLOATS, is_result=True)
        asked = Copy(source, result, (matrix_offset.x, matrix_offset.y))
        self._encode(command_buffer, *named.values(), arguments=arguments, asked=asked)

    def _place_of(self, matrix_id_: MPSRNNMatrixId) -> Place:
        wanted = member(self.name, "matrix_id", MPSRNNMatrixId, matrix_id_)
        there = {matrix_id(self._form, place): place for place in self._places}
        if wanted not in there:
            rule = f"must be one that the layer has: {', '.join(each.name for each in there)}"
            raise MPSArgumentError(self.name, "matrix_id", rule, wanted.name)
        return there[wanted]

    def _listed(self, argument: str, matrices: Any) -> list[MPSMatrix]:
        """Weights, or their gradients, as the layer made them."""
        given = listed(self.name, argument, matrices, "MPSMatrix")
        places = self._places
        if len(given) != len(places):
            rule = f"must hold {len(places)} matrices, those that this layer has made"
            raise MPSArgumentError(self.name, argument, rule, len(given))
        if {*map(type, given)} == {MPSMatrix} and [*map(_sizes_of, given)] == self._sizes:
            return given
        for index, (each, place) in enumerate(zip(given, places, strict=True)):
            shape = self._form.shape(place)
            if not isinstance(each, MPSMatrix) or (each.matrices, each.rows, each.columns) != (1, *shape):
                rule = f"must be an MPSMatrix of {shape[0]} x {shape[1]}, {matrix_id(self._form, place).name}"
                raise MPSArgumentError(self.name, f"{argument}[{index}]", rule, each)
        return given

    def _weights_listed(self, command_buffer: CommandBuffer, matrices: Any) -> SequenceOperand:
        """Weights as one operand, as `_parameters` reads them."""
        given = listed(self.name, "weights", matrices, "MPSMatrix")
        if given and (known := made_together(command_buffer, given, self._layout)) is not None:
            return known.flat
        given = self._listed("weights", given)
        return flat_matrices(self.name, "weights", command_buffer, given, self._layout.order)

    def _sums_listed(self, command_buffer: CommandBuffer, matrices: Any) -> list[SequenceOperand]:
        """What gradients of weights go to, an operand for each of `Form.stretches`."""
        given = listed(self.name, GRADIENTS, matrices, "MPSMatrix")
        if given and (known := made_together(command_buffer, given, self._layout)) is not None:
            return known.sums
        given = self._listed(GRADIENTS, given)
        return [some_matrices(self.name, GRADIENTS, command_buffer, given, some) for some in self._layout.sums]

    # --- the mathematics ----------------------------------------------------------------------------------------------

    def _parameters(self, at: OperandContext) -> list[Value | None]:
        """The weights of all gates, one behind the other, zeros for those that are not there."""
        form, flat, first = self._form, at.numbers("weights"), 0
        found: list[Value | None] = []
        of_parts = {part: [Place(part, gate) for gate in form.gates_of(part)] for part in PARTS}
        are_there = {part: {place in form.places for place in places} for part, places in of_parts.items()}
        columns_of = {part: 0 if form.is_vector(part) else form.shape(Place(part, 0))[1] for part in PARTS}
        if all(len(each) == 1 for each in are_there.values()) and (form.is_unit or True in are_there[INPUTS]):
            counts = [len(of_parts[part]) * form.outputs * max(columns_of[part], 1) for part in PARTS]
            lengths = [count if True in are_there[part] else 0 for part, count in zip(PARTS, counts, strict=True)]
            values = PartsOf(tuple(lengths), tuple(columns_of.values()))(flat)
            return [value if length else None for value, length in zip(values, lengths, strict=True)]
        for part, places in of_parts.items():
            if not form.has(part) and (part != INPUTS or form.is_unit):
                found.append(None)
                continue
            columns = columns_of[part]
            count = form.outputs * max(columns, 1)
            parts: list[Value] = []
            for is_there, some in groupby(places, key=form.places.__contains__):
                length = count * len([*some])
                if is_there:
                    parts.append(RowsOf(first, first + length, columns)(flat))
                    first += length
                else:
                    zeros = np.zeros((length // columns, columns) if columns else length, np.float32)
                    parts.append(at.constant(zeros))
            found.append(parts[0] if len(parts) == 1 else JoinRows()(*parts))
        return found


def form_of(layer: TrainedLayer) -> Form:
    """What a layer computes; for archives."""
    return layer._form  # pyright: ignore[reportPrivateUsage]


def trained_layer(layer: TrainedLayer, weights: Sequence[MPSMatrix]) -> Layer:
    """Form and numbers of a layer with the weights that it is trained with; for those who write them."""
    given = layer._listed("weights", weights)  # pyright: ignore[reportPrivateUsage]
    places = layer._places  # pyright: ignore[reportPrivateUsage]
    arrays = [each.numpy().astype(np.float32) for each in given]
    return Layer(form_of(layer), dict(zip(places, arrays, strict=True)))


def lower_copy(who: str, at: OperandContext, asked: Copy) -> None:
    """The mathematics of `TrainedLayer.encode_copy_weights`."""
    rows, columns = at.sizes("weights")[1:]
    first, left = asked.origin
    high, wide = at.sizes("matrix")[1:]
    if first + rows > high or left + columns > wide or at.sizes("matrix")[0] != 1:
        rule = f"must have {rows} rows of {columns} elements from row {first}, column {left} on"
        raise MPSArgumentError(who, "matrix", rule, f"{at.sizes('matrix')}")
    part = {"weights": (0,), "matrix": (0, slice(first, first + rows), slice(left, left + columns))}
    at.store(asked.result, at.numbers(asked.source, *part[asked.source]), *part[asked.result])
