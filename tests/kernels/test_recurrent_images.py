"""Recurrent layers over sequences of images: numbers beside loops, parts, both directions, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import FLOAT16, FLOAT32, UNORM8, Bench, Format, finish, numbers
from measured import note_error
from openmps.errors import MPSArgumentError, MPSTypeError
from oracles import recurrent as oracle
from recurrent_layers import GRU, LSTM, gru, lstm, single, source
from replay_twin import outcomes, replaying_queue

Array = np.ndarray
Combine = mps.MPSRNNBidirectionalCombineMode
STEPS, IMAGES, HIGH, WIDE = 3, 2, 4, 5
NAMES = {"input": "i", "forget": "f", "cell": "c", "output": "o"}
GRU_NAMES = {"input": "z", "recurrent": "r", "output": "h"}
TAPS = {"input": (3, 3), "forget": (1, 1), "cell": (2, 4), "output": (3, 2), "recurrent": (3, 1)}
"""Height and width of each gate's kernels."""


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def half(values: Any) -> Array:
    """Weights as the layer multiplies with them."""
    return np.asarray(values, np.float16).astype(np.float64)


def drawn(rng: np.random.Generator, gates: Any, inputs: int, size: int, memories: str = "") -> dict[str, Any]:
    """W, U, b and V of each gate; V of the gates that ``memories`` names, all of their numbers of float16 but b."""
    found: dict[str, Any] = {}
    for gate in gates:
        high, wide = TAPS[gate]
        W, U = half(rng.normal(0, 0.3, (size, high, wide, inputs))), half(rng.normal(0, 0.3, (size, wide, high, size)))
        V = {"full": half(rng.normal(0, 0.3, (size, high, high, size))), "": None}.get(
            memories, half(rng.normal(size=size))
        )
        found[gate] = (W, U, rng.normal(0, 0.5, size), *([] if V is None else [V]))
    return found


def weights(gates: dict[str, Any], names: dict[str, str], candidate: str) -> oracle.Weights:
    parts: list[dict[str, Array]] = [
        {names[gate]: each[k] for gate, each in gates.items() if len(each) > k} for k in range(4)
    ]
    W, U, b, V = parts
    f = {names[gate]: math.tanh if gate == candidate else lambda x: 1 / (1 + math.exp(-x)) for gate in gates}
    return oracle.Weights(W, U, V, b, f)


def lstm_case(rng: np.random.Generator, memories: str) -> tuple[Any, oracle.Step]:
    gates = drawn(rng, LSTM, 3, 2, memories)
    given = weights(gates, NAMES, "cell")
    made = lstm(gates, memory_weights_are_diagonal=memories == "diagonal")
    return made, lambda x, h, c: oracle.lstm(given, x, h, c, math.tanh)


def gru_case(rng: np.random.Generator, p: float, flipped: bool) -> tuple[Any, oracle.Step]:
    gates = drawn(rng, GRU, 3, 2)
    gates["output"] = (*gates["output"], half(rng.normal(0, 0.3, (2, 2, 3, 2))))
    given = weights(gates, GRU_NAMES, "output")
    made = gru(gates, gate_pnorm_value=p, flip_output_gates=flipped)
    return made, lambda x, h, c: (oracle.gru(given, x, h, p, flipped=flipped), c)


def unit_case(rng: np.random.Generator) -> tuple[Any, oracle.Step]:
    U, b = half(rng.normal(0, 0.3, (3, 2, 3, 3))), rng.normal(size=3)
    given = oracle.Weights({}, {"g": U}, {}, {"g": b}, {"g": math.tanh})
    made = single(np.zeros((3, 1, 1, 3)), U, b, use_layer_input_unit_transform_mode=True)
    return made, lambda x, h, c: (oracle.single_gate(given, x, h, unit=True), c)


CASES: dict[str, Any] = {
    "LSTM": lambda rng: lstm_case(rng, ""),
    "LSTM, peepholes": lambda rng: lstm_case(rng, "full"),
    "LSTM, diagonal peepholes": lambda rng: lstm_case(rng, "diagonal"),
    "GRU": lambda rng: gru_case(rng, 1.0, False),
    "GRU, p 2, flipped": lambda rng: gru_case(rng, 2.0, True),
    "single gate, unit transform": unit_case,
}


def layer_of(bench: Bench, *descriptors: Any) -> Any:
    return mps.MPSRNNImageInferenceLayer(bench.device, rnn_descriptors=list(descriptors))


def sequence(rng: np.random.Generator, channels: int = 3) -> Array:
    return rng.normal(size=(STEPS, IMAGES, channels, HIGH, WIDE)).astype(np.float32)


