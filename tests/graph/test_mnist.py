"""The framework's training sample on the real digits: the accuracy that it must reach."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoding import Bench
from networks import POOL, convolution, softmax_loss
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNFullyConnectedNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.graph.nodes.softmax import MPSCNNSoftMaxNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.loss import MPSCNNLossDataDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import MPSNNOptimizerAdam
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import MPSDataLayout, MPSImageFeatureChannelFormat, MTLSize

Array = np.ndarray
Format = MPSImageFeatureChannelFormat
FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "mnist"
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCH = 40

pytestmark = pytest.mark.skipif(
    not all((FOLDER / f"{name}.gz").is_file() for name in FILES), reason=f"the MNIST files are not in {FOLDER}"
)


def _elements(name: str) -> Array:
    with gzip.open(FOLDER / f"{name}.gz") as file:
        content = file.read()
    header = 16 if "images" in name else 8
    return np.frombuffer(content, np.uint8, offset=header)


class Sample:
    """Both graphs of the sample over the same data sources."""

    def __init__(self, bench: Bench, seed: int = 1) -> None:
        self.bench = bench
        shapes = {"conv1": (5, 1, 32), "conv2": (5, 32, 64), "fc1": (7, 64, 1024), "fc2": (1, 1024, 10)}
        self.sources = {
            name: TrainableConvolutionDataSource.uniform(
                MPSCNNConvolutionDescriptor(kernel, kernel, inputs, outputs),
                limit=0.2,
                bias=0.1,
                seed=seed + index,
                label=name,
                optimizer=lambda device: MPSNNOptimizerAdam(device, 1e-3),
            )
            for index, (name, (kernel, inputs, outputs)) in enumerate(shapes.items())
        }
        self.calls: list[Any] = []
        loss = softmax_loss(self._nodes(training=True).result_image, 1 / BATCH)
        (terminus,) = loss.training_graph(None, self._handle) or []
        self.training = MPSNNGraph(bench.device, terminus.result_image, False)
        inference = MPSCNNSoftMaxNode(self._nodes(training=False).result_image)
        self.inference = MPSNNGraph(bench.device, inference.result_image)
        for graph in (self.training, self.inference):
            graph.format = Format.FLOAT32

    def _handle(self, gradient_node: Any, *_: Any) -> None:
        gradient_node.result_image.format = Format.FLOAT32
        self.calls.append(gradient_node)

    def _nodes(self, *, training: bool) -> MPSNNFilterNode:
        now = MPSNNImageNode()
        for name in ("conv1", "conv2"):
            relu = MPSCNNNeuronReLUNode(convolution(now, self.sources[name]).result_image)
            pool = MPSCNNPoolingMaxNode(relu.result_image, 2, 2)
            pool.padding_policy = POOL
            now = pool.result_image
        now = MPSCNNNeuronReLUNode(MPSCNNFullyConnectedNode(now, self.sources["fc1"]).result_image).result_image
        if training:
            now = MPSCNNDropoutNode(now, 0.5, 1, MTLSize(1, 1, 1)).result_image
        return MPSCNNFullyConnectedNode(now, self.sources["fc2"])

    def images(self, pixels: Array) -> list[MPSImage]:
        """One image object for each picture, as the sample makes them."""
        descriptor = MPSImageDescriptor(Format.UNORM8, 28, 28, 1)
        made = [MPSImage(self.bench.device, descriptor) for _ in pixels]
        for image, picture in zip(made, pixels, strict=True):
            image.write_bytes(picture)
        return made

    def labels(self, classes: Array) -> list[MPSCNNLossLabels]:
        """One-hot, in 12 channels: 10 rounded up to a multiple of 4."""
        layout, size = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS, MTLSize(1, 1, 12)
        rows = np.eye(12, dtype=np.float32)[classes]
        return [MPSCNNLossLabels(self.bench.device, MPSCNNLossDataDescriptor(row, layout, size)) for row in rows]

    def train(self, pixels: Array, classes: Array, batches: Array) -> list[float]:
        """Two command buffers in flight; the losses as the sample prints them."""
        gate, printed = threading.Semaphore(2), []
        command_buffer: Any = None
        for chosen in batches:
            assert gate.acquire(timeout=120)
            given = self.labels(classes[chosen])
            command_buffer = MPSCommandBuffer(command_queue=self.bench.queue)
            self.training.encode_batch(command_buffer, [self.images(pixels[chosen])], [given])

            def done(buffer: Any, given: Any = given) -> None:
                gate.release()
                printed.append(sum(each.loss_image().numpy().item() for each in given) / BATCH)

            command_buffer.add_completed_handler(done)
            command_buffer.commit()
        command_buffer.wait_until_completed()
        return printed

    def accuracy(self, pixels: Array, classes: Array) -> float:
        """Of the inference graph, after it took the trained weights over; of batches in one block, made at once."""
        self.inference.reload_from_data_sources()
        right = 0
        for start in range(0, len(pixels), 200):
            command_buffer = self.bench.command_buffer()
            given = MPSImageBatch.from_numpy(self.bench.device, pixels[start : start + 200])
            result: Any = self.inference.encode_batch(command_buffer, [given])
            command_buffer.commit()
            command_buffer.wait_until_completed()
            found = result.numpy().reshape(len(given), 10).argmax(1)
            right += int((found == classes[start : start + 200]).sum())
        return right / len(pixels)


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array, Array, Array]:
    x, y, x_test, y_test = (_elements(name) for name in FILES)
    return x.reshape(-1, 28, 28, 1), y, x_test.reshape(-1, 28, 28, 1), y_test


def test_300_iterations(digits: tuple[Array, Array, Array, Array]) -> None:
    """As many as the sample runs. Its first printed loss is about that of guessing, far above the last ones."""
    pixels, classes, test_pixels, test_classes = digits
    sample = Sample(Bench(mtl_device("cpu")))
    assert len(sample.calls) == 10
    batches = np.random.default_rng(0).integers(0, len(pixels), (300, BATCH))
    printed = sample.train(pixels, classes, batches)
    assert len(printed) == 300
    assert np.mean(printed[-50:]) < 0.3 / BATCH < np.mean(printed[:5])
    assert sample.accuracy(test_pixels, test_classes) >= 0.955


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_epochs(digits: tuple[Array, Array, Array, Array]) -> None:
    pixels, classes, test_pixels, test_classes = digits
    sample = Sample(Bench(mtl_device("cpu")))
    rng = np.random.default_rng(0)
    batches = np.concatenate([rng.permutation(len(pixels)).reshape(-1, BATCH) for _ in range(3)])
    sample.train(pixels, classes, batches)
    assert sample.accuracy(test_pixels, test_classes) >= 0.983
