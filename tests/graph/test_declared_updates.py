"""Declared updates, a part of a step's one dispatch, against updates that are asked for in each step: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from openmps.graph.compile.declared_updates import _Updates
from openmps.graph.run.training_step import TrainingStep
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.step_trace import StepTrace, UndeclaredError
from openmps.training import Muon
from pairs import pairs
from replay_twin import assert_same, outcomes, replaying_queue
from trainable_sources import asked

Array = np.ndarray
Format = mps.MPSImageFeatureChannelFormat
Optimizer = Callable[[mps.MTLDevice], mps.MPSNNOptimizer]
IMAGES, SIZE, CLASSES, STEPS = 4, 6, 3, 5

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


def _descriptor(**said: Any) -> mps.MPSNNOptimizerDescriptor:
    return mps.MPSNNOptimizerDescriptor(**{"learning_rate": 0.02, **said})


def _momentum(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    said = _descriptor(regularization_type=mps.MPSNNRegularizationType.L2, regularization_scale=0.01)
    return mps.MPSNNOptimizerStochasticGradientDescent(device, momentum_scale=0.9, optimizer_descriptor=said)


def _clipped(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    said = _descriptor(apply_gradient_clipping=True, gradient_clip_max=1e-3, gradient_clip_min=-1e-3)
    return mps.MPSNNOptimizerAdam(device, optimizer_descriptor=said)


def _decayed(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    optimizer = mps.MPSNNOptimizerAdam(device, 0.01)
    optimizer.weight_decay = 0.3
    return optimizer


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.02),
    "momentum": _momentum,
    "rmsprop": lambda device: mps.MPSNNOptimizerRMSProp(device, 0.01),
    "adam": lambda device: mps.MPSNNOptimizerAdam(device, 0.01),
    "clipped": _clipped,
    "decayed": _decayed,
    "muon": lambda device: Muon(device, 0.05),
}


class Net:
    """A small network of all kinds of layers with parameters."""

    def __init__(self, kind: str, optimizer: Optimizer, *, is_asked: bool, amsgrad: bool = False) -> None:
        self.random = np.random.default_rng(3)
        self.optimizer, self.is_asked, self.amsgrad = optimizer, is_asked, amsgrad
        self.sources: list[Any] = []
        image = self.build(kind, mps.MPSNNImageNode())
        reduction = mps.MPSCNNReductionType.SUM
        loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, reduction)
        self.loss = mps.MPSCNNLossNode(image, loss)

    def keep(self, source: Any) -> Any:
        self.sources.append(asked(source) if self.is_asked else source)
        return source

    def convolution(self, inputs: int, outputs: int, size: int = 3, *, biases: bool = True) -> Any:
        descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
        weights = self.random.normal(0, 0.3, descriptor.weight_shape())
        row = self.random.normal(0, 0.1, outputs) if biases else None
        said = {"optimizer": self.optimizer, "amsgrad": self.amsgrad}
        return self.keep(mps.TrainableConvolutionDataSource(descriptor, weights, row, **said))

    def normalization(self, kind: type, channels: int, *more: int) -> Any:
        return self.keep(kind(channels, *more, optimizer=self.optimizer, amsgrad=self.amsgrad))

    def build(self, kind: str, image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
        first = self.convolution(2, 4, biases=kind != "normalized")
        image = mps.MPSCNNConvolutionNode(image, first).result_image
        if kind == "normalized":
            source = self.normalization(mps.TrainableBatchNormalizationDataSource, 4)
            image = mps.MPSCNNBatchNormalizationNode(image, source).result_image
        elif kind == "instances":
            source = self.normalization(mps.TrainableInstanceNormalizationDataSource, 4)
            image = mps.MPSCNNInstanceNormalizationNode(image, source).result_image
        elif kind == "groups":
            source = self.normalization(mps.TrainableGroupNormalizationDataSource, 4, 2)
            image = mps.MPSCNNGroupNormalizationNode(image, source).result_image
        image = mps.MPSCNNNeuronReLUNode(image, 0.1).result_image
        if kind == "shared":
            source = self.convolution(4, 4)
            for _ in range(2):
                image = mps.MPSCNNConvolutionNode(image, source).result_image
        elif kind == "read twice":
            wide = mps.MPSCNNConvolutionNode(image, self.convolution(4, 4)).result_image
            sides = [mps.MPSCNNNeuronReLUNode(wide, slope).result_image for slope in (0.1, 0.3)]
            image = mps.MPSNNAdditionNode(*sides).result_image
        return mps.MPSCNNFullyConnectedNode(image, self.convolution(4, CLASSES, SIZE)).result_image


class Training:
    """Steps of a network on a queue."""

    def __init__(self, net: Net, queue: mps.MTLCommandQueue, channel_format: Format, *, stops: bool = False) -> None:
        self.net, self.queue, self.device = net, queue, queue.device
        results = [node.result_image for node in net.loss.training_graph()]
        self.graph = mps.MPSNNGraph(self.device, results[0], False)
        self.graph.format, self.graph.stop_on_non_finite = channel_format, stops
        self.random, self.losses = np.random.default_rng(4), list[Any]()
        self.last: Any = None

    def step(self, count: int = IMAGES) -> None:
        pixels = self.random.normal(0, 1, (count, SIZE, SIZE, 2)).astype(np.float32)
        targets = np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, count)]
        labels = mps.MPSCNNLossLabels.batch(self.device, targets)
        self.last = mps.MPSCommandBuffer(self.queue)
        self.graph.encode_batch(self.last, [mps.MPSImageBatch.from_numpy(self.device, pixels)], [labels])
        self.last.commit()
        self.losses.append(labels)

    def numbers(self) -> list[Array]:
        """Losses, parameters, and all that optimizers keep."""
        self.last.wait_until_completed()
        found = [label.loss_image().numpy() for labels in self.losses for label in labels]
        for source in self.net.sources:
            found += [*source.arrays().values()]
            found += [vector.numpy() for vectors in source.accumulators.values() for vector in vectors]
        return found

    @property
    def is_declared(self) -> bool:
        """Whether each of its programs is encoded with its updates as one dispatch."""
        traced = [[*program.updates.values()] for program in self.graph._programs.values()]
        return all(each and all(isinstance(one.frame, TrainingStep) for one in each) for each in traced)


def _queue(device: torch.device, *, replays: bool) -> mps.MTLCommandQueue:
    if replays:
        return replaying_queue(device)
    queue = mps.mtl_device(device).new_command_queue()
    queue.max_capture_count = 0
    return queue


def _pair(
    device: torch.device, kind: str, optimizer: Optimizer, channel_format: Format = Format.FLOAT32, **said: Any
) -> Any:
    replays, stops = said.pop("replays", False), said.pop("stops", False)
    return tuple(
        Training(
            Net(kind, optimizer, is_asked=it, **said), _queue(device, replays=replays), channel_format, stops=stops
        )
        for it in (False, True)
    )


def _equal(pair: tuple[Training, Training], device: torch.device) -> None:
    declared, asked_for = pair
    assert declared.is_declared
    assert not asked_for.is_declared
    for mine, other in zip(declared.numbers(), asked_for.numbers(), strict=True):
        assert_same(mine, other, device)


KINDS = ("plain", "normalized", "instances", "groups", "shared", "read twice")


@pytest.mark.parametrize(("kind", "optimizer", "replays"), pairs(KINDS, [*OPTIMIZERS], [False, True]))
def test_declared_updates_are_those_that_are_asked_for(
    kind: str, optimizer: str, replays: bool, device: torch.device
) -> None:
    pair = _pair(device, kind, OPTIMIZERS[optimizer], replays=replays)
    for training in pair:
        for _ in range(STEPS):
            training.step()
    _equal(pair, device)
    if replays:
        assert set(outcomes(pair[0].last)) == {"replayed"}


@pytest.mark.parametrize(("kind", "replays", "stops"), pairs(KINDS, [False, True], [False, True]))
def test_images_of_float16_and_checks_of_results(kind: str, replays: bool, stops: bool, device: torch.device) -> None:
    pair = _pair(device, kind, OPTIMIZERS["adam"], Format.FLOAT16, replays=replays, stops=stops)
    for training in pair:
        for count in (4, 4, 4, 2, 4, 2):
            training.step(count)
    _equal(pair, device)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_made_while_updates_are_traced(
    kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a step of another program that runs meanwhile: what was asked before that is still the same memory."""
    traced = _Updates._traced

    def made_behind(self: _Updates, dispatch: Dispatch) -> Any:
        found = traced(self, dispatch)
        for memory in (memory for bound in dispatch.inputs for memory in bound.memories()):
            if isinstance(memory, mps.MTLBuffer):
                memory.contents()
        return found

    monkeypatch.setattr(_Updates, "_traced", made_behind)
    pair = _pair(device, kind, OPTIMIZERS["adam"])
    for training in pair:
        for _ in range(STEPS):
            training.step()
    _equal(pair, device)


