"""Batch normalization by hand: four kernels and one state, and the running statistics that nobody keeps for you.

What it shows:

- the order of `MPSCNNBatchNormalizationStatistics`, `MPSCNNBatchNormalization`,
  `MPSCNNBatchNormalizationStatisticsGradient` and `MPSCNNBatchNormalizationGradient`, which share a state;
- gamma and beta trained by an optimizer; running mean and variance, averaged by another;
- inference by the running statistics, and the same folded into the convolution before it.

Usage, in a clone of the repository::

    python examples/batch_normalization.py [--device auto] [--steps 150]

It teaches gamma and beta to give each channel a mean and a spread, and ends with how near they come.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]
CHANNELS, EPSILON, MOMENTUM = 4, 1e-3, 0.1
MEANS, SPREADS = np.array([0.0, 1.0, -1.0, 2.0], np.float32), np.array([1.0, 2.0, 0.5, 1.5], np.float32)


class Rows:
    """The data source of a batch normalization: four rows of numbers on the device."""

    def __init__(self, device: mps.MTLDevice) -> None:
        def row(value: float) -> mps.MTLBuffer:
            return device.new_buffer(data=np.full(CHANNELS, value, np.float32))

        self.gamma_and_beta = mps.MPSCNNNormalizationGammaAndBetaState(row(1.0), row(0.0))
        self.mean_and_variance = mps.MPSCNNNormalizationMeanAndVarianceState(row(0.0), row(1.0))

    def label(self) -> str:
        """The layer's name."""
        return "norm"

    def number_of_feature_channels(self) -> int:
        """How many channels are normalized."""
        return CHANNELS

    def load(self) -> bool:
        """The numbers are always there."""
        return True

    def purge(self) -> None:
        """The numbers stay."""

    def gamma(self) -> mps.MTLBuffer:
        """The scales."""
        return self.gamma_and_beta.gamma

    def beta(self) -> mps.MTLBuffer:
        """The shifts."""
        return self.gamma_and_beta.beta

    def mean(self) -> mps.MTLBuffer:
        """The running means."""
        return self.mean_and_variance.mean

    def variance(self) -> mps.MTLBuffer:
        """The running variances."""
        return self.mean_and_variance.variance

    def epsilon(self) -> float:
        """Added to the variance. Without this method it is almost 0, and constant channels explode."""
        return EPSILON


