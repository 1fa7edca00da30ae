"""Recurrent layers beside PyTorch, in a whole training step, replayed, and where operands share memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.matrix import recurrent_library
from recurrent_layers import (
    GRU,
    LSTM,
    ONE,
    ONE_GRADIENT,
    SHRINKING,
    SINGLE,
    Trained,
    Updates,
    empty,
    gru,
    lstm,
    matrices,
    run,
    single,
    source,
    training,
)
from replay_twin import outcomes, replaying_queue

Array = np.ndarray
IDS = mps.MPSRNNMatrixId
FLOAT32 = mps.MPSDataType.FLOAT32


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def inference(bench: Bench, *descriptors: Any) -> Any:
    return mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=list(descriptors))


# --- beside PyTorch ---------------------------------------------------------------------------------------------------


def gates_of(cell: Any, names: Any, outputs: int) -> dict[str, Any]:
    """W, U and b of each gate of a cell of PyTorch's, whose second bias becomes 0."""
    torch.nn.init.zeros_(cell.bias_hh_l0)
    W, U, b = (getattr(cell, name).detach().numpy() for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"))
    parts = [slice(k * outputs, (k + 1) * outputs) for k in range(len(names))]
    return {name: (W[part], U[part], b[part]) for name, part in zip(names, parts, strict=True)}


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (500, 1), (3, 64), (40, 17)])
def test_lstm_beside_pytorch(steps: int, rows: int, bench: Bench, rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTM(6, 8)
    layer = inference(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), 8)))
    x, states = rng.normal(size=(steps, rows, 6)).astype(np.float32), list[Any]()
    found = run(bench, layer, [*x], None, states)
    with torch.no_grad():
        expected, (h, c) = cell.double()(torch.from_numpy(x).double())
    np.testing.assert_allclose(np.stack(found), expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(states[0].get_recurrent_output_matrix(0).numpy(), h[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(states[0].get_memory_cell_matrix(0).numpy(), c[0], rtol=0, atol=4e-6)


def test_gru_beside_pytorch(bench: Bench, rng: np.random.Generator) -> None:
    """PyTorch resets behind the product, which is the same where the candidate's recurrent weights are diagonal."""
    torch.manual_seed(0)
    cell: Any = torch.nn.GRU(4, 5)
    with torch.no_grad():
        cell.weight_hh_l0[10:] = torch.diag(torch.linspace(-1, 1, 5))
    gates = gates_of(cell, ("recurrent", "input", "output"), 5)
    trained = Trained(bench, gru({name: gates[name] for name in GRU}))
    x = rng.normal(size=(9, 3, 4)).astype(np.float32)
    g = rng.normal(size=(9, 3, 5)).astype(np.float32)
    found, states = trained.forward([*x])
    back = trained.backward([*x], [*g], states)
    given: Any = torch.from_numpy(x).double().requires_grad_()
    y = cell.double()(given)[0]
    y.backward(torch.from_numpy(g).double())
    np.testing.assert_allclose(np.stack(found), y.detach(), rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.stack(back), given.grad, rtol=0, atol=1e-5)
    # Its order is reset, update, candidate; ours z, r, h, and W, U, b of each.
    order = [2 * 5, 0, 1 * 5]
    for gate, first in enumerate((order[2], order[1], order[0])):
        wanted = cell.weight_ih_l0.grad[first : first + 5]
        np.testing.assert_allclose(trained.gradients[3 * gate].numpy(), wanted, rtol=0, atol=2e-5)


def test_training_two_layers_beside_pytorch(bench: Bench, rng: np.random.Generator) -> None:
    """Thirty steps of stochastic gradient descent, loss by loss."""
    sizes, steps, rows, taken = (4, 5, 3), 6, 7, 30
    module = torch.nn.ModuleList([torch.nn.LSTM(*pair) for pair in itertools.pairwise(sizes)])
    trained: list[Trained] = []
    for cell, (_, outputs) in zip(module, itertools.pairwise(sizes), strict=True):
        trained.append(Trained(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), outputs))))
    parameters = [each for cell in module for name, each in cell.named_parameters() if name != "bias_hh_l0"]
    theirs = torch.optim.SGD(parameters, 1e-2)
    descent = mps.MPSNNOptimizerStochasticGradientDescent
    mine = [Updates(bench, each, lambda device: descent(device, 1e-2), ()) for each in trained]
    x = rng.normal(size=(steps, rows, sizes[0])).astype(np.float32)
    wanted = rng.normal(size=(steps, rows, sizes[-1])).astype(np.float32) * 0.5
    for _ in range(taken):
        middle, first = trained[0].forward([*x])
        results, second = trained[1].forward(middle)
        difference = np.stack(results) - wanted
        found = trained[1].backward(middle, [*difference], second)
        trained[0].backward([*x], found, first)
        command_buffer = bench.command_buffer()
        for each in mine:
            each.encode(command_buffer)
        finish(command_buffer)
        theirs.zero_grad()
        y = module[1](module[0](torch.from_numpy(x))[0])[0]
        loss = ((y - torch.from_numpy(wanted)) ** 2).sum() / 2
        loss.backward()
        theirs.step()
        assert (difference**2).sum() / 2 == pytest.approx(float(loss.detach()), rel=1e-5)


