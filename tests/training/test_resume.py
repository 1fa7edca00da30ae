"""Going on with a run: the same bits as a run that never stopped, whatever stopped it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import every_option
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSNonFiniteError, MPSTrainingWarning
from openmps.runtime.devices import mtl_device
from openmps.training import architectures, run_description, session
from openmps.training.augmentation import AS_THEY_ARE, ITEMS
from openmps.training.checkpoint import Checkpoint
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.loop import TrainingOptions, describe_run, resume, train
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat as Format
from small_data import rows_and_columns

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")
WALL_CLOCK = ("seconds", "images_per_second")


DATA = DataSplit(rows_and_columns(33), rows_and_columns(12))
LESS = rows_and_columns(32)


class StopAt:
    """Presses Ctrl-C after a batch."""

    def __init__(self, iteration):
        self.iteration, self.heard, self.epochs = iteration, [], []

    def update(self, status):
        self.heard.append(status)
        if status.iteration == self.iteration:
            signal.raise_signal(signal.SIGINT)

    def finish_epoch(self, status):
        self.epochs.append(status)


def _options(**changes):
    # Four batches an epoch: checkpoints fall into epochs and on their ends, lines of ten steps across both.
    return TrainingOptions(**{"epochs": 4, "batch_size": 8, "checkpoint_every": 2, "checkpoints_kept": 99, **changes})


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    """The sample's layers, of few channels: checkpoints of as many parts are written and read sooner."""
    rows = {**architectures.NETWORKS, "sample": architectures.NetworkRow(_narrow_sample, 1)}
    monkeypatch.setattr("openmps.training.network.NETWORKS", rows)


def _narrow_sample(net):
    x = net.image
    for label, channels in (("conv1", 4), ("conv2", 8)):
        x = net.halved(net.relu(net.convolution(x, label, channels, 5, limit=0.2, bias=0.1)))
    x = net.relu(net.fully_connected(x, "fc1", 16, limit=0.2, bias=0.1))
    return net.fully_connected(net.dropout(x, 0.5), "fc2", net.classes, limit=0.2, bias=0.1)


def _train(parent, name="run", observer=None, device=CPU, **changes):
    options = _options(**changes)
    run = RunFolder.create(parent, describe_run(DATA, options), name=name)
    return run, train(DATA, run, options, device, observer)


def _metrics(run):
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in lines]


def _outcome(run):
    """Everything that must be the same, to the byte."""
    files = sorted(path.name for path in run.path.iterdir() if path.suffix in (".safetensors", ".dat"))
    return {name: (run.path / name).read_bytes() for name in files}, _metrics(run)


def _trained(folder, stop, *changes):
    """A run that Ctrl-C has stopped behind a step, or none has; several tests read it, or go on with copies."""
    return _train(folder, observer=StopAt(stop), **dict(changes))[0]


