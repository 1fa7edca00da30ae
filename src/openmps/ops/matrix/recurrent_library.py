"""Long short-term memory by oneDNN's own functions, on the CPU.

They compute the conventional layer alone: sigmoid gates, hyperbolic tangents, no weights of memories, weights of inputs
and of states, as many rows in each step; from the first step to the last, without the states between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.cpu import CpuChoice
from openmps.ops.matrix.recurrent_cells import Lstm, Parameters, RecurrentCell, State, has_small_steps
from openmps.ops.one_thread import OneThread
from openmps.ops.op import Kind, Op

_aten: Any = torch.ops.aten
_layer: Any = _aten.mkldnn_rnn_layer.default
_layer_backward: Any = _aten.mkldnn_rnn_layer_backward.default
# torch does not promise that this operator stays, and does without it.
_reorder: Any = getattr(torch.ops.mkldnn, "_reorder_mkldnn_rnn_layer_weight", None)
_NEURONS = [torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh]
"""Of the gates i, f, c and o, and of the memory."""
_LSTM = 2
"""What the engine calls this kind of layer."""


class _Sequence(NamedTuple):
    """What the functions get."""

    x: Tensor
    """``[steps, rows, inputs]``."""
    weights: list[Tensor]
    """Of inputs and states, and the biases of both."""
    hidden: Tensor
    """Before the first step, ``[1, rows, n]``."""
    memory: Tensor

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """As the engine takes them."""
        return self.x, *self.weights, self.hidden, self.memory

    @property
    def has_small_steps(self) -> bool:
        """See `recurrent_cells.has_small_steps`."""
        (_, rows, inputs), size = self.x.shape, self.hidden.shape[2]
        return has_small_steps(rows, Lstm.gates * size * (inputs + size))


def _run(given: _Sequence, *, keeps: bool) -> Sequence[Tensor]:
    """h1, h and c behind the last step, and what the gradient needs, in an order of the library's."""
    how = False, [], _LSTM, given.hidden.shape[2], 1, True, False, False, keeps
    with OneThread(applies=given.has_small_steps):
        if torch.is_grad_enabled() == keeps:
            return _layer(*given.operands, *how)
        # It keeps that where gradients are enabled; none of the operands asks for one.
        with torch.set_grad_enabled(keeps):
            return _layer(*given.operands, *how)


_Before = tuple[Tensor, Tensor]
"""H and c before the first step, ``[1, rows, n]``."""
_AT_ONCE = 1 << 18
"""Numbers of states of a call that leaves what the gradient needs."""
_LARGE, _FEW = 512, 8
"""Numbers of a state from which on the library's packing of weights takes longer than MKL's products of fewer rows
save on its maker's processors."""


def trains_by_library(cell: RecurrentCell, size: int, device: torch.device, rows: Sequence[int]) -> bool:
    """Whether its gradient is faster than a loop, too: see `takes_library`."""
    if size >= _LARGE and rows[0] < _FEW and CpuChoice.LARGE_LSTM.takes_intel:
        return False
    return takes_library(cell, device, rows)


