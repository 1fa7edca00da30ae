"""The contenders of openmps: networks trained and run through `MPSNNGraph`, two command buffers in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import openmps as mps
from bench.harness import Turn
from bench.work import Work, batches, pictures
from openmps.training.network import Network, NetworkShape

IN_FLIGHT = 2
Format = mps.MPSImageFeatureChannelFormat
_LOSS_SCALE = 1024.0
"""What losses are multiplied by, and gradients divided by again, where gradients are float16."""


def training(device: str, **said: Any) -> Turn:
    """Steps of a network by name, from bytes and classes on the host to the new weights."""
    work, machine = Work(**said), mps.mtl_device(device)
    shape = NetworkShape(work.side, work.side, work.channels, work.classes, work.network)
    scale = _LOSS_SCALE if work.half else 1.0
    network = Network.create(shape, seed=1, optimizer=_optimizer(work.optimizer, 1 / scale))
    graph = network.training_graph(
        machine, _format(work), loss_weight=scale / work.batch, dropout_seed=1, gradient_format=_format(work)
    )
    graph.stop_on_non_finite, graph.allow_second_moments = False, work.moments
    one_hot, given, stored = np.eye(work.classes, dtype=np.float32), batches(work), _stored(machine, work)

    def encode(command_buffer: mps.MPSCommandBuffer) -> None:
        images, classes = next(given)
        batch = stored(command_buffer, mps.MPSImageBatch.from_numpy(machine, images, Format.UNORM8))
        labels = mps.MPSCNNLossLabels.batch(machine, one_hot.take(classes, axis=0))
        graph.encode_batch(command_buffer, [batch], [labels])

    return _in_flight(machine, encode)


def inference(device: str, **said: Any) -> Turn:
    """Probabilities of one batch after another; the images are on the device."""
    work, machine = Work(**said), mps.mtl_device(device)
    shape = NetworkShape(work.side, work.side, work.channels, work.classes, work.network)
    generator = np.random.default_rng(1)
    arrays = {name: np.abs(generator.normal(0, 0.05, size)).astype(np.float32) for name, size in shape.arrays().items()}
    graph = Network.from_arrays(shape, arrays).inference_graph(machine, _format(work))
    batch = mps.MPSImageBatch.from_numpy(machine, pictures(work).astype(work.numpy_dtype))

    def encode(command_buffer: mps.MPSCommandBuffer) -> None:
        graph.encode_batch(command_buffer, [batch])

    return _in_flight(machine, encode)


def detector_inference(device: str, **said: Any) -> Turn:
    """What the example's Tiny-YOLO finds in one batch after another; the images are on the device."""
    from tiny_yolo import TinyYOLO, square_anchors, widths

    work, machine = Work(**said), mps.mtl_device(device)
    graph = TinyYOLO(machine, work.classes, square_anchors(), widths(work.width)).inference_graph()
    graph.format = _format(work)
    batch = mps.MPSImageBatch.from_numpy(machine, pictures(work).astype(work.numpy_dtype))
    return _in_flight(machine, lambda command_buffer: graph.encode_batch(command_buffer, [batch]))


def detector_training(device: str, **said: Any) -> Turn:
    """Steps of the example's Tiny-YOLO, with one box in each picture, and the package's data sources throughout."""
    from tiny_yolo import CELL, OPTIMIZERS, TinyYOLO, square_anchors, widths

    work, machine = Work(**said), mps.mtl_device(device)
    network = TinyYOLO(machine, work.classes, square_anchors(), widths(work.width), OPTIMIZERS[work.optimizer]())
    network.normalizations = [
        mps.TrainableBatchNormalizationDataSource(
            each.number_of_feature_channels(), label=each.label(), epsilon=each.epsilon(),
            optimizer=OPTIMIZERS[work.optimizer](),
        )
        for each in network.normalizations
    ]  # fmt: skip
    graph = network.training_graph(work.batch)
    graph.format = _format(work)
    cells, given, stored = work.side // CELL, batches(work), _stored(machine, work)
    middle = np.full((work.batch, 4), cells / 2, np.float32)
    boxes = network.labels(middle, np.arange(work.batch) % work.classes, cells)

    def encode(command_buffer: mps.MPSCommandBuffer) -> None:
        batch = stored(command_buffer, mps.MPSImageBatch.from_numpy(machine, next(given)[0], Format.UNORM8))
        labels = mps.MPSCNNLossLabels.batch(machine, boxes)
        graph.encode_batch(command_buffer, [batch], [labels])

    return _in_flight(machine, encode)


def _format(work: Work) -> Format:
    return Format.FLOAT16 if work.half else Format.FLOAT32


def _stored(
    machine: mps.MTLDevice, work: Work
) -> Callable[[mps.MPSCommandBuffer, mps.MPSImageBatch], mps.MPSImageBatch]:
    """What brings bytes to the format of the other images, as peers do who multiply float16."""
    if not work.half or work.reads_bytes:
        return lambda command_buffer, batch: batch
    kernel = mps.MPSNNSlice(machine)
    descriptor = mps.MPSImageDescriptor(Format.FLOAT16, work.side, work.side, work.channels)

    def stored(command_buffer: mps.MPSCommandBuffer, batch: mps.MPSImageBatch) -> mps.MPSImageBatch:
        halves = mps.MPSImageBatch.allocate_temporary(command_buffer, descriptor, len(batch))
        kernel.encode_batch(command_buffer, batch, halves)
        return halves

    return stored


def _optimizer(name: str, rescale: float) -> Callable[[mps.MTLDevice], mps.MPSNNOptimizer]:
    rate = 1e-3 if name == "adam" else 0.01
    said = mps.MPSNNOptimizerDescriptor(learning_rate=rate, gradient_rescale=rescale)
    if name == "adam":
        return lambda device: mps.MPSNNOptimizerAdam(device, optimizer_descriptor=said)
    more = {"momentum_scale": 0.9, "optimizer_descriptor": said}
    return lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, **more)


def _in_flight(device: mps.MTLDevice, encode: Callable[[mps.MPSCommandBuffer], None]) -> Turn:
    queue = device.new_command_queue(IN_FLIGHT)
    queue.measures_times = False  # nobody asks for them here, as nobody asks a peer

    def run(steps: int) -> None:
        command_buffer = None
        for _ in range(steps):
            command_buffer = mps.MPSCommandBuffer(command_queue=queue)
            encode(command_buffer)
            command_buffer.commit()
        if command_buffer is not None:
            command_buffer.wait_until_completed()

    return Turn(run, encode)