def _copied(run, parent, name="run"):
    shutil.copytree(run.path, parent / name)
    return RunFolder.open(parent / name)


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def _events(run):
    """What TensorBoard's own reader finds: steps and values by tag, and steps of histograms."""
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.events_path), {"scalars": 0, "histograms": 0}).Reload()
    scalars = {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    return scalars, {tag: [each.step for each in found.Histograms(tag)] for tag in found.Tags()["histograms"]}


def test_tensorboard_shows_what_the_metrics_hold_on_one_axis_of_steps(tmp_path):
    run = RunFolder.create(tmp_path, describe_run(DATA, _options(epochs=6)), name="run")
    train(DATA, run, _options(epochs=6, checkpoint_every=4), CPU, StopAt(13), tensorboard=True)
    # It goes on from a checkpoint that lies behind: what was said of later steps is undone.
    resume(DATA, run, CPU, checkpoint=run.checkpoints.load(8))
    lines = _metrics(run)
    scalars, histograms = _events(run)
    for tag, name in (("loss/training", "loss"), ("accuracy/training", "accuracy"), ("loss/test", "test_loss")):
        wanted = [(line["iteration"], line[name]) for line in lines if name in line]
        assert [step for step, _ in scalars[tag]] == [step for step, _ in wanted]
        np.testing.assert_allclose([each for _, each in scalars[tag]], [each for _, each in wanted], rtol=1e-6)
    rates = [_options(epochs=6).learning_rate_at(step - 1, 24) for step in (10, 20)]
    assert [step for step, _ in scalars["learning rate"]] == [10, 20]
    np.testing.assert_allclose([rate for _, rate in scalars["learning rate"]], rates, rtol=1e-6)
    assert set(histograms) == {name.replace(".", "/") for name in run.load_weights()}
    assert {tuple(steps) for steps in histograms.values()} == {(0, 4, 8, 12, 16, 20, 24)}
    before = _events(run)
    resume(DATA, run, CPU)  # which was finished: it is tested once more
    assert _events(run) == before
    plain = RunFolder.create(tmp_path, describe_run(DATA, _options()), name="plain")
    train(DATA, plain, _options(), CPU)
    assert not plain.events_path.exists()


def test_without_tensorboard_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = RunFolder.create(tmp_path, describe_run(DATA, _options()), name="run")
    with pytest.raises(MPSError, match=r"needs tensorboard.*pip install '\.\[tensorboard\]'"):
        train(DATA, run, _options(), CPU, tensorboard=True)


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"optimizer": "rmsprop"}, {"optimizer": "sgd", "decay": 1.0}, {"channel_format": Format.FLOAT16}),
        {"network": "tiny", **every_option.OPTIONS},
    ],
    ids=["adam", "rmsprop", "sgd", "float16", "every option"],
)
def test_from_every_checkpoint_to_the_same_bytes(tmp_path, changes):
    whole, result = _train(tmp_path, "whole", **changes)
    steps = whole.checkpoints.steps()
    assert steps == list(range(0, 17, 2))
    outcome = _outcome(whole)
    last = whole.checkpoints.load(16).to_bytes()
    for step in steps if not changes else (6, 12):
        run = _copied(whole, tmp_path, f"from-{step}")
        checkpoint = run.checkpoints.load(step)
        found = resume(DATA, run, CPU, checkpoint=checkpoint)
        assert _outcome(run) == outcome, step
        assert (found.iterations, found.resumed_from, found.interrupted) == (16, step, False)
        assert found.evaluation.loss == result.evaluation.loss
        assert _without_time(run.checkpoints.load(16)) == _without_time(Checkpoint.from_bytes(last))


def test_no_option_is_missing_there():
    chosen, plain = _options(**every_option.OPTIONS), _options()
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    assert names - {name for name in names if getattr(chosen, name) != getattr(plain, name)} == every_option.OF_ITS_OWN
    items = {item.field for item in ITEMS.values()}
    assert [name for name in items if getattr(chosen.augments, name) == getattr(AS_THEY_ARE, name)] == []


def _without_time(checkpoint):
    """The bytes of a checkpoint but for what the clock says."""
    loop_state = {**checkpoint.parts["training loop"], "seconds": 0.0, "metrics_bytes": 0}
    return Checkpoint(checkpoint.step, {**checkpoint.parts, "training loop": loop_state}, checkpoint.about).to_bytes()


def test_checkpoints_change_nothing_in_what_is_computed(tmp_path):
    outcomes = [_outcome(_train(tmp_path, f"{n}", checkpoint_every=n)[0]) for n in (1, 5)]
    assert outcomes[0] == outcomes[1]


def test_ctrl_c_and_on_and_ctrl_c_again(tmp_path, once):
    outcome = _outcome(once(_trained, None))
    run, result = _train(tmp_path, observer=StopAt(3), checkpoint_every=1000)
    for _ in range(20):
        if not result.interrupted:
            break
        done = result.iterations
        assert run.checkpoints.steps()[-1] == done  # written by Ctrl-C itself
        assert run.read_metrics()[-1]["event"] == "interrupted"
        observer = StopAt(done + 1)
        result = resume(DATA, RunFolder.open(run.path), CPU, observer)
        assert result.resumed_from == done
        if observer.heard:
            assert observer.heard[0].iteration == done + 1
    assert (result.iterations, result.interrupted) == (16, False)
    assert _outcome(run) == outcome


def test_a_break_in_the_test_of_an_epoch(tmp_path, once, monkeypatch):
    outcome = _outcome(once(_trained, None))
    evaluate = session.Classifier.evaluate
    calls = []

    def interrupted(self, dataset, *, between_batches):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, dataset, between_batches=between_batches)

    monkeypatch.setattr(session.Classifier, "evaluate", interrupted)
    run, result = _train(tmp_path)
    assert (result.interrupted, result.iterations) == (True, 8)
    assert resume(DATA, run, CPU).iterations == 16
    assert _outcome(run) == outcome


