"""The end of a training that gets no better, and the weights of its best epoch."""

from __future__ import annotations

import re

import numpy as np
import pytest

from openmps.errors import MPSArgumentError, MPSFileError
from openmps.runtime.devices import mtl_device
from openmps.training import (
    Classifier,
    Dataset,
    DataSplit,
    RunFolder,
    TrainingOptions,
    describe_run,
    load_dataset,
    resume,
    train,
)
from openmps.training.best_epoch import BestEpoch
from openmps.training.inference import Evaluation
from openmps.training.metrics import ConfusionCounts

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")
WALL_CLOCK = ("seconds", "images_per_second")


def _few(dataset, count):
    return Dataset(dataset.images[:count], dataset.labels[:count], dataset.class_names, dataset.name)


@pytest.fixture(scope="module")
def data():
    digits = load_dataset()
    return DataSplit(_few(digits.training, 200), _few(digits.test, 100))


def _options(**changes):
    # So large a rate that epochs get better and worse.
    more = {"learning_rate": 0.05, "schedule": "constant", "checkpoint_every": 5, "checkpoints_kept": 99, **changes}
    return TrainingOptions(**{"epochs": 12, "batch_size": 20, "network": "tiny", "seed": 1, **more})


def _train(parent, name, data, **changes):
    run = RunFolder.create(parent, describe_run(data, _options(**changes)), name=name)
    return run, train(data, run, _options(**changes), CPU)


def _tests(run):
    lines = [line for line in run.read_metrics() if "test_loss" in line]
    return [(line["test_accuracy"], -line["test_loss"]) for line in lines]


def _outcome(run):
    metrics = [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in run.read_metrics()]
    return run.weights_path.read_bytes(), [line for line in metrics if "event" not in line]


def test_the_best_epoch_is_kept_and_training_ends_when_none_is_better(tmp_path, data):
    run, result = _train(tmp_path, "run", data, patience=2, keep="best")
    whole, _ = _train(tmp_path, "whole", data)
    tests = _tests(whole)
    best = max(range(result.epochs), key=tests.__getitem__)
    assert (result.best_epoch, result.epochs) == (best + 1, best + 3)
    assert all(max(tests[n - 2 : n]) > max(tests[: n - 2]) for n in range(3, best + 3))  # it did not end too late
    assert result.epochs < 12
    assert _tests(run) == tests[: result.epochs]
    upto, _ = _train(tmp_path, "upto", data, epochs=best + 1)
    assert run.weights_path.read_bytes() == upto.weights_path.read_bytes()
    assert result.evaluation.accuracy == tests[best][0]
    assert Classifier.open(run, CPU).evaluate(data.test).loss == pytest.approx(-tests[best][1])


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
def test_a_run_that_goes_on_has_the_same_best_epoch(tmp_path, data):
    run, result = _train(tmp_path, "run", data, patience=2, keep="best")
    ended = _outcome(run)
    last = run.checkpoints.steps()[-1]
    for step in (10 * result.best_epoch - 5, 10 * result.best_epoch + 5, last):
        again = resume(data, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(step))
        assert _outcome(run) == ended, step
        assert (again.best_epoch, again.epochs) == (result.best_epoch, result.epochs)
        assert again.evaluation.loss == result.evaluation.loss


def test_a_checkpoint_brings_back_the_weights_that_were_best_then(tmp_path, data):
    run, result = _train(tmp_path, "run", data, epochs=2, keep="best")
    first = run.checkpoints.load(15).parts["best epoch"]
    assert first["epoch"] == 1
    assert result.best_epoch == 2
    heard = []

    class Observer:
        def update(self, status):
            heard.append(run.load_weights())

        def finish_epoch(self, status):
            pass

    resume(data, run, CPU, Observer(), checkpoint=run.checkpoints.load(15))
    for name, array in heard[0].items():
        np.testing.assert_array_equal(array, first[f"kept {name}"])


def _evaluation(accuracy, loss):
    confusion = ConfusionCounts(("a", "b"))
    confusion.update(np.zeros(4, np.int64), np.array([0] * round(4 * accuracy) + [1] * round(4 - 4 * accuracy)))
    return Evaluation(loss, np.zeros(4, np.int64), confusion, np.zeros(4, np.float32))


def test_equal_accuracies_are_told_apart_by_their_loss():
    best = BestEpoch({"a": (1,)})
    tests = [(0.0, 5.0), (0.5, 2.0), (0.5, 2.0), (0.5, 1.0), (0.25, 0.5), (0.75, 3.0)]
    found = [
        best.note(epoch, _evaluation(*test), {"a": np.full(1, epoch, np.float32)})
        for epoch, test in enumerate(tests, start=1)
    ]
    assert found == [True, True, False, True, False, True]
    assert (best.epoch, best.arrays["a"].item()) == (6, 6.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, "state 'epoch' must be a whole number"),
        ({"accuracy": 1.5}, "state 'accuracy' must be 0 to 1"),
        ({"kept a": np.zeros(2, np.float32)}, r"state 'kept a' must be float32 of shape \(1,\)"),
        ({"epoch": 0}, "must not hold 'kept a'"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    best = BestEpoch({"a": (1,)})
    best.note(3, _evaluation(0.5, 1.0), {"a": np.ones(1, np.float32)})
    before = best.training_state()
    with pytest.raises(MPSArgumentError, match=message):
        best.restore_training_state({**before, **change})
    assert best.training_state() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience must be a whole number from 1 on, got 0"),
        ({"keep": "first"}, "keep must be last or best, got 'first'"),
        ({"keep": ["best"]}, re.escape("keep must be last or best, got ['best']")),
    ],
)
def test_other_options_are_refused(options, message):
    with pytest.raises(MPSArgumentError, match=message):
        TrainingOptions(1, **options)


def test_a_checkpoint_of_a_run_that_kept_the_last_epoch_is_of_another_training(tmp_path, data):
    run, _ = _train(tmp_path, "run", data, epochs=1)
    run.amend({"options": {**run.config["options"], "keep": "best"}})
    with pytest.raises(MPSFileError, match=r"its options\.keep is None, got 'best'"):
        resume(data, run, CPU)
