"""The training loop: what it learns, what it leaves in the run folder, and how it ends early."""

from __future__ import annotations

import json
import math
import signal
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSNonFiniteError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training import session
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.inference import Classifier
from openmps.training.loop import TrainingOptions, describe_run, train
from openmps.training.network import NetworkShape
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat as Format
from small_data import rows_and_columns

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")
SHAPES = NetworkShape(4, 4, 1, 2).arrays()


DATA = DataSplit(rows_and_columns(33), rows_and_columns(12))


class Recorder:
    """Remembers what it hears; ``act`` is called with each status after a batch."""

    def __init__(self, act=lambda status: None):
        self.act, self.batches, self.epochs = act, [], []

    def update(self, status):
        self.batches.append(status)
        self.act(status)

    def finish_epoch(self, status):
        self.epochs.append(status)


def _options(**changes):
    return TrainingOptions(**{"epochs": 3, "batch_size": 8, **changes})


def _train(parent, name="run", observer=None, data=DATA, device=CPU, **changes):
    options = _options(**changes)
    run = RunFolder.create(parent, describe_run(data, options, data={"path": None}), name=name)
    return run, train(data, run, options, device, observer)


def _weights(run):
    return run.load_weights(SHAPES)


def test_it_learns_and_says_how(tmp_path, device):
    recorder = Recorder()
    run, result = _train(tmp_path, observer=recorder, epochs=12, device=mtl_device(device))
    assert result.evaluation.accuracy == 1
    assert (result.iterations, result.interrupted, result.notes) == (48, False, ())
    assert [status.iteration for status in recorder.batches] == list(range(1, 49))
    assert [status.epoch for status in recorder.epochs] == list(range(1, 13))
    assert recorder.epochs[-1].test_accuracy == 1
    assert recorder.epochs[-1].test_loss == pytest.approx(result.evaluation.loss)
    assert recorder.epochs[-1].loss < recorder.epochs[0].loss
    assert recorder.batches[-1].seconds_left == 0
    evaluation = Classifier.open(run, mtl_device(device)).evaluate(DATA.test)
    assert evaluation.loss == pytest.approx(result.evaluation.loss, rel=1e-4)


def test_what_a_run_holds(tmp_path):
    run, result = _train(tmp_path)
    assert sorted(path.name for path in run.path.iterdir()) == sorted(
        [
            "checkpoints",
            "curve.png",
            "metrics.jsonl",
            "misclassified.png",
            "run.json",
            "weights.safetensors",
            *(f"{label}_{part}.dat" for label in ("conv1", "conv2", "fc1", "fc2") for part in ("weights", "biases")),
        ]
    )
    for name, array in _weights(run).items():
        raw = np.fromfile(run.path / f"{name.replace('.', '_')}.dat", dtype="<f4")
        np.testing.assert_array_equal(raw.reshape(array.shape), array)
    assert run.config["class_names"] == ["rows", "columns"]
    assert run.config["network"] == {"name": "sample", "height": 4, "width": 4, "channels": 1}
    assert run.config["options"] == {
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "decay": 0.3,
        "optimizer": "adam",
        "format": "float32",
        "seed": 0,
        "checkpoint_every": None,
        "checkpoints_kept": 2,
    }
    assert run.config["data"] == {"path": None}
    assert run.checkpoints.steps() == [0, 12]
    assert result.evaluation is not None


def test_the_metrics_say_everything_about_the_training(tmp_path):
    recorder = Recorder()
    run, _ = _train(tmp_path, observer=recorder, epochs=6)
    lines = run.read_metrics()
    batches = [line for line in lines if "loss" in line]
    assert [line["iteration"] for line in batches] == [10, 20]
    epochs = [line for line in lines if "test_loss" in line]
    assert [(line["epoch"], line["iteration"]) for line in epochs] == [(n, 4 * n) for n in range(1, 7)]
    for line, status in zip(epochs, recorder.epochs, strict=True):
        assert line["epoch_loss"] == pytest.approx(status.loss)
        assert line["epoch_accuracy"] == pytest.approx(status.accuracy)
        assert line["test_accuracy"] == pytest.approx(status.test_accuracy)
    # Ten batches of one line are those of two and a half epochs.
    first = np.mean([status.loss for status in recorder.batches if status.iteration in (4, 8)])
    third = recorder.batches[9].loss
    assert batches[0]["loss"] == pytest.approx((first * 8 + third * 2) / 10, rel=1e-5)
    assert all(line["seconds"] > 0 and line["images_per_second"] >= 0 for line in lines)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(tmp_path):
    first, again, other = (_train(tmp_path, name, seed=seed)[0] for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    for name, array in _weights(first).items():
        np.testing.assert_array_equal(array, _weights(again)[name])
        assert (array != _weights(other)[name]).any() or name.endswith("biases")
    figures = ("loss", "accuracy", "test_loss", "test_accuracy", "epoch_loss")
    for mine, theirs in zip(first.read_metrics(), again.read_metrics(), strict=True):
        assert [mine.get(key) for key in figures] == [theirs.get(key) for key in figures]


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"optimizer": "rmsprop"}, {"channel_format": Format.FLOAT16}])
def test_other_optimizers_and_half_precision_learn_too(tmp_path, change):
    _, result = _train(tmp_path, epochs=12, **change)
    assert result.evaluation.accuracy == 1