def run(
    bench: Bench, layer: Any, steps: Array, state: Any = None, out: Any = None, form: Format = FLOAT32, more: int = 0
) -> Array:
    """What a layer gives for a sequence; destinations have ``more`` channels than it writes, of 7."""
    shape = IMAGES, layer.output_feature_channels + more, *steps.shape[3:]
    results = [bench.filled(shape, 7, form) for _ in steps]
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, [bench.image(each, form) for each in steps], results, state, out)
    finish(command_buffer)
    return np.stack([numbers(each) for each in results])


@pytest.mark.parametrize("name", CASES)
def test_equals_loops_in_parts_too(name: str, bench: Bench, rng: np.random.Generator, device: torch.device) -> None:
    """Two steps, then one from the state that they left, of images with channels that are not read or written."""
    descriptor, step = CASES[name](rng)
    layer, steps = layer_of(bench, descriptor), sequence(rng, 4)
    size = layer.output_feature_channels
    first, last = list[Any](), list[Any]()
    found = [*run(bench, layer, steps[:2], None, first, more=2), *run(bench, layer, steps[2:], first[0], last, more=2)]
    zeros = np.zeros((IMAGES, size, HIGH, WIDE))
    expected, h, c = oracle.run(step, [*steps[:, :, :3]], zeros, zeros)
    note_error(mps.MPSRNNImageInferenceLayer, "forward", device, np.stack(found)[:, :, :size], np.array(expected))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine[:, :size], theirs, rtol=0, atol=2e-6)
        assert (mine[:, size:] == 7).all()
    state = last[0]
    np.testing.assert_allclose(numbers(state.get_recurrent_output_image(0)), h, rtol=0, atol=2e-6)
    memory = state.get_memory_cell_image(0)
    assert (memory is not None) == name.startswith("LSTM")
    if memory is not None:
        np.testing.assert_allclose(numbers(memory), c, rtol=0, atol=4e-6)
    assert state.get_recurrent_output_image(1) is state.get_memory_cell_image(1) is None


def test_an_image_of_one_pixel_is_a_vector(bench: Bench, rng: np.random.Generator) -> None:
    """A stack of all kinds, beside the layer over matrices, with every state on the way."""
    gates = {gate: (half(rng.normal(size=(4, 3))), half(rng.normal(size=(4, 4))), rng.normal(size=4)) for gate in LSTM}
    units = {gate: (half(rng.normal(size=(2, 4))), half(rng.normal(size=(2, 2))), rng.normal(size=2)) for gate in GRU}
    stack = [lstm(gates), gru(units)]
    layer = layer_of(bench, *stack)
    layer.store_all_intermediate_states = True
    steps, states = rng.normal(size=(STEPS, IMAGES, 3, 1, 1)).astype(np.float32), list[Any]()
    found = run(bench, layer, steps, None, states)
    plain: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=stack)
    plain.store_all_intermediate_states = True
    given = [mps.MPSMatrix.from_numpy(bench.device, each[..., 0, 0], copy=True) for each in steps]
    wanted = [mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(IMAGES, 2)) for _ in steps]
    kept, command_buffer = list[Any](), bench.command_buffer()
    plain.encode_sequence(command_buffer, given, wanted, None, kept)
    finish(command_buffer)
    np.testing.assert_allclose(found[..., 0, 0], [each.numpy() for each in wanted], rtol=0, atol=2e-6)
    assert len(states) == len(kept) == STEPS
    for mine, theirs in zip(states, kept, strict=True):
        for image, matrix in zip(mine.parts_of_layers(), theirs.parts_of_layers(), strict=True):
            np.testing.assert_allclose(numbers(image)[..., 0, 0], matrix.numpy(), rtol=0, atol=4e-6)