# --- weights of float16 -----------------------------------------------------------------------------------------------


def test_weights_of_float16_are_trained_with(bench: Bench) -> None:
    """The numbers of a layer that only infers; gradients of float16 are those of float32, rounded once."""
    descriptor = single(*SINGLE, use_float32_weights=False)
    trained = Trained(bench, descriptor)
    biases = trained.weights[2].numpy().astype(np.float32)[0]
    plain = inference(bench, single(SINGLE[0], SINGLE[1], biases, use_float32_weights=False))
    found, states = trained.forward(SHRINKING)
    for mine, theirs in zip(found, run(bench, plain, SHRINKING), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    g = [np.ones_like(each) for each in SHRINKING]
    trained.backward(SHRINKING, g, states)
    wide = [each.numpy() for each in trained.gradients]
    trained.gradients.clear()
    trained.layer.create_weight_gradient_matrices(trained.gradients, mps.MPSDataType.FLOAT16)
    trained.backward(SHRINKING, g, states)
    for mine, theirs in zip(trained.gradients, wide, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.astype(np.float16))


# --- an activity classifier -------------------------------------------------------------------------------------------

BATCH, STEPS, CHANNELS, UNITS = 3, 4, 2, 5


def _copies(bench: Bench, steps: int, channels: int) -> tuple[Any, Any, list[int]]:
    """A matrix of an image a row, that of a step, which lies in it, and where each step begins."""
    whole = mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(BATCH, steps * channels))
    step = mps.MPSMatrix(whole.data, mps.MPSMatrixDescriptor(BATCH, channels, row_bytes=4 * steps * channels))
    return whole, step, [4 * channels * t for t in range(steps)]


