"""Sums of parts of matrices (MPSMatrixSum.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.checks import Shown, flag, listed, whole
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.matrices import ORIGIN, matrix_origin
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.numbers import integer
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError
from openmps.kernels.matrix.activation import NeuronSetting
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.combination import SumOfParts, Transposed
from openmps.ops.op import Value
from openmps.types import MPSDataType

_BESIDES = (
    Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    Argument("scale_vector", MPSVector, (MPSDataType.FLOAT32,), is_optional=True),
    Argument("offset_vector", MPSVector, (MPSDataType.UINT32,), is_optional=True),
    Argument("bias_vector", MPSVector, FLOATS, is_optional=True),
)


class MPSMatrixSum(NeuronSetting):
    """R = f(S + bias) with S = sum_m scale[m] B_m (MPSMatrixSum.h, macOS 10.13).

    B_m are ``rows x columns`` elements of each of ``count`` matrices. With ``transpose`` S is transposed before the
    bias is added, one number a column of R. Scales and offsets, FLOAT32 and UINT32, are read from number, and pair,
    ``start_index`` on; an offset is the row and the column at which the part of a matrix begins, and what lies beyond
    the matrix counts 0. Without scales they are 1, without offsets 0, without a bias it is 0. R begins at
    `result_matrix_origin`. f is the identity until `set_neuron_type` sets another one. All matrices are single ones.
    Under the convention ``matrix_sum_bias`` "stored" the bias is one number a column of S, before it is transposed;
    under ``matrix_sum_scales`` "nothing" matrices without a scale add nothing; under ``matrix_sum_result`` "cut" the
    result may be smaller than R, and holds what fits; under ``matrix_sum_of_one`` "refused" ``count`` is at least 2.

    Raises:
        MPSArgumentError: A size is not positive, or ``count`` is 1 where that is refused; in an encode, there are not
            ``count`` matrices, one is too small or is one of several, or a vector is too short.
    """

    count = Fixed[int]("How many matrices are added.")
    rows = Fixed[int]("Rows of the sum, before it is transposed.")
    columns = Fixed[int]("Columns of the sum, before it is transposed.")
    transpose = Fixed[bool]("Whether the sum is transposed.")
    result_matrix_origin = KernelProperty(
        ORIGIN, matrix_origin, "Where the result begins. Default (0, 0, 0). macOS 10.15."
    )
    neuron_parameter_a = Shown[float]("_neuron.a", "Parameter a of the neuron.")
    neuron_parameter_b = Shown[float]("_neuron.b", "Parameter b of the neuron.")
    neuron_parameter_c = Shown[float]("_neuron.c", "Parameter c of the neuron.")
    _origins = {"result_matrix": "result_matrix_origin"}  # noqa: RUF012

    def __init__(self, device: MTLDevice, count: int, rows: int, columns: int, transpose: bool) -> None:
        super().__init__(device)
        least = 2 if self.conventions["matrix_sum_of_one"] == "refused" else 1
        self._change(
            count=whole(self.name, "count", count, least),
            rows=whole(self.name, "rows", rows),
            columns=whole(self.name, "columns", columns),
            transpose=flag(self.name, "transpose", transpose),
        )

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_matrices: Sequence[MPSMatrix],
        result_matrix: MPSMatrix,
        scale_vector: MPSVector | None = None,
        offset_vector: MPSVector | None = None,
        bias_vector: MPSVector | None = None,
        start_index: int = 0,
    ) -> None:
        """Record the sum; all vectors may be None."""
        sources = listed(self.name, "source_matrices", source_matrices, "MPSMatrix")
        if len(sources) != self.count:
            raise MPSArgumentError(
                self.name, "source_matrices", f"must be {self.count} matrices, as count says", len(sources)
            )
        start = integer(self.name, "start_index", start_index)
        named = [Argument(f"source_matrices[{index}]", MPSMatrix, FLOATS) for index in range(self.count)]
        operands = *sources, result_matrix, scale_vector, offset_vector, bias_vector
        self._encode(command_buffer, *operands, arguments=(*named, *_BESIDES), asked=start)

    def _lower(self, at: OperandContext) -> None:
        parts = [self._source(at, f"source_matrices[{index}]") for index in range(self.count)]
        scales = self._run(at, "scale_vector", *self._scales(at))
        offsets = self._run(at, "offset_vector", 2 * at.asked, 2 * self.count)
        rows, columns = self._written(at)
        stored_rows, stored_columns = (columns, rows) if self.transpose else (rows, columns)
        total: Value = SumOfParts(stored_rows, stored_columns)(scales, offsets, *parts)
        is_late = self.transpose and self.conventions["matrix_sum_bias"] == "transposed"
        length, has_bias = columns if is_late else stored_columns, at.has("bias_vector")
        if is_late:
            total = Transposed()(total)
        bias = at.numbers("bias_vector", *self._row(at, "bias_vector", slice(0, 1), length)) if has_bias else None
        found = self._activated(at, total, bias, length)
        if self.transpose and not is_late:
            found = Transposed()(found)
        self._check_single(at, "result_matrix")
        at.store("result_matrix", found, *self._part(at, "result_matrix", slice(0, 1), rows, columns))

    def _scales(self, at: OperandContext) -> tuple[int, int]:
        """The first scale and how many are read: one a matrix, unless a convention lets the last ones be missing."""
        if self.conventions["matrix_sum_scales"] == "refused" or not at.has("scale_vector"):
            return at.asked, self.count
        length = at.sizes("scale_vector")[1]
        first = min(at.asked, length)
        return first, min(self.count, length - first)

    def _written(self, at: OperandContext) -> tuple[int, int]:
        """Rows and columns of R that are written: all, unless a convention lets the result be smaller."""
        rows, columns = (self.columns, self.rows) if self.transpose else (self.rows, self.columns)
        if self.conventions["matrix_sum_result"] == "refused":
            return rows, columns
        most_rows, most_columns = self._available(at, "result_matrix")
        return min(rows, most_rows), min(columns, most_columns)

    def _source(self, at: OperandContext, name: str) -> Value:
        """The numbers of a matrix: all, where offsets say which."""
        self._check_single(at, name)
        if at.has("offset_vector"):
            return at.numbers(name, 0)
        return at.numbers(name, 0, *self._part(at, name, slice(0, 1), self.rows, self.columns)[1:])

    def _run(self, at: OperandContext, name: str, first: int, length: int) -> Value | None:
        """Numbers of a vector; None of one that is left out."""
        return at.numbers(name, 0, self._row(at, name, slice(0, 1), length, first)[1]) if at.has(name) else None
