"""Replayed graphs: random ones, and training of the sample network, equal what runs step by step.

On the CPU the twin of the CUDA graphs replays, and numbers are equal bit for bit; see `replay_twin`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from networks import named_gradients
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from random_graphs import CHANNELS, IMAGES, SIZE, Grown
from replay_twin import assert_same, outcomes, replayer_of, replaying_queue

Array = np.ndarray
Format = mps.MPSImageFeatureChannelFormat
CLASSES = 3
GRAPHS = int(os.environ.get("OPENMPS_GRAPHS", "60"))
REPLAYS = int(os.environ.get("OPENMPS_REPLAYS", "200"))
"""More of both are asked for by the environment, with ``--timeout 0``."""
BLOCK = 200
SHAPE = NetworkShape(12, 12, 1, CLASSES)

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


# --- random graphs ----------------------------------------------------------------------------------------------------


@contextmanager
def _poisoned() -> Generator[None]:
    """Memory that nobody has written to is NaN, or the largest integer: it shows where it is read."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(2, 2)).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _four_encodes(bench: Bench, grown: Grown, graph: mps.MPSNNGraph, stops: bool) -> list[Any]:
    """All images, and the gradients of parameters, of four encodes over other images, all under way together."""
    graph.stop_on_non_finite = stops
    order = [handle.label() for handle in graph.source_state_handles]
    made: list[Any] = []
    for _ in range(4):
        pixels = grown.rng.normal(0, 1, (IMAGES, CHANNELS, SIZE, SIZE)).astype(np.float32)
        targets = {
            f"labels {number}": grown.rng.normal(0, 1, (IMAGES, SIZE, SIZE, count)).astype(np.float32)
            for number, (_, count) in enumerate(grown.ends)
        }
        labels = [mps.MPSCNNLossLabels.batch(bench.device, targets[name]) for name in order]
        command_buffer = bench.command_buffer()
        others, left = [], []
        result = graph.encode_batch(command_buffer, [bench.batch(pixels)], labels, others, left)
        command_buffer.commit()
        made.append(([result, *others], left, labels, command_buffer))
    found = []
    for images, left, labels, command_buffer in made:
        command_buffer.wait_until_completed()
        losses = [numbers([each.loss_image() for each in batch]) for batch in labels]
        found.append(([*map(numbers, images), *losses], named_gradients(left)))
    return found


@pytest.mark.parametrize(
    ("seed", "stops"),
    [*((seed, False) for seed in range(GRAPHS)), *((seed, True) for seed in range(GRAPHS, GRAPHS + 20))],
)
def test_a_replayed_random_graph_equals_one_that_runs(seed: int, stops: bool, device: torch.device) -> None:
    """Fused and replayed in poisoned memory, and unfused, step by step, in memory as it is."""
    plain, replaying = Bench.on(device), Bench.on(device)
    plain.queue.max_capture_count = 0
    replaying.queue = replaying_queue(device)
    grown = Grown(seed), Grown(seed)
    # They hold what captures work on: with the weights the captures would go.
    graphs = [each.graph(bench) for each, bench in zip(grown, (plain, replaying), strict=True)]
    graphs[0].allow_fusion = False
    expected = _four_encodes(plain, grown[0], graphs[0], stops)
    with _poisoned():
        found = _four_encodes(replaying, grown[1], graphs[1], stops)
    for (images, gradients), (wanted, slopes) in zip(found, expected, strict=True):
        for image, other in zip(images, wanted, strict=True):
            assert_same(image, other, device)
        assert gradients.keys() == slopes.keys()
        for name, values in gradients.items():
            assert_same(values, slopes[name], device, name)
    assert replayer_of(replaying.queue).captures
    assert not replayer_of(replaying.queue).refusals


# --- training ---------------------------------------------------------------------------------------------------------


