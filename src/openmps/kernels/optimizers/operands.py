"""What an optimizer works on: vectors, matrices, or the weights and biases of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from openmps.core.state import MPSState
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSDataType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.memory import MTLBuffer

Operand = MPSVector | MPSMatrix


class _GradientState(Protocol):
    """A state that holds the gradients of weights and biases."""

    @property
    def gradient_for_weights(self) -> MTLBuffer: ...
    @property
    def gradient_for_biases(self) -> MTLBuffer: ...


class _ParameterState(Protocol):
    """A state that holds weights and biases."""

    @property
    def weights(self) -> MTLBuffer: ...
    @property
    def biases(self) -> MTLBuffer | None: ...
    @property
    def weights_offset(self) -> int: ...
    @property
    def biases_offset(self) -> int: ...


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


# --- vectors and matrices --------------------------------------------------------------------------------------------


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


# --- states of a convolution -----------------------------------------------------------------------------------------

_NEEDED = {
    "convolution_gradient_state": "gradient_for_weights",
    "convolution_source_state": "weights",
    "result_state": "weights",
}


def check_states(who: str, gradient: Any, source: Any, result: Any, command_buffer: CommandBuffer) -> tuple[int, int]:
    """Numbers of weights and of biases, if the three states belong together."""
    for (argument, attribute), state in zip(_NEEDED.items(), (gradient, source, result), strict=True):
        if not isinstance(state, MPSState) or not hasattr(state, attribute):
            remedy = "Pass the states that update() of the data source was given"
            raise MPSTypeError(who, argument, f"must be a state with {attribute}", type(state).__name__, remedy)
        state.check_usable(who, argument, command_buffer)
    lengths = gradient.gradient_for_weights.length // 4, gradient.gradient_for_biases.length // 4
    for argument, state in (("convolution_source_state", source), ("result_state", result)):
        _check_length(who, argument, "weights", state.weights, state.weights_offset, lengths[0])
        _check_length(who, argument, "biases", state.biases, state.biases_offset, lengths[1])
    return lengths


def _check_length(who: str, argument: str, what: str, buffer: MTLBuffer | None, offset: int, needed: int) -> None:
    if buffer is not None and (buffer.length - offset) // 4 < needed:
        raise MPSArgumentError(who, argument, f"must hold {needed} {what}", (buffer.length - offset) // 4)


def check_accumulators(
    who: str, argument: str, vectors: Any, lengths: tuple[int, int], command_buffer: CommandBuffer
) -> None:
    """Raise unless there is a vector for the weights, or one for them and one for the biases."""
    if isinstance(vectors, str) or not isinstance(vectors, Sequence) or len(vectors) not in (1, 2):
        rule = "must be one vector for the weights, or two for weights and biases"
        raise MPSArgumentError(who, argument, rule, f"{len(vectors)}" if isinstance(vectors, Sequence) else vectors)
    for index, (vector, length) in enumerate(zip(vectors, lengths, strict=False)):
        place = f"{argument}[{index}]"
        if not isinstance(vector, MPSVector):
            raise MPSTypeError(who, place, "must be an MPSVector", type(vector).__name__)
        vector.check_usable(who, place, command_buffer)
        if vector.data_type is not MPSDataType.FLOAT32:
            raise MPSArgumentError(who, place, "must hold FLOAT32", vector.data_type.name)
        if (vector.vectors, vector.length) != (1, length):
            rule = f"must be one vector of {length} numbers, one for each of the {('weights', 'biases')[index]}"
            raise MPSArgumentError(who, place, rule, f"{vector.vectors} of {vector.length}")


def weights_slot(
    gradient: _GradientState, source: _ParameterState, result: _ParameterState, rows: Sequence[MPSVector]
) -> Slot:
    """The weights of a convolution."""
    count = gradient.gradient_for_weights.length // 4
    return Slot(
        lambda: gradient.gradient_for_weights.tensor(torch.float32),
        lambda: source.weights.tensor(torch.float32, source.weights_offset, count),
        tuple(row.tensor for row in rows),
        lambda: result.weights.tensor(torch.float32, result.weights_offset, count),
    )


def biases_slot(
    gradient: _GradientState, source: _ParameterState, result: _ParameterState, rows: Sequence[MPSVector]
) -> Slot:
    """The biases of a convolution."""
    count = gradient.gradient_for_biases.length // 4
    return Slot(
        lambda: gradient.gradient_for_biases.tensor(torch.float32),
        lambda: _biases(source, count),
        tuple(row.tensor for row in rows),
        lambda: _biases(result, count),
    )


def _biases(state: _ParameterState, count: int) -> Tensor:
    assert state.biases is not None
    return state.biases.tensor(torch.float32, state.biases_offset, count)


def copy_biases(source: _ParameterState, result: _ParameterState, count: int) -> Callable[[], None]:
    """Work that hands biases on as they are."""

    def work() -> None:
        _biases(result, count).copy_(_biases(source, count))

    return work


def share_biases(source: _ParameterState, result: _ParameterState) -> bool:
    """Whether the biases of two states are the same memory."""
    return source.biases is result.biases and source.biases_offset == result.biases_offset
