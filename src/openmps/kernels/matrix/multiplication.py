"""Products of matrices, and of matrices and vectors (MPSMatrixMultiplication.h, macOS 10.13)."""

from __future__ import annotations

from typing import overload

from openmps.checks import flag, number, whole
from openmps.core.elements import Part
from openmps.core.kernel.configuration import ULONG_MAX, Configured, Fixed, KernelProperty, at_least
from openmps.core.kernel.matrices import ORIGIN, MatrixKernel, MPSMatrixBinaryKernel, matrix_origin
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.multiplication import MatrixProduct, VectorProduct
from openmps.selectors import takes
from openmps.types import MPSDataType

_RESULTS = {
    MPSDataType.FLOAT32: (MPSDataType.FLOAT32,),
    MPSDataType.FLOAT16: FLOATS,
    MPSDataType.INT16: (MPSDataType.FLOAT32,),
    MPSDataType.INT8: FLOATS,
}
"""The types that a result may have, by the type of both factors."""


_ALL_ARGUMENTS = (
    *("device", "transpose_left", "transpose_right", "result_rows", "result_columns", "interior_columns"),
    *("alpha", "beta"),
)
"""Of a matrix product, in the order of the longer initializer."""


class _Product(MatrixKernel):
    """What the products share."""

    alpha = Fixed[float]("Factor of the product. Our addition.")
    beta = Fixed[float]("Factor of what the result holds before, which is not read where it is 0. Our addition.")

    def _check_types(self, at: OperandContext, left: str, right: str, result: str) -> None:
        first, second, stored = (at.shape(name).stored_as for name in (left, right, result))
        if second is not first:
            raise MPSArgumentError(self.name, right, f"must hold {first.name}, as {left} does", second.name)
        if stored not in _RESULTS[first]:
            rule = f"must hold {' or '.join(each.name for each in _RESULTS[first])} of factors of {first.name}"
            raise MPSArgumentError(self.name, result, rule, stored.name)


class _BatchSize(KernelProperty[int]):
    """How many matrices a product uses: 0 by a convention alone."""

    def __set__(self, kernel: Configured, value: int) -> None:
        if kernel.conventions["matrix_product_batches"] == "range":
            whole(kernel.name, self._name, value)
        super().__set__(kernel, value)