def test_the_observer_hears_of_the_whole_epoch(tmp_path):
    observer = StopAt(None)
    _train(tmp_path, "whole", observer)
    stop = StopAt(6)
    run, result = _train(tmp_path, observer=stop)
    rest = StopAt(None)
    resume(DATA, run, CPU, rest)
    heard = [status for status in stop.heard if status.iteration <= result.iterations] + rest.heard
    assert [(each.epoch, each.iteration, each.loss, each.accuracy) for each in heard] == [
        (each.epoch, each.iteration, each.loss, each.accuracy) for each in observer.heard
    ]
    assert [each.test_loss for each in stop.epochs + rest.epochs] == [each.test_loss for each in observer.epochs]


def test_seconds_go_on(tmp_path, once):
    run = _copied(once(_trained, 5), tmp_path)
    before = run.checkpoints.newest().parts["training loop"]["seconds"]
    result = resume(DATA, run, CPU)
    assert result.seconds > before
    seconds = [line["seconds"] for line in run.read_metrics()]
    assert seconds == sorted(seconds)


def test_on_every_device(tmp_path, device):
    machine = mtl_device(device)
    whole, _ = _train(tmp_path, "whole", device=machine)
    run, _ = _train(tmp_path, observer=StopAt(7), device=machine)
    resume(DATA, run, machine)
    mine, theirs = (each.checkpoints.load(16).parts for each in (run, whole))
    for part, state in theirs.items():
        for name, value in state.items():
            if isinstance(value, int) and name not in ("correct", "metrics_bytes"):
                assert mine[part][name] == value, f"{part}, {name}"
    for found, wanted in zip(_metrics(run), _metrics(whole), strict=True):
        # A GPU may sum in another order each time.
        assert found.get("test_loss", 0) == pytest.approx(wanted.get("test_loss", 0), rel=0.02, abs=0.02)


# --- other ends ------------------------------------------------------------------------------------------------------


def test_a_second_ctrl_c_leaves_no_checkpoint_of_a_moment_in_between(tmp_path, once):
    class Twice(StopAt):
        def update(self, status):
            if status.iteration == 3:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    outcome = _outcome(once(_trained, None))
    with pytest.raises(KeyboardInterrupt):
        _train(tmp_path, observer=Twice(3))
    run = RunFolder.open(tmp_path / "run")
    assert run.checkpoints.steps() == [0, 2]
    resume(DATA, run, CPU)
    assert _outcome(run) == outcome


def test_an_error_in_between(tmp_path, once):
    class Broken(StopAt):
        def update(self, status):
            if status.iteration == 9:
                raise MPSError("observer", "update", "failed")

    outcome = _outcome(once(_trained, None))
    with pytest.raises(MPSError, match="observer: update failed"):
        _train(tmp_path, observer=Broken(9))
    run = RunFolder.open(tmp_path / "run")
    assert run.read_metrics()[-1]["event"] == "failed"
    resume(DATA, run, CPU)
    assert _outcome(run) == outcome


def test_a_full_disk_ends_training_and_leaves_a_run_to_go_on_with(tmp_path, once, monkeypatch):
    from openmps.formats import atomic

    outcome = _outcome(once(_trained, None))
    replace = atomic.Path.replace

    def full(self, target):
        if target.name == "step-00000006.safetensors":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.Path, "replace", full)
        with pytest.raises(MPSFileError, match=r"step-00000006\.safetensors could not be written, got No space left"):
            _train(tmp_path)
    run = RunFolder.open(tmp_path / "run")
    assert run.checkpoints.newest().step == 4
    resume(DATA, run, CPU)
    assert _outcome(run) == outcome


@pytest.mark.parametrize("file", ["weights.safetensors", "step-00000000.safetensors"])
def test_a_disk_that_is_full_from_the_start_leaves_a_run_to_go_on_with(tmp_path, once, monkeypatch, file):
    from openmps.formats import atomic

    outcome = _outcome(once(_trained, None))
    replace = atomic.Path.replace

    def full(self, target):
        if target.name == file:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.Path, "replace", full)
        with pytest.raises(MPSFileError, match="could not be written, got No space left"):
            _train(tmp_path)
    run = RunFolder.open(tmp_path / "run")
    assert [line["event"] for line in run.read_metrics()] == ["failed"]
    resume(DATA, run, CPU)
    assert _outcome(run) == outcome


