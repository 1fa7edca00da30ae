"""Recurrent layers out of ONNX files and PyTorch modules, beside ONNX Runtime and PyTorch, and back into files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from in_one_test import in_one_test
from onnx_models import model, node, saved
from openmps.formats import onnx
from recurrent_layers import GRU, LSTM, TANH, Trained, empty, gru, lstm, matrices, single

Array = np.ndarray
Neuron = mps.MPSCNNNeuronType
STEPS, ROWS, INPUTS, SIZE = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def arrays(operator: str, rng: np.random.Generator, directions: int = 1, peepholes: bool = False) -> dict[str, Array]:
    count = GATES[operator] * SIZE
    shapes = {"W": (count, INPUTS), "R": (count, SIZE), "B": (2 * count,), **({"P": (3 * SIZE,)} if peepholes else {})}
    return {name: rng.normal(0, 0.5, (directions, *shape)).astype(np.float32) for name, shape in shapes.items()}


def file(folder: Path, operator: str, given: dict[str, Array], **attributes: Any) -> Path:
    inputs = "x W R B - - - P" if "P" in given else "x W R B" if "B" in given else "x W R"
    made = node(operator, inputs, "y", hidden_size=SIZE, **attributes)
    return saved(model([made], {"x": ["T", "N", INPUTS]}, **given), folder)


def runtime(path: Path, x: Array) -> list[Array]:
    """What ONNX Runtime gives."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path)).run(None, {"x": x})


def ours(bench: Bench, layer: onnx.RecurrentLayer, x: Array) -> Array:
    """The same of a layer: all directions side by side."""
    made, steps = layer.inference(bench.device), x[::-1] if layer.is_reversed else x
    width = sum(each.output_feature_channels for each in layer.descriptors)
    sources, results, command_buffer = matrices(bench, steps), empty(bench, steps, width), bench.command_buffer()
    if len(layer.descriptors) == 2:
        made.encode_bidirectional_sequence(command_buffer, sources, results)
    else:
        made.encode_sequence(command_buffer, sources, results)
    finish(command_buffer)
    found = np.stack([each.numpy() for each in results])
    return found[::-1] if layer.is_reversed else found


