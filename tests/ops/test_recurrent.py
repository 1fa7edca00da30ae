"""Recurrent cells over sequences against loops, finite differences, the adjoint identity and PyTorch's cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from helpers import array, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.geometry import meet
from openmps.ops.matrix.recurrent import GateGradient, PartsOf, Recurrence, RecurrenceGradient, SourceGradient
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm, Parameters, RecurrentCell, SingleGate, State
from openmps.ops.matrix.recurrent_library import (
    GivenBefore,
    LibraryRecurrence,
    LibraryRecurrenceGradient,
    PackedRecurrence,
    PackLstm,
    library_lstm,
    packs_for_library,
    trains_by_library,
)
from openmps.types import MPSCNNNeuronType
from oracles import finite_difference
from oracles import recurrent as oracle

Array = np.ndarray
SIGMOID, TANH = Activation(MPSCNNNeuronType.SIGMOID), Activation(MPSCNNNeuronType.TANH, 1.0, 1.0)
SIGN, SCALED = Activation(MPSCNNNeuronType.SOFT_SIGN), Activation(MPSCNNNeuronType.TANH, 1.5, 0.7)
NEURONS = {
    SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    TANH: math.tanh,
    SIGN: lambda x: x / (1 + abs(x)),
    SCALED: lambda x: 1.5 * math.tanh(0.7 * x),
}
ALL = (True,) * 7


@dataclass(frozen=True)
class Case:
    """A cell, its gates' names in the oracle, and which weights it has."""

    cell: RecurrentCell
    gates: str
    unit: bool = False
    memories: str = ""
    """The gates with memory weights."""
    is_diagonal: bool = False
    missing: tuple[str, ...] = ()
    """``W U b`` that are not there at all."""

    def weights(self, rng: np.random.Generator, inputs: int, size: int) -> tuple[oracle.Weights, Parameters]:
        def of(part: str, *shape: int) -> dict[str, Array]:
            return {} if part in self.missing else {gate: rng.normal(0, 0.6, shape) for gate in self.gates}

        memory = (size,) if self.is_diagonal else (size, size)
        W = {} if self.unit else of("W", size, inputs)
        U, b = of("U", size, size), of("b", size)
        V = {gate: rng.normal(0, 0.6, memory) for gate in self.memories}
        acts = [self.cell.activation] if isinstance(self.cell, SingleGate) else self.cell.activations
        f = {gate: NEURONS[act] for gate, act in zip(self.gates, acts, strict=True) if act in NEURONS}
        stack = [None if not each else np.concatenate([each[gate] for gate in self.gates]) for each in (W, U, b)]
        peep = None
        if self.memories:
            gates = self.memories if isinstance(self.cell, Gru) else self.gates
            peep = np.concatenate([V.get(gate, np.zeros(memory)) for gate in gates])
        tensors = [None if each is None else tensor(each) for each in (*stack, peep)]
        return oracle.Weights(W, U, V, b, f), Parameters(*tensors)

    def step(self, given: oracle.Weights) -> oracle.Step:
        if isinstance(self.cell, SingleGate):
            return lambda x, h, c: (oracle.single_gate(given, x, h, unit=self.unit), c)
        if isinstance(self.cell, Gru):
            p, flipped = self.cell.p, self.cell.is_flipped
            return lambda x, h, c: (oracle.gru(given, x, h, p, flipped=flipped, unit=self.unit), c)
        return lambda x, h, c: oracle.lstm(given, x, h, c, math.tanh, unit=self.unit)