def test_damaged_checkpoints_cost_the_steps_since_the_last_whole_one(tmp_path, once):
    outcome = _outcome(once(_trained, None))
    run = _copied(once(_trained, 9), tmp_path)
    newest, second = run.checkpoints.steps()[:-3:-1]
    run.checkpoints.file(newest).write_bytes(b"half")
    content = bytearray(run.checkpoints.file(second).read_bytes())
    content[len(content) // 2] ^= 16
    run.checkpoints.file(second).write_bytes(content)
    with pytest.warns(MPSTrainingWarning, match="Going back to the checkpoint of step") as warned:
        result = resume(DATA, run, CPU, checkpoints_kept=1)
    assert len(warned) == 2
    assert result.resumed_from < second
    assert run.checkpoints.steps() == [16]
    assert _outcome(run) == outcome


def test_no_whole_checkpoint(tmp_path, once):
    run = _copied(once(_trained, 5), tmp_path)
    before = run.metrics_path.read_bytes()
    for step in run.checkpoints.steps():
        run.checkpoints.file(step).write_bytes(b"half")
    with pytest.raises(MPSFileError, match="must hold a whole checkpoint, got"):
        resume(DATA, run, CPU)
    for step in run.checkpoints.steps():
        run.checkpoints.file(step).unlink()
    with pytest.raises(MPSFileError, match="must hold a checkpoint, got a run without one"):
        resume(DATA, run, CPU)
    assert run.metrics_path.read_bytes() == before


def test_a_run_that_was_killed_before_its_first_checkpoint(tmp_path, once):
    outcome = _outcome(once(_trained, None))
    run = RunFolder.create(tmp_path, describe_run(DATA, _options()), name="run")
    result = resume(DATA, run, CPU)
    assert (result.resumed_from, result.iterations) == (None, 16)
    assert _outcome(run) == outcome


def test_what_a_killed_writer_left_is_cleared(tmp_path, once):
    run = _copied(once(_trained, 5), tmp_path)
    leftovers = [run.path / f".openmps-{'0' * 16}.tmp", run.checkpoints.path / f".openmps-{'f' * 16}.tmp"]
    for path in leftovers:
        path.write_bytes(b"half")
    with run.metrics_path.open("ab") as file:
        file.write(b'{"torn": ')
    resume(DATA, run, CPU)
    assert not any(path.exists() for path in leftovers)
    assert _metrics(run) == _metrics(once(_trained, None))


def test_metrics_that_are_gone(tmp_path, once):
    run = _copied(once(_trained, 14), tmp_path)
    run.metrics_path.write_bytes(run.metrics_path.read_bytes()[:50])
    with pytest.raises(MPSFileError, match=r"metrics\.jsonl must hold \d+ bytes of whole lines, as it did when"):
        resume(DATA, run, CPU)


# --- the end and beyond ----------------------------------------------------------------------------------------------


def test_a_finished_run_is_tested_again_and_left_alone(tmp_path):
    run, result = _train(tmp_path)
    outcome = _outcome(run)
    (run.path / "curve.png").unlink()
    again = resume(DATA, RunFolder.open(run.path), CPU)
    assert (again.resumed_from, again.iterations, again.evaluation.loss) == (16, 16, result.evaluation.loss)
    assert _outcome(run) == outcome
    assert (run.path / "curve.png").exists()


def test_more_epochs_lengthen_a_run(tmp_path):
    longer, _ = _train(tmp_path, "longer", epochs=6, decay=0)
    run, _ = _train(tmp_path, decay=0)
    created = run.created
    result = resume(DATA, run, CPU, StopAt(20), epochs=6)
    assert result.interrupted
    run = RunFolder.open(run.path)
    assert (run.config["options"]["epochs"], run.created) == (6, created)
    resume(DATA, run, CPU)  # the new number of epochs is the run's now
    assert _outcome(run) == _outcome(longer)


def test_fewer_epochs_are_refused(tmp_path, once):
    run = _copied(once(_trained, None, ("epochs", 2)), tmp_path)
    with pytest.raises(MPSArgumentError, match="epochs must be at least the 2 that the run was started with, got 1"):
        resume(DATA, run, CPU, epochs=1)


def test_how_often_checkpoints_are_written_may_change(tmp_path, once):
    run = _copied(once(_trained, 5), tmp_path)
    resume(DATA, run, CPU, checkpoint_every=5, checkpoints_kept=3)
    assert run.checkpoints.steps() == [10, 15, 16]
    assert run.config["options"]["checkpoint_every"] == 5


@pytest.mark.parametrize(("seconds", "steps"), [(1e9, [0, 16]), (0, list(range(17)))])
def test_without_a_number_of_steps_the_clock_decides(tmp_path, monkeypatch, seconds, steps):
    monkeypatch.setattr(session, "_CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(session, "_CHECKPOINT_SHARE", 1e9)
    run, _ = _train(tmp_path, checkpoint_every=None)
    assert run.checkpoints.steps() == steps


def test_checkpoints_take_a_small_part_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(session, "_CHECKPOINT_SHARE", 1e-9)
    run, _ = _train(tmp_path, checkpoint_every=None)
    assert run.checkpoints.steps() == [0, 16]


# --- what does not belong --------------------------------------------------------------------------------------------


def _changed(part, **changes):
    found = {"images": part.images, "labels": part.labels, "class_names": part.class_names, "name": part.name}
    return Dataset(**{**found, **changes})


def _other_pixel(part):
    images = part.images.copy()
    images[3, 1, 1, 0] ^= 1
    return _changed(part, images=images)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSplit(_other_pixel(DATA.training), DATA.test), r"its data\.training\.sha256 is '"),
        (DataSplit(DATA.training, _other_pixel(DATA.test)), r"its data\.test\.sha256 is '"),
        (
            DataSplit(rows_and_columns(32), DATA.test),
            r"its data\.training\.shape is \[33, 4, 4, 1\], got \[32, 4, 4, 1\]",
        ),
        (
            DataSplit(*(_changed(part, class_names=("rows", "lines")) for part in DATA)),
            r"its class_names is \['rows', 'columns'\], got \['rows', 'lines'\]",
        ),
        (
            DataSplit(*(_changed(part, images=part.images.repeat(2, 1)) for part in DATA)),
            r"its network\.height is 4, got 8",
        ),
    ],
    ids=["training", "test", "count", "names", "size"],
)
def test_other_data_are_refused(tmp_path, once, data, message):
    run = _copied(once(_trained, 5), tmp_path)
    before = run.metrics_path.read_bytes()
    with pytest.raises(MPSFileError, match=rf"step-0000000\d\.safetensors must be of this training: {message}"):
        resume(data, run, CPU)
    assert run.metrics_path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 4), ("learning_rate", 0.5), ("optimizer", "sgd"), ("seed", 3), ("format", "float16"), ("decay", 0)],
)
def test_a_checkpoint_of_other_options_is_refused(tmp_path, once, name, value):
    run = _copied(once(_trained, 5), tmp_path)
    run.amend({"options": {**run.config["options"], name: value}})
    with pytest.raises(MPSFileError, match=rf"must be of this training: its options\.{name} is .*, got {value!r}"):
        resume(DATA, run, CPU)


