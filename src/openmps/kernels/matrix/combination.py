"""Copies of parts of matrices, several at once (MPSMatrixCombination.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openmps.checks import NamedAttributes, flag, is_whole, listed, of_kind, whole
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.matrices import PartsKernel
from openmps.core.kernel.operands import Argument, OperandContext
from openmps.core.lifetime import check_is_device
from openmps.core.numbers import integer
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.combination import Copied, CopyElements
from openmps.ops.op import Value
from openmps.selectors import Factory, takes
from openmps.types import MPSDataType, MPSMatrixCopyOffsets

_WORDS = (MPSDataType.UINT32,)
_OFFSETS_BYTES, _WORD_BYTES = 16, 4
_Operation = tuple[MPSMatrix, MPSMatrix, MPSMatrixCopyOffsets]
_ZEROS = MPSMatrixCopyOffsets()


class MPSMatrixCopyDescriptor(NamedAttributes):
    """A list of copies: matrices, and where the parts begin (MPSMatrixCombination.h, macOS 10.13).

    ``MPSMatrixCopyDescriptor(source_matrix, destination_matrix, offsets)`` is one copy;
    ``MPSMatrixCopyDescriptor(device, count)`` as many, each to be set by `set_copy_operation_at_index`;
    ``MPSMatrixCopyDescriptor(source_matrices, destination_matrices, offset_vector, offset)`` reads the offsets of each
    from a UINT32 vector when the copy runs, four numbers as in `MPSMatrixCopyOffsets`, from byte ``offset`` on, a
    multiple of 16; without a vector they are 0.

    Raises:
        MPSArgumentError: There is no copy, the lists differ in length, or the vector is too short or of another type.
        MPSTypeError: An argument is of another class.
    """

    descriptor = Factory("descriptorWithSourceMatrix:destinationMatrix:offsets:")

    @takes(
        {"device": MTLDevice, "count": is_whole},
        {"source_matrices": Sequence, "destination_matrices": Sequence, "offset_vector": object, "offset": is_whole},
    )
    def __init__(
        self,
        source_matrix: MPSMatrix | None = None,
        destination_matrix: MPSMatrix | None = None,
        offsets: MPSMatrixCopyOffsets = _ZEROS,
        *,
        device: MTLDevice | None = None,
        count: int | None = None,
        source_matrices: Sequence[MPSMatrix] | None = None,
        destination_matrices: Sequence[MPSMatrix] | None = None,
        offset_vector: MPSVector | None = None,
        offset: int = 0,
    ) -> None:
        who = "MPSMatrixCopyDescriptor"
        self._vector, self._first = None, 0
        if count is not None:
            check_is_device(who, "device", device)
            self._count, operations = whole(who, "count", count), list[_Operation]()
        elif source_matrices is not None:
            sources = listed(who, "source_matrices", source_matrices, "MPSMatrix")
            targets = listed(who, "destination_matrices", destination_matrices, "MPSMatrix")
            if not sources or len(sources) != len(targets):
                rule = f"must be as many as source_matrices, {len(sources)}, and at least one"
                raise MPSArgumentError(who, "destination_matrices", rule, len(targets))
            operations = [_operation(who, *pair, _ZEROS) for pair in zip(sources, targets, strict=True)]
            if offset_vector is not None:
                self._vector = of_kind(who, "offset_vector", offset_vector, MPSVector)
                self._first = _first_offset(who, self._vector, offset, len(sources))
        else:
            operations = [_operation(who, source_matrix, destination_matrix, offsets)]
        if count is None:
            self._count = len(operations)
        self._operations = dict(enumerate(operations))

    def set_copy_operation_at_index(
        self,
        index: int,
        source_matrix: MPSMatrix,
        destination_matrix: MPSMatrix,
        offsets: MPSMatrixCopyOffsets = _ZEROS,
    ) -> None:
        """Set one of the copies.

        Raises:
            MPSArgumentError: There is no such copy.
            MPSTypeError: An argument is of another class.
        """
        who = "MPSMatrixCopyDescriptor"
        most = self._count
        place = integer(who, "index", index, 0, most - 1, rule=f"must be an integer of 0 to {most - 1}")
        self._operations[place] = _operation(who, source_matrix, destination_matrix, offsets)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._count} to copy, {self._count - len(self._operations)} not set>"

    def operations(self, who: str) -> list[_Operation]:
        """All copies, for an encode of ``who``; raises where one is not set."""
        for index in range(self._count):
            if index not in self._operations:
                remedy = "Call set_copy_operation_at_index for each index"
                raise MPSArgumentError(who, "copy_descriptor", f"must have copy {index} set", None, remedy)
        return [self._operations[index] for index in range(self._count)]

    def offset_vector(self) -> tuple[MPSVector | None, int]:
        """The vector that holds the offsets, if there is one, and its element that is the first of them."""
        return self._vector, self._first


def _operation(who: str, source: object, target: object, offsets: object) -> _Operation:
    return (
        of_kind(who, "source_matrix", source, MPSMatrix),
        of_kind(who, "destination_matrix", target, MPSMatrix),
        of_kind(who, "offsets", offsets, MPSMatrixCopyOffsets),
    )


def _first_offset(who: str, vector: MPSVector, offset: object, count: int) -> int:
    """Which element of a vector is the first offset."""
    if not is_whole(offset, 0) or offset % _OFFSETS_BYTES:
        raise MPSArgumentError(who, "offset", f"must be a multiple of {_OFFSETS_BYTES} bytes, at least 0", repr(offset))
    first = offset // _WORD_BYTES
    if vector.length < first + 4 * count:
        rule = f"must hold {first + 4 * count} numbers, four for each copy from byte {offset} on"
        raise MPSArgumentError(who, "offset_vector", rule, vector.length)
    return first


class MPSMatrixCopy(PartsKernel):
    """D[row + i, column + j] = S[row' + i, column' + j] for some i and j (MPSMatrixCombination.h, macOS 10.13).

    An encode does all copies of an `MPSMatrixCopyDescriptor`, in any order, each of ``copy_rows x copy_columns``.
    Matrices that are transposed are stored in column-major order: their element ``[i, j]`` lies at ``[j, i]``, and
    offsets count rows and columns so. With indices for a permutation, UINT32, element i goes to row
    ``row_permute_indices[row_permute_offset + i]`` plus the offset, of the destination as it is stored; columns alike.
    Where an index repeats, it is not said which element stays. Offsets and indices that are read when the copy runs may
    lie outside: nothing is read or written there. Both matrices of a copy are single ones of one type, of any; the rest
    of the destination stays as it is.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix is too small, is one of several, or of another
            type, a copy is not set, or there are too few indices.
    """

    copy_rows = Fixed[int]("Rows of each copy.")
    copy_columns = Fixed[int]("Columns of each copy.")
    sources_are_transposed = Fixed[bool]("Whether sources are stored in column-major order.")
    destinations_are_transposed = Fixed[bool]("Whether destinations are stored in column-major order.")

    def __init__(
        self,
        device: MTLDevice,
        copy_rows: int,
        copy_columns: int,
        sources_are_transposed: bool,
        destinations_are_transposed: bool,
    ) -> None:
        super().__init__(device)
        self._change(
            copy_rows=whole(self.name, "copy_rows", copy_rows),
            copy_columns=whole(self.name, "copy_columns", copy_columns),
            sources_are_transposed=flag(self.name, "sources_are_transposed", sources_are_transposed),
            destinations_are_transposed=flag(self.name, "destinations_are_transposed", destinations_are_transposed),
        )

    def encode(
        self,
        command_buffer: CommandBuffer,
        copy_descriptor: MPSMatrixCopyDescriptor,
        row_permute_indices: MPSVector | None = None,
        row_permute_offset: int = 0,
        column_permute_indices: MPSVector | None = None,
        column_permute_offset: int = 0,
    ) -> None:
        """Record the copies; offsets of permutations are counted in indices."""
        who = self.name
        given = of_kind(who, "copy_descriptor", copy_descriptor, MPSMatrixCopyDescriptor)
        operations = given.operations(who)
        vector, first = given.offset_vector()
        starts = tuple(
            integer(who, f"{name}_permute_offset", value)
            for name, value in (("row", row_permute_offset), ("column", column_permute_offset))
        )
        offsets = tuple(each for _, _, each in operations)
        matrices = [matrix for source, target, _ in operations for matrix in (source, target)]
        self._encode(
            command_buffer,
            *(vector, row_permute_indices, column_permute_indices, *matrices),
            arguments=_arguments(len(operations)),
            asked=(offsets, first, starts),
        )

    def _lower(self, at: OperandContext) -> None:
        offsets, first, starts = at.asked
        rows, columns = self.copy_rows, self.copy_columns
        stored = (columns, rows) if self.destinations_are_transposed else (rows, columns)
        orders = [
            self._order(at, f"{name}_permute_indices", start, count)
            for name, start, count in zip(("row", "column"), starts, stored, strict=True)
        ]
        for index, each in enumerate(offsets):
            source, target = _names(index)
            self._check_single(at, source)
            self._check_single(at, target)
            if at.shape(target).stored_as is not at.shape(source).stored_as:
                rule = f"must hold {at.shape(source).stored_as.name}, as {source} does"
                raise MPSArgumentError(self.name, target, rule, at.shape(target).stored_as.name)
            if at.has("offset_vector"):
                place = slice(first + 4 * index, first + 4 * index + 4)
                self._copy_anywhere(at, source, target, at.elements("offset_vector", 0, place), orders)
                continue
            taken = self._stored_part(at, source, each.source_row_offset, each.source_column_offset)
            if any(order is not None for order in orders):
                numbers = np.array([each.source_row_offset, each.source_column_offset,
                                    each.destination_row_offset, each.destination_column_offset])  # fmt: skip
                self._copy_anywhere(at, source, target, at.constant(numbers), orders)
            else:
                is_turned = self.sources_are_transposed != self.destinations_are_transposed
                moved = Copied(is_turned)(at.elements(source, *taken))
                place = self._stored_part(at, target, each.destination_row_offset, each.destination_column_offset)
                at.store_elements(target, moved, *place)

    def _copy_anywhere(
        self, at: OperandContext, source: str, target: str, offsets: Value, orders: Sequence[Value | None]
    ) -> None:
        """A copy whose places are known when it runs."""
        op = CopyElements(
            self.copy_rows, self.copy_columns, self.sources_are_transposed, self.destinations_are_transposed
        )
        op(at.elements(target, 0), at.elements(source, 0), offsets, *orders)

    def _order(self, at: OperandContext, name: str, start: int, count: int) -> Value | None:
        """The indices of a permutation; None where there are none."""
        if not at.has(name):
            return None
        length = at.sizes(name)[1]
        if start + count > length:
            rule = f"must hold {start + count} indices, {count} from index {start} on"
            raise MPSArgumentError(self.name, name, rule, length)
        return at.elements(name, 0, slice(start, start + count))

    def _stored_part(self, at: OperandContext, name: str, row: int, column: int) -> tuple[int, slice, slice]:
        """The part of a source or a destination, as it is stored."""
        is_source = name.startswith("source")
        is_turned = self.sources_are_transposed if is_source else self.destinations_are_transposed
        places = (row, self.copy_rows), (column, self.copy_columns)
        (row, rows), (column, columns) = reversed(places) if is_turned else places
        _, most_rows, most_columns = at.sizes(name)
        if row + rows > most_rows or column + columns > most_columns:
            rule = (
                f"must have {row + rows} rows of {column + columns} elements as it is stored: {rows} rows of {columns}"
            )
            rule += f" from row {row}, column {column} on"
            raise MPSArgumentError(self.name, name, rule, f"{most_rows} rows of {most_columns}")
        return 0, slice(row, row + rows), slice(column, column + columns)


def _names(index: int) -> tuple[str, str]:
    return f"source_matrices[{index}]", f"destination_matrices[{index}]"


def _arguments(count: int) -> tuple[Argument, ...]:
    """Those of an encode of so many copies."""
    vectors = ("offset_vector", "row_permute_indices", "column_permute_indices")
    found = [Argument(name, MPSVector, _WORDS, is_optional=True) for name in vectors]
    for source, target in map(_names, range(count)):
        found += [Argument(source, MPSMatrix), Argument(target, MPSMatrix, is_result=True)]
    return tuple(found)