GATED = (SIGMOID, SIGMOID, TANH)
CASES = {
    "single gate": Case(SingleGate(TANH), "g"),
    "single gate without a neuron": Case(SingleGate(Activation()), "g"),
    "single gate, unit transform": Case(SingleGate(TANH), "g", unit=True),
    "single gate without recurrence": Case(SingleGate(TANH), "g", missing=("U",)),
    "single gate without biases": Case(SingleGate(TANH), "g", missing=("b",)),
    "GRU": Case(Gru(GATED), "zrh"),
    "GRU, flipped": Case(Gru(GATED, is_flipped=True), "zrh"),
    "GRU, p 2, minimal": Case(Gru(GATED, 2.0), "zrh", memories="h"),
    "GRU, p 0.7, flipped": Case(Gru(GATED, 0.7, True), "zrh", memories="h"),
    "GRU, unit transform": Case(Gru(GATED), "zrh", unit=True),
    "GRU without recurrence": Case(Gru(GATED), "zrh", missing=("U",)),
    "LSTM": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco"),
    "LSTM, peepholes": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco", memories="ifco"),
    "LSTM, diagonal": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco", memories="ifco", is_diagonal=True),
    "LSTM, one peephole": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco", memories="o"),
    "LSTM, unit transform": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco", unit=True),
    "LSTM without recurrence": Case(Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), "ifco", missing=("U",)),
}
# Neurons whose slopes do not follow from their results, so that other numbers are kept for the gradient.
CASES |= {
    "single gate, soft sign": Case(SingleGate(SIGN), "g"),
    "GRU of other neurons": Case(Gru((SIGMOID, SIGN, SCALED)), "zrh"),
    "LSTM of other neurons": Case(Lstm((SIGN, SIGMOID, SCALED, SIGN), TANH), "ifco", memories="ifco"),
}
ROWS = [(2, 2, 2), (3, 2, 2, 1), (1,), (2, 1, 0)]
cases = pytest.mark.parametrize("name", CASES)


class Trial:
    """A case with numbers."""

    def __init__(self, name: str, rows: tuple[int, ...], rng: np.random.Generator, size: int = 3) -> None:
        self.case, self.rows, self.size = CASES[name], rows, size
        self.inputs = size if self.case.unit else 4
        self.given, self.parameters = self.case.weights(rng, self.inputs, size)
        self.x = rng.normal(size=(sum(rows), self.inputs))
        self.h, self.c = rng.normal(size=(rows[0], size)), rng.normal(size=(rows[0], size))

    def steps(self) -> list[Array]:
        return np.split(self.x, np.cumsum(self.rows)[:-1])

    def forward(self, x: Array, h: Array, c: Array, *, backward: bool = False, keeps_all: bool = False) -> Any:
        op = Recurrence(self.case.cell, self.size, self.rows, backward, keeps_all)
        return op.run(ALL, tensor(x), tensor(h), tensor(c) if self.case.cell.has_memory else None, *self.parameters)


@in_one_test
@cases
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_equals_loops(name: str, rows: tuple[int, ...], backward: bool, rng: np.random.Generator) -> None:
    trial = Trial(name, rows, rng)
    y, h, c, *_ = trial.forward(trial.x, trial.h, trial.c, backward=backward)
    step = trial.case.step(trial.given)
    expected, last_h, last_c = oracle.run(step, trial.steps(), trial.h, trial.c, backward=backward)
    assert_close(y, np.concatenate(expected), 1e-12, name)
    assert_close(h[0], last_h, 1e-12, name)
    if trial.case.cell.has_memory:
        assert_close(c[0], last_c, 1e-12, name)
    else:
        assert c is None


@in_one_test
@cases
def test_all_states_are_those_of_shorter_sequences(name: str, rng: np.random.Generator) -> None:
    rows = (3, 2, 2, 1)
    trial = Trial(name, rows, rng)
    _, h, c, *_ = trial.forward(trial.x, trial.h, trial.c, keeps_all=True)
    step = trial.case.step(trial.given)
    for t in range(len(rows)):
        _, last_h, last_c = oracle.run(step, trial.steps()[: t + 1], trial.h, trial.c)
        assert_close(h[t], last_h, 1e-12, name)
        if c is not None:
            assert_close(c[t], last_c, 1e-12, name)


