"""CIFAR-10 in 200 steps: a small network, and batches that are made and augmented on the device.

What it shows:

- a data set that lies on the device: `ImageSelection` takes each batch from the order of the epoch, `AlternatingFlip`
  mirrors it, `ImageAugmentation` moves and normalizes it, all in the step's command buffer;
- a first convolution that whitens patches of 2 x 2 pixels, whose weights come from the images and stay;
- batch normalization that trains its shifts alone, half precision for images and gradients, a rate for each layer;
- a step as one command buffer, which a GPU replays, and losses that nobody waits for.

Usage, in a clone of the repository::

    python examples/cifar_speedrun.py --cifar cifar-10-batches-bin [--device cuda]     # CIFAR-10's binary version
    python examples/cifar_speedrun.py --idx DIR           # MNIST-style files
    python examples/cifar_speedrun.py --synthetic 50000   # images of noise, for a time
    python examples/cifar_speedrun.py --widths 16,64,64 --batch 50 --steps 60          # scikit-learn's digits

It prints the seconds of the training and the accuracy on the test images. The network and its numbers follow Keller
Jordan, "94 % on CIFAR-10 in 3.29 seconds on a single GPU", 2024.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import openmps as mps
from openmps.training import (
    AlternatingFlip,
    Dataset,
    DataSplit,
    ImageAugmentation,
    ImageSelection,
    load_dataset,
    load_digits_dataset,
)

FLOAT16, FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT16, mps.MPSImageFeatureChannelFormat.FLOAT32
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32
"""Bytes of an image in CIFAR's binary files: its class, then its red, green and blue planes."""
MOMENTUM, SMOOTHING, UNDER_WAY = 0.85, 0.2, 2
RATE, SHIFT_SPEED = 2.0, 64.0
"""Of the mean of a batch's losses; the shifts of the normalizations learn so many times as fast."""


# --- data -------------------------------------------------------------------------------------------------------------


def cifar(folder: Path) -> DataSplit:
    """CIFAR-10 from the files of its binary version."""

    def records(file: Path) -> NDArray[np.uint8]:
        found = np.fromfile(file, np.uint8) if file.is_file() else np.empty(0, np.uint8)
        if not len(found) or len(found) % RECORD:
            raise SystemExit(
                f"{file} must have records of {RECORD} bytes, as CIFAR-10's binary version, got {len(found)}"
            )
        return found.reshape(-1, RECORD)

    def read(names: Sequence[str], name: str) -> Dataset:
        rows = np.concatenate([records(folder / each) for each in names])
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Dataset(np.ascontiguousarray(images), rows[:, 0].astype(np.int64), CIFAR_CLASSES, name)

    return DataSplit(read([f"data_batch_{n}.bin" for n in range(1, 6)], "CIFAR-10"), read(["test_batch.bin"], "test"))


def digits() -> DataSplit:
    """Scikit-learn's digits, each pixel as 4 x 4."""
    small = load_digits_dataset()
    large = small.images.repeat(4, 1).repeat(4, 2)
    return Dataset(large, small.labels, small.class_names, "digits").split(seed=0)


def synthetic(count: int) -> DataSplit:
    """Noise of ten classes, each a little brighter in a place of its own."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count + 1000)
    images = random.integers(0, 200, (len(labels), 32, 32, 3), np.uint8)
    for label in range(10):
        images[labels == label, 3 * label : 3 * label + 3] += np.uint8(50)
    whole = Dataset(images, labels, CIFAR_CLASSES, "noise")
    return DataSplit(whole.subset(np.arange(count), "noise"), whole.subset(np.arange(count, len(labels)), "noise"))


def whitening(images: NDArray[np.uint8], mean: float, deviation: float) -> NDArray[np.float32]:
    """Weights OHWI that decorrelate patches of 2 x 2 pixels: the principal directions, each both ways."""
    x = (images.astype(np.float64) / 255 - mean) / deviation
    corners = [x[:, row : row - 1 or None, column : column - 1 or None] for row in (0, 1) for column in (0, 1)]
    patches = np.concatenate([each.reshape(-1, x.shape[3]) for each in corners], 1)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    directions = (vectors / np.sqrt(values + 5e-4)).T.reshape(-1, 2, 2, x.shape[3])
    return np.concatenate((directions, -directions)).astype(np.float32)


# --- the network ------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """What is trained, and how many times as fast as the rest."""

    source: mps.TrainableConvolutionDataSource | mps.TrainableBatchNormalizationDataSource
    speed: float


def descend(device: mps.MTLDevice) -> mps.MPSNNOptimizerStochasticGradientDescent:
    """Gradient descent with Nesterov's momentum; rates come with each step."""
    return mps.MPSNNOptimizerStochasticGradientDescent(
        device, RATE, momentum_scale=MOMENTUM, use_nesterov_momentum=True
    )


