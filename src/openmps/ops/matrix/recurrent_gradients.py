"""Gradients of recurrent layers over sequences of vectors (MPSRNNLayer.h, macOS 10.14); see `recurrent_cells`.

What a gradient of a step is multiplied with follows from the forward pass, so it is computed of the rows of all steps
at once; from step to step go only products with the weights of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops.matrix.recurrent_cells import Gru, Lstm, Parameters, RecurrentCell, SingleGate, State, part


class Steps(NamedTuple):
    """What the gradient needs of some steps, the rows of all of them one behind the other."""

    gates: Tensor
    """What neurons of gates are applied to, ``[rows, gates n]``."""
    hidden: Tensor
    """h0."""
    before: Tensor | None
    """c0."""
    after: Tensor | None
    """c1."""


def _back(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient of what was multiplied with the weights of one gate; of a vector of them number by number."""
    return gradient * weights if weights.dim() == 1 else gradient @ weights


class _SingleGateSteps:
    """The gradients of single gates."""

    def __init__(self, cell: SingleGate, at: Steps, given: Parameters) -> None:
        self.states = given.states
        self.factors = (cell.activation.back(torch.ones_like(at.gates), at.gates),)

    def back(self, a: Tensor, gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]) -> State:
        """Fill what goes to gates, ``a``; the gradient of the state before the step."""
        torch.mul(gradient, factors[0], out=a)
        return State(torch.zeros_like(gradient) if self.states is None else a @ self.states)


class _GruSteps:
    """The gradients of gated recurrent units."""

    def __init__(self, cell: Gru, at: Steps, given: Parameters) -> None:
        h0, size = at.hidden, at.hidden.shape[1]
        self.size, self.states, self.scaled = size, part(given.states, 0, 2, size), given.memories
        self.reset = part(given.states, 2, 3, size)
        x = at.gates.split(size, 1)
        z, r, h = (act(each) for act, each in zip(cell.activations, x, strict=True))
        to_z, to_r, to_h = cell.activations
        rest, slope = cell.rest(z), cell.rest_slope(z)
        kept, made = (h, h0) if cell.is_flipped else (h0, h)
        through, past = (z, rest) if cell.is_flipped else (rest, z)
        self.factors = (
            to_z.back(made * slope + kept, x[0]), to_r.back(h0, x[1]), to_h.back(through, x[2]), past, r,
            *((to_z.back(h0, x[0]), z) if given.memories is not None else ()),
        )  # fmt: skip

    def back(self, a: Tensor, gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]) -> State:
        """See `_SingleGateSteps.back`."""
        of_z, of_r, of_h, past, r, *of_scaled = factors
        az, ar, ah = a.split(self.size, 1)
        torch.mul(gradient, of_h, out=ah)
        torch.mul(gradient, of_z, out=az)
        to_h0 = gradient * past
        if self.reset is None:
            ar.zero_()
        else:
            to_reset = ah @ self.reset
            torch.mul(to_reset, of_r, out=ar)
            to_h0.addcmul_(to_reset, r)
        if self.scaled is not None:
            to_scaled, (of_z0, z) = ah @ self.scaled, of_scaled
            az.addcmul_(to_scaled, of_z0)
            to_h0.addcmul_(to_scaled, z)
        return State(to_h0 if self.states is None else to_h0.addmm_(a[:, : 2 * self.size], self.states))


class _LstmSteps:
    """The gradients of long short-term memory."""

    def __init__(self, cell: Lstm, at: Steps, given: Parameters) -> None:
        c0, c1, size = at.before, at.after, at.hidden.shape[1]
        assert c0 is not None
        assert c1 is not None
        self.size, self.states = size, given.states
        self.peepholes = None if given.memories is None else given.memories.split(size)
        x = at.gates.split(size, 1)
        i, f, c, o = (act(each) for act, each in zip(cell.activations, x, strict=True))
        of_memory = [act.back(each, of) for act, each, of in zip(cell.activations, (c, c0, i), x, strict=False)]
        self.factors = (
            torch.stack(of_memory, 1),
            cell.activations[3].back(cell.output(c1), x[3]),
            cell.output.back(o, c1),
            f,
        )

    def back(self, a: Tensor, gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]) -> State:
        """See `_SingleGateSteps.back`."""
        assert memory is not None
        of_memory, of_output, out, f = factors
        others, ao = a.split((3 * self.size, self.size), 1)
        torch.mul(gradient, of_output, out=ao)
        to_memory = torch.addcmul(memory, gradient, out)
        if self.peepholes is not None:
            to_memory += _back(ao, self.peepholes[3])
        torch.mul(to_memory.unsqueeze(1), of_memory, out=others.unflatten(1, (3, self.size)))
        to_c0 = to_memory * f
        if self.peepholes is not None:
            for each, weights in zip(others.split(self.size, 1), self.peepholes, strict=False):
                to_c0 += _back(each, weights)
        return State(torch.zeros_like(to_c0) if self.states is None else a @ self.states, to_c0)


def _steps(cell: RecurrentCell, at: Steps, given: Parameters) -> _SingleGateSteps | _GruSteps | _LstmSteps:
    if isinstance(cell, SingleGate):
        return _SingleGateSteps(cell, at, given)
    return _GruSteps(cell, at, given) if isinstance(cell, Gru) else _LstmSteps(cell, at, given)


def gradients(
    cell: RecurrentCell, gradient: Tensor, rows: Sequence[int], at: Steps, state: State, given: Parameters
) -> tuple[Tensor, list[State]]:
    """Of gates, for the rows of all steps, and of the state before each step; ``state`` is that of the last step's."""
    steps, made, counts = _steps(cell, at, given), torch.empty_like(at.gates), list(rows)
    parts = zip(*(each.split(counts) for each in (made, gradient, *steps.factors)), strict=True)
    before: list[State] = []
    for a, own, *factors in reversed(list(parts)):
        hidden, memory = state.first(len(a))
        state = state.behind(steps.back(a, own + hidden, memory, factors))
        before.append(state)
    return made, before[::-1]
