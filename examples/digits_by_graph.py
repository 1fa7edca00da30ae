"""The digit classifier as graphs: one that trains, one that infers, over the same data sources.

What it shows:

- nodes, `training_graph`, and a graph for each purpose;
- two batches under way, counted by a semaphore that a completed handler gives back;
- losses that are read in the handler, and `reload_from_data_sources` before each test.

Usage, in a clone of the repository::

    python examples/digits_by_graph.py [--device auto] [--steps 120] [--batch 40]

It prints the accuracy on digits that it has not seen, before, during and after the training.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

import openmps as mps
from openmps.training import Dataset, load_digits_dataset

UNDER_WAY = 2
"""Batches that are recorded before the oldest has to be done."""


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 2e-3)


def layer(label: str, size: int, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
    """Weights that Adam trains on the device."""
    return mps.TrainableConvolutionDataSource.uniform(
        mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs),
        limit=0.2,
        bias=0.1,
        seed=outputs,
        label=label,
        optimizer=adam,
    )


class DigitNetwork:
    """Convolution, ReLU, max pooling, fully connected, ReLU, dropout, fully connected."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device = device
        convolution, hidden, last = layer("conv", 3, 1, 16), layer("fc1", 4, 16, 64), layer("fc2", 1, 64, 10)

        def logits(keep_probability: float | None) -> mps.MPSNNImageNode:
            image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), convolution).result_image
            image = mps.MPSCNNPoolingMaxNode(mps.MPSCNNNeuronReLUNode(image).result_image, 2, 2).result_image
            image = mps.MPSCNNNeuronReLUNode(mps.MPSCNNFullyConnectedNode(image, hidden).result_image).result_image
            if keep_probability is not None:  # only in training
                image = mps.MPSCNNDropoutNode(image, keep_probability).result_image
            return mps.MPSCNNFullyConnectedNode(image, last).result_image

        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
        (end,) = mps.MPSCNNLossNode(logits(0.8), descriptor).training_graph()
        # The end of a training graph is the gradient of the pictures, which nobody needs.
        self.training = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
        self.inference = mps.MPSNNGraph(device, mps.MPSCNNSoftMaxNode(logits(None)).result_image)
        for graph in (self.training, self.inference):
            graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32

    def accuracy(self, data: Dataset) -> float:
        """The share of pictures whose surest class is theirs, with the weights as they are now."""
        self.inference.reload_from_data_sources()
        command_buffer = self.device.new_command_queue().command_buffer()
        images = mps.MPSImageBatch.from_numpy(self.device, data.images)
        found = self.inference.encode_batch(command_buffer, [images])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert found is not None  # the graph was made with a result
        return float((found.numpy().reshape(len(data), -1).argmax(1) == data.labels).mean())


def train(network: DigitNetwork, data: Dataset, choices: NDArray[np.int64]) -> list[float]:
    """Train on the batches that were chosen; the mean loss of each."""
    queue = network.device.new_command_queue()
    free = threading.Semaphore(UNDER_WAY)
    losses: list[float] = []

    def completed(_: mps.MTLCommandBuffer, labels: Sequence[mps.MPSCNNLossLabels]) -> None:
        losses.append(float(np.mean([label.loss_image().numpy().item() for label in labels])))
        free.release()

    command_buffer = None
    for chosen in choices:
        free.acquire()
        labels = mps.MPSCNNLossLabels.batch(network.device, np.eye(10)[data.labels[chosen]])
        images = mps.MPSImageBatch.from_numpy(network.device, data.images[chosen])
        command_buffer = mps.MPSCommandBuffer(queue)
        network.training.encode_batch(command_buffer, [images], [labels])
        command_buffer.add_completed_handler(partial(completed, labels=labels))
        command_buffer.commit()
    if command_buffer is not None:
        command_buffer.wait_until_completed()  # its queue is in order: all of them are done
    return losses


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train in parts, and test after each."""
    parser = argparse.ArgumentParser(description="The digit classifier as graphs")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=40)
    given = parser.parse_args(arguments)
    training, test = load_digits_dataset().split(seed=0)
    network = DigitNetwork(mps.mtl_device(given.device))
    accuracies = [network.accuracy(test)]
    print(f"accuracy {accuracies[0]:.1%} before the training")
    choices = np.random.default_rng(0).integers(0, len(training), (given.steps, given.batch))
    for part in np.array_split(choices, 3):
        losses = train(network, training, part)
        accuracies.append(network.accuracy(test))
        print(f"accuracy {accuracies[-1]:.1%} after {len(losses)} more batches, loss {np.mean(losses):.3f}")
    return accuracies


if __name__ == "__main__":
    main()
