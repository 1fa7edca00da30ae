"""Where the matrices of a sequence lie: at offsets of one, one behind the other in a buffer, of several types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from openmps.errors import MPSArgumentError
from openmps.kernels.recurrent.sequences import Given, matrix_sequence
from recurrent_layers import GRU, LSTM, Trained, gru, lstm, matrices, run, single


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def test_one_matrix_at_several_offsets(bench: Bench, rng: np.random.Generator) -> None:
    """Images of T steps a row, as an activity classifier has them: one matrix, T times, from other bytes on."""
    steps, rows = 5, 3
    W, U, b = rng.normal(size=(2, 4)), rng.normal(size=(2, 2)), rng.normal(size=2)
    layer = mps.MPSRNNMatrixInferenceLayer(bench.device, single(W, U, b))
    x = rng.normal(size=(rows, steps, 4)).astype(np.float32)
    held = mps.MPSMatrix.from_numpy(bench.device, x.reshape(rows, -1), copy=True)
    given = mps.MPSMatrix(buffer=held.data, descriptor=mps.MPSMatrixDescriptor(rows, 4, row_bytes=steps * 16))
    taken = mps.MPSMatrix(device=bench.device, descriptor=mps.MPSMatrixDescriptor(rows, steps * 2))
    result = mps.MPSMatrix(buffer=taken.data, descriptor=mps.MPSMatrixDescriptor(rows, 2, row_bytes=steps * 8))
    command_buffer = bench.command_buffer()
    layer.encode_sequence(
        command_buffer, [given] * steps, [result] * steps, source_offsets=[16 * t for t in range(steps)],
        destination_offsets=[8 * t for t in range(steps)],
    )  # fmt: skip
    finish(command_buffer)
    expected = run(bench, layer, [x[:, t] for t in range(steps)])
    np.testing.assert_array_equal(taken.numpy().reshape(rows, steps, 2), np.stack(expected, 1))
    for offsets, rule in (([0, 2], "multiple of 4"), ([0], "must hold 2 offsets"), ([0, 64 * 16], "must hold the")):
        with pytest.raises(MPSArgumentError, match=rule):
            layer.encode_sequence(bench.command_buffer(), [given] * 2, [result] * 2, source_offsets=offsets)


def test_steps_of_one_buffer_and_of_two_types(bench: Bench, rng: np.random.Generator) -> None:
    """Steps that follow one another in a buffer, and steps of which some are float16: the numbers of others."""
    layer = mps.MPSRNNMatrixInferenceLayer(
        bench.device, single(rng.normal(size=(2, 4)), rng.normal(size=(2, 2)), rng.normal(size=2))
    )
    x = rng.normal(size=(4, 3, 4)).astype(np.float16).astype(np.float32)
    expected = run(bench, layer, list(x))
    held = mps.MPSMatrix.from_numpy(bench.device, x.reshape(12, 4), copy=True).data
    taken = mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(12, 2))
    given = [mps.MPSMatrix(held, mps.MPSMatrixDescriptor(3, 4), 48 * step) for step in range(4)]
    results = [mps.MPSMatrix(taken.data, mps.MPSMatrixDescriptor(3, 2), 24 * step) for step in range(4)]
    of_types = [mps.MPSMatrix.from_numpy(bench.device, each.astype(kind)) for each, kind in zip(x, "fefe", strict=True)]
    rounded = matrices(bench, [np.zeros((3, 2))] * 2, np.float16) + matrices(bench, [np.zeros((3, 2))] * 2)
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, given, results)
    layer.encode_sequence(command_buffer, of_types, rounded)
    finish(command_buffer)
    np.testing.assert_array_equal(taken.numpy().reshape(4, 3, 2), expected)
    for mine, theirs in zip(rounded, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.astype(mine.numpy().dtype))


def test_lists_that_begin_alike(bench: Bench, rng: np.random.Generator) -> None:
    """What is known of steps in one buffer holds for that list: not for a shorter one, nor for others behind its first.

    The same list comes twice, and then its first matrix with others, apart and in another order.
    """
    layer = mps.MPSRNNMatrixInferenceLayer(
        bench.device, single(rng.normal(size=(2, 4)), rng.normal(size=(2, 2)), rng.normal(size=2))
    )
    x = rng.normal(size=(4, 3, 4)).astype(np.float32)
    held = mps.MPSMatrix.from_numpy(bench.device, x.reshape(12, 4), copy=True).data
    given = [mps.MPSMatrix(held, mps.MPSMatrixDescriptor(3, 4), 48 * step) for step in range(4)]
    apart = matrices(bench, [x[0] + 1])
    for order in ([0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1, 3], [0, 1], [0, 4], [0, 1, 2, 3]):
        sources = [(given + apart)[step] for step in order]
        results = matrices(bench, [np.zeros((3, 2))] * len(order))
        command_buffer = bench.command_buffer()
        layer.encode_sequence(command_buffer, sources, results)
        finish(command_buffer)
        expected = run(bench, layer, [[*x, x[0] + 1][step] for step in order])
        np.testing.assert_array_equal([each.numpy() for each in results], expected)


GIVEN = ["lists", "sequences", "sequences with gaps"]


def _steps(bench: Bench, numbers: Any, how: str) -> Any:
    """A matrix a step, as a list or as one object."""
    if how == "lists":
        return matrices(bench, numbers)
    steps, rows, columns = numbers.shape
    spacing = 4 * rows * columns + (16 if how == "sequences with gaps" else 0)
    descriptor = mps.MPSMatrixDescriptor(rows, columns, row_bytes=4 * columns, matrices=steps, matrix_bytes=spacing)
    whole = mps.MPSMatrix(device=bench.device, descriptor=descriptor)
    whole.memory().copy_(torch.from_numpy(numbers).view(whole.memory().shape))
    return mps.MatrixSequence(whole)


@pytest.mark.parametrize("kind", [lstm(LSTM), gru(GRU)], ids=["LSTM", "GRU"])
def test_a_sequence_of_matrices_is_a_list_of_them(kind: Any, bench: Bench, rng: np.random.Generator) -> None:
    """In training and in inference, also by parts; training states that are made when they are asked for."""
    x, flow, zeros = (*rng.normal(size=(2, 5, 3, 1)).astype(np.float32), np.zeros((5, 3, 1), np.float32))
    found: list[list[Any]] = []
    for how in GIVEN:
        trained, inference = Trained(bench, kind), mps.MPSRNNMatrixInferenceLayer(bench.device, kind)
        sources, flows, results, back, other = (_steps(bench, each, how) for each in (x, flow, zeros, zeros, zeros))
        states: Any = [] if how == "lists" else mps.MatrixTrainingStates()
        command_buffer = bench.command_buffer()
        inference.encode_sequence(command_buffer, sources, other)
        for _ in range(2):
            states.clear()
            trained.layer.encode_forward_sequence(command_buffer, sources, results, states, trained.weights)
        assert len(states) == 5
        trained.layer.encode_gradient_sequence(
            command_buffer, sources, flows, back, trained.gradients, states, trained.weights
        )
        finish(command_buffer)
        found.append([each.numpy() for each in (*other, *results, *back, *trained.gradients)])
        command_buffer = bench.command_buffer()
        trained.layer.encode_gradient_sequence(
            command_buffer, sources[2:], flows[2:], back[2:], trained.gradients, states[2:], trained.weights
        )
        finish(command_buffer)
        found[-1] += [each.numpy() for each in (*back, *trained.gradients)]
    for others in found[1:]:
        for mine, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_states_of_several_encodes(bench: Bench, rng: np.random.Generator) -> None:
    """Appended one behind the other, as to a list; temporary ones, too, whose reads are counted."""
    x, flow = rng.normal(size=(2, 4, 3, 1)).astype(np.float32)
    found: list[list[Any]] = []
    for temporary in (False, True):
        for states in ([], mps.MatrixTrainingStates()):
            trained, command_buffer = Trained(bench, lstm(LSTM)), bench.command_buffer()
            trained.layer.training_state_is_temporary = temporary
            sources, flows, results, back = (matrices(bench, each) for each in (x, flow, flow, flow))
            handed: list[Any] = []
            trained.layer.encode_forward_sequence(
                command_buffer, sources[:2], results[:2], states, trained.weights, recurrent_output_states=handed
            )
            trained.layer.encode_forward_sequence(
                command_buffer, sources[2:], results[2:], states, trained.weights, recurrent_input_state=handed[0]
            )
            assert [each.step for each in states] == [0, 1, 0, 1]
            trained.layer.encode_gradient_sequence(
                command_buffer, sources, flows, back, trained.gradients, states, trained.weights
            )
            finish(command_buffer)
            found.append([each.numpy() for each in (*back, *trained.gradients)])
            with pytest.raises(MPSArgumentError, match="training_states must hold 3"):
                trained.layer.encode_gradient_sequence(
                    bench.command_buffer(), sources[:3], flows[:3], None, None, states, trained.weights
                )
    for others in found[1:]:
        for mine, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_what_is_refused_of_a_sequence(bench: Bench) -> None:
    """Its matrices are named as those of a list are."""
    layer = mps.MPSRNNMatrixInferenceLayer(bench.device, single([[1.0, 2]], [[0.5]], [0]))
    narrow, results = (_steps(bench, np.zeros((2, 3, 1), np.float32), "sequences") for _ in range(2))
    with pytest.raises(MPSArgumentError, match=r"source_matrices\[0\] must have 3 rows of 2 elements"):
        layer.encode_sequence(bench.command_buffer(), narrow, results)
    wide = _steps(bench, np.zeros((3, 3, 2), np.float32), "sequences")
    with pytest.raises(MPSArgumentError, match="destination_matrices must hold 3, as many as source_matrices"):
        layer.encode_sequence(bench.command_buffer(), wide, results)
    low = _steps(bench, np.zeros((3, 2, 1), np.float32), "sequences")
    with pytest.raises(MPSArgumentError, match=r"destination_matrices\[0\] must have 3 rows of 1 elements"):
        layer.encode_sequence(bench.command_buffer(), wide, low)


def test_a_sequence_read_at_several_widths(bench: Bench, rng: np.random.Generator) -> None:
    """By layers in turn; what each sees of it is looked up again where the width is another, and only then."""
    x, made = rng.normal(size=(4, 3, 6)).astype(np.float32), list[np.ndarray]()
    layers = {
        width: mps.MPSRNNMatrixInferenceLayer(
            bench.device, single(rng.normal(size=(2, width)), rng.normal(size=(2, 2)), rng.normal(size=2))
        )
        for width in (6, 4)
    }
    sources = mps.MatrixSequence(mps.MPSMatrix.from_numpy(bench.device, x, copy=True))
    results = mps.MatrixSequence(mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(3, 2, matrices=4)))
    command_buffer = bench.command_buffer()
    assert matrix_sequence("test", command_buffer, Given("x", sources), 6) is matrix_sequence(
        "test", command_buffer, Given("x", sources), 6
    )
    for width in (6, 4, 6, 4):
        command_buffer = bench.command_buffer()
        layers[width].encode_sequence(command_buffer, sources, results)
        finish(command_buffer)
        made.append(np.stack([each.numpy() for each in results]))
        np.testing.assert_array_equal(made[-1], run(bench, layers[width], list(x[:, :, :width])))
    np.testing.assert_array_equal(made[:2], made[2:])
    with pytest.raises(MPSArgumentError, match="must hold 4"):
        layers[4].encode_sequence(bench.command_buffer(), sources, results[:3])