@pytest.mark.parametrize("mode", Combine, ids=lambda mode: mode.name)
def test_both_directions(mode: Any, bench: Bench, rng: np.random.Generator) -> None:
    """The backward layers read fewer channels than the forward one, and begin at the end."""
    forward, step = lstm_case(rng, "")
    U, b = half(rng.normal(0, 0.3, (2, 3, 3, 2))), rng.normal(size=2)
    W = half(rng.normal(0, 0.3, (2, 2, 2, 2)))
    given = oracle.Weights({"g": W}, {"g": U}, {}, {"g": b}, {"g": math.tanh})
    layer = layer_of(bench, forward, single(W, U, b, layer_sequence_direction=1))
    layer.bidirectional_combine_mode = mode
    steps, zeros = sequence(rng), np.zeros((IMAGES, 2, HIGH, WIDE))
    ahead = np.array(oracle.run(step, [*steps], zeros, zeros)[0])
    back = oracle.run(
        lambda x, h, c: (oracle.single_gate(given, x, h), c), [*steps[:, :, :2]], zeros, zeros, backward=True
    )
    expected = {
        Combine.NONE: [ahead, np.array(back[0])],
        Combine.ADD: [ahead + np.array(back[0])],
        Combine.CONCATENATE: [np.concatenate((ahead, np.array(back[0])), 2)],
    }[mode]
    lists = [[bench.empty(each.shape) for each in one] for one in expected]
    command_buffer = bench.command_buffer()
    layer.encode_bidirectional_sequence(command_buffer, [bench.image(each) for each in steps], *lists)
    finish(command_buffer)
    for mine, theirs in zip(lists, expected, strict=True):
        np.testing.assert_allclose([numbers(each) for each in mine], theirs, rtol=0, atol=4e-6)


@pytest.mark.parametrize("form", [FLOAT16, UNORM8], ids=lambda form: form.name)
def test_other_formats_are_rounded_once(form: Format, bench: Bench, rng: np.random.Generator) -> None:
    layer = layer_of(bench, lstm_case(rng, "")[0])
    steps = rng.integers(0, 256, (STEPS, IMAGES, 3, HIGH, WIDE)) / 255
    found = run(bench, layer, steps, form=form)
    read = np.stack([numbers(bench.image(each, form)) for each in steps])
    wide = run(bench, layer, read)
    wanted = np.stack([numbers(bench.image(each, form)) for each in wide])
    np.testing.assert_array_equal(found, wanted)


def test_temporary_images_and_states(bench: Bench, rng: np.random.Generator) -> None:
    """Each is read once; the CPU cannot reach them."""
    layer, steps = layer_of(bench, lstm_case(rng, "")[0]), sequence(rng)
    expected = run(bench, layer, steps)
    layer.recurrent_output_is_temporary = True
    command_buffer, states = bench.command_buffer(), list[Any]()
    sources = [bench.image(each) for each in steps]
    results = [bench.empty((IMAGES, 2, HIGH, WIDE)) for _ in steps]
    given = [mps.MPSTemporaryImage(command_buffer, results[0].descriptor()) for _ in range(2)]
    layer.encode_sequence(command_buffer, sources[:2], given, None, states)
    assert states[0].is_temporary and states[0].read_count == 1
    with pytest.raises(mps.MPSLifetimeError):
        states[0].get_recurrent_output_image(0).numpy()
    copies = [mps.MPSCNNNeuron(bench.device, mps.MPSNNNeuronDescriptor()) for _ in given]
    for copy, image, result in zip(copies, given, results, strict=False):
        copy.encode(command_buffer, image, result)
    layer.encode_sequence(command_buffer, sources[2:], results[2:], states[0])
    assert states[0].read_count == 0
    with pytest.raises(mps.MPSLifetimeError, match="recurrent_input_state"):
        layer.encode_sequence(command_buffer, sources[2:], results[2:], states[0])
    finish(command_buffer)
    np.testing.assert_array_equal([numbers(each) for each in results], expected)


def test_steps_are_replayed(bench: Bench, rng: np.random.Generator, device: torch.device) -> None:
    layer, steps, seen = layer_of(bench, gru_case(rng, 1.0, False)[0]), sequence(rng), list[str]()
    bench.queue.max_capture_count = 0
    expected, bench.queue = run(bench, layer, steps), replaying_queue(device)
    sources, results = [bench.image(each) for each in steps], [bench.empty((IMAGES, 2, HIGH, WIDE)) for _ in steps]
    for _ in range(4):
        command_buffer = bench.command_buffer()
        layer.encode_sequence(command_buffer, sources, results)
        finish(command_buffer)
        seen += outcomes(command_buffer)
        np.testing.assert_allclose([numbers(each) for each in results], expected, rtol=0, atol=1e-6)
    assert "replayed" in seen


# --- what is refused --------------------------------------------------------------------------------------------------


