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
from openmps.ops.matrix.looped_steps import suits_loop
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


_Before = tuple[Tensor, Tensor]
"""H and c before the first step, ``[1, rows, n]``."""


class _Layer(NamedTuple):
    """What all calls of the functions over one sequence get."""

    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    """Of inputs and of states, as the library takes them, and the biases of both."""
    size: int

    def run(self, x: Tensor, before: _Before, *, keeps: bool) -> Sequence[Tensor]:
        """h1 of ``[steps, rows, inputs]``, h and c behind the last step, and what the gradient needs."""
        how = False, [], _LSTM, self.size, 1, True, False, False, keeps
        if torch.is_grad_enabled() == keeps:
            return _layer(x, *self.weights, *before, *how)
        # It keeps that where gradients are enabled; none of the operands asks for one.
        with torch.set_grad_enabled(keeps):
            return _layer(x, *self.weights, *before, *how)

    def back(self, call: _Call, x: Tensor, gradient: Tensor, behind: Sequence[Tensor | None]) -> Sequence[Tensor]:
        """The gradients of a call by those of its results, in an order of the library's."""
        _, y, h1, c1, h0, c0, own = call
        states = h0, c0, y, h1, c1, gradient, *behind
        return _layer_backward(x, *self.weights, *states, False, _LSTM, self.size, 1, True, True, False, [], False, own)


class _Call(NamedTuple):
    """What a call keeps for its gradient."""

    x: Tensor
    y: Tensor
    """h1, ``[steps, rows, n]``."""
    hidden: Tensor
    """Behind the last step, ``[1, rows, n]``."""
    memory: Tensor
    first_hidden: Tensor
    """Before the first step."""
    first_memory: Tensor
    own: Tensor
    """The library's."""


_AT_ONCE = 900_000
"""Numbers of states of a call that leaves what the gradient needs, which is less than 32 MiB of memory then."""
_LARGE, _FEW = 512, 8
"""Numbers of a state from which on the library's packing of weights takes longer than MKL's products of fewer rows
save on its maker's processors."""


def trains_by_library(cell: RecurrentCell, size: int, device: torch.device, rows: Sequence[int]) -> bool:
    """Whether its gradient is faster than a loop, too: see `takes_library`."""
    if suits_loop(cell, size, device, rows):
        return False
    if size >= _LARGE and rows[0] < _FEW and CpuChoice.LARGE_LSTM.takes_intel:
        return False
    return takes_library(cell, device, rows)