def test_colour_images_and_many_classes(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (23, 5, 9, 3), dtype=np.uint8)
    names = tuple(f"class {n}" for n in range(23))
    data = DataSplit(Dataset(images, np.arange(23), names, "a"), Dataset(images, np.arange(23), names, "b"))
    run, result = _train(tmp_path, data=data, epochs=1)
    assert result.iterations == 2
    assert Classifier.open(run, CPU).evaluate(data.test).confusion.total == 23


def test_the_learning_rate_is_constant_and_then_falls_to_zero():
    options = _options(learning_rate=0.5, decay=0.25)
    rates = [options.learning_rate_at(step, 8) for step in (0, 4, 6, 7, 8)]
    assert rates == pytest.approx([0.5, 0.5, 0.5, 0.25, 0])
    assert _options(learning_rate=0.5, decay=0).learning_rate_at(99, 100) == 0.5
    assert _options(learning_rate=0.5, decay=1).learning_rate_at(50, 100) == 0.25


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
def test_the_fall_of_the_learning_rate_reaches_the_updates(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingOptions, "learning_rate_at", lambda self, step, steps: 1e-30)
    run, _ = _train(tmp_path)
    before = session.Network.create(NetworkShape(4, 4, 1, 2), seed=0, optimizer=lambda device: None).arrays()
    for name, array in _weights(run).items():
        np.testing.assert_allclose(array, before[name], rtol=0, atol=1e-20)


# --- the end before its time ---------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_weights_so_far(tmp_path):
    recorder = Recorder(lambda status: signal.raise_signal(signal.SIGINT) if status.iteration == 6 else None)
    handler = signal.getsignal(signal.SIGINT)
    run, result = _train(tmp_path, observer=recorder, epochs=1000)
    assert signal.getsignal(signal.SIGINT) is handler
    assert result.interrupted
    assert 6 <= result.iterations <= 10
    assert result.evaluation is not None  # of the first epoch, four batches long
    shorter, _ = _train(tmp_path, "shorter", epochs=1000, observer=_stop_at(4))
    assert any((_weights(run)[name] != array).any() for name, array in _weights(shorter).items())
    assert Classifier.open(run, CPU).evaluate(DATA.test).confusion.total == 12
    last = run.read_metrics()[-1]
    assert (last["event"], last["iteration"]) == ("interrupted", result.iterations)
    assert (run.path / "curve.png").exists()


def _stop_at(iteration):
    return Recorder(lambda status: signal.raise_signal(signal.SIGINT) if status.iteration == iteration else None)


def test_ctrl_c_in_the_first_epoch_is_early_but_usable(tmp_path):
    run, result = _train(tmp_path, observer=_stop_at(1))
    assert (result.interrupted, result.evaluation) == (True, None)
    assert Classifier.open(run, CPU).evaluate(DATA.test).confusion.total == 12
    assert not (run.path / "misclassified.png").exists()


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def twice(status):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, observer=Recorder(twice))
    assert RunFolder.open(tmp_path / "run").load_weights(SHAPES)


def test_training_on_another_thread_leaves_ctrl_c_alone(tmp_path):
    results = []
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: results.append(_train(tmp_path, epochs=1)))
    thread.start()
    thread.join()
    assert results[0][1].iterations == 4
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(tmp_path):
    recorder = Recorder()
    with pytest.raises(MPSNonFiniteError) as caught:
        _train(tmp_path, observer=recorder, learning_rate=1e30, epochs=5)
    assert "must be finite" in str(caught.value)
    assert "image" in str(caught.value)
    assert "channel" in str(caught.value)
    run = RunFolder.open(tmp_path / "run")
    before = session.Network.create(NetworkShape(4, 4, 1, 2), seed=0, optimizer=lambda device: None).arrays()
    for name, array in _weights(run).items():
        np.testing.assert_array_equal(array, before[name])
    last = run.read_metrics()[-1]
    assert (last["event"], last["error"]) == ("failed", str(caught.value))
    assert all(math.isfinite(status.loss) for status in recorder.batches)
    assert Classifier.open(run, CPU).evaluate(DATA.test).confusion.total == 12


def test_weights_that_the_last_update_broke_are_not_saved(tmp_path, monkeypatch):
    arrays = session.Network.arrays
    calls = []

    def broken(self):
        calls.append(1)
        found = arrays(self)
        if len(calls) == 3:
            found["fc2.weights"] = found["fc2.weights"].copy()
            found["fc2.weights"][1, 0, 0, 7] = np.inf
        return found

    monkeypatch.setattr(session.Network, "arrays", broken)
    with pytest.raises(MPSNonFiniteError, match=r"layer 'fc2': fc2\.weights must be finite, got inf at \[1, 0, 0, 7\]"):
        _train(tmp_path)
    assert np.isfinite(_weights(RunFolder.open(tmp_path / "run"))["fc2.weights"]).all()