class Training:
    """The sample network, trained on a queue."""

    def __init__(self, queue: mps.MTLCommandQueue, optimizer: str = "adam", channel_format: Format = Format.FLOAT32):
        self.device, self.queue = queue.device, queue
        self.network = SampleNetwork.create(SHAPE, seed=1, optimizer=optimizer_factory(optimizer, 1e-3))
        self.graph = self.network.training_graph(self.device, channel_format, loss_weight=0.25, dropout_seed=1)
        self.graph.stop_on_non_finite = False
        self.random = np.random.default_rng(7)
        self.buffers: list[mps.MPSCommandBuffer] = []
        self.losses: list[Any] = []

    def step(self, images: int = 4, source: Format = Format.UNORM8) -> mps.MPSCommandBuffer:
        """One step over random images; not waited for."""
        pixels = self.random.integers(0, 256, (images, 12, 12, 1), np.uint8)
        given = pixels if source is Format.UNORM8 else (pixels / 255).astype(np.float32)
        labels = np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, images)]
        batch = mps.MPSImageBatch.from_numpy(self.device, given, source)
        states = mps.MPSCNNLossLabels.batch(self.device, labels)
        command_buffer = mps.MPSCommandBuffer(self.queue)
        self.graph.encode_batch(command_buffer, [batch], [states])
        command_buffer.commit()
        self.buffers.append(command_buffer)
        self.losses.append(states)
        return command_buffer

    def end(self) -> tuple[list[Array], dict[str, Array]]:
        """All losses, and the weights as they are now."""
        for command_buffer in self.buffers:
            command_buffer.wait_until_completed()
        losses = [numbers([each.loss_image() for each in batch]) for batch in self.losses]
        return losses, self.network.arrays()


def _same(found: Training, expected: Training) -> None:
    (losses, arrays), (wanted, others) = found.end(), expected.end()
    device = found.device.torch_device
    for number, (loss, other) in enumerate(zip(losses, wanted, strict=True)):
        assert_same(loss, other, device, f"step {number}")
    for name, array in arrays.items():
        assert_same(array, others[name], device, name)


def _pair(device: torch.device, *arguments: Any) -> tuple[Training, Training]:
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    return Training(replaying_queue(device), *arguments), Training(plain, *arguments)


@pytest.mark.parametrize("channel_format", [Format.FLOAT32, Format.FLOAT16], ids=lambda each: each.name)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_replayed_training_equals_training(optimizer: str, channel_format: Format, device: torch.device) -> None:
    trainings = _pair(device, optimizer, channel_format)
    for training in trainings:
        for _ in range(8):
            training.step()
    _same(*trainings)
    replaying = trainings[0]
    assert [set(outcomes(each)) for each in replaying.buffers][-3:] == [{"replayed"}] * 3
    assert replayer_of(replaying.queue).captures == 1


def test_a_random_order_of_rates_shapes_and_sources(device: torch.device) -> None:
    """Other rates, sizes and formats of batches, data sources reloaded, memory of an optimizer replaced."""
    trainings = _pair(device)
    orders, replayed = [np.random.default_rng(3) for _ in trainings], [0, 0]
    for _ in range(0, REPLAYS, BLOCK):
        for training, order in zip(trainings, orders, strict=True):
            for _ in range(BLOCK):
                _random_step(training, order)
        _same(*trainings)
        found = [outcome for each in trainings[0].buffers for outcome in outcomes(each)]
        replayed = [replayed[0] + found.count("replayed"), replayed[1] + len(found)]
        for training in trainings:
            training.buffers.clear()
            training.losses.clear()
    assert replayed[0] > 0.6 * replayed[1]


def _random_step(training: Training, order: np.random.Generator) -> None:
    what = order.integers(6)
    if what == 0:
        training.network.set_learning_rate(float(order.uniform(1e-4, 1e-2)))
    elif what == 1:
        training.end()
        training.graph.reload_from_data_sources()
    elif what == 2 and order.random() < 0.2:
        training.graph.allow_fusion = not training.graph.allow_fusion
    source = Format.FLOAT32 if order.random() < 0.3 else Format.UNORM8
    training.step(int(order.choice([2, 3, 4])), source)


