"""Updates that are declared are not asked for anew; what differs shows at the very next step.

Each training runs on a queue that replays, and once more on one that does not; numbers are equal bit for bit on the
CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.training.network import NetworkShape, SampleNetwork
from replay_twin import assert_same, outcomes, replaying_queue

Array = np.ndarray
Format = mps.MPSImageFeatureChannelFormat
SIDE, CLASSES, IMAGES, STEPS, CHANGED = 8, 3, 4, 9, 5
"""The step before which something is changed."""

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


def _adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    said = mps.MPSNNOptimizerDescriptor(learning_rate=1e-2, gradient_clip_max=1e-3, gradient_clip_min=-1e-3)
    return mps.MPSNNOptimizerAdam(device, optimizer_descriptor=said)


class Training:
    """Steps of the sample network over bytes."""

    def __init__(self, queue: mps.MTLCommandQueue) -> None:
        self.queue, self.device = queue, queue.device
        shape = NetworkShape(SIDE, SIDE, 1, CLASSES)
        self.network = SampleNetwork.create(shape, seed=1, optimizer=_adam)
        self.graph = self.network.training_graph(self.device, Format.FLOAT32, loss_weight=0.25, dropout_seed=1)
        self.graph.stop_on_non_finite = False
        self.random = np.random.default_rng(2)
        self.last: Any = None

    def images(self, count: int = IMAGES) -> Array:
        return self.random.integers(0, 256, (count, SIDE, SIDE, 1), np.uint8)

    def targets(self, count: int = IMAGES) -> Array:
        return np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, count)]

    def step(self, count: int = IMAGES) -> mps.MPSStateBatch:
        """One step; its labels."""
        batch = mps.MPSImageBatch.from_numpy(self.device, self.images(count), Format.UNORM8)
        labels = mps.MPSCNNLossLabels.batch(self.device, self.targets(count))
        self.last = mps.MPSCommandBuffer(self.queue)
        self.graph.encode_batch(self.last, [batch], [labels])
        self.last.commit()
        return labels

    @property
    def sources(self) -> list[Any]:
        return [layer.source for layer in self.graph._updates._layers]

    def arrays(self) -> list[Array]:
        self.last.wait_until_completed()
        return [array for source in self.sources for array in source.arrays().values()]


def losses(labels: Any) -> Array:
    return np.array([each.loss_image().numpy().item() for each in labels], np.float32)


def pair(device: torch.device) -> tuple[Training, Training]:
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    return Training(replaying_queue(device)), Training(plain)


def assert_equal(replayed: Training, plain: Training, device: torch.device) -> None:
    for mine, other in zip(replayed.arrays(), plain.arrays(), strict=True):
        assert_same(mine, other, device)


def _learning_rate(training: Training) -> None:
    for source in training.sources:
        source.set_learning_rate(0.1)


def _clipping(training: Training) -> None:
    optimizer = training.sources[1].optimizer
    optimizer.apply_gradient_clipping = not optimizer.apply_gradient_clipping


def _time_step(training: Training) -> None:
    training.sources[0].optimizer.time_step = 40


def _vectors(training: Training) -> None:
    """Other momenta for one layer, in the source's own lists."""
    momenta = training.sources[2].accumulators["input_momentum_vectors"]
    lengths = [momentum.length for momentum in momenta]
    momenta[:] = [mps.MPSVector(device=training.device, descriptor=mps.MPSVectorDescriptor(n)) for n in lengths]


def _fusion(training: Training) -> None:
    training.graph.allow_fusion = False


def _format(training: Training) -> None:
    training.graph.format = Format.FLOAT16


def _weights(training: Training) -> None:
    training.arrays()
    source = training.sources[-1]
    source._take({name: 0.5 * array for name, array in source.arrays().items()})
    training.graph.reload_from_data_sources()


def _own_update(training: Training) -> None:
    """One layer's update is the program's own from now on, and does nothing."""
    training.sources[0].__class__ = type(
        "Still", (type(training.sources[0]),), {"update": lambda self, buffer, gradients, source: None}
    )


