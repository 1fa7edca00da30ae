"""What a phone's accelerometer says somebody does: a convolution over time, then an LSTM, trained together.

What it shows:

- `MPSImageCopyToMatrix` and `MPSMatrixCopyToImage`: layers over images and over matrices in one network;
- `MPSRNNMatrixTrainingLayer`, whose steps lie in one matrix and are told by their offsets in bytes;
- a classifier on matrices: `MPSMatrixFullyConnected`, `MPSMatrixSoftMax`, and their gradients by `MPSMatrixSum`;
- Adam for weights that are matrices, and for those of a convolution.

Usage, in a clone of the repository::

    python examples/activity_classifier.py [--device auto] [--steps 100] [--batch 32]

The recordings are made up: resting, walking and running, in any position of the phone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
Neuron = mps.MPSCNNNeuronType
HWC = mps.MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS
KINDS, SAMPLES, AXES, CHANNELS, UNITS = ("resting", "walking", "running"), 32, 3, 8, 16
BYTES = 4


def source(outputs: int, inputs: int, seed: int, neuron: Neuron | None = None, width: int = 1) -> Any:
    """Weights of a gate or of the convolution, small and drawn."""
    descriptor = mps.MPSCNNConvolutionDescriptor(width, 1, inputs, outputs)
    if neuron is not None:
        descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(neuron)
    limit = (3 / (inputs * width)) ** 0.5
    return mps.ArrayConvolutionDataSource.uniform(descriptor, limit=limit, bias=0.0, seed=seed)


class Adam:
    """Adam for a matrix of weights, over vectors that see the same buffers."""

    def __init__(self, weights: mps.MPSMatrix, gradient: mps.MPSMatrix) -> None:
        count = weights.rows * weights.columns
        self._kernel = mps.MPSNNOptimizerAdam(weights.device, 1e-2)
        vector = mps.MPSVectorDescriptor(count)
        self._values, self._gradient = (mps.MPSVector(each.data, vector) for each in (weights, gradient))
        self._kept = [mps.MPSVector(weights.device, vector) for _ in range(2)]

    def encode(self, command_buffer: mps.MTLCommandBuffer) -> None:
        """Record a step."""
        self._kernel.encode(
            command_buffer, input_gradient_vector=self._gradient, input_values_vector=self._values,
            input_momentum_vector=self._kept[0], input_velocity_vector=self._kept[1], result_values_vector=self._values,
        )  # fmt: skip


class Steps:
    """A matrix of a recording a row, seen as a matrix of a sample a row, at the byte where each sample begins."""

    def __init__(self, device: mps.MTLDevice, batch: int, channels: int) -> None:
        row = SAMPLES * channels * BYTES
        self.whole = mps.MPSMatrix(device, mps.MPSMatrixDescriptor(batch, SAMPLES * channels))
        self.step = mps.MPSMatrix(self.whole.data, mps.MPSMatrixDescriptor(batch, channels, row))
        self.offsets = [index * channels * BYTES for index in range(SAMPLES)]
        self.last = mps.MPSMatrix(self.whole.data, self.offsets[-1], mps.MPSMatrixDescriptor(batch, channels, row))

    @property
    def steps(self) -> list[mps.MPSMatrix]:
        """The matrix of a sample, once for each."""
        return [self.step] * SAMPLES


class Classifier:
    """Convolution of 5 samples to 8 channels, ReLU, an LSTM of 16 units, and a layer of its last output."""

    def __init__(self, device: mps.MTLDevice, batch: int) -> None:
        self.device = device
        weights = source(CHANNELS, AXES, 1, width=5)
        weights.descriptor().fused_neuron_descriptor = None
        self.convolution = mps.MPSCNNConvolution(device, weights)
        self.of_convolution = mps.MPSCNNConvolutionGradient(device, weights)
        self.of_convolution.gradient_option = mps.MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
        relu = mps.MPSNNNeuronDescriptor(Neuron.RELU)
        self.relu, self.of_relu = mps.MPSCNNNeuron(device, relu), mps.MPSCNNNeuronGradient(device, relu)
        self.kernels = mps.MPSCNNConvolutionWeightsAndBiasesState(
            weights=device.new_buffer(data=weights.weights()), biases=device.new_buffer(length=CHANNELS * BYTES)
        )
        self.adam = mps.MPSNNOptimizerAdam(device, 1e-2)
        sizes = CHANNELS * 5 * AXES, CHANNELS
        self.momenta, self.velocities = (
            [mps.MPSVector(device, mps.MPSVectorDescriptor(size)) for size in sizes] for _ in range(2)
        )
        lstm = mps.MPSLSTMDescriptor(CHANNELS, UNITS)
        lstm.use_float32_weights = True
        for seed, gate in enumerate(("input", "forget", "cell", "output")):
            neuron = Neuron.TANH if gate == "cell" else Neuron.SIGMOID
            setattr(lstm, f"{gate}_gate_input_weights", source(UNITS, CHANNELS, 10 + seed, neuron))
            setattr(lstm, f"{gate}_gate_recurrent_weights", source(UNITS, UNITS, 20 + seed))
        self.weights: list[mps.MPSMatrix] = []
        self.layer = mps.MPSRNNMatrixTrainingLayer(device, lstm, self.weights)
        gradients: list[mps.MPSMatrix] = []
        self.layer.create_weight_gradient_matrices(gradients, mps.MPSDataType.FLOAT32)
        self.gradients = gradients
        self._dense(batch)
        self.x, self.y = (Steps(device, batch, channels) for channels in (CHANNELS, UNITS))
        self.dx, self.dy = (Steps(device, batch, channels) for channels in (CHANNELS, UNITS))
        self.to_matrix, self.to_images = mps.MPSImageCopyToMatrix(device, HWC), mps.MPSMatrixCopyToImage(device, HWC)

    def _dense(self, batch: int) -> None:
        """The last layer, of a matrix [units, kinds] and a row of biases, and what it gives."""
        device, kinds = self.device, len(KINDS)
        drawn = np.random.default_rng(2).uniform(-0.3, 0.3, (UNITS, kinds)).astype(np.float32)
        self.matrix = mps.MPSMatrix.from_numpy(device, drawn, copy=True)
        self.bias = mps.MPSMatrix(device, mps.MPSMatrixDescriptor(1, kinds))
        shapes = (UNITS, kinds), (1, kinds), (batch, kinds), (batch, kinds), (batch, kinds)
        made = [mps.MPSMatrix(device, mps.MPSMatrixDescriptor(*shape)) for shape in shapes]
        self.of_matrix, self.of_bias, self.logits, self.likely, self.flow = made
        row = mps.MPSVectorDescriptor(kinds)
        self.bias_row, self.of_bias_row = (mps.MPSVector(each.data, row) for each in (self.bias, self.of_bias))
        self.connected = mps.MPSMatrixFullyConnected(device)
        self.of_connected = mps.MPSMatrixFullyConnectedGradient(device)
        self.soft_max, self.sum = mps.MPSMatrixSoftMax(device), mps.MPSMatrixSum(device, 2, batch, kinds, False)
        self.signs = mps.MPSVector.from_numpy(device, np.array([1, -1], np.float32))
        pairs = [*zip(self.weights, self.gradients, strict=True), (self.matrix, self.of_matrix)]
        self.adams = [Adam(*pair) for pair in (*pairs, (self.bias, self.of_bias))]

    def forward(self, command_buffer: mps.MTLCommandBuffer, images: mps.MPSImageBatch) -> tuple[Any, ...]:
        """Record how likely each kind is; what the gradients need of it."""
        hidden, convolved = self.convolution.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        mps.MPSImageBatchIncrementReadCount(hidden, 1)
        active, rectified = self.relu.encode_batch(command_buffer, hidden, destination_state_is_temporary=False)
        self.to_matrix.encode_batch(command_buffer, active, self.x.whole)
        states: list[mps.MPSRNNMatrixTrainingState] = []
        self.layer.encode_forward_sequence(
            command_buffer, self.x.steps, self.y.steps, states, self.weights, source_offsets=self.x.offsets,
            destination_offsets=self.y.offsets,
        )  # fmt: skip
        self.connected.encode(command_buffer, self.y.last, self.matrix, self.bias_row, self.logits)
        self.soft_max.encode(command_buffer, self.logits, self.likely)
        return hidden, convolved, rectified, states

    def train(self, command_buffer: mps.MTLCommandBuffer, images: mps.MPSImageBatch, labels: mps.MPSMatrix) -> None:
        """Record one step: forwards, backwards, the updates."""
        hidden, convolved, rectified, states = self.forward(command_buffer, images)
        # The gradient of the cross-entropy of a soft-max: what it gives, less the labels.
        self.sum.encode(command_buffer, [self.likely, labels], self.flow, self.signs)
        self.of_connected.encode_gradient_for_data(command_buffer, self.flow, self.matrix, self.dy.last)
        self.of_connected.encode_gradient_for_weights_and_bias(
            command_buffer, self.flow, self.y.last, self.of_matrix, self.of_bias_row
        )
        self.layer.encode_gradient_sequence(
            command_buffer, self.x.steps, self.dy.steps, self.dx.steps, self.gradients, states, self.weights,
            forward_source_offsets=self.x.offsets, source_gradient_offsets=self.dy.offsets,
            destination_offsets=self.dx.offsets,
        )  # fmt: skip
        descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, SAMPLES, 1, CHANNELS)
        gradient = mps.MPSImageBatch.allocate(self.device, descriptor, len(images))
        self.to_images.encode_batch(command_buffer, self.dx.whole, gradient)
        gradient = self.of_relu.encode_batch(command_buffer, gradient, hidden, rectified)
        self.of_convolution.encode_batch(command_buffer, gradient, images, convolved)
        self.adam.encode(
            command_buffer, convolution_gradient_state=convolved[0], convolution_source_state=self.kernels,
            input_momentum_vectors=self.momenta, input_velocity_vectors=self.velocities, result_state=self.kernels,
        )  # fmt: skip
        for kernel in (self.convolution, self.of_convolution):
            kernel.reload_weights_and_biases(command_buffer, self.kernels)
        for each in self.adams:
            each.encode(command_buffer)


def draw(random: np.random.Generator, count: int) -> tuple[Array, NDArray[np.int64]]:
    """Recordings ``[count, 1, samples, 3]`` of 20 samples a second, in units of g / 10 less their mean, and kinds."""
    kinds = random.integers(0, len(KINDS), count)
    time, phase = np.arange(SAMPLES) / 20, random.uniform(0, 2 * np.pi, (count, 1))
    steps, strength = np.choose(kinds, [0.0, 1.8, 2.9])[:, None], np.choose(kinds, [0.0, 0.3, 0.5])[:, None]
    force = 1 + strength * np.sin(2 * np.pi * steps * random.uniform(0.9, 1.1, (count, 1)) * time + phase)
    down = random.normal(size=(count, 1, 3))
    found = force[..., None] * down / np.linalg.norm(down, axis=2, keepdims=True)
    found += random.normal(0, 0.05, found.shape)
    return (10 * (found - found.mean(1, keepdims=True))).astype(np.float32)[:, None], kinds


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; the accuracy on recordings that it has not seen, before and after."""
    parser = argparse.ArgumentParser(description="An activity classifier: a convolution and an LSTM")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args(arguments)
    device, random = mps.mtl_device(given.device), np.random.default_rng(0)
    network, queue = Classifier(device, given.batch), device.new_command_queue()

    def accuracy() -> float:
        right = 0
        for seed in range(4):
            recordings, kinds = draw(np.random.default_rng(1000 + seed), given.batch)
            command_buffer = queue.command_buffer()
            network.forward(command_buffer, mps.MPSImageBatch.from_numpy(device, recordings))
            command_buffer.commit()
            right += int((network.likely.numpy().argmax(1) == kinds).sum())
        return right / (4 * given.batch)

    before = accuracy()
    for _ in range(given.steps):
        recordings, kinds = draw(random, given.batch)
        labels = mps.MPSMatrix.from_numpy(device, np.eye(len(KINDS), dtype=np.float32)[kinds])
        command_buffer = queue.command_buffer()
        network.train(command_buffer, mps.MPSImageBatch.from_numpy(device, recordings), labels)
        command_buffer.commit()
    after = accuracy()
    print(f"accuracy {before:.1%} before, {after:.1%} after {given.steps} steps: {', '.join(KINDS)}")
    return before, after


if __name__ == "__main__":
    main()
