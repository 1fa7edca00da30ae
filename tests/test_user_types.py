"""What an editor knows of results, states and arguments: basedpyright checks the types, pytest the values."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import openmps as mps

State = mps.MPSCNNConvolutionGradientState
CHANNELS = 4


class Convolution(mps.ArrayConvolutionDataSource):
    """A data source of one's own: the types of what an update gets come from the base class."""

    def update(self, command_buffer, gradient_state, source_state):  # pyright: ignore
        assert_type(gradient_state, State)
        assert_type(gradient_state.gradient_for_weights, mps.MTLBuffer)
        assert_type(source_state.weights, mps.MTLBuffer)
        return source_state


class Bits:
    """A data source of words of bits."""

    def data_type(self) -> mps.MPSDataType:
        return mps.MPSDataType.UINT32

    def descriptor(self) -> mps.MPSCNNConvolutionDescriptor:
        return mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1)

    def weights(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        return np.zeros((1, 1, 1, 1), np.uint32)

    def bias_terms(self) -> None:
        return None

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str | None:
        return None


class Normalization(mps.ArrayBatchNormalizationDataSource):
    """The same of a batch normalization."""

    def update_gamma_and_beta(self, command_buffer, batch_normalization_state):  # pyright: ignore
        assert_type(batch_normalization_state, mps.MPSCNNBatchNormalizationState)
        assert_type(batch_normalization_state.gradient_for_gamma(), mps.MTLBuffer | None)


def descriptor() -> mps.MPSCNNConvolutionDescriptor:
    return mps.MPSCNNConvolutionDescriptor(1, 1, CHANNELS, CHANNELS)


def weights() -> mps.ArrayConvolutionDataSource:
    return mps.ArrayConvolutionDataSource(descriptor(), np.eye(CHANNELS, dtype=np.float32))


def pixels(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones((*shape, 2, 2, CHANNELS), np.float32)


def test_the_states_of_kernels_are_those_of_their_class() -> None:
    device = mps.mtl_device("cpu")
    command_buffer = device.new_command_queue().command_buffer()
    image, images = mps.MPSImage.from_numpy(device, pixels()), mps.MPSImageBatch.from_numpy(device, pixels(2))
    convolution = mps.MPSCNNConvolution(device, weights=weights())
    result, state = convolution.encode(command_buffer, image, destination_state_is_temporary=False)
    assert_type(result, mps.MPSImage)
    assert_type(state, State | Any)
    results, states = convolution.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    assert_type(results, mps.MPSImageBatch)
    assert_type(states[0], State | Any)
    assert_type(convolution.result_state(image), State | Any)
    normalization = mps.MPSCNNBatchNormalization(device, mps.ArrayBatchNormalizationDataSource(CHANNELS))
    assert_type(normalization.result_state(image), mps.MPSCNNBatchNormalizationState | Any)
    assert isinstance(states[0], State) and isinstance(state, State)
    assert isinstance(normalization.result_state(image), mps.MPSCNNBatchNormalizationState)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert state.gradient_for_weights.length == 4 * CHANNELS * CHANNELS


def test_results_of_graphs_need_no_question() -> None:
    """They are None only where the program has said so."""
    device = mps.mtl_device("cpu")
    command_buffer = device.new_command_queue().command_buffer()
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), weights())
    graph = mps.MPSNNGraph(device, node.result_image)
    result = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pixels(2))])
    assert_type(result, mps.MPSImageBatch | Any)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result.numpy().shape == (2, 2, 2, CHANNELS)
    assert node.training_graph()[0].result_image is not None


def test_made_from_a_class_method_of_a_subclass() -> None:
    source = Convolution.uniform(descriptor(), limit=1.0, bias=None, seed=1)
    assert_type(source, Convolution)
    assert isinstance(source, Convolution)


def test_fixed_arrays_offer_no_update() -> None:
    assert not hasattr(weights(), "update")
    assert not hasattr(mps.ArrayBatchNormalizationDataSource(CHANNELS), "update_gamma_and_beta")
    assert hasattr(Convolution, "update") and hasattr(Normalization, "update_gamma_and_beta")


def test_selectors_that_have_an_order_of_their_own() -> None:
    """An editor knows each of them by place."""
    device = mps.mtl_device("cpu")
    kind, flags = mps.MPSCNNBinaryConvolutionType.XNOR, mps.MPSCNNBinaryConvolutionFlags.NONE
    for binary in (mps.MPSCNNBinaryConvolution, mps.MPSCNNBinaryFullyConnected):
        assert binary(device, Bits(), None, None, None, None, kind, flags).type is kind
        assert binary(device, Bits(), [1.0], [2.0], [3.0], [4.0], kind).type is kind
        assert binary(device, Bits(), 0.5, kind, flags).type is binary(device, Bits(), 0.5, kind).type is kind
        assert binary(device, Bits(), type=kind, scale_value=0.5).type is kind
    matrices = mps.MPSMatrixDescriptor(2, 3, 4, 12, 24, mps.MPSDataType.FLOAT32)
    assert (matrices.matrices, mps.MPSMatrixDescriptor(2, 3, 12, mps.MPSDataType.FLOAT32).row_bytes) == (4, 12)
    regularization = mps.MPSNNRegularizationType.L2
    assert mps.MPSNNOptimizerDescriptor(0.5, 1.0, regularization, 0.25).regularization_scale == 0.25
    assert mps.MPSNNOptimizerDescriptor(0.5, 1.0, True, 4.0, -4.0, regularization, 0.25).gradient_clip_max == 4.0
    buffer = device.new_buffer(length=4 * CHANNELS * (CHANNELS + 1))
    both = mps.MPSCNNConvolutionWeightsAndBiasesState(buffer, 4 * CHANNELS, buffer, 0, descriptor())
    assert (both.weights_offset, both.biases_offset) == (4 * CHANNELS, 0)
    assert mps.MPSCNNConvolutionWeightsAndBiasesState(buffer, None).weights is buffer


def test_labels_of_a_batch() -> None:
    labels = mps.MPSCNNLossLabels.batch(mps.mtl_device("cpu"), np.eye(2))
    assert_type(labels[0], mps.MPSCNNLossLabels)
    assert labels[1].labels_image().numpy().ravel().tolist() == [0.0, 1.0]