class Changing(Training):
    """Steps that differ from the one before in what an encode may depend on."""

    def __init__(self, queue: mps.MTLCommandQueue) -> None:
        super().__init__(queue)
        self.kept: mps.MPSImageBatch | None = None

    def images(self, how: int) -> mps.MPSImageBatch:
        """Four images: a batch, a part of one, one put together, images that the program writes, those of before."""
        pixels = self.random.integers(0, 256, (6, 12, 12, 1), np.uint8)
        whole = mps.MPSImageBatch.from_numpy(self.device, pixels if how == 1 else pixels[:4])
        if how == 1:
            return whole[1:5]
        if how == 2:
            return mps.MPSImageBatch([whole[index] for index in (2, 0, 3, 1)])
        if self.kept is None or how == 3:
            self.kept = (
                mps.MPSImageBatch.allocate(self.device, whole[0].descriptor(), 4) if self.kept is None else self.kept
            )
            for image, each in zip(self.kept, pixels, strict=False):
                image.write_bytes(each)
        return whole if how == 0 else self.kept

    def labels(self, how: int) -> list[Any]:
        """Labels of four images: in blocks, one by one, with weights."""
        one_hot = np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, 4)]
        weights = np.ones_like(one_hot) * np.float32(0.5)
        if how == 1:
            descriptors = map(mps.MPSCNNLossDataDescriptor, one_hot)
            return [mps.MPSCNNLossLabels(self.device, each) for each in descriptors]
        made: Any = mps.MPSCNNLossLabels.batch(self.device, one_hot, weights=weights if how == 2 else None)
        return made

    def change(self, what: int, order: np.random.Generator) -> None:
        """Change something that the graph is encoded with."""
        graph, kernels = self.graph, list(self.graph.kernels.values())
        weighted = [each for each in kernels if hasattr(each, "weights_fp16")]
        if what == 0:
            weighted[int(order.integers(len(weighted)))].weights_fp16 = [None, True][int(order.integers(2))]
        elif what == 1:
            kernels[int(order.integers(len(kernels)))].label = f"kernel {order.integers(9)}"
        elif what == 2:
            graph.format = [Format.FLOAT32, Format.FLOAT16][int(order.integers(2))]
        elif what == 3:
            graph.stop_on_non_finite = not graph.stop_on_non_finite
        elif what == 4:
            graph.label = f"graph {order.integers(9)}"
        elif what == 5:
            self.network.set_learning_rate(float(order.uniform(1e-4, 1e-2)))


def test_what_may_change_between_two_encodes(device: torch.device) -> None:
    """Properties, labels, formats, images and labels of every kind, queues, buffers and handlers that fail.

    On a GPU, whose convolutions add in any order, two trainings of as many steps of Adam drift apart in any case.
    """
    steps = 200 if device.type == "cpu" else 60
    trainings = Changing(replaying_queue(device)), Changing(mps.mtl_device(device).new_command_queue())
    trainings[1].queue.max_capture_count = 0
    for training in trainings:
        order, queues = np.random.default_rng(5), [training.queue]
        other = training.device.new_command_queue() if training is trainings[1] else replaying_queue(device)
        other.max_capture_count = queues[0].max_capture_count
        queues.append(other)
        for number in range(steps):
            if order.random() < 0.12:
                training.change(int(order.integers(6)), order)
            fails = number > 10 and order.random() < 0.06
            how, kind = (int(each) for each in order.choice([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], 2))
            images, states = training.images(how), training.labels(kind % 3)
            command_buffer = mps.MPSCommandBuffer(queues[int(order.random() < 0.2)])
            if fails:
                command_buffer.record("fails", lambda: [][0])
            training.graph.encode_batch(command_buffer, [images], [states])
            if order.random() < 0.05:
                command_buffer.add_completed_handler(lambda _: {}["a handler that fails"])
                fails = True
            command_buffer.commit()
            # Of two queues nobody keeps the order, and images that are written again are to be read first.
            if fails:
                with pytest.raises(mps.MTLExecutionError):
                    command_buffer.wait_until_completed()
            else:
                command_buffer.wait_until_completed()
                training.buffers.append(command_buffer)
                training.losses.append(states)
    _same(*trainings)
    found = [outcome for each in trainings[0].buffers for outcome in outcomes(each)]
    assert found.count("replayed") > 0.3 * len(found)