def test_an_activity_classifier(bench: Bench, rng: np.random.Generator) -> None:
    """Images to a matrix, steps as listings of one matrix with offsets, back to images, and Adam for each weight."""
    torch.manual_seed(0)
    cell = torch.nn.LSTM(CHANNELS, UNITS, batch_first=True)
    trained = Trained(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), UNITS)))
    theirs = torch.optim.Adam([each for name, each in cell.named_parameters() if name != "bias_hh_l0"], 1e-2)
    adam = Updates(bench, trained)
    layout = mps.MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS
    to_matrix = mps.MPSImageCopyToMatrix(bench.device, layout)
    to_image = mps.MPSMatrixCopyToImage(bench.device, layout)
    (x, step, offsets), (y, out, out_offsets) = _copies(bench, STEPS, CHANNELS), _copies(bench, STEPS, UNITS)
    (dx, dstep, _), (dy, dout, _) = _copies(bench, STEPS, CHANNELS), _copies(bench, STEPS, UNITS)
    for _ in range(3):
        values = rng.normal(size=(BATCH, CHANNELS, 1, STEPS)).astype(np.float32)
        flow = rng.normal(size=(BATCH, UNITS, 1, STEPS)).astype(np.float32)
        results, back = bench.batch(np.zeros_like(flow)), bench.batch(np.zeros_like(values))
        states: list[Any] = []
        command_buffer = bench.command_buffer()
        to_matrix.encode_batch(command_buffer, bench.batch(values), x)
        trained.layer.encode_forward_sequence(
            command_buffer, [step] * STEPS, [out] * STEPS, states, trained.weights, source_offsets=offsets,
            destination_offsets=out_offsets,
        )  # fmt: skip
        to_image.encode_batch(command_buffer, y, results)
        to_matrix.encode_batch(command_buffer, bench.batch(flow), dy)
        trained.layer.encode_gradient_sequence(
            command_buffer, [step] * STEPS, [dout] * STEPS, [dstep] * STEPS, trained.gradients, states, trained.weights,
            forward_source_offsets=offsets, source_gradient_offsets=out_offsets, destination_offsets=offsets,
        )  # fmt: skip
        to_image.encode_batch(command_buffer, dx, back)
        adam.encode(command_buffer)
        finish(command_buffer)
        given: Any = torch.from_numpy(values[:, :, 0].transpose(0, 2, 1)).requires_grad_()
        theirs.zero_grad()
        wanted = cell(given)[0]
        wanted.backward(torch.from_numpy(flow[:, :, 0].transpose(0, 2, 1)))
        np.testing.assert_allclose(numbers(results)[:, :, 0].transpose(0, 2, 1), wanted.detach(), rtol=0, atol=2e-6)
        np.testing.assert_allclose(numbers(back)[:, :, 0].transpose(0, 2, 1), given.grad, rtol=0, atol=1e-5)
        theirs.step()
    exported = mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(UNITS, CHANNELS))
    for place, name in enumerate(("INPUT", "FORGET", "MEMORY", "OUTPUT")):
        command_buffer = bench.command_buffer()
        which = IDS[f"LSTM_{name}_GATE_INPUT_WEIGHTS"]
        trained.layer.encode_copy_weights(command_buffer, trained.weights, which, exported, True)
        finish(command_buffer)
        wanted = cell.weight_ih_l0.detach()[place * UNITS : (place + 1) * UNITS]
        np.testing.assert_allclose(exported.numpy(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("together", [False, True], ids=["lists", "sequences"])
def test_training_steps_are_replayed(together: bool, device: torch.device, rng: np.random.Generator) -> None:
    """Forward, gradient and Adam, on a queue that replays and on one that does not.

    Of lists, and of sequences with weights that lie one behind the other in memory.
    """
    found: list[list[Array]] = []
    inputs, units = (16, 16) if together else (3, 4)
    x = rng.normal(size=(5, 3, 3, inputs)).astype(np.float32)  # steps of training, of time, rows, channels
    parts = np.full((units, inputs), 0.2), np.full((units, units), 0.1), np.full(units, 0.1)
    for replays in (False, True):
        bench = Bench.on(device)
        if replays:
            bench.queue = replaying_queue(device)
        else:
            bench.queue.max_capture_count = 0
        trained = Trained(bench, lstm({gate: [k * parts[0], *parts[1:]] for k, gate in enumerate(LSTM)}))
        adam, shape = Updates(bench, trained), (3, 3, units)
        sources, flow, results, back = (
            _in_steps(bench, each, apart=True) if not together else mps.MatrixSequence(_all_steps(bench, each))
            for each in (x[0], np.ones(shape, np.float32), np.zeros(shape, np.float32), np.zeros_like(x[0]))
        )
        seen, numbers_of = list[str](), list[Array]()
        trained.layer.recurrent_output_is_temporary = trained.layer.training_state_is_temporary = not together
        for step in x:
            for matrix, values in zip(sources, step, strict=True):
                matrix.memory().copy_(torch.from_numpy(values))
            states: Any = mps.MatrixTrainingStates() if together else []
            command_buffer = bench.command_buffer()
            trained.layer.encode_forward_sequence(command_buffer, sources, results, states, trained.weights)
            trained.layer.encode_gradient_sequence(
                command_buffer, sources, flow, back, trained.gradients, states, trained.weights
            )
            adam.encode(command_buffer)
            finish(command_buffer)
            seen += outcomes(command_buffer)
            numbers_of += [each.numpy() for each in (*results, *back, *trained.gradients, *trained.weights)]
        assert ("replayed" in seen) == replays, seen
        found.append(numbers_of)
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=0 if device.type == "cpu" else 1e-5)


def _all_steps(bench: Bench, numbers: Array) -> Any:
    return mps.MPSMatrix.from_numpy(bench.device, numbers, copy=True)


# --- archives and shared memory ---------------------------------------------------------------------------------------


def test_an_archive_of_a_training_layer_has_its_form(bench: Bench) -> None:
    """Weights are the user's, and not in it."""
    layer = training(bench.device)
    layer.accumulate_weight_gradients = True
    data = mps.MPSKeyedArchiver.archived_data(layer)
    kind = mps.MPSRNNMatrixTrainingLayer
    found = mps.MPSKeyedUnarchiver.unarchived_object_of_class(kind, data, bench.device)
    assert found.accumulate_weight_gradients
    made: list[list[Any]] = [[], []]
    for each, weights in zip((layer, found), made, strict=True):
        each.create_weight_matrices(weights)
    mine, theirs = ([(each.rows, each.columns, each.data_type) for each in some] for some in made)
    assert mine == theirs
    assert len(mine) == 16


def test_a_part_of_the_steps_that_a_library_ran(bench: Bench, rng: np.random.Generator) -> None:
    """Its gradient is that of all steps: for some of them the layer runs again, from the state that it began with."""
    cell = torch.nn.LSTM(3, 4)
    trained = Trained(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), 4)))
    x, flow = ([*rng.normal(size=(5, 2, width)).astype(np.float32)] for width in (3, 4))
    _, first = trained.forward(x[:1], recurrent_output_states=(handed := list[Any]()))
    _, states = trained.forward(x[1:], recurrent_input_state=handed[0])
    assert states[0].record.by.by_library == (not bench.device.is_cuda)
    whole, begun = list[Any](), list[Any]()
    expected = trained.backward(x[1:], flow[1:], states, recurrent_output_states=whole)
    wanted = [each.numpy() for each in trained.gradients]
    later, between = trained.backward(x[3:], flow[3:], states[2:], recurrent_output_states=begun), [*begun]
    trained.layer.accumulate_weight_gradients = True
    begun.clear()
    earlier = trained.backward(
        x[1:3], flow[1:3], states[:2], recurrent_input_state=between[0], recurrent_output_states=begun
    )
    for mine, theirs in zip([*earlier, *later], expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    for mine, theirs in zip(trained.gradients, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=0, atol=1e-5)
    for mine, theirs in zip(begun[0].layers[0].parts(), whole[0].layers[0].parts(), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
    trained.layer.accumulate_weight_gradients, trained.layer.store_all_intermediate_states = False, True
    trained.backward(x, flow, first + states, recurrent_output_states=(every := list[Any]()))
    assert len(every) == 5


def _apart(given: list[Any]) -> list[Any]:
    return [mps.MPSMatrix.from_dlpack(each.device, each.tensor(), copy=True) for each in given]


def _rebound(given: list[Any]) -> list[Any]:
    """One of them has other memory, with the same numbers."""
    given[4].data.bind(given[4].data.tensor(torch.uint8).clone())
    return given


def _in_part(given: list[Any]) -> list[Any]:
    """In the beginnings of larger buffers, those of a layer of twice the units."""
    larger = list[Any]()
    twice = np.zeros((32, 32)), np.zeros((32, 32)), np.zeros(32)
    gates = dict.fromkeys(("input", "forget", "cell", "output"), twice)
    mps.MPSRNNMatrixTrainingLayer(given[0].device, lstm(gates), larger)
    found = [mps.MPSMatrix(place.data, of._descriptor) for place, of in zip(larger, given, strict=True)]
    for place, of in zip(found, given, strict=True):
        place.memory().copy_(of.memory())
    return found


def _shared(given: list[Any]) -> list[Any]:
    """In a tensor, one behind the other as they are read; what is first is an array of its own part of that."""
    tensor, found, begin = torch.zeros(sum(each.rows * each.columns for each in given)), dict[int, Any](), 0
    for at in (first + gate for first in range(3) for gate in range(0, 12, 3)):
        rows, columns = given[at].rows, given[at].columns
        place = tensor[begin : begin + rows * columns].view(rows, columns)
        begin += place.numel()
        place.copy_(given[at].tensor())
        device, of = given[at].device, mps.MPSMatrix
        found[at] = of.from_dlpack(device, place) if found else of.from_numpy(device, place.numpy())
    return [found[at] for at in range(len(given))]


@pytest.mark.parametrize("change", [list, _apart, _rebound, _in_part, _shared], ids=lambda each: each.__name__)
def test_where_weights_lie(change: Any, bench: Bench, rng: np.random.Generator) -> None:
    """Weights, and what their gradients go to, one behind the other in memory, and elsewhere: the numbers are equal."""
    torch.manual_seed(0)
    cell, found = torch.nn.LSTM(16, 16), list[list[Array]]()
    x, flow = rng.normal(size=(2, 3, 2, 16)).astype(np.float32)
    for how in (_apart, change):
        trained = Trained(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), 16)))
        trained.weights, trained.gradients = how(trained.weights), how(trained.gradients)
        for accumulates in (False, True):
            trained.layer.accumulate_weight_gradients = accumulates
            results, states = trained.forward([*x])
            back = trained.backward([*x], [*flow], states)
        found.append([*results, *back, *(each.numpy() for each in (*trained.gradients, *trained.weights))])
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert np.abs(found[0][-1]).max() > 0


