"""Recurrent layers over few rows by compiled loops: the oracle's numbers, those of other forms, and of any threads."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from helpers import array
from in_one_test import in_one_test
from openmps.ops import numba
from openmps.ops.matrix import looped_steps, recurrent
from openmps.ops.matrix.recurrent import Recurrence, RecurrenceGradient
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm, Parameters, RecurrentCell, SingleGate
from openmps.types import MPSCNNNeuronType
from oracles import recurrent as oracle
from pairs import pairs

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

SIGMOID, TANH = Activation(MPSCNNNeuronType.SIGMOID), Activation(MPSCNNNeuronType.TANH, 1.0, 1.0)
GRU, FLIPPED = Gru((SIGMOID, SIGMOID, TANH)), Gru((SIGMOID, SIGMOID, TANH), is_flipped=True)
LSTM = Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH)
CELLS: dict[str, RecurrentCell] = {"single gate": SingleGate(TANH), "GRU": GRU, "GRU, flipped": FLIPPED, "LSTM": LSTM}
INPUTS = 5
EPSILON = 2.0**-24
"""Half of the distance of float32 numbers above 1."""
CASES = pairs(
    tuple(CELLS),
    (1, 3, 16, 17, 128),
    (1, 2, 33, 70),
    (1, 2, 4),
    (False, True),
    (False, True),
    (False, True),
    (False, True),
)
CPU = torch.device("cpu")
LIMITS = dict(looped_steps._LIMITS)


class Trial:
    """Numbers of a layer, as float32."""

    def __init__(
        self, name: str, size: int, steps: int, rows: int, has_state: bool = True, by_columns: bool = False,
        is_unit: bool = False, backward: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.cell, self.size, self.rows, self.backward = CELLS[name], size, (rows,) * steps, backward

        def numbers(*shape: int, spread: float = 1.0) -> torch.Tensor:
            return torch.from_numpy(rng.normal(0, spread, shape).astype(np.float32))

        gates, columns = self.cell.gates * size, size if is_unit else INPUTS
        states = numbers(gates, size, spread=size**-0.5)
        inputs = None if is_unit else numbers(gates, columns, spread=0.5)
        self.given = Parameters(inputs, states.t().contiguous().t() if by_columns else states, numbers(gates))
        self.x, self.of_y = numbers(steps * rows, columns), numbers(steps * rows, size)
        of_state = [numbers(rows, size) if has_state else None for _ in range(4)]
        if not self.cell.has_memory:
            of_state[1] = of_state[3] = None
        self.state, self.of_state = of_state[:2], of_state[2:]

    def run(self, dtype: torch.dtype = torch.float32, *, keeps_all: bool = False) -> tuple[Any, ...]:
        """Results, and what the gradient needs."""
        op = Recurrence(self.cell, self.size, self.rows, self.backward, keeps_all)
        return op.run((True,) * 7, *_as(dtype, self.x, *self.state, *self.given))

    def back(self, kept: Any, dtype: torch.dtype = torch.float32, *, keeps_all: bool = False) -> tuple[Any, ...]:
        """The gradients of what was kept."""
        op = RecurrenceGradient(self.cell, self.size, self.rows, keeps_all)
        return op.run((True,) * 3, *_as(dtype, self.of_y, *kept, *self.of_state, *self.given))


def _as(dtype: torch.dtype, *operands: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if each is None else each.to(dtype) for each in operands]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What loops have run: of sequences of any length."""
    monkeypatch.setattr(looped_steps, "_FEWEST_STEPS", 1)
    monkeypatch.setitem(looped_steps._LIMITS, Lstm, looped_steps._LIMITS[Gru])
    found = list[str]()
    for name in ("looped_forward", "looped_gradients"):
        monkeypatch.setattr(recurrent, name, _noted(getattr(recurrent, name), found))
    return found


def _taken(runs: list[str]) -> list[str]:
    """What has run since it was asked last."""
    found, runs[:] = runs[:], []
    return found


def _noted(function: Any, found: list[str]) -> Any:
    def noted(*operands: Any, **how: Any) -> Any:
        found.append(function.__name__)
        return function(*operands, **how)

    return noted


def _compare(found: Any, wanted: Any, other: Any, terms: int) -> None:
    """Numbers are off by what a step of float32 sums may be, or by twice what the form of operations is at most."""
    assert (found is None) == (wanted is None)
    if wanted is None:
        return
    assert found.shape == wanted.shape
    exact = array(wanted)
    allowed = max(2 * np.abs(array(other) - exact).max(), 4 * terms**0.5 * EPSILON * max(1.0, np.abs(exact).max()))
    assert np.abs(array(found) - exact).max() <= allowed


def _without(monkeypatch: pytest.MonkeyPatch, function: Any, *operands: Any) -> Any:
    """What a function gives where Numba cannot be had."""
    with monkeypatch.context() as without:
        without.setattr(numba, "library", lambda: None)
        return function(*operands)


