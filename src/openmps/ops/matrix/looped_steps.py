"""Conventional recurrent layers over few rows on the CPU: all steps are one loop that Numba compiles, if it is there.

A library's function of a step, or what it brings into an order of its own before the first one, takes longer than the
products of so few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.ops import numba
from openmps.ops.image.library_form import Array
from openmps.ops.matrix.recurrent_cells import Gru, Lstm, Parameters, RecurrentCell, SingleGate, State
from openmps.ops.matrix.recurrent_gradients import Steps

_NEURONS: dict[type[RecurrentCell], list[Any]] = {
    SingleGate: [torch.tanh],
    Gru: [torch.sigmoid, torch.sigmoid, torch.tanh],
    Lstm: [torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh],
}
"""Of the gates, and of the memory."""
_FEWEST_STEPS = 8
"""Fewer are not worth loading Numba."""
_MOST_ROWS = 8
_LIMITS: dict[type[RecurrentCell], tuple[int, int]] = {
    SingleGate: (1 << 22, 3 << 19),
    Gru: (1 << 22, 3 << 19),
    Lstm: (1 << 17, 0),
}
"""Most multiplications of a step of one row, and of several: of more, libraries' functions are as fast."""
_WORTH_TURNING = 64
"""Steps of long short-term memory for whose gradient weights are turned: a step takes less, to turn them the same."""


def suits_loop(cell: RecurrentCell, size: int, device: torch.device, rows: Sequence[int]) -> bool:
    """Whether the loop is the fastest form of a cell with weights of states and none of memories, over such steps."""
    if device.type != "cpu" or not numba.is_installed():
        return False
    if len(rows) < _FEWEST_STEPS or not rows[-1] or rows[0] != rows[-1] or rows[0] > _MOST_ROWS:
        return False
    of_one, of_several = _LIMITS[type(cell)]
    if rows[0] * cell.gates * size * size > (of_one if rows[0] == 1 else of_several):
        return False
    neurons = (*cell.neurons, cell.output) if isinstance(cell, Lstm) else cell.neurons
    is_plain = not isinstance(cell, Gru) or cell.p == 1
    return is_plain and [each.applied() for each in neurons] == _NEURONS[type(cell)]


def takes_loop(cell: RecurrentCell, x: Tensor, rows: Sequence[int], size: int, given: Parameters) -> bool:
    """The same of operands, where the loop can be had; ``x`` is what is given for all steps."""
    if given.states is None or given.memories is not None:
        return False
    is_float = x.dim() == 2 and x.dtype == given.states.dtype == torch.float32
    return is_float and suits_loop(cell, size, x.device, rows) and numba.library() is not None


def looped_forward(cell: RecurrentCell, gates: Tensor, state: State, given: Parameters, *, is_backward: bool) -> State:
    """As `recurrent_cells.forward`: the states behind all steps, the rows of each one behind the other."""
    from openmps.ops.numba import recurrent as loops

    assert gates.is_contiguous()
    made, weights = _room(state, len(gates)), _weights(given)
    arrays = [*_arrays(gates, *state, *made), *weights]
    if isinstance(cell, Gru):
        loops.gru_steps.run(1, 0, *arrays, cell.is_flipped, is_backward)
    else:
        steps = loops.lstm_steps if isinstance(cell, Lstm) else loops.single_gate_steps
        steps.run(1, 0, *arrays, is_backward)
    return made


def _weights(given: Parameters, *, turned: bool = False) -> tuple[Array, bool]:
    """Those of states as a loop takes them, and whether they lie row by row; column by column where they are turned."""
    states = given.states
    assert states is not None
    by_columns = turned or (not states.is_contiguous() and states.t().is_contiguous())
    return (states.t() if by_columns else states).contiguous().view(-1).numpy(), not by_columns


def _room(state: State, rows: int) -> State:
    """Memory for the states of so many rows."""
    hidden, memory = (None if each is None else each.new_empty(rows, each.shape[1]) for each in state)
    assert hidden is not None
    return State(hidden, memory)


def _arrays(*tensors: Tensor | None) -> list[Array]:
    return [each.contiguous().numpy() for each in tensors if each is not None]


def looped_gradients(
    cell: RecurrentCell, gradient: Tensor, at: Steps, state: State, given: Parameters
) -> tuple[Tensor, State]:
    """As `recurrent_gradients.gradients`: of gates, and of the states before all steps, one behind the other."""
    from openmps.ops.numba import recurrent as loops

    made = torch.empty_like(at.gates, memory_format=torch.contiguous_format)
    is_long = len(gradient) >= _WORTH_TURNING * len(state.hidden)
    before, weights = _room(state, len(gradient)), _weights(given, turned=is_long and isinstance(cell, Lstm))
    kept = {SingleGate: (), Gru: (at.hidden,), Lstm: (at.before, at.after)}[type(cell)]
    arrays = [*_arrays(gradient, at.gates, *kept, made, *state, *before), *weights]
    if isinstance(cell, Gru):
        loops.gru_steps_back.run(1, 0, *arrays, cell.is_flipped)
    else:
        steps = loops.lstm_steps_back if isinstance(cell, Lstm) else loops.single_gate_steps_back
        steps.run(1, 0, *arrays)
    return made, before
