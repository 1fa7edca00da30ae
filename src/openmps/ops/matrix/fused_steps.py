"""Conventional recurrent layers on CUDA in few launches a step: each makes a product and what follows from its numbers.

cuDNN has no function for the framework's gated recurrent units: its own apply the reset gate behind the product.
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
    cell: RecurrentCell, gates: Tensor, rows: Sequence[int], state: State, given: Parameters, *, backward: bool
) -> Run | None:
    """As `recurrent_cells.forward`; None for other layers."""
    if not _takes(cell, gates, rows, given):
        return None
    assert given.states is not None
    first = State(state.hidden.contiguous(), None if state.memory is None else state.memory.contiguous())
    count, weights = rows[0], given.states.contiguous()
    run = _run_lstm if isinstance(cell, Lstm) else _run_gru
    hidden, memory = run(cell, gates, first, weights, backward=backward)
    parts = [[None] * len(rows) if each is None else each.split(count) for each in (hidden, memory)]
    behind = [State(*each) for each in zip(*parts, strict=True)][:: -1 if backward else 1]
    return Run(hidden, memory, [first, *behind[:-1]][:: -1 if backward else 1], behind)


def _run_lstm(
    cell: RecurrentCell, gates: Tensor, first: State, weights: Tensor, *, backward: bool
) -> tuple[Tensor, Tensor]:
    from openmps.ops.triton.matrix import lstm

    (h0, c0), (count, size) = first, first.hidden.shape
    hidden, memory = (gates.new_empty(len(gates), size) for _ in range(2))
    steps = [*zip(*(each.split(count) for each in (gates, hidden, memory)), strict=True)]
    for mine, h1, c1 in steps[:: -1 if backward else 1]:
        assert c0 is not None
        lstm.step(mine, h0, c0, weights, h1, c1)
        h0, c0 = h1, c1
    return hidden, memory


def _run_gru(
    cell: RecurrentCell, gates: Tensor, first: State, weights: Tensor, *, backward: bool
) -> tuple[Tensor, None]:
    from openmps.ops.triton.matrix import gru

    assert isinstance(cell, Gru)
    h0, (count, size) = first.hidden, first.hidden.shape
    if size <= gru.MOST_AT_ONCE:
        steps = len(gates) // count
        return gru.run(gates, h0, weights, steps, is_flipped=cell.is_flipped, is_backward=backward), None
    hidden = gates.new_empty(len(gates), size)
    for mine, h1 in [*zip(gates.split(count), hidden.split(count), strict=True)][:: -1 if backward else 1]:
        gru.step(mine, h0, weights, h1, is_flipped=cell.is_flipped)
        h0 = h1
    return hidden, None


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
    back = gru.back if before.shape[1] <= gru.MOST_AT_ONCE else gru.back_in_steps
    made, of_hidden = back(gradient, gates, before, hidden, weights, is_flipped=cell.is_flipped)
    return made, [State(each) for each in of_hidden.split(count)]