CHANGES: list[Callable[[Training], None]] = [
    _learning_rate,
    _clipping,
    _time_step,
    _vectors,
    _fusion,
    _format,
    _weights,
    _own_update,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_shows_in_the_next_step(change: Callable[[Training], None], device: torch.device) -> None:
    trainings = pair(device)
    for training in trainings:
        for number in range(STEPS):
            if number == CHANGED:
                change(training)
            training.step()
    assert_equal(*trainings, device)
    unchanged = Training(replaying_queue(device))
    for _ in range(STEPS):
        unchanged.step()
    different = [not np.array_equal(a, b) for a, b in zip(trainings[0].arrays(), unchanged.arrays(), strict=True)]
    assert any(different) or change is _fusion


def test_a_step_with_declared_updates_is_one_dispatch(device: torch.device) -> None:
    """Otherwise the tests of this file would compare one slow path with another."""
    training = Training(replaying_queue(device))
    for _ in range(STEPS):
        training.step()
        assert len(training.last.explain().works) == 1
    training.last.wait_until_completed()
    assert set(outcomes(training.last)) == {"replayed"}


def test_other_numbers_of_images(device: torch.device) -> None:
    trainings = pair(device)
    for training in trainings:
        for count in (4, 4, 4, 4, 2, 4, 2, 2, 2, 3, 4):
            training.step(count)
    assert_equal(*trainings, device)


def test_what_is_wrong_is_refused_after_steps_that_were_right(device: torch.device) -> None:
    training = Training(replaying_queue(device))
    for _ in range(STEPS):
        training.step()
    batch = mps.MPSImageBatch.from_numpy(training.device, training.images(), Format.UNORM8)
    labels = mps.MPSCNNLossLabels.batch(training.device, training.targets())
    open_buffer = mps.MPSCommandBuffer(training.queue)
    for sources, states in (
        ([batch], [mps.MPSCNNLossLabels.batch(training.device, training.targets(3))]),
        ([mps.MPSImageBatch.from_numpy(training.device, training.images(3), Format.UNORM8)], [labels]),
        ([batch, batch], [labels]),
        ([batch], []),
        ([batch], [labels, labels]),
        ([batch], [mps.MPSCNNLossLabels.batch(training.device, np.ones((IMAGES, CLASSES - 1), np.float32))]),
    ):
        with pytest.raises(mps.MPSArgumentError):
            training.graph.encode_batch(open_buffer, sources, states)
    with pytest.raises(mps.MTLCommandBufferError):
        training.graph.encode_batch(training.last, [batch], [labels])


def test_temporary_images_are_counted_after_ordinary_ones(device: torch.device) -> None:
    training = Training(replaying_queue(device))
    for _ in range(STEPS):
        training.step()
    command_buffer = mps.MPSCommandBuffer(training.queue)
    descriptor = mps.MPSImageDescriptor(Format.UNORM8, SIDE, SIDE, 1)
    batch = mps.MPSImageBatch.allocate_temporary(command_buffer, descriptor, IMAGES)
    labels = mps.MPSCNNLossLabels.batch(training.device, training.targets())
    training.graph.encode_batch(command_buffer, [batch], [labels])
    assert batch[0].read_count == 0
    with pytest.raises(mps.MPSLifetimeError):
        training.graph.encode_batch(command_buffer, [batch], [labels])


def test_losses_are_those_of_their_own_step(device: torch.device) -> None:
    """Read at once, some steps later, and when all is over."""
    trainings, found = pair(device), list[list[Array]]()
    for training in trainings:
        kept, read = list[Any](), list[Array]()
        for number in range(STEPS + 4):
            kept.append(training.step())
            if number % 3 == 2:
                training.last.wait_until_completed()
                read.append(losses(kept[-1]))
                read.append(losses(kept[-2]))
        training.last.wait_until_completed()
        found.append([*read, *map(losses, kept)])
    for mine, other in zip(*found, strict=True):
        assert_same(mine, other, device)


def _steps(training: Training, count: int = STEPS) -> None:
    """Each is waited for: the next one has the states of the last."""
    for _ in range(count):
        training.step()
        training.last.wait_until_completed()


def test_what_stands_for_a_data_source_is_asked(device: torch.device) -> None:
    class Scheduled:
        """Hands on what it does not do itself."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.calls = inner, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            self.calls += 1
            return self.inner.update(command_buffer, gradient_state, source_state)

    training = Training(replaying_queue(device))
    sources: dict[str, Any] = training.network._sources
    sources.update({label: Scheduled(source) for label, source in sources.items()})
    training.graph = training.network.training_graph(training.device, Format.FLOAT32, loss_weight=0.25, dropout_seed=1)
    training.graph.stop_on_non_finite = False
    _steps(training)
    assert [source.calls for source in sources.values()] == [STEPS] * len(sources)


@pytest.mark.parametrize("before", [0, CHANGED])
@pytest.mark.parametrize(
    ("kind", "method"), [(mps.TrainableConvolutionDataSource, "update"), (mps.MPSNNOptimizerAdam, "encode")]
)
def test_a_method_put_in_the_place_of_a_class_is_called(
    kind: type, method: str, before: int, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    training, calls = Training(replaying_queue(device)), list[object]()
    own = getattr(kind, method)
    _steps(training, before)
    monkeypatch.setattr(kind, method, lambda self, *given, **named: calls.append(self) or own(self, *given, **named))
    _steps(training)
    assert len(calls) == STEPS * len(training.sources)


def test_an_encode_put_in_the_place_of_an_optimizers_is_called(device: torch.device) -> None:
    training, calls = Training(replaying_queue(device)), list[object]()
    _steps(training)
    optimizer = training.sources[0].optimizer
    own = optimizer.encode
    optimizer.encode = lambda *given, **named: calls.append(given) or own(*given, **named)
    _steps(training)
    assert len(calls) == STEPS


@pytest.mark.parametrize("stops", [False, True])
def test_clipping_of_replayed_updates(stops: bool, device: torch.device) -> None:
    """With and without states of the graph's own that come again."""
    trainings = pair(device)
    for training in trainings:
        training.graph.stop_on_non_finite = stops
        _steps(training)
        _clipping(training)
        _steps(training)
    assert_equal(*trainings, device)


def test_a_gradient_that_is_left_out_and_read_behind_is_refused(device: torch.device) -> None:
    training = Training(mps.mtl_device(device).new_command_queue())
    training.step()
    inner = [each for each in training.graph.kernels.values() if isinstance(each, mps.MPSCNNConvolutionGradient)]
    option = mps.MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    *others, first = inner
    for each in others:
        before, each.gradient_option = each.gradient_option, option
        with pytest.raises(mps.MPSArgumentError, match="gradient_option"):
            training.step()
        each.gradient_option = before
    first.gradient_option = option
    training.step()
    training.last.wait_until_completed()
