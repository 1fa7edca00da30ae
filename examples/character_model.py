"""A model of characters: an LSTM reads a text letter by letter, learns to say what comes next, and writes some itself.

What it shows:

- `MPSRNNMatrixTrainingLayer` over steps that follow one another in one buffer, which are read as they lie;
- one product for the outputs of all steps, `MPSMatrixFullyConnected`, and the gradient of its soft-max, `MPSMatrixSum`;
- trained weights in an `MPSRNNMatrixInferenceLayer`, whose state goes from one letter to the next.

Usage, in a clone of the repository::

    python examples/character_model.py [--device auto] [--steps 250] [--letters 200]

The text is made up of simple sentences.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
SENTENCE = (
    ("the", "a"), ("small", "old", "red", "quiet"), ("cat", "dog", "bird", "child"), ("sees", "likes", "follows"),
    ("the", "a"), ("house", "tree", "river", "boat"),
)  # fmt: skip
LETTERS = sorted({letter for words in SENTENCE for word in words for letter in word} | set(" ."))
GATES = ("input", "forget", "cell", "output")
UNITS, LENGTH, BATCH, BYTES = 48, 24, 16, 4
Neuron = mps.MPSCNNNeuronType


def text(random: np.random.Generator, sentences: int) -> str:
    """Sentences, one behind the other."""
    return " ".join(" ".join(random.choice(words) for words in SENTENCE) + "." for _ in range(sentences)) + " "


def one_hot(letters: str) -> Array:
    """A row a letter."""
    return np.eye(len(LETTERS), dtype=np.float32)[[LETTERS.index(each) for each in letters]]


def source(weights: Array, bias: Array, neuron: Neuron | None = None) -> mps.ArrayConvolutionDataSource:
    """Weights of a gate, an output channel a row."""
    outputs, inputs = weights.shape
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, inputs, outputs)
    if neuron is not None:
        descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(neuron)
    return mps.ArrayConvolutionDataSource(descriptor, weights.reshape(outputs, 1, 1, inputs), bias)


def lstm(weights: Sequence[tuple[Array, Array, Array]]) -> mps.MPSLSTMDescriptor:
    """A layer of input weights, recurrent weights and biases, a gate each."""
    made = mps.MPSLSTMDescriptor(len(LETTERS), UNITS)
    made.use_float32_weights = True
    for gate, (inputs, states, bias) in zip(GATES, weights, strict=True):
        neuron = Neuron.TANH if gate == "cell" else Neuron.SIGMOID
        setattr(made, f"{gate}_gate_input_weights", source(inputs, bias.reshape(-1), neuron))
        setattr(made, f"{gate}_gate_recurrent_weights", source(states, np.zeros(UNITS, np.float32)))
    return made


class Steps:
    """A matrix of the rows of all steps, and a matrix a step in its buffer."""

    def __init__(self, device: mps.MTLDevice, columns: int) -> None:
        self.whole = mps.MPSMatrix(device, mps.MPSMatrixDescriptor(LENGTH * BATCH, columns))
        each = mps.MPSMatrixDescriptor(BATCH, columns)
        size = BATCH * columns * BYTES
        self.each = [mps.MPSMatrix(self.whole.data, step * size, each) for step in range(LENGTH)]

    def fill(self, rows: Array) -> None:
        """Write ``[steps, rows, columns]``."""
        self.whole.data.contents().view(np.float32)[:] = rows.ravel()


class Adam:
    """Adam for a matrix of weights, over vectors that see the same buffers."""

    def __init__(self, weights: mps.MPSMatrix, gradient: mps.MPSMatrix) -> None:
        self._kernel = mps.MPSNNOptimizerAdam(weights.device, 2e-2)
        vector = mps.MPSVectorDescriptor(weights.rows * weights.columns)
        self._values, self._gradient = (mps.MPSVector(each.data, vector) for each in (weights, gradient))
        self._kept = [mps.MPSVector(weights.device, vector) for _ in range(2)]

    def encode(self, command_buffer: mps.MTLCommandBuffer) -> None:
        """Record a step."""
        self._kernel.encode(
            command_buffer, input_gradient_vector=self._gradient, input_values_vector=self._values,
            input_momentum_vector=self._kept[0], input_velocity_vector=self._kept[1], result_values_vector=self._values,
        )  # fmt: skip


class Model:
    """An LSTM over letters, and a layer that says how likely each letter is next."""

    def __init__(self, device: mps.MTLDevice, random: np.random.Generator) -> None:
        self.device, kinds = device, len(LETTERS)

        def drawn(rows: int, columns: int) -> Array:
            return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

        zeros = np.zeros(UNITS, np.float32)
        self.weights: list[mps.MPSMatrix] = []
        gates = [(drawn(UNITS, kinds), drawn(UNITS, UNITS), zeros) for _ in GATES]
        self.layer = mps.MPSRNNMatrixTrainingLayer(device, lstm(gates), self.weights)
        self.gradients: list[mps.MPSMatrix] = []
        self.layer.create_weight_gradient_matrices(self.gradients)
        self.matrix = mps.MPSMatrix.from_numpy(device, drawn(kinds, UNITS).T.copy(), copy=True)
        self.bias, self.of_bias = (mps.MPSMatrix(device, mps.MPSMatrixDescriptor(1, kinds)) for _ in range(2))
        self.of_matrix = mps.MPSMatrix(device, mps.MPSMatrixDescriptor(UNITS, kinds))
        row = mps.MPSVectorDescriptor(kinds)
        self.bias_row, self.of_bias_row = (mps.MPSVector(each.data, row) for each in (self.bias, self.of_bias))
        self.connected, self.soft_max = mps.MPSMatrixFullyConnected(device), mps.MPSMatrixSoftMax(device)
        self.of_connected = mps.MPSMatrixFullyConnectedGradient(device)
        self.sum = mps.MPSMatrixSum(device, 2, LENGTH * BATCH, kinds, False)
        self.signs = mps.MPSVector.from_numpy(device, np.array([1, -1], np.float32) / (LENGTH * BATCH))
        pairs = [*zip(self.weights, self.gradients, strict=True)]
        pairs += [(self.matrix, self.of_matrix), (self.bias, self.of_bias)]
        self.adams = [Adam(*pair) for pair in pairs]
        self.x, self.of_x, self.likely, self.flow, self.next = (Steps(device, kinds) for _ in range(5))
        self.y, self.of_y = (Steps(device, UNITS) for _ in range(2))

    def train(self, command_buffer: mps.MTLCommandBuffer) -> None:
        """Record one step on the letters in `x`, behind each of which comes that in `next`."""
        states: list[mps.MPSRNNMatrixTrainingState] = []
        self.layer.encode_forward_sequence(command_buffer, self.x.each, self.y.each, states, self.weights)
        self.connected.encode(command_buffer, self.y.whole, self.matrix, self.bias_row, self.likely.whole)
        self.soft_max.encode(command_buffer, self.likely.whole, self.likely.whole)
        # The gradient of the mean cross-entropy of a soft-max: what it gives, less what came.
        self.sum.encode(command_buffer, [self.likely.whole, self.next.whole], self.flow.whole, self.signs)
        self.of_connected.encode_gradient_for_data(command_buffer, self.flow.whole, self.matrix, self.of_y.whole)
        self.of_connected.encode_gradient_for_weights_and_bias(
            command_buffer, self.flow.whole, self.y.whole, self.of_matrix, self.of_bias_row
        )
        self.layer.encode_gradient_sequence(
            command_buffer, self.x.each, self.of_y.each, self.of_x.each, self.gradients, states, self.weights
        )
        for each in self.adams:
            each.encode(command_buffer)

    def loss(self) -> float:
        """The mean cross-entropy of the letters of the last step, in nats."""
        return float(-np.log((self.likely.whole.numpy() * self.next.whole.numpy()).sum(1)).mean())

    def write(self, queue: mps.MTLCommandQueue, random: np.random.Generator, letters: int) -> str:
        """So many letters, each drawn as it is likely behind those before."""
        # The framework's order: of each gate the weights of inputs, of states, the biases.
        arrays = [each.numpy() for each in self.weights]
        gates = [(arrays[at], arrays[at + 1], arrays[at + 2]) for at in range(0, len(arrays), 3)]
        layer = mps.MPSRNNMatrixInferenceLayer(self.device, lstm(gates))
        out, likely = (mps.MPSMatrix(self.device, mps.MPSMatrixDescriptor(1, size)) for size in (UNITS, len(LETTERS)))
        state, written = None, " "
        for _ in range(letters):
            letter = mps.MPSMatrix.from_numpy(self.device, one_hot(written[-1]))
            states: list[mps.MPSRNNRecurrentMatrixState] = []
            command_buffer = queue.command_buffer()
            layer.encode_sequence(command_buffer, [letter], [out], state, states)
            self.connected.encode(command_buffer, out, self.matrix, self.bias_row, likely)
            self.soft_max.encode(command_buffer, likely, likely)
            command_buffer.commit()
            chances = likely.numpy()[0].astype(np.float64)
            written += str(random.choice(LETTERS, p=chances / chances.sum()))
            state = states[0]
        return written[1:]


def main(arguments: Sequence[str] | None = None) -> tuple[float, str]:
    """Train; the last loss, and what the model writes."""
    parser = argparse.ArgumentParser(description="A model of characters: an LSTM that learns to write")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--letters", type=int, default=200, help="how many it writes")
    given = parser.parse_args(arguments)
    device, random = mps.mtl_device(given.device), np.random.default_rng(0)
    read, queue, model = text(random, 300), device.new_command_queue(), Model(device, random)
    rows = one_hot(read)
    loss = float("nan")
    for step in range(given.steps):
        # A row of a step's matrix is a sequence; letter t of all of them is step t.
        starts = random.integers(0, len(read) - LENGTH, BATCH)
        places = starts + np.arange(LENGTH + 1)[:, None]
        model.x.fill(rows[places[:-1]])
        model.next.fill(rows[places[1:]])
        command_buffer = queue.command_buffer()
        model.train(command_buffer)
        command_buffer.commit()
        # The next letters are written where this step reads its own.
        command_buffer.wait_until_completed()
        if step % 50 == 0 or step == given.steps - 1:
            loss = model.loss()
            print(f"step {step:4}: loss {loss:.3f}")
    written = model.write(queue, random, given.letters)
    print(written)
    return loss, written


if __name__ == "__main__":
    main()