@pytest.mark.parametrize("replays", [False, True], ids=["plain", "replayed"])
def test_amsgrad(replays: bool, device: torch.device) -> None:
    pair = _pair(device, "normalized", OPTIMIZERS["adam"], replays=replays, amsgrad=True)
    for training in pair:
        for _ in range(STEPS):
            training.step()
    _equal(pair, device)


@pytest.mark.parametrize("replays", [False, True], ids=["plain", "replayed"])
@pytest.mark.parametrize("kind", ["normalized", "groups"])
def test_averages(kind: str, replays: bool, device: torch.device) -> None:
    """They are a part of the one dispatch, and begin anew when they are turned on again."""
    pair = _pair(device, kind, OPTIMIZERS["adam"], Format.FLOAT16, replays=replays)
    for training in pair:
        for decay in (0.75, None, 0.5):
            for source in training.net.sources:
                source.keep_average(decay)
            for _ in range(STEPS):
                training.step()
    _equal(pair, device)
    assert len(pair[0].last.explain().works) == 1
    if replays:
        assert set(outcomes(pair[0].last)) == {"replayed"}
    for mine, other in zip(pair[0].net.sources, pair[1].net.sources, strict=True):
        for name, array in mine.averages().items():
            assert_same(array, other.averages()[name], device)
            assert not np.array_equal(array, mine.arrays()[name])


