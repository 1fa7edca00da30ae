"""The largest numbers of each row of a matrix (MPSMatrixFindTopK.h, macOS 10.13.4)."""

from __future__ import annotations

from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, at_least
from openmps.core.kernel.matrices import MPSMatrixUnaryKernel
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.rows import Largest
from openmps.types import MPSDataType

_MOST = 16
_WORDS = 2**32


class MPSMatrixFindTopK(MPSMatrixUnaryKernel):
    """The k largest numbers of each row, in descending order, and their columns (MPSMatrixFindTopK.h, macOS 10.13.4).

    Used are `source_rows` and `source_columns` of the source from `source_matrix_origin` on. Columns count from there,
    plus `index_offset`. Of equal numbers the one of the lowest column comes first; NaN counts as the largest number.
    Values have the source's type, FLOAT32 or FLOAT16, indices are UINT32; both results begin at `result_matrix_origin`.

    Raises:
        MPSArgumentError: k is not 1 to 16; in an encode, the source has fewer than k columns, a type is another one, an
            origin lies outside, a result is too small, or an index would not fit 32 bits.
    """

    _arguments = (
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("result_index_matrix", MPSMatrix, (MPSDataType.UINT32,), is_result=True),
        Argument("result_value_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {  # noqa: RUF012
        "input_matrix": "source_matrix_origin",
        "result_index_matrix": "result_matrix_origin",
        "result_value_matrix": "result_matrix_origin",
    }

    number_of_top_k_values = KernelProperty(1, at_least(1, _MOST), "k: how many numbers of each row, 1 to 16.")
    source_rows = KernelProperty(ULONG_MAX, at_least(1), "Rows that are used, at most those there are. Default: all.")
    source_columns = KernelProperty(
        ULONG_MAX, at_least(1), "Columns that are used, at most those there are. Default: all."
    )
    index_offset = KernelProperty(0, at_least(0), "Added to every index. Default 0.")

    def __init__(self, device: MTLDevice, number_of_top_k_values: int) -> None:
        super().__init__(device)
        self.number_of_top_k_values = number_of_top_k_values

    def encode(
        self,
        command_buffer: CommandBuffer,
        input_matrix: MPSMatrix,
        result_index_matrix: MPSMatrix,
        result_value_matrix: MPSMatrix,
    ) -> None:
        """Record the search."""
        self._encode(command_buffer, input_matrix, result_index_matrix, result_value_matrix)

    def _lower(self, at: OperandContext) -> None:
        source, indices, values = (argument.name for argument in self._arguments)
        stored, wanted = at.shape(values).stored_as, at.shape(source).stored_as
        if stored is not wanted:
            raise MPSArgumentError(self.name, values, f"must hold {wanted.name}, as {source} does", stored.name)
        rows, columns = map(min, (self.source_rows, self.source_columns), self._available(at, source))
        k, first = self.number_of_top_k_values, self.index_offset
        if columns < k:
            raise MPSArgumentError(
                self.name, source, f"must have {k} columns that are used, one for each value", columns
            )
        if first + columns > _WORDS:
            raise MPSArgumentError(self.name, "index_offset", f"must be at most {_WORDS - columns}", first)
        members = self._members(at, source, indices, values)
        numbers = at.numbers(source, *self._part(at, source, members, rows, columns))
        found, places = Largest(k, first)(numbers)
        at.store(values, found, *self._part(at, values, members, rows, k))
        at.store_elements(indices, places, *self._part(at, indices, members, rows, k))
