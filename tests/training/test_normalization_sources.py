"""Data sources of batch normalization: arrays, running statistics, and what an optimizer does to gamma and beta."""

from __future__ import annotations

import numpy as np
import pytest

from openmps.core.image.batch import MPSImageBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.nodes.normalization import MPSCNNBatchNormalizationNode
from openmps.kernels.batch_normalization import MPSCNNBatchNormalizationDataSource
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerStochasticGradientDescent
from openmps.runtime.devices import mtl_device
from openmps.training.normalization_sources import (
    ArrayBatchNormalizationDataSource,
    TrainableBatchNormalizationDataSource,
)
from openmps.types import MPSCNNLossType, MPSCNNReductionType
from openmps.types import MPSImageFeatureChannelFormat as Format

CPU = mtl_device("cpu")
RATE, MOMENTUM, EPSILON = 0.25, 0.3, 1e-3
CHANNELS = 3


def _trainable(rng, optimizer=None, label="norm", **options):
    rows = {part: rng.uniform(0.5, 1.5, CHANNELS) for part in ("gamma", "beta", "mean", "variance")}
    make = optimizer or (lambda device: MPSNNOptimizerStochasticGradientDescent(device, RATE))
    options = {"epsilon": EPSILON, "momentum": MOMENTUM, **options}
    return TrainableBatchNormalizationDataSource(CHANNELS, **rows, label=label, optimizer=make, **options)


def _graph(*sources):
    """The loss is the sum of squares of the normalized images, over 2."""
    image = MPSNNImageNode()
    for source in sources:
        image = MPSCNNBatchNormalizationNode(image, source).result_image
    loss = MPSCNNLossNode(image, MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNReductionType.SUM))
    graph = MPSNNGraph(CPU, loss.training_graph()[0].result_image)
    graph.format = Format.FLOAT32
    return graph


def _step(graph, values):
    labels = MPSImageBatch.from_numpy(CPU, np.zeros_like(values))
    command_buffer = CPU.new_command_queue().command_buffer()
    images = MPSImageBatch.from_numpy(CPU, values)
    graph.encode_batch(command_buffer, [images], [[MPSCNNLossLabels(CPU, labels_image=each) for each in labels]])
    command_buffer.commit()
    command_buffer.wait_until_completed()


def _images(rng, count=4):
    return rng.normal(1.0, 2.0, (count, 5, 6, CHANNELS)).astype(np.float32)


def test_arrays_and_defaults(rng):
    gamma = rng.standard_normal(CHANNELS)
    source = ArrayBatchNormalizationDataSource(CHANNELS, gamma, label="layer")
    assert isinstance(source, MPSCNNBatchNormalizationDataSource)
    kept = gamma.astype(np.float32)
    gamma[:] = 0
    np.testing.assert_array_equal(source.gamma(), kept)
    assert (source.number_of_feature_channels(), source.epsilon(), source.label()) == (CHANNELS, 1e-5, "layer")
    for row, value in ((source.beta(), 0), (source.mean(), 0), (source.variance(), 1)):
        np.testing.assert_array_equal(row, np.full(CHANNELS, value, np.float32))
    assert list(source.arrays()) == ["gamma", "beta", "mean", "variance"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "number_of_feature_channels must be a positive integer, got 0"),
        ((3, [1, 2]), "gamma must hold 3 numbers, one a feature channel, got 2"),
        ((2, None, None, None, [1, 2, 3]), "variance must hold 2 numbers, one a feature channel, got 3"),
    ],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(MPSArgumentError, match=message):
        ArrayBatchNormalizationDataSource(*arguments)


@pytest.mark.parametrize("momentum", [-0.1, 1.5])
def test_the_momentum_is_a_share(rng, momentum):
    with pytest.raises(MPSArgumentError, match="momentum must be 0 to 1"):
        _trainable(rng, momentum=momentum)