@in_one_test
@pytest.mark.parametrize(("name", "size", "steps", "rows", "has_state", "by_columns", "is_unit", "backward"), CASES)
def test_equals_the_form_of_operations(
    name: str, size: int, steps: int, rows: int, has_state: bool, by_columns: bool, is_unit: bool, backward: bool,
    monkeypatch: pytest.MonkeyPatch, runs: list[str],
) -> None:  # fmt: skip
    """In float64, which the oracle judges, and as exact as it is in float32; forward and gradient."""
    trial = Trial(name, size, steps, rows, has_state, by_columns, is_unit, backward)
    exact, other = trial.run(torch.float64), _without(monkeypatch, trial.run)
    kept = _as(torch.float32, *exact[3:])
    for mine, wanted, theirs in zip(trial.run(), exact, other, strict=True):
        _compare(mine, wanted, theirs, size)
    exact, other = trial.back(exact[3:], torch.float64), _without(monkeypatch, trial.back, kept)
    for mine, wanted, theirs in zip(trial.back(kept), exact, other, strict=True):
        _compare(mine, wanted, theirs, size * trial.cell.gates)
    assert _taken(runs) == ["looped_forward", "looped_gradients"]


@in_one_test
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("backward", [False, True])
def test_equals_the_oracle(name: str, backward: bool, runs: list[str]) -> None:
    rows, size, steps = 2, 3, 12
    trial = Trial(name, size, steps, rows, backward=backward)
    y, hidden, memory, *_ = trial.run()
    gates = {1: "g", 3: "zrh", 4: "ifco"}[trial.cell.gates]
    inputs, states, biases = (
        dict(zip(gates, np.split(array(each), len(gates)), strict=True)) for each in trial.given[:3]
    )
    neurons = {gate: math.tanh if gate in "chg" else lambda x: 1 / (1 + math.exp(-x)) for gate in gates}
    weights = oracle.Weights(inputs, states, {}, biases, neurons)

    def step(x: Any, h: Any, c: Any) -> Any:
        if trial.cell.has_memory:
            return oracle.lstm(weights, x, h, c, math.tanh)
        if trial.cell.gates == 1:
            return oracle.single_gate(weights, x, h), c
        return oracle.gru(weights, x, h, flipped=trial.cell is FLIPPED), c

    before = [np.zeros((rows, size)) if each is None else array(each) for each in trial.state]
    wanted, *last = oracle.run(step, np.split(array(trial.x), steps), *before, backward=backward)
    np.testing.assert_allclose(array(y), np.concatenate(wanted), rtol=0, atol=32 * EPSILON)
    for mine, its in zip((hidden, memory)[: 1 + trial.cell.has_memory], last, strict=False):
        np.testing.assert_allclose(array(mine[0]), its, rtol=0, atol=32 * EPSILON)
    assert _taken(runs) == ["looped_forward"]