@pytest.mark.parametrize("apart", [False, True], ids=["one buffer", "apart"])
def test_several_calls_of_a_library(
    apart: bool, bench: Bench, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, gradients and the states on both ends of a sequence are those of one call."""
    cell, found = torch.nn.LSTM(3, 4), list[list[Array]]()
    x, flow = (rng.normal(size=(7, 2, width)).astype(np.float32) for width in (3, 4))
    for most in (1 << 18, 20):
        monkeypatch.setattr(recurrent_library, "_AT_ONCE", most)
        trained = Trained(bench, lstm(gates_of(cell, ("input", "forget", "cell", "output"), 4)))
        handed = list[Any]()
        trained.forward([*x[:1]], recurrent_output_states=handed)
        sources, results, flows, back = (
            _in_steps(bench, each, apart=apart) for each in (x, np.zeros_like(flow), flow, np.zeros_like(x))
        )
        states, ends = list[Any](), list[Any]()
        command_buffer = bench.command_buffer()
        trained.layer.encode_forward_sequence(
            command_buffer, sources, results, states, trained.weights, recurrent_input_state=handed[0],
            recurrent_output_states=ends,
        )  # fmt: skip
        trained.layer.encode_gradient_sequence(
            command_buffer, sources, flows, back, trained.gradients, states, trained.weights,
            recurrent_input_state=handed[0], recurrent_output_states=ends,
        )  # fmt: skip
        finish(command_buffer)
        parts = [part for end in ends for part in end.layers[0].parts()]
        found.append([each.numpy() for each in (*results, *back, *trained.gradients, *parts)])
        assert len(states[0].record.by.calls) == (0 if bench.device.is_cuda else 1 if most > 20 else 3)
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=2e-6)


def _in_steps(bench: Bench, numbers: Any, *, apart: bool) -> list[Any]:
    """A matrix a step, in memory of its own or in that of all."""
    if apart:
        return matrices(bench, numbers)
    buffer = mps.MTLBuffer.from_dlpack(bench.device, torch.from_numpy(numbers.copy()), copy=True)
    steps, rows, columns = numbers.shape
    descriptor = mps.MPSMatrixDescriptor(rows, columns)
    return [mps.MPSMatrix(buffer, descriptor, 4 * step * rows * columns) for step in range(steps)]


def test_a_state_may_change_before_the_gradient(bench: Bench) -> None:
    """What training states keep is theirs, also of a single step."""
    trained, handed = Trained(bench, lstm(LSTM)), list[Any]()
    trained.forward(ONE[:2], recurrent_output_states=handed)
    found: list[list[Array]] = []
    for changes in (False, True):
        _, states = trained.forward(ONE[2:], recurrent_input_state=handed[0])
        if changes:
            for each in handed[0].layers[0].parts():
                each.memory().fill_(7)
        trained.backward(ONE[2:], ONE_GRADIENT[2:], states)
        found.append([each.numpy() for each in trained.gradients])
    np.testing.assert_array_equal(*found)


def test_results_may_be_sources(bench: Bench) -> None:
    """All is read before anything is written: in place, and into the state that it begins with."""
    layer, states = inference(bench, single(*SINGLE)), list[Any]()
    whole = [np.array(each) for each in SHRINKING]
    expected = run(bench, layer, whole)
    given = matrices(bench, whole)
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, given, given, None, states)
    finish(command_buffer)
    for mine, theirs in zip(given, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)
    trained = Trained(bench, single(*SINGLE))
    _, kept = trained.forward(whole[:1], recurrent_input_state=states[0])
    trained.backward(whole[:1], [np.ones((3, 2))], kept)
    wanted = [each.numpy() for each in trained.gradients]
    kept.clear()
    command_buffer, into = bench.command_buffer(), [states[0].get_recurrent_output_matrix(0)]
    trained.layer.encode_forward_sequence(
        command_buffer, matrices(bench, whole[:1]), into, kept, trained.weights, recurrent_input_state=states[0]
    )
    finish(command_buffer)
    trained.backward(whole[:1], [np.ones((3, 2))], kept)
    for mine, theirs in zip(trained.gradients, wanted, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_a_temporary_matrix_takes_a_read_for_each_step(bench: Bench) -> None:
    layer = inference(bench, single(0.5, 0.25, 0))
    command_buffer = bench.command_buffer()
    given = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(1, 1))
    mps.MPSMatrixSoftMax(bench.device).encode(command_buffer, matrices(bench, [[[3.0]]])[0], given)
    results = empty(bench, ONE[:2], 1)
    with pytest.raises(mps.MPSLifetimeError, match=r"source_matrices\[0\] must have 2 reads left"):
        layer.encode_sequence(command_buffer, [given] * 2, results)
    given.read_count = 2
    layer.encode_sequence(command_buffer, [given] * 2, results)
    assert given.read_count == 0
    finish(command_buffer)
    np.testing.assert_allclose(results[0].numpy(), np.tanh(0.5), rtol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_training_states_out_of_order(bench: Bench) -> None:
    trained = Trained(bench, single(*SINGLE))
    _, states = trained.forward(SHRINKING)
    for wrong in (states[::-1], [states[0], states[0], states[1]], [states[1], states[0], states[2]]):
        with pytest.raises(MPSArgumentError, match="training_states must be in the order of time"):
            trained.backward(SHRINKING, [np.ones_like(each) for each in SHRINKING], wrong)
    other = Trained(bench, single(*SINGLE, use_layer_input_unit_transform_mode=True))
    with pytest.raises(MPSArgumentError, match=r"training_states\[0\] must be of a layer with this descriptor"):
        other.backward(SHRINKING, [np.ones_like(each) for each in SHRINKING], states)


def test_wrong_kinds(bench: Bench) -> None:
    descriptor = single(*SINGLE)
    with pytest.raises(MPSTypeError, match="rnn_descriptors must be a sequence"):
        mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=3)  # type: ignore[arg-type]
    layer, trained, sources = inference(bench, descriptor), Trained(bench, descriptor), matrices(bench, SHRINKING)
    results = empty(bench, SHRINKING, 2)
    elsewhere = Bench(mps.MTLDevice(torch.device("cpu"))).command_buffer()
    for wrong, kind in ((None, MPSTypeError), (3, MPSTypeError), (elsewhere, mps.MPSDeviceError)):
        with pytest.raises(kind, match="command_buffer"):
            layer.encode_sequence(wrong, sources, results, None, [])
        with pytest.raises(kind, match="command_buffer"):
            trained.layer.encode_forward_sequence(wrong, sources, results, [], trained.weights)
        with pytest.raises(kind, match="command_buffer"):
            trained.layer.create_temporary_weight_gradient_matrices([], FLOAT32, wrong)
    with pytest.raises(MPSTypeError, match="source_offsets must be a sequence"):
        layer.encode_sequence(bench.command_buffer(), sources, results, source_offsets=3)
    both = inference(bench, descriptor, single(*SINGLE, layer_sequence_direction=1))
    with pytest.raises(MPSArgumentError, match=r"source_sequence\[0\] must have 3 rows of 2"):
        both.encode_bidirectional_sequence(bench.command_buffer(), empty(bench, SHRINKING, 1), results, results)


def test_a_source_of_as_many_numbers_in_another_shape(bench: Bench) -> None:
    """Two output channels of one input are no weights for one of two inputs."""
    descriptor = mps.MPSRNNSingleGateDescriptor(2, 1)
    descriptor.input_weights = source([[1], [2]], [3, 4])
    with pytest.raises(MPSArgumentError, match="2 input and 1 output channels"):
        inference(bench, descriptor)
