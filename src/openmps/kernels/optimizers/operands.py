"""What an optimizer works on: vectors and matrices, one at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from openmps.core.vector import MPSMatrix, MPSVector, numbers_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLBuffer
from openmps.metal.pending import Region
from openmps.runtime.binding import Binding, MemoryBinding, Numbers
from openmps.types import MPSDataType

Operand = MPSVector | MPSMatrix


class Strided(MemoryBinding):
    """Rows of float32 numbers in a buffer, with gaps between them."""

    __slots__ = ("numbers", "sizes", "strides")

    def __init__(self, buffer: MTLBuffer, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        self.numbers = Numbers(buffer, offset, last + 1)
        self.sizes = sizes
        self.strides = strides

    def memories(self) -> tuple[MTLBuffer]:
        """The memory that it reads or writes."""
        return self.numbers.memories()

    def view_key(self) -> Hashable:
        """Which part of it."""
        return self.numbers.offset, self.sizes, self.strides

    def rebind(self, memories: Sequence[MTLBuffer]) -> Strided:
        """The same of another buffer."""
        return Strided(memories[0], self.numbers.offset, self.sizes, self.strides)

    def value(self) -> Tensor:
        """The rows, sharing the buffer's memory."""
        return self.numbers.value().as_strided(self.sizes, self.strides)

    def regions(self) -> tuple[Region]:
        """The bytes of the rows and of the gaps."""
        return self.numbers.regions()


def bound(operand: Operand) -> Binding:
    """Where a float32 operand's numbers are from this encode on."""
    if isinstance(operand, MPSVector):
        if operand.vectors == 1:
            return numbers_of(operand) or Numbers(operand.data, operand.offset, operand.length)
        return Strided(operand.data, operand.offset, _shape(operand), (operand.vector_bytes // 4, 1))
    strides = operand.matrix_bytes // 4, operand.row_bytes // 4, 1
    return Strided(operand.data, operand.offset, _shape(operand), strides)


def check_operand(who: str, argument: str, operand: object, like: Operand, command_buffer: CommandBuffer) -> None:
    """Raise unless ``operand`` is a usable float32 vector or matrix of the shape of ``like``."""
    if not isinstance(operand, MPSVector | MPSMatrix):
        raise MPSTypeError(who, argument, f"must be an {_kind(like)}", type(operand).__name__)
    operand.check_usable(who, argument, command_buffer)
    if operand.data_type is not MPSDataType.FLOAT32:
        raise MPSArgumentError(who, argument, "must hold FLOAT32", operand.data_type.name)
    if _shape(operand) != _shape(like):
        rule = f"must have the gradient's shape, {_kind(like)} of {_shape(like)}"
        raise MPSArgumentError(who, argument, rule, f"{_kind(operand)} of {_shape(operand)}")


def _kind(operand: Operand) -> str:
    return "MPSVector" if isinstance(operand, MPSVector) else "MPSMatrix"


def _shape(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, MPSVector):
        return (operand.vectors, operand.length)
    return (operand.matrices, operand.rows, operand.columns)


def accumulators(
    who: str, argument: str, vectors: Any, names: Sequence[str], lengths: Sequence[int], command_buffer: CommandBuffer
) -> list[Binding]:
    """Where the numbers of a vector for the first parameter, or of one for each, are; ``names`` are the parameters'.

    Raises unless they can be used.
    """
    if not isinstance(vectors, (list, tuple)) and (isinstance(vectors, str) or not isinstance(vectors, Sequence)):
        raise MPSArgumentError(who, argument, _number_rule(names), vectors)
    if len(vectors) not in (1, 2):
        raise MPSArgumentError(who, argument, _number_rule(names), f"{len(vectors)}")
    device = command_buffer.device
    found: list[Binding] = []
    for index, vector in enumerate(vectors):
        numbers = numbers_of(vector) if type(vector) is MPSVector else None
        if numbers is None or numbers.count != lengths[index] or numbers.buffer.device is not device:
            place = f"{argument}[{index}]"
            numbers = _accumulator(who, place, vector, names[index], lengths[index], command_buffer)
        found.append(numbers)
    return found


def _number_rule(names: Sequence[str]) -> str:
    return f"must be one vector for the {names[0]}, or two for {names[0]} and {names[1]}"


def _accumulator(
    who: str, place: str, vector: object, name: str, length: int, command_buffer: CommandBuffer
) -> Numbers:
    if not isinstance(vector, MPSVector):
        raise MPSTypeError(who, place, "must be an MPSVector", type(vector).__name__)
    vector.check_usable(who, place, command_buffer)
    if vector.data_type is not MPSDataType.FLOAT32:
        raise MPSArgumentError(who, place, "must hold FLOAT32", vector.data_type.name)
    if (vector.vectors, vector.length) != (1, length):
        rule = f"must be one vector of {length} numbers, one for each number of {name}"
        raise MPSArgumentError(who, place, rule, f"{vector.vectors} of {vector.length}")
    return Numbers(vector.data, vector.offset, length)
