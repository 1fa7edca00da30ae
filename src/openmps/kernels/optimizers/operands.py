"""What an optimizer works on: vectors and matrices, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSDataType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer

Operand = MPSVector | MPSMatrix


@dataclass(frozen=True, slots=True)
class Slot:
    """One vector of parameters: its gradient, values, accumulators and result, looked up when the work runs."""

    gradient: Callable[[], Tensor]
    values: Callable[[], Tensor]
    accumulators: tuple[Callable[[], Tensor], ...]
    result: Callable[[], Tensor]

    def tensors(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """The numbers, in the order of the fields."""
        return self.gradient(), self.values(), tuple(get() for get in self.accumulators), self.result()


def check_operand(who: str, argument: str, operand: object, like: Operand, command_buffer: CommandBuffer) -> None:
    """Raise unless ``operand`` is a usable float32 vector or matrix of the shape of ``like``."""
    if not isinstance(operand, MPSVector | MPSMatrix):
        raise MPSTypeError(who, argument, f"must be an {_kind(like)}", type(operand).__name__)
    operand.check_usable(who, argument, command_buffer)
    if operand.data_type is not MPSDataType.FLOAT32:
        raise MPSArgumentError(who, argument, "must hold FLOAT32", operand.data_type.name)
    if _shape(operand) != _shape(like):
        rule = f"must have the gradient's shape, {_kind(like)} of {_shape(like)}"
        raise MPSArgumentError(who, argument, rule, f"{_kind(operand)} of {_shape(operand)}")


def _kind(operand: Operand) -> str:
    return "MPSVector" if isinstance(operand, MPSVector) else "MPSMatrix"


def _shape(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, MPSVector):
        return (operand.vectors, operand.length)
    return (operand.matrices, operand.rows, operand.columns)


def check_accumulators(
    who: str, argument: str, vectors: Any, names: Sequence[str], lengths: Sequence[int], command_buffer: CommandBuffer
) -> None:
    """Raise unless there is a vector for the first parameter, or one for each; ``names`` are the parameters'."""
    if isinstance(vectors, str) or not isinstance(vectors, Sequence) or len(vectors) not in (1, 2):
        rule = f"must be one vector for the {names[0]}, or two for {names[0]} and {names[1]}"
        raise MPSArgumentError(who, argument, rule, f"{len(vectors)}" if isinstance(vectors, Sequence) else vectors)
    for index, (vector, length) in enumerate(zip(vectors, lengths, strict=False)):
        place = f"{argument}[{index}]"
        if not isinstance(vector, MPSVector):
            raise MPSTypeError(who, place, "must be an MPSVector", type(vector).__name__)
        vector.check_usable(who, place, command_buffer)
        if vector.data_type is not MPSDataType.FLOAT32:
            raise MPSArgumentError(who, place, "must hold FLOAT32", vector.data_type.name)
        if (vector.vectors, vector.length) != (1, length):
            rule = f"must be one vector of {length} numbers, one for each number of {names[index]}"
            raise MPSArgumentError(who, place, rule, f"{vector.vectors} of {vector.length}")