def test_sequences_refuse(bench: Bench, rng: np.random.Generator) -> None:
    layer, steps = layer_of(bench, lstm_case(rng, "")[0]), sequence(rng)
    sources, results = [bench.image(each) for each in steps], [bench.empty((IMAGES, 2, HIGH, WIDE)) for _ in steps]

    def refused(rule: str, *given: Any, kind: type[Exception] = MPSArgumentError) -> None:
        with pytest.raises(kind, match=rule):
            layer.encode_sequence(bench.command_buffer(), *given)

    once = "must be read or written nowhere else in the sequence"
    refused(rf"destination_images\[1\] {once}", sources, [results[0], results[0], results[1]])
    refused(rf"destination_images\[0\] {once}", sources, [sources[1], *results[1:]])
    refused("source_images must hold at least one image", [], [])
    refused("destination_images must hold 3", sources, results[:2])
    refused(r"source_images\[1\] must be an MPSImage", [sources[0], None], results[:2], kind=MPSTypeError)
    refused(r"source_images\[0\] must have at least 3 feature channels, got 2", results, results)
    refused(r"destination_images\[1\] must have at least 2 f", sources[:2], [results[0], bench.empty((2, 1, 4, 5))])
    refused(r"source_images\[1\] must have 5x4 pixels", [sources[0], bench.empty((2, 3, 4, 6))], results[:2])
    refused(r"destination_images\[0\] must have .* 2 image", sources, [bench.empty((1, 2, 4, 5))] * 3)
    refused("recurrent_input_state must be an MPSRNNRecurrentImageState", sources, results, 3, kind=MPSTypeError)
    refused("recurrent_output_states must be a list", sources, results, None, (), kind=MPSTypeError)
    states: list[Any] = []
    run(bench, layer, steps[:, :, :, :2], None, states)
    refused("recurrent_input_state must have 5x4 pixels", sources, results, states[0])
    run(bench, layer_of(bench, gru_case(rng, 1.0, False)[0]), steps, None, states)
    refused("must be of layers like these, Lstm of 2", sources, results, states[-1], kind=MPSTypeError)
    with pytest.raises(MPSArgumentError, match="must have layers of both directions, got 1 forward and 0 backward"):
        layer.encode_bidirectional_sequence(bench.command_buffer(), sources, results, results)


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", mps.MPSOffset(1, 0, 0)), ("edge_mode", mps.MPSImageEdgeMode.CLAMP),
     ("clip_rect", mps.MTLRegion(mps.MTLOrigin(0, 0, 0), mps.MTLSize(1, 1, 1))),
     ("source_feature_channel_offset", 4), ("source_feature_channel_max_count", 2),
     ("destination_feature_channel_offset", 4)],
)  # fmt: skip
def test_properties_of_single_images_must_stay(name: str, value: Any, bench: Bench, rng: np.random.Generator) -> None:
    layer, steps = layer_of(bench, lstm_case(rng, "")[0]), sequence(rng)
    setattr(layer, name, value)
    with pytest.raises(MPSArgumentError, match=f"{name} must be as it comes for a sequence"):
        run(bench, layer, steps)
    with pytest.raises(MPSArgumentError, match=f"{name} must be as it comes for a sequence"):
        layer.encode_bidirectional_sequence(bench.command_buffer(), [], [])


def test_layers_refuse(bench: Bench, rng: np.random.Generator) -> None:
    descriptor = lstm_case(rng, "")[0]
    layer = layer_of(bench, descriptor)
    for call in (layer.encode, layer.encode_batch):
        images = bench.empty((1, 3, 4, 5)) if call == layer.encode else bench.batch(np.zeros((1, 3, 4, 5)))
        with pytest.raises(MPSTypeError, match="encode is not offered by recurrent layers. Use encode_sequence"):
            call(bench.command_buffer(), images)
    with pytest.raises(MPSTypeError, match="has no public initializer"):
        mps.MPSRNNRecurrentImageState(bench.device)
    descriptor.input_gate_input_weights = source(np.zeros((2, 3, 3, 4)))
    with pytest.raises(MPSArgumentError, match="a kernel of 3 input and 2 output channels, got 2 x 3 x 3 x 4, OHWI"):
        layer_of(bench, descriptor)
    strided = source(np.zeros((2, 3, 3, 3)))
    strided.descriptor().stride_in_pixels_x = 2
    descriptor.input_gate_input_weights = strided
    with pytest.raises(MPSArgumentError, match="must have strides, dilation rates and groups of 1"):
        layer_of(bench, descriptor)


def test_the_result_of_a_single_image_has_a_size(bench: Bench, rng: np.random.Generator) -> None:
    """What every kernel over images tells, whether or not it runs over one."""
    layer = layer_of(bench, lstm_case(rng, "")[0])
    found = layer.destination_image_descriptor([bench.empty((2, 3, 4, 6))])
    assert (found.width, found.height, found.feature_channels, found.number_of_images) == (6, 4, 2, 2)
    assert layer.result_state(bench.empty((2, 3, 4, 6))) is None
