"""Segmentation with a small U-net: a class for each pixel.

What it shows:

- a path down by pooling, a path up by `MPSCNNUpsamplingBilinearNode`, and `MPSNNConcatenationNode` between them;
- a softmax cross-entropy over pixels: labels are images;
- weights of labels, so that the few pixels of small things count as much as the background.

Usage, in a clone of the repository::

    python examples/segmentation.py [--device auto] [--steps 80] [--batch 8]

It learns to tell discs from squares, and ends with the overlap of what it found and what is there, class by class.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
SIZE, CLASSES = 16, ("background", "disc", "square")


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 5e-3)


def layer(label: str, size: int, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
    """Weights that Adam trains on the device."""
    descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
    limit = float(np.sqrt(6 / (size * size * inputs)))
    return mps.TrainableConvolutionDataSource.uniform(
        descriptor, limit=limit, bias=0.0, seed=len(label) + outputs, label=label, optimizer=adam
    )


class UNet:
    """Two levels: 16x16 pixels of 8 channels, 8x8 of 16, and what the first level has beside what comes back."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device = device
        sizes = {"high": (3, 3, 8), "low": (3, 8, 16), "deep": (3, 16, 16), "joined": (3, 24, 8), "classes": (1, 8, 3)}
        self._sources = {label: layer(label, *size) for label, size in sizes.items()}
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.MEAN)
        ends = mps.MPSCNNLossNode(self._logits(), descriptor).training_graph()
        # All ends: where a network forks, a training graph may have several.
        self.training = mps.MPSNNGraph(
            device, result_images=[end.result_image for end in ends], results_are_needed=[False] * len(ends)
        )
        self.inference = mps.MPSNNGraph(device, mps.MPSCNNSoftMaxNode(self._logits()).result_image)
        for graph in (self.training, self.inference):
            graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32

    def _logits(self) -> mps.MPSNNImageNode:
        def convolved(image: mps.MPSNNImageNode, label: str) -> mps.MPSNNImageNode:
            image = mps.MPSCNNConvolutionNode(image, self._sources[label]).result_image
            return image if label == "classes" else mps.MPSCNNNeuronReLUNode(image).result_image

        high = convolved(mps.MPSNNImageNode(), "high")
        pooled = mps.MPSCNNPoolingMaxNode(high, 2, 2)
        pooled.padding_policy = mps.MPSNNDefaultPadding.tensorflow_valid()
        deep = convolved(convolved(pooled.result_image, "low"), "deep")
        risen = mps.MPSCNNUpsamplingBilinearNode(deep, 2, 2).result_image
        # Channels of the sources one behind the other; each source takes a multiple of four of them.
        joined = mps.MPSNNConcatenationNode([high, risen]).result_image
        return convolved(convolved(joined, "joined"), "classes")


def draw(random: np.random.Generator, count: int) -> tuple[Array, NDArray[np.int64]]:
    """A disc and a square of one colour on noise, and the class of each pixel."""
    y, x = np.mgrid[:SIZE, :SIZE]
    disc = np.hypot(x - random.uniform(3, 13, (count, 1, 1)), y - random.uniform(3, 6, (count, 1, 1))) < 2.8
    left, top = random.integers(1, 10, (count, 1, 1)), random.integers(9, 11, (count, 1, 1))
    square = (x >= left) & (x < left + 5) & (y >= top) & (y < top + 5)
    kinds = np.where(square, 2, np.where(disc, 1, 0))
    pictures = random.uniform(0.0, 0.3, (count, SIZE, SIZE, 3)) + 0.6 * (kinds > 0)[..., None]
    return pictures.astype(np.float32), kinds


def train(network: UNet, random: np.random.Generator, steps: int, batch: int) -> list[float]:
    """Train on new pictures in each step; the losses."""
    queue, kept = network.device.new_command_queue(), []
    factors = np.array([0.3, 2.0, 2.0], np.float32)  # about as rare as they are
    for _ in range(steps):
        pictures, kinds = draw(random, batch)
        labels = mps.MPSCNNLossLabels.batch(
            network.device,
            np.eye(len(CLASSES), dtype=np.float32)[kinds],
            weights=factors[kinds][..., None].repeat(3, 3),
        )
        command_buffer = mps.MPSCommandBuffer(queue)
        images = mps.MPSImageBatch.from_numpy(network.device, pictures)
        network.training.encode_batch(command_buffer, [images], [labels])
        command_buffer.commit()
        kept.append(labels)
    return [float(np.mean([each.loss_image().numpy().item() for each in labels])) for labels in kept]


def overlaps(network: UNet, pictures: Array, kinds: NDArray[np.int64]) -> list[float]:
    """Intersection over union of found and true pixels, a number for each class."""
    network.inference.reload_from_data_sources()
    command_buffer = network.device.new_command_queue().command_buffer()
    images = mps.MPSImageBatch.from_numpy(network.device, pictures)
    result = network.inference.encode_batch(command_buffer, [images])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result is not None  # the graph was made with a result
    found = result.numpy().argmax(-1)
    both = [(found == kind) & (kinds == kind) for kind in range(len(CLASSES))]
    either = [(found == kind) | (kinds == kind) for kind in range(len(CLASSES))]
    return [float(a.sum() / b.sum()) for a, b in zip(both, either, strict=True)]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, then look at pictures that were not shown."""
    parser = argparse.ArgumentParser(description="A U-net that tells discs from squares")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args(arguments)
    network, random = UNet(mps.mtl_device(given.device)), np.random.default_rng(0)
    losses = train(network, random, given.steps, given.batch)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    found = overlaps(network, *draw(random, 32))
    print("overlap: " + ", ".join(f"{name} {share:.0%}" for name, share in zip(CLASSES, found, strict=True)))
    return found


if __name__ == "__main__":
    main()
