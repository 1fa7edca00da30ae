"""What a checkpoint keeps of one's own network: optimizers, dropout, batch normalization, and parts by label."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from encoding import Bench, finish, keep_results
from openmps.core.image.batch import MPSImageBatch
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.training_state import Checkpointed, numbers
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.dropout import MPSCNNDropoutNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import (
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.runtime.devices import mtl_device
from openmps.training.checkpoint import Checkpoint, graph_parts
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.types import MPSCNNLossType, MPSCNNReductionType
from openmps.types import MPSImageFeatureChannelFormat as Format

CPU = mtl_device("cpu")
OPTIMIZERS = {
    "adam": (lambda device: MPSNNOptimizerAdam(device, 0.05), False),
    "amsgrad": (lambda device: MPSNNOptimizerAdam(device, 0.05, beta2=0.6), True),
    "momentum": (lambda device: MPSNNOptimizerStochasticGradientDescent(device, 0.01, momentum_scale=0.9), False),
    "rmsprop": (lambda device: MPSNNOptimizerRMSProp(device, 0.01), False),
}


def _through_a_file(step, parts):
    return Checkpoint.from_bytes(Checkpoint.of(step, parts).to_bytes())


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_dropout_goes_on_with_its_masks(device):
    bench = Bench.on(device)
    ones = np.ones((2, 3, 4, 5))

    def masks(kernel, count):
        keep_results(kernel)
        found = []
        for _ in range(count):
            command_buffer = bench.command_buffer()
            result = kernel.encode_batch(command_buffer, bench.batch(ones))
            finish(command_buffer)
            found.append(result.numpy())
        return found

    whole = masks(MPSCNNDropout(bench.device, 0.5, seed=3), 6)
    assert all((one != other).any() for one, other in pairwise(whole))
    first = MPSCNNDropout(bench.device, 0.5, seed=3)
    masks(first, 4)
    second = MPSCNNDropout(bench.device, 0.5, seed=3)
    _through_a_file(4, {"dropout": first}).restore({"dropout": second})
    np.testing.assert_array_equal(masks(second, 2), whole[4:])


@pytest.mark.parametrize("state", [{}, {"encodes": -1}, {"encodes": 1.0}, {"encodes": 1, "more": 2}])
def test_dropout_refuses_what_is_no_state(state):
    with pytest.raises(MPSArgumentError, match="MPSCNNDropout: state "):
        MPSCNNDropout(CPU).restore_training_state(state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_give_their_numbers(name):
    make, _ = OPTIMIZERS[name]
    optimizer, other = make(CPU), make(CPU)
    optimizer.set_learning_rate(0.25)
    is_adam = isinstance(optimizer, MPSNNOptimizerAdam)
    if is_adam:
        optimizer.time_step = 9
    other.restore_training_state(optimizer.training_state())
    assert other.learning_rate == 0.25
    assert not is_adam or other.time_step == 9
    with pytest.raises(MPSArgumentError, match="state misses"):
        other.restore_training_state({})
    with pytest.raises(MPSArgumentError, match="state 'learning_rate' must be a finite number"):
        other.restore_training_state({**optimizer.training_state(), "learning_rate": None})


# --- data sources in a graph -----------------------------------------------------------------------------------------


class Network:
    """Convolution, dropout, convolution, squared error; a step each call."""

    def __init__(self, optimizer, *, device=CPU, seed=1, labels=("first", "second"), biases=True):
        make, amsgrad = OPTIMIZERS[optimizer]
        self.device, self.queue = device, device.new_command_queue()
        random = np.random.default_rng(seed)
        self.sources = [
            TrainableConvolutionDataSource(
                MPSCNNConvolutionDescriptor(3, 3, channels[0], channels[1]),
                random.standard_normal((channels[1], 3, 3, channels[0])) * 0.2,
                random.standard_normal(channels[1]) * 0.1 if biases else None,
                label,
                optimizer=make,
                amsgrad=amsgrad,
            )
            for label, channels in zip(labels, ((2, 4), (4, 2)), strict=True)
        ]
        node = MPSCNNConvolutionNode(MPSNNImageNode(), self.sources[0])
        dropout = MPSCNNDropoutNode(node.result_image, 0.75, 5)
        result = MPSCNNConvolutionNode(dropout.result_image, self.sources[1]).result_image
        descriptor = MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNReductionType.MEAN)
        gradients = MPSCNNLossNode(result, descriptor).training_graph()
        self.graph = MPSNNGraph(device, gradients[0].result_image, result_image_is_needed=False)
        self.graph.format = Format.FLOAT32

    def train(self, first, last):
        for step in range(first, last):
            random = np.random.default_rng(step)
            images = MPSImageBatch.from_numpy(self.device, random.random((3, 5, 6, 2), dtype=np.float32))
            targets = MPSImageBatch.from_numpy(self.device, random.random((3, 5, 6, 2), dtype=np.float32))
            for source in self.sources:
                source.set_learning_rate(0.01 / (1 + step))
            command_buffer = self.queue.command_buffer()
            labels = [MPSCNNLossLabels(self.device, labels_image=target) for target in targets]
            self.graph.encode_batch(command_buffer, [images], [labels])
            command_buffer.commit()
            command_buffer.wait_until_completed()
        return self

    def parts(self):
        return graph_parts(self.graph)

    def restore(self, checkpoint):
        checkpoint.restore(self.parts())
        self.graph.reload_from_data_sources()
        return self

    def bits(self):
        return Checkpoint.of(0, self.parts()).to_bytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_network_of_one_s_own_goes_on(name, device):
    machine = mtl_device(device)
    whole = Network(name, device=machine).train(0, 7)
    stopped = Network(name, device=machine).train(0, 4)
    checkpoint = _through_a_file(4, stopped.parts())
    again = Network(name, device=machine, seed=99).restore(checkpoint).train(4, 7)
    if machine.is_cuda:
        for mine, theirs in zip(again.sources, whole.sources, strict=True):
            np.testing.assert_allclose(mine.weights(), theirs.weights(), rtol=1e-3, atol=1e-5)
    else:
        assert again.bits() == whole.bits()


def test_a_graph_that_has_trained_can_be_set_back():
    network = Network("amsgrad").train(0, 3)
    checkpoint = _through_a_file(3, network.parts())
    bits = network.train(3, 6).bits()
    assert network.restore(checkpoint).train(3, 6).bits() == bits


def test_a_checkpoint_right_behind_a_checkpoint_is_the_same_one():
    network = Network("adam").train(0, 3)
    checkpoint = _through_a_file(0, network.parts())
    assert Network("adam", seed=99).restore(checkpoint).bits() == checkpoint.to_bytes()


def test_before_the_first_step_there_is_no_optimizer():
    fresh = Network("adam", biases=False)
    checkpoint = _through_a_file(0, fresh.parts())
    assert set(checkpoint.parts["first"]) == {"weights"}
    again = Network("adam", seed=99, biases=False).restore(checkpoint).train(0, 3)
    assert again.bits() == fresh.train(0, 3).bits()
    trained = Network("adam").train(0, 1)
    state = {
        name: value for name, value in trained.sources[0].training_state().items() if name in ("weights", "biases")
    }
    with pytest.raises(MPSArgumentError, match="must be MPSNNOptimizerAdam, got a state from before the first step"):
        trained.sources[0].restore_training_state(state)


def test_amsgrad_keeps_the_maximum_of_the_velocities():
    network = Network("amsgrad").train(0, 3)
    state = network.sources[0].training_state()
    names = ("input_momentum_vectors", "input_velocity_vectors", "maximum_velocity_vectors")
    assert set(state) == {
        *("weights", "biases", "learning_rate", "optimizer", "optimizer.learning_rate", "optimizer.time_step"),
        *(f"{name}.{index}" for name in names for index in range(2)),
    }
    assert (state["maximum_velocity_vectors.0"] >= state["input_velocity_vectors.0"]).all()
    assert (state["maximum_velocity_vectors.0"] > state["input_velocity_vectors.0"]).any()
    assert state["optimizer.time_step"] == 3
    assert (Network("adam").train(0, 3).sources[0].weights() != network.sources[0].weights()).any()


def test_amsgrad_needs_adam():
    source = TrainableConvolutionDataSource(
        MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], optimizer=OPTIMIZERS["rmsprop"][0], amsgrad=True
    )
    with pytest.raises(MPSTypeError, match="must make an MPSNNOptimizerAdam for amsgrad, got MPSNNOptimizerRMSProp"):
        source._begun(CPU, [1, 1])


def test_the_state_of_another_optimizer_is_refused_at_the_first_step():
    checkpoint = _through_a_file(2, Network("adam").train(0, 2).parts())
    network = Network("rmsprop").restore(checkpoint)
    with pytest.raises(MPSArgumentError, match=r"'second': state 'optimizer' must be MPSNNOptimizerRMSProp, got MPSNN"):
        network.train(2, 3)
    started = Network("amsgrad").train(0, 1)
    with pytest.raises(MPSFileError, match="part 'first' must fit, got .*state misses 'maximum_velocity_vectors"):
        started.restore(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": np.zeros((4, 3, 3, 1), np.float32)}, r"state 'weights' must be float32 of shape \(4, 3, 3, 2\)"),
        ({"biases": np.zeros(4)}, "state 'biases' must be float32"),
        ({"learning_rate": "much"}, "state 'learning_rate' must be a finite number"),
    ],
)
def test_arrays_of_another_layer_are_refused(changes, message):
    source = Network("adam").sources[0]
    before = source.weights().copy()
    with pytest.raises(MPSArgumentError, match=message):
        source.restore_training_state({**source.training_state(), **changes})
    np.testing.assert_array_equal(source.weights(), before)
    without = Network("adam", biases=False).sources[0]
    for state, kind in ((source.training_state(), "must not hold 'biases'"), ({}, "misses 'weights'")):
        with pytest.raises(MPSArgumentError, match=kind):
            without.restore_training_state(state)


def test_parts_go_by_label_and_those_without_one_by_class():
    assert list(Network("adam").parts()) == ["first", "MPSCNNDropout", "second"]
    names = list(Network("adam", labels=("same", "same")).parts())
    assert names == ["same", "MPSCNNDropout", "same 2"]
    assert list(Network("adam", labels=(None, None)).parts())[2] == "TrainableConvolutionDataSource 2"


# --- batch normalization ---------------------------------------------------------------------------------------------


class TrainedNormalization:
    """Batch normalization trained by its kernels: Adam for gamma and beta, running averages for mean and variance."""

    ROWS = ("gamma", "beta", "mean", "variance")
    CHANNELS = 3

    def __init__(self, device=CPU):
        self.bench = Bench(device)
        starts = {"gamma": 1.0, "variance": 1.0}
        self.rows = {name: self._vector(starts.get(name, 0.0)) for name in self.ROWS}
        self.vectors = {name: self._vector(0.0) for name in ("m.gamma", "m.beta", "v.gamma", "v.beta")}
        self.optimizer = MPSNNOptimizerAdam(device, 0.05)
        self.statistics = MPSCNNBatchNormalizationStatistics(device)
        self.sums = MPSCNNBatchNormalizationStatisticsGradient(device)
        self.backward = MPSCNNBatchNormalizationGradient(device)
        self.forward = MPSCNNBatchNormalization(device, self)

    def _vector(self, value):
        data = np.full(self.CHANNELS, value, np.float32)
        return MPSVector(self.bench.device.new_buffer(data=data), MPSVectorDescriptor(self.CHANNELS))

    # What the framework asks of a data source.
    def number_of_feature_channels(self):
        return self.CHANNELS

    def gamma(self):
        return self.rows["gamma"].numpy()

    def beta(self):
        return self.rows["beta"].numpy()

    def mean(self):
        return self.rows["mean"].numpy()

    def variance(self):
        return self.rows["variance"].numpy()

    def epsilon(self):
        return 1e-3

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return "norm"

    # What a checkpoint asks of it.
    def training_state(self):
        arrays = {name: vector.numpy() for name, vector in {**self.rows, **self.vectors}.items()}
        return {**arrays, **self.optimizer.training_state()}

    def restore_training_state(self, state):
        for name, vector in {**self.rows, **self.vectors}.items():
            vector.tensor()[:] = vector.tensor().new_tensor(numbers("norm", state, name, (self.CHANNELS,)))
        self.optimizer.restore_training_state({name: state[name] for name in self.optimizer.training_state()})
        self.forward = MPSCNNBatchNormalization(self.bench.device, self)

    def train(self, first, last):
        for step in range(first, last):
            random = np.random.default_rng(step)
            x, g = random.standard_normal((2, 4, self.CHANNELS, 3, 2))
            command_buffer = self.bench.command_buffer()
            images, flow = self.bench.batch(x), self.bench.batch(g)
            state = self.forward.result_state(self.bench.image(x[:1]))
            self.statistics.encode_batch(command_buffer, images, state)
            self.forward.encode_batch(command_buffer, images, state)
            self.sums.encode_batch(command_buffer, flow, images, state)
            self.backward.encode_batch(command_buffer, flow, images, state)
            updated = MPSCNNNormalizationGammaAndBetaState(self.rows["gamma"].data, self.rows["beta"].data)
            self.optimizer.encode(
                command_buffer,
                batch_normalization_state=state,
                input_momentum_vectors=[self.vectors["m.gamma"], self.vectors["m.beta"]],
                input_velocity_vectors=[self.vectors["v.gamma"], self.vectors["v.beta"]],
                result_state=updated,
            )
            self.forward.reload_gamma_and_beta(command_buffer, updated)
            finish(command_buffer)
            for name, fresh in (("mean", state.mean()), ("variance", state.variance())):
                row = self.rows[name].tensor()
                row += 0.1 * (fresh.tensor(row.dtype) - row)
        return self


def test_batch_normalization_goes_on_with_statistics_and_optimizer(device):
    machine = mtl_device(device)
    whole = TrainedNormalization(machine).train(0, 7)
    assert isinstance(whole, Checkpointed)
    stopped = TrainedNormalization(machine).train(0, 4)
    again = TrainedNormalization(machine)
    _through_a_file(4, {"norm": stopped}).restore({"norm": again})
    again.train(4, 7)
    mine, theirs = again.training_state(), whole.training_state()
    assert set(mine) == {*TrainedNormalization.ROWS, *whole.vectors, "learning_rate", "time_step"}
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-5 if machine.is_cuda else 0, err_msg=name)
        assert name in ("learning_rate", "time_step") or (value != TrainedNormalization().training_state()[name]).any()
