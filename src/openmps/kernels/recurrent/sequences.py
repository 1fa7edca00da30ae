"""What encodes of sequences of matrices share: offsets, rows of each step, the operands that stand in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.checks import listed
from openmps.core.elements import Elements, ElementsShape
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.numbers import integer
from openmps.core.operand import Operand
from openmps.core.vector import MPSMatrix
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.recurrent import RowRange
from openmps.ops.matrix.recurrent_cells import starts
from openmps.ops.op import Value


class Shifted(Operand):
    """A matrix that begins some bytes further on in its buffer."""

    __slots__ = ("_matrix", "_offset", "_who")

    def __init__(self, who: str, matrix: MPSMatrix, offset: int) -> None:
        self._who, self._matrix, self._offset = who, matrix, offset

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """That of the matrix; and its elements must lie in the buffer."""
        self._matrix.check_usable(who, argument, command_buffer)
        view = self.whole()
        needed = view.offset + view.count * TORCH_TYPES[view.shape.stored_as].itemsize
        if needed > view.buffer.length:
            rule = f"must hold the matrix from byte {view.offset} on, to byte {needed}"
            raise MPSArgumentError(who, argument, rule, f"a buffer of {view.buffer.length} bytes")

    def whole(self) -> Elements:
        """The elements."""
        view = self._matrix.whole()
        return Elements(view.buffer, view.offset + self._offset, view.shape, view.strides)

    def count_read(self, amount: int = 1) -> None:
        """A read of the matrix."""
        self._matrix.count_read(amount)


def sequence(who: str, argument: str, matrices: Any, offsets: Any, offsets_argument: str) -> list[Operand]:
    """A list of single matrices, each from its own byte on where offsets are given."""
    given = listed(who, argument, matrices, "MPSMatrix")
    if not given:
        raise MPSArgumentError(who, argument, "must hold at least one matrix", "none")
    for index, matrix in enumerate(given):
        if not isinstance(matrix, MPSMatrix):
            raise MPSTypeError(who, f"{argument}[{index}]", "must be an MPSMatrix", type(matrix).__name__)
        if matrix.matrices != 1:
            rule = "must hold one matrix: a step is a matrix of its own"
            raise MPSArgumentError(who, f"{argument}[{index}]", rule, matrix.matrices)
    if offsets is None:
        return [*given]
    bytes_of = listed(who, offsets_argument, offsets, "int")
    if len(bytes_of) != len(given):
        rule = f"must hold {len(given)} offsets, one for each of {argument}"
        raise MPSArgumentError(who, offsets_argument, rule, len(bytes_of))
    return [_shifted(who, f"{offsets_argument}[{index}]", each, bytes_of[index]) for index, each in enumerate(given)]


def _shifted(who: str, argument: str, matrix: MPSMatrix, offset: Any) -> Operand:
    offset, unit = integer(who, argument, offset, 0), TORCH_TYPES[matrix.data_type].itemsize
    if offset % unit:
        raise MPSArgumentError(who, argument, f"must be a multiple of {unit}, the bytes of an element", offset)
    return Shifted(who, matrix, offset) if offset else matrix


def check_count(who: str, argument: str, matrices: Sequence[object], count: int, like: str) -> None:
    """Raise unless there are as many matrices as in another list."""
    if len(matrices) != count:
        raise MPSArgumentError(who, argument, f"must hold {count}, as many as {like}", len(matrices))


def matrix_argument(name: str, *, is_result: bool = False) -> Argument:
    """A matrix of a step or of a state."""
    return Argument(name, (MPSMatrix, Shifted), FLOATS, is_result=is_result)


def rows_of(who: str, argument: str, matrices: Sequence[Operand]) -> tuple[int, ...]:
    """Rows of each step, which must not grow."""
    rows = tuple([_shape(each).sizes[1] for each in matrices])
    for step in range(1, len(rows)):
        if rows[step] > rows[step - 1]:
            rule = f"must have at most {rows[step - 1]} rows, as many as the step before"
            raise MPSArgumentError(who, f"{argument}[{step}]", rule, rows[step])
    return rows


def _shape(matrix: Operand) -> ElementsShape:
    return matrix.whole().shape


def read_steps(who: str, at: OperandContext, argument: str, rows: Sequence[int], columns: int) -> list[Value]:
    """The first rows and columns of each matrix of a list."""
    for step, count in enumerate(rows):
        _check_room(who, at, f"{argument}[{step}]", count, columns)
    return [at.numbers(f"{argument}[{step}]", 0, slice(0, count), slice(0, columns)) for step, count in enumerate(rows)]


def store_steps(who: str, at: OperandContext, argument: str, rows: Sequence[int], columns: int, value: Value) -> None:
    """Rows of all steps, one behind the other, to the matrices of a list."""
    for step, (first, count) in enumerate(zip(starts(rows), rows, strict=True)):
        name = f"{argument}[{step}]"
        _check_room(who, at, name, count, columns)
        at.store(name, RowRange(first, first + count)(value), 0, slice(0, count), slice(0, columns))


def _check_room(who: str, at: OperandContext, name: str, rows: int, columns: int) -> None:
    _, most_rows, most_columns = at.sizes(name)
    if most_rows < rows or most_columns < columns:
        rule = f"must have {rows} rows of {columns} elements"
        raise MPSArgumentError(who, name, rule, f"{most_rows} rows of {most_columns}")
