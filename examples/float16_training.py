"""Training with gradients in float16, and the loss scale that keeps them from vanishing.

What it shows:

- formats of a graph's images, and of its gradients apart, by a node handler;
- a loss scale: the loss's weight multiplies every gradient, the optimizer's `gradient_rescale` takes it out again;
- a scale that is too large: an `MPSNonFiniteError` names the place before anything is updated.

Usage, in a clone of the repository::

    python examples/float16_training.py [--device auto] [--steps 60]

It trains a regression of small numbers three times: in float32, in float16 as it is, in float16 with a scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
FLOAT16, FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT16, mps.MPSImageFeatureChannelFormat.FLOAT32
SMALL = 2.0**-28
"""The loss's weight. Gradients below 6e-8, float16's least number, are 0."""


def training_graph(
    device: mps.MTLDevice, gradient_format: mps.MPSImageFeatureChannelFormat, scale: float
) -> tuple[mps.MPSNNGraph, list[mps.TrainableConvolutionDataSource]]:
    """Two convolutions and mean squared error; the loss is multiplied by the scale, and the gradients divided."""

    def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
        descriptor = mps.MPSNNOptimizerDescriptor(learning_rate=0.02, gradient_rescale=1.0 / (scale * SMALL))
        return mps.MPSNNOptimizerAdam(device, optimizer_descriptor=descriptor)

    def layer(label: str, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
        convolution = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
        return mps.TrainableConvolutionDataSource.uniform(
            convolution, limit=0.3, bias=0.0, seed=outputs, label=label, optimizer=adam
        )

    def store(gradient: mps.MPSNNFilterNode, *_: object) -> None:
        gradient.result_image.format = gradient_format

    sources = [layer("first", 1, 8), layer("second", 8, 1)]
    hidden = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), sources[0]).result_image
    hidden = mps.MPSCNNNeuronTanHNode(hidden).result_image
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
    descriptor.weight = SMALL * scale
    loss = mps.MPSCNNLossNode(mps.MPSCNNConvolutionNode(hidden, sources[1]).result_image, descriptor)
    loss.result_image.format = gradient_format
    (end,) = loss.training_graph(None, store)
    graph = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
    graph.format = FLOAT32  # images of the forward pass; weights and their gradients are float32 in any case
    graph.stop_on_non_finite = True
    return graph, sources


def moved(pictures: Array) -> Array:
    """What is to be learnt: each pixel is the mean of its neighbours to the left and to the right."""
    padded = np.pad(pictures, ((0, 0), (0, 0), (1, 1), (0, 0)))
    return ((padded[:, :, :-2] + padded[:, :, 2:]) / 2).astype(np.float32)


def train(graph: mps.MPSNNGraph, steps: int) -> None:
    """Train on new pictures in each step."""
    device = graph.device
    queue = device.new_command_queue()
    for pictures in np.random.default_rng(0).random((steps, 4, 8, 8, 1), np.float32):
        labels = mps.MPSCNNLossLabels.batch(device, moved(pictures))
        command_buffer = mps.MPSCommandBuffer(queue)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pictures)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()  # raises what happened while it ran; nothing is updated then


def error(device: mps.MTLDevice, sources: Sequence[mps.TrainableConvolutionDataSource]) -> float:
    """Mean squared error on pictures that were not shown, in float32."""
    hidden = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), sources[0]).result_image
    hidden = mps.MPSCNNNeuronTanHNode(hidden).result_image
    graph = mps.MPSNNGraph(device, mps.MPSCNNConvolutionNode(hidden, sources[1]).result_image)
    graph.format = FLOAT32
    pictures = np.random.default_rng(1).random((16, 8, 8, 1), np.float32)
    command_buffer = device.new_command_queue().command_buffer()
    found = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pictures)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert found is not None  # the graph was made with a result
    return float(np.square(found.numpy() - moved(pictures)).mean())


def train_with_scale(device: mps.MTLDevice, scale: float, steps: int) -> tuple[float, float]:
    """Train in float16, lowering the scale while it is too large; the error, and the scale that did."""
    while True:
        graph, sources = training_graph(device, FLOAT16, scale)
        try:
            train(graph, steps)
        except mps.MTLExecutionError as fault:
            if not isinstance(fault.__cause__, mps.MPSNonFiniteError):
                raise
            print(f"scale {scale:.0e}: {str(fault.__cause__).partition('.')[0]}")
            scale /= 2.0**8
        else:
            return error(device, sources), scale


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train three times; the errors."""
    parser = argparse.ArgumentParser(description="Training in float16 with a loss scale")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    found: dict[str, float] = {}
    for name, gradient_format in (("float32", FLOAT32), ("float16", FLOAT16)):
        graph, sources = training_graph(device, gradient_format, 1.0)
        train(graph, given.steps)
        found[name] = error(device, sources)
    found["float16 scaled"], scale = train_with_scale(device, 2.0**52, given.steps)
    for name, value in found.items():
        print(f"{name:15} error {value:.4f}")
    print(f"scale {scale:.0e}")
    return found


if __name__ == "__main__":
    main()
