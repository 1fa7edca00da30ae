"""Sequences of matrices, a matrix a step, as one operand: the rows of all steps, one behind the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.checks import listed
from openmps.core.elements import Elements, ElementsShape
from openmps.core.kernel.operands import FLOATS, Argument
from openmps.core.numbers import integer
from openmps.core.operand import Operand, OperandList, View
from openmps.core.vector import MatrixSequence, MPSMatrix, seen_of
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLBuffer
from openmps.metal.pending import Region
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat

_copy_each: Any = torch.ops.aten._foreach_copy_.default


class StepsShape(NamedTuple):
    """Rows of each step, columns, and the types of elements that there are."""

    rows: tuple[int, ...]
    columns: int
    types: frozenset[MPSDataType]

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of all steps, and columns."""
        return sum(self.rows), self.columns

    @property
    def stored_as(self) -> MPSDataType:
        """The type of an element; FLOAT32 where steps have several."""
        return next(iter(self.types)) if len(self.types) == 1 else MPSDataType.FLOAT32

    @property
    def number_format(self) -> MPSImageFeatureChannelFormat:
        """That of the type."""
        is_half = self.stored_as is MPSDataType.FLOAT16
        return MPSImageFeatureChannelFormat.FLOAT16 if is_half else MPSImageFeatureChannelFormat.FLOAT32


class Steps(View[StepsShape]):
    """The elements of a matrix a step, gathered when they are read; numbers are rounded where a step is FLOAT16."""

    __slots__ = ("parts", "shape")

    def __init__(self, parts: tuple[Elements, ...], shape: StepsShape) -> None:
        self.parts = parts
        self.shape = shape

    def memories(self) -> tuple[MTLBuffer, ...]:
        """The buffers."""
        return tuple([part.buffer for part in self.parts])

    def view_key(self) -> Hashable:
        """Which parts of them."""
        return tuple([part.view_key() for part in self.parts])

    def rebind(self, memories: Sequence[MTLBuffer]) -> Steps:
        """The same of other buffers."""
        parts = [part.rebind([memory]) for part, memory in zip(self.parts, memories, strict=True)]
        return type(self)(tuple(parts), self.shape)

    def value(self) -> Tensor:
        """The elements in memory of their own."""
        return torch.cat([part.value() for part in self.parts])

    def regions(self) -> list[Region]:
        """The bytes of each step."""
        return [region for part in self.parts for region in part.regions()]

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Store the rows of each step in their place."""
        source = value.clone() if is_shared else value
        _copy_each([part.value() for part in self.parts], source.split(list(self.shape.rows)))


class SequenceOperand(OperandList):
    """Rows and columns of a matrix a step, each of which an encode can use; see `matrix_sequence`."""

    __slots__ = ("_matrices", "_view", "rows")

    def __init__(self, matrices: Sequence[MPSMatrix], view: View[Any], rows: Sequence[int]) -> None:
        self._matrices = matrices
        self._view = view
        self.rows = tuple(rows)
        """Of each step."""

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Each matrix can be used, or there would be no sequence of them."""

    def whole(self) -> View[Any]:
        """The elements."""
        return self._view

    def members(self, argument: str) -> Iterable[tuple[str, Operand]]:
        """Each matrix; none where all are ordinary ones, whose reads nobody counts."""
        if {*map(type, self._matrices)} == {MPSMatrix}:
            return ()
        return [(f"{argument}[{step}]", each) for step, each in enumerate(self._matrices)]


def _joined(parts: Sequence[Elements]) -> View[Any]:
    """The elements of all steps: as they lie, where they follow one another in a buffer without a gap between steps."""
    first, rows = parts[0], [part.shape.sizes[0] for part in parts]
    (most, columns), kind = first.shape
    distance = most * first.strides[0] * TORCH_TYPES[kind].itemsize
    if all(
        part.buffer is first.buffer
        and part.shape == first.shape
        and part.strides == first.strides
        and part.offset == first.offset + step * distance
        for step, part in enumerate(parts)
    ):
        return Elements(first.buffer, first.offset, ElementsShape((sum(rows), columns), kind), first.strides)
    types = frozenset([part.shape.stored_as for part in parts])
    return Steps(tuple(parts), StepsShape(tuple(rows), columns, types))


class Given(NamedTuple):
    """A list of matrices that an encode is given, and the byte from which on each is read or written."""

    argument: str
    matrices: Any
    offsets_argument: str = ""
    offsets: Any = None


