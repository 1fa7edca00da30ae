"""A padding policy of one's own: convolutions over time that see the past only.

What it shows:

- a policy with `padding_method`, `destination_image_descriptor` and `label`, and what each is asked for;
- where a kernel reads: `offset` is the centre of its first window;
- signals as images of one row, and dilated convolutions over them.

Usage, in a clone of the repository::

    python examples/causal_padding.py [--device auto] [--steps 120] [--batch 8]

It learns to foretell a wave, shows that no result depends on what comes later, and ends with its error beside that of
the guess that nothing changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
TAPS, DILATIONS, CHANNELS = 3, (1, 2, 4), 8


class CausalPadding:
    """The last tap of each window lies on its own pixel, those before it in the past; zeros before the beginning."""

    def padding_method(self) -> mps.MPSNNPaddingMethod:
        """SAME sizes the result; CUSTOM says that `destination_image_descriptor` has the last word."""
        return mps.MPSNNPaddingMethod.CUSTOM | mps.MPSNNPaddingMethod.SIZE_SAME

    def label(self) -> str:
        """The policy in words."""
        return "causal"

    def destination_image_descriptor(
        self,
        source_images: Sequence[mps.MPSImage],
        source_states: Sequence[mps.MPSState] | None,
        for_kernel: Any,
        suggested_descriptor: mps.MPSImageDescriptor,
    ) -> mps.MPSImageDescriptor:
        """Place the kernel, whose size is known here alone; the suggested result is as large as the source."""
        reach = (for_kernel.kernel_width - 1) * for_kernel.dilation_rate_x  # pixels from the first tap to the last
        centre = (reach + 1) // 2
        for_kernel.offset = mps.MPSOffset(centre - reach, 0)
        for_kernel.edge_mode = mps.MPSImageEdgeMode.ZERO
        return suggested_descriptor


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 5e-3)


class WaveNetwork:
    """Three dilated convolutions with tanh, and one of a single tap: each result sees 15 pixels."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device = device
        self._sources = [self._source(index, dilation) for index, dilation in enumerate(DILATIONS)]
        self._sources.append(self._source(len(DILATIONS), 0))
        descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
        (end,) = mps.MPSCNNLossNode(self._result(), descriptor).training_graph()
        self.training = mps.MPSNNGraph(device, end.result_image, result_image_is_needed=False)
        self.inference = mps.MPSNNGraph(device, self._result())
        for graph in (self.training, self.inference):
            graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32

    def _source(self, index: int, dilation: int) -> mps.TrainableConvolutionDataSource:
        """A layer's weights; no dilation is the last layer, of one tap."""
        taps, inputs, outputs = TAPS if dilation else 1, CHANNELS if index else 1, CHANNELS if dilation else 1
        descriptor = mps.MPSCNNConvolutionDescriptor(taps, 1, inputs, outputs)
        descriptor.dilation_rate_x = max(dilation, 1)
        limit = float(np.sqrt(3 / (taps * inputs)))
        return mps.TrainableConvolutionDataSource.uniform(
            descriptor, limit=limit, bias=0.0, seed=index, label=f"layer{index}", optimizer=adam
        )

    def _result(self) -> mps.MPSNNImageNode:
        image = mps.MPSNNImageNode()
        for source in self._sources:
            node = mps.MPSCNNConvolutionNode(image, source)
            node.padding_policy = CausalPadding()
            image = node.result_image
            if source is not self._sources[-1]:
                image = mps.MPSCNNNeuronTanHNode(image).result_image
        return image

    def foretold(self, waves: Array) -> Array:
        """For each sample of each wave what comes next, ``[waves, 1, samples, 1]``."""
        self.inference.reload_from_data_sources()
        command_buffer = self.device.new_command_queue().command_buffer()
        images = mps.MPSImageBatch.from_numpy(self.device, waves)
        result = self.inference.encode_batch(command_buffer, [images])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert result is not None  # the graph was made with a result
        return result.numpy()


def draw(random: np.random.Generator, count: int, samples: int = 48) -> tuple[Array, Array]:
    """Sums of two sines, and the same a sample later; images of one row."""
    time = np.arange(samples + 1)
    pitch, phase = random.uniform(0.2, 0.9, (2, count, 1)), random.uniform(0, 2 * np.pi, (2, count, 1))
    waves = np.sin(pitch * time + phase).sum(0).astype(np.float32)[:, None, :, None] / 2
    return waves[:, :, :-1], waves[:, :, 1:]


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; the error of the network, and of the guess that nothing changes."""
    parser = argparse.ArgumentParser(description="A causal network that foretells waves")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args(arguments)
    network, random = WaveNetwork(mps.mtl_device(given.device)), np.random.default_rng(0)
    queue = network.device.new_command_queue()
    for _ in range(given.steps):
        waves, following = draw(random, given.batch)
        labels = mps.MPSCNNLossLabels.batch(network.device, following)
        command_buffer = mps.MPSCommandBuffer(queue)
        images = mps.MPSImageBatch.from_numpy(network.device, waves)
        network.training.encode_batch(command_buffer, [images], [labels])
        command_buffer.commit()
    command_buffer = queue.command_buffer()  # of the same queue: done when all before it are
    command_buffer.commit()
    command_buffer.wait_until_completed()

    waves, following = draw(random, 32)
    found = network.foretold(waves)
    changed = waves.copy()
    changed[:, :, 24:] += 1.0
    same = int((network.foretold(changed) == found).all(axis=(0, 1, 3)).sum())
    print(f"with other samples from 24 on, the first {same} results are the same")
    error, guess = (float(np.square(each - following).mean()) for each in (found, waves))
    print(f"mean squared error {error:.4f}; that nothing changes: {guess:.4f}")
    return error, guess


if __name__ == "__main__":
    main()
