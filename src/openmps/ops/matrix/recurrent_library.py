"""Long short-term memory by the engine's own functions: oneDNN's on the CPU, cuDNN's on CUDA.

They compute the conventional layer alone: sigmoid gates, hyperbolic tangents, no weights of memories, weights of inputs
and of states, as many rows in each step; from the first step to the last, without the states between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.matrix.recurrent_cells import Lstm, Parameters, RecurrentCell, State
from openmps.ops.op import Kind, Op

_aten: Any = torch.ops.aten
_NEURONS = torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid, torch.tanh
"""Of the gates i, f, c and o, and of the memory."""
_LSTM = 2
"""What the engine calls this kind of layer."""


class _Sequence(NamedTuple):
    """What the functions of a library get."""

    x: Tensor
    """``[steps, rows, inputs]``."""
    before: State
    """``[1, rows, n]`` each."""
    weights: list[Tensor]
    """Of inputs and states, and the biases of both."""

    @property
    def size(self) -> int:
        """Numbers of a state."""
        return self.before.hidden.shape[2]


class Run(NamedTuple):
    """What a library's forward function gives."""

    hidden: Tensor
    """h1, ``[steps, rows, n]``."""
    behind: State
    """The state behind the last step, ``[1, rows, n]`` each."""
    reserve: Tensor | None = None
    """What the library's gradient needs, in an order of its own."""
    packed: Tensor | None = None
    """The weights as it has used them, where the gradient needs them so."""


class Gradients(NamedTuple):
    """With respect to sources, to `Parameters` but for weights of memories, and to the state before the first step."""

    x: Tensor
    inputs: Tensor
    states: Tensor
    biases: Tensor
    hidden: Tensor
    memory: Tensor


def _run_onednn(given: _Sequence, *, keeps: bool) -> Run:
    # It keeps what the gradient needs where gradients are enabled; none of the operands asks for one.
    with torch.set_grad_enabled(keeps):
        y, h, c, reserve = _aten.mkldnn_rnn_layer(
            given.x, *given.weights, *given.before, False, [], _LSTM, given.size, 1, True, False, False, keeps
        )
    return Run(y, State(h, c), reserve)


def _back_onednn(given: _Sequence, run: Run, of_hidden: Tensor, behind: State | None) -> Gradients:
    dx, of_inputs, of_states, of_biases, _, dh, dc = _aten.mkldnn_rnn_layer_backward(
        given.x, *given.weights, *given.before, run.hidden, *run.behind, of_hidden,
        *(behind or (None, None)), False, _LSTM, given.size, 1, True, True, False, [], False, run.reserve,
    )  # fmt: skip
    return Gradients(dx, of_inputs, of_states, of_biases, dh, dc)


def _options_of_cudnn(given: _Sequence, *, keeps: bool) -> tuple[Any, ...]:
    """Kind, sizes and layers; rows before steps, dropout, training, directions, lengths of rows, dropout's state."""
    return _LSTM, given.size, 0, 1, False, 0.0, keeps, False, [], None


def _run_cudnn(given: _Sequence, *, keeps: bool) -> Run:
    from openmps.ops.convolution.library_convolution import by_cudnn  # layers on the CPU need none of it

    # They become views of the packed ones, which a tensor of somebody else's must not.
    weights, inputs = [each.view_as(each) for each in given.weights], given.x.shape[2]
    packed = _aten._cudnn_rnn_flatten_weight(weights, 4, inputs, _LSTM, given.size, 0, 1, False, False)
    with by_cudnn("rnn", exact=True):
        y, h, c, reserve, _ = _aten._cudnn_rnn(
            given.x, weights, 4, packed, *given.before, *_options_of_cudnn(given, keeps=keeps)
        )
    return Run(y, State(h, c), reserve, packed)


def _back_cudnn(given: _Sequence, run: Run, of_hidden: Tensor, behind: State | None) -> Gradients:
    from openmps.ops.convolution.library_convolution import by_cudnn

    assert run.reserve is not None
    # cuDNN overwrites the reserve, which another gradient may read.
    reserve = run.reserve.clone()
    with by_cudnn("rnn", exact=True):
        dx, dh, dc, (of_inputs, of_states, of_biases, _) = _aten._cudnn_rnn_backward(
            given.x, given.weights, 4, run.packed, *given.before, run.hidden, of_hidden,
            *(behind or (None, None)), *_options_of_cudnn(given, keeps=True), reserve, [True] * 4,
        )  # fmt: skip
    return Gradients(dx, of_inputs, of_states, of_biases, dh, dc)


class _Library(NamedTuple):
    """A library of a kind of device."""

    is_there: Callable[[], bool]
    run: Callable[..., Run]
    back: Callable[[_Sequence, Run, Tensor, State | None], Gradients]


_LIBRARIES = {
    "cpu": _Library(torch.backends.mkldnn.is_available, _run_onednn, _back_onednn),
    "cuda": _Library(lambda: torch.version.cuda is not None, _run_cudnn, _back_cudnn),
}
"""By the type of the device."""


