"""Recurrent layers over sequences, and their gradients, as operations; the formulas are those of `recurrent_cells`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops.matrix.looped_steps import looped_forward, looped_gradients, takes_loop
from openmps.ops.matrix.products import product
from openmps.ops.matrix.recurrent_cells import (
    Neurons,
    Parameters,
    RecurrentCell,
    Run,
    State,
    forward,
    has_small_steps,
    project,
)
from openmps.ops.matrix.recurrent_gradients import Steps, gradients
from openmps.ops.matrix.recurrent_library import library_lstm
from openmps.ops.one_thread import OneThread
from openmps.ops.op import Kind, Op


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


class JoinRows(Op, kind=Kind.STORAGE, gives_view=True):
    """The rows of all operands, one behind the other."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return _joined(operands)


class RowRange(Op, kind=Kind.STORAGE, gives_view=True):
    """Some rows of a matrix."""

    start: int
    stop: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return operands[0][self.start : self.stop]


class RowsOf(Op, kind=Kind.STORAGE, gives_view=True):
    """Some numbers of a vector as rows of so many; as a vector where that is 0."""

    start: int
    stop: int
    columns: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        found = operands[0][self.start : self.stop]
        return found.view(-1, self.columns) if self.columns else found


class PartsOf(Op, kind=Kind.STORAGE, results=4, gives_view=True):
    """The four parts of a vector, one behind the other, each as `RowsOf`; None for those without numbers."""

    lengths: tuple[int, ...]
    columns: tuple[int, ...]

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        # Half the time of four slices.
        parts = torch.unsafe_split_with_sizes(operands[0], self.lengths)
        return tuple(
            [
                None if not length else part.view(-1, columns) if columns else part
                for part, length, columns in zip(parts, self.lengths, self.columns, strict=True)
            ]
        )


class FirstColumns(Op, kind=Kind.STORAGE, gives_view=True):
    """The first columns of a matrix, or channels of an image."""

    count: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return operands[0][:, : self.count]


class Member(Op, kind=Kind.STORAGE, gives_view=True):
    """One of several matrices."""

    index: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return operands[0][self.index]


class JoinColumns(Op, kind=Kind.STORAGE):
    """The columns of all operands, side by side."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return torch.cat(operands, 1)


class Total(Op):
    """The sum of two matrices."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return operands[0] + operands[1]


def _state(
    hidden: Tensor | None, memory: Tensor | None, like: Tensor, cell: RecurrentCell, rows: int, size: int
) -> State:
    """A state, zeros where none is given."""
    zeros = (
        like.new_zeros(rows, size, *like.shape[2:]) if hidden is None or (cell.has_memory and memory is None) else None
    )
    hidden = zeros if hidden is None else hidden
    assert hidden is not None
    return State(hidden, (zeros if memory is None else memory) if cell.has_memory else None)


def _is_small(x: Tensor, rows: int, states: Tensor | None) -> bool:
    """Whether the steps of a layer over matrices are those of `has_small_steps`."""
    is_plain = x.device.type == "cpu" and x.dim() == 2
    return is_plain and states is not None and has_small_steps(rows, states.numel())


