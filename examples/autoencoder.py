"""An autoencoder: convolutions make a picture small, transposed convolutions make it large again.

What it shows:

- convolutions with a stride, and `MPSCNNConvolutionTransposeNode` with the state of the convolution that it undoes,
  which fixes its size;
- mean squared error against the pictures themselves: `MPSCNNLossLabels` over images that are there;
- a part of a network as a graph of its own: the decoder alone draws from codes.

Usage, in a clone of the repository::

    python examples/autoencoder.py [--device auto] [--steps 150] [--batch 8]

It learns to draw discs again from 4x4 pixels of 4 channels, and ends with the error on discs that it has not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
SIZE, CODE = 16, 4
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 5e-3)


def layer(label: str, inputs: int, outputs: int) -> mps.TrainableConvolutionDataSource:
    """A kernel 3x3 with stride 2. Of a transposed convolution the stride enlarges."""
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = 2
    limit = float(np.sqrt(6 / (9 * inputs)))
    return mps.TrainableConvolutionDataSource.uniform(
        descriptor, limit=limit, bias=0.0, seed=inputs + 100 * outputs, label=label, optimizer=adam
    )


class Autoencoder:
    """Pictures of 16x16 pixels to codes of 4x4, and back."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device = device
        self._down = [layer("down1", 1, 8), layer("down2", 8, CODE)]
        self._up = [layer("up1", CODE, 8), layer("up2", 8, 1)]
        first, code = self._encoder(mps.MPSNNImageNode())
        restored = self._decoder(code.result_image, [first, code])
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
        (end,) = mps.MPSCNNLossNode(restored, descriptor).training_graph()
        self.training = self._graph(end.result_image, is_needed=False)
        first, code = self._encoder(mps.MPSNNImageNode())
        self.inference = self._graph(self._decoder(code.result_image, [first, code]))
        self.encoder = self._graph(self._encoder(mps.MPSNNImageNode())[1].result_image)
        self.decoder = self._graph(self._decoder(mps.MPSNNImageNode(), None))

    def _graph(self, end: mps.MPSNNImageNode, *, is_needed: bool = True) -> mps.MPSNNGraph:
        graph = mps.MPSNNGraph(self.device, end, result_image_is_needed=is_needed)
        graph.format = FLOAT32
        return graph

    def _encoder(self, image: mps.MPSNNImageNode) -> list[mps.MPSCNNConvolutionNode]:
        """Two convolutions; each halves the size."""
        first = mps.MPSCNNConvolutionNode(image, self._down[0])
        second = mps.MPSCNNConvolutionNode(mps.MPSCNNNeuronTanHNode(first.result_image).result_image, self._down[1])
        return [first, second]

    def _decoder(
        self, code: mps.MPSNNImageNode, undone: Sequence[mps.MPSCNNConvolutionNode] | None
    ) -> mps.MPSNNImageNode:
        """Two transposed convolutions; the last undoes the first convolution.

        Without the states of the convolutions, a padding policy says how large their results are: twice the size.
        """
        image = mps.MPSCNNNeuronTanHNode(code).result_image
        for index, source in enumerate(self._up):
            if undone is None:
                node = mps.MPSCNNConvolutionTransposeNode(image, None, source)
                node.padding_policy = mps.ExplicitPadding(1, 1, 0, 0)
            else:
                state = undone[1 - index].result_state
                assert isinstance(state, mps.MPSCNNConvolutionGradientStateNode)
                node = mps.MPSCNNConvolutionTransposeNode(image, state, source)
            image = node.result_image
            if index == 0:
                image = mps.MPSCNNNeuronTanHNode(image).result_image
        return image


def draw(random: np.random.Generator, count: int) -> Array:
    """Discs of any radius and place."""
    y, x = np.mgrid[:SIZE, :SIZE]
    centres, radii = random.uniform(4, SIZE - 4, (2, count, 1, 1)), random.uniform(2, 5, (count, 1, 1))
    inside = np.hypot(x - centres[0], y - centres[1]) < radii
    return inside.astype(np.float32)[..., None]


def run(graph: mps.MPSNNGraph, images: Array) -> Array:
    """A graph's result for some images, with the weights as they are now."""
    graph.reload_from_data_sources()
    command_buffer = graph.device.new_command_queue().command_buffer()
    found = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(graph.device, images)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert found is not None  # the graph was made with a result
    return found.numpy()


def train(network: Autoencoder, random: np.random.Generator, steps: int, batch: int) -> None:
    """Train on new pictures in each step."""
    queue = network.device.new_command_queue()
    for _ in range(steps):
        pictures = mps.MPSImageBatch.from_numpy(network.device, draw(random, batch))
        # The pictures are what the result is held against.
        labels = [mps.MPSCNNLossLabels(network.device, labels_image=picture) for picture in pictures]
        command_buffer = mps.MPSCommandBuffer(queue)
        network.training.encode_batch(command_buffer, [pictures], [labels])
        command_buffer.commit()


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; the error before and after it."""
    parser = argparse.ArgumentParser(description="An autoencoder of discs")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args(arguments)
    network, random = Autoencoder(mps.mtl_device(given.device)), np.random.default_rng(0)
    unseen = draw(random, 64)
    before = float(np.square(run(network.inference, unseen) - unseen).mean())
    train(network, random, given.steps, given.batch)
    restored = run(network.inference, unseen)
    after = float(np.square(restored - unseen).mean())
    print(f"mean squared error {before:.3f} before the training, {after:.4f} after it")
    codes = run(network.encoder, unseen)
    print(f"{SIZE}x{SIZE} pixels in {codes[0].size} numbers; the decoder alone draws the same:")
    print(f"largest difference {np.abs(run(network.decoder, codes) - restored).max():.1e}")
    return before, after


if __name__ == "__main__":
    main()