def takes_library(cell: RecurrentCell, device: torch.device, rows: Sequence[int]) -> bool:
    """Whether a library has a function for a cell without weights of memories, over steps of so many rows."""
    if not isinstance(cell, Lstm) or not rows[-1] or rows[0] != rows[-1] or device.type not in _LIBRARIES:
        return False
    neurons = [each.applied() for each in (*cell.activations, cell.output)]
    return neurons == [*_NEURONS] and _LIBRARIES[device.type].is_there()


def _sequence(x: Tensor, before: State, given: Parameters, steps: int) -> _Sequence:
    inputs, states, biases, _ = given
    assert inputs is not None
    assert states is not None
    assert before.memory is not None
    none = inputs.new_zeros(len(inputs))
    weights = [inputs.contiguous(), states.contiguous(), none if biases is None else biases, none]
    state = State(before.hidden.unsqueeze(0).contiguous(), before.memory.unsqueeze(0).contiguous())
    return _Sequence(x.unflatten(0, (steps, -1)).contiguous(), state, weights)


def library_lstm(
    cell: RecurrentCell, x: Tensor, rows: Sequence[int], state: State, given: Parameters
) -> tuple[Tensor, State] | None:
    """h1 of all rows and the state behind the last step; None where no library computes the same.

    On the CPU its steps are one call, which takes 0.7 of the time that as many calls do as a step has operations, and
    a third where there is one row.
    """
    is_plain = given.inputs is not None and given.states is not None and given.memories is None
    if not is_plain or x.dim() > 2 or x.dtype != torch.float32 or not takes_library(cell, x.device, rows):
        return None
    run = _LIBRARIES[x.device.type].run(_sequence(x, state, given, len(rows)), keeps=False)
    hidden, memory = run.behind
    return run.hidden.flatten(0, 1), State(hidden[0], None if memory is None else memory[0])


class LibraryRecurrence(Op, kind=Kind.CONTRACTION, results=7):
    """A layer of long short-term memory that `takes_library`, with what its gradient needs.

    Operands: the sources ``[rows of all steps, inputs]``, h and c before the first step, or None for zeros, weights of
    inputs and of states, biases or None. Results: h1 of all rows, h and c behind the last step, ``[1, rows, n]``; then
    what the gradient needs besides: h and c before the first step, and two tensors of the library's own.
    """

    steps: int

    @property
    def launches(self) -> int:
        """See `Op`."""
        return self.steps

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        x, hidden, memory, *weights = operands
        assert x is not None
        state, given = _state(x, self.steps, hidden, memory, weights)
        run = _LIBRARIES[x.device.type].run(_sequence(x, state, given, self.steps), keeps=True)
        # Memory of a state may change before the gradient reads what it was.
        first = [None if each is None else each.clone() for each in state]
        return run.hidden.flatten(0, 1), *run.behind, *first, run.reserve, run.packed


class LibraryRecurrenceGradient(Op, kind=Kind.CONTRACTION_GRADIENT, results=6):
    """The gradients of `LibraryRecurrence`.

    Operands: those with respect to h1 of all rows, the sources, all results of the layer, those with respect to h and c
    behind the last step, or None for zeros, then weights and biases as the layer has them. Results: those with respect
    to sources, weights of inputs and of states, biases, ``[gates, n]``, and h and c before the first step, ``[1, rows,
    n]``.
    """

    steps: int

    @property
    def launches(self) -> int:
        """See `Op`."""
        return self.steps

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> tuple[Tensor | None, ...]:
        """See `Op.run`."""
        gradient, x, y, h1, c1, h0, c0, reserve, packed, of_hidden, of_memory, *weights = operands
        assert gradient is not None
        assert x is not None
        assert y is not None
        assert h1 is not None
        before, given = _state(x, self.steps, h0, c0, weights)
        of_behind = None
        if of_hidden is not None and of_memory is not None:
            of_behind = State(of_hidden.unsqueeze(0).contiguous(), of_memory.unsqueeze(0).contiguous())
        run = Run(y.unflatten(0, (self.steps, -1)), State(h1, c1), reserve, packed)
        slopes = gradient.unflatten(0, (self.steps, -1)).contiguous()
        sequence = _sequence(x, before, given, self.steps)
        found = _LIBRARIES[x.device.type].back(sequence, run, slopes, of_behind)
        return found.x.flatten(0, 1), found.inputs, found.states, found.biases.view(Lstm.gates, -1), *found[4:]


def _state(
    x: Tensor, steps: int, hidden: Tensor | None, memory: Tensor | None, weights: Sequence[Tensor | None]
) -> tuple[State, Parameters]:
    """The state before the first step, zeros where none is given, and the parameters."""
    inputs, states, biases = weights
    assert states is not None
    if hidden is None or memory is None:
        hidden = memory = x.new_zeros(len(x) // steps, states.shape[1])
    return State(hidden, memory), Parameters(inputs, states, biases)