@cases
@pytest.mark.parametrize("rows", [(2, 2, 2), (3, 2, 1)], ids=str)
def test_gradients_equal_finite_differences(name: str, rows: tuple[int, ...], rng: np.random.Generator) -> None:
    trial = Trial(name, rows, rng)
    of_y, of_h, of_c = (rng.normal(size=shape) for shape in ((sum(rows), 3), (rows[0], 3), (rows[0], 3)))
    cell = trial.case.cell

    def loss(x: Array, h: Array, c: Array) -> float:
        y, last_h, last_c, *_ = trial.forward(x, h, c)
        found = float((array(y) * of_y).sum() + (array(last_h[0]) * of_h).sum())
        return found + (float((array(last_c[0]) * of_c).sum()) if cell.has_memory else 0.0)

    kept = trial.forward(trial.x, trial.h, trial.c)[3:]
    op = RecurrenceGradient(cell, 3, rows)
    memory = tensor(of_c) if cell.has_memory else None
    a, dh, dc = op.run((True,) * 3, tensor(of_y), *kept, tensor(of_h), memory, *trial.parameters)
    dx = SourceGradient(cell.gates).run((True,), a, trial.parameters.inputs)
    x, h, c = trial.x, trial.h, trial.c
    assert_close(dx, finite_difference.gradient(lambda each: loss(each, h, c), x), 1e-7, name)
    assert_close(dh[0], finite_difference.gradient(lambda each: loss(x, each, c), h), 1e-7, name)
    if cell.has_memory:
        assert_close(dc[0], finite_difference.gradient(lambda each: loss(x, h, each), c), 1e-7, name)
    # Everything that goes to a gate goes by its sum with biases: that with respect to weights follows.
    first = GateGradient(0, 1, 3).run((True,), a, tensor(x))
    assert_close(first, array(a)[:, :3].T @ x, 1e-12, name)


@in_one_test
@cases
def test_states_of_the_gradient_are_those_of_its_parts(name: str, rng: np.random.Generator) -> None:
    """Steps 2 and 3, then 0 and 1 with the state that came out: what the whole gives."""
    rows = (3, 3, 2, 1)
    trial = Trial(name, rows, rng)
    of_y, cell = tensor(rng.normal(size=(sum(rows), 3))), trial.case.cell
    kept = trial.forward(trial.x, trial.h, trial.c)[3:]

    def part(rows: tuple[int, ...], first: int, state: tuple[Any, Any], keeps_all: bool = False) -> Any:
        some = slice(first, first + sum(rows))
        mine = [None if each is None else each[some] for each in kept]
        return RecurrenceGradient(cell, 3, rows, keeps_all).run(ALL, of_y[some], *mine, *state, *trial.parameters)

    whole, h, c = part(rows, 0, (None, None), keeps_all=True)
    assert len(h) == len(rows)
    later, h2, c2 = part(rows[2:], 6, (None, None))

    def grown(state: Any) -> Any:
        """With the rows that later steps do not have."""
        return None if state is None else torch.cat((state[0], state[0].new_zeros(1, 3)))

    earlier, h0, c0 = part(rows[:2], 0, (grown(h2), grown(c2)))
    assert_close(torch.cat((earlier, later)), array(whole), 1e-12, name)
    assert_close(h0[0], array(h[0]), 1e-12, name)
    if c0 is not None:
        assert_close(c0[0], array(c[0]), 1e-12, name)