class Normalization:
    """The four kernels, and the two optimizers of what they need."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self.device, self.rows = device, Rows(device)
        self.statistics = mps.MPSCNNBatchNormalizationStatistics(device)
        self.normalize = mps.MPSCNNBatchNormalization(device, self.rows)
        self.statistics_gradient = mps.MPSCNNBatchNormalizationStatisticsGradient(device)
        self.gradient = mps.MPSCNNBatchNormalizationGradient(device)
        self._adam = mps.MPSNNOptimizerAdam(device, 0.05)
        self._row = mps.MPSVectorDescriptor(CHANNELS)
        self._moments = [[mps.MPSVector(device, self._row) for _ in range(2)] for _ in range(2)]
        # v - rate (v - batch): the regularization is v, the gradient -batch.
        average = mps.MPSNNOptimizerDescriptor(
            learning_rate=MOMENTUM,
            gradient_rescale=-1.0,
            regularization_type=mps.MPSNNRegularizationType.L2,
            regularization_scale=1.0,
        )
        self._average = mps.MPSNNOptimizerStochasticGradientDescent(device, optimizer_descriptor=average)

    def train(self, command_buffer: mps.MTLCommandBuffer, images: mps.MPSImageBatch, loss: mps.MPSCNNLoss) -> None:
        """Record a step: statistics, normalization, loss, both gradients, the updates."""
        state = mps.MPSCNNBatchNormalizationState(self.device, self.normalize)
        # A batch may come in pieces here, as long as all statistics are encoded before the first normalization.
        self.statistics.encode_batch(command_buffer, images, state)
        result = self.normalize.encode_batch(command_buffer, images, state)
        target = np.broadcast_to(MEANS + SPREADS * standard(images.numpy()), result_shape(images))
        labels = mps.MPSCNNLossLabels.batch(self.device, target)
        flow = loss.encode_batch(command_buffer, result, labels)
        mps.MPSImageBatchIncrementReadCount(flow, 1)  # two kernels read it
        # The gradient of the statistics of the whole batch comes before the gradient of any image.
        self.statistics_gradient.encode_batch(command_buffer, flow, images, state)
        self.gradient.encode_batch(command_buffer, flow, images, state)
        self._update(command_buffer, state)

    def _update(self, command_buffer: mps.MTLCommandBuffer, state: mps.MPSCNNBatchNormalizationState) -> None:
        self._adam.encode(
            command_buffer,
            batch_normalization_state=state,
            input_momentum_vectors=self._moments[0],
            input_velocity_vectors=self._moments[1],
            result_state=self.rows.gamma_and_beta,
        )
        self.normalize.reload_gamma_and_beta(command_buffer, self.rows.gamma_and_beta)
        pairs = (state.mean(), self.rows.mean()), (state.variance(), self.rows.variance())
        for of_batch, running in pairs:
            values = mps.MPSVector(running, self._row)
            self._average.encode(
                command_buffer,
                input_gradient_vector=mps.MPSVector(of_batch, self._row),
                input_values_vector=values,
                result_values_vector=values,
            )
        self.normalize.reload_mean_and_variance(command_buffer, self.rows.mean_and_variance)

    def infer(self, images: mps.MPSImageBatch) -> Array:
        """What the running statistics make of images: no state is given."""
        command_buffer = self.device.new_command_queue().command_buffer()
        self.normalize.destination_image_allocator = mps.MPSImage.default_allocator()
        result = self.normalize.encode_batch(command_buffer, images)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return result.numpy()

    def folded(self, images: mps.MPSImageBatch) -> Array:
        """The same by a convolution that does nothing itself, with the normalization folded into it."""
        descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, CHANNELS, CHANNELS)
        mean, variance, gamma, beta = (
            np.array(buffer.contents().view(np.float32))
            for buffer in (self.rows.mean(), self.rows.variance(), self.rows.gamma(), self.rows.beta())
        )
        descriptor.set_batch_normalization_parameters_for_inference(mean, variance, gamma, beta, EPSILON)
        identity = np.eye(CHANNELS, dtype=np.float32)[:, None, None, :]
        kernel = mps.MPSCNNConvolution(self.device, mps.ArrayConvolutionDataSource(descriptor, identity))
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
        command_buffer = self.device.new_command_queue().command_buffer()
        result = kernel.encode_batch(command_buffer, images)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return result.numpy()


def standard(values: Array) -> Array:
    """Each channel with mean 0 and variance 1 over the batch."""
    axes = (0, 1, 2)
    return (values - values.mean(axes)) / np.sqrt(values.var(axes) + EPSILON)


def result_shape(images: mps.MPSImageBatch) -> tuple[int, ...]:
    """Images, rows, columns, channels."""
    return len(images), images[0].height, images[0].width, CHANNELS


def draw(random: np.random.Generator, count: int = 4) -> Array:
    """Images whose channels have means and spreads of their own."""
    noise = random.normal(size=(count, 8, 8, CHANNELS))
    return (noise * [3.0, 1.0, 0.2, 5.0] + [10.0, -4.0, 1.0, 0.0]).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; the errors of gamma and beta, and of the folded convolution."""
    parser = argparse.ArgumentParser(description="Batch normalization by hand")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args(arguments)
    device, random = mps.mtl_device(given.device), np.random.default_rng(0)
    layer, queue = Normalization(device), device.new_command_queue()
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
    loss = mps.MPSCNNLoss(device, descriptor)
    command_buffer = queue.command_buffer()
    for _ in range(given.steps):
        command_buffer = queue.command_buffer()
        layer.train(command_buffer, mps.MPSImageBatch.from_numpy(device, draw(random)), loss)
        command_buffer.commit()
    command_buffer.wait_until_completed()
    gamma, beta = (row.contents().view(np.float32) for row in (layer.rows.gamma(), layer.rows.beta()))
    print("gamma", np.round(gamma, 2), "beta", np.round(beta, 2))
    print("running mean", np.round(layer.rows.mean().contents().view(np.float32), 1))
    error = float(max(np.abs(gamma - SPREADS).max(), np.abs(beta - MEANS).max()))
    images = mps.MPSImageBatch.from_numpy(device, draw(random))
    difference = float(np.abs(layer.infer(images) - layer.folded(images)).max())
    print(f"farthest from what was wanted: {error:.2f}; folded into a convolution it differs by {difference:.1e}")
    return error, difference


if __name__ == "__main__":
    main()
