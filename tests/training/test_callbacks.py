"""Callbacks of one's own: when they are called, what they are shown, and how they end a training."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from openmps.errors import MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training import (
    Classifier,
    Dataset,
    DataSplit,
    RunFolder,
    TrainingCallback,
    TrainingOptions,
    describe_run,
    resume,
    train,
)

CPU = mtl_device("cpu")
EPOCHS, BATCHES = 3, 4
WALL_CLOCK = ("seconds", "images_per_second")

pytestmark = [
    pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning"),
    pytest.mark.usefixtures("unflushed", "undrawn"),
]


def _noise(count):
    images = np.random.default_rng(count).integers(0, 255, (count, 4, 4, 1)).astype(np.uint8)
    return Dataset(images, np.arange(count) % 2, ("even", "odd"), "noise")


DATA = DataSplit(_noise(33), _noise(12))


def _options(**changes):
    return TrainingOptions(
        EPOCHS, batch_size=8, network="tiny", schedule="cosine", checkpoint_every=1, checkpoints_kept=99, **changes
    )


def _begun(parent, name="run", **changes):
    return RunFolder.create(parent, describe_run(DATA, _options(**changes)), name=name)


def _train(parent, name="run", callbacks=(), **changes):
    run = _begun(parent, name, **changes)
    return run, train(DATA, run, _options(**changes), CPU, callbacks=callbacks)


def _plain(folder):
    """A run without callbacks."""
    return _train(folder)[0]


def _outcome(run):
    lines = [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in run.read_metrics()]
    return run.weights_path.read_bytes(), [line for line in lines if "event" not in line]


class Recorder(TrainingCallback):
    """Remembers what it is shown; ``act`` answers, with the name of the method."""

    def __init__(self, act=lambda what, count: None):
        self.act, self.steps, self.epochs = act, [], []

    def finish_step(self, status):
        self.steps.append(status)
        return self.act("step", len(self.steps))

    def finish_epoch(self, report):
        self.epochs.append(report)
        return self.act("epoch", len(self.epochs))


def test_they_are_called_in_order_and_shown_what_was_tested(tmp_path):
    order = []
    first, second = (
        Recorder(lambda what, count, name=name: order.append((name, what, count))) for name in ("first", "second")
    )
    run, result = _train(tmp_path, callbacks=[first, second], keep="best", average=0.5)
    assert [status.iteration for status in first.steps] == list(range(1, 13))
    assert order[:3] == [("first", "step", 1), ("second", "step", 1), ("first", "step", 2)]
    assert order[-2:] == [("first", "epoch", 3), ("second", "epoch", 3)]
    for place, report in enumerate(first.epochs, start=1):
        assert (report.status.epoch, report.status.iteration) == (place, BATCHES * place)
        assert report.learning_rate == _options().learning_rate_at(BATCHES * place - 1, 12)
    assert first.epochs[-1].best_epoch == result.best_epoch
    best = first.epochs[result.best_epoch - 1]
    assert best.status.test_loss == pytest.approx(Classifier.open(run, CPU).evaluate(DATA.test).loss)
    for name, array in run.load_weights().items():
        np.testing.assert_array_equal(best.weights[name], array)
    assert _outcome(run) == _outcome(_train(tmp_path, "plain", keep="best", average=0.5)[0])


def test_nothing_that_they_are_shown_can_be_written(tmp_path, once):
    class Vandal(TrainingCallback):
        """Tries."""

        def finish_step(self, status):
            with pytest.raises(FrozenInstanceError):
                status.loss = 0.0

        def finish_epoch(self, report):
            with pytest.raises(TypeError):
                report.weights["conv1.weights"] = np.zeros(1)
            for array in report.weights.values():
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0.0
                array.setflags(write=True)  # whoever insists has a copy
                array[...] = np.nan
            self.was_called = True

    vandal = Vandal()
    run, _ = _train(tmp_path, callbacks=[vandal])
    assert vandal.was_called
    assert _outcome(run) == _outcome(once(_plain))


@pytest.mark.parametrize(("what", "count", "ends"), [("step", 6, (6, 9)), ("epoch", 1, (4, 4)), ("epoch", 3, (12, 12))])
def test_an_answer_of_true_ends_training_and_it_can_go_on(tmp_path, once, what, count, ends):
    recorder = Recorder(lambda said, number: said == what and number == count)
    run, result = _train(tmp_path, callbacks=[recorder])
    assert ends[0] <= result.iterations <= ends[1]
    assert result.interrupted == (ends[1] < 12)
    assert run.checkpoints.steps()[-1] == result.iterations
    assert resume(DATA, RunFolder.open(run.path), CPU).iterations == 12
    assert _outcome(run) == _outcome(once(_plain))


class OwnError(Exception):
    """What callbacks raise here."""


@pytest.mark.parametrize(("what", "count"), [("step", 1), ("step", 6), ("step", 12), ("epoch", 2), ("epoch", 3)])
def test_an_exception_leaves_a_run_that_goes_on(tmp_path, once, what, count):
    """Behind it nothing is called; weights and a checkpoint are those of one step."""

    def act(said, number):
        if said == what and number == count:
            raise OwnError(f"{said} {number}")

    faulty, behind = Recorder(act), Recorder()
    run = _begun(tmp_path)
    with pytest.raises(OwnError, match=f"{what} {count}") as caught:
        train(DATA, run, _options(), CPU, callbacks=[faulty, behind])
    last = run.checkpoints.steps()[-1]
    assert any(
        f"ended the training after {last} iterations; resume() goes on" in note for note in caught.value.__notes__
    )
    assert len(behind.steps) == len(faulty.steps) - (what == "step")
    assert len(behind.epochs) == len(faulty.epochs) - (what == "epoch")
    if last < 12:
        failed = [line for line in run.read_metrics() if line.get("event") == "failed"]
        assert failed[0]["error"] == f"a callback: OwnError('{what} {count}')"
    for name, array in run.load_weights().items():
        label, _, part = name.partition(".")
        np.testing.assert_array_equal(array, run.checkpoints.load(last).parts[label][part])
    assert resume(DATA, RunFolder.open(run.path), CPU, callbacks=[behind]).iterations == 12
    assert _outcome(run) == _outcome(once(_plain))


class Helped(Recorder):
    """Has methods for itself, of which none is in the way."""

    limit = 3

    def plot(self, report):
        pass

    def _on_epoch_end(self, report):
        pass


def test_methods_that_nothing_calls_are_refused(tmp_path):
    run = _begun(tmp_path)
    for name in ("on_epoch_end", "finishEpoch", "finish_epochs", "end_step", "before_step"):
        beside = type("Beside", (Helped,), {name: lambda self, report: None})()
        with pytest.raises(MPSTypeError, match=f"train: callbacks must override finish_step .*got Beside with {name}"):
            train(DATA, run, _options(), CPU, callbacks=[Helped(), beside])
        with pytest.raises(MPSTypeError, match=f"resume: callbacks .*got Beside with {name}"):
            resume(DATA, run, CPU, callbacks=[beside])
    alone = type("Alone", (TrainingCallback,), {"epoch": lambda self, report: None})()
    with pytest.raises(MPSTypeError, match="got Alone with epoch"):
        train(DATA, run, _options(), CPU, callbacks=[alone])
    with pytest.raises(MPSTypeError, match="got TrainingCallback with neither"):
        train(DATA, run, _options(), CPU, callbacks=[TrainingCallback()])
    helped, given = Helped(), TrainingCallback()
    given.finish_epoch = helped.finish_epoch
    train(DATA, run, _options(), CPU, callbacks=[helped, given])
    assert len(helped.epochs) == 6


def test_other_callbacks_and_answers_are_refused(tmp_path):
    run = _begun(tmp_path)
    for wrong in (print, [print], {"a": Recorder()}):
        with pytest.raises(MPSTypeError, match="train: callbacks must be a sequence of TrainingCallback"):
            train(DATA, run, _options(), CPU, callbacks=wrong)
    with pytest.raises(MPSTypeError, match=r"Recorder\.finish_step: answer must be True to end training.*got 1"):
        train(DATA, run, _options(), CPU, callbacks=[Recorder(lambda what, count: 1)])
    with pytest.raises(MPSTypeError, match="resume: callbacks must be a sequence of TrainingCallback"):
        resume(DATA, run, CPU, callbacks=[len])
