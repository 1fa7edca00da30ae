"""A graph fed from a DataLoader of PyTorch, which shuffles, gathers batches and may load in other processes.

What it shows:

- tensors ``[images, height, width, channels]`` of uint8 as images over the same memory: 255 stands for 1;
- class numbers as one-hot labels;
- a queue that bounds how many batches are under way.

Usage, in a clone of the repository::

    python examples/torch_data_loader.py [--device auto] [--epochs 6] [--batch 40]

It prints the accuracy on digits that it has not seen, before and after the training.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, TensorDataset

import openmps as mps
from openmps.training import Dataset, load_digits_dataset

HWC = mps.MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS
Loader = DataLoader[tuple[Tensor, ...]]


def loader(data: Dataset, batch_size: int, *, shuffle: bool) -> Loader:
    """Batches of ``data``: images of uint8 ``[N, H, W, C]``, and class numbers ``[N]``."""
    tensors = TensorDataset(torch.from_numpy(data.images), torch.from_numpy(data.labels).long())
    return DataLoader(tensors, batch_size, shuffle=shuffle, generator=torch.Generator().manual_seed(0))


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 3e-3)


def network() -> mps.MPSNNImageNode:
    """The scores of the digits: convolution, ReLU, fully connected."""

    def layer(label: str, size: int, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
        return mps.TrainableConvolutionDataSource.uniform(
            mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs),
            limit=0.1,
            bias=0.0,
            seed=outputs,
            label=label,
            optimizer=adam,
        )

    image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), layer("conv", 3, 1, 16)).result_image
    image = mps.MPSCNNNeuronReLUNode(image).result_image
    return mps.MPSCNNFullyConnectedNode(image, layer("fc", 8, 16, 10)).result_image


def train(graph: mps.MPSNNGraph, device: mps.MTLDevice, batches: Loader) -> None:
    """One pass over the batches."""
    queue = device.new_command_queue(2)
    for images, numbers in batches:
        command_buffer = mps.MPSCommandBuffer(queue)
        batch = mps.MPSImageBatch.from_tensor(device, images, data_layout=HWC)
        graph.encode_batch(command_buffer, [batch], [mps.MPSCNNLossLabels.batch(device, one_hot(numbers, 10))])
        command_buffer.commit()
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    command_buffer.wait_until_completed()


def accuracy(graph: mps.MPSNNGraph, device: mps.MTLDevice, batches: Loader) -> float:
    """The share of images whose largest score is that of their digit."""
    graph.reload_from_data_sources()
    queue, hits, count = device.new_command_queue(), 0, 0
    for images, numbers in batches:
        command_buffer = queue.command_buffer()
        batch = mps.MPSImageBatch.from_tensor(device, images, data_layout=HWC)
        scores = graph.encode_batch(command_buffer, [batch])
        command_buffer.commit()
        assert scores is not None
        hits += int((torch.from_dlpack(scores).flatten(1).argmax(1).cpu() == numbers).sum())
        count += len(numbers)
    return hits / count


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """The accuracies before and after the training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=40)
    options = parser.parse_args(arguments)
    device = mps.mtl_device(options.device)
    training, test = load_digits_dataset().split(seed=0)
    batches, unseen = loader(training, options.batch, shuffle=True), loader(test, 120, shuffle=False)
    scores = network()
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    loss.weight = 1 / options.batch
    gradients = mps.MPSCNNLossNode(scores, loss).training_graph()
    trains, infers = mps.MPSNNGraph(device, gradients[0].result_image, False), mps.MPSNNGraph(device, scores)
    found = [accuracy(infers, device, unseen)]
    for _ in range(options.epochs):
        train(trains, device, batches)
    found.append(accuracy(infers, device, unseen))
    print(f"accuracy {found[0]:.1%} before, {found[1]:.1%} after {options.epochs} epochs")
    return found


if __name__ == "__main__":
    main()