def matrix_sequence(
    who: str,
    command_buffer: CommandBuffer,
    one: Given,
    columns: int,
    rows: Sequence[int] | None = None,
    like: str = "",
) -> SequenceOperand:
    """The first columns, and rows, of a list of single matrices.

    Without ``rows`` all rows, which must not grow; else so many of each, as the list ``like`` has.
    """
    argument, matrices, offsets_argument, offsets = one
    if isinstance(matrices, MatrixSequence) and offsets is None:
        if rows is not None:
            check_count(who, argument, matrices, len(rows), like)
        declared = seen_of(matrices, columns, _declared)
        is_there = declared is not None and matrices.matrix.device is command_buffer.device
        if declared is not None and is_there and (rows is None or rows == declared.rows):
            return declared
    given = listed(who, argument, matrices, "MPSMatrix")
    if not given:
        raise MPSArgumentError(who, argument, "must hold at least one matrix", "none")
    if rows is not None:
        check_count(who, argument, given, len(rows), like)
    firsts = None if offsets is None else listed(who, offsets_argument, offsets, "int")
    if firsts is not None and len(firsts) != len(given):
        rule = f"must hold {len(given)} offsets, one for each of {argument}"
        raise MPSArgumentError(who, offsets_argument, rule, len(firsts))
    if firsts is None and (even := _even(given, command_buffer, columns, rows)) is not None:
        return even
    parts: list[Elements] = []
    for step, matrix in enumerate(given):
        name = f"{argument}[{step}]"
        whole = single_matrix(who, name, matrix, command_buffer)
        if firsts is not None:
            whole = _shifted(who, name, whole, f"{offsets_argument}[{step}]", firsts[step])
        (_, high, wide), kind = whole.shape
        wanted = high if rows is None else rows[step]
        if high < wanted or wide < columns:
            rule = f"must have {wanted} rows of {columns} elements"
            raise MPSArgumentError(who, name, rule, f"{high} rows of {wide}")
        if rows is None and parts and wanted > (most := parts[-1].shape.sizes[0]):
            raise MPSArgumentError(who, name, f"must have at most {most} rows, as many as the step before", wanted)
        parts.append(Elements(whole.buffer, whole.offset, ElementsShape((wanted, columns), kind), whole.strides[1:]))
    return SequenceOperand(given, _joined(parts), [part.shape.sizes[0] for part in parts])


def _declared(matrix: MPSMatrix, columns: int) -> SequenceOperand | None:
    """The sequence of the matrices of one; None where there are gaps between them, or one has to be refused."""
    whole = matrix.whole()
    (count, high, wide), kind = whole.shape
    if kind not in FLOATS or wide < columns or (count > 1 and whole.strides[0] != high * whole.strides[1]):
        return None
    shape = ElementsShape((count * high, columns), kind)
    operand = Elements(whole.buffer, whole.offset, shape, whole.strides[1:])
    return SequenceOperand((matrix,), operand, (high,) * count)


def _even(
    matrices: Sequence[Any], command_buffer: CommandBuffer, columns: int, rows: Sequence[int] | None
) -> SequenceOperand | None:
    """The sequence of ordinary matrices that follow one another in a buffer, told in few calls for all steps.

    None where they are others, or where one may have to be refused.
    """
    if {*map(type, matrices)} != {MPSMatrix}:
        return None
    first, count = matrices[0].whole(), len(matrices)
    (number, high, wide), kind = first.shape
    if number != 1 or kind not in FLOATS or wide < columns or first.buffer.device is not command_buffer.device:
        return None
    distance, begin = high * first.strides[1] * TORCH_TYPES[kind].itemsize, first.offset
    if (
        [*map(_form_of, matrices)].count((first.buffer, first.shape, first.strides)) < count
        or [*map(_offset_of, matrices)] != [*range(begin, begin + count * distance, distance)]
        or (rows is not None and [*rows] != [high] * count)
    ):
        return None
    shape = ElementsShape((count * high, columns), kind)
    return SequenceOperand(matrices, Elements(first.buffer, begin, shape, first.strides[1:]), [high] * count)


_form_of, _offset_of = attrgetter("_memory.buffer", "_elements", "_strides"), attrgetter("_offset")


def single_matrix(who: str, argument: str, matrix: Any, command_buffer: CommandBuffer) -> Elements:
    """All of a matrix of numbers that can be used, and is one."""
    if not isinstance(matrix, MPSMatrix):
        raise MPSTypeError(who, argument, "must be an MPSMatrix", type(matrix).__name__)
    matrix.check_usable(who, argument, command_buffer)
    whole = matrix.whole()
    if whole.shape.sizes[0] != 1:
        rule = "must hold one matrix: a step is a matrix of its own"
        raise MPSArgumentError(who, argument, rule, whole.shape.sizes[0])
    if whole.shape.stored_as not in FLOATS:
        rule = f"must hold {' or '.join(each.name for each in FLOATS)}"
        raise MPSArgumentError(who, argument, rule, whole.shape.stored_as.name)
    return whole


def _shifted(who: str, argument: str, whole: Elements, offset_argument: str, offset: Any) -> Elements:
    """A matrix that begins some bytes further on in its buffer, which must hold it there."""
    offset, unit = integer(who, offset_argument, offset, 0), TORCH_TYPES[whole.shape.stored_as].itemsize
    if offset % unit:
        raise MPSArgumentError(who, offset_argument, f"must be a multiple of {unit}, the bytes of an element", offset)
    first = whole.offset + offset
    needed = first + whole.count * unit
    if needed > whole.buffer.length:
        rule = f"must hold the matrix from byte {first} on, to byte {needed}"
        raise MPSArgumentError(who, argument, rule, f"a buffer of {whole.buffer.length} bytes")
    return Elements(whole.buffer, first, whole.shape, whole.strides)


def count_of(who: str, argument: str, matrices: Any) -> int:
    """How many matrices a list, or another sequence of them, holds."""
    return len(matrices if isinstance(matrices, MatrixSequence) else listed(who, argument, matrices, "MPSMatrix"))


def check_count(who: str, argument: str, matrices: Sequence[object], count: int, like: str) -> None:
    """Raise unless there are as many matrices as in another list."""
    if len(matrices) != count:
        raise MPSArgumentError(who, argument, f"must hold {count}, as many as {like}", len(matrices))


@lru_cache(maxsize=256)
def matrix_argument(name: str, *, is_result: bool = False) -> Argument:
    """The matrices of all steps, or one of a state."""
    return Argument(name, (MPSMatrix, SequenceOperand), FLOATS, is_result=is_result)