def test_an_lstm_equals_pytorch_s(rng: np.random.Generator) -> None:
    trial = Trial("LSTM", (5,) * 7, rng, size=6)
    cell = torch.nn.LSTM(4, 6, dtype=torch.float64)
    with torch.no_grad():
        for name, value in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), trial.parameters, strict=False):
            getattr(cell, name).copy_(value)
        cell.bias_hh_l0.zero_()
    x = tensor(trial.x).reshape(7, 5, 4).requires_grad_()
    expected, (h, c) = cell(x, (tensor(trial.h)[None], tensor(trial.c)[None]))
    y, last_h, last_c, *kept = trial.forward(trial.x, trial.h, trial.c)
    assert_close(y, expected.detach().reshape(-1, 6).numpy(), 1e-12, "LSTM")
    assert_close(last_h, h.detach().numpy(), 1e-12, "h")
    assert_close(last_c, c.detach().numpy(), 1e-12, "c")
    of_y = torch.from_numpy(rng.normal(size=(35, 6)))
    expected.backward(of_y.reshape(7, 5, 6))
    a, _, _ = RecurrenceGradient(trial.case.cell, 6, trial.rows).run(ALL, of_y, *kept, None, None, *trial.parameters)
    assert_close(a @ trial.parameters.inputs, x.grad.reshape(-1, 4).numpy(), 1e-12, "dx")
    assert_close(a.T @ tensor(trial.x), cell.weight_ih_l0.grad.numpy(), 1e-12, "dW")
    assert_close(a.T @ kept[1], cell.weight_hh_l0.grad.numpy(), 1e-12, "dU")


