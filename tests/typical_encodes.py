"""Typical encodes, for those who count or time what one costs: prepared first, so that the encode alone is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import openmps as mps
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from samples.batch_normalization import ChannelSource

IMAGES, SIZE, CHANNELS = 2, 4, 4
"""Small, as what is measured hardly depends on it."""
BATCH = 40
"""The images of a training step, as in the sample: what is done for each of them shows."""

Encode = Callable[[], Any]
Prepare = Callable[[mps.MPSCommandBuffer], Encode]
"""Encodes what an encode needs, and gives the encode itself. May be called again for each command buffer."""


def images(device: mps.MTLDevice) -> mps.MPSImageBatch:
    return mps.MPSImageBatch.from_numpy(device, np.ones((IMAGES, SIZE, SIZE, CHANNELS), np.float32))


def weights() -> mps.ArrayConvolutionDataSource:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, CHANNELS, CHANNELS)
    arrays = np.ones((CHANNELS, 3, 3, CHANNELS), np.float32), np.ones(CHANNELS, np.float32)
    return mps.ArrayConvolutionDataSource(descriptor, *arrays)


def neuron_given(device: mps.MTLDevice) -> Prepare:
    relu, x, y = mps.MPSCNNNeuronReLU(device, 0.0), images(device), images(device)
    return lambda command_buffer: lambda: relu.encode_batch(command_buffer, x, y)


def neuron_made(device: mps.MTLDevice) -> Prepare:
    relu, x = mps.MPSCNNNeuronReLU(device, 0.0), images(device)
    return lambda command_buffer: lambda: relu.encode_batch(command_buffer, x)


def convolution(device: mps.MTLDevice) -> Prepare:
    kernel, x = mps.MPSCNNConvolution(device, weights=weights()), images(device)
    return lambda command_buffer: lambda: kernel.encode_batch(command_buffer, x, destination_state_is_temporary=True)


def convolution_gradient(device: mps.MTLDevice) -> Prepare:
    source, x = weights(), images(device)
    kernel = mps.MPSCNNConvolution(device, weights=source)
    gradient = mps.MPSCNNConvolutionGradient(device, weights=source)

    def prepare(command_buffer: mps.MPSCommandBuffer) -> Encode:
        y, states = kernel.encode_batch(command_buffer, x, destination_state_is_temporary=True)
        return lambda: gradient.encode_batch(command_buffer, y, x, states)

    return prepare


def max_pooling(device: mps.MTLDevice) -> Prepare:
    kernel, x = mps.MPSCNNPoolingMax(device, 2, 2, 2, 2), images(device)
    return lambda command_buffer: lambda: kernel.encode_batch(command_buffer, x, destination_state_is_temporary=True)


def batch_normalization(device: mps.MTLDevice) -> Prepare:
    source, x = ChannelSource(CHANNELS, gamma=np.ones(CHANNELS), beta=np.ones(CHANNELS)), images(device)
    kernel = mps.MPSCNNBatchNormalization(device, source)
    statistics = mps.MPSCNNBatchNormalizationStatistics(device)

    def prepare(command_buffer: mps.MPSCommandBuffer) -> Encode:
        def encode() -> Any:
            state = kernel.temporary_result_state_batch(command_buffer, x)
            statistics.encode_batch(command_buffer, x, state)
            return kernel.encode_batch(command_buffer, x, state)

        return encode

    return prepare


def addition(device: mps.MTLDevice) -> Prepare:
    kernel, a, b = mps.MPSCNNAdd(device), images(device), images(device)
    return lambda command_buffer: lambda: kernel.encode_batch(command_buffer, a, b)


def softmax(device: mps.MTLDevice) -> Prepare:
    kernel, x = mps.MPSCNNSoftMax(device), images(device)
    return lambda command_buffer: lambda: kernel.encode_batch(command_buffer, x)


def dropout(device: mps.MTLDevice) -> Prepare:
    kernel, x = mps.MPSCNNDropout(device, 0.5, 1, mps.MTLSize(1, 1, 1)), images(device)
    return lambda command_buffer: lambda: kernel.encode_batch(command_buffer, x, destination_state_is_temporary=True)


def loss(device: mps.MTLDevice) -> Prepare:
    kind, reduction = mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM
    kernel, x = mps.MPSCNNLoss(device, mps.MPSCNNLossDescriptor(kind, reduction)), images(device)
    targets = np.ones((IMAGES, SIZE, SIZE, CHANNELS), np.float32)

    def prepare(command_buffer: mps.MPSCommandBuffer) -> Encode:
        labels = mps.MPSCNNLossLabels.batch(device, targets)
        return lambda: kernel.encode_batch(command_buffer, x, labels)

    return prepare


def adam(device: mps.MTLDevice) -> Prepare:
    source, x = weights(), images(device)
    kernel = mps.MPSCNNConvolution(device, weights=source)
    gradient = mps.MPSCNNConvolutionGradient(device, weights=source)
    optimizer = mps.MPSNNOptimizerAdam(device, 1e-3)
    parameters = mps.MPSCNNConvolutionWeightsAndBiasesState(device, source.descriptor())
    lengths = (CHANNELS * 3 * 3 * CHANNELS, CHANNELS)
    moments = [[mps.MPSVector(device=device, descriptor=mps.MPSVectorDescriptor(n)) for n in lengths] for _ in range(2)]

    def prepare(command_buffer: mps.MPSCommandBuffer) -> Encode:
        y, states = kernel.encode_batch(command_buffer, x, destination_state_is_temporary=False)
        gradient.encode_batch(command_buffer, y, x, states)
        return lambda: optimizer.encode(
            command_buffer,
            convolution_gradient_state=states[0],
            convolution_source_state=parameters,
            input_momentum_vectors=moments[0],
            input_velocity_vectors=moments[1],
            result_state=parameters,
        )

    return prepare


def labels(device: mps.MTLDevice) -> Prepare:
    """No encode, but made for each one of a training graph."""
    targets = np.ones((BATCH, 10), np.float32)
    return lambda _: lambda: mps.MPSCNNLossLabels.batch(device, targets)


def training_graph(device: mps.MTLDevice) -> Prepare:
    shape = NetworkShape(28, 28, 1, 10)
    network = SampleNetwork.create(shape, seed=1, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.training_graph(device, mps.MPSImageFeatureChannelFormat.FLOAT32, loss_weight=1.0, dropout_seed=1)
    graph.stop_on_non_finite = False  # the check waits for the step before
    pixels, targets = np.ones((BATCH, 28, 28, 1), np.float32), np.ones((BATCH, 10), np.float32)

    def prepare(command_buffer: mps.MPSCommandBuffer) -> Encode:
        batch, labels = mps.MPSImageBatch.from_numpy(device, pixels), mps.MPSCNNLossLabels.batch(device, targets)
        return lambda: graph.encode_batch(command_buffer, [batch], [labels])

    return prepare


def image_filter(device: mps.MTLDevice) -> Prepare:
    threshold = mps.MPSImageThresholdBinary(device, 0.5, 1.0)
    x, y = (mps.MPSImage.from_numpy(device, np.ones((SIZE, SIZE, 1), np.uint8)) for _ in range(2))
    return lambda command_buffer: lambda: threshold.encode(command_buffer, x, y)


def inference_graph(device: mps.MTLDevice) -> Prepare:
    hidden = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), weights()).result_image
    rectified = mps.MPSCNNNeuronReLUNode(hidden).result_image
    last = mps.MPSCNNConvolutionNode(rectified, weights())
    last.padding_policy = mps.ExplicitPadding.pytorch(1)  # as in networks out of ONNX files
    graph = mps.MPSNNGraph(device, last.result_image)
    x = mps.MPSImage.from_numpy(device, np.ones((SIZE, SIZE, CHANNELS), np.float32))
    return lambda command_buffer: lambda: graph.encode(command_buffer, [x])


ENCODES: dict[str, Callable[[mps.MTLDevice], Prepare]] = {
    "ReLU, destination given": neuron_given,
    "ReLU, destination made": neuron_made,
    "convolution with a temporary state": convolution,
    "gradient of a convolution": convolution_gradient,
    "max pooling with a state": max_pooling,
    "batch normalization with its statistics": batch_normalization,
    "addition": addition,
    "softmax": softmax,
    "dropout with a state": dropout,
    "loss with labels": loss,
    "labels of a training step": labels,
    "Adam on the states of a convolution": adam,
    "image filter, one image": image_filter,
    "inference graph, one image": inference_graph,
    "training graph of the sample network with updates": training_graph,
}
