"""A network out of an ONNX file, trained further on data of one's own.

What it shows:

- `openmps.formats.onnx.save` and `network`: a graph as an ONNX file, and a file as nodes of graphs;
- `TrainableDataSources`, which make the file's weights trainable;
- a graph for inference and one that trains, over the weights of the file.

Usage, in a clone of the repository::

    python examples/fine_tuning.py [--device auto] [--steps 100]

It trains on digits, keeps the network as ONNX, and goes on with it on digits that lie on their side. It needs the onnx
package.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import openmps as mps
from openmps.formats import onnx
from openmps.training import Dataset, load_digits_dataset

Array = NDArray[np.float32]
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 3e-3)


def first_network(device: mps.MTLDevice) -> tuple[mps.MPSNNImageNode, mps.MPSNNGraph]:
    """A small classifier from nodes: its logits, and a graph of them for inference."""

    def layer(label: str, size: int, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
        descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
        return mps.TrainableConvolutionDataSource.uniform(
            descriptor, limit=0.2, bias=0.0, seed=outputs, label=label, optimizer=adam
        )

    image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("picture")), layer("conv", 3, 1, 16)).result_image
    image = mps.MPSCNNPoolingMaxNode(mps.MPSCNNNeuronReLUNode(image).result_image, 2, 2).result_image
    logits = mps.MPSCNNFullyConnectedNode(image, layer("dense", 4, 16, 10)).result_image
    logits.handle = mps.Handle("logits")
    graph = mps.MPSNNGraph(device, logits)
    graph.format = FLOAT32
    return logits, graph


def pixels(data: Dataset, *, turned: bool = False) -> Array:
    """Pictures as numbers from 0 to 1."""
    found: Array = data.images.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(np.rot90(found, axes=(1, 2))) if turned else found


def train(
    device: mps.MTLDevice, logits: mps.MPSNNImageNode, pictures: Array, kinds: NDArray[np.int64], steps: int
) -> None:
    """Softmax cross-entropy on batches of 32."""
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    (end,) = mps.MPSCNNLossNode(logits, descriptor).training_graph()
    graph = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
    graph.format = FLOAT32
    queue = device.new_command_queue()
    for chosen in np.random.default_rng(0).integers(0, len(pictures), (steps, 32)):
        labels = mps.MPSCNNLossLabels.batch(device, np.eye(10)[kinds[chosen]])
        command_buffer = mps.MPSCommandBuffer(queue)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pictures[chosen])], [labels])
        command_buffer.commit()
    command_buffer = queue.command_buffer()  # of the same queue: done when all before it are
    command_buffer.commit()
    command_buffer.wait_until_completed()


def accuracy(graph: mps.MPSNNGraph, pictures: Array, kinds: NDArray[np.int64]) -> float:
    """The share of pictures whose largest logit is that of their class, with the weights as they are now."""
    graph.reload_from_data_sources()
    command_buffer = graph.device.new_command_queue().command_buffer()
    result = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, pictures)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result is not None  # the graph was made with a result
    return float((result.numpy().reshape(len(kinds), -1).argmax(1) == kinds).mean())


def fine_tune(device: mps.MTLDevice, path: Path, training: Dataset, test: Dataset, steps: int) -> list[float]:
    """The accuracy on turned digits of a file's network, before and after some steps on others."""
    network = onnx.network(path, trainable=mps.TrainableDataSources(adam))
    (logits,) = network.outputs.values()
    graph = network.model(device).graph
    pictures, kinds = pixels(test, turned=True), test.labels.astype(np.int64)
    found = [accuracy(graph, pictures, kinds)]
    train(device, logits, pixels(training, turned=True), training.labels.astype(np.int64), steps)
    return [*found, accuracy(graph, pictures, kinds)]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on digits, save, load, go on with turned ones."""
    parser = argparse.ArgumentParser(description="Fine-tune a network out of an ONNX file")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    training, test = load_digits_dataset().split(seed=0)
    logits, graph = first_network(device)
    train(device, logits, pixels(training), training.labels.astype(np.int64), 2 * given.steps)
    first = accuracy(graph, pixels(test), test.labels.astype(np.int64))
    print(f"accuracy {first:.1%} on digits")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        onnx.save(graph, path, mps.MPSImageDescriptor(FLOAT32, 8, 8, 1))
        print(f"saved as ONNX: {path.stat().st_size:,} bytes")
        before, after = fine_tune(device, path, training, test, given.steps)
    print(f"accuracy {before:.1%} on turned digits, {after:.1%} when fine-tuned on others")
    return [first, before, after]


if __name__ == "__main__":
    main()
