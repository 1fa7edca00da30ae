"""Descriptors, layers and runs of recurrent layers for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench, finish

Array = np.ndarray
Neuron = mps.MPSCNNNeuronType
SIGMOID, TANH = Neuron.SIGMOID, Neuron.TANH


def source(weights: Any, biases: Any = None, neuron: mps.MPSCNNNeuronType | None = None) -> Any:
    """A data source of a matrix of weights, an output channel a row; or of kernels."""
    array = np.atleast_2d(np.array(weights, np.float32))
    if array.ndim == 2:
        array = array[:, None, None]
    outputs, height, width, inputs = array.shape
    descriptor = mps.MPSCNNConvolutionDescriptor(width, height, inputs, outputs)
    if neuron is not None:
        descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(neuron)
    terms = None if biases is None else np.atleast_1d(np.array(biases, np.float32))
    return mps.ArrayConvolutionDataSource(descriptor, array, terms)


def _sizes(weights: Any) -> tuple[int, int]:
    """Channels of inputs and outputs."""
    shape = np.atleast_2d(weights).shape
    return shape[-1], shape[0]


def single(W: Any, U: Any, b: Any, neuron: Any = TANH, **options: Any) -> mps.MPSRNNSingleGateDescriptor:
    made = mps.MPSRNNSingleGateDescriptor(*_sizes(W))
    made.input_weights, made.recurrent_weights = source(W, b, neuron), None if U is None else source(U)
    return _with(made, options)


_NEURONS = {"cell": TANH, "output": TANH}


def lstm(gates: Mapping[str, Any], **options: Any) -> mps.MPSLSTMDescriptor:
    """``gates`` gives W, U, b, and V where there is one, of input, forget, cell and output."""
    made = mps.MPSLSTMDescriptor(*_sizes(gates["output"][0]))
    for gate, (W, U, b, *V) in gates.items():
        setattr(made, f"{gate}_gate_input_weights", source(W, b, TANH if gate == "cell" else SIGMOID))
        # What other sources say of a neuron is not read.
        setattr(made, f"{gate}_gate_recurrent_weights", source(U, None, TANH))
        if V:
            setattr(made, f"{gate}_gate_memory_weights", source(V[0]))
    return _with(made, options)


def gru(gates: Mapping[str, Any], **options: Any) -> mps.MPSGRUDescriptor:
    """``gates`` gives W, U and b of input, recurrent and output, of the last V, too."""
    made = mps.MPSGRUDescriptor(*_sizes(gates["output"][0]))
    for gate, (W, U, b, *V) in gates.items():
        setattr(made, f"{gate}_gate_input_weights", source(W, b, TANH if gate == "output" else SIGMOID))
        setattr(made, f"{gate}_gate_recurrent_weights", source(U))
        if V:
            made.output_gate_input_gate_weights = source(V[0])
    return _with(made, options)


def _with(descriptor: Any, options: Mapping[str, Any]) -> Any:
    for name, value in {"use_float32_weights": True, **options}.items():
        setattr(descriptor, name, value)
    return descriptor


LSTM = {"input": (0.5, 0.1, 0), "forget": (0.4, -0.2, 1), "cell": (1, 0.3, 0), "output": (-0.3, 0.2, 0.1)}
PEEPHOLES = {"input": 0.2, "forget": -0.1, "cell": 0.05, "output": 0.4}
GRU = {"input": (0.5, 0.1, 0.2), "recurrent": (0.4, -0.2, 0), "output": (1, 0.6, -0.1)}
SINGLE: Any = ([[0.5, -0.3], [0.2, 0.8]], [[0.1, 0.4], [-0.5, 0.3]], [0.1, -0.2])
SHRINKING = [[[1.0, 0], [0, 1], [1, 1]], [[2, -1], [0.5, 0.5]], [[0, 1.0]]]
ONE = [[[1.0]], [[-0.5]], [[2.0]]]
"""The sequence of the examples of one unit."""
ONE_GRADIENT = [[[1.0]], [[0.0]], [[2.0]]]


def matrices(bench: Bench, steps: Sequence[Any], data_type: Any = np.float32) -> list[Any]:
    return [mps.MPSMatrix.from_numpy(bench.device, np.array(each, data_type), copy=True) for each in steps]


def empty(bench: Bench, steps: Sequence[Any], columns: int) -> list[Any]:
    return matrices(bench, [np.zeros((len(each), columns)) for each in steps])


def run(bench: Bench, layer: Any, steps: Sequence[Any], state: Any = None, out: list[Any] | None = None) -> list[Array]:
    """What a layer gives for a sequence."""
    results = empty(bench, steps, layer.output_feature_channels)
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, matrices(bench, steps), results, state, out)
    finish(command_buffer)
    return [each.numpy() for each in results]


class Trained:
    """A training layer, its weights, and the gradients of one sequence."""

    def __init__(self, bench: Bench, descriptor: Any) -> None:
        self.bench, self.weights = bench, list[Any]()
        self.layer: Any = mps.MPSRNNMatrixTrainingLayer(bench.device, descriptor, self.weights)
        self.gradients: list[Any] = []
        self.layer.create_weight_gradient_matrices(self.gradients, mps.MPSDataType.FLOAT32)

    def forward(self, steps: Sequence[Any], **options: Any) -> tuple[list[Array], list[Any]]:
        """Results and training states."""
        states: list[Any] = []
        results = empty(self.bench, steps, self.layer.output_feature_channels)
        command_buffer = self.bench.command_buffer()
        self.layer.encode_forward_sequence(
            command_buffer, matrices(self.bench, steps), results, states, self.weights, **options
        )
        finish(command_buffer)
        return [each.numpy() for each in results], states

    def backward(
        self, steps: Sequence[Any], of_results: Sequence[Any], states: list[Any], **options: Any
    ) -> list[Array]:
        """Gradients with respect to the sources."""
        found = empty(self.bench, steps, self.layer.input_feature_channels)
        command_buffer = self.bench.command_buffer()
        self.layer.encode_gradient_sequence(
            command_buffer, matrices(self.bench, steps), matrices(self.bench, of_results), found, self.gradients,
            states, self.weights, **options,
        )  # fmt: skip
        finish(command_buffer)
        return [each.numpy() for each in found]


def _drawn(gates: Sequence[str], inputs: int, outputs: int, taps: tuple[int, ...] = ()) -> dict[str, Any]:
    """Numbers of gates, the same in every call; kernels of so many taps."""
    random = np.random.default_rng(len(gates))
    shapes = (outputs, *taps, inputs), (outputs, *taps, outputs), (outputs,)
    return {gate: tuple([random.normal(size=shape) * 0.5 for shape in shapes]) for gate in gates}


def inferring(device: mps.MTLDevice) -> mps.MPSRNNMatrixInferenceLayer:
    """A stack of all kinds of layers, of weights that are float16 and float32."""
    memory, units = _drawn([*LSTM], 3, 4), _drawn([*GRU], 4, 5)
    peeped = {gate: (*each, 0.3 * each[2]) for gate, each in memory.items()}
    minimal = {**units, "output": (*units["output"], 0.2 * units["output"][1])}
    return mps.MPSRNNMatrixInferenceLayer(device, rnn_descriptors=[
        lstm(peeped, memory_weights_are_diagonal=True, cell_to_output_neuron_param_b=0.75),
        gru(minimal, gate_pnorm_value=1.5, flip_output_gates=True, use_float32_weights=False),
        single(*_drawn(["only"], 5, 5)["only"], use_layer_input_unit_transform_mode=True),
    ])  # fmt: skip


def inferring_images(device: mps.MTLDevice) -> mps.MPSRNNImageInferenceLayer:
    """The same of layers over images."""
    memory, units = _drawn([*LSTM], 3, 4, (3, 2)), _drawn([*GRU], 4, 2, (2, 3))
    peeped = {gate: (*each, 0.3 * each[2]) for gate, each in memory.items()}
    minimal = {**units, "output": (*units["output"], 0.2 * units["output"][1])}
    return mps.MPSRNNImageInferenceLayer(device, rnn_descriptors=[
        lstm(peeped, memory_weights_are_diagonal=True, cell_to_output_neuron_param_b=0.75),
        gru(minimal, gate_pnorm_value=1.5, flip_output_gates=True),
        single(*_drawn(["only"], 2, 2, (1, 1))["only"], use_layer_input_unit_transform_mode=True),
    ])  # fmt: skip


def training(device: mps.MTLDevice) -> mps.MPSRNNMatrixTrainingLayer:
    """A layer of long short-term memory with diagonal peepholes."""
    gates = {gate: (*each, each[2]) for gate, each in _drawn([*LSTM], 3, 4).items()}
    return mps.MPSRNNMatrixTrainingLayer(device, lstm(gates, memory_weights_are_diagonal=True), [])


class Updates:
    """An optimizer for each weight matrix, over vectors that see its buffer; Adam unless said."""

    def __init__(
        self,
        bench: Bench,
        trained: Trained,
        new: Callable[[mps.MTLDevice], Any] = lambda device: mps.MPSNNOptimizerAdam(device, 1e-2),
        kept: Sequence[str] = ("momentum", "velocity"),
    ) -> None:
        def numbers(matrix: Any) -> Any:
            return mps.MPSVector(matrix.data, mps.MPSVectorDescriptor(matrix.rows * matrix.columns))

        self.steps: list[tuple[Any, dict[str, Any]]] = []
        for gradient, weight in zip(map(numbers, trained.gradients), map(numbers, trained.weights), strict=True):
            zeros = {
                f"input_{each}_vector": mps.MPSVector(bench.device, mps.MPSVectorDescriptor(weight.length))
                for each in kept
            }
            given = {"input_gradient_vector": gradient, "input_values_vector": weight, "result_values_vector": weight}
            self.steps.append((new(bench.device), given | zeros))

    def encode(self, command_buffer: Any) -> None:
        for optimizer, given in self.steps:
            optimizer.encode(command_buffer, **given)
