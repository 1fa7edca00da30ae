"""Factorizations of matrices (MPSMatrixDecomposition.h, macOS 10.13)."""

from __future__ import annotations

from openmps.checks import flag, of_kind, whole
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.matrices import MPSMatrixUnaryKernel
from openmps.core.kernel.operands import Argument, OperandContext
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.matrix.linear_systems import Cholesky, Lu
from openmps.types import MPSDataType

_FLOAT32 = (MPSDataType.FLOAT32,)
_SOURCE = Argument("source_matrix", MPSMatrix, _FLOAT32)
_RESULT = Argument("result_matrix", MPSMatrix, _FLOAT32, is_result=True)
_STATUS = Argument("status", MPSVector, (MPSDataType.INT32,), is_result=True, is_optional=True)


class _Decomposition(MPSMatrixUnaryKernel):
    """What the factorizations share: where they begin, and the buffer of their status."""

    _origins = {"source_matrix": "source_matrix_origin", "result_matrix": "result_matrix_origin"}  # noqa: RUF012

    def _word(self, status: MTLBuffer | None) -> MPSVector | None:
        """The first int32 of a buffer."""
        if status is None:
            return None
        buffer = of_kind(self.name, "status", status, MTLBuffer)
        return MPSVector(buffer, MPSVectorDescriptor(1, MPSDataType.INT32))


class MPSMatrixDecompositionLU(_Decomposition):
    """P A = L U with partial pivoting, of ``rows x columns`` elements (MPSMatrixDecomposition.h, macOS 10.13).

    The result holds L below the diagonal, whose own diagonal is 1, and U on and above it. ``pivot_indices`` gets
    ``min(rows, columns)`` UINT32 numbers in its first row: row i was exchanged with row ``pivot_indices[i]``, in order,
    from 0 on. ``status`` gets an `MPSMatrixDecompositionStatus` as an int32: SINGULAR where a pivot is 0 or no number,
    where the elimination goes on with the next column; of several matrices the first that is not SUCCESS. The result
    may be the source.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix or the buffer is too small, or of another type.
    """

    _arguments = (
        _SOURCE,
        _RESULT,
        Argument("pivot_indices", MPSMatrix, (MPSDataType.UINT32,), is_result=True),
        _STATUS,
    )

    rows = Fixed[int]("Rows of A. Our addition.")
    columns = Fixed[int]("Columns of A. Our addition.")

    def __init__(self, device: MTLDevice, rows: int, columns: int) -> None:
        super().__init__(device)
        self._change(rows=whole(self.name, "rows", rows), columns=whole(self.name, "columns", columns))

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_matrix: MPSMatrix,
        result_matrix: MPSMatrix,
        pivot_indices: MPSMatrix,
        status: MTLBuffer | None = None,
    ) -> None:
        """Record the factorization; the status may be None."""
        self._encode(command_buffer, source_matrix, result_matrix, pivot_indices, self._word(status))

    def _lower(self, at: OperandContext) -> None:
        source, result, pivots, status = (argument.name for argument in self._arguments)
        members = self._members(at, source, result, pivots)
        place = self._part(at, source, members, self.rows, self.columns)
        factors, swaps, found = Lu(at.has(status))(at.numbers(source, *place))
        at.store(result, factors, *self._part(at, result, members, self.rows, self.columns))
        at.store_elements(pivots, swaps, *self._part(at, pivots, members, 1, min(self.rows, self.columns)))
        if at.has(status):
            at.store_elements(status, found)


class MPSMatrixDecompositionCholesky(_Decomposition):
    """A = L L^T, or A = U^T U, of a positive definite matrix (MPSMatrixDecomposition.h, macOS 10.13).

    With ``lower`` the lower triangle of A is read, and that of the result written; else the upper ones. The other
    triangle of the result stays as it is. ``status`` gets an `MPSMatrixDecompositionStatus` as an int32:
    NON_POSITIVE_DEFINITE where a pivot is not positive or no number; of several matrices the first that is not SUCCESS.
    Of such a matrix the columns (rows of U) before the pivot and the pivot itself are written. The result may be the
    source.

    Raises:
        MPSArgumentError: The order is not positive; in an encode, a matrix or the buffer is too small, or of another
            type.
    """

    _arguments = (_SOURCE, _RESULT, _STATUS)

    lower = Fixed[bool]("Whether the lower triangles are read and written. Our addition.")
    order = Fixed[int]("Rows and columns of A. Our addition.")

    def __init__(self, device: MTLDevice, lower: bool, order: int) -> None:
        super().__init__(device)
        self._change(lower=flag(self.name, "lower", lower), order=whole(self.name, "order", order))

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_matrix: MPSMatrix,
        result_matrix: MPSMatrix,
        status: MTLBuffer | None = None,
    ) -> None:
        """Record the factorization; the status may be None."""
        self._encode(command_buffer, source_matrix, result_matrix, self._word(status))

    def _lower(self, at: OperandContext) -> None:
        source, result, status = (argument.name for argument in self._arguments)
        members = self._members(at, source, result)
        place = self._part(at, result, members, self.order, self.order)
        x = at.numbers(source, *self._part(at, source, members, self.order, self.order))
        factor, found = Cholesky(self.lower, at.has(status))(x, at.numbers(result, *place))
        at.store(result, factor, *place)
        if at.has(status):
            at.store_elements(status, found)