class Recurrence(Op, kind=Kind.CONTRACTION, results=7):
    """A layer over a sequence.

    Operands: the sources ``[rows of all steps, inputs]``, h and c before the first step, or None for zeros, then
    `Parameters`. Results: h1 of all rows, h and c of all rows of the state behind the last step, ``[1, rows, n]``, or
    behind each one, ``[steps, rows, n]``; then `Steps`.
    """

    cell: RecurrentCell
    size: int
    """n."""
    rows: tuple[int, ...]
    """Of each step; never more than of the step before."""
    runs_backward: bool = False
    keeps_all: bool = False

    @property
    def launches(self) -> int:
        """See `Op`."""
        return len(self.rows)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        x, hidden, memory, *rest = operands
        assert x is not None
        given, keeps = Parameters(*rest), any(wanted[3:])
        state = _state(hidden, memory, x, self.cell, self.rows[0], self.size)
        if takes_loop(self.cell, x, self.rows, self.size, given):
            return self._looped(x, state, given, wanted)
        if not (keeps or self.keeps_all or self.runs_backward):
            library = library_lstm(self.cell, x, self.rows, state, given)
            if library is not None:
                outputs, (hidden, memory) = library
                return outputs, hidden[None], _stacked([memory]), None, None, None, None
        gates = project(x, given, self.cell.gates)
        from openmps.ops.matrix.fused_steps import fused_forward  # programs that only name layers need none of it

        how = self.cell, gates, self.rows, state, given
        backward = self.runs_backward
        with OneThread(applies=_is_small(x, self.rows[0], given.states)):
            run = fused_forward(*how, backward=backward, keeps=keeps or self.keeps_all) or forward(
                *how, backward=backward
            )
        behind = run.behind if self.keeps_all else run.behind[-1:]
        parts = [hidden for hidden, _ in behind], [memory for _, memory in behind]
        left = [_stacked(each) if is_wanted else None for each, is_wanted in zip(parts, wanted[1:3], strict=True)]
        if not keeps:
            return run.hidden, *left, None, None, None, None
        return run.hidden, *left, gates, *self._before(run), run.memory

    def _looped(self, x: Tensor, state: State, given: Parameters, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """The results by `looped_forward`."""
        gates = project(x, given, self.cell.gates)
        after = looped_forward(self.cell, gates, state, given, is_backward=self.runs_backward)
        behind = [self._behind(each) if wanted[1 + place] else None for place, each in enumerate(after)]
        if not any(wanted[3:]):
            return after.hidden, *behind, None, None, None, None
        pairs = zip(state, after, strict=True)
        before = [None if first is None or each is None else self._joined_before(first, each) for first, each in pairs]
        return after.hidden, *behind, gates, *before, after.memory

    def _joined_before(self, first: Tensor, after: Tensor) -> Tensor:
        """A part of the states before all steps: the first one, and those behind all but the last."""
        rows = self.rows[0]
        return torch.cat((after[rows:], first) if self.runs_backward else (first, after[:-rows]))

    def _behind(self, after: Tensor | None) -> Tensor | None:
        """What is left of a part of the states, of the rows of all steps."""
        if after is None:
            return None
        steps = after.view(len(self.rows), self.rows[0], self.size)
        if self.keeps_all:
            return steps.flip(0) if self.runs_backward else steps.clone()
        return (steps[:1] if self.runs_backward else steps[-1:]).clone()

    def _before(self, run: Run) -> list[Tensor | None]:
        """H and c before all steps, the rows of each one behind the other."""
        if self.rows[0] != self.rows[-1] or self.runs_backward:
            return [_joined_if_any([each[part] for each in run.before]) for part in range(2)]
        results = run.hidden, run.memory
        parts = [
            [first, None if each is None else each[: -self.rows[0]]]
            for first, each in zip(run.before[0], results, strict=True)
        ]
        return [*map(_joined_if_any, parts)]


def _joined_if_any(parts: Sequence[Tensor | None]) -> Tensor | None:
    """New memory, also of a single part: that of a state may change before the gradient reads what is kept."""
    present = [each for each in parts if each is not None]
    return torch.cat(present) if present else None


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [each for each in parts if each is not None]
    return torch.stack(present) if present else None


class RecurrenceGradient(Op, kind=Kind.CONTRACTION_GRADIENT, results=3):
    """The gradients of a layer over a sequence.

    Operands: those with respect to h1 of all rows, `Steps`, those with respect to h and c behind the last step, or None
    for zeros, then `Parameters`. Results: those with respect to what neurons of gates are applied to, and with respect
    to h and c before the first step, ``[1, rows, n]``, or before each one, ``[steps, rows, n]``.
    """

    cell: RecurrentCell
    size: int
    rows: tuple[int, ...]
    keeps_all: bool = False

    @property
    def launches(self) -> int:
        """See `Op`."""
        return len(self.rows)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        gradient, gates, h0, c0, c1, hidden, memory, *rest = operands
        assert gradient is not None
        assert gates is not None
        assert h0 is not None
        state, given = _state(hidden, memory, gradient, self.cell, self.rows[0], self.size), Parameters(*rest)
        if takes_loop(self.cell, gradient, self.rows, self.size, given):
            made, before = looped_gradients(self.cell, gradient, Steps(gates, h0, c0, c1), state, given)
            return made, *[self._before(each) if wanted[1 + place] else None for place, each in enumerate(before)]
        from openmps.ops.matrix.fused_steps import fused_gradients

        how = self.cell, gradient, self.rows, Steps(gates, h0, c0, c1), state, given
        with OneThread(applies=_is_small(gradient, self.rows[0], rest[1])):
            made, before = fused_gradients(*how) or gradients(*how)
        before = before if self.keeps_all else before[:1]
        return (
            made,
            _stacked([each.hidden for each in before]) if wanted[1] else None,
            _stacked([each.memory for each in before]) if wanted[2] else None,
        )

    def _before(self, of_states: Tensor | None) -> Tensor | None:
        """What is given of the gradients of a part of the states, of the rows of all steps."""
        if of_states is None:
            return None
        steps = of_states.view(len(self.rows), self.rows[0], self.size)
        return steps if self.keeps_all else steps[:1].clone()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """On the CPU that of the library that is fastest there."""
    return left @ right if left.is_cuda else product(left, right)


class SourceGradient(Op, kind=Kind.CONTRACTION_GRADIENT):
    """With respect to sources: of gates by the weights of inputs; the sum over gates where there are none."""

    gates: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> Tensor:
        """See `Op.run`."""
        of_gates, weights = operands
        assert of_gates is not None
        return of_gates.unflatten(1, (self.gates, -1)).sum(1) if weights is None else _product(of_gates, weights)


class GateGradient(Op, kind=Kind.CONTRACTION_GRADIENT):
    """With respect to weights of some gates, one behind the other: ``aᵀ x``."""

    first: int
    count: int
    size: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        of_gates, x = operands
        return _product(of_gates[:, self.first * self.size : (self.first + self.count) * self.size].T, x)


class DiagonalGradient(Op, kind=Kind.REDUCTION):
    """With respect to diagonal weights of one gate, ``[1, n]``: the sum of ``a . x`` over rows."""

    gate: int
    size: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        of_gates, x = operands
        return (of_gates[:, self.gate * self.size : (self.gate + 1) * self.size] * x).sum(0, keepdim=True)


class BiasGradient(Op, kind=Kind.REDUCTION):
    """With respect to biases, ``[gates, n]``."""

    gates: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        return operands[0].sum(0).view(self.gates, -1)


class Gated(Op):
    """What a gate lets through of ``x``: its result, by what the layer has kept of gates, times ``x``."""

    neurons: Neurons
    gate: int
    size: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `Op.run`."""
        gates, x = operands
        return self.neurons.result(self.gate, gates.split(self.size, 1)) * x
