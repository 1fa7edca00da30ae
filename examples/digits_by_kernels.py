"""A digit classifier of kernels that are encoded one by one, forwards and backwards.

What it shows:

- kernels and their gradient kernels, and the states that go from the ones to the others;
- read counts of temporary images that a gradient kernel reads once more;
- Adam on the device: from the gradients in a state, into weights that both kernels reload.

Usage, in a clone of the repository::

    python examples/digits_by_kernels.py [--device auto] [--steps 120] [--batch 40]

It trains on scikit-learn's digits and ends with the accuracy on those that it has not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps
from openmps.training import Dataset, load_digits_dataset

WITH_WEIGHTS = mps.MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS


class Layer:
    """A convolution or a fully connected layer, its gradient, and the weights that both hold."""

    def __init__(self, device: mps.MTLDevice, label: str, size: int, inputs: int, outputs: int, is_dense: bool) -> None:
        descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
        source = mps.ArrayConvolutionDataSource.uniform(descriptor, limit=0.2, bias=0.1, seed=outputs, label=label)
        if is_dense:
            self.forward = mps.MPSCNNFullyConnected(device, source)
            self.gradient = mps.MPSCNNFullyConnectedGradient(device, source)
        else:
            self.forward = mps.MPSCNNConvolution(device, source)
            self.gradient = mps.MPSCNNConvolutionGradient(device, source)
        numbers = outputs * size * size * inputs, outputs
        self.weights = mps.MPSCNNConvolutionWeightsAndBiasesState(
            weights=device.new_buffer(data=source.weights()), biases=device.new_buffer(data=np.full(outputs, 0.1, "f4"))
        )
        self._adam = mps.MPSNNOptimizerAdam(device, 5e-3)
        self._momenta, self._velocities = (
            [mps.MPSVector(device, mps.MPSVectorDescriptor(count)) for count in numbers] for _ in range(2)
        )

    def step(self, command_buffer: mps.MTLCommandBuffer, state: mps.MPSState) -> None:
        """Record a step of Adam along the gradients in a state, and give the new weights to both kernels."""
        self._adam.encode(
            command_buffer,
            convolution_gradient_state=state,
            convolution_source_state=self.weights,
            input_momentum_vectors=self._momenta,
            input_velocity_vectors=self._velocities,
            result_state=self.weights,
        )
        self.forward.reload_weights_and_biases(command_buffer, self.weights)
        self.gradient.reload_weights_and_biases(command_buffer, self.weights)


class DigitNetwork:
    """Convolution 3x3 to 16 channels, ReLU, max pooling 2x2, and a fully connected layer to ten classes."""

    def __init__(self, device: mps.MTLDevice, size: int = 8) -> None:
        self.device = device
        self.convolution = Layer(device, "convolution", 3, 1, 16, is_dense=False)
        self.dense = Layer(device, "dense", size // 2, 16, 10, is_dense=True)
        self.convolution.gradient.gradient_option = WITH_WEIGHTS  # nobody asks for the gradient of the pictures
        relu = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU)
        self.relu, self.relu_gradient = mps.MPSCNNNeuron(device, relu), mps.MPSCNNNeuronGradient(device, relu)
        self.pooling = mps.MPSCNNPoolingMax(device, 2, 2, 2, 2)
        self.pooling.offset = mps.MPSOffset(1, 1)  # the centre of the first window
        self.pooling.padding = mps.MPSNNDefaultPadding.tensorflow_valid()
        self.pooling_gradient = mps.MPSCNNPoolingMaxGradient(device, 2, 2, 2, 2)
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
        self.loss = mps.MPSCNNLoss(device, descriptor)

    def infer(self, command_buffer: mps.MTLCommandBuffer, images: mps.MPSImageBatch) -> mps.MPSImageBatch:
        """The logits of some pictures."""
        hidden = self.convolution.forward.encode_batch(command_buffer, images)
        active = self.relu.encode_batch(command_buffer, hidden)
        pooled = self.pooling.encode_batch(command_buffer, active)
        self.dense.forward.destination_image_allocator = mps.MPSImage.default_allocator()
        return self.dense.forward.encode_batch(command_buffer, pooled)

    def train(
        self, command_buffer: mps.MTLCommandBuffer, images: mps.MPSImageBatch, labels: Sequence[mps.MPSCNNLossLabels]
    ) -> None:
        """Record one training step: forwards, the loss, backwards, the updates."""
        # Forwards. A gradient kernel reads its forward kernel's source once more: one read is added for it.
        hidden, convolved = self.convolution.forward.encode_batch(
            command_buffer, images, destination_state_is_temporary=False
        )
        mps.MPSImageBatchIncrementReadCount(hidden, 1)
        active, rectified = self.relu.encode_batch(command_buffer, hidden, destination_state_is_temporary=True)
        mps.MPSImageBatchIncrementReadCount(active, 1)
        pooled, maxima = self.pooling.encode_batch(command_buffer, active, destination_state_is_temporary=True)
        mps.MPSImageBatchIncrementReadCount(pooled, 1)
        logits, connected = self.dense.forward.encode_batch(
            command_buffer, pooled, destination_state_is_temporary=False
        )
        # Backwards: the result of a loss is the gradient of its source.
        gradient = self.loss.encode_batch(command_buffer, logits, labels)
        gradient = self.dense.gradient.encode_batch(command_buffer, gradient, pooled, connected)
        gradient = self.pooling_gradient.encode_batch(command_buffer, gradient, active, maxima)
        gradient = self.relu_gradient.encode_batch(command_buffer, gradient, hidden, rectified)
        self.convolution.gradient.encode_batch(command_buffer, gradient, images, convolved)
        # A batch shares one state, which has the sums over all its images.
        assert convolved is not None  # these kernels have states
        assert connected is not None
        self.convolution.step(command_buffer, convolved[0])
        self.dense.step(command_buffer, connected[0])


def as_images(device: mps.MTLDevice, pixels: NDArray[np.uint8]) -> mps.MPSImageBatch:
    """Bytes as numbers from 0 to 1, float32: results of encodes have the format of their source."""
    return mps.MPSImageBatch.from_numpy(device, pixels.astype(np.float32) / 255)


def accuracy(network: DigitNetwork, queue: mps.MTLCommandQueue, data: Dataset) -> float:
    """The share of pictures whose largest logit is that of their class.

    Of one queue, command buffers run in order: the updates before it are done. Another queue would not wait for them.
    """
    command_buffer = queue.command_buffer()
    logits = network.infer(command_buffer, as_images(network.device, data.images))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return float((logits.numpy().reshape(len(data), -1).argmax(1) == data.labels).mean())


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, then test."""
    parser = argparse.ArgumentParser(description="A digit classifier of kernels encoded one by one")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=40)
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    training, test = load_digits_dataset().split(seed=0)
    network, queue = DigitNetwork(device), device.new_command_queue()
    for chosen in np.random.default_rng(0).integers(0, len(training), (given.steps, given.batch)):
        labels = mps.MPSCNNLossLabels.batch(device, np.eye(10)[training.labels[chosen]])
        command_buffer = queue.command_buffer()
        network.train(command_buffer, as_images(device, training.images[chosen]), labels)
        command_buffer.commit()
    result = accuracy(network, queue, test)
    print(f"accuracy {result:.1%} on {len(test)} digits that it has not seen")
    return result


if __name__ == "__main__":
    main()