class Speedrun:
    """Whitening, three groups of two convolutions each, max pooling, fully connected.

    ``source`` is the class of the data sources of the six convolutions, which decides how they are updated.
    """

    def __init__(
        self,
        device: mps.MTLDevice,
        data: Dataset,
        widths: Sequence[int],
        mean: float,
        deviation: float,
        source: type[mps.TrainableConvolutionDataSource] = mps.TrainableConvolutionDataSource,
    ) -> None:
        self.device, self.source = device, source
        self.queue = device.new_command_queue()
        """One for all steps: a GPU replays what it has captured of the first ones."""
        self.layers: list[Layer] = []
        weights = whitening(data.images[:5000], mean, deviation)
        self.channels, _, _, depth = weights.shape
        descriptor = mps.MPSCNNConvolutionDescriptor(2, 2, depth, self.channels)
        self.first = mps.ArrayConvolutionDataSource(descriptor, weights, label="whitening")
        channels = self.channels
        self.sources: list[tuple[mps.TrainableConvolutionDataSource, mps.TrainableBatchNormalizationDataSource]] = []
        for number, width in enumerate(widths, 1):
            for place in "ab":
                self.sources.append((self.convolution(f"conv{number}{place}", channels, width), self.shift(width)))
                channels = width
        head = mps.MPSCNNConvolutionDescriptor(1, 1, channels, len(data.class_names))
        limit = channels**-0.5
        self.head = mps.TrainableConvolutionDataSource.uniform(
            head, limit=limit, bias=None, seed=1, label="head", optimizer=descend
        )
        self.layers.append(Layer(self.head, 1.0))
        self.classes = len(data.class_names)

    def convolution(self, label: str, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
        """A convolution 3 x 3 that first hands its inputs on, and adds noise of its own."""
        descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
        random = np.random.default_rng(len(self.layers))
        limit = (9 * inputs) ** -0.5
        weights = random.uniform(-limit, limit, descriptor.weight_shape()).astype(np.float32)
        for channel in range(min(inputs, outputs)):
            weights[channel, 1, 1, channel] += 1
        found = self.source(descriptor, weights, label=label, optimizer=descend)
        self.layers.append(Layer(found, 1.0))
        return found

    def shift(self, channels: int) -> mps.TrainableBatchNormalizationDataSource:
        """A normalization whose scale stays 1."""
        found = mps.TrainableBatchNormalizationDataSource(
            channels, label=f"norm{len(self.layers)}", momentum=0.4, optimizer=descend, trains_gamma=False
        )
        self.layers.append(Layer(found, SHIFT_SPEED))
        return found

    def logits(self) -> mps.MPSNNImageNode:
        """New nodes over the data sources."""
        valid = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
        same = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME)

        def padded(node: mps.MPSNNFilterNode, policy: mps.MPSNNDefaultPadding) -> mps.MPSNNImageNode:
            node.padding_policy = policy
            return node.result_image

        whitened = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.first)
        whitened.training_style = mps.MPSNNTrainingStyle.UPDATE_DEVICE_NONE  # its weights stay
        x = padded(whitened, valid)
        x = mps.MPSCNNNeuronGeLUNode(x).result_image
        for place, (convolution, normalization) in enumerate(self.sources):
            x = padded(mps.MPSCNNConvolutionNode(x, convolution), same)
            if place % 2 == 0:
                x = padded(mps.MPSCNNPoolingMaxNode(x, 2, 2), valid)
            x = mps.MPSCNNBatchNormalizationNode(x, normalization).result_image
            x = mps.MPSCNNNeuronGeLUNode(x).result_image
        x = padded(mps.MPSCNNPoolingMaxNode(x, 3, 3), valid)
        x = mps.MPSCNNFullyConnectedNode(x, self.head).result_image
        x = mps.MPSCNNNeuronLinearNode(x, 1 / 9, 0.0).result_image
        x.format = FLOAT32
        return x

    def training_graph(self, channel_format: mps.MPSImageFeatureChannelFormat) -> mps.MPSNNGraph:
        """One step: the sum of the batch's losses, its gradients in the same format, and the updates."""
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
        descriptor.label_smoothing, descriptor.number_of_classes = SMOOTHING, self.classes

        def store(gradient: mps.MPSNNFilterNode, *_: object) -> None:
            gradient.result_image.format = channel_format

        (end,) = mps.MPSCNNLossNode(self.logits(), descriptor).training_graph(None, store)
        graph = mps.MPSNNGraph(self.device, end.result_image, result_image_is_needed=False)
        graph.format = channel_format
        return graph

    def inference_graph(self, channel_format: mps.MPSImageFeatureChannelFormat) -> mps.MPSNNGraph:
        """From images to logits."""
        graph = mps.MPSNNGraph(self.device, self.logits())
        graph.format = channel_format
        return graph

    def set_rate(self, rate: float) -> None:
        """That of the updates that are encoded from now on, for the sum of a batch's losses."""
        for layer in self.layers:
            layer.source.set_learning_rate(rate * layer.speed)