@pytest.mark.parametrize(("name", "rows", "is_taken"), [
    ("LSTM", (3, 3, 3), True), ("LSTM", (1,), True), ("LSTM", (3, 2, 1), False), ("LSTM", (0, 0), False),
    ("LSTM, peepholes", (3, 3), False), ("LSTM, unit transform", (3, 3), False), ("GRU", (3, 3), False),
])  # fmt: skip
def test_the_engine_s_own_function(name: str, rows: tuple[int, ...], is_taken: bool, rng: np.random.Generator) -> None:
    """It is taken where nothing is kept for a gradient, and gives what the loop gives."""
    trial = Trial(name, rows, rng)
    cell, given = trial.case.cell, Parameters(*(None if each is None else each.float() for each in trial.parameters))
    x, h, c = (tensor(each).float() for each in (trial.x, trial.h, trial.c))
    state = State(h, c if cell.has_memory else None)
    assert (library_lstm(cell, x, rows, state, given) is not None) == is_taken
    assert packs_for_library(cell, x.device) == isinstance(cell, Lstm)
    assert not packs_for_library(cell, torch.device("cuda"))
    op, operands = Recurrence(cell, 3, rows), (x, h, state.memory, *given)
    for mine, theirs in zip(op.run((True,) * 3 + (False,) * 4, *operands), op.run(ALL, *operands)[:3], strict=False):
        if theirs is not None:
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_weights_that_are_packed_once(has_state: bool, rng: np.random.Generator) -> None:
    """The loop's results, of sequences of other lengths and rows by the same weights, with biases and without."""
    trial = Trial("LSTM", (3, 3), rng, size=5)
    cell, size = trial.case.cell, 5
    inputs, states, biases, _ = (None if each is None else each.float() for each in trial.parameters)
    packed = PackLstm().run((True,), inputs, states)
    for rows, given in (((3,) * 4, biases), ((1,) * 6, None)):
        assert packs_for_library(cell, torch.device("cpu"))
        x, h, c = (
            torch.from_numpy(rng.normal(size=(high, columns))).float()
            for high, columns in ((sum(rows), trial.x.shape[1]), (rows[0], size), (rows[0], size))
        )
        before = (h, c) if has_state else (None, None)
        found = PackedRecurrence(len(rows), size).run((True,) * 3, x, *before, packed, given)
        wanted = Recurrence(cell, size, rows).run(ALL, x, *before, inputs, states, given, None)
        room = torch.empty(len(x), size)
        with torch.no_grad():
            put = PackedRecurrence(len(rows), size).put(room, (x, *before, packed, given))
        assert put is not False
        assert all(map(torch.equal, (room, *put[1:]), found))
        for mine, theirs in zip(found, wanted, strict=False):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_the_library_s_gradients(has_state: bool, rng: np.random.Generator) -> None:
    """Those of the loop, of the same numbers, and again from what the forward function has left."""
    rows, size = (3, 3, 3, 3), 4
    trial = Trial("LSTM", rows, rng, size)
    cell = trial.case.cell
    x, of_y, *states = (
        torch.from_numpy(each).float()
        for each in (trial.x, rng.normal(size=(12, size)), *(rng.normal(size=(3, size)) for _ in range(4)))
    )
    weights = [None if each is None else each.float() for each in trial.parameters]
    (h, c), behind = (states[:2], states[2:]) if has_state else ([None] * 2, [None] * 2)
    assert trains_by_library(cell, size, x.device, rows)
    wanted, last_h, last_c, *slow = Recurrence(cell, size, rows).run(ALL, x, h, c, *weights)
    a, dh, dc = RecurrenceGradient(cell, size, rows).run((True,) * 3, of_y, *slow, *behind, *weights)
    of_x = SourceGradient(4).run((True,), a, weights[0])
    expected = [of_x, a.T @ x, a.T @ slow[1], a.sum(0).view(4, -1), dh[0], dc[0]]
    before = [torch.zeros(3, size)] * 2 if h is None else [h, c]
    for steps in ((4,), (1, 3), (2, 1, 1)):
        op, room = LibraryRecurrence(steps), torch.empty(len(x), size)
        y, calls, *last = op.run(ALL, x, h, c, *weights[:3])
        for mine, theirs in zip((y, *last), (wanted, last_h[0], last_c[0]), strict=True):
            np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=2e-6)
            assert not any(meet(mine, each) for call in calls for each in call), "what comes out may be written to"
        assert not any(meet(x, each) for call in calls for each in call), "sources may be written to"
        assert all(map(torch.equal, GivenBefore().run((True,) * 3, calls), [x, *before]))
        put = op.put(room, (x, h, c, *weights[:3]))
        assert put is not False
        assert put[0] is None
        assert torch.equal(room, y)
        assert not op.put(room.double(), (x, h, c, *weights[:3])), "the library gives float32"
        for _ in range(2):
            gradient, operands = LibraryRecurrenceGradient(steps), (of_y, x, calls, *behind, *weights[:3])
            found = gradient.run((True,) * 6, *operands)
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=2e-5)
            place = torch.empty_like(x)
            again = gradient.put(place, operands)
            assert again is not False
            assert all(map(torch.equal, (place, *again[1:]), found))
            assert not gradient.put(x, operands), "it reads them part by part"


def test_the_slope_of_a_pole_is_0() -> None:
    """Where z is 1, (1 - z^p)^(1/p) has no derivative for p above 1."""
    cell = Gru((Activation(MPSCNNNeuronType.LINEAR, 0.0, 1.0), SIGMOID, TANH), 2.0)
    weights = Parameters(torch.ones(3, 1), torch.ones(3, 1), torch.zeros(3))
    x, h = torch.ones(1, 1), torch.full((1, 1), 0.5)
    kept = Recurrence(cell, 1, (1,)).run(ALL, x, h, None, *weights)[3:]
    a, dh, _ = RecurrenceGradient(cell, 1, (1,)).run(ALL, torch.ones(1, 1), *kept, None, None, *weights)
    assert torch.isfinite(a).all()
    assert float(dh[0]) == 1.0


def test_the_parts_of_a_vector_are_views() -> None:
    flat = torch.arange(11.0)
    matrix, none, vector, row = PartsOf((6, 0, 3, 2), (2, 5, 0, 2)).run((True,) * 4, flat)
    assert none is None
    assert matrix is not None
    assert vector is not None
    assert row is not None
    flat += 1
    assert matrix.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (vector.tolist(), row.tolist()) == ([7, 8, 9], [[10, 11]])