def _damage(state, **changes):
    return {**state, **{name.replace("__", "."): value for name, value in changes.items()}}


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("training loop", {"epoch": 0}, "state 'epoch' must be where step"),
        ("training loop", {"epoch": 3}, "state 'epoch' must be where step"),
        ("training loop", {"epoch": 6}, "state 'epoch' must be a whole number from 0 to 5, got 6"),
        ("training loop", {"batch": 5}, "state 'batch' must be a whole number from 0 to 4"),
        ("training loop", {"recent": np.zeros((10, 2))}, "state 'recent' must be fewer than 10 steps"),
        ("training loop", {"recent": np.full((1, 2), np.nan)}, "state 'recent' must be fewer than 10"),
        ("training loop", {"metrics_bytes": 10**9}, r"metrics\.jsonl must hold 1000000000 bytes"),
        ("training loop", {"seconds": "long"}, "state 'seconds' must be a finite number"),
        ("training loop", {"more": 1}, "state must not hold 'more'"),
        ("epoch metrics", {"correct": 10**6}, "state 'correct' must be a whole number from 0 to"),
        ("dropout", {"encodes": -1}, "state 'encodes' must be a whole number"),
        ("fc1", {"weights": np.zeros((1, 1, 1, 1), np.float32)}, "state 'weights' must be float32 of shape"),
        ("fc1", {"biases": np.zeros(16)}, r"state 'biases' must be float32 of shape \(16,\), got float64"),
        ("fc1", {"learning_rate": True}, "state 'learning_rate' must be a finite number"),
    ],
)
def test_a_checkpoint_with_a_right_checksum_and_wrong_contents(tmp_path, once, part, changes, message):
    run = _copied(once(_trained, 5), tmp_path)
    found = run.checkpoints.newest()
    run.checkpoints.save(
        Checkpoint(found.step, {**found.parts, part: _damage(found.parts[part], **changes)}, found.about)
    )
    with pytest.raises(MPSFileError, match=rf"part '{part}' must fit, got .*{message}"):
        resume(DATA, run, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": "MPSNNOptimizerRMSProp"},
            "state 'optimizer' must be MPSNNOptimizerAdam, got MPSNNOptimizerRMSProp",
        ),
        ({"optimizer__time_step": -4}, "state 'time_step' must be a whole number"),
        ({"input_momentum_vectors__0": np.zeros(3, np.float32)}, r"state 'input_momentum_vectors\.0' must be float32"),
        ({"input_momentum_vectors__2": np.zeros(3, np.float32)}, "state must not hold"),
    ],
)
def test_an_optimizer_s_state_that_does_not_fit_is_refused_by_the_first_step(tmp_path, once, changes, message):
    run = _copied(once(_trained, 5), tmp_path)
    found = run.checkpoints.newest()
    parts = {**found.parts, "conv1": _damage(found.parts["conv1"], **changes)}
    run.checkpoints.save(Checkpoint(found.step, parts, found.about))
    with pytest.raises(MPSArgumentError, match=message):
        resume(DATA, run, CPU)