# --- batches on the device --------------------------------------------------------------------------------------------


class Batches:
    """Batches of a data set that lies on the device: chosen, mirrored, moved and normalized there."""

    def __init__(
        self,
        device: mps.MTLDevice,
        data: Dataset,
        size: int,
        mean: float,
        deviation: float,
        channel_format: mps.MPSImageFeatureChannelFormat,
        *,
        flips: bool = True,
    ) -> None:
        self.device, self.size, self.count = device, size, len(data)
        _, self.height, self.width, self.channels = data.images.shape
        one_hot = np.eye(len(data.class_names), dtype=np.float32)[data.labels]
        self.images = mps.MPSImage.from_numpy(device, data.images)
        self.classes = mps.MPSImage.from_numpy(device, one_hot[:, None, None])
        self.order = mps.MPSVector.from_numpy(device, np.arange(self.count, dtype=np.uint32))
        # One for all steps: work is done in order, and each step fills them before it reads them.
        self.labels = mps.MPSCNNLossLabels.batch(device, one_hot[:size])
        self.label_images = mps.MPSImageBatch([each.labels_image() for each in self.labels])
        self.selection, self.flip = ImageSelection(device), AlternatingFlip(device, seed=1) if flips else None
        self.augmentation = ImageAugmentation(device, seed=2)
        self.augmentation.crop, self.augmentation.padding_mode = 2, mps.MPSImageEdgeMode.MIRROR
        self.augmentation.mean = (mean,) * self.channels
        self.augmentation.standard_deviation = (deviation,) * self.channels
        self.format = channel_format

    def begin_epoch(self, number: int) -> None:
        """Shuffle; no step is under way."""
        self.order.data.contents().view(np.uint32)[:] = np.random.default_rng(number).permutation(self.count)
        if self.flip is not None:
            self.flip.epoch = number

    def encode(self, command_buffer: mps.MPSCommandBuffer, place: int) -> mps.MPSImageBatch:
        """Record how the images of a batch are made, and its labels; it begins at a place in the order."""
        self.selection.first = place
        self.selection.encode_batch(command_buffer, self.classes, self.order, self.label_images)
        images = self.new(command_buffer, self.images.feature_channel_format)
        self.selection.encode_batch(command_buffer, self.images, self.order, images)
        if self.flip is not None:
            chosen, images = images, self.new(command_buffer, self.images.feature_channel_format)
            self.flip.first = place
            self.flip.encode_batch(command_buffer, chosen, self.order, images)
        augmented = self.new(command_buffer, self.format)
        self.augmentation.encode_batch(command_buffer, images, augmented)
        return augmented

    def new(
        self, command_buffer: mps.MPSCommandBuffer, channel_format: mps.MPSImageFeatureChannelFormat
    ) -> mps.MPSImageBatch:
        """Images that live as long as the step."""
        descriptor = mps.MPSImageDescriptor(channel_format, self.width, self.height, self.channels)
        return mps.MPSImageBatch.allocate_temporary(command_buffer, descriptor, self.size)