@in_one_test
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("backward", [False, True])
def test_all_states(name: str, backward: bool, monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> None:
    """Of each step, in the order in which steps run, as the form of operations gives them."""
    trial = Trial(name, 16, 9, 2, backward=backward)
    found, other = (
        give(keeps_all=True) for give in (trial.run, lambda **how: _without(monkeypatch, lambda: trial.run(**how)))
    )
    kept = other[3:]
    gradients = [trial.back(kept, keeps_all=True), _without(monkeypatch, lambda: trial.back(kept, keeps_all=True))]
    for mine, theirs in zip((*found, *gradients[0]), (*other, *gradients[1]), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=64 * EPSILON)
    assert _taken(runs) == ["looped_forward", "looped_gradients"]


@in_one_test
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", ["x", "hidden", "memory", "of_y", "states"])
def test_what_is_no_number(
    name: str, value: float, place: str, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    """NaN and infinities come out where the form of operations has them, and numbers that are large beside others.

    But for a state of infinities that a flipped GRU keeps a part of: `torch.lerp` takes the difference of two of them.
    """
    if (name, place) == ("GRU, flipped", "hidden") and math.isinf(value):
        pytest.skip("lerp gives NaN")
    trial = Trial(name, 5, 9, 2)
    given = {
        "x": trial.x[5], "hidden": trial.state[0], "memory": trial.state[1], "of_y": trial.of_y[11],
        "states": trial.given.states[2],
    }[place]  # fmt: skip
    if given is None:
        pytest.skip("a layer without memory")
    given.view(-1)[1] = value
    found, other = trial.run(), _without(monkeypatch, trial.run)
    gradients = trial.back(other[3:]), _without(monkeypatch, trial.back, other[3:])
    for mine, theirs in zip((*found, *gradients[0]), (*other, *gradients[1]), strict=True):
        if mine is not None:
            finite = array(theirs)[np.isfinite(array(theirs))]
            largest = max(1.0, np.abs(finite).max(initial=0))
            np.testing.assert_allclose(array(mine), array(theirs), rtol=0, atol=64 * EPSILON * largest)
    assert _taken(runs) == ["looped_forward", "looped_gradients"]


def test_neurons_are_rounded_once() -> None:
    """By what is kept of gates whose weights of states are zeros: nearly half of a unit in the last place at most."""
    ends = np.array([0.0, -0.0, 1e-30, 88.0, 100.0, 104.0, -88.0, -100.0, -104.0, 3e38, -3e38, np.inf, -np.inf, 0.05])
    x = np.concatenate(
        [ends, np.linspace(-20, 20, 50_001), np.geomspace(1e-9, 50, 20_001), -np.geomspace(1e-9, 50, 20_001)]
    )
    x = np.resize(x.astype(np.float32), (len(x) // 16, 16))
    gates = torch.from_numpy(np.concatenate([x, x, x], 1))
    given = Parameters(None, torch.zeros(48, 16), None)
    state = recurrent.State(torch.zeros(1, 16))
    looped_steps.looped_forward(GRU, gates, state, given, is_backward=False)
    wide = np.clip(x.astype(np.longdouble), -1000, 1000)
    for columns, exact in ((slice(0, 32), 1 / (1 + np.exp(-wide))), (slice(32, 48), np.tanh(wide))):
        unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.longdouble)
        for found in np.split(gates[:, columns].numpy(), (columns.stop - columns.start) // 16, 1):
            assert float((np.abs(found - exact) / unit).max()) < 0.501


@pytest.mark.parametrize("name", CELLS)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    before, found = torch.get_num_threads(), list[Any]()
    trial = Trial(name, 128, 33, 1)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made = trial.run()
            found.append((*made, *trial.back(made[3:])))
    finally:
        torch.set_num_threads(before)
    for each in found[1:]:
        assert all(
            mine is theirs is None or torch.equal(mine, theirs) for mine, theirs in zip(each, found[0], strict=True)
        )


def test_memory(runs: list[str]) -> None:
    """What is read is not written, and each result has memory of its own, which a buffer may take."""
    for name in CELLS:
        trial = Trial(name, 16, 8, 2)
        given = [
            each for each in (trial.x, trial.of_y, *trial.state, *trial.of_state, *trial.given) if each is not None
        ]
        copies = [each.clone() for each in given]
        for keeps_all in (False, True):
            made = trial.run(keeps_all=keeps_all)
            gradients = trial.back(made[3:], keeps_all=keeps_all)
            assert all(map(torch.equal, given, copies))
            for results in (made, gradients):
                memory = [each.untyped_storage() for each in (*given, *results) if each is not None]
                assert len({each.data_ptr() for each in memory}) == len(memory)
            for each in (*made, *gradients):
                assert each is None or (each.storage_offset() == 0 and each.untyped_storage().nbytes() == each.nbytes)
    assert len(runs) == 4 * len(CELLS)


OTHERS: dict[str, tuple[RecurrentCell, dict[str, Any]]] = {
    "a sigmoid": (SingleGate(SIGMOID), {}),
    "a norm": (Gru((SIGMOID, SIGMOID, TANH), 2.0), {}),
    "other neurons": (Gru((SIGMOID, TANH, TANH)), {}),
    "another output": (Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), SIGMOID), {}),
    "a scaled tangent": (Gru((SIGMOID, SIGMOID, Activation(MPSCNNNeuronType.TANH, 1.5, 0.7))), {}),
    "rows that end": (GRU, {"rows": (2,) * 8 + (1,)}),
    "many rows": (GRU, {"rows": (32,) * 9}),
    "no rows": (GRU, {"rows": (0,) * 9}),
    "several rows of long short-term memory": (LSTM, {"rows": (2,) * 9}),
    "large weights": (GRU, {"size": 2048}),
    "a GPU": (GRU, {"device": torch.device("cuda")}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_layers_are_no_loop(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looped_steps, "_LIMITS", LIMITS)
    cell, changed = OTHERS[what]
    how: dict[str, Any] = {"size": 16, "device": CPU, "rows": (1,) * 9}
    assert looped_steps.suits_loop(GRU, **how)
    assert looped_steps.suits_loop(LSTM, **how)
    assert not looped_steps.suits_loop(cell, **how | changed)


def test_operands_that_are_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("GRU", 16, 9, 1)
    x, rows, given = trial.x, trial.rows, trial.given
    assert looped_steps.takes_loop(GRU, x, rows, 16, given)
    assert not looped_steps.takes_loop(GRU, x.double(), rows, 16, given)
    assert not looped_steps.takes_loop(GRU, x[..., None, None], rows, 16, given)
    assert not looped_steps.takes_loop(GRU, x, rows, 16, given._replace(states=None))
    assert not looped_steps.takes_loop(GRU, x, rows, 16, given._replace(memories=torch.zeros(16)))
    monkeypatch.setattr(looped_steps, "_FEWEST_STEPS", 10)
    assert not looped_steps.takes_loop(GRU, x, rows, 16, given)


def test_nothing_is_taken_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "is_installed", lambda: False)
    assert not looped_steps.suits_loop(GRU, 16, CPU, (1,) * 9)
