"""Solutions of linear systems of equations (MPSMatrixSolve.h, macOS 10.13)."""

from __future__ import annotations

from openmps.checks import flag, number, whole
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.matrices import MPSMatrixBinaryKernel
from openmps.core.kernel.operands import Argument, OperandContext
from openmps.core.vector import MPSMatrix
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.linear_systems import CholeskySolution, LuSolution, TriangularSolution
from openmps.ops.op import Op
from openmps.types import MPSDataType

_FLOAT32 = (MPSDataType.FLOAT32,)
_SOURCES = (
    Argument("source_matrix", MPSMatrix, _FLOAT32),
    Argument("right_hand_side_matrix", MPSMatrix, _FLOAT32),
)
_PIVOTS = Argument("pivot_indices", MPSMatrix, (MPSDataType.UINT32,))
_SOLUTION = Argument("solution_matrix", MPSMatrix, _FLOAT32, is_result=True)


class _Solve(MPSMatrixBinaryKernel):
    """What the solvers share: the sizes of a system, and where its matrices begin."""

    _arguments = (*_SOURCES, _SOLUTION)
    _origins = {  # noqa: RUF012
        "source_matrix": "primary_source_matrix_origin",
        "right_hand_side_matrix": "secondary_source_matrix_origin",
        "solution_matrix": "result_matrix_origin",
    }

    order = Fixed[int]("Rows and columns of A. Our addition.")
    number_of_right_hand_sides = Fixed[int](
        "Columns of B and of the solution, rows where A stands right. Our addition."
    )

    def _sized(self, order: int, number_of_right_hand_sides: int) -> None:
        self._change(
            order=whole(self.name, "order", order),
            number_of_right_hand_sides=whole(self.name, "number_of_right_hand_sides", number_of_right_hand_sides),
        )

    def _solve(self, at: OperandContext, op: Op, *, right: bool = False) -> None:
        """Store what an operation makes of the matrix, the right-hand sides and the pivots, if there are any."""
        names = [argument.name for argument in self._arguments]
        members = self._members(at, *names)
        shape = self.order, self.number_of_right_hand_sides
        sides = shape[::-1] if right else shape
        sizes = {names[0]: (self.order, self.order), names[1]: sides, _PIVOTS.name: (1, self.order)}
        read = [at.numbers(name, *self._part(at, name, members, *sizes[name])) for name in names[:-1]]
        at.store(names[-1], op(*read), *self._part(at, names[-1], members, *sides))


class _SolveByOne(_Solve):
    """A solver that reads one matrix and the right-hand sides."""

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_matrix: MPSMatrix,
        right_hand_side_matrix: MPSMatrix,
        solution_matrix: MPSMatrix,
    ) -> None:
        """Record the solution."""
        self._encode(command_buffer, source_matrix, right_hand_side_matrix, solution_matrix)


class MPSMatrixSolveTriangular(_SolveByOne):
    """X of op(A) X = alpha B, or of X op(A) = alpha B, with a triangular A (MPSMatrixSolve.h, macOS 10.13).

    op(A) is A or, with ``transpose``, its transpose; it stands on the right with ``right``. ``upper`` says which
    triangle A has as it is stored: the other is not read, nor is the diagonal with ``unit``, which is 1 then. B and X
    are ``order x number_of_right_hand_sides``, the other way round with ``right``. A zero on the diagonal gives
    infinities or NaN.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix is too small or of another type than FLOAT32.
    """

    right = Fixed[bool]("Whether A stands on the right. Our addition.")
    upper = Fixed[bool]("Whether A is an upper triangle. Our addition.")
    transpose = Fixed[bool]("Whether A is transposed. Our addition.")
    unit = Fixed[bool]("Whether the diagonal is 1, and not read. Our addition.")
    alpha = Fixed[float]("Factor of B. Our addition.")

    def __init__(
        self,
        device: MTLDevice,
        right: bool,
        upper: bool,
        transpose: bool,
        unit: bool,
        order: int,
        number_of_right_hand_sides: int,
        alpha: float,
    ) -> None:
        super().__init__(device)
        self._sized(order, number_of_right_hand_sides)
        flags = {"right": right, "upper": upper, "transpose": transpose, "unit": unit}
        checked = {name: flag(self.name, name, value) for name, value in flags.items()}
        self._change(alpha=number(self.name, "alpha", alpha), **checked)

    def _lower(self, at: OperandContext) -> None:
        op = TriangularSolution(self.right, self.upper, self.transpose, self.unit, self.alpha)
        self._solve(at, op, right=self.right)


class MPSMatrixSolveLU(_Solve):
    """X of op(A) X = B, by the factors and pivots of `MPSMatrixDecompositionLU` (MPSMatrixSolve.h, macOS 10.13).

    op(A) is A or, with ``transpose``, its transpose. A zero pivot gives infinities or NaN; an index of no row counts as
    that of the last one.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix is too small or of another type.
    """

    _arguments = (*_SOURCES, _PIVOTS, _SOLUTION)

    transpose = Fixed[bool]("Whether A is transposed. Our addition.")

    def __init__(self, device: MTLDevice, transpose: bool, order: int, number_of_right_hand_sides: int) -> None:
        super().__init__(device)
        self._sized(order, number_of_right_hand_sides)
        self._change(transpose=flag(self.name, "transpose", transpose))

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_matrix: MPSMatrix,
        right_hand_side_matrix: MPSMatrix,
        pivot_indices: MPSMatrix,
        solution_matrix: MPSMatrix,
    ) -> None:
        """Record the solution."""
        self._encode(command_buffer, source_matrix, right_hand_side_matrix, pivot_indices, solution_matrix)

    def _lower(self, at: OperandContext) -> None:
        self._solve(at, LuSolution(self.transpose))


class MPSMatrixSolveCholesky(_SolveByOne):
    """X of A X = B, by the factor of `MPSMatrixDecompositionCholesky` (MPSMatrixSolve.h, macOS 10.13).

    ``upper`` says which factor the source holds, U or L; the other triangle is not read.

    Raises:
        MPSArgumentError: A size is not positive; in an encode, a matrix is too small or of another type than FLOAT32.
    """

    upper = Fixed[bool]("Whether the factor is U. Our addition.")

    def __init__(self, device: MTLDevice, upper: bool, order: int, number_of_right_hand_sides: int) -> None:
        super().__init__(device)
        self._sized(order, number_of_right_hand_sides)
        self._change(upper=flag(self.name, "upper", upper))

    def _lower(self, at: OperandContext) -> None:
        self._solve(at, CholeskySolution(self.upper))
