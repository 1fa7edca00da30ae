"""Long short-term memory by the engine's own function, where it computes the same and nothing more is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops.matrix.recurrent_cells import Lstm, Parameters, RecurrentCell, State

_NEURONS = torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh
"""Of the gates i, f, c and o, and of the memory."""
_LARGE = 1 << 20
"""Weights of states for which the engine's function, which packs all weights at each call, is no faster than a loop."""


def library_lstm(
    cell: RecurrentCell, x: Tensor, rows: Sequence[int], state: State, given: Parameters
) -> tuple[Tensor, State] | None:
    """h1 of all rows and the state behind the last step; None where the engine's function is another one.

    That has sigmoid gates, no peepholes and as many rows in each step. Its steps are one call, which on the CPU takes
    0.7 of the time that as many calls do as a step has operations, and a third where there is one row.
    """
    inputs, states, biases, memories = given
    neurons = [each.applied() for each in (*cell.activations, cell.output)] if isinstance(cell, Lstm) else None
    is_plain = neurons == [*_NEURONS] and memories is None
    if not is_plain or x.dim() > 2 or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    if inputs is None or states is None or state.memory is None or states.numel() >= _LARGE:
        return None
    if not rows[-1] or rows[0] != rows[-1]:
        return None
    first = inputs.new_zeros(len(inputs)) if biases is None else biases
    weights = [inputs, states, first, torch.zeros_like(first)]
    before = state.hidden.unsqueeze(0), state.memory.unsqueeze(0)
    with torch.no_grad():
        y, h, c = torch.lstm(x.unflatten(0, (len(rows), -1)), before, weights, True, 1, 0.0, False, False, False)
    return y.flatten(0, 1), State(h[0], c[0])
