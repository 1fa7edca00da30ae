"""Conventional recurrent layers on CUDA: what is between two products of a step is one launch, or all steps are.

cuDNN's functions are other ones: its gated recurrent units apply the reset gate behind the product, and its long
short-term memory is 1e-5 off where float32 rounds to 1e-7.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.matrix.recurrent_cells import Gru, Lstm, Parameters, RecurrentCell, Run, SingleGate, State
from openmps.ops.matrix.recurrent_gradients import Steps

_NEURONS = {
    Gru: [torch.sigmoid, torch.sigmoid, torch.tanh],
    Lstm: [torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh],
}
"""Of the gates, and of the memory."""


def _takes(cell: RecurrentCell, gates: Tensor, rows: Sequence[int], given: Parameters) -> bool:
    if isinstance(cell, SingleGate) or given.memories is not None or given.states is None:
        return False
    if gates.dim() > 2 or gates.dtype != torch.float32 or not rows[-1] or rows[0] != rows[-1]:
        return False
    activations = (*cell.activations, cell.output) if isinstance(cell, Lstm) else cell.activations
    is_plain = isinstance(cell, Lstm) or cell.p == 1
    is_plain = is_plain and [each.applied() for each in activations] == _NEURONS[type(cell)]
    return is_plain and triton.runs_on(gates.device)


def fused_forward(
    cell: RecurrentCell,
    gates: Tensor,
    rows: Sequence[int],
    state: State,
    given: Parameters,
    *,
    backward: bool,
    keeps: bool,
) -> Run | None:
    """As `recurrent_cells.forward`; None for other layers.

    Unless it ``keeps`` them, gates and memories before the last one may be anything.
    """
    if not _takes(cell, gates, rows, given):
        return None
    assert given.states is not None
    first = State(state.hidden.contiguous(), None if state.memory is None else state.memory.contiguous())
    count, weights = rows[0], given.states.contiguous()
    run = _run_lstm if isinstance(cell, Lstm) else _run_gru
    hidden, memory = run(cell, gates, first, weights, is_backward=backward, keeps=keeps)
    parts = [[None] * len(rows) if each is None else each.split(count) for each in (hidden, memory)]
    behind = [State(*each) for each in zip(*parts, strict=True)][:: -1 if backward else 1]
    return Run(hidden, memory, [first, *behind[:-1]][:: -1 if backward else 1], behind)


def _run_lstm(cell: RecurrentCell, gates: Tensor, first: State, weights: Tensor, **how: bool) -> tuple[Tensor, Tensor]:
    from openmps.ops.triton.matrix import lstm

    assert first.memory is not None
    return lstm.run(gates, first.hidden, first.memory, weights, **how)


def _run_gru(cell: RecurrentCell, gates: Tensor, first: State, weights: Tensor, **how: bool) -> tuple[Tensor, None]:
    from openmps.ops.triton.matrix import gru

    assert isinstance(cell, Gru)
    return gru.run(gates, first.hidden, weights, is_flipped=cell.is_flipped, **how), None


def fused_gradients(
    cell: RecurrentCell, gradient: Tensor, rows: Sequence[int], at: Steps, state: State, given: Parameters
) -> tuple[Tensor, list[State]] | None:
    """As `recurrent_gradients.gradients`; None for other layers."""
    if not _takes(cell, at.gates, rows, given):
        return None
    assert given.states is not None
    gradient, gates, before, hidden = (each.contiguous() for each in (gradient, at.gates, at.hidden, state.hidden))
    weights, count = given.states.contiguous(), rows[0]
    if isinstance(cell, Lstm):
        from openmps.ops.triton.matrix import lstm

        assert at.before is not None
        assert at.after is not None
        assert state.memory is not None
        c0, c1, memory = (each.contiguous() for each in (at.before, at.after, state.memory))
        made, *left = lstm.back(gradient, gates, c0, c1, hidden, memory, weights)
        return made, [State(*each) for each in zip(*(each.split(count) for each in left), strict=True)]
    from openmps.ops.triton.matrix import gru

    assert isinstance(cell, Gru)
    made, of_hidden = gru.back(gradient, gates, before, hidden, weights, is_flipped=cell.is_flipped)
    return made, [State(each) for each in of_hidden.split(count)]
