"""What kernels over matrices share: origins, sizes, batches (MPSMatrixTypes.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from openmps.core.elements import Part
from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, at_least
from openmps.core.kernel.operands import OperandContext, OperandKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MTLOrigin

ORIGIN = MTLOrigin(0, 0, 0)


def matrix_origin(who: str, argument: str, value: MTLOrigin) -> MTLOrigin:
    """A position in a matrix: ``x`` is its row, ``y`` its column, and ``z`` must be 0."""
    if not isinstance(value, MTLOrigin):
        raise MPSTypeError(who, argument, "must be an MTLOrigin(row, column, 0)", type(value).__name__)
    if value.z != 0:
        raise MPSArgumentError(who, f"{argument}.z", "must be 0", value.z, "Choose a matrix by its index")
    return value


class BatchKernel(OperandKernel):
    """A kernel that works on some of several vectors or matrices, the same ones of all its operands."""

    batch_start = KernelProperty(0, at_least(0), "The first of several vectors or matrices that is used. Default 0.")
    batch_size = KernelProperty(
        ULONG_MAX,
        at_least(1),
        "How many of several vectors or matrices are used, at most those there are. Default: all.",
    )

    def _members(self, at: OperandContext, *names: str) -> slice:
        """Which vectors or matrices an encode works on: those of the range that all these operands have."""
        fewest = min((name for name in names if at.has(name)), key=lambda name: at.sizes(name)[0])
        count = at.sizes(fewest)[0]
        if self.batch_start >= count:
            rule = f"must be below {count}, as many as {fewest} holds"
            raise MPSArgumentError(self.name, "batch_start", rule, self.batch_start)
        return slice(self.batch_start, min(count, self.batch_start + self.batch_size))


class PartsKernel(OperandKernel):
    """A kernel over parts of matrices and vectors."""

    _origins: ClassVar[Mapping[str, str]] = {}
    """The property that says where the part of an operand begins; at its first element without one."""

    def _available(self, at: OperandContext, name: str) -> tuple[int, int]:
        """Rows and columns of a matrix from its origin on."""
        _, rows, columns = at.sizes(name)
        if name not in self._origins:
            return rows, columns
        origin: MTLOrigin = getattr(self, self._origins[name])
        if origin.x >= rows or origin.y >= columns:
            rule = f"must lie within {name}, {rows} rows of {columns} elements"
            raise MPSArgumentError(self.name, self._origins[name], rule, f"row {origin.x}, column {origin.y}")
        return rows - origin.x, columns - origin.y

    def _part(self, at: OperandContext, name: str, members: slice, rows: int, columns: int) -> Part:
        """The part of a matrix of this size; raises where the matrix is too small for it."""
        most_rows, most_columns = self._available(at, name)
        if rows > most_rows or columns > most_columns:
            origin = self._origin(name)
            where = "" if origin == ORIGIN else f" from row {origin.x}, column {origin.y} on"
            rule = f"must have {rows} rows of {columns} elements{where}"
            raise MPSArgumentError(self.name, name, rule, f"{most_rows} rows of {most_columns}")
        first = self._origin(name)
        return members, slice(first.x, first.x + rows), slice(first.y, first.y + columns)

    def _origin(self, name: str) -> MTLOrigin:
        return getattr(self, self._origins[name]) if name in self._origins else ORIGIN

    def _row(self, at: OperandContext, name: str, members: slice, length: int, first: int = 0) -> Part:
        """The part of a vector; the only one of an operand stands for every matrix, unless it is written."""
        vectors, longest = at.sizes(name)
        if first + length > longest:
            rule = f"must hold {length} elements" + (f" from element {first} on" if first else "")
            raise MPSArgumentError(self.name, name, rule, max(0, longest - first))
        return slice(0, 1) if vectors == 1 and not at.is_result(name) else members, slice(first, first + length)

    def _check_single(self, at: OperandContext, name: str) -> None:
        """Raise unless an operand is one matrix."""
        if at.sizes(name)[0] != 1:
            remedy = "View one of them in its buffer"
            raise MPSArgumentError(self.name, name, "must be a single matrix", at.sizes(name)[0], remedy)


class MatrixKernel(BatchKernel, PartsKernel):
    """A kernel over parts of matrices, of which it takes some."""

    def _batch(self, at: OperandContext, matrices: Iterable[str], vectors: Iterable[str] = ()) -> slice:
        """`_members` of matrices and vectors: the only vector of an operand stands for every matrix."""
        several = (name for name in vectors if at.has(name) and (at.is_result(name) or at.sizes(name)[0] > 1))
        return self._members(at, *matrices, *several)


class MPSMatrixUnaryKernel(MatrixKernel):
    """The base of kernels that read one matrix and write one (MPSMatrixTypes.h, macOS 10.13).

    Origins are positions in the matrices as they are stored: ``x`` is the row, ``y`` the column, ``z`` must be 0. What
    lies outside the part that an encode writes stays as it is. Of operands of several matrices those are used that all
    of them have, from `batch_start` on, at most `batch_size`.

    Raises:
        MPSTypeError: An object of this base class is made: use one of its subclasses.
    """

    _is_abstract = True

    source_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the part of the source begins. Default (0, 0, 0)."
    )
    result_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the part of the result begins. Default (0, 0, 0)."
    )


class MPSMatrixBinaryKernel(MatrixKernel):
    """The base of kernels that read two matrices and write one (MPSMatrixTypes.h, macOS 10.13).

    Origins and batches are as in `MPSMatrixUnaryKernel`.

    Raises:
        MPSTypeError: An object of this base class is made: use one of its subclasses.
    """

    _is_abstract = True

    primary_source_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the part of the first source begins. Default (0, 0, 0)."
    )
    secondary_source_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the part of the second source begins. Default (0, 0, 0)."
    )
    result_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the part of the result begins. Default (0, 0, 0)."
    )