class MPSMatrixMultiplication(_Product):
    """C = alpha op(A) op(B) + beta C, where op(X) is X or its transpose (MPSMatrixMultiplication.h, macOS 10.13).

    op(A) is ``result_rows x interior_columns``, op(B) ``interior_columns x result_columns``; each matrix is read, and
    C is read and written, from its origin on, a position in the matrix as it is stored. With ``beta`` 0 C is not read.
    Positional arguments are ``(device, result_rows, result_columns, interior_columns)``, or all eight with the two
    transpositions first. A and B are of one type: FLOAT32 gives FLOAT32, FLOAT16 and INT8 either type of floats, INT16
    FLOAT32. Sums are of float32, rounded once. Under the convention ``matrix_product_batches`` "first" `batch_start`
    counts for nothing, and with a `batch_size` of 0 nothing is written.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix is too small or of another type.
    """

    _arguments = (
        Argument("left_matrix", MPSMatrix, _RESULTS),
        Argument("right_matrix", MPSMatrix, _RESULTS),
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {name: f"{name}_origin" for name in ("left_matrix", "right_matrix", "result_matrix")}  # noqa: RUF012

    batch_size = _BatchSize(ULONG_MAX, at_least(0), "How many of several matrices are used. Default: all there are.")
    left_matrix_origin = KernelProperty(ORIGIN, matrix_origin, "Where the part of A begins. Default (0, 0, 0).")
    right_matrix_origin = KernelProperty(ORIGIN, matrix_origin, "Where the part of B begins. Default (0, 0, 0).")
    result_matrix_origin = KernelProperty(ORIGIN, matrix_origin, "Where the part of C begins. Default (0, 0, 0).")
    transpose_left = Fixed[bool]("Whether op(A) is the transpose of A. Our addition.")
    transpose_right = Fixed[bool]("Whether op(B) is the transpose of B. Our addition.")
    result_rows = Fixed[int]("Rows of op(A) and of the part of C. Our addition.")
    result_columns = Fixed[int]("Columns of op(B) and of the part of C. Our addition.")
    interior_columns = Fixed[int]("Columns of op(A), and rows of op(B). Our addition.")

    @overload
    def __init__(
        self, device: MTLDevice, transpose_left: bool, transpose_right: bool, result_rows: int, result_columns: int,
        interior_columns: int, alpha: float, beta: float, /,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, device: MTLDevice, result_rows: int, result_columns: int, interior_columns: int, *,
        transpose_left: bool = False, transpose_right: bool = False, alpha: float = 1.0, beta: float = 0.0,
    ) -> None: ...  # fmt: skip
    @takes(dict.fromkeys(_ALL_ARGUMENTS, object))
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        result_rows: int,
        result_columns: int,
        interior_columns: int,
        *,
        transpose_left: bool = False,
        transpose_right: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(device)
        self._change(
            result_rows=whole(self.name, "result_rows", result_rows),
            result_columns=whole(self.name, "result_columns", result_columns),
            interior_columns=whole(self.name, "interior_columns", interior_columns),
            transpose_left=flag(self.name, "transpose_left", transpose_left),
            transpose_right=flag(self.name, "transpose_right", transpose_right),
            alpha=number(self.name, "alpha", alpha),
            beta=number(self.name, "beta", beta),
        )

    def encode(
        self, command_buffer: CommandBuffer, left_matrix: MPSMatrix, right_matrix: MPSMatrix, result_matrix: MPSMatrix
    ) -> None:
        """Record the product of A and B, to C; of several matrices each with those of the same index."""
        self._encode(command_buffer, left_matrix, right_matrix, result_matrix)

    def _members(self, at: OperandContext, *names: str) -> slice:
        """As of other kernels, unless a convention leaves out where they begin."""
        if self.conventions["matrix_product_batches"] == "range":
            return super()._members(at, *names)
        return slice(0, min(self.batch_size, *(at.sizes(name)[0] for name in names)))

    def _lower(self, at: OperandContext) -> None:
        names = left, right, result = ("left_matrix", "right_matrix", "result_matrix")
        self._check_types(at, *names)
        members = self._members(at, *names)
        inner, rows, columns = self.interior_columns, self.result_rows, self.result_columns
        sizes = (
            (inner, rows) if self.transpose_left else (rows, inner),
            (columns, inner) if self.transpose_right else (inner, columns),
            (rows, columns),
        )
        parts = [self._part(at, name, members, *size) for name, size in zip(names, sizes, strict=True)]
        addend = at.numbers(result, *parts[2]) if self.beta else None
        product = MatrixProduct(self.transpose_left, self.transpose_right, self.alpha, self.beta)
        factors = at.numbers(left, *parts[0]), at.numbers(right, *parts[1])
        at.store(result, product(*factors, addend), *parts[2])


class MPSMatrixVectorMultiplication(_Product, MPSMatrixBinaryKernel):
    """y = alpha op(A) x + beta y, where op(A) is A or its transpose (MPSMatrixMultiplication.h, macOS 10.13).

    op(A) is ``rows x columns``. A begins at `primary_source_matrix_origin`, x at element ``x`` of
    `secondary_source_matrix_origin`, y at that of `result_matrix_origin`; the ``y`` of these two must be 0. Positional
    arguments are ``(device, rows, columns)``, or all six with the transposition first. Types are those of
    `MPSMatrixMultiplication`; vector k goes with matrix k.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, the matrix or a vector is too small or of another type.
    """

    _arguments = (
        Argument("input_matrix", MPSMatrix, _RESULTS),
        Argument("input_vector", MPSVector, _RESULTS),
        Argument("result_vector", MPSVector, FLOATS, is_result=True),
    )
    _origins = {  # noqa: RUF012
        "input_matrix": "primary_source_matrix_origin",
        "input_vector": "secondary_source_matrix_origin",
        "result_vector": "result_matrix_origin",
    }

    transpose = Fixed[bool]("Whether op(A) is the transpose of A. Our addition.")
    rows = Fixed[int]("Rows of op(A), elements of y. Our addition.")
    columns = Fixed[int]("Columns of op(A), elements of x. Our addition.")

    @overload
    def __init__(
        self, device: MTLDevice, transpose: bool, rows: int, columns: int, alpha: float, beta: float, /
    ) -> None: ...
    @overload
    def __init__(
        self, device: MTLDevice, rows: int, columns: int, *, transpose: bool = False, alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None: ...  # fmt: skip
    @takes(dict.fromkeys(("device", "transpose", "rows", "columns", "alpha", "beta"), object))
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        rows: int,
        columns: int,
        *,
        transpose: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(device)
        self._change(
            rows=whole(self.name, "rows", rows),
            columns=whole(self.name, "columns", columns),
            transpose=flag(self.name, "transpose", transpose),
            alpha=number(self.name, "alpha", alpha),
            beta=number(self.name, "beta", beta),
        )

    def encode(
        self, command_buffer: CommandBuffer, input_matrix: MPSMatrix, input_vector: MPSVector, result_vector: MPSVector
    ) -> None:
        """Record the product of A and x, to y; of several each with those of the same index."""
        self._encode(command_buffer, input_matrix, input_vector, result_vector)

    def _lower(self, at: OperandContext) -> None:
        names = matrix, vector, result = ("input_matrix", "input_vector", "result_vector")
        self._check_types(at, *names)
        members = self._members(at, *names)
        size = (self.columns, self.rows) if self.transpose else (self.rows, self.columns)
        part = self._part(at, matrix, members, *size)
        source, target = self._run(at, vector, members, self.columns), self._run(at, result, members, self.rows)
        addend = at.numbers(result, *target) if self.beta else None
        product = VectorProduct(self.transpose, self.alpha, self.beta)
        at.store(result, product(at.numbers(matrix, *part), at.numbers(vector, *source), addend), *target)

    def _run(self, at: OperandContext, name: str, members: slice, length: int) -> Part:
        """The elements of a vector from its origin on."""
        origin = self._origin(name)
        if origin.y:
            raise MPSArgumentError(self.name, f"{self._origins[name]}.y", "must be 0 for a vector", origin.y)
        return members, self._row(at, name, members, length, origin.x)[1]
