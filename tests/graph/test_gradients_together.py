"""The limit of the norm of all gradients, and gradients of several encodes, against float64 loops and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from replay_twin import outcomes, replaying_queue

Format = mps.MPSImageFeatureChannelFormat
SIZE, CLASSES, IMAGES = 4, 3, 6
RATE, MOMENTUM = 0.1, 0.5

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


def _descent(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerStochasticGradientDescent(device, RATE)


def _adam(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerAdam(device, RATE)


class Net:
    """A convolution, a normalization of the kind asked for, and a fully connected layer."""

    def __init__(self, device: torch.device, kind: str, optimizer: Any = _descent, **said: Any) -> None:
        random = np.random.default_rng(5)

        def convolution(inputs: int, outputs: int, size: int) -> mps.TrainableConvolutionDataSource:
            descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
            weights = random.normal(0, 0.5, descriptor.weight_shape())
            return mps.TrainableConvolutionDataSource(
                descriptor, weights, random.normal(0, 0.1, outputs), optimizer=optimizer
            )

        self.device = mps.mtl_device(device)
        self.queue = replaying_queue(device) if said.get("replays") else self.device.new_command_queue()
        self.sources: list[Any] = [convolution(2, 4, 3)]
        image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.sources[0]).result_image
        if kind == "batch":
            self.sources.append(mps.TrainableBatchNormalizationDataSource(4, optimizer=optimizer))
            image = mps.MPSCNNBatchNormalizationNode(image, self.sources[-1]).result_image
        if kind == "groups":
            self.sources.append(mps.TrainableGroupNormalizationDataSource(4, 2, optimizer=optimizer))
            image = mps.MPSCNNGroupNormalizationNode(image, self.sources[-1]).result_image
        image = mps.MPSCNNNeuronReLUNode(image, 0.1).result_image
        self.sources.append(convolution(4, CLASSES, SIZE))
        image = mps.MPSCNNFullyConnectedNode(image, self.sources[-1]).result_image
        loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
        loss.weight = said.get("weight", 1.0)
        last = mps.MPSCNNLossNode(image, loss).training_graph()
        self.graph = mps.MPSNNGraph(self.device, last[0].result_image, False)
        self.graph.format = said.get("format", Format.FLOAT32)
        self.graph.stop_on_non_finite = said.get("stops", False)
        self.last: Any = None

    def encode(self, images: Any, classes: Any) -> None:
        self.last = self.queue.command_buffer()
        labels = mps.MPSCNNLossLabels.batch(self.device, np.eye(CLASSES, dtype=np.float32)[classes])
        self.graph.encode_batch(self.last, [mps.MPSImageBatch.from_numpy(self.device, images)], [labels])
        self.last.commit()

    def numbers(self) -> dict[str, np.ndarray]:
        """What is trained, as float64."""
        if self.last is not None:
            self.last.wait_until_completed()
        return {
            f"{place}.{name}": array.astype(np.float64)
            for place, source in enumerate(self.sources)
            for name, array in source.arrays().items()
            if name not in ("mean", "variance")
        }


def _batch(step: int, count: int = IMAGES) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(step)
    return random.normal(0, 1, (count, SIZE, SIZE, 2)).astype(np.float32), random.integers(0, CLASSES, count)


def _gradients(make: Callable[[], Net], before: dict[str, np.ndarray], batch: Any) -> dict[str, np.ndarray]:
    """What a step of plain descent takes off, by the rate: of a network with these numbers."""
    net = make()
    for place, source in enumerate(net.sources):
        own = {name: before.get(f"{place}.{name}", array) for name, array in source.arrays().items()}
        source.restore_training_state({name: array.astype(np.float32) for name, array in own.items()})
    net.graph.reload_from_data_sources()
    start = net.numbers()
    net.encode(*batch)
    return {name: (start[name] - array) / RATE for name, array in net.numbers().items()}


def _norm(gradients: dict[str, np.ndarray]) -> float:
    total = 0.0
    for array in gradients.values():
        for number in array.ravel():
            total += float(number) ** 2
    return total**0.5


@pytest.mark.parametrize("replays", [False, True], ids=["plain", "replayed"])
@pytest.mark.parametrize("kind", ["none", "batch", "groups"])
def test_the_norm_of_all_gradients_together_is_limited(kind: str, replays: bool, device: torch.device) -> None:
    """As a loop and as torch limit it, with a limit that is other in each step, and now and then larger than it."""
    net = Net(device, kind, replays=replays)
    for step in range(5):
        before = net.numbers()
        slope = _gradients(lambda: Net(device, kind), before, _batch(step))
        norm = _norm(slope)
        limit = (0.1, 0.5, 2.0)[step % 3] * norm
        net.graph.gradient_norm_limit = limit
        net.encode(*_batch(step))
        found = {name: (before[name] - array) / RATE for name, array in net.numbers().items()}
        parameters = [torch.zeros(array.shape, dtype=torch.float64) for array in slope.values()]
        for parameter, array in zip(parameters, slope.values(), strict=True):
            parameter.grad = torch.from_numpy(array.copy())
        told = torch.nn.utils.clip_grad_norm_(parameters, limit)
        assert float(told) == pytest.approx(norm)
        for name, parameter in zip(slope, parameters, strict=True):
            wanted = slope[name] * min(1.0, limit / norm)
            np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=2e-5 * norm)
            np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=2e-4, atol=2e-5 * norm)
        assert _norm(found) == pytest.approx(min(norm, limit), rel=1e-4)
        assert len(net.last.explain().works) == 1
    if replays:
        assert set(outcomes(net.last)) == {"replayed"}


def test_the_norm_is_of_what_the_optimizers_make_of_gradients(device: torch.device) -> None:
    """A loss is multiplied, and its gradients divided again, so that small ones do not vanish in float16."""

    def rescaled(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
        said = mps.MPSNNOptimizerDescriptor(RATE, gradient_rescale=1 / 256)
        return mps.MPSNNOptimizerStochasticGradientDescent(device, optimizer_descriptor=said)

    found = []
    for optimizer, weight in ((_descent, 1.0), (rescaled, 256.0)):
        net = Net(device, "batch", optimizer, weight=weight)
        net.graph.gradient_norm_limit = 0.25
        net.encode(*_batch(0))
        found.append(net.numbers())
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-5, atol=1e-7)


def test_squares_that_float32_cannot_hold_are_no_infinity() -> None:
    from openmps.ops.update.rows import NormScale

    scale = torch.zeros(1)
    NormScale((1.0, 0.5)).run((), 2.0, torch.full((4,), 3e30), torch.full((4,), 8e30), scale)
    assert float(scale) == pytest.approx(2.0 / 1e31)
    NormScale((1.0,)).run((), 2.0, torch.zeros(3), scale)
    assert float(scale) == 1.0


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("replays", [False, True], ids=["plain", "replayed"])
@pytest.mark.parametrize("kind", ["none", "groups"])
def test_gradients_of_several_encodes_are_those_of_one(
    kind: str, replays: bool, stops: bool, device: torch.device
) -> None:
    """A batch in three parts, in float16 images too, under a limit of the norm and with averages."""
    nets = [Net(device, kind, _adam, replays=replays, stops=stops, format=Format.FLOAT16) for _ in range(2)]
    for net in nets:
        net.graph.gradient_norm_limit = 0.5
        for source in net.sources:
            source.keep_average(0.5)
    whole, parted = nets
    for step in range(5):
        images, classes = _batch(step)
        whole.encode(images, classes)
        for part in range(3):
            parted.graph.keeps_gradients = part < 2
            before = parted.numbers()
            parted.encode(images[part::3], classes[part::3])
            moved = [not np.array_equal(array, before[name]) for name, array in parted.numbers().items()]
            assert moved == [part == 2] * len(moved)
            assert len(parted.last.explain().works) == 1 + stops
    for name, array in whole.numbers().items():
        np.testing.assert_allclose(parted.numbers()[name], array, rtol=2e-3, atol=2e-3)
    for one, other in zip(whole.sources, parted.sources, strict=True):
        assert one.optimizer.time_step == other.optimizer.time_step == 5
        for name, array in one.averages().items():
            np.testing.assert_allclose(other.averages()[name], array, rtol=2e-3, atol=2e-3)
    if replays and not (stops and kind == "groups"):
        assert set(outcomes(parted.last)) == {"replayed"}


def test_an_update_begins_the_sums_anew_and_running_statistics_see_each_part(device: torch.device) -> None:
    net, other = Net(device, "batch"), Net(device, "batch")
    images, classes = _batch(0)
    for _ in range(2):
        for part in range(2):
            net.graph.keeps_gradients = part == 0
            net.encode(images, classes)
    doubled = Net(device, "batch", weight=2.0)
    for _ in range(2):
        doubled.encode(images, classes)
    for name, array in doubled.numbers().items():
        np.testing.assert_allclose(net.numbers()[name], array, rtol=1e-4, atol=1e-5)
    for _ in range(2):
        other.graph.keeps_gradients = True
        other.encode(images, classes)
    other.last.wait_until_completed()
    start = Net(device, "batch")
    for name, array in start.numbers().items():
        np.testing.assert_array_equal(other.numbers()[name], array)
    once = Net(device, "batch")
    once.encode(images, classes)
    once.last.wait_until_completed()
    first, second = once.sources[1].mean(), other.sources[1].mean()
    np.testing.assert_allclose(second, first * (1 - 0.9**2) / 0.1, rtol=1e-4)


@pytest.mark.parametrize("what", ["gradient_norm_limit", "keeps_gradients"])
def test_data_sources_with_updates_of_their_own_are_refused(what: str, device: torch.device) -> None:
    net = Net(device, "none")
    own = net.sources[0].update
    net.sources[0].update = lambda *given: own(*given)
    setattr(net.graph, what, True if what == "keeps_gradients" else 1.0)
    before = net.numbers()
    with pytest.raises(
        mps.MPSArgumentError, match=f"{what} must be left alone where data sources have updates of their own"
    ):
        net.encode(*_batch(0))
    net.last = None
    for name, array in net.numbers().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_other_limits_are_refused(limit: float, device: torch.device) -> None:
    with pytest.raises(mps.MPSArgumentError, match="gradient_norm_limit must be"):
        Net(device, "none").graph.gradient_norm_limit = limit