def test_a_network_that_comes_with_a_weight_that_is_no_number_is_not_blamed_on_the_learning_rate(tmp_path, monkeypatch):
    arrays = session.Network.arrays
    monkeypatch.setattr(session.Network, "arrays", lambda self: {**arrays(self), "fc2.biases": np.full(4, np.nan)})
    with pytest.raises(
        MPSNonFiniteError, match=r"fc2\.biases must be finite, got nan at \[0\]\. The network came with it"
    ):
        _train(tmp_path)


def test_weights_are_saved_before_the_first_and_after_every_epoch(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(RunFolder, "save_weights", lambda self, arrays: saved.append(arrays["fc2.weights"].copy()))
    _train(tmp_path)
    assert len(saved) == 4
    for earlier, later in pairwise(saved):
        assert (earlier != later).any()


def test_an_error_of_an_observer_does_not_hang(tmp_path):
    def fail(status):
        raise MPSError("observer", "update", "failed")

    with pytest.raises(MPSError, match="observer: update failed"):
        _train(tmp_path, observer=Recorder(fail))


def test_missing_pictures_are_a_note_and_no_failure(tmp_path, monkeypatch):
    def missing(*arguments, **options):
        raise MPSError("draw_curve", "drawing pictures", "needs matplotlib")

    monkeypatch.setattr(session, "draw_curve", missing)
    _, result = _train(tmp_path)
    assert result.notes == ("pictures are missing: draw_curve: drawing pictures needs matplotlib",)


# --- what is refused -----------------------------------------------------------------------------------------------


def test_more_images_a_batch_than_there_are(tmp_path):
    with pytest.raises(MPSArgumentError, match="batch_size must be at most the 33 images .* got 34. Use 33 or less"):
        _train(tmp_path, batch_size=34)


def test_images_that_are_too_small(tmp_path):
    tiny = Dataset(np.zeros((9, 3, 4, 1), np.uint8), np.arange(9) % 2, ("a", "b"), "tiny")
    with pytest.raises(MPSArgumentError, match="height must be 4 or more, got 3. Give larger images"):
        _train(tmp_path, data=DataSplit(tiny, tiny))


@in_one_test
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1 on, got 0"),
        ({"epochs": 2.0}, "epochs must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on"),
        ({"seed": -1}, "seed must be a whole number from 0 on"),
        ({"decay": 1.5}, "decay must be 0 to 1"),
        ({"decay": float("nan")}, "decay must be a number, got nan"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"optimizer": "lion"}, "must be one of adam, sgd, rmsprop"),
        ({"channel_format": Format.UNORM8}, "channel_format must be FLOAT16 or FLOAT32"),
    ],
)
def test_options_that_make_no_sense(change, message):
    with pytest.raises(MPSArgumentError, match=message):
        _options(**change)


@pytest.mark.parametrize("decay", ["0.3", True])
def test_a_decay_is_a_number(decay):
    with pytest.raises(MPSTypeError, match="^TrainingOptions: decay must be a number"):
        _options(decay=decay)


def test_numbers_of_numpy_are_kept_as_pythons():
    """A description and a checkpoint, which are JSON, hold no others."""
    numbers = {"epochs": np.int64(3), "batch_size": np.uint8(8), "learning_rate": np.float32(0.25)}
    more = {"decay": np.float64(0.5), "average": np.float32(0.5), "clip_norm": np.int32(1)}
    found, plain = _options(**numbers, **more), _options(learning_rate=0.25, decay=0.5, average=0.5, clip_norm=1)
    assert found == plain
    assert json.dumps(found.describe()) == json.dumps(plain.describe())


def test_there_is_no_rate_behind_the_end():
    with pytest.raises(MPSArgumentError, match="step must be at most the 8 steps of the training, got 9"):
        _options().learning_rate_at(9, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.5}, r"whose options\.learning_rate is 0\.5, got 0\.\d+\. Create the run"),
        ({"network": "tiny"}, r"whose network\.name is 'tiny', got"),
        ({"epochs": 9}, r"whose options\.epochs is 9, got 3"),
    ],
)
def test_a_run_that_describes_another_training_is_refused(tmp_path, change, message):
    """Nobody could open it, or go on with it."""
    run = RunFolder.create(tmp_path, describe_run(DATA, _options()), name="run")
    with pytest.raises(MPSFileError, match=rf"^train: .*run\.json must describe this training, {message}"):
        train(DATA, run, _options(**change), CPU)
    assert not run.weights_path.exists()


def test_test_images_that_the_network_cannot_take_are_refused_before_it_is_trained():
    small, test = DATA.test.images[:, 1:], DATA.test
    with pytest.raises(MPSArgumentError, match="^DataSplit: test must have images of"):
        describe_run(DataSplit(DATA.training, replace(test, images=small)), _options())
    names = tuple(name.upper() + "x" for name in test.class_names)
    with pytest.raises(MPSArgumentError, match="^DataSplit: test must have the classes"):
        describe_run(DataSplit(DATA.training, replace(test, class_names=names)), _options())
