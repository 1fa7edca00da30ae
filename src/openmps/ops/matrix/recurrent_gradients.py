"""Gradients of recurrent layers over sequences of vectors (MPSRNNLayer.h, macOS 10.14); see `recurrent_cells`.

What a gradient of a step is multiplied with follows from the forward pass, so it is computed of the rows of all steps
at once; from step to step go only products with the weights of states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops.matrix.products import repeated_new_product, repeated_product
from openmps.ops.matrix.recurrent_cells import Gru, Lstm, Parameters, RecurrentCell, SingleGate, State, part


class Steps(NamedTuple):
    """What the gradient needs of some steps, the rows of all of them one behind the other."""

    gates: Tensor
    """What gates gave, or were given: see `Neurons`; ``[rows, gates n]``."""
    hidden: Tensor
    """h0."""
    before: Tensor | None
    """c0."""
    after: Tensor | None
    """c1."""


def _back(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient of what was multiplied with the weights of one gate; of a vector of them number by number."""
    return gradient * weights if weights.dim() == 1 else gradient @ weights


def _multiplier(weights: Tensor | None, rows: Sequence[int]) -> Callable[[Tensor], Tensor] | None:
    """What gives ``a @ weights``, in steps of so many rows."""
    return None if weights is None else repeated_new_product(weights.t(), rows[0], len(rows))


class _SingleGateSteps:
    """The gradients of single gates."""

    def __init__(self, cell: SingleGate, at: Steps, given: Parameters, rows: Sequence[int]) -> None:
        self.to_states = _multiplier(given.states, rows)
        self.factors: Sequence[Tensor] = (cell.neurons.back(0, torch.ones_like(at.gates), (at.gates,)),)

    def parts(self, a: Tensor) -> Sequence[Tensor]:
        """Of what goes to gates, what a step fills."""
        return (a,)

    def back(
        self, parts: Sequence[Tensor], gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]
    ) -> State:
        """Fill what goes to gates; the gradient of the state before the step."""
        (a,) = parts
        torch.mul(gradient, factors[0], out=a)
        return State(torch.zeros_like(gradient) if self.to_states is None else self.to_states(a))


class _GruSteps:
    """The gradients of gated recurrent units."""

    def __init__(self, cell: Gru, at: Steps, given: Parameters, rows: Sequence[int]) -> None:
        h0, size = at.hidden, at.hidden.shape[1]
        self.size, self.to_reset = size, _multiplier(part(given.states, 2, 3, size), rows)
        self.to_scaled, both = _multiplier(given.memories, rows), part(given.states, 0, 2, size)
        self.add_states = None if both is None else repeated_product(both.t(), rows[0], len(rows))
        neurons, of_gates = cell.neurons, at.gates.split(size, 1)
        z, r, h = neurons.results(of_gates)
        rest, slope = cell.rest(z), cell.rest_slope(z)
        kept, made = (h, h0) if cell.is_flipped else (h0, h)
        through, past = (z, rest) if cell.is_flipped else (rest, z)
        to_z = neurons.back(0, made * slope + kept, of_gates)
        to_r, to_h = neurons.back(1, h0, of_gates), neurons.back(2, through, of_gates)
        of_scaled = () if given.memories is None else (neurons.back(0, h0, of_gates), z)
        self.factors: Sequence[Tensor] = (to_z, to_r, to_h, past, r, *of_scaled)

    def parts(self, a: Tensor) -> Sequence[Tensor]:
        """See `_SingleGateSteps.parts`."""
        return a[:, : 2 * self.size], *a.split(self.size, 1)

    def back(
        self, parts: Sequence[Tensor], gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]
    ) -> State:
        """See `_SingleGateSteps.back`."""
        of_z, of_r, of_h, past, r, *of_scaled = factors
        both, az, ar, ah = parts
        torch.mul(gradient, of_h, out=ah)
        torch.mul(gradient, of_z, out=az)
        to_h0 = gradient * past
        if self.to_reset is None:
            ar.zero_()
        else:
            to_reset = self.to_reset(ah)
            torch.mul(to_reset, of_r, out=ar)
            to_h0.addcmul_(to_reset, r)
        if self.to_scaled is not None:
            to_scaled, (of_z0, z) = self.to_scaled(ah), of_scaled
            az.addcmul_(to_scaled, of_z0)
            to_h0.addcmul_(to_scaled, z)
        if self.add_states is not None:
            self.add_states(to_h0, both)
        return State(to_h0)


