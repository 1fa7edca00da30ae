"""Data sources over arrays, and those that an optimizer trains."""

from __future__ import annotations

import numpy as np
import pytest

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionDescriptor, MPSCNNConvolutionGradient
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import (
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSDataType
from openmps.types import MPSImageFeatureChannelFormat as Format

CPU = mtl_device("cpu")
SHAPE = (4, 3, 5, 2)
RATE = 0.25


def _descriptor():
    return MPSCNNConvolutionDescriptor(5, 3, 2, 4)


def test_arrays_are_copied_as_float32_ohwi(rng):
    weights, biases = rng.standard_normal(SHAPE), [1, 2, 3, 4]
    descriptor = _descriptor()
    source = ArrayConvolutionDataSource(descriptor, weights, biases, "layer")
    kept = weights.astype(np.float32)
    weights[:] = 0
    descriptor.kernel_width = 9
    np.testing.assert_array_equal(source.weights(), kept)
    np.testing.assert_array_equal(source.bias_terms(), np.float32(biases))
    assert source.weights().dtype == source.bias_terms().dtype == np.float32
    assert (source.data_type(), source.label(), source.load()) == (MPSDataType.FLOAT32, "layer", True)
    assert source.descriptor().kernel_width == 5
    flat = ArrayConvolutionDataSource(_descriptor(), kept.ravel())
    np.testing.assert_array_equal(flat.weights(), kept)
    assert flat.bias_terms() is None
    assert flat.label() is None


def test_wrong_sizes_are_named():
    with pytest.raises(
        MPSArgumentError, match=r"ArrayConvolutionDataSource: weights must hold .*\(4, 3, 5, 2\), .*, got"
    ):
        ArrayConvolutionDataSource(_descriptor(), np.zeros((4, 3, 5, 3)))
    with pytest.raises(MPSArgumentError, match=r"biases must hold 4 numbers, got 3 number"):
        ArrayConvolutionDataSource(_descriptor(), np.zeros(SHAPE), np.zeros(3))


def test_uniform_weights_are_a_function_of_the_seed():
    first, again, other = (
        ArrayConvolutionDataSource.uniform(_descriptor(), limit=0.5, bias=-1, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.weights(), again.weights())
    assert (first.weights() != other.weights()).any()
    assert np.abs(first.weights()).max() <= 0.5
    assert (first.bias_terms() == -1).all()


# --- training --------------------------------------------------------------------------------------------------------


def _trainable(optimizer, rng, biases=True):
    weights = rng.standard_normal(SHAPE).astype(np.float32)
    row = rng.standard_normal(4).astype(np.float32) if biases else None
    return TrainableConvolutionDataSource(_descriptor(), weights, row, "layer", optimizer=optimizer)


def _train(source, steps=1):
    """Steps whose gradient is that of sum(result - label) with label 0: the same image each time."""
    node = MPSCNNConvolutionNode(MPSNNImageNode(), source)
    descriptor = MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNReductionType.SUM)
    loss = MPSCNNLossNode(node.result_image, descriptor)
    graph = MPSNNGraph(CPU, loss.training_graph()[0].result_image, result_image_is_needed=False)
    graph.format = Format.FLOAT32
    queue = CPU.new_command_queue()
    image = MPSImageBatch.from_numpy(CPU, np.full((1, 4, 6, 2), 128, np.uint8))
    zeros = MPSImageBatch.from_numpy(CPU, np.zeros((1, 4, 6, 4), np.float32))
    for _ in range(steps):
        command_buffer = queue.command_buffer()
        graph.encode_batch(command_buffer, [image], [[MPSCNNLossLabels(CPU, labels_image=zeros[0])]])
        command_buffer.commit()
        command_buffer.wait_until_completed()
    return graph


OPTIMIZERS = {
    "adam": (lambda device: MPSNNOptimizerAdam(device, RATE), 2),
    "sgd": (lambda device: MPSNNOptimizerStochasticGradientDescent(device, RATE), 1),
    "rmsprop": (lambda device: MPSNNOptimizerRMSProp(device, RATE), 1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_moves_weights_and_biases_with_accumulators_of_their_own(name, rng):
    make, vectors = OPTIMIZERS[name]
    source = _trainable(make, rng)
    before = source.weights().copy(), source.bias_terms().copy()
    assert (source.optimizer, source.accumulators) == (None, {})
    _train(source)
    assert (source.weights() != before[0]).all()
    assert (source.bias_terms() != before[1]).all()
    assert len(source.accumulators) == vectors
    for pair in source.accumulators.values():
        assert [vector.length for vector in pair] == [4 * 3 * 5 * 2, 4]
    if name == "adam":  # the first step of Adam is the learning rate in the gradient's direction
        np.testing.assert_allclose(np.abs(source.weights() - before[0]), RATE, rtol=1e-3)


def test_a_layer_without_biases_trains(rng):
    source = _trainable(OPTIMIZERS["sgd"][0], rng, biases=False)
    before = source.weights().copy()
    _train(source)
    assert (source.weights() != before).any()
    assert source.bias_terms() is None


def test_the_learning_rate_can_be_set_before_and_after_the_first_step(rng):
    source = _trainable(OPTIMIZERS["adam"][0], rng)
    source.set_learning_rate(0.5)
    before = source.weights().copy()
    _train(source)
    np.testing.assert_allclose(np.abs(source.weights() - before), 0.5, rtol=1e-3)
    source.set_learning_rate(1e-30)
    before = source.weights().copy()
    _train(source)
    np.testing.assert_array_equal(source.weights(), before)


def test_it_cannot_update_on_the_cpu(rng):
    with pytest.raises(MPSTypeError, match=r"TrainableConvolutionDataSource 'layer': command_buffer is needed"):
        _trainable(OPTIMIZERS["sgd"][0], rng).update(None, None, None)


def test_an_optimizer_of_another_kind_is_named(rng):
    with pytest.raises(MPSTypeError, match="'layer': optimizer must make one of the framework's optimizers, got str"):
        _train(_trainable(lambda device: "adam", rng))


@pytest.mark.parametrize("temporary", [True, False])
def test_kernels_by_hand_update_by_the_data_source(temporary, rng):
    """The source state that the caller exports may be temporary: the new weights are then in one that stays."""
    source = _trainable(OPTIMIZERS["sgd"][0], rng)
    forward, gradient = MPSCNNConvolution(CPU, weights=source), MPSCNNConvolutionGradient(CPU, weights=source)
    before = source.weights().copy(), source.bias_terms().copy()
    command_buffer = CPU.new_command_queue().command_buffer()
    image = MPSImage.from_numpy(CPU, rng.standard_normal((4, 6, 2)).astype(np.float32))
    result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    gradient.encode(command_buffer, result, image, state)
    exported = forward.export_weights_and_biases(command_buffer, result_state_can_be_temporary=temporary)
    new = source.update(command_buffer, state, exported)
    assert (new is exported, new.is_temporary) == (not temporary, False)
    for kernel in (forward, gradient):
        kernel.reload_weights_and_biases(command_buffer, new)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    slopes = [buffer.contents().view(np.float32) for buffer in (state.gradient_for_weights, state.gradient_for_biases)]
    np.testing.assert_allclose(source.weights(), before[0] - RATE * slopes[0].reshape(SHAPE), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(source.bias_terms(), before[1] - RATE * slopes[1], rtol=1e-5, atol=1e-6)
    assert not forward.holds_stale_weights() and not gradient.holds_stale_weights()
    assert forward.weights_version == gradient.weights_version == 2
