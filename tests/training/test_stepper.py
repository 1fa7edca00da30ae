"""Steps on a queue: never more than two under way, figures of each, faults that do not hang."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from openmps.core.image.batch import MPSImageBatch
from openmps.errors import MPSError, MTLExecutionError
from openmps.runtime.devices import mtl_device
from openmps.training import stepper as stepper_module
from openmps.training.dataset import Batch
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.training.stepper import TrainingStepper
from openmps.types import MPSImageFeatureChannelFormat
from replay_twin import outcomes, replaying_queue

SHAPE = NetworkShape(4, 4, 1, 3)


def _stepper(device):
    network = SampleNetwork.create(SHAPE, seed=0, optimizer=optimizer_factory("sgd", 1e-9))
    return TrainingStepper(
        network, mtl_device(device), MPSImageFeatureChannelFormat.FLOAT32, batch_size=6, dropout_seed=1
    )


@pytest.fixture
def stepper(device):
    return _stepper(device)


def _batch():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), dtype=np.uint8)
    return Batch(images, np.array([0, 1, 2, 2, 1, 0]), np.arange(6))


def test_two_steps_are_under_way_and_the_third_waits():
    stepper = _stepper("cpu")  # whose queue has a thread of its own that can be held up
    gate = threading.Event()
    blocker = stepper._queue.command_buffer()
    blocker.record("block", gate.wait)
    blocker.commit()
    prepared = stepper.prepare(_batch())
    stepper.step(prepared)
    stepper.step(prepared)
    third = threading.Thread(target=stepper.step, args=(prepared,))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    assert stepper.collect() == []
    gate.set()
    third.join(10)
    assert not third.is_alive()
    stepper.wait()
    assert len(stepper.collect()) == 3
    assert stepper.collect() == []


def test_figures_are_the_mean_loss_and_the_correct_images(stepper):
    prepared = stepper.prepare(_batch())
    for _ in range(5):
        stepper.step(prepared)
    stepper.wait()
    figures = stepper.collect()
    assert len(figures) == 5
    assert len({loss for loss, _ in figures}) == 5  # dropout draws anew for each step
    for loss, correct in figures:
        assert 0 < loss < 50
        assert 0 <= correct <= 6
    assert sum(label.loss_image().numpy().item() for label in prepared.labels) == pytest.approx(figures[-1][0])


def test_a_step_is_replayed_as_a_whole(device):
    """What is measured is a part of the capture."""
    steppers = [_stepper(device) for _ in range(2)]
    steppers[0]._queue = replaying_queue(device)
    steppers[1]._queue.max_capture_count = 0
    seen = []
    for stepper in steppers:
        for _ in range(4):
            stepper.step(stepper.prepare(_batch()))
            command_buffer = stepper._started[-1].command_buffer
            stepper.wait()
            seen.append(outcomes(command_buffer))
    assert set(seen[3]) == {"replayed"}
    assert len(seen[3]) == 3  # the graph, its updates, what is measured
    found, expected = (stepper.collect() for stepper in steppers)
    np.testing.assert_allclose(found, expected, rtol=0 if torch.device(device).type == "cpu" else 1e-4)


def test_labels_are_one_block(stepper):
    labels = stepper.prepare(_batch()).labels
    assert MPSImageBatch([each.labels_image() for each in labels]).whole().memories() != ()
    assert len(MPSImageBatch([each.labels_image() for each in labels]).whole().memories()) == 1
    np.testing.assert_array_equal(labels[2].labels_image().numpy(), [[[0, 0, 1]]])


def test_a_batch_that_cannot_be_encoded_frees_its_place(stepper):
    prepared = stepper.prepare(_batch())
    for _ in range(3):
        with pytest.raises(MPSError):
            stepper.step(prepared._replace(labels=prepared.labels[:-1]))
    stepper.step(stepper.prepare(_batch()))
    stepper.wait()
    assert len(stepper.collect()) == 1


def test_work_that_fails_is_raised_by_collect(stepper, monkeypatch):
    def fail(*operands):
        raise ValueError("broken")

    monkeypatch.setattr(stepper_module, "_measure", fail)
    stepper.step(stepper.prepare(_batch()))
    stepper.wait()
    with pytest.raises(MTLExecutionError) as caught:
        stepper.collect()
    assert isinstance(caught.value.__cause__, ValueError)