def test_a_step_is_one_dispatch_and_two_where_results_are_looked_at(device: torch.device) -> None:
    for stops, works in ((False, 1), (True, 2)):
        training = Training(
            Net("normalized", OPTIMIZERS["adam"], is_asked=False),
            _queue(device, replays=False),
            Format.FLOAT32,
            stops=stops,
        )
        training.step()
        assert len(training.last.explain().works) == works
        training.last.wait_until_completed()


def test_every_step_asks_for_rates(device: torch.device) -> None:
    """Also for those that never run."""
    pair = _pair(device, "plain", OPTIMIZERS["adam"])
    for training in pair:
        for step in range(STEPS):
            for source in training.net.sources:
                source.set_learning_rate(0.1 / (step + 1))
            training.step()
        training.last.wait_until_completed()
        dropped = training.queue.command_buffer()
        labels = mps.MPSCNNLossLabels.batch(training.device, np.eye(CLASSES, dtype=np.float32)[:2])
        batch = mps.MPSImageBatch.from_numpy(training.device, np.ones((2, SIZE, SIZE, 2), np.float32))
        training.graph.encode_batch(dropped, [batch], [labels])
        assert [source.optimizer.time_step for source in training.net.sources] == [STEPS + 1] * 2


def test_other_rates_and_decays_are_replayed(device: torch.device) -> None:
    """They are numbers of each step; a decay out of nothing is other work."""
    pair = _pair(device, "plain", _decayed, replays=True)
    for training in pair:
        for step in range(2 * STEPS):
            for source in training.net.sources:
                source.set_learning_rate(0.1 / (step + 1))
            training.step()
            training.last.wait_until_completed()
            if step > 2 and training is pair[0]:
                assert set(outcomes(training.last)) == {"replayed"}
    _equal(pair, device)


def _reload(training: Training) -> None:
    training.last.wait_until_completed()
    for source in training.net.sources:
        source._take({name: 0.5 * array for name, array in source.arrays().items()})
    training.graph.reload_from_data_sources()


def _restore(training: Training) -> None:
    training.last.wait_until_completed()
    for source in training.net.sources:
        source.restore_training_state(source.training_state())
    training.graph.reload_from_data_sources()


def _clip(training: Training) -> None:
    for source in training.net.sources:
        source.optimizer.apply_gradient_clipping = not source.optimizer.apply_gradient_clipping


