"""Recurrent layers out of Core ML's packages and files, beside PyTorch and loops over Core ML's formulas."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coreml_packages
import openmps as mps
from coreml_models import neural, op, ours, program, saved
from encoding import Bench, finish
from openmps.errors import MPSFileError, MPSOperatorError
from openmps.formats import coreml
from openmps.formats.onnx import DenseLayer, RecurrentLayer
from recurrent_layers import empty, matrices

if find_spec("coremltools") is None:  # to import it takes seconds
    pytest.skip("needs coremltools", allow_module_level=True)

Array = np.ndarray
BENCH = Bench(mps.mtl_device("cpu"))
KNOWN = np.load(coreml_packages.SEQUENCES)
CLOSE = 2e-6
UNITS, INPUTS = coreml_packages.UNITS, coreml_packages.INPUTS


def stepped(layer: RecurrentLayer | DenseLayer, x: Array) -> Array:
    """What a layer makes of a sequence: all directions side by side."""
    if isinstance(layer, DenseLayer):
        return x @ layer.weights + (0 if layer.biases is None else layer.biases)
    made, steps = layer.inference(BENCH.device), x[::-1] if layer.is_reversed else x
    width = sum(each.output_feature_channels for each in layer.descriptors)
    sources, results, command_buffer = matrices(BENCH, steps), empty(BENCH, steps, width), BENCH.command_buffer()
    encode = made.encode_bidirectional_sequence if len(layer.descriptors) == 2 else made.encode_sequence
    encode(command_buffer, sources, results)
    finish(command_buffer)
    found = np.stack([each.numpy() for each in results])
    return found[::-1] if layer.is_reversed else found


@pytest.mark.parametrize("name", ["sequence", "sequence_half"])
def test_layers_of_a_program_give_what_torch_does(name: str, tmp_path: Path) -> None:
    """Two LSTMs, one in both directions, and a dense layer: all weights are numbers that float16 holds."""
    path, found = coreml_packages.packed(name, tmp_path), KNOWN["x"]
    layers = coreml.sequence_layers(path)
    assert [type(each) for each in layers] == [RecurrentLayer, RecurrentLayer, DenseLayer]
    for layer in layers:
        found = stepped(layer, found)
    np.testing.assert_allclose(found, KNOWN["sequence"], rtol=0, atol=CLOSE)
    assert [each.name for each in coreml.recurrent_layers(path)] == [each.name for each in layers[:2]]


def test_a_gru_of_a_program_resets_before_the_product(tmp_path: Path) -> None:
    (layer,) = coreml.recurrent_layers(coreml_packages.packed("gru", tmp_path))
    assert layer.is_reversed
    np.testing.assert_allclose(stepped(layer, KNOWN["x"]), KNOWN["gru"], rtol=0, atol=CLOSE)


def test_layers_of_a_neural_network_give_what_their_formulas_do(tmp_path: Path) -> None:
    """An LSTM with peepholes and 1 on top of its forget gate, one in both directions, a GRU, and one gate."""
    layers = coreml.recurrent_layers(coreml_packages.packed("layers", tmp_path, "mlmodel"))
    assert [each.name for each in layers] == ["one", "both", "gated", "simple"]
    for layer in layers:
        found = stepped(layer, KNOWN["x"])
        np.testing.assert_allclose(found, KNOWN[layer.name], rtol=0, atol=CLOSE, err_msg=layer.name)


# --- what is refused --------------------------------------------------------------------------------------------------

_ONES = {"weight_ih": np.ones((4 * UNITS, INPUTS)), "weight_hh": np.ones((4 * UNITS, UNITS))}
_SMALL = {"weight_ih": np.ones((2, 3)), "weight_hh": np.ones((2, 2))}


def test_a_graph_has_no_recurrent_layers_and_says_what_does(tmp_path: Path) -> None:
    with pytest.raises(
        MPSOperatorError, match=r"openmps\.formats\.coreml\.recurrent_layers\(path\) makes it"
    ) as caught:
        ours(coreml_packages.packed("sequence", tmp_path))
    assert {"lstm"} <= {each["operator"] for each in caught.value.nodes}


def test_what_no_layer_computes_is_listed(tmp_path: Path) -> None:
    made = program(
        [
            op("lstm", "clipped", (1, 1, 1), clip=3.0, **_ONES), op("lstm", "bare", (1, 1, 1)),
            op("lstm", "scaled", (1, 1, 1), cell_activation="scaled_tanh", **_ONES),
            op("gru", "uneven", (1, 1, 1), weight_ih=np.ones((7, 2)), weight_hh=np.ones((6, 2))),
            op("rnn", "begun", (1, 1, 1), initial_h=np.ones((1, 2)), **_SMALL),
            op("lstm", "good", (1, 1, 1), clip=60.0, **_ONES),
        ],
        ["good"], (5, 1, INPUTS),
    )  # fmt: skip
    with pytest.raises(MPSOperatorError) as caught:
        coreml.recurrent_layers(saved(made, tmp_path))
    why = {each["node"]: (each["operator"], each["why"]) for each in caught.value.nodes}
    assert [*why] == ["clipped", "bare", "scaled", "uneven", "begun"]
    for name, said in (
        ("clipped", "limits its cell to 3"), ("bare", "weight_ih is missing"), ("scaled", "cell_activation is"),
        ("uneven", "not as expected"), ("begun", "initial_h is a constant that is not 0"),
    ):  # fmt: skip
        assert said in why[name][1]
    assert why["uneven"][0] == "gru"


@pytest.mark.parametrize(("fields", "said"), [
    ({"params__coupledInputAndForgetGate": True}, "couples"), ({"outputVectorSize": 5}, "numbers for"),
    ({"params__cellClipThreshold": 2.0}, "limits its cell to 2"), ({}, "0 functions"),
    ({"outputVectorSize": 1 << 53}, "are no weights"), ({"outputVectorSize": 1 << 53, "inputVectorSize": 0}, "numbers"),
])  # fmt: skip
def test_an_lstm_of_a_neural_network_that_is_none_here(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    matrices_ = {f"weightParams__{gate}RecursionMatrix": np.ones(16) for gate in GATES}
    matrices_ |= {f"weightParams__{gate}WeightMatrix": np.ones(12) for gate in GATES}
    made = neural([("uniDirectionalLSTM", "y", {"inputVectorSize": 3, "outputVectorSize": 4, **matrices_, **fields})])
    with pytest.raises(MPSOperatorError, match=said):
        coreml.recurrent_layers(saved(made, tmp_path))


GATES = ("inputGate", "forgetGate", "blockInput", "outputGate")


def test_functions_without_an_end_are_refused_where_what_they_get_is_limited(tmp_path: Path) -> None:
    row = {"inputVectorSize": 3, "outputVectorSize": 4, "weightMatrix": np.ones(12), "recursionMatrix": np.ones(16)}
    made = neural([("simpleRecurrent", "y", {**row, "activation__ReLU": None})])
    with pytest.raises(MPSOperatorError, match="ReLU, of what is limited to ±50"):
        coreml.recurrent_layers(saved(made, tmp_path))
    with pytest.raises(MPSFileError, match="must have a recurrent layer"):
        coreml.recurrent_layers(saved(neural([("copy", "y", {})]), tmp_path))
