"""Sequences of steps that are unlikely, against updates that are asked for in each step: the same bits."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from replay_twin import assert_same, outcomes, replaying_queue
from trainable_sources import asked

Array = np.ndarray
SIDE, CLASSES, IMAGES, STEPS = 6, 3, 4, 6

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


def _adam(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
    return mps.MPSNNOptimizerAdam(device, 0.01)


class Training:
    """Steps of a convolution, a layer that a test chooses, and a fully connected one."""

    def __init__(self, queue: mps.MTLCommandQueue, *, is_asked: bool, stops: bool) -> None:
        self.queue, self.device, self.is_asked = queue, queue.device, is_asked
        self.random = np.random.default_rng(3)
        self.sources: list[Any] = []
        self.losses: list[Any] = []
        self.last: Any = None
        image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self.convolution(2, 4, 3)).result_image
        image = self.middle(image)
        image = mps.MPSCNNFullyConnectedNode(image, self.convolution(4, CLASSES, SIDE)).result_image
        said = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
        nodes = mps.MPSCNNLossNode(image, said).training_graph()
        self.graph = mps.MPSNNGraph(self.device, nodes[0].result_image, False)
        self.graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        self.graph.stop_on_non_finite = stops

    def keep(self, source: Any) -> Any:
        self.sources.append(asked(source) if self.is_asked else source)
        return source

    def convolution(self, inputs: int, outputs: int, size: int) -> Any:
        descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
        weights, biases = self.random.normal(0, 0.3, descriptor.weight_shape()), self.random.normal(0, 0.1, outputs)
        return self.keep(mps.TrainableConvolutionDataSource(descriptor, weights, biases, optimizer=_adam))

    def middle(self, image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
        return mps.MPSCNNNeuronReLUNode(image, 0.1).result_image

    def encode(self, command_buffer: mps.CommandBuffer) -> None:
        pixels = self.random.normal(0, 1, (IMAGES, SIDE, SIDE, 2)).astype(np.float32)
        targets = np.eye(CLASSES, dtype=np.float32)[self.random.integers(0, CLASSES, IMAGES)]
        self.losses.append(mps.MPSCNNLossLabels.batch(self.device, targets))
        batch = mps.MPSImageBatch.from_numpy(self.device, pixels)
        self.graph.encode_batch(command_buffer, [batch], [self.losses[-1]])

    def step(self) -> None:
        self.last = mps.MPSCommandBuffer(self.queue)
        self.encode(self.last)
        self.last.commit()

    def numbers(self) -> list[Array]:
        """Losses, parameters, and all that optimizers keep."""
        self.last.wait_until_completed()
        assert self.last.error is None
        found = [label.loss_image().numpy() for labels in self.losses for label in labels]
        for source in self.sources:
            found += [*source.arrays().values()]
            found += [vector.numpy() for vectors in source.accumulators.values() for vector in vectors]
        return found


def _pair(kind: type[Training], device: torch.device, *, replays: bool, stops: bool = False) -> list[Any]:
    """A training with declared updates, and the same whose updates are asked for."""
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    return [
        kind(replaying_queue(device) if replays else plain, is_asked=is_asked, stops=stops)
        for is_asked in (False, True)
    ]


def _equal(pair: list[Any], device: torch.device) -> None:
    for mine, other in zip(*[training.numbers() for training in pair], strict=True):
        assert_same(mine, other, device)


replayed = pytest.mark.parametrize("replays", [False, True], ids=["plain", "replayed"])
checked = pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])


class InstancesTraining(Training):
    """With an instance normalization that is trained."""

    def middle(self, image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
        source = self.keep(mps.TrainableInstanceNormalizationDataSource(4, optimizer=_adam))
        return mps.MPSCNNInstanceNormalizationNode(image, source).result_image


@checked
@replayed
@pytest.mark.parametrize("kind", [Training, InstancesTraining])
def test_training_goes_on_where_the_first_step_was_dropped(
    kind: type[Training], replays: bool, stops: bool, device: torch.device
) -> None:
    pair = _pair(kind, device, replays=replays, stops=stops)
    for training in pair:
        dropped = training.queue.command_buffer()
        training.encode(dropped)
        del dropped
        training.losses.clear()
        for _ in range(STEPS):
            training.step()
    _equal(pair, device)


class FixedTraining(Training):
    """With a batch normalization that nobody updates."""

    def middle(self, image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
        self.fixed = mps.ArrayBatchNormalizationDataSource(4, self.random.normal(1, 0.1, 4))
        return mps.MPSCNNBatchNormalizationNode(image, self.fixed).result_image

    def reload(self) -> None:
        """The normalization alone."""
        self.fixed._rows["gamma"] = 2 * self.fixed.gamma()
        for kernel in self.graph.kernels.values():
            if isinstance(kernel, mps.MPSCNNBatchNormalization):
                kernel.reload_gamma_and_beta_from_data_source()


@replayed
@pytest.mark.parametrize("step", [1, STEPS - 2])
def test_one_kernel_that_is_reloaded_between_steps(step: int, replays: bool, device: torch.device) -> None:
    """Nothing that is updated has changed: the program alone is bound to other memory."""
    pair = _pair(FixedTraining, device, replays=replays)
    for training in pair:
        for number in range(STEPS):
            if number == step:
                training.last.wait_until_completed()
                training.reload()
            training.step()
    _equal(pair, device)


class OneOptimizerTraining(InstancesTraining):
    """With an optimizer that all layers share: it counts the encodes of all of them."""

    def keep(self, source: Any) -> Any:
        source._make_optimizer = self.make
        return super().keep(source)

    def make(self, device: mps.MTLDevice) -> mps.MPSNNOptimizer:
        if not hasattr(self, "optimizer"):
            self.optimizer = _adam(device)
        return self.optimizer


@checked
@replayed
def test_rates_of_an_optimizer_of_several_layers(replays: bool, stops: bool, device: torch.device) -> None:
    """Updates of a kind are made together; their rates are counted in the order of the layers."""
    pair = _pair(OneOptimizerTraining, device, replays=replays, stops=stops)
    for training in pair:
        for _ in range(STEPS):
            training.step()
        assert training.optimizer.time_step == STEPS * len(training.sources)
    _equal(pair, device)


@checked
def test_settings_that_are_changed_back_and_forth_are_replayed(stops: bool, device: torch.device) -> None:
    """Updates are traced anew, and are functions that are known: no memory is held for each change."""
    pair = _pair(FixedTraining, device, replays=True, stops=stops)
    for training in pair:
        for number in range(3 * STEPS):
            for source in training.sources if number else ():
                source.optimizer.apply_gradient_clipping = bool(number % 2)
            training.step()
    _equal(pair, device)
    assert set(outcomes(pair[0].last)) == {"replayed"}
    (program,) = pair[0].graph._programs.values()
    assert len(program._traced) <= 4


@pytest.mark.parametrize("is_asked", [False, True], ids=["declared", "asked"])
def test_first_steps_of_two_threads_are_counted_by_one_optimizer(is_asked: bool, device: torch.device) -> None:
    training = Training(mps.mtl_device(device).new_command_queue(), is_asked=is_asked, stops=False)
    buffers = [training.queue.command_buffer() for _ in range(2)]
    together, made = threading.Barrier(2), []

    def slowly(on: mps.MTLDevice) -> mps.MPSNNOptimizer:
        made.append(_adam(on))
        time.sleep(0.05)  # so that the other thread asks, too
        return made[-1]

    for source in training.sources:
        source._make_optimizer = slowly

    def encode(command_buffer: mps.CommandBuffer) -> None:
        together.wait()
        training.encode(command_buffer)

    threads = [threading.Thread(target=encode, args=(buffer,)) for buffer in buffers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for training.last in buffers:
        training.last.commit()
    training.numbers()
    assert len(made) == len(training.sources)
    assert [source.optimizer.time_step for source in training.sources] == [2, 2]