def _decay(training: Training) -> None:
    for source in training.net.sources:
        source.optimizer.weight_decay = 0.5 - source.optimizer.weight_decay


def _forget_momenta(training: Training) -> None:
    for vectors in training.net.sources[0].accumulators.values():
        vectors[:] = [
            mps.MPSVector(device=each.device, descriptor=mps.MPSVectorDescriptor(each.length)) for each in vectors
        ]


def _bind(training: Training) -> None:
    """Other memory for the weights of the first layer."""
    training.last.wait_until_completed()
    kernel = next(each for each in training.graph.kernels.values() if hasattr(each, "parameters"))
    weights = kernel.parameters.state().weights
    weights.bind(0.5 * weights.tensor(torch.float32).clone())


@pytest.mark.parametrize(
    ("kind", "change", "replays"),
    pairs(["plain", "normalized", "groups"], [_reload, _restore, _clip, _decay, _forget_momenta, _bind], [False, True]),
)
def test_what_changes_between_steps(
    kind: str, change: Callable[[Training], None], replays: bool, device: torch.device
) -> None:
    pair = _pair(device, kind, _clipped, replays=replays)
    for training in pair:
        for number in range(3 * STEPS):
            if number in (STEPS, 2 * STEPS):
                change(training)
            training.step()
    _equal(pair, device)


def test_two_graphs_of_the_same_sources(device: torch.device) -> None:
    """Each trains what the other one reloads, and the sources say whose numbers are newest."""
    found: list[list[Array]] = []
    for is_asked in (False, True):
        net, queue = Net("plain", OPTIMIZERS["adam"], is_asked=is_asked), _queue(device, replays=False)
        first, second = (Training(net, queue, Format.FLOAT32) for _ in range(2))
        numbers = list[Array]()
        for _ in range(STEPS):
            for training, other in ((first, second), (second, first)):
                training.step()
                numbers += training.numbers()
                other.graph.reload_from_data_sources()
        found.append(numbers)
    for mine, other in zip(*found, strict=True):
        assert_same(mine, other, device)


def test_a_layer_that_is_asked_makes_all_be_asked(device: torch.device) -> None:
    """So that updates stay in the order in which the framework asks for them."""
    training = Training(
        Net("normalized", OPTIMIZERS["adam"], is_asked=False), _queue(device, replays=False), Format.FLOAT32
    )
    training.step()
    assert training.is_declared
    calls: list[object] = []
    source = training.net.sources[-1]
    own = source.update
    source.update = lambda *given: calls.append(given) or own(*given)
    for _ in range(STEPS):
        training.step()
    training.last.wait_until_completed()
    assert len(calls) == STEPS
    assert not any(isinstance(given[0], StepTrace) for given in calls)
    del source.update
    training.step()
    assert len(calls) == STEPS


def test_an_optimizer_with_an_encode_of_its_own_is_asked(device: torch.device) -> None:
    class Doubled(mps.MPSNNOptimizerAdam):
        """Encodes twice."""

        calls = 0

        def encode(self, *given: Any, **named: Any) -> None:
            type(self).calls += 1
            super().encode(*given, **named)

    training = Training(
        Net("plain", lambda device: Doubled(device, 0.01), is_asked=False),
        _queue(device, replays=False),
        Format.FLOAT32,
    )
    for _ in range(STEPS):
        training.step()
    training.last.wait_until_completed()
    assert Doubled.calls == 2 * STEPS
    assert not training.is_declared


def test_a_trace_takes_encodes_without_numbers(device: torch.device) -> None:
    """What reads images alone is the same work in each step."""
    bench = Bench.on(device)
    trace = StepTrace(bench.queue)
    kernel = mps.MPSImageAreaMax(bench.device, 3, 3)
    kernel.encode(trace, bench.filled((1, 1, 4, 4), 1.0), bench.filled((1, 1, 4, 4), 0.0))
    assert [label for label, _ in trace.take()] == ["MPSImageAreaMax"]
    dropout = mps.MPSCNNDropout(bench.device, 0.5, 1)
    with pytest.raises(UndeclaredError):
        dropout.encode(trace, bench.filled((1, 1, 4, 4), 1.0))
