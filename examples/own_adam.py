"""A data source of one's own, with Adam written out in NumPy.

What it shows:

- the methods of `MPSCNNConvolutionDataSource`, each in a few lines;
- `training_style` and a node handler that chooses where weights are updated;
- an `update` on the CPU that reads gradients and keeps moments, against `MPSNNOptimizerAdam` on the device.

Usage, in a clone of the repository::

    python examples/own_adam.py [--device auto] [--steps 60]

It teaches a convolution to find edges, both ways, and ends with how far the two differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
RATE, BETA1, BETA2, EPSILON = 0.05, 0.9, 0.999, 1e-8
SOBEL = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32)


class OwnSource:
    """Weights and biases in arrays, which `update` changes. No base class is needed."""

    def __init__(self, descriptor: mps.MPSCNNConvolutionDescriptor, weights: Array, biases: Array, label: str) -> None:
        self._descriptor, self._label = descriptor, label
        self.arrays = [weights.copy(), biases.copy()]
        self._momenta = [np.zeros_like(array) for array in self.arrays]
        self._velocities = [np.zeros_like(array) for array in self.arrays]
        self._step = 0

    def label(self) -> str:
        """The layer's name, in errors and files."""
        return self._label

    def descriptor(self) -> mps.MPSCNNConvolutionDescriptor:
        """Sizes, strides, groups, a neuron."""
        return self._descriptor

    def data_type(self) -> mps.MPSDataType:
        """How weights are given; biases are float32 always."""
        return mps.MPSDataType.FLOAT32

    def load(self) -> bool:
        """Called before weights are read. Here they are in memory; a file would be opened."""
        return True

    def purge(self) -> None:
        """Called when weights have been read."""

    def weights(self) -> Array:
        """Outputs, rows, columns, inputs."""
        return self.arrays[0]

    def bias_terms(self) -> Array:
        """One for each output."""
        return self.arrays[1]

    def update(
        self,
        command_buffer: mps.MTLCommandBuffer | None,
        gradient_state: mps.MPSCNNConvolutionGradientState,
        source_state: mps.MPSCNNConvolutionWeightsAndBiasesState,
    ) -> bool:
        """One step of Adam. In the CPU's style the gradients are there, and no command buffer is given."""
        del command_buffer, source_state
        self._step += 1
        rate = np.float32(RATE * np.sqrt(1 - BETA2**self._step) / (1 - BETA1**self._step))
        buffers = gradient_state.gradient_for_weights, gradient_state.gradient_for_biases
        for index, buffer in enumerate(buffers):
            gradient = buffer.contents().view(np.float32).reshape(self.arrays[index].shape)
            momentum, velocity = self._momenta[index], self._velocities[index]
            momentum += np.float32(1 - BETA1) * (gradient - momentum)
            velocity += np.float32(1 - BETA2) * (gradient**2 - velocity)
            step = rate * momentum / (np.sqrt(velocity) + np.float32(EPSILON))
            self.arrays[index] = (self.arrays[index] - step).astype(np.float32)
        return True  # there is something new: the graph reads the weights again


def training_graph(
    device: mps.MTLDevice, source: mps.MPSCNNConvolutionDataSource, style: mps.MPSNNTrainingStyle
) -> mps.MPSNNGraph:
    """Convolution and mean squared error, with updates in the style."""
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)

    def choose(gradient: mps.MPSNNFilterNode, *_: object) -> None:
        if isinstance(gradient, mps.MPSCNNConvolutionGradientNode):
            gradient.training_style = style

    (end,) = mps.MPSCNNLossNode(node.result_image, descriptor).training_graph(None, choose)
    graph = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    return graph


def edges(pictures: Array) -> Array:
    """Where brightness changes from left to right, by Sobel's filter, zeros around the picture."""
    padded = np.pad(pictures[..., 0], ((0, 0), (1, 1), (1, 1)))
    height, width = pictures.shape[1:3]
    found = np.zeros(pictures.shape, np.float32)
    for y, x in np.ndindex(3, 3):
        found[..., 0] += SOBEL[y, x] * padded[:, y : y + height, x : x + width]
    return found


def train(graph: mps.MPSNNGraph, steps: int) -> list[float]:
    """The loss of each step."""
    device, losses = graph.device, list[float]()
    queue = device.new_command_queue()
    for pictures in np.random.default_rng(0).random((steps, 4, 8, 8, 1), np.float32):
        labels = mps.MPSCNNLossLabels.batch(device, edges(pictures))
        command_buffer = queue.command_buffer()
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pictures)], [labels])
        command_buffer.commit()
        # With updates on the CPU, the next batch is encoded when this one is done; else it had the old weights.
        command_buffer.wait_until_completed()
        losses.append(sum(label.loss_image().numpy().item() for label in labels))
    return losses


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], float]:
    """Train both ways; the losses, and the largest difference of the weights."""
    parser = argparse.ArgumentParser(description="A data source with an Adam of its own")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1)
    weights, biases = np.full((1, 3, 3, 1), 0.1, np.float32), np.zeros(1, np.float32)
    own = OwnSource(descriptor, weights, biases, "own")
    ready_made = mps.TrainableConvolutionDataSource(
        descriptor, weights, biases, "ready-made", optimizer=lambda device: mps.MPSNNOptimizerAdam(device, RATE)
    )
    styles = mps.MPSNNTrainingStyle
    losses = train(training_graph(device, own, styles.UPDATE_DEVICE_CPU), given.steps)
    train(training_graph(device, ready_made, styles.UPDATE_DEVICE_GPU), given.steps)
    difference = float(np.abs(own.weights() - ready_made.weights()).max())
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.5f} at last")
    print(np.round(own.weights()[0, :, :, 0], 2))
    print(f"the weights of both ways differ by {difference:.1e} at most")
    return losses, difference


if __name__ == "__main__":
    main()