@pytest.mark.parametrize("options", [None, {}, {"epochs": "many"}, {"epochs": 2, "format": "float64"}, {"epochs": [1]}])
def test_a_description_without_options(tmp_path, once, options):
    run = _copied(once(_trained, None, ("epochs", 1)), tmp_path)
    run.amend({"options": options if options is None else {"format": "float32", **options}})
    with pytest.raises(MPSFileError, match=r"run\.json must have the options of a training"):
        resume(DATA, run, CPU)


def test_training_anew_in_a_run_with_checkpoints_is_refused(tmp_path, once):
    run = _copied(once(_trained, None, ("epochs", 1)), tmp_path)
    with pytest.raises(MPSFileError, match="must be a run that has not begun, got one with checkpoints"):
        train(DATA, run, _options(epochs=1), CPU)


def test_two_at_a_time_are_refused(tmp_path):
    errors = []

    class Second(StopAt):
        def update(self, status):
            if not errors:
                try:
                    resume(DATA, RunFolder.open(tmp_path / "run"), CPU)
                except MPSFileError as error:
                    errors.append(str(error))

    run, _ = _train(tmp_path, observer=Second(None), epochs=1)
    assert "run must not be in training already" in errors[0]
    thread = threading.Thread(target=resume, args=(DATA, run, CPU))
    thread.start()
    thread.join()


def test_another_machine_is_a_warning(tmp_path, once, monkeypatch):
    run = _copied(once(_trained, 5), tmp_path)
    monkeypatch.setattr(run_description.torch, "get_num_threads", lambda: 77)
    with pytest.warns(MPSTrainingWarning, match=r"was written elsewhere \(threads \d+, now 77\): the last bits"):
        resume(DATA, run, CPU)


def test_the_same_machine_is_none(tmp_path, once):
    run = _copied(once(_trained, 5), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume(DATA, run, CPU)


def test_weights_that_are_not_finite_reach_no_checkpoint(tmp_path, monkeypatch):
    from openmps.training.data_sources import TrainableConvolutionDataSource as Source

    original = Source.training_state

    def broken(self):
        state = dict(original(self))
        if self.label() == "fc2" and state.get("optimizer.time_step", 0) > 5:
            state["biases"] = np.full_like(state["biases"], np.nan)
        return state

    monkeypatch.setattr(Source, "training_state", broken)
    with pytest.raises(MPSNonFiniteError, match=r"layer 'fc2': fc2\.biases must be finite, got nan at \[0\]"):
        _train(tmp_path, checkpoints_kept=1)
    assert RunFolder.open(tmp_path / "run").checkpoints.newest().step == 4