NODES: dict[str, dict[str, Any]] = {
    "LSTM": {}, "GRU": {}, "RNN": {}, "LSTM reverse": {"direction": "reverse"}, "LSTM peepholes": {},
    "GRU bidirectional": {"direction": "bidirectional"},
    "LSTM activations": {"activations": ["HardSigmoid", "Softsign", "Relu"], "activation_alpha": [0.3]},
    "GRU activations": {"activations": ["sigmoid", "ScaledTanh"], "activation_alpha": [1.5], "activation_beta": [0.5]},
    "RNN activations": {"activations": ["Affine"], "activation_alpha": [0.4], "activation_beta": [0.1]},
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_layers_of_files_give_what_the_runtime_gives(
    name: str, bench: Bench, rng: np.random.Generator, tmp_path: Path
) -> None:
    """And back in a file, to the bit."""
    operator, attributes = name.split()[0], NODES[name]
    directions = 2 if "bidirectional" in name else 1
    given = arrays(operator, rng, directions, "peepholes" in name)
    path = file(tmp_path, operator, given, **attributes)
    (layer,) = onnx.recurrent_layers(path)
    assert (layer.name, layer.is_batch_first) == (f"{operator}_y", False)
    x = rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
    expected = runtime(path, x)[0].transpose(0, 2, 1, 3).reshape(STEPS, ROWS, -1)
    found = ours(bench, layer, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    again = tmp_path / "again.onnx"
    made = layer.inference(bench.device)
    onnx.save_recurrent(made, again)
    steps = x[::-1].copy() if layer.is_reversed else x  # a layer alone runs forward, whatever its direction
    written = runtime(again, steps)[0]
    np.testing.assert_allclose(written[::-1] if layer.is_reversed else written, expected, rtol=0, atol=2e-6)
    back = onnx.recurrent_layers(again)
    whole = mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=[d for each in back for d in each.descriptors])
    assert len(back) == directions
    first, second = ([_weights(each) for each in one.descriptors] for one in (layer, _joined(back)))
    for mine, theirs in zip(first, second, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    assert whole.number_of_layers == directions


def _joined(layers: list[onnx.RecurrentLayer]) -> onnx.RecurrentLayer:
    return onnx.RecurrentLayer("", tuple([each for layer in layers for each in layer.descriptors]))


def _weights(descriptor: Any) -> list[Array]:
    """All numbers of a descriptor's sources, with the parameters of their neurons."""
    found: list[Array] = []
    names = [name for name in dir(descriptor) if name.endswith("_weights") and name[0] != "_"]
    for source in (getattr(descriptor, name) for name in names if name != "use_float32_weights"):
        if source is not None:
            neuron, biases = source.descriptor().fused_neuron_descriptor, source.bias_terms()
            found += [np.asarray(source.weights()), np.zeros(0) if biases is None else np.asarray(biases)]
            found.append(np.array([] if neuron is None else [neuron.neuron_type, neuron.a, neuron.b], np.float32))
    return found


@pytest.mark.parametrize(
    ("kind", "options"),
    [("LSTM", {"num_layers": 2}), ("LSTM", {"bidirectional": True, "batch_first": True}), ("LSTM", {"bias": False}),
     ("RNN", {}), ("RNN", {"nonlinearity": "relu"})],
)  # fmt: skip
def test_layers_of_modules(kind: str, options: dict[str, Any], bench: Bench, rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(INPUTS, SIZE, **options)
    layers = onnx.recurrent_layers_of(module)
    assert [each.name for each in layers] == [f"l{index}" for index in range(module.num_layers)]
    assert all(each.is_batch_first == module.batch_first for each in layers)
    x = found = rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
    for layer in layers:
        found = ours(bench, layer, found)
    with torch.no_grad():
        given = torch.from_numpy(x)
        expected = module(given.transpose(0, 1) if module.batch_first else given)[0]
    np.testing.assert_allclose(found, expected.transpose(0, 1) if module.batch_first else expected, rtol=0, atol=2e-6)


def test_a_gru_of_pytorch_resets_behind_the_product(bench: Bench, rng: np.random.Generator, tmp_path: Path) -> None:
    """Which is the same where the candidate's recurrent weights are diagonal and their bias is 0, in files too."""
    module: Any = torch.nn.GRU(INPUTS, SIZE)
    with pytest.raises(mps.MPSOperatorError, match="its reset gate is applied behind the product"):
        onnx.recurrent_layers_of(module)
    with torch.no_grad():
        module.weight_hh_l0[2 * SIZE :] = torch.diag(torch.linspace(-1, 1, SIZE))
        module.bias_hh_l0[2 * SIZE :] = 0
        x = rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
        expected = module(torch.from_numpy(x))[0]
    (layer,) = onnx.recurrent_layers_of(module)
    np.testing.assert_allclose(ours(bench, layer, x), expected, rtol=0, atol=2e-6)
    given = arrays("GRU", rng)
    with pytest.raises(mps.MPSOperatorError, match="its reset gate is applied behind the product"):
        onnx.recurrent_layers(file(tmp_path, "GRU", given, linear_before_reset=1))
    given["R"][0, 2 * SIZE :], given["B"][0, 5 * SIZE :] = np.eye(SIZE), 0
    path = file(tmp_path, "GRU", given, linear_before_reset=1)
    expected = runtime(path, x)[0][:, 0]
    np.testing.assert_allclose(ours(bench, onnx.recurrent_layers(path)[0], x), expected, rtol=0, atol=2e-6)


def test_a_trained_layer_is_written(bench: Bench, rng: np.random.Generator, tmp_path: Path) -> None:
    """With diagonal peepholes and weights of the user's; what was not rounded comes back as it was."""
    gates = {gate: [rng.normal(0, 0.5, shape) for shape in ((SIZE, INPUTS), (SIZE, SIZE), SIZE)] for gate in LSTM}
    peeped = {gate: [*each, rng.normal(size=SIZE)] if gate != "cell" else each for gate, each in gates.items()}
    trained = Trained(bench, lstm(peeped, memory_weights_are_diagonal=True))
    for weight in trained.weights:
        weight.memory().mul_(1.25)
    path = tmp_path / "trained.onnx"
    onnx.save_recurrent(trained.layer, path, trained.weights)
    x = rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
    found, _ = trained.forward([*x])
    np.testing.assert_allclose(runtime(path, x)[0], found, rtol=0, atol=2e-6)
    weights: list[Any] = []
    mps.MPSRNNMatrixTrainingLayer(bench.device, onnx.recurrent_layers(path)[0].descriptors[0], weights)
    for mine, theirs in zip(weights, trained.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize("mode", mps.MPSRNNBidirectionalCombineMode, ids=lambda mode: mode.name)
def test_a_stack_in_both_directions_is_written(
    mode: Any, bench: Bench, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Weights of float16 are written as the layer multiplies with them."""
    sizes = (SIZE, INPUTS), (SIZE, SIZE), SIZE
    first = single(*[rng.normal(0, 0.5, shape) for shape in sizes], TANH, use_float32_weights=False)
    second = gru({gate: [rng.normal(0, 0.5, shape) for shape in ((SIZE, SIZE), *sizes[1:])] for gate in GRU})
    back = lstm({gate: [rng.normal(0, 0.5, shape) for shape in sizes] for gate in LSTM}, layer_sequence_direction=1)
    layer: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, rnn_descriptors=[first, back, second])
    layer.bidirectional_combine_mode = mode
    path, x = tmp_path / "both.onnx", rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
    onnx.save_recurrent(layer, path)
    expected = runtime(path, x)
    results = [empty(bench, x, each.shape[-1]) for each in expected]
    command_buffer = bench.command_buffer()
    layer.encode_bidirectional_sequence(command_buffer, matrices(bench, x), *results)
    finish(command_buffer)
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose([each.numpy() for each in mine], theirs, rtol=0, atol=2e-6)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "clip": ({"clip": 3.0}, "it clips what gates get, by clip"),
    "input_forget": ({"input_forget": 1}, "it couples the input and the forget gate, by input_forget"),
    "activation": ({"activations": ["Sigmoid", "ThresholdedRelu", "Tanh"]}, "its activation ThresholdedRelu is no n"),
    "without alpha": ({"activations": ["Sigmoid", "Tanh", "ScaledTanh"]}, "its activation ScaledTanh has no alpha"),
    "few activations": ({"activations": ["Sigmoid"]}, "its activations are not 3, those of each direction"),
    "direction": ({"direction": "sideways"}, "its direction is 'sideways'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_of_files_are_refused(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    attributes, why = REFUSED[name]
    with pytest.raises(mps.MPSOperatorError, match=why):
        onnx.recurrent_layers(file(tmp_path, "LSTM", arrays("LSTM", rng), **attributes))


def test_arrays_of_files_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    given = arrays("LSTM", rng)
    for name, array, why in (
        ("W", given["W"][:, :-1], r"its W has shape \(1, 15, 3\), and not \(1, 16, 3\)"),
        ("R", given["R"].astype(np.float64), "its W and its R|its inputs"),
        ("B", np.zeros((1, 3), np.float32), r"its B has shape \(1, 3\), and not \(1, 32\)"),
    ):
        with pytest.raises(mps.MPSOperatorError, match=why):
            onnx.recurrent_layers(file(tmp_path, "LSTM", {**given, name: array}))
    inputs: dict[str, Any] = {"x": [STEPS, ROWS, INPUTS], "W": [1, 4 * SIZE, INPUTS]}
    some = {name: array for name, array in given.items() if name != "W"}
    made = model([node("LSTM", "x W R B", "y", hidden_size=SIZE)], inputs, **some)
    with pytest.raises(mps.MPSOperatorError, match="its W is no constant"):
        onnx.recurrent_layers(saved(made, tmp_path))
    for names, more, why in (
        ("x W R B l", {"l": np.array([5, 5], np.int32)}, "its sequence_lens says"),
        ("x W R B - h", {"h": np.ones((1, ROWS, SIZE), np.float32)}, "its initial_h is a constant that is not 0"),
    ):
        nodes = [node("LSTM", names, "y", hidden_size=SIZE)]
        made = model(nodes, {"x": [STEPS, ROWS, INPUTS]}, **given, **more)
        with pytest.raises(mps.MPSOperatorError, match=why):
            onnx.recurrent_layers(saved(made, tmp_path))
    made = model([node("Relu", "x", "y")], {"x": [1, 1]})
    with pytest.raises(mps.MPSFileError, match="must have a recurrent layer"):
        onnx.recurrent_layers(saved(made, tmp_path))


def test_networks_say_what_makes_the_layer(rng: np.random.Generator, tmp_path: Path) -> None:
    with pytest.raises(
        mps.MPSOperatorError, match=r"It is a layer by itself:\s+openmps.formats.onnx.recurrent_layers\("
    ):
        onnx.network(file(tmp_path, "GRU", arrays("GRU", rng)))
    with pytest.raises(mps.MPSOperatorError, match="recurrent_layers_of"):
        onnx.from_torch(torch.nn.LSTM(3, 4), torch.zeros(5, 2, 3))


def _peeped() -> Any:
    return {gate: (*each, 0.5) for gate, each in LSTM.items()}


UNWRITTEN: dict[str, tuple[Any, str]] = {
    "unit": (lambda: single(1, 1, 0, use_layer_input_unit_transform_mode=True), "its gates get the source itself"),
    "matrix peepholes": (lambda: lstm({"output": (1, 1, 0, 1)}), "differ|its peepholes are matrices"),
    "cell peephole": (lambda: lstm(_peeped(), memory_weights_are_diagonal=True), "its cell gate has a peephole"),
    "minimal": (lambda: gru({**GRU, "output": (1, 1, 0, 1)}), "its output gate has weights of the input gate"),
    "p-norm": (lambda: gru(GRU, gate_pnorm_value=2.0), "its p-norm is not 1"),
    "flipped": (lambda: gru(GRU, flip_output_gates=True), "its output gates are flipped"),
    "neuron": (lambda: single(1, 1, 0, Neuron.GELU), "its neuron GELU is no activation of ONNX"),
    "neurons": (lambda: lstm({**LSTM, "forget": (1, 1, 0)}), ""),
}


@in_one_test
@pytest.mark.parametrize("name", UNWRITTEN)
def test_layers_that_onnx_has_no_word_for(name: str, bench: Bench, tmp_path: Path) -> None:
    make, why = UNWRITTEN[name]
    descriptor = make()
    if name == "neurons":
        descriptor.forget_gate_input_weights.descriptor().fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(TANH)
        why = "the neurons of its input, forget and output gate differ"
    layer = mps.MPSRNNMatrixInferenceLayer(bench.device, descriptor)
    with pytest.raises(mps.MPSOperatorError, match=why):
        onnx.save_recurrent(layer, tmp_path / "layer.onnx")
    assert not (tmp_path / "layer.onnx").exists()


def test_wrong_arguments(bench: Bench, tmp_path: Path) -> None:
    trained = Trained(bench, lstm(LSTM))
    layer: Any = mps.MPSRNNMatrixInferenceLayer(bench.device, lstm(LSTM))
    with pytest.raises(mps.MPSTypeError, match="module must be a torch.nn.LSTM, GRU or RNN, got Linear"):
        onnx.recurrent_layers_of(torch.nn.Linear(1, 1))
    with pytest.raises(mps.MPSArgumentError, match="must not project its outputs, got proj_size=2"):
        onnx.recurrent_layers_of(torch.nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(mps.MPSArgumentError, match="weight_ih_l0 must have weights of float32 or float16"):
        onnx.recurrent_layers_of(torch.nn.LSTM(3, 4).double())
    with pytest.raises(mps.MPSTypeError, match="weights are needed: a training layer keeps none"):
        onnx.save_recurrent(trained.layer, tmp_path / "x.onnx")
    with pytest.raises(mps.MPSTypeError, match="weights belong to a training layer"):
        onnx.save_recurrent(layer, tmp_path / "x.onnx", trained.weights)
    with pytest.raises(mps.MPSTypeError, match="layer must be an MPSRNNMatrixInferenceLayer or"):
        onnx.save_recurrent(3, tmp_path / "x.onnx")  # type: ignore[arg-type]


# --- fully connected layers over sequences ----------------------------------------------------------------------------


def _encoded(bench: Bench, layers: list[Any], x: Array) -> Array:
    """What recurrent and fully connected layers give, one behind the other: ``[steps, rows, columns]``."""
    steps, rows, _ = x.shape
    for layer in layers:
        if isinstance(layer, onnx.RecurrentLayer):
            x = ours(bench, layer, x)
            continue
        source = mps.MPSMatrix.from_numpy(bench.device, x.reshape(steps * rows, -1), copy=True)
        (weights, biases), command_buffer = layer.operands(bench.device), bench.command_buffer()
        result = mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(steps * rows, weights.columns))
        mps.MPSMatrixFullyConnected(bench.device).encode(command_buffer, source, weights, biases, result)
        finish(command_buffer)
        x = result.numpy().reshape(steps, rows, -1)
    return x


class _Letters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(INPUTS, 6, bias=False), torch.nn.Dropout(0.5))
        self.lstm = torch.nn.LSTM(6, SIZE)
        self.head = torch.nn.Linear(SIZE, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.first(x))[0])


def test_linear_layers_around_a_recurrent_one(bench: Bench, rng: np.random.Generator, tmp_path: Path) -> None:
    """Out of PyTorch, to a file that ONNX Runtime computes, and back."""
    module, x = _Letters().eval(), rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)
    layers = onnx.sequence_layers_of(module)
    assert [each.name for each in layers] == ["first.0", "l0", "head"]
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(_encoded(bench, layers, x), expected, rtol=0, atol=1e-5)
    first, recurrent, head = layers
    assert isinstance(recurrent, onnx.RecurrentLayer) and isinstance(head, onnx.DenseLayer)
    path = tmp_path / "letters.onnx"
    onnx.save_recurrent(recurrent.inference(bench.device), path, dense=[head])
    inner = _encoded(bench, [first], x)
    np.testing.assert_allclose(runtime(path, inner)[0], expected, rtol=0, atol=1e-5)
    again = onnx.sequence_layers(path)
    assert [type(each) for each in again] == [onnx.RecurrentLayer, onnx.DenseLayer]
    np.testing.assert_array_equal(_encoded(bench, again, inner), _encoded(bench, [recurrent, head], inner))


def test_products_of_files(bench: Bench, rng: np.random.Generator, tmp_path: Path) -> None:
    """Gemm with factors, and a MatMul by a matrix that the file transposes."""
    A, B, C, D = (rng.normal(size=shape).astype(np.float32) for shape in ((6, INPUTS), (6, 4), (5, 4), (1, 5)))
    nodes = [
        node("Gemm", "x A", "a", alpha=0.5, transB=1), node("Gemm", "a B c", "b", beta=2.0),
        node("Transpose", "C", "turned"), node("MatMul", "b turned", "product"), node("Add", "D product", "y"),
    ]  # fmt: skip
    made = model(nodes, {"x": ["N", INPUTS]}, A=A, B=B, c=np.float32(0.25), C=C, D=D)
    path, x = saved(made, tmp_path), rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    layers = onnx.sequence_layers(path)
    assert [each.biases is None for each in layers if isinstance(each, onnx.DenseLayer)] == [True, False, False]
    np.testing.assert_allclose(_encoded(bench, layers, x[None])[0], runtime(path, x)[0], rtol=1e-5, atol=1e-5)


NOT_DENSE: dict[str, tuple[list[Any], str]] = {
    "between": ([node("MatMul", "x A", "a"), node("Relu", "a", "y")], "neither a layer of a sequence"),
    "two values": ([node("MatMul", "x x", "y")], "does not multiply a value by a constant matrix"),
    "left": ([node("MatMul", "A x", "y")], "does not multiply a value by a constant matrix"),
    "three axes": ([node("MatMul", "x cube", "y")], r"its matrix has shape \(1, 3, 3\)"),
    "transA": ([node("Gemm", "x A", "y", transA=1)], "transposes its first factor, by transA"),
    "computed bias": ([node("Gemm", "x A x", "y")], "its C is no constant"),
    "bias": ([node("Gemm", "x A column", "y")], r"its bias has shape \(3, 1\)"),
    "two readers": ([node("MatMul", "x A", "a"), node("Add", "a row", "b"), node("Add", "b a", "y")], "Add"),
}


@in_one_test
@pytest.mark.parametrize("name", NOT_DENSE)
def test_products_of_files_are_refused(name: str, tmp_path: Path) -> None:
    nodes, why = NOT_DENSE[name]
    ones = np.ones((3, 3), np.float32)
    given = {"A": ones, "cube": ones[None], "column": ones[:, :1], "row": ones[0]}
    with pytest.raises(mps.MPSOperatorError, match=why):
        onnx.sequence_layers(saved(model(nodes, {"x": ["N", 3]}, **given), tmp_path))


def test_fully_connected_layers_that_do_not_fit(bench: Bench, tmp_path: Path) -> None:
    path, (head,) = tmp_path / "x.onnx", onnx.sequence_layers_of(torch.nn.Linear(3, 2))
    layer = mps.MPSRNNMatrixInferenceLayer(bench.device, lstm(LSTM))
    both: Any = onnx.recurrent_layers_of(torch.nn.LSTM(3, 3, bidirectional=True))[0].inference(bench.device)
    both.bidirectional_combine_mode = mps.MPSRNNBidirectionalCombineMode.NONE
    with pytest.raises(mps.MPSArgumentError, match=r"dense\[0\] must take 1 numbers, what comes before, got 3"):
        onnx.save_recurrent(layer, path, dense=[head])
    with pytest.raises(mps.MPSArgumentError, match="dense must follow one output, got y_forward and y_backward"):
        onnx.save_recurrent(both, path, dense=[head])
    with pytest.raises(mps.MPSTypeError, match=r"dense\[0\] must be a DenseLayer"):
        onnx.save_recurrent(layer, path, dense=[3])  # type: ignore[list-item]
    with pytest.raises(mps.MPSTypeError, match="1 must have recurrent layers and torch.nn.Linear alone, got ReLU"):
        onnx.sequence_layers_of(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
    with pytest.raises(mps.MPSArgumentError, match="head must have weights of float32 or float16"):
        onnx.sequence_layers_of(torch.nn.ModuleDict({"head": torch.nn.Linear(3, 2).double()}))
    with pytest.raises(mps.MPSFileError, match="must have a recurrent layer, a MatMul or a Gemm"):
        onnx.sequence_layers(saved(model([node("Identity", "x", "y")], {"x": [1, 1]}), tmp_path))
    assert not path.exists()
