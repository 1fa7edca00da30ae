"""A trained network as Swift: the source that makes the same graph in an app, and its weights.

What it shows:

- `openmps.formats.swift.export`, for inference and for training on the device;
- `openmps.lint` before it: what an Apple GPU would refuse or do otherwise;
- an archive of the graph beside it, and results that are the same bit by bit when it comes back.

Usage, in a clone of the repository::

    python examples/swift_export.py [--device auto] [--steps 60] [--out Sharpen]

It trains a filter that sharpens blurred pictures and writes it to a new folder.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import openmps as mps
from openmps.formats import swift

Array = NDArray[np.float32]
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer; Swift of a training graph has the same."""
    return mps.MPSNNOptimizerAdam(device, 5e-3)


def layer(label: str, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
    """A convolution 3x3; its label becomes the name of its file."""
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
    return mps.TrainableConvolutionDataSource.uniform(
        descriptor, limit=0.3, bias=0.0, seed=outputs, label=label, optimizer=adam
    )


class Sharpener:
    """Two convolutions with a ReLU between them."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device = device
        self._sources = [layer("features", 1, 8), layer("picture", 8, 1)]
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
        (end,) = mps.MPSCNNLossNode(self._result(), descriptor).training_graph()
        self.training = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
        self.inference = mps.MPSNNGraph(device, self._result())
        for graph in (self.training, self.inference):
            graph.format = FLOAT32

    def _result(self) -> mps.MPSNNImageNode:
        image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("blurred")), self._sources[0]).result_image
        return mps.MPSCNNConvolutionNode(mps.MPSCNNNeuronReLUNode(image).result_image, self._sources[1]).result_image

    def train(self, steps: int) -> None:
        """Blurred pictures in, sharp ones wanted."""
        queue, random = self.device.new_command_queue(), np.random.default_rng(0)
        for _ in range(steps):
            sharp = draw(random, 4)
            labels = mps.MPSCNNLossLabels.batch(self.device, sharp)
            command_buffer = mps.MPSCommandBuffer(queue)
            images = mps.MPSImageBatch.from_numpy(self.device, blurred(sharp))
            self.training.encode_batch(command_buffer, [images], [labels])
            command_buffer.commit()
        self.inference.reload_from_data_sources()


def draw(random: np.random.Generator, count: int) -> Array:
    """Stripes of any width."""
    x = np.arange(16) * random.uniform(0.3, 1.5, (count, 16, 1)).cumsum(1) / 4
    return (np.sin(x) > 0).astype(np.float32)[..., None]


def blurred(pictures: Array) -> Array:
    """The mean of each pixel and its eight neighbours."""
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)))
    found = np.zeros_like(pictures)
    for y, x in np.ndindex(3, 3):
        found += padded[:, y : y + pictures.shape[1], x : x + pictures.shape[2]] / np.float32(9)
    return found


def run(graph: mps.MPSNNGraph, pictures: Array) -> Array:
    """A graph's result."""
    command_buffer = graph.device.new_command_queue().command_buffer()
    found = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, pictures)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert found is not None  # the graph was made with a result
    return found.numpy()


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Train, look for what a device would refuse, write, read back."""
    parser = argparse.ArgumentParser(description="A trained network as Swift")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", help="the new folder; a temporary one unless given")
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    network, pictures = Sharpener(device), draw(np.random.default_rng(1), 16)
    network.train(given.steps)
    error = float(np.square(run(network.inference, blurred(pictures)) - pictures).mean())
    print(f"mean squared error {np.square(blurred(pictures) - pictures).mean():.4f} blurred, {error:.4f} sharpened")
    print(mps.lint(network.inference, mps.MPSImageDescriptor(FLOAT32, 16, 16, 1)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = swift.export(network.inference, Path(given.out or f"{temporary}/Sharpen"), "Sharpen")
        swift.export(network.training, Path(temporary) / "SharpenTrainer", "SharpenTrainer")
        names = sorted(path.name for path in folder.iterdir())
        print(f"{folder.name}: {', '.join(names)}")
        archive = Path(temporary) / "sharpen.mps"
        mps.MPSKeyedArchiver.archive(network.inference, archive)
        data = archive.read_bytes()
    back = mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, data, device)
    same = np.array_equal(run(back, blurred(pictures)), run(network.inference, blurred(pictures)))
    print(f"the archive gives the same results: {same}")
    return names


if __name__ == "__main__":
    main()
