"""Recurrent layers over sequences of few rows by compiled loops: what layers give beside the other forms."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import Bench, finish
from in_one_test import in_one_test
from openmps.ops import numba
from openmps.ops.matrix import recurrent
from recurrent_layers import GRU, LSTM, Trained, empty, gru, lstm, matrices, run

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

Array = np.ndarray
STEPS = 12


def _descriptor(kind: str, inputs: int, outputs: int, rng: np.random.Generator, **options: Any) -> Any:
    shapes = (outputs, inputs), (outputs, outputs), (outputs,)
    make, names = (lstm, LSTM) if kind == "LSTM" else (gru, GRU)
    gates = {gate: tuple([rng.normal(size=shape) * shape[-1] ** -0.5 for shape in shapes]) for gate in names}
    return make(gates, **options)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What loops have run."""
    found = list[str]()

    def noted(function: Any) -> Any:
        def run(*operands: Any, **how: Any) -> Any:
            found.append(function.__name__)
            return function(*operands, **how)

        return run

    for name in ("looped_forward", "looped_gradients"):
        monkeypatch.setattr(recurrent, name, noted(getattr(recurrent, name)))
    return found


def _both(monkeypatch: pytest.MonkeyPatch, compute: Any) -> tuple[list[Array], list[Array]]:
    """What a function gives, and what it gives where Numba is missing."""
    found = compute()
    with monkeypatch.context() as without:
        without.setattr(numba, "is_installed", lambda: False)
        return found, compute()


def _close(found: list[Array], wanted: list[Array]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-6 * max(1.0, float(np.abs(theirs).max())))


@in_one_test
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("outputs", [1, 16, 70])
@pytest.mark.parametrize("accumulates", [False, True])
def test_training(
    kind: str, outputs: int, accumulates: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
    runs: list[str],
) -> None:  # fmt: skip
    """Results, states, gradients of sources, of weights and of states; from a state, and in two parts of the steps."""
    runs.clear()
    bench, inputs, rows = Bench(mps.mtl_device("cpu")), 3, 1
    descriptor = _descriptor(kind, inputs, outputs, rng)
    steps, of_results = rng.normal(size=(STEPS, rows, inputs)), rng.normal(size=(STEPS, rows, outputs))

    def compute() -> list[Array]:
        trained = Trained(bench, descriptor)
        trained.layer.accumulate_weight_gradients = accumulates
        first, last = list[Any](), list[Any]()
        trained.forward(steps, recurrent_output_states=first)
        results, states = trained.forward(steps, recurrent_input_state=first[0], recurrent_output_states=last)
        of_states, of_first = list[Any](), list[Any]()
        found = trained.backward(steps[4:], of_results[4:], states[4:], recurrent_output_states=of_states)
        whole = trained.backward(
            steps, of_results, states, recurrent_input_state=of_states[0], recurrent_output_states=of_first
        )
        of_weights = [each.numpy() for each in trained.gradients]
        return [*results, *found, *whole, *of_weights, *[_numbers(each) for each in (*last, *of_first)]]

    found, wanted = _both(monkeypatch, compute)
    _close(found, wanted)
    assert runs == ["looped_forward"] * 2 + ["looped_gradients"] * 2


def _numbers(state: Any) -> Array:
    return state.get_recurrent_output_matrix(0).numpy()


@in_one_test
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("flipped", [False, True])
def test_inference(
    kind: str, rows: int, flipped: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    """A stack, all of whose states come out. Long short-term memory is the library's, whose weights are packed once."""
    if kind == "LSTM" and flipped:
        pytest.skip("a property of the GRU")
    runs.clear()
    bench, options = Bench(mps.mtl_device("cpu")), {"flip_output_gates": True} if flipped else {}
    descriptors = [_descriptor(kind, 5, 40, rng, **options), _descriptor("GRU", 40, 6, rng)]
    steps = rng.normal(size=(STEPS, rows, 5))

    def compute() -> list[Array]:
        layer: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=descriptors)
        states = list[Any]()
        results = run(bench, layer, steps, None, states)
        layer.store_all_intermediate_states = True
        more = list[Any]()
        again = run(bench, layer, steps, states[0], more)
        assert len(more) == STEPS
        return [*results, *again, *map(_numbers, more)]

    found, wanted = _both(monkeypatch, compute)
    _close(found, wanted)
    # With all states, the library's function of long short-term memory is none: of one row that is a loop then.
    assert runs == ["looped_forward"] * (4 if kind == "GRU" else 3 if rows == 1 else 2)


def test_both_directions(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> None:
    bench = Bench(mps.mtl_device("cpu"))
    descriptors = [_descriptor("GRU", 5, 7, rng), _descriptor("LSTM", 5, 7, rng, layer_sequence_direction=1)]
    steps = rng.normal(size=(STEPS, 1, 5))

    def compute() -> list[Array]:
        layer: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=descriptors)
        results, others = empty(bench, steps, 7), empty(bench, steps, 7)
        command_buffer = bench.command_buffer()
        layer.encode_bidirectional_sequence(command_buffer, matrices(bench, steps), results, others)
        finish(command_buffer)
        return [each.numpy() for each in (*results, *others)]

    _close(*_both(monkeypatch, compute))
    assert runs == ["looped_forward"] * 2
