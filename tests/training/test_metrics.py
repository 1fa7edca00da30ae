"""Running figures against the same figures from whole arrays, on a clock of the test's own."""

import math

import numpy as np
import pytest

from openmps.errors import MPSArgumentError
from openmps.training.metrics import ConfusionCounts, RunningMetrics


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_loss_and_accuracy_are_means_over_images_not_batches():
    generator = np.random.default_rng(0)
    metrics = RunningMetrics(1000)
    losses, right = [], []
    for size in (7, 1, 32):
        loss, correct = generator.random(size), generator.random(size) < 0.6
        metrics.update(float(loss.mean()), int(correct.sum()), size)
        losses.append(loss)
        right.append(correct)
        assert metrics.loss == pytest.approx(np.concatenate(losses).mean())
        assert metrics.accuracy == pytest.approx(np.concatenate(right).mean())
    metrics.start_epoch()
    assert math.isnan(metrics.loss)
    assert math.isnan(metrics.accuracy)


def test_speed_and_time_left():
    clock = Clock()
    metrics = RunningMetrics(1000, clock=clock)
    assert metrics.images_per_second == 0
    assert metrics.seconds_left is None
    for _ in range(10):
        clock.now += 0.5
        metrics.update(1.0, 0, 10)
    assert metrics.images_per_second == pytest.approx(20)
    assert metrics.seconds_left == pytest.approx(900 / 20)


def test_speed_follows_the_last_hundred_batches_and_leaves_out_the_pause_between_epochs():
    clock = Clock()
    metrics = RunningMetrics(100_000, clock=clock)
    for _ in range(50):
        clock.now += 10
        metrics.update(1.0, 0, 10)
    for _ in range(100):
        clock.now += 0.1
        metrics.update(1.0, 0, 10)
    assert metrics.images_per_second == pytest.approx(100)
    clock.now += 3600
    metrics.start_epoch()
    assert metrics.images_per_second == pytest.approx(100)
    clock.now += 0.1
    metrics.update(1.0, 10, 10)
    assert metrics.images_per_second == pytest.approx(100)


def test_more_images_than_announced_and_a_standing_clock():
    clock = Clock()
    metrics = RunningMetrics(5, clock=clock)
    metrics.update(1.0, 1, 10)
    assert metrics.seconds_left is None
    clock.now += 1
    metrics.update(1.0, 1, 10)
    assert metrics.seconds_left == 0
    status = metrics.status(epoch=2, iteration=9)
    assert (status.epoch, status.iteration, status.loss, status.accuracy) == (2, 9, 1.0, 0.1)


@pytest.mark.parametrize(("correct", "count"), [(0, 0), (3, 2), (-1, 2)])
def test_impossible_counts(correct, count):
    with pytest.raises(MPSArgumentError, match="correct 0 to count"):
        RunningMetrics(5).update(1.0, correct, count)


def test_confusion_counts():
    labels, predictions = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0, 0])
    counts = ConfusionCounts(["a", "b", "c", "d"])
    assert math.isnan(counts.accuracy)
    counts.update(labels[:2], predictions[:2])
    counts.update(labels[2:], predictions[2:])
    assert counts.counts.tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert counts.total == 6
    assert counts.accuracy == pytest.approx(2 / 6)
    np.testing.assert_allclose(counts.recall, [1 / 3, 1 / 2, 0, np.nan])
    np.testing.assert_allclose(counts.precision, [1 / 3, 1 / 3, np.nan, np.nan])
    assert counts.most_confused() == [("a", "b", 2), ("b", "a", 1), ("c", "a", 1)]
    assert counts.most_confused(1) == [("a", "b", 2)]


def test_confusion_counts_refuse_what_is_no_class():
    counts = ConfusionCounts(["a", "b"])
    with pytest.raises(MPSArgumentError, match="predictions must be 0 to 1, got 2"):
        counts.update(np.array([0]), np.array([2]))
    with pytest.raises(MPSArgumentError, match="labels must be 0 to 1, got -1"):
        counts.update(np.array([-1]), np.array([1]))
    with pytest.raises(MPSArgumentError, match="one for each label"):
        counts.update(np.array([0, 1]), np.array([1]))
    assert counts.total == 0
