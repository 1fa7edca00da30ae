"""Tiny-YOLO, an object detector, trained as an app trains it with MPSNNGraph.

What it shows:

- convolutions without biases, each with a batch normalization and a leaky ReLU, and max pooling that keeps the size;
- `MPSCNNYOLOLossNode` with anchor boxes and labels; the loss read in a completed handler, two batches under way;
- a backward pass made by hand with `gradient_filter`, newest first, where `training_graph` would make it in one call;
- a data source of a batch normalization: gamma and beta by Adam or by gradient descent with clipped gradients, running
  mean and variance on the device;
- a second graph over the same data sources, which finds boxes.

Usage, in a clone of the repository::

    python examples/tiny_yolo.py [--device auto] [--size 64] [--filters 4] [--steps 160] [--batch 8] [--optimizer adam]

It learns to find coloured rectangles and ends with how well it does on pictures that it has not seen. The network of
the apps has ``--filters 16`` and pictures of 416 pixels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
MakeOptimizer = Callable[[mps.MTLDevice], mps.MPSNNOptimizer]

CELL = 32
"""Pixels a cell: five poolings halve the picture."""
BOX = 5
"""Numbers of a box that are no classes: centre x and y, width, height, confidence."""

# --- optimizers and data sources --------------------------------------------------------------------------------------


def adam(learning_rate: float = 1e-3) -> MakeOptimizer:
    """Adam, one for each layer."""
    return lambda device: mps.MPSNNOptimizerAdam(device, learning_rate)


def clipped_descent(learning_rate: float = 0.01, limit: float = 0.025) -> MakeOptimizer:
    """Gradient descent with momentum, some weight decay, and no gradient above a limit; one for each layer."""
    descriptor = mps.MPSNNOptimizerDescriptor(
        learning_rate,
        apply_gradient_clipping=True,
        gradient_clip_max=limit,
        gradient_clip_min=-limit,
        regularization_type=mps.MPSNNRegularizationType.L2,
        regularization_scale=5e-4,
    )
    return lambda device: mps.MPSNNOptimizerStochasticGradientDescent(
        device, momentum_scale=0.9, optimizer_descriptor=descriptor
    )


OPTIMIZERS = {"adam": adam, "sgd": clipped_descent}


class BatchNormalization:
    """The data source of a batch normalization, which trains gamma and beta and averages mean and variance.

    All numbers stay on the device. The graph asks for both updates behind the gradients of each batch.
    """

    def __init__(self, device: mps.MTLDevice, channels: int, label: str, make_optimizer: MakeOptimizer) -> None:
        def buffer(value: float) -> mps.MTLBuffer:
            return device.new_buffer(data=np.full(channels, value, np.float32))

        self._channels, self._label = channels, label
        self.gamma_and_beta = mps.MPSCNNNormalizationGammaAndBetaState(buffer(1.0), buffer(0.0))
        self.mean_and_variance = mps.MPSCNNNormalizationMeanAndVarianceState(buffer(0.0), buffer(1.0))
        self._optimizer: Any = make_optimizer(device)  # what its encode takes depends on its class
        names = ["input_momentum_vectors"]
        if isinstance(self._optimizer, mps.MPSNNOptimizerAdam):
            names.append("input_velocity_vectors")
        self._row = mps.MPSVectorDescriptor(channels)
        self._vectors = {
            name: [mps.MPSVector(device=device, descriptor=self._row) for _ in ("gamma", "beta")] for name in names
        }
        # An optimizer makes a running average: with the regularization v and the gradient -b, v - r (v - b).
        average = mps.MPSNNOptimizerDescriptor(
            learning_rate=0.1,
            gradient_rescale=-1.0,
            regularization_type=mps.MPSNNRegularizationType.L2,
            regularization_scale=1.0,
        )
        self._average = mps.MPSNNOptimizerStochasticGradientDescent(device, optimizer_descriptor=average)
        running = self.mean_and_variance.mean, self.mean_and_variance.variance
        self._running = [mps.MPSVector(buffer, self._row) for buffer in running]

    def label(self) -> str:
        """The layer's name."""
        return self._label

    def load(self) -> bool:
        """The numbers are always there."""
        return True

    def purge(self) -> None:
        """The numbers stay."""

    def number_of_feature_channels(self) -> int:
        """How many channels are normalized."""
        return self._channels

    def epsilon(self) -> float:
        """Added to the variance. The framework's default is almost 0: other tools have 1e-3 or 1e-5."""
        return 1e-3

    def gamma(self) -> mps.MTLBuffer:
        """The scales."""
        return self.gamma_and_beta.gamma

    def beta(self) -> mps.MTLBuffer:
        """The shifts."""
        return self.gamma_and_beta.beta

    def mean(self) -> mps.MTLBuffer:
        """The running means, for inference."""
        return self.mean_and_variance.mean

    def variance(self) -> mps.MTLBuffer:
        """The running variances, for inference."""
        return self.mean_and_variance.variance

    def update_gamma_and_beta(
        self, command_buffer: mps.MTLCommandBuffer, batch_normalization_state: mps.MPSCNNBatchNormalizationState
    ) -> mps.MPSCNNNormalizationGammaAndBetaState:
        """Record a step of the optimizer. Whoever returns None says that nothing is new."""
        self._optimizer.encode(
            command_buffer,
            batch_normalization_state=batch_normalization_state,
            result_state=self.gamma_and_beta,
            **self._vectors,
        )
        return self.gamma_and_beta

    def update_mean_and_variance(
        self, command_buffer: mps.MTLCommandBuffer, batch_normalization_state: mps.MPSCNNBatchNormalizationState
    ) -> mps.MPSCNNNormalizationMeanAndVarianceState:
        """Record a step of the running averages towards the statistics of the batch."""
        batch = batch_normalization_state.mean(), batch_normalization_state.variance()
        for statistic, running in zip(batch, self._running, strict=True):
            self._average.encode(
                command_buffer,
                input_gradient_vector=mps.MPSVector(statistic, self._row),
                input_values_vector=running,
                result_values_vector=running,
            )
        return self.mean_and_variance