def steps_of_calls(size: int, rows: Sequence[int]) -> tuple[int, ...]:
    """The steps of each call of `LibraryRecurrence`, one behind the other.

    What a call leaves for the gradient is nine numbers for each number of its states. Memory as large as all steps of
    many rows need goes back to the system each time, and to get it again takes a third as long as the work. Each call
    brings the weights into the library's order; that of large ones takes longer.
    """
    calls = 1 if size >= _LARGE else min(len(rows), -(-sum(rows) * size // _AT_ONCE))
    return tuple([len(rows) * (at + 1) // calls - len(rows) * at // calls for at in range(calls)])


def takes_library(cell: RecurrentCell, device: torch.device, rows: Sequence[int]) -> bool:
    """Whether the library has a function for a cell without weights of memories, over steps of so many rows."""
    return bool(rows[-1]) and rows[0] == rows[-1] and _has_library(cell, device)


def _has_library(cell: RecurrentCell, device: torch.device) -> bool:
    if not isinstance(cell, Lstm) or device.type != "cpu":
        return False
    neurons = [each.applied() for each in (*cell.activations, cell.output)]
    return neurons == _NEURONS and torch.backends.mkldnn.is_available()


def _sequence(x: Tensor, steps: int, before: _Before, weights: Sequence[Tensor], biases: Tensor | None) -> _Sequence:
    """``x`` are the rows of all steps; ``weights`` of inputs and states are as the library takes them."""
    hidden, memory = before
    none = _no_biases(Lstm.gates * hidden.shape[2])
    return _Sequence(_in_steps(x, steps), [*weights, none if biases is None else biases, none], hidden, memory)


def _before(x: Tensor, steps: int, size: int, hidden: Tensor | None, memory: Tensor | None) -> _Before:
    """H and c before the first step of ``[rows, n]`` as the library takes them; zeros where none is given."""
    if hidden is None or memory is None:
        hidden = x.new_zeros(1, len(x) // steps, size)
        return hidden, hidden
    return hidden.unsqueeze(0).contiguous(), memory.unsqueeze(0).contiguous()


@lru_cache(maxsize=64)
def _no_biases(count: int) -> Tensor:
    """Zeros, which nobody writes: the library adds two vectors of biases."""
    return torch.zeros(count)


def _in_steps(x: Tensor, steps: int) -> Tensor:
    """The rows of all steps as ``[steps, rows, numbers]``; a short sequence's time is that of such calls."""
    return x.contiguous().view(steps, -1, x.shape[1])


def _in_rows(x: Tensor) -> Tensor:
    """The rows of all steps, one behind the other."""
    return x.view(-1, x.shape[2])


def library_lstm(
    cell: RecurrentCell, x: Tensor, rows: Sequence[int], state: State, given: Parameters
) -> tuple[Tensor, State] | None:
    """h1 of all rows and the state behind the last step; None where the library computes something else.

    Its steps are one call, which takes 0.7 of the time that as many calls do as a step has operations, and
    a third where there is one row.
    """
    is_plain = given.inputs is not None and given.states is not None and given.memories is None
    if not is_plain or x.dim() > 2 or x.dtype != torch.float32 or not takes_library(cell, x.device, rows):
        return None
    assert given.inputs is not None
    assert given.states is not None
    before = _before(x, len(rows), state.hidden.shape[1], *state)
    weights = [given.inputs.contiguous(), given.states.contiguous()]
    y, hidden, memory, _ = _run(_sequence(x, len(rows), before, weights, given.biases), keeps=False)
    return _in_rows(y), State(hidden[0], memory[0])


def packs_for_library(cell: RecurrentCell, device: torch.device) -> bool:
    """Whether `PackedRecurrence` is a layer with weights of inputs and states alone, over steps of as many rows."""
    return _reorder is not None and _has_library(cell, device)


class PackLstm(Op, kind=Kind.PREPARATION):
    """Weights of inputs and of states of a long short-term memory in the library's own order, once for all calls.

    A call makes it by itself else, which is a third of the time of 32 steps of one row.
    """

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> tuple[Tensor, ...]:
        """See `Op.run`."""
        inputs, states = operands
        return tuple(_reorder(inputs, states, states.shape[1], False, True, False))


class PackedRecurrence(Op, kind=Kind.CONTRACTION, results=3):
    """A layer of long short-term memory that `packs_for_library`.

    Operands: the sources ``[rows of all steps, inputs]``, h and c before the first step, or None for zeros, what
    `PackLstm` gives, biases or None. Results: h1 of all rows, h and c behind the last step, ``[1, rows, n]``.
    """

    steps: int
    size: int

    @property
    def gates(self) -> int:
        """Of its cell."""
        return Lstm.gates

    @property
    def launches(self) -> int:
        """See `Op`."""
        return self.steps

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See `Op.run`."""
        x, hidden, memory, packed, biases = operands
        before = _before(x, self.steps, self.size, hidden, memory)
        y, hidden, memory, _ = _run(_sequence(x, self.steps, before, packed, biases), keeps=False)
        return _in_rows(y), hidden, memory


class LibraryRecurrence(Op, kind=Kind.CONTRACTION, results=4):
    """A layer of long short-term memory that `trains_by_library`, with what its gradient needs.

    Operands: the sources ``[rows of all steps, inputs]``, h and c before the first step, or None for zeros, weights of
    inputs and of states, biases or None. Results: h1 of all rows, h and c behind the last step, ``[1, rows, n]``; then
    what the gradient needs besides, a tuple: h and c behind the last step and before the first one, and a tensor of the
    library's own.
    """

    steps: int

    @property
    def launches(self) -> int:
        """See `Op`."""
        return self.steps

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Any, ...]:
        """See `Op.run`."""
        x, hidden, memory, inputs, states, biases = operands
        before = _before(x, self.steps, states.shape[1], hidden, memory)
        weights = [inputs.contiguous(), states.contiguous()]
        y, h1, c1, kept = _run(_sequence(x, self.steps, before, weights, biases), keeps=True)
        # Memory of a state that is given may change before the gradient reads what it was.
        first = before if hidden is None else [each.clone() for each in before]
        behind = [each.clone() if is_wanted else None for each, is_wanted in zip((h1, c1), wanted[1:3], strict=True)]
        return _in_rows(y), *behind, (h1, c1, *first, kept)


class StateBefore(Op, kind=Kind.STORAGE, results=2, gives_view=True):
    """Of what `LibraryRecurrence` keeps, h and c before the first step."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See `Op.run`."""
        ((_, _, hidden, memory, _),) = operands
        return hidden[0], memory[0]


class LibraryRecurrenceGradient(Op, kind=Kind.CONTRACTION_GRADIENT, results=6):
    """The gradients of `LibraryRecurrence`.

    Operands: those with respect to h1 of all rows, the sources, h1 of all rows and what the layer keeps, those with
    respect to h and c behind the last step, or None for zeros, then weights and biases as the layer has them. Results:
    those with respect to sources, weights of inputs and of states, biases, ``[gates, n]``, and h and c before the first
    step, ``[1, rows, n]``.
    """

    steps: int

    @property
    def launches(self) -> int:
        """See `Op`."""
        return self.steps

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        gradient, x, y, (h1, c1, h0, c0, kept), of_hidden, of_memory, inputs, states, biases = operands
        behind = [None if each is None else each.unsqueeze(0).contiguous() for each in (of_hidden, of_memory)]
        y, gradient = _in_steps(y, self.steps), _in_steps(gradient, self.steps)
        sequence = _sequence(x, self.steps, (h0, c0), [inputs.contiguous(), states.contiguous()], biases)
        how = False, _LSTM, states.shape[1], 1, True, True, False, [], False
        with OneThread(applies=sequence.has_small_steps):
            dx, of_inputs, of_states, of_biases, _, dh, dc = _layer_backward(
                *sequence.operands, y, h1, c1, gradient, *behind, *how, kept
            )
        return _in_rows(dx), of_inputs, of_states, of_biases.view(Lstm.gates, -1), dh, dc
