"""Recurrent layers on the CPU whose weights a library wants in an order of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import Bench
from openmps.ops.matrix.recurrent_library import PackLstm
from recurrent_layers import GRU, LSTM, ONE, PEEPHOLES, gru, lstm, run

PEEPED = {gate: (*each, PEEPHOLES[gate]) for gate, each in LSTM.items()}


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one where weights are packed."""
    made, given = list[int](), PackLstm.run

    def count(*what: Any) -> Any:
        made.append(len(made))
        return given(*what)

    monkeypatch.setattr(PackLstm, "run", count)
    return made


def test_weights_are_packed_once_for_all_sequences(packed: list[int]) -> None:
    """Of a layer that the library has, with a state and without; again for a copy, which has weights of its own."""
    bench = Bench(mps.mtl_device("cpu"))
    layer: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, lstm(LSTM))
    states = list[Any]()
    first = run(bench, layer, ONE, None, states)
    assert packed == [0]
    second = run(bench, layer, ONE[:2], states[0])
    assert packed == [0]
    parts = run(bench, layer.copy(), ONE + ONE[:2])
    assert packed == [0, 1]
    np.testing.assert_allclose(parts, [*first, *second], rtol=0, atol=1e-7)


@pytest.mark.parametrize("descriptor", [gru(GRU), lstm(PEEPED)], ids=["GRU", "peepholes"])
def test_other_layers_have_nothing_to_pack(descriptor: Any, packed: list[int]) -> None:
    bench = Bench(mps.mtl_device("cpu"))
    run(bench, mps.MPSRNNMatrixInferenceLayer(bench.device, descriptor), ONE)
    assert not packed


def test_rows_that_end_are_a_loop(packed: list[int]) -> None:
    bench = Bench(mps.mtl_device("cpu"))
    run(bench, mps.MPSRNNMatrixInferenceLayer(bench.device, lstm(LSTM)), [[[1.0], [2.0]], [[1.0]]])
    assert not packed