def steps_of_calls(size: int, rows: Sequence[int]) -> tuple[int, ...]:
    """The steps of each call of `LibraryRecurrence`, one behind the other.

    What a call leaves for the gradient is nine numbers for each number of its states. Memory of 32 MiB goes back to the
    system each time (`openmps.metal.host_memory`), and to get it again takes a third as long as the work. Each call
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


def _layer_of(weights: Sequence[Tensor], biases: Tensor | None, size: int) -> _Layer:
    """``weights`` of inputs and states are as the library takes them."""
    inputs, states = weights
    none = _no_biases(Lstm.gates * size)
    return _Layer((inputs, states, none if biases is None else biases, none), size)


def _on_its_threads(x: Tensor, steps: int, size: int) -> OneThread:
    """The threads for steps of the rows of ``x``; see `recurrent_cells.has_small_steps`."""
    rows, inputs = x.shape
    return OneThread(applies=has_small_steps(rows // steps, Lstm.gates * size * (inputs + size)))


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
    size = state.hidden.shape[1]
    layer = _layer_of([given.inputs.contiguous(), given.states.contiguous()], given.biases, size)
    before = _before(x, len(rows), size, *state)
    with _on_its_threads(x, len(rows), size):
        y, hidden, memory, _ = layer.run(_in_steps(x, len(rows)), before, keeps=False)
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


def _run_packed(
    x: Tensor, hidden: Tensor | None, memory: Tensor | None, packed: Sequence[Tensor], biases: Tensor | None,
    *, steps: int, size: int,
) -> Sequence[Tensor]:  # fmt: skip
    """The results of `PackedRecurrence`, h1 as the library gives it."""
    layer, before = _layer_of(packed, biases, size), _before(x, steps, size, hidden, memory)
    with _on_its_threads(x, steps, size):
        return layer.run(_in_steps(x, steps), before, keeps=False)[:3]


def _put_packed(room: Tensor, *operands: Any, steps: int, size: int) -> bool | tuple[Tensor | None, ...]:
    if room.dtype != torch.float32:
        return False
    y, hidden, memory = _run_packed(*operands, steps=steps, size=size)
    room.copy_(_in_rows(y))
    return None, hidden, memory


class PackedRecurrence(Op, kind=Kind.CONTRACTION, into=_put_packed, results=3):
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
        y, hidden, memory = _run_packed(*operands, steps=self.steps, size=self.size)
        return _in_rows(y), hidden, memory


def _put_trained(
    room: Tensor, x: Tensor, hidden: Tensor | None, memory: Tensor | None, inputs: Tensor, states: Tensor,
    biases: Tensor | None, *, steps: tuple[int, ...],
) -> bool | tuple[Any, ...]:  # fmt: skip
    """Each call's rows go to their place before the next call, while they are in the caches."""
    if room.dtype != torch.float32:
        return False
    count, size, calls = sum(steps), states.shape[1], list[_Call]()
    layer = _layer_of([inputs.contiguous(), states.contiguous()], biases, size)
    before = _before(x, count, size, hidden, memory)
    if hidden is not None:  # memory that is given may change before the gradient reads what it was
        before = before[0].clone(), before[1].clone()
    rows = [each * (len(x) // count) for each in steps]
    with _on_its_threads(x, count, size):
        for some, place, each in zip(x.split(rows), room.split(rows), steps, strict=True):
            own_x = some.clone(memory_format=torch.contiguous_format).view(each, -1, x.shape[1])
            y, h1, c1, own = layer.run(own_x, before, keeps=True)
            place.copy_(_in_rows(y))
            calls.append(_Call(own_x, y, h1, c1, *before, own))
            before = h1, c1
    return None, tuple(calls), *[each[0].clone() for each in before]


class LibraryRecurrence(Op, kind=Kind.CONTRACTION, into=_put_trained, results=4):
    """A layer of long short-term memory that `trains_by_library`, with what its gradient needs.

    Operands: the sources ``[rows of all steps, inputs]``, h and c before the first step, or None for zeros, weights of
    inputs and of states, biases or None. Results: h1 of all rows; what the gradient needs besides, of each call a tuple
    of tensors; h and c behind the last step.
    """

    steps: tuple[int, ...]
    """Of each call."""

    @property
    def launches(self) -> int:
        """See `Op`."""
        return sum(self.steps)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Any, ...]:
        """See `Op.run`."""
        room = operands[0].new_empty(len(operands[0]), operands[4].shape[1])
        found = _put_trained(room, *operands, steps=self.steps)
        assert isinstance(found, tuple)
        return room, *found[1:]


class GivenBefore(Op, kind=Kind.STORAGE, results=3, gives_view=True):
    """Of what `LibraryRecurrence` keeps, what it was given: sources, h and c before the first step."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See `Op.run`."""
        (calls,) = operands
        x = [_in_rows(call[0]) for call in calls]
        return x[0] if len(x) == 1 else torch.cat(x), calls[0][4][0], calls[0][5][0]


def _put_gradient(
    room: Tensor, gradient: Tensor, x: Tensor, calls: Sequence[_Call], of_hidden: Tensor | None,
    of_memory: Tensor | None, inputs: Tensor, states: Tensor, biases: Tensor | None, *, steps: tuple[int, ...],
) -> bool | tuple[Tensor | None, ...]:  # fmt: skip
    """From the last call to the first; each call's rows go to their place before the next one."""
    if room.dtype != torch.float32:
        return False
    count, size, sums = sum(steps), states.shape[1], list[Tensor]()
    layer = _layer_of([inputs.contiguous(), states.contiguous()], biases, size)
    given = of_hidden, of_memory
    behind: list[Tensor | None] = [None if each is None else each.unsqueeze(0).contiguous() for each in given]
    rows = [each * (len(x) // count) for each in steps]
    parts = zip(calls, steps, *(each.split(rows) for each in (x, gradient, room)), strict=True)
    with _on_its_threads(x, count, size):
        for call, each, its_x, its_gradient, place in reversed([*parts]):
            operands = _in_steps(its_x, each), _in_steps(its_gradient, each)
            dx, *of_weights, _, dh, dc = layer.back(call, *operands, behind)
            place.copy_(_in_rows(dx))
            behind = [dh, dc]
            for mine, more in zip(sums, of_weights, strict=True) if sums else ():
                mine.add_(more)
            sums = sums or of_weights
    of_inputs, of_states, of_biases = sums
    return (
        None,
        of_inputs,
        of_states,
        of_biases.view(Lstm.gates, -1),
        *[None if each is None else each[0] for each in behind],
    )


class LibraryRecurrenceGradient(Op, kind=Kind.CONTRACTION_GRADIENT, into=_put_gradient, results=6):
    """The gradients of `LibraryRecurrence`.

    Operands: those with respect to h1 of all rows, the sources, what the layer keeps, those with respect to h and c
    behind the last step, or None for zeros, then weights and biases as the layer has them. Results: those with respect
    to sources, weights of inputs and of states, biases, ``[gates, n]``, and h and c before the first step.
    """

    steps: tuple[int, ...]

    @property
    def launches(self) -> int:
        """See `Op`."""
        return sum(self.steps)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        room = torch.empty_like(operands[1], memory_format=torch.contiguous_format)
        found = _put_gradient(room, *operands, steps=self.steps)
        assert isinstance(found, tuple)
        return room, *found[1:]