# --- the network ------------------------------------------------------------------------------------------------------

# The odd pixel goes to the top left, as in the apps; TensorFlow's SAME puts it to the bottom right.
SAME = mps.MPSNNDefaultPadding(
    mps.MPSNNPaddingMethod.SIZE_SAME
    | mps.MPSNNPaddingMethod.ALIGN_CENTERED
    | mps.MPSNNPaddingMethod.ADD_REMAINDER_TO_TOP_LEFT
)
HALVED = mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only()
KEPT = mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling()


def widths(first: int = 16) -> list[int]:
    """The filters of the eight 3x3 convolutions, doubled from each to the next but for the last."""
    return [first * 2**level for level in (0, 1, 2, 3, 4, 5, 6, 6)]


class TinyYOLO:
    """The detector: its data sources, and the graphs over them.

    Predictions and labels are images of a pixel a cell, in which box a of A, for K classes, has the channels from
    ``(5 + K) a`` on: x, y, width, height, confidence, then a channel a class.
    """

    def __init__(
        self,
        device: mps.MTLDevice,
        classes: int,
        anchors: Array,
        filters: Sequence[int] | None = None,
        make_optimizer: MakeOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        make_optimizer = make_optimizer or adam()
        self.device = device
        self.classes = classes
        self.anchors = np.asarray(anchors, np.float32)
        channels = [3, *(filters or widths())]
        random = np.random.default_rng(seed)

        def convolution(
            label: str, size: int, inputs: int, outputs: int, biases: Array | None = None
        ) -> mps.TrainableConvolutionDataSource:
            shape = (outputs, size, size, inputs)  # OHWI, as the framework's data sources give weights
            weights = random.normal(0.0, np.sqrt(2.0 / (size * size * inputs)), shape)
            descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
            return mps.TrainableConvolutionDataSource(descriptor, weights, biases, label, optimizer=make_optimizer)

        self.convolutions = [
            convolution(f"conv{index}", 3, inputs, outputs)
            for index, (inputs, outputs) in enumerate(pairwise(channels), 1)
        ]
        self.normalizations = [
            BatchNormalization(device, outputs, f"norm{index}", make_optimizer)
            for index, outputs in enumerate(channels[1:], 1)
        ]
        outputs = len(self.anchors) * (BOX + classes)
        self.head = convolution("head", 1, channels[-1], outputs, np.zeros(outputs, np.float32))

    def nodes(self, image: mps.MPSNNImageNode) -> list[mps.MPSNNFilterNode]:
        """New forward nodes, first to last."""
        nodes: list[mps.MPSNNFilterNode] = []

        def add(node: mps.MPSNNFilterNode, padding_policy: mps.MPSNNPadding) -> mps.MPSNNImageNode:
            node.padding_policy = padding_policy
            nodes.append(node)
            return node.result_image

        for level, (weights, scales) in enumerate(zip(self.convolutions, self.normalizations, strict=True)):
            image = add(mps.MPSCNNConvolutionNode(image, weights), SAME)
            image = add(mps.MPSCNNBatchNormalizationNode(image, scales), SAME)
            image = add(mps.MPSCNNNeuronReLUNode(image, 0.1), SAME)
            if level < 5:
                image = add(mps.MPSCNNPoolingMaxNode(image, 2, 2), HALVED)
            elif level == 5:
                image = add(mps.MPSCNNPoolingMaxNode(image, 2, 1), KEPT)
        add(mps.MPSCNNConvolutionNode(image, self.head), SAME)
        return nodes

    def loss_descriptor(self, batch: int) -> mps.MPSCNNYOLOLossDescriptor:
        """What a detection costs; the loss of a batch is the mean of its images'."""
        kinds = mps.MPSCNNLossType
        descriptor = mps.MPSCNNYOLOLossDescriptor(
            kinds.MEAN_SQUARED_ERROR,
            kinds.HUBER,
            kinds.SIGMOID_CROSS_ENTROPY,
            kinds.SOFT_MAX_CROSS_ENTROPY,
            mps.MPSCNNReductionType.SUM,
            self.anchors,
        )
        descriptor.rescore = True
        descriptor.scale_xy = descriptor.scale_wh = 10.0
        # The framework's defaults are 100, 5 and 2: with them, a training as short as this one learns no classes.
        descriptor.scale_object, descriptor.scale_no_object, descriptor.scale_class = 10.0, 1.0, 10.0
        descriptor.min_iou_for_object_presence, descriptor.max_iou_for_object_absence = 0.7, 0.3
        parts = (
            descriptor.xy_loss_descriptor,
            descriptor.wh_loss_descriptor,
            descriptor.confidence_loss_descriptor,
            descriptor.classes_loss_descriptor,
        )
        for part in parts:
            part.weight = 1.0 / batch
        return descriptor

    def training_graph(
        self, batch: int, *, input_gradient: bool = False, export_states: bool = False
    ) -> mps.MPSNNGraph:
        """A graph that trains; its result is the gradient of the pictures, if that is wanted.

        ``export_states`` hands out the gradients of all parameters too, as destination states.
        """
        nodes = self.nodes(mps.MPSNNImageNode(mps.Handle("pictures")))
        loss = mps.MPSCNNYOLOLossNode(nodes[-1].result_image, self.loss_descriptor(batch))
        loss.input_labels.handle = mps.Handle("boxes")
        gradient = loss.result_image  # a loss node's result is the gradient of its source
        for node in reversed(nodes):
            gradient = node.gradient_filter(gradient).result_image
        if export_states:
            for node in nodes:
                if isinstance(node, mps.MPSCNNConvolutionNode | mps.MPSCNNBatchNormalizationNode) and node.result_state:
                    node.result_state.export_from_graph = True
                    node.result_state.handle = mps.Handle(node.label)
        graph = mps.MPSNNGraph(self.device, gradient, input_gradient)
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return graph

    def inference_graph(self) -> mps.MPSNNGraph:
        """A graph of the network as it is trained now, which normalizes with the running statistics."""
        nodes = self.nodes(mps.MPSNNImageNode(mps.Handle("pictures")))
        graph = mps.MPSNNGraph(self.device, nodes[-1].result_image)
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return graph

    # --- boxes --------------------------------------------------------------------------------------------------------

    def labels(self, boxes: Array, kinds: NDArray[np.int64], cells: int) -> Array:
        """Labels of pictures with one box each, ``[N, cells, cells, A (5 + K)]``.

        ``boxes`` are ``[N, 4]``: centre x and y, width and height, in cells.
        """
        labels = np.zeros((len(boxes), cells, cells, len(self.anchors), BOX + self.classes), np.float32)
        for label, box, kind in zip(labels, boxes, kinds, strict=True):
            column, row = int(box[0]), int(box[1])
            # All anchors of the cell get the box; the loss finds out which of them is responsible.
            label[row, column, :, :BOX] = box[0] - column, box[1] - row, box[2], box[3], 1.0
            label[row, column, :, BOX + kind] = 1.0
        return labels.reshape(len(boxes), cells, cells, -1)

    def best_boxes(self, predictions: Array) -> tuple[Array, NDArray[np.int64]]:
        """The surest box of each picture, centre and size in cells, and its class."""
        count, cells = predictions.shape[:2]
        found = predictions.reshape(count, cells, cells, len(self.anchors), -1)
        boxes = np.zeros((count, 4), np.float32)
        kinds = np.zeros(count, np.int64)
        for index, picture in enumerate(found):
            row, column, anchor = np.unravel_index(picture[..., 4].argmax(), picture.shape[:3])
            box = picture[row, column, anchor]
            boxes[index, :2] = (column, row) + 1.0 / (1.0 + np.exp(-box[:2]))
            boxes[index, 2:] = self.anchors[anchor] * np.exp(box[2:4])
            kinds[index] = box[BOX:].argmax()
        return boxes, kinds


# --- pictures, training, result ---------------------------------------------------------------------------------------


def square_anchors(sizes: Sequence[float] = (1.0,)) -> Array:
    """Three anchor boxes a size, in cells: tall, square and wide."""
    return np.array([(size * x, size * y) for size in sizes for x, y in ((0.7, 1.4), (1, 1), (1.4, 0.7))], np.float32)


def draw(random: np.random.Generator, count: int, size: int) -> tuple[Array, Array, NDArray[np.int64]]:
    """Noise with one red, green or blue rectangle a picture: pictures, boxes in cells, classes."""
    pictures = random.uniform(0.0, 0.2, (count, size, size, 3)).astype(np.float32)
    kinds = random.integers(0, 3, count)
    boxes = np.zeros((count, 4), np.float32)
    for picture, box, kind in zip(pictures, boxes, kinds, strict=True):
        width, height = random.integers(size // 4, size * 5 // 8, 2)
        left, top = random.integers(0, size - width), random.integers(0, size - height)
        picture[top : top + height, left : left + width, kind] += 0.8
        box[:] = left + width / 2, top + height / 2, width, height
    return pictures, boxes / np.float32(CELL), kinds


def train(network: TinyYOLO, random: np.random.Generator, size: int, batch: int, steps: int) -> list[float]:
    """Train on new pictures in each step; the losses."""
    graph = network.training_graph(batch)
    queue = network.device.new_command_queue()
    losses: list[float] = []
    before: mps.MTLCommandBuffer | None = None
    for step in range(steps):
        pictures, boxes, kinds = draw(random, batch, size)
        labels = mps.MPSCNNLossLabels.batch(network.device, network.labels(boxes, kinds, size // CELL))
        given = {"pictures": mps.MPSImageBatch.from_numpy(network.device, pictures)}
        command_buffer = queue.command_buffer()
        sources = [given[handle.label() or ""] for handle in graph.source_image_handles]
        graph.encode_batch(command_buffer, sources, [labels])
        mps.MPSStateBatchSynchronize(labels, command_buffer)

        def completed(_: Any, step: int = step, labels: Sequence[Any] = labels) -> None:
            losses.append(sum(float(label.loss_image().numpy().item()) for label in labels))
            if step % 20 == 0 or step == steps - 1:
                print(f"step {step:3}  loss {losses[-1]:8.3f}")

        command_buffer.add_completed_handler(completed)
        command_buffer.commit()
        if before is not None:
            before.wait_until_completed()  # one batch is drawn and recorded while another is computed
        before = command_buffer
    if before is not None:
        before.wait_until_completed()
    return losses


def overlap(boxes: Array, others: Array) -> Array:
    """Intersection over union of pairs of boxes."""
    low = np.maximum(boxes[:, :2] - boxes[:, 2:] / 2, others[:, :2] - others[:, 2:] / 2)
    high = np.minimum(boxes[:, :2] + boxes[:, 2:] / 2, others[:, :2] + others[:, 2:] / 2)
    common = np.maximum(high - low, 0.0).prod(1)
    return common / (boxes[:, 2:].prod(1) + others[:, 2:].prod(1) - common)


def evaluate(network: TinyYOLO, random: np.random.Generator, size: int, count: int = 64) -> tuple[float, float]:
    """The mean overlap of the surest box with the true one, and how often its class is right, on new pictures."""
    pictures, boxes, kinds = draw(random, count, size)
    command_buffer = network.device.new_command_queue().command_buffer()
    images = mps.MPSImageBatch.from_numpy(network.device, pictures)
    result = network.inference_graph().encode_batch(command_buffer, [images])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result is not None  # the graph was made with a result
    found, classes = network.best_boxes(result.numpy())
    return float(overlap(found, boxes).mean()), float((classes == kinds).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train on rectangles, then find some."""
    parser = argparse.ArgumentParser(description="Tiny-YOLO on coloured rectangles")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--size", type=int, default=64, help=f"width and height of pictures, a multiple of {CELL}")
    parser.add_argument("--filters", type=int, default=4, help="filters of the first convolution; the last has 64 x")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    given = parser.parse_args(arguments)
    if given.size % CELL or min(given.size, given.filters, given.steps, given.batch) < 1:
        parser.error(f"--size must be a multiple of {CELL}, and every number at least 1")
    random = np.random.default_rng(0)
    device = mps.mtl_device(given.device)
    network = TinyYOLO(device, 3, square_anchors(), widths(given.filters), OPTIMIZERS[given.optimizer]())
    losses = train(network, random, given.size, given.batch, given.steps)
    shared, right = evaluate(network, random, given.size)
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
    print(f"on new pictures: boxes overlap by {shared:.0%}, {right:.0%} of the classes are right")


if __name__ == "__main__":
    main()
