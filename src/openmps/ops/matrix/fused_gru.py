"""Conventional gated recurrent units on CUDA: what is between two products of a step is one launch, or all of them are.

No library has a function for them: cuDNN's units apply the reset gate behind the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.matrix.recurrent_cells import Gru, Parameters, RecurrentCell, Run, State
from openmps.ops.matrix.recurrent_gradients import Steps

_NEURONS = [torch.sigmoid, torch.sigmoid, torch.tanh]
"""Of the gates z, r and h."""


def _takes(cell: RecurrentCell, gates: Tensor, rows: Sequence[int], given: Parameters) -> bool:
    if not isinstance(cell, Gru) or cell.p != 1 or given.memories is not None or given.states is None:
        return False
    if gates.dim() > 2 or gates.dtype != torch.float32 or not rows[-1] or rows[0] != rows[-1]:
        return False
    return [each.applied() for each in cell.activations] == _NEURONS and triton.runs_on(gates.device)


def fused_forward(
    cell: RecurrentCell, gates: Tensor, rows: Sequence[int], state: State, given: Parameters, *, backward: bool
) -> Run | None:
    """As `recurrent_cells.forward`; None for other layers."""
    if not _takes(cell, gates, rows, given):
        return None
    from openmps.ops.triton.matrix import gru

    assert isinstance(cell, Gru)
    assert given.states is not None
    (first, _), weights, count = state, given.states.contiguous(), len(rows)
    first = first.contiguous()
    if first.shape[1] <= gru.MOST_AT_ONCE:
        hidden = gru.run(gates, first, weights, count, is_flipped=cell.is_flipped, is_backward=backward)
        found = list(hidden.split(rows[0]))
    else:
        hidden = gates.new_empty(len(gates), first.shape[1])
        found, before = list(hidden.split(rows[0])), first
        for mine, into in [*zip(gates.split(rows[0]), found, strict=True)][:: -1 if backward else 1]:
            gru.step(mine, before, weights, into, is_flipped=cell.is_flipped)
            before = into
    behind = [State(each) for each in (found[::-1] if backward else found)]
    before_each = [State(first), *behind[:-1]]
    return Run(hidden, None, before_each[:: -1 if backward else 1], behind)


def fused_gradients(
    cell: RecurrentCell, gradient: Tensor, rows: Sequence[int], at: Steps, state: State, given: Parameters
) -> tuple[Tensor, list[State]] | None:
    """As `recurrent_gradients.gradients`, the state before each step; None for other layers."""
    if not _takes(cell, at.gates, rows, given):
        return None
    from openmps.ops.triton.matrix import gru

    assert isinstance(cell, Gru)
    assert given.states is not None
    gates, before, behind = at.gates.contiguous(), at.hidden.contiguous(), state.hidden.contiguous()
    gradient, weights, count = gradient.contiguous(), given.states.contiguous(), rows[0]
    if before.shape[1] <= gru.MOST_AT_ONCE:
        made, left = gru.back(gradient, gates, before, behind, weights, is_flipped=cell.is_flipped)
        return made, [State(each) for each in left.split(count)]
    made, left = torch.empty_like(gates), torch.empty_like(before)
    steps = [*zip(*(each.split(count) for each in (gradient, gates, before, made, left)), strict=True)]
    for own, its_gates, h0, into, to_h0 in reversed(steps):
        gru.step_back(own, its_gates, h0, behind, weights, into, to_h0, is_flipped=cell.is_flipped)
        behind = to_h0
    return made, [State(each) for each in left.split(count)]
