"""Small steps of recurrent layers are done by one thread, whatever the calling one has; large ones are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers import tensor
from openmps.ops.matrix import recurrent, recurrent_library
from openmps.ops.matrix.recurrent import Recurrence, RecurrenceGradient
from openmps.ops.matrix.recurrent_cells import Activation, Gru, Lstm
from openmps.ops.matrix.recurrent_library import (
    LibraryRecurrence,
    LibraryRecurrenceGradient,
    PackedRecurrence,
    PackLstm,
    packs_for_library,
)
from openmps.ops.one_thread import OneThread
from openmps.types import MPSCNNNeuronType

SIGMOID, TANH = Activation(MPSCNNNeuronType.SIGMOID), Activation(MPSCNNNeuronType.TANH, 1.0, 1.0)
LSTM, GRU = Lstm((SIGMOID, SIGMOID, TANH, SIGMOID), TANH), Gru((SIGMOID, SIGMOID, TANH))
SIZE = 64
"""Steps of one row have 2^15 multiplications of a long short-term memory; the limit is 2^18."""


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads what computes steps has, call by call."""
    found: list[int] = []

    def watch(place: Any, name: str) -> None:
        inner = getattr(place, name)

        def watched(*operands: Any, **how: Any) -> Any:
            found.append(torch.get_num_threads())
            return inner(*operands, **how)

        monkeypatch.setattr(place, name, watched)

    for name in ("_layer", "_layer_backward"):
        watch(recurrent_library, name)
    for name in ("forward", "gradients"):
        watch(recurrent, name)
    return found


def _parameters(gates: int, rng: Any) -> list[torch.Tensor]:
    shapes = (gates * SIZE, SIZE), (gates * SIZE, SIZE), (gates * SIZE,)
    return [tensor(rng.normal(0, 0.1, shape)).float() for shape in shapes]


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="a build without OpenMP")
@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (4, 1), (9, 3)])
def test_the_threads_of_steps(seen: list[int], rng: Any, rows: int, threads: int) -> None:
    steps, weights = 3, _parameters(3, rng)
    x, gradient = (tensor(rng.normal(size=(steps * rows, SIZE))).float() for _ in range(2))
    if rows == 9:  # of a GRU fewer multiplications belong to a step
        x, gradient = x.repeat(3, 1), gradient.repeat(3, 1)
        rows = 27
    of_rows = (rows,) * steps
    made = Recurrence(GRU, SIZE, of_rows).run((True,) * 7, x, None, None, *weights, None)
    RecurrenceGradient(GRU, SIZE, of_rows).run((True,) * 3, gradient, *made[3:], None, None, *weights, None)
    assert seen == [threads] * 2
    assert torch.get_num_threads() == 3


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="a build without OpenMP")
@pytest.mark.skipif(not packs_for_library(LSTM, torch.device("cpu")), reason="a build without the library")
@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (8, 1), (9, 3)])
def test_the_threads_of_a_library(seen: list[int], rng: Any, rows: int, threads: int) -> None:
    steps, weights = 3, _parameters(4, rng)
    x, gradient = (tensor(rng.normal(size=(steps * rows, SIZE))).float() for _ in range(2))
    packed = PackLstm().run((True,), *weights[:2])
    inferred = PackedRecurrence(steps, SIZE).run((True,) * 3, x, None, None, packed, weights[2])[0]
    made = LibraryRecurrence((steps,)).run((True,) * 4, x, None, None, *weights)
    LibraryRecurrenceGradient((steps,)).run((True,) * 6, gradient, x, made[1], None, None, *weights)
    assert seen == [threads] * 3
    assert torch.get_num_threads() == 3
    with OneThread(applies=True):
        assert torch.equal(made[0], LibraryRecurrence((steps,)).run((True,) * 4, x, None, None, *weights)[0])
    torch.testing.assert_close(inferred, made[0], rtol=0, atol=2e-6)


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="a build without OpenMP")
def test_only_the_calling_thread_has_one() -> None:
    found: list[int] = []

    def look() -> None:
        torch.empty(1 << 16).zero_()  # a thread that begins takes what the engine was told last
        found.append(torch.get_num_threads())

    with OneThread(applies=True):
        assert torch.get_num_threads() == 1
        with OneThread(applies=True):
            pass
        assert torch.get_num_threads() == 1
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [3]
    assert torch.get_num_threads() == 3


def test_after_a_fault_all_threads_are_back() -> None:
    with pytest.raises(RuntimeError), OneThread(applies=True):
        torch.zeros(2) @ torch.zeros(3)
    assert torch.get_num_threads() == 3
    with OneThread(applies=False):
        assert torch.get_num_threads() == 3