class _LstmSteps:
    """The gradients of long short-term memory."""

    def __init__(self, cell: Lstm, at: Steps, given: Parameters, rows: Sequence[int]) -> None:
        c0, c1, size = at.before, at.after, at.hidden.shape[1]
        assert c0 is not None
        assert c1 is not None
        self.size, self.to_states = size, _multiplier(given.states, rows)
        self.peepholes = None if given.memories is None else given.memories.split(size)
        neurons, of_gates = cell.neurons, at.gates.split(size, 1)
        i, f, c, o = neurons.results(of_gates)
        of_memory = [neurons.back(gate, each, of_gates) for gate, each in enumerate((c, c0, i))]
        out, slopes = self._output(cell, c1, o)
        self.factors: Sequence[Tensor] = (torch.stack(of_memory, 1), neurons.back(3, out, of_gates), slopes, f)

    def _output(self, cell: Lstm, c1: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        """What the memory gives on its way out, and what a gradient is multiplied with on its way there."""
        out = cell.output.applied()(c1)
        return out, cell.output.back_from(o, out) if cell.output.has_slope_of_result else cell.output.back(o, c1)

    def parts(self, a: Tensor) -> Sequence[Tensor]:
        """See `_SingleGateSteps.parts`."""
        gates = a.unflatten(1, (4, self.size))
        return a, gates[:, :3], *gates.unbind(1)

    def back(
        self, parts: Sequence[Tensor], gradient: Tensor, memory: Tensor | None, factors: Sequence[Tensor]
    ) -> State:
        """See `_SingleGateSteps.back`."""
        assert memory is not None
        of_memory, of_output, slopes, f = factors
        a, but_o, *others, ao = parts
        torch.mul(gradient, of_output, out=ao)
        to_memory = torch.addcmul(memory, gradient, slopes)
        if self.peepholes is not None:
            to_memory += _back(ao, self.peepholes[3])
        torch.mul(to_memory.unsqueeze(1), of_memory, out=but_o)
        to_c0 = to_memory * f
        if self.peepholes is not None:
            for each, weights in zip(others, self.peepholes, strict=False):
                to_c0 += _back(each, weights)
        return State(torch.zeros_like(to_c0) if self.to_states is None else self.to_states(a), to_c0)


def _steps(
    cell: RecurrentCell, at: Steps, given: Parameters, rows: Sequence[int]
) -> _SingleGateSteps | _GruSteps | _LstmSteps:
    if isinstance(cell, SingleGate):
        return _SingleGateSteps(cell, at, given, rows)
    return _GruSteps(cell, at, given, rows) if isinstance(cell, Gru) else _LstmSteps(cell, at, given, rows)


def gradients(
    cell: RecurrentCell,
    gradient: Tensor,
    rows: Sequence[int],
    at: Steps,
    state: State,
    given: Parameters,
) -> tuple[Tensor, list[State]]:
    """Of gates, for the rows of all steps, and of the state before each step.

    ``state`` is that of the state behind the last step.
    """
    steps, made, counts = _steps(cell, at, given, rows), torch.empty_like(at.gates), list(rows)
    each_step = zip(
        *(zip(*(each.split(counts) for each in some), strict=True) for some in (steps.parts(made), steps.factors)),
        gradient.split(counts), strict=True,
    )  # fmt: skip
    before: list[State] = []
    is_even = counts == [len(state.hidden)] * len(counts)
    for parts, factors, own in reversed([*each_step]):
        if is_even:  # of few rows to ask takes as long as to compute
            state = steps.back(parts, own + state.hidden, state.memory, factors)
        else:
            hidden, memory = state.first(own.shape[0])
            state = state.behind(steps.back(parts, own + hidden, memory, factors))
        before.append(state)
    return made, before[::-1]
