"""Soft-max of the rows of matrices, its logarithm, and gradients (MPSMatrixSoftMax.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from typing import ClassVar

from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, at_least
from openmps.core.kernel.matrices import MatrixKernel, MPSMatrixBinaryKernel, MPSMatrixUnaryKernel
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.rows import RowSoftMax, RowSoftMaxGradient


class _SoftMaxKernel(MatrixKernel):
    """What soft-max and its gradient share: one size of all operands, and one type."""

    _is_logarithm: ClassVar[bool] = False

    source_rows = KernelProperty(ULONG_MAX, at_least(1), "Rows that are used, at most those there are. Default: all.")
    source_columns = KernelProperty(
        ULONG_MAX, at_least(1), "Columns that are used, at most those there are. Default: all."
    )

    def _lower(self, at: OperandContext) -> None:
        *sources, result = names = [argument.name for argument in self._arguments]
        first = at.shape(names[0]).stored_as
        for name in names[1:]:
            if at.shape(name).stored_as is not first:
                rule = f"must hold {first.name}, as {names[0]} does"
                raise MPSArgumentError(self.name, name, rule, at.shape(name).stored_as.name)
        members = self._members(at, *names)
        most = [self._available(at, name) for name in sources]
        size = min(self.source_rows, *(rows for rows, _ in most)), min(self.source_columns, *(each for _, each in most))
        numbers = [at.numbers(name, *self._part(at, name, members, *size)) for name in sources]
        op = (RowSoftMax if len(sources) == 1 else RowSoftMaxGradient)(self._is_logarithm)
        at.store(result, op(*numbers), *self._part(at, result, members, *size))


class MPSMatrixSoftMax(_SoftMaxKernel, MPSMatrixUnaryKernel):
    """B[i, j] = exp(A[i, j]) / sum_k exp(A[i, k]), over the columns of each row (MPSMatrixSoftMax.h, macOS 10.13).

    Used are `source_rows` and `source_columns` of the source from `source_matrix_origin` on. Both matrices are of
    FLOAT32 or both of FLOAT16.

    Raises:
        MPSArgumentError: In an encode, the types differ, an origin lies outside, or the result is too small.
    """

    _arguments = (
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {"input_matrix": "source_matrix_origin", "result_matrix": "result_matrix_origin"}  # noqa: RUF012

    def encode(self, command_buffer: CommandBuffer, input_matrix: MPSMatrix, result_matrix: MPSMatrix) -> None:
        """Record it."""
        self._encode(command_buffer, input_matrix, result_matrix)


class MPSMatrixLogSoftMax(MPSMatrixSoftMax):
    """B[i, j] = A[i, j] - ln sum_k exp(A[i, k]), over the columns of each row (MPSMatrixSoftMax.h, macOS 10.13)."""

    _is_logarithm = True


class MPSMatrixSoftMaxGradient(_SoftMaxKernel, MPSMatrixBinaryKernel):
    """dA[i, j] = B[i, j] (G[i, j] - sum_k G[i, k] B[i, k]) (MPSMatrixSoftMax.h, macOS 10.14).

    The first source is the gradient G, the second the forward **result** B. Used are `source_rows` and `source_columns`
    of both, each from its origin on. All matrices are of FLOAT32 or all of FLOAT16.

    Raises:
        MPSArgumentError: In an encode, the types differ, an origin lies outside, or the result is too small.
    """

    _arguments = (
        Argument("gradient_matrix", MPSMatrix, FLOATS),
        Argument("forward_output_matrix", MPSMatrix, FLOATS),
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {  # noqa: RUF012
        "gradient_matrix": "primary_source_matrix_origin",
        "forward_output_matrix": "secondary_source_matrix_origin",
        "result_matrix": "result_matrix_origin",
    }

    def encode(
        self,
        command_buffer: CommandBuffer,
        gradient_matrix: MPSMatrix,
        forward_output_matrix: MPSMatrix,
        result_matrix: MPSMatrix,
    ) -> None:
        """Record it."""
        self._encode(command_buffer, gradient_matrix, forward_output_matrix, result_matrix)


class MPSMatrixLogSoftMaxGradient(MPSMatrixSoftMaxGradient):
    """dA[i, j] = G[i, j] - exp(B[i, j]) sum_k G[i, k] (MPSMatrixSoftMax.h, macOS 10.14).

    B is the forward result, the logarithms. The header prints the sum within the exponential; this is the derivative.
    """

    _is_logarithm = True