@pytest.mark.parametrize("counts", [(4, 4), (4, 2)], ids=str)
def test_a_step_against_the_formulas(rng, counts):
    """The second batch may have another size; M is that of each batch."""
    source = _trainable(rng)
    graph = _graph(source)
    expected = {name: row.astype(np.float64) for name, row in source.arrays().items()}
    for count in counts:
        images = _images(rng, count)
        x = images.astype(np.float64).reshape(-1, CHANNELS)
        mean, variance = x.mean(0), x.var(0)
        normal = (x - mean) / np.sqrt(variance + EPSILON)
        slope = 2 * (expected["gamma"] * normal + expected["beta"])
        expected["gamma"] = expected["gamma"] - RATE * (slope * normal).sum(0)
        expected["beta"] = expected["beta"] - RATE * slope.sum(0)
        expected["mean"] += MOMENTUM * (mean - expected["mean"])
        expected["variance"] += MOMENTUM * (variance * len(x) / (len(x) - 1) - expected["variance"])
        _step(graph, images)
    for name, row in source.arrays().items():
        np.testing.assert_allclose(row, expected[name], rtol=2e-5, err_msg=name)


def test_a_restored_source_goes_on_to_the_same_bits(rng):
    make = lambda device: MPSNNOptimizerAdam(device, 0.1)  # noqa: E731
    images = [_images(rng) for _ in range(4)]
    source = _trainable(np.random.default_rng(0), make)
    graph = _graph(source)
    for each in images[:2]:
        _step(graph, each)
    state = dict(source.training_state())
    other = _trainable(np.random.default_rng(1), make)
    other.restore_training_state(state)
    again = _graph(other)
    for each in images[2:]:
        _step(graph, each)
        _step(again, each)
    assert list(source.training_state()) == list(other.training_state())
    for name, value in source.training_state().items():
        np.testing.assert_array_equal(other.training_state()[name], value, err_msg=name)
    for broken in ({**state, "mean": state["mean"][:2]}, {name: state[name] for name in state if name != "beta"}):
        with pytest.raises(MPSArgumentError, match="TrainableBatchNormalizationDataSource 'norm': state"):
            other.restore_training_state(broken)


def test_it_cannot_update_on_the_cpu(rng):
    source = _trainable(rng)
    for update in (source.update_gamma_and_beta, source.update_mean_and_variance):
        with pytest.raises(MPSTypeError, match="'norm': command_buffer is needed: this data source updates on the dev"):
            update(None, None)


def test_one_pixel_has_no_variance(rng):
    with pytest.raises(MPSArgumentError, match="'norm': batch must be of at least two pixels, for one has no variance"):
        _step(_graph(_trainable(rng)), np.ones((1, 1, 1, CHANNELS), np.float32))


def test_a_source_of_two_layers_is_refused(rng):
    source = _trainable(rng)
    with pytest.raises(MPSArgumentError, match="'norm': batch_normalization_state must be of one layer"):
        _step(_graph(source, source), _images(rng))
    first, second = _trainable(rng, label="first"), _trainable(rng, label="second")
    before = first.gamma()
    _step(_graph(first, second), _images(rng))
    assert (first.gamma() != before).any()


def test_beta_alone_is_trained():
    """The gradient of beta, M beta, does not depend on gamma: it goes as it would beside a gamma that is trained."""
    both, alone = (_trainable(np.random.default_rng(3), trains_gamma=trains) for trains in (True, False))
    before = alone.gamma()
    for source in (both, alone):
        graph, rng = _graph(source), np.random.default_rng(4)
        for _ in range(3):
            source.set_learning_rate(1e-3)
            _step(graph, _images(rng))
    np.testing.assert_array_equal(alone.gamma(), before)
    assert (both.gamma() != before).all()
    np.testing.assert_allclose(alone.beta(), both.beta(), rtol=1e-5)
    np.testing.assert_array_equal(alone.mean(), both.mean())
    with pytest.raises(
        MPSTypeError, match="^TrainableBatchNormalizationDataSource: trains_gamma must be True or False"
    ):
        _trainable(np.random.default_rng(3), trains_gamma="no")
