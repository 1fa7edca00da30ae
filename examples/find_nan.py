"""A network whose loss is NaN, and three ways to the place where it begins.

What it shows:

- `stop_on_non_finite`: an encode raises before anything is updated, and names filter, image and channel;
- `openmps.debug.watch`: every value that a command buffer computes, by label;
- the first value that is not finite, and the range of the one before it.

Usage, in a clone of the repository::

    python examples/find_nan.py [--device auto]

A network takes the logarithm of a contrast, which is 0 for a picture of one colour. It is found, and mended.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import openmps as mps


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 1e-2)


def training_graph(device: mps.MTLDevice, shift: float) -> mps.MPSNNGraph:
    """Contrast of a pixel to its left neighbour, squared; its logarithm, plus a shift; a layer; a loss."""
    difference = np.array([[0, 0, 0], [-1, 1, 0], [0, 0, 0]], np.float32)[None, :, :, None]
    fixed = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1), difference, label="contrast")
    trained = mps.TrainableConvolutionDataSource.uniform(
        mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1), limit=0.2, bias=0.0, seed=1, label="trained", optimizer=adam
    )
    contrast = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("picture")), fixed)
    square = mps.MPSCNNNeuronPowerNode(contrast.result_image, 1.0, 0.0, 2.0)
    logarithm = mps.MPSCNNNeuronLogarithmNode(square.result_image, 1.0, shift, float(np.e))
    layer = mps.MPSCNNConvolutionNode(logarithm.result_image, trained)
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
    loss = mps.MPSCNNLossNode(layer.result_image, descriptor)
    named = {"contrast": contrast, "square": square, "logarithm": logarithm, "layer": layer, "loss": loss}
    for label, node in named.items():
        node.label = label
    contrast.result_image.stop_gradient = True  # nothing before it is trained
    (end,) = loss.training_graph()
    graph = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    return graph


def encode(graph: mps.MPSNNGraph, *, watched: bool = False) -> mps.debug.Watch | None:
    """A training step on two pictures; the second is of one colour."""
    pictures = np.random.default_rng(0).random((2, 6, 6, 1), np.float32)
    pictures[1] = 0.0
    labels = mps.MPSCNNLossLabels.batch(graph.device, np.zeros((2, 6, 6, 1), np.float32))
    command_buffer = mps.MPSCommandBuffer(graph.device.new_command_queue())
    watch = mps.debug.watch(command_buffer) if watched else None
    graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, pictures)], [labels])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return watch


def first_not_finite(graph: mps.MPSNNGraph) -> str | None:
    """The label of the first value of a step that is NaN or infinite, and what was before it."""
    watch = encode(graph, watched=True)
    assert watch is not None
    before = None
    for entry in watch.trace().entries:
        if entry.statistics.not_finite:
            print(f"watched: {entry.label} has {entry.statistics.not_finite} numbers that are not finite")
            if before is not None:
                print(f"         before it, {before.label} goes from {before.statistics.least:.3g}", end=" ")
                print(f"to {before.statistics.largest:.3g}, {before.statistics.zeros:.0%} of it zeros")
            return entry.label
        before = entry
    return None


def main(arguments: Sequence[str] | None = None) -> tuple[str, str | None, str | None]:
    """Find it by the stop and by the watch, mend it, and look again."""
    parser = argparse.ArgumentParser(description="Find where a NaN begins")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    graph = training_graph(device, 0.0)
    graph.stop_on_non_finite = True
    message = ""
    try:
        encode(graph)
    except mps.MTLExecutionError as error:  # its cause is the MPSNonFiniteError
        message = str(error.__cause__)
        print(f"stopped: {message}")
    found = first_not_finite(training_graph(device, 0.0))
    mended = first_not_finite(training_graph(device, 1e-6))
    print("mended: every value is finite" if mended is None else f"still there: {mended}")
    return message, found, mended


if __name__ == "__main__":
    main()
