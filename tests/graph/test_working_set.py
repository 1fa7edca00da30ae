"""What one encode of a graph lends to the next in replayed training: never to be seen, whoever keeps or uses a part.

Each network trains on a queue that replays, and once more on one that does not; numbers are equal bit for bit on the
CPU. A layer's data source does something unusual in its updates.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from replay_twin import assert_same, outcomes, replayer_of, replaying_queue

Array = np.ndarray
Format = mps.MPSImageFeatureChannelFormat
CHANNELS, CLASSES, IMAGES, SIZE, STEPS = 4, 3, 4, 6, 8
Adam = mps.MPSNNOptimizerAdam

pytestmark = [
    pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning"),
    pytest.mark.usefixtures("only_new_garbage"),
]


Update = Callable[["Training", Any, Any], object]
"""Called in the update of the convolution with the training, the command buffer and the state of the gradients."""


class Convolution(mps.TrainableConvolutionDataSource):
    """Trainable weights, with something to do besides in each update."""

    besides: Callable[[Any, Any], object] = staticmethod(lambda *_: None)

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.besides(command_buffer, gradient_state)
        return super().update(command_buffer, gradient_state, source_state)


class Normalization(mps.TrainableBatchNormalizationDataSource):
    """A trainable normalization, with something to do besides in each update."""

    besides: Callable[[Any, Any], object] = staticmethod(lambda *_: None)

    def update_gamma_and_beta(self, command_buffer: Any, batch_normalization_state: Any) -> Any:
        made = super().update_gamma_and_beta(command_buffer, batch_normalization_state)
        self.besides(command_buffer, batch_normalization_state)
        return made


def _adam(device: Any) -> Any:
    return Adam(device, 1e-2)


class Training:
    """A convolution, a normalization, a rectifier and a classifier, trained on a queue."""

    def __init__(self, queue: mps.MTLCommandQueue, convolution: Update | None, normalization: Update | None) -> None:
        self.queue, self.device = queue, queue.device
        self.random, self.kept, self.seen = np.random.default_rng(5), [], []
        weights = np.random.default_rng(6)
        first = mps.MPSCNNConvolutionDescriptor(3, 3, 2, CHANNELS)
        last = mps.MPSCNNConvolutionDescriptor(SIZE, SIZE, CHANNELS, CLASSES)
        self.convolution = Convolution(
            first, weights.normal(0, 0.3, first.weight_shape()), np.zeros(CHANNELS), optimizer=_adam
        )
        self.normalization = Normalization(CHANNELS, optimizer=_adam)
        self.classifier = Convolution(last, weights.normal(0, 0.1, last.weight_shape()), None, optimizer=_adam)
        if convolution is not None:
            self.convolution.besides = lambda buffer, state: convolution(self, buffer, state)
        if normalization is not None:
            self.normalization.besides = lambda buffer, state: normalization(self, buffer, state)
        image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.convolution).result_image
        image = mps.MPSCNNBatchNormalizationNode(image, self.normalization).result_image
        image = mps.MPSCNNNeuronReLUNode(image).result_image
        image = mps.MPSCNNFullyConnectedNode(image, self.classifier).result_image
        kind, reduction = mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM
        loss = mps.MPSCNNLossNode(image, mps.MPSCNNLossDescriptor(kind, reduction))
        results = [node.result_image for node in loss.training_graph()]
        self.graph = mps.MPSNNGraph(self.device, results[0], False)
        self.graph.format = Format.FLOAT32
        self.buffers: list[mps.MPSCommandBuffer] = []

    def encode(self, command_buffer: mps.CommandBuffer) -> None:
        """One step over random images."""
        pixels = self.random.normal(0, 1, (IMAGES, SIZE, SIZE, 2)).astype(np.float32)
        targets = np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, IMAGES)]
        batch = mps.MPSImageBatch.from_numpy(self.device, pixels)
        self.graph.encode_batch(command_buffer, [batch], [mps.MPSCNNLossLabels.batch(self.device, targets)])

    def step(self) -> mps.MPSCommandBuffer:
        """One step in a command buffer of its own, to its end."""
        command_buffer = mps.MPSCommandBuffer(self.queue)
        self.encode(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        self.buffers.append(command_buffer)
        return command_buffer

    def arrays(self) -> list[Array]:
        """All numbers that are trained."""
        sources = (self.convolution, self.normalization, self.classifier)
        return [array for source in sources for array in source.arrays().values()]


def _pair(device: torch.device, convolution: Update | None = None, normalization: Update | None = None) -> Any:
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    queues = (replaying_queue(device), plain)
    return tuple(Training(queue, convolution, normalization) for queue in queues)


def _same(replayed: Training, plain: Training) -> None:
    device = replayed.device.torch_device
    for found, expected in zip(replayed.arrays(), plain.arrays(), strict=True):
        assert_same(found, expected, device)
    assert len(replayed.seen) == len(plain.seen)
    for found, expected in zip(replayed.seen, plain.seen, strict=True):
        assert_same(found, expected, device)


def _gradients(state: Any) -> list[Array]:
    if hasattr(state, "gradient_for_weights"):
        buffers = [state.gradient_for_weights, state.gradient_for_biases]
    else:
        buffers = [state.gradient_for_gamma(), state.gradient_for_beta(), state.gamma(), state.mean(), state.variance()]
    return [buffer.tensor(torch.float32).cpu().numpy().copy() for buffer in buffers]


def test_no_gradients_come_out_of_declared_updates(device: torch.device) -> None:
    replayed, plain = _pair(device)
    for training in (replayed, plain):
        for source in (training.convolution, training.normalization, training.classifier):
            source.__class__ = type(source).__bases__[0]
        for _ in range(STEPS):
            training.step()
            gc.collect()
    _same(replayed, plain)
    assert outcomes(replayed.buffers[-1]) == ["replayed"] * len(outcomes(replayed.buffers[-1]))
    player: Any = replayer_of(replayed.queue)
    captured = [entry for entry in player._entries.values() if entry.capture is not None]
    assert len(captured) == 1
    # The losses alone: gradients are values of the function.
    assert len(captured[0].capture.output_bindings) == 1


def _read(kept: Any) -> list[Array]:
    """The numbers of what was kept."""
    if isinstance(kept, mps.MPSState):
        return _gradients(kept)
    if isinstance(kept, mps.MPSVector):
        return [kept.numpy()]
    return [buffer.tensor(torch.float32).cpu().numpy().copy() for buffer in kept]


KEPT: dict[str, Update] = {
    "the state": lambda training, _, state: training.kept.append(state),
    "its buffers": lambda training, _, state: training.kept.append(
        [state.resource_at_index(index) for index in range(state.resource_count)]
    ),
    "a vector over a buffer": lambda training, _, state: training.kept.append(
        mps.MPSVector(state.resource_at_index(0), mps.MPSVectorDescriptor(1))
    ),
}


@pytest.mark.parametrize("layer", ["convolution", "normalization"])
@pytest.mark.parametrize("what", KEPT)
def test_what_somebody_keeps_is_filled_and_stays(what: str, layer: str, device: torch.device) -> None:
    trainings = _pair(device, **{layer: KEPT[what]})
    for training in trainings:
        for number in range(STEPS):
            if number % 3 == 0:
                training.kept.clear()
            training.step()
        # Those of the last steps, each as that step has filled it.
        training.seen = [array for kept in training.kept for array in _read(kept)]
    assert len(trainings[0].seen)
    _same(*trainings)


@pytest.mark.parametrize("layer", ["convolution", "normalization"])
def test_a_state_that_is_kept_now_and_then(layer: str, device: torch.device) -> None:
    """After steps without anybody who keeps it, so that the one kept is one that was used before."""

    def update(training: Training, _: Any, state: Any) -> None:
        training.kept.append(state if len(training.buffers) in (5, 7, 11) else None)

    trainings = _pair(device, **{layer: update})
    for training in trainings:
        for _ in range(14):
            training.step()
        training.seen = [array for state in training.kept if state is not None for array in _gradients(state)]
    _same(*trainings)


@pytest.mark.parametrize("layer", ["convolution", "normalization"])
def test_a_handler_reads_the_gradients(layer: str, device: torch.device) -> None:
    def update(training: Training, command_buffer: Any, state: Any) -> None:
        if len(training.buffers) > 3:
            command_buffer.add_completed_handler(lambda _: training.seen.extend(_gradients(state)))

    trainings = _pair(device, **{layer: update})
    for training in trainings:
        for _ in range(STEPS):
            training.step()
    assert trainings[0].seen
    _same(*trainings)


def test_recorded_work_reads_the_gradients(device: torch.device) -> None:
    def update(training: Training, command_buffer: Any, state: Any) -> None:
        def look() -> None:
            training.seen.append(state.gradient_for_weights.memory(torch.float32).cpu().numpy().copy())

        if len(training.buffers) > 3:
            command_buffer.record("look", look)

    trainings = _pair(device, update)
    for training in trainings:
        for _ in range(STEPS):
            training.step()
    assert len(trainings[0].seen) == STEPS - 4
    _same(*trainings)


def test_an_update_on_another_command_buffer(device: torch.device) -> None:
    """The gradients are read by work that is committed behind the step, and held by nothing else."""

    def update(training: Training, _: Any, state: Any) -> None:
        if len(training.buffers) < 3:
            return
        other = training.queue.command_buffer()
        made = vars(training).setdefault("other", (Adam(training.device, 1e-2), _vectors(training.device)))
        weights, moments, velocities = made[1]
        gradient = mps.MPSVector(state.gradient_for_weights, mps.MPSVectorDescriptor(weights.length))
        made[0].encode(
            other,
            input_gradient_vector=gradient,
            input_values_vector=weights,
            input_momentum_vector=moments,
            input_velocity_vector=velocities,
            result_values_vector=weights,
        )
        training.kept.append(other)

    trainings = _pair(device, update)
    for training in trainings:
        for _ in range(STEPS):
            training.step()
            for other in training.kept:
                other.commit()
                other.wait_until_completed()
            training.kept.clear()
        training.seen = [vars(training)["other"][1][0].numpy()]
    _same(*trainings)


def _vectors(device: mps.MTLDevice) -> list[mps.MPSVector]:
    count = 9 * 2 * CHANNELS
    return [mps.MPSVector(device=device, descriptor=mps.MPSVectorDescriptor(count)) for _ in range(3)]


def test_an_update_that_commits_and_goes_on(device: torch.device) -> None:
    def update(training: Training, command_buffer: Any, _: Any) -> None:
        if len(training.buffers) > 3:
            command_buffer.commit_and_continue()

    trainings = _pair(device, None, update)
    for training in trainings:
        for _ in range(STEPS):
            training.step()
    _same(*trainings)


def test_a_normalization_state_that_is_reset(device: torch.device) -> None:
    """Forgetting the statistics leaves the running averages alone, in that step and in no other."""

    def update(training: Training, _: Any, state: Any) -> None:
        if len(training.buffers) in (4, 6):
            state.reset()

    trainings = _pair(device, None, update)
    for training in trainings:
        for _ in range(STEPS + 2):
            training.step()
    _same(*trainings)


@pytest.mark.parametrize("layer", ["convolution", "normalization"])
@pytest.mark.parametrize("asks_for_memory", [False, True])
def test_an_update_that_asks_for_buffers_and_keeps_nothing(
    layer: str, asks_for_memory: bool, device: torch.device
) -> None:
    def update(training: Training, _: Any, state: Any) -> None:
        if len(training.buffers) in (4, 5, 9):
            for index in range(state.resource_count):
                buffer = state.resource_at_index(index)
                _ = buffer.memory(torch.float32) if asks_for_memory else buffer.length

    trainings = _pair(device, **{layer: update})
    for training in trainings:
        for _ in range(STEPS + 6):
            training.step()
    _same(*trainings)


def test_a_label_that_is_given_to_a_state_goes_with_it(device: torch.device) -> None:
    labels: list[str | None] = []

    def update(training: Training, _: Any, state: Any) -> None:
        labels.append(state.label)
        state.label = "mine"

    replayed, _ = _pair(device, update)
    for _ in range(STEPS):
        replayed.step()
    assert labels == [None] * STEPS


def test_a_weak_reference_to_a_state_does_not_see_the_next_one(device: torch.device) -> None:
    made: list[Any] = []
    replayed, _ = _pair(device, lambda _, __, state: made.append(weakref.ref(state)))
    for _ in range(STEPS):
        replayed.step()
        gc.collect()
        assert made[-1]() is None


def test_two_encodes_in_one_command_buffer_and_two_under_way(device: torch.device) -> None:
    trainings = _pair(device)
    for training in trainings:
        for number in range(STEPS):
            command_buffers = [mps.MPSCommandBuffer(training.queue) for _ in range(1 + number % 2)]
            for command_buffer in command_buffers:
                training.encode(command_buffer)
                training.encode(command_buffer)
            for command_buffer in command_buffers:
                command_buffer.commit()
            for command_buffer in command_buffers:
                command_buffer.wait_until_completed()
            training.buffers += command_buffers
    _same(*trainings)
    assert set(outcomes(trainings[0].buffers[-1])) == {"replayed"}


def test_data_sources_that_are_read_again_and_other_rates(device: torch.device) -> None:
    trainings = _pair(device)
    for training in trainings:
        for number in range(3 * STEPS):
            if number % 7 == 5:
                training.graph.reload_from_data_sources()
            if number % 5 == 3:
                training.convolution.set_learning_rate(1e-2 / number)
                training.normalization.set_learning_rate(1e-3 * number)
            if number == 12:
                training.convolution.optimizer.apply_gradient_clipping = True
            training.step()
    _same(*trainings)


def test_what_a_data_source_updates_with_may_change(device: torch.device) -> None:
    """Vectors and optimizers of its own that somebody replaces between two steps that are otherwise the same."""
    trainings = _pair(device)
    for training in trainings:
        source = training.convolution
        for number in range(3 * STEPS):
            if number == 5:
                source.accumulators["input_momentum_vectors"] = _new(source.accumulators["input_momentum_vectors"])
            if number == 8:
                vectors = source.accumulators["input_velocity_vectors"]
                vectors[:] = _new(vectors)
            if number == 11:
                source._optimizer = mps.MPSNNOptimizerAdam(training.device, 1e-2)
            training.step()
    _same(*trainings)
    assert set(outcomes(trainings[0].buffers[-1])) == {"replayed"}


def _new(vectors: list[mps.MPSVector]) -> list[mps.MPSVector]:
    """Others of zeros."""
    return [mps.MPSVector(descriptor=mps.MPSVectorDescriptor(each.length), device=each.device) for each in vectors]


@pytest.mark.parametrize("is_declared", [False, True], ids=["asked", "declared"])
def test_a_graph_and_its_states_go_without_the_collector(is_declared: bool, device: torch.device) -> None:
    replayed, plain = _pair(device)
    del plain
    for source in (replayed.convolution, replayed.normalization, replayed.classifier) if is_declared else ():
        source.__class__ = type(source).__bases__[0]
    for _ in range(STEPS):
        replayed.step()
    graph, program = weakref.ref(replayed.graph), weakref.ref(next(iter(replayed.graph._programs.values())))
    gc.collect()
    gc.disable()
    try:
        del replayed.graph
        assert graph() is None
        assert program() is None
    finally:
        gc.enable()


KEEPERS = {"a copy": copy.copy, "operands": lambda state: state.update_operands()}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_what_shares_the_memory_of_a_state_keeps_its_gradients(
    device: torch.device, keep: Callable[[Any], Any]
) -> None:
    kept: dict[Training, list[Any]] = {}
    pair = _pair(device, lambda training, _, state: kept.setdefault(training, []).append(keep(state)))
    for training in pair:
        for _ in range(STEPS):
            training.step()
            gc.collect()
    _same(*pair)
    for found, expected in zip(*(kept[training] for training in pair), strict=True):
        for mine, other in zip(_numbers_of(found), _numbers_of(expected), strict=True):
            assert np.any(other)
            assert_same(mine, other, device)


def _numbers_of(kept: Any) -> list[Array]:
    """The gradients of what was kept."""
    if isinstance(kept, mps.MPSState):
        return _gradients(kept)
    return [each.value().cpu().numpy().copy() for each in kept]
