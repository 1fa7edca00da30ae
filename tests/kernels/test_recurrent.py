"""Recurrent layers over sequences of matrices: printed numbers, parts and wholes, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from measured import note_error
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.recurrent import stack
from oracles import finite_difference
from oracles import recurrent as oracle
from recurrent_layers import (
    GRU,
    LSTM,
    ONE,
    ONE_GRADIENT,
    PEEPHOLES,
    SHRINKING,
    SIGMOID,
    SINGLE,
    TANH,
    Trained,
    empty,
    gru,
    lstm,
    matrices,
    run,
    single,
    source,
)  # fmt: skip

Array = np.ndarray
DIGITS = 2e-7
Combine = mps.MPSRNNBidirectionalCombineMode


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def peeped() -> dict[str, Any]:
    return {gate: (*each, PEEPHOLES[gate]) for gate, each in LSTM.items()}


def inference(bench: Bench, *descriptors: Any) -> Any:
    return mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=list(descriptors))


def close(found: Any, expected: Any, digits: float = DIGITS) -> None:
    np.testing.assert_allclose(np.ravel(found), np.ravel(expected), rtol=digits, atol=digits)


PRINTED = {
    "LSTM": (lambda: lstm(LSTM), ONE, [0.19873703, 0.07941791, 0.25886412]),
    "LSTM, diagonal peepholes": (
        lambda: lstm(peeped(), memory_weights_are_diagonal=True), ONE, [0.21959238, 0.07934837, 0.3141864]
    ),
    "GRU": (lambda: gru(GRU), ONE, [0.23767639, -0.13147875, 0.12169567]),
    "GRU, flipped": (lambda: gru(GRU, flip_output_gates=True), ONE, [0.47862148, 0.01768791, 0.73975977]),
    "GRU, p 2": (
        lambda: gru({**GRU, "output": (1, 0.6, -0.1, 0.3)}, gate_pnorm_value=2.0), ONE,
        [0.53292037, -0.05032355, 0.57237932],
    ),
    "single gate": (
        lambda: single(*SINGLE), SHRINKING,
        [0.53704957, 0, -0.19737532, 0.53704957, 0.29131261, 0.66403677, 0.89642304, -0.70062384, 0.37573334, 0.5078309,
         -0.3718836, -0.05833238],
    ),
    "unit transform": (
        lambda: single(*SINGLE, use_layer_input_unit_transform_mode=True), [[[1, 0]], [[2, -1]]],
        [0.80049902, -0.19737532, 0.9705159, -0.93014469],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_printed_numbers(name: str, bench: Bench) -> None:
    make, steps, expected = PRINTED[name]
    found = run(bench, inference(bench, make()), steps)
    close(np.concatenate([each.ravel() for each in found]), expected)


def test_a_gate_without_input_weights_has_no_neuron(bench: Bench) -> None:
    descriptor = lstm(LSTM)
    descriptor.forget_gate_input_weights = None
    close(run(bench, inference(bench, descriptor), ONE), [0.19873703, -0.11404544, 0.22403429])


def test_weights_are_rounded_to_float16_unless_said(bench: Bench) -> None:
    """Biases are not: 0.1 stays what it is."""
    found = run(bench, inference(bench, lstm(LSTM, use_float32_weights=False)), ONE)
    close(found, [0.1987316976, 0.0794237927, 0.2588490722])


def test_a_stack(bench: Bench) -> None:
    layer = inference(bench, single(0.5, 0.25, 0), single(2, -0.5, 0.1, None))
    close(run(bench, layer, ONE), [1.02423431, -0.67944919, 1.93412277])
    assert (layer.number_of_layers, layer.input_feature_channels, layer.output_feature_channels) == (2, 1, 1)


LAYERS = {"LSTM": lambda: lstm(LSTM), "GRU": lambda: gru(GRU), "single gate": lambda: single(0.5, 0.25, 0.1)}
layers = pytest.mark.parametrize("name", LAYERS)


@layers
def test_parts_equal_the_whole(name: str, bench: Bench) -> None:
    layer = inference(bench, LAYERS[name]())
    whole: list[Any] = []
    expected = run(bench, layer, ONE, None, whole)
    first: list[Any] = []
    found = run(bench, layer, ONE[:2], None, first)
    last: list[Any] = []
    found += run(bench, layer, ONE[2:], first[0], last)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for part in ("get_recurrent_output_matrix", "get_memory_cell_matrix"):
        mine, theirs = getattr(last[0], part)(0), getattr(whole[0], part)(0)
        assert (mine is None) == (theirs is None) == (part == "get_memory_cell_matrix" and name != "LSTM")
        if mine is not None:
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        assert getattr(last[0], part)(1) is None


def test_states_behind_each_step_keep_rows_that_ended(bench: Bench) -> None:
    layer = inference(bench, single(*SINGLE))
    layer.store_all_intermediate_states = True
    states: list[Any] = []
    results = run(bench, layer, SHRINKING, None, states)
    assert len(states) == 3
    found = [each.get_recurrent_output_matrix(0).numpy() for each in states]
    np.testing.assert_array_equal(found[0], results[0])
    np.testing.assert_array_equal(found[1], [*results[1], results[0][2]])
    np.testing.assert_array_equal(found[2], [*results[2], results[1][1], results[0][2]])


def test_a_temporary_state_has_one_read(bench: Bench) -> None:
    layer = inference(bench, lstm(LSTM))
    layer.recurrent_output_is_temporary = True
    states: list[Any] = []
    command_buffer = bench.command_buffer()
    results = empty(bench, ONE, 1)
    sources = matrices(bench, ONE)
    layer.encode_sequence(command_buffer, sources[:2], results[:2], None, states)
    assert states[0].is_temporary and states[0].read_count == 1
    layer.encode_sequence(command_buffer, sources[2:], results[2:], states[0])
    assert states[0].read_count == 0
    with pytest.raises(mps.MPSLifetimeError, match="recurrent_input_state"):
        layer.encode_sequence(command_buffer, sources[2:], results[2:], states[0])
    finish(command_buffer)
    close([each.numpy() for each in results], PRINTED["LSTM"][2])


BOTH = {
    Combine.NONE: None,
    Combine.ADD: ([1.04579158, -0.50705577], 0),
    Combine.CONCATENATE: ([-0.3718836, -0.05833238, -0.19737532, 0.53704957], 2),
}


@pytest.mark.parametrize("mode", BOTH)
def test_both_directions(mode: Any, bench: Bench) -> None:
    layer = inference(bench, single(*SINGLE), single(*SINGLE, layer_sequence_direction=1))
    layer.bidirectional_combine_mode = mode
    results = empty(bench, SHRINKING, 4 if mode is Combine.CONCATENATE else 2)
    others = empty(bench, SHRINKING, 2) if mode is Combine.NONE else None
    command_buffer = bench.command_buffer()
    layer.encode_bidirectional_sequence(command_buffer, matrices(bench, SHRINKING), results, others)
    finish(command_buffer)
    if others is not None:
        close(np.concatenate([each.numpy() for each in results]), PRINTED["single gate"][2])
        backward = [0.50874201, -0.50705577, -0.06365125, 0.5289644, 0.29131261, 0.66403677]
        close(others[0].numpy(), backward)
    else:
        expected, step = BOTH[mode]  # type: ignore[misc]
        close(results[step].numpy()[0], expected)


GRADIENTS = {
    "LSTM": (
        lambda: lstm(LSTM), [0.19181794, 0.14017134, -0.03407009],
        [0.29076776, -0.00183948, 0.15251671, -0.00617269, 0.00863802, 0.04771118, 0.13630894, 0.03040304, 0.33328013,
         0.75210553, 0.02595683, 0.43567923],
        [0.08448827, 0.51582792],
    ),
    "LSTM, diagonal peepholes": (
        lambda: lstm(peeped(), memory_weights_are_diagonal=True), [0.2720863, 0.23880459, -0.00707058],
        [0.42245049, -0.00370179, -0.01213623, 0.21512629, -0.0108297, 0.0150009, 0.03200874, 0.07514413, 0.16899744,
         0.05596437, 0.1197271, 0.50340206, 0.79115988, 0.02745066, 0.33594748, 0.45734184],
        [0.10755703, 0.74459278],
    ),
    "GRU, flipped": (
        lambda: gru(GRU, flip_output_gates=True), [0.5324833, 0.16304443, 0.29684396],
        [0.93995399, -0.0547542, 0.41601954, -0.0071448, 0.00740947, 0.01576504, 0.57752994, 0.04654832, 0.77805592],
        [0.6111611],
    ),
    "GRU, p 2": (
        lambda: gru({**GRU, "output": (1, 0.6, -0.1, 0.3)}, gate_pnorm_value=2.0),
        [0.66231101, 1.3812693, -0.09636171],
        [-1.3454781, 0.20210001, -0.41128351, -0.04738137, 0.04893744, 0.09100664, 0.47064454, 0.26141278, 0.3091083,
         2.1164577],
        [1.95012344],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_printed_gradients(name: str, bench: Bench) -> None:
    make, of_sources, of_weights, of_state = GRADIENTS[name]
    trained, before = Trained(bench, make()), list[Any]()
    _, states = trained.forward(ONE)
    close(trained.backward(ONE, ONE_GRADIENT, states, recurrent_output_states=before), of_sources, 1e-6)
    close([each.numpy() for each in trained.gradients], of_weights, 1e-6)
    close([each.numpy() for each in before[0].layers[0].parts()], of_state, 1e-6)


def test_gradients_of_parts_are_added(bench: Bench) -> None:
    """The last step first, then the two before it with the state of gradients that came out."""
    trained, after, before = Trained(bench, lstm(LSTM)), list[Any](), list[Any]()
    handed: list[Any] = []
    _, early = trained.forward(ONE[:2], recurrent_output_states=handed)
    _, late = trained.forward(ONE[2:], recurrent_input_state=handed[0])
    trained.backward(ONE[2:], ONE_GRADIENT[2:], late, recurrent_output_states=after)
    close([each.numpy() for each in after[0].layers[0].parts()], [0.07652294, 0.35194977], 1e-6)
    close(trained.gradients[0].numpy(), 0.15551555, 1e-6)
    trained.layer.accumulate_weight_gradients = True
    trained.backward(ONE[:2], ONE_GRADIENT[:2], early, recurrent_input_state=after[0], recurrent_output_states=before)
    close([each.numpy() for each in trained.gradients], GRADIENTS["LSTM"][2], 1e-6)
    close([each.numpy() for each in before[0].layers[0].parts()], GRADIENTS["LSTM"][3], 1e-6)


def test_states_of_two_forward_encodes_in_one_gradient(bench: Bench) -> None:
    trained, handed = Trained(bench, lstm(LSTM)), list[Any]()
    _, states = trained.forward(ONE[:2], recurrent_output_states=handed)
    states += trained.forward(ONE[2:], recurrent_input_state=handed[0])[1]
    close(trained.backward(ONE, ONE_GRADIENT, states), GRADIENTS["LSTM"][1], 1e-6)
    close([each.numpy() for each in trained.gradients], GRADIENTS["LSTM"][2], 1e-6)


def test_gradients_of_rows_that_end(bench: Bench) -> None:
    trained, before = Trained(bench, single(*SINGLE)), list[Any]()
    _, states = trained.forward(SHRINKING)
    found = trained.backward(
        SHRINKING, [np.ones_like(each) for each in SHRINKING], states, recurrent_output_states=before
    )
    close(found[2], [0.63017076, 0.53876709], 1e-6)
    close(found[0], [0.47047746, 0.91117286, 0.56637971, 0.68546262, 0.56937951, 0.17270305], 1e-6)
    close(trained.gradients[0].numpy(), [1.99755496, 2.77775965, 3.90100858, 2.20432196], 1e-6)
    close(before[0].get_recurrent_output_matrix(0).numpy()[2], [-0.18801389, 0.53377134], 1e-6)


def test_temporary_training_states_end_with_their_gradient(bench: Bench) -> None:
    trained = Trained(bench, lstm(LSTM))
    trained.layer.training_state_is_temporary = True
    states: list[Any] = []
    command_buffer = bench.command_buffer()
    sources, results, found = matrices(bench, ONE), empty(bench, ONE, 1), empty(bench, ONE, 1)
    trained.layer.encode_forward_sequence(command_buffer, sources, results, states, trained.weights)
    assert [each.read_count for each in states] == [1, 1, 1]
    gradients = matrices(bench, ONE_GRADIENT)
    given = sources, gradients, found, trained.gradients, states, trained.weights
    trained.layer.encode_gradient_sequence(command_buffer, *given)
    assert [each.read_count for each in states] == [0, 0, 0]
    with pytest.raises(mps.MPSLifetimeError, match=r"training_states\[0\]"):
        trained.layer.encode_gradient_sequence(command_buffer, *given)
    finish(command_buffer)
    close([each.numpy() for each in found], GRADIENTS["LSTM"][1], 1e-6)


def test_weights_are_matrices_of_the_user(bench: Bench) -> None:
    ids = mps.MPSRNNMatrixId
    trained = Trained(bench, lstm(LSTM))
    assert len(trained.weights) == 12
    held = matrices(bench, [np.zeros((3, 3))])[0]
    origin = mps.MTLOrigin(1, 2, 0)
    command_buffer = bench.command_buffer()
    trained.layer.encode_copy_weights(
        command_buffer, trained.weights, ids.LSTM_OUTPUT_GATE_INPUT_WEIGHTS, held, True, origin
    )
    trained.layer.encode_copy_weights(
        command_buffer, trained.weights, ids.LSTM_INPUT_GATE_INPUT_WEIGHTS, held, False, origin
    )
    finish(command_buffer)
    assert held.numpy()[1, 2] == np.float32(-0.3)
    assert trained.weights[0].numpy()[0, 0] == np.float32(-0.3)
    with pytest.raises(MPSArgumentError, match="matrix_id must be one that the layer has"):
        trained.layer.encode_copy_weights(
            bench.command_buffer(), trained.weights, ids.LSTM_INPUT_GATE_MEMORY_WEIGHTS, held, True, origin
        )
    with pytest.raises(MPSArgumentError, match="matrix must have 1 rows of 1 elements from row 3"):
        trained.layer.encode_copy_weights(
            bench.command_buffer(), trained.weights, ids.LSTM_INPUT_GATE_BIAS_TERMS, held, True, mps.MTLOrigin(3, 0, 0)
        )


def test_types_of_weights(bench: Bench) -> None:
    data = mps.MPSDataType
    for is_float32, kind in ((True, data.FLOAT32), (False, data.FLOAT16)):
        trained = Trained(bench, lstm(LSTM, use_float32_weights=is_float32))
        more: list[Any] = []
        trained.layer.create_weight_matrices(more)
        assert {each.data_type for each in (*trained.weights, *more)} == {kind}
        assert {each.data_type for each in trained.gradients} == {data.FLOAT32}
        assert not any(each.numpy().any() for each in more)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_descriptors_refuse() -> None:
    with pytest.raises(MPSTypeError, match="makes no descriptor of this base class"):
        mps.MPSRNNDescriptor(1, 1)
    with pytest.raises(MPSArgumentError, match="input_feature_channels"):
        mps.MPSGRUDescriptor(0, 1)
    with pytest.raises(MPSArgumentError, match="gate_pnorm_value must be more than 0"):
        gru(GRU, gate_pnorm_value=0)
    with pytest.raises(MPSTypeError, match="input_weights"):
        mps.MPSRNNSingleGateDescriptor(1, 1).input_weights = 3  # type: ignore[assignment]


def _wider(neuron: Any = None) -> Any:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 1, 1, 1)
    return mps.ArrayConvolutionDataSource(descriptor, np.zeros((1, 1, 3, 1), np.float32))


def _prelu() -> Any:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(data=[0.5])
    return mps.ArrayConvolutionDataSource(descriptor, np.zeros((1, 1, 1, 1), np.float32))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (lambda: source([[1, 2]], 0), "1 input and 1 output channels"),
        (lambda: source([[1], [2]], [0, 0]), "1 input and 1 output channels"),
        (_wider, "a kernel of one pixel"),
        (_prelu, "must have another neuron, got PRELU"),
    ],
)  # fmt: skip
def test_sources_that_do_not_fit(given: Any, rule: str, bench: Bench) -> None:
    descriptor = single(0.5, 0.25, 0)
    descriptor.input_weights = given()
    with pytest.raises(MPSArgumentError, match=f"input_weights.*{rule}"):
        inference(bench, descriptor)


def test_layers_refuse(bench: Bench) -> None:
    kind = mps.MPSRNNMatrixInferenceLayer
    one, other = single(0.5, 0.25, 0), single(*SINGLE)
    with pytest.raises(MPSArgumentError, match="must have 1 input channels, what the layer before gives"):
        inference(bench, one, other)
    with pytest.raises(MPSArgumentError, match="must hold at least one descriptor"):
        inference(bench)
    with pytest.raises(MPSTypeError, match="rnn_descriptor"):
        kind(bench.device)
    with pytest.raises(MPSTypeError, match="must be an MPSRNNDescriptor"):
        kind(bench.device, rnn_descriptors=[one, 3])  # type: ignore[list-item]
    with pytest.raises(MPSArgumentError, match="for use_layer_input_unit_transform_mode"):
        inference(bench, single([[1, 2]], 0.5, 0, use_layer_input_unit_transform_mode=True))
    with pytest.raises(MPSTypeError, match="has no public initializer"):
        mps.MPSRNNRecurrentMatrixState(bench.device)
    with pytest.raises(MPSTypeError, match="trainable_weights must be a list"):
        mps.MPSRNNMatrixTrainingLayer(bench.device, one, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["MPSRNNMatrixInferenceLayer", "MPSRNNImageInferenceLayer"])
def test_more_channels_than_memory(name: str, bench: Bench) -> None:
    """Weights without a source are zeros, of which there may not be too many."""
    with pytest.raises(MPSArgumentError, match="rnn_descriptor must be"):
        getattr(mps, name)(bench.device, mps.MPSGRUDescriptor(2**15, 2**70))


def test_weights_for_which_there_is_no_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(stack, "stacked", fail)
    with pytest.raises(mps.MPSMemoryError, match="MPSRNNMatrixInferenceLayer: rnn_descriptor needs more memory"):
        inference(bench, single(*SINGLE))


def test_sequences_refuse(bench: Bench) -> None:
    layer, sources = inference(bench, single(*SINGLE)), matrices(bench, SHRINKING)
    results = empty(bench, SHRINKING, 2)

    def refused(rule: str, *given: Any, kind: type[Exception] = MPSArgumentError, **named: Any) -> None:
        command_buffer = bench.command_buffer()
        with pytest.raises(kind, match=rule):
            layer.encode_sequence(command_buffer, *given, **named)

    refused("destination_matrices must hold 3", sources, results[:2])
    refused("source_matrices must hold at least one", [], [])
    refused(r"source_matrices\[1\] must have at most 1 rows", sources[::-1], results[::-1])
    refused(r"source_matrices\[0\] must have 3 rows of 2", matrices(bench, [np.zeros((3, 1))]), results[:1])
    refused(r"destination_matrices\[0\] must have 3 rows of 2", sources[:1], empty(bench, SHRINKING[1:2], 2))
    refused("must be an MPSMatrix", [None], results[:1], kind=MPSTypeError)
    refused("recurrent_output_states must be a list", sources, results, None, (), kind=MPSTypeError)
    refused("recurrent_input_state must be an MPSRNN", sources, results, 3, kind=MPSTypeError)
    states: list[Any] = []
    run(bench, inference(bench, lstm(LSTM)), ONE, None, states)
    refused("must be of layers like these, SingleGate of 2", sources, results, states[0], kind=MPSTypeError)
    states.clear()
    run(bench, layer, SHRINKING[2:], None, states)
    refused("recurrent_input_state must have 3 rows", sources, results, states[0])
    several = mps.MPSMatrix(device=bench.device, descriptor=mps.MPSMatrixDescriptor(3, 2, matrices=2))
    refused("must hold one matrix", [several], results[:1])
    with pytest.raises(MPSArgumentError, match="must have layers of both directions"):
        layer.encode_bidirectional_sequence(bench.command_buffer(), sources, results, results)


def test_later_changes_of_a_source_have_no_effect(bench: Bench) -> None:
    descriptor = single(0.5, 0.25, 0.1)
    layer = inference(bench, descriptor)
    expected = run(bench, layer, ONE)
    descriptor.input_weights = source(7, 7, SIGMOID)
    descriptor.use_float32_weights = False
    for other in (layer, layer.copy()):
        for mine, theirs in zip(run(bench, other, ONE), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_images_of_float16(bench: Bench, rng: np.random.Generator) -> None:
    """Sources and results of float16: computed in float32, rounded once."""
    W, U, b = rng.normal(size=(2, 4)), rng.normal(size=(2, 2)), rng.normal(size=2)
    layer = inference(bench, single(W, U, b, TANH))
    steps = [rng.normal(size=(3, 4)).astype(np.float16) for _ in range(4)]
    expected = run(bench, layer, steps)
    results = matrices(bench, [np.zeros((3, 2))] * 4, np.float16)
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, matrices(bench, steps, np.float16), results)
    finish(command_buffer)
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.astype(np.float16))


def test_errors_against_loops(bench: Bench, rng: np.random.Generator, device: torch.device) -> None:
    """The errors that the table of kernels shows: an LSTM over seven steps, and the gradient of its sources."""
    gates = {name: [rng.normal(0, 0.5, shape) for shape in ((5, 4), (5, 5), 5)] for name in LSTM}
    weights = oracle.Weights(
        *({gate[0]: given[part] for gate, given in gates.items()} for part in range(2)), {},
        {gate[0]: given[2] for gate, given in gates.items()},
        {gate[0]: math.tanh if gate == "cell" else _sigmoid for gate in gates},
    )  # fmt: skip
    steps, of_results = [rng.normal(size=(3, 4)) for _ in range(7)], [rng.normal(size=(3, 5)) for _ in range(7)]

    def forward(sources: Any) -> Any:
        step = lambda x, h, c: oracle.lstm(weights, x, h, c, math.tanh)  # noqa: E731
        return oracle.run(step, list(sources), np.zeros((3, 5)), np.zeros((3, 5)))[0]

    expected = forward(steps)
    trained = Trained(bench, lstm(gates))
    found, states = trained.forward(steps)
    gradients = trained.backward(steps, of_results, states)
    wanted = finite_difference.gradient(lambda x: float((np.array(forward(x)) * of_results).sum()), np.array(steps))
    note_error(
        mps.MPSRNNMatrixInferenceLayer, "forward", device, run(bench, inference(bench, lstm(gates)), steps), expected
    )
    note_error(mps.MPSRNNMatrixTrainingLayer, "forward", device, found, expected)
    note_error(mps.MPSRNNMatrixTrainingLayer, "gradient", device, gradients, wanted)
    close(found, expected, 1e-5)
    close(gradients, wanted, 1e-5)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