def schedule(step: int, steps: int) -> float:
    """Up to the whole rate at 23 %, and down to 7 % of it."""
    peak, behind = 0.23, step / steps
    return 0.2 + 0.8 * behind / peak if behind < peak else 1 - 0.93 * (behind - peak) / (1 - peak)


def start_step(queue: mps.MTLCommandQueue, graph: mps.MPSNNGraph, batches: Batches, place: int) -> mps.MPSCommandBuffer:
    """Make a batch, from a place in the order on, and train on it: one command buffer."""
    command_buffer = mps.MPSCommandBuffer(queue)
    images = batches.encode(command_buffer, place)
    graph.encode_batch(command_buffer, [images], [batches.labels])
    command_buffer.commit()
    return command_buffer


def train(network: Speedrun, batches: Batches, graph: mps.MPSNNGraph, steps: int) -> float:
    """The seconds of so many steps, of which two are under way at a time."""
    under_way: list[mps.MPSCommandBuffer] = []
    in_epoch = batches.count // batches.size
    began = time.perf_counter()
    for step in range(steps):
        while len(under_way) >= (UNDER_WAY if step % in_epoch else 1):
            under_way.pop(0).wait_until_completed()
        if step % in_epoch == 0:
            batches.begin_epoch(step // in_epoch)
        network.set_rate(RATE / batches.size * schedule(step, steps))
        under_way.append(start_step(network.queue, graph, batches, step % in_epoch * batches.size))
    for command_buffer in under_way:
        command_buffer.wait_until_completed()
    return time.perf_counter() - began


def accuracy(graph: mps.MPSNNGraph, device: mps.MTLDevice, data: Dataset, mean: float, deviation: float) -> float:
    """The share of images whose largest logit is that of their class."""
    graph.reload_from_data_sources()
    queue, right = device.new_command_queue(), 0
    for first in range(0, len(data), 500):
        some = slice(first, first + 500)
        normalized = ((data.images[some] / np.float32(255) - mean) / deviation).astype(np.float32)
        command_buffer = queue.command_buffer()
        found = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, normalized)])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert found is not None  # the graph was made with a result
        right += int((found.numpy().reshape(-1, len(data.class_names)).argmax(1) == data.labels[some]).sum())
    return right / len(data)


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train, and test."""
    parser = argparse.ArgumentParser(description="CIFAR-10 in 200 steps")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--cifar", type=Path, help="the folder of CIFAR-10's binary version")
    parser.add_argument("--idx", type=Path, help="a folder of MNIST-style files")
    parser.add_argument("--synthetic", type=int, metavar="COUNT", help="so many images of noise")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--widths", default="64,256,256", help="channels of the three groups")
    parser.add_argument("--float32", action="store_true", help="rather than half precision")
    given = parser.parse_args(arguments)
    data = (
        cifar(given.cifar) if given.cifar
        else synthetic(given.synthetic) if given.synthetic
        else load_dataset(given.idx) if given.idx
        else digits()
    )  # fmt: skip
    device, form = mps.mtl_device(given.device), FLOAT32 if given.float32 else FLOAT16
    mean, deviation = float(data.training.images.mean() / 255), float(data.training.images.std() / 255)
    widths = [int(each) for each in given.widths.split(",")]
    network = Speedrun(device, data.training, widths, mean, deviation)
    is_of_things = given.cifar is not None or given.synthetic is not None  # a mirrored digit is none
    batches = Batches(device, data.training, given.batch, mean, deviation, form, flips=is_of_things)
    graph = network.training_graph(form)
    seconds = train(network, batches, graph, given.steps)
    print(f"{given.steps} steps of {given.batch} images in {seconds:.2f} s, the first ones' preparation included")
    found = accuracy(network.inference_graph(form), device, data.test, mean, deviation)
    print(f"accuracy {found:.2%} on {len(data.test):,} images that it has not seen")
    return seconds, found


if __name__ == "__main__":
    main()