def test_threads_that_encode_one_graph_at_once(device: torch.device) -> None:
    """Each on a queue of its own: every result is that of its own images, and states go with their images."""
    bench = Bench.on(device)
    network = SampleNetwork.create(SHAPE, seed=1, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.inference_graph(bench.device, Format.FLOAT32)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 2, 12, 12, 1), np.uint8)

    def probabilities(queue: mps.MTLCommandQueue, index: int) -> Array:
        command_buffer = queue.command_buffer()
        made = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(bench.device, pixels[index])])
        finish(command_buffer)
        return made.numpy()

    bench.queue.max_capture_count = 0
    expected = [probabilities(bench.queue, index) for index in range(len(pixels))]
    found: dict[int, Array] = {}

    def work(first: int) -> None:
        queue = replaying_queue(device)
        for index in range(first, len(pixels), 4):
            found[index] = probabilities(queue, index)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(len(pixels)))
    for index, wanted in enumerate(expected):
        assert_same(found[index], wanted, device, f"batch {index}")


def test_a_rate_counts_from_the_step_on_that_it_is_set_before(device: torch.device) -> None:
    training = Training(replaying_queue(device))
    for _ in range(3):
        training.step()
    before = training.end()[1]
    training.network.set_learning_rate(0.0)
    assert set(outcomes_after(training)) == {"replayed"}
    after = training.end()[1]
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    training.network.set_learning_rate(1e-2)
    assert set(outcomes_after(training)) == {"replayed"}
    assert any((training.end()[1][name] != array).any() for name, array in after.items())


def outcomes_after(training: Training) -> list[str]:
    """What became of the works of one more step."""
    command_buffer = training.step()
    command_buffer.wait_until_completed()
    return outcomes(command_buffer)


def test_memory_that_is_given_back_or_replaced_counts_at_once(device: torch.device) -> None:
    """Of the optimizers' vectors: one finds zeros again, the other one is bound to memory of the program's own."""
    trainings = _pair(device)
    for training in trainings:
        for _ in range(4):
            training.step()
        training.end()
        for source in training.network._sources.values():
            for first, second in source.accumulators.values():
                held = weakref.ref(first.data.present)
                first.data.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
                assert held() is None
                second.data.bind(torch.full((second.length,), 0.5, device=device))
        for _ in range(4):
            training.step()
    _same(*trainings)
    assert [outcomes(each)[0] for each in trainings[0].buffers][-3:] != ["replayed"] * 3
    assert outcomes(trainings[0].buffers[-1])[0] == "replayed"


def test_training_that_stops_at_the_first_nan(device: torch.device) -> None:
    """The error is that of the step by itself; nothing is updated, and the steps after it go on."""
    trainings = _pair(device)
    for training in trainings:
        training.graph.stop_on_non_finite = True
        for _ in range(4):
            training.step()
        before = training.end()[1]
        batch = mps.MPSImageBatch.from_numpy(training.device, np.full((4, 12, 12, 1), np.nan, np.float32))
        labels = mps.MPSCNNLossLabels.batch(training.device, np.eye(CLASSES, dtype=np.float32)[[0, 1, 2, 0]])
        for _ in range(4):
            command_buffer = mps.MPSCommandBuffer(training.queue)
            training.graph.encode_batch(command_buffer, [batch], [labels])
            command_buffer.commit()
            with pytest.raises(mps.MTLExecutionError, match="must be finite"):
                command_buffer.wait_until_completed()
            assert isinstance(command_buffer.error.__cause__, mps.MPSNonFiniteError)
        for name, array in training.network.arrays().items():
            np.testing.assert_array_equal(array, before[name])
        for _ in range(3):
            training.step()
    _same(*trainings)
    assert outcomes(trainings[0].buffers[-1])[0] == "replayed"


def test_results_are_not_overwritten_by_the_next_replays(device: torch.device) -> None:
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    graph = SampleNetwork.create(SHAPE, seed=1, optimizer=optimizer_factory("adam", 1e-3)).inference_graph(
        bench.device, Format.FLOAT32
    )
    random, kept = np.random.default_rng(0), []
    for _ in range(6):
        command_buffer = bench.command_buffer()
        result = graph.encode_batch(command_buffer, [bench.batch(random.normal(size=(2, 1, 12, 12)))])
        finish(command_buffer)
        kept.append((result, numbers(result)))
    for result, seen in kept:
        np.testing.assert_array_equal(numbers(result), seen)
    assert len({seen.tobytes() for _, seen in kept}) == len(kept)
