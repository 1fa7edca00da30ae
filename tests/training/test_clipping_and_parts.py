"""Runs with a limit of the gradients' norm, and with batches in parts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from openmps.errors import MPSArgumentError, MPSFileError
from openmps.runtime.devices import mtl_device
from openmps.training import DataSplit, RunFolder, TrainingOptions, describe_run, resume, train
from small_data import noise

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")


DATA = DataSplit(noise(33), noise(12))


def _options(**changes):
    more = {"network": "lenet", "checkpoint_every": 1, "checkpoints_kept": 99, "optimizer": "sgd", **changes}
    return TrainingOptions(**{"epochs": 2, "batch_size": 8, "learning_rate": 0.5, "schedule": "constant", **more})


def _train(parent, name, **changes):
    run = RunFolder.create(parent, describe_run(DATA, _options(**changes)), name=name)
    train(DATA, run, _options(**changes), CPU)
    return run


def _numbers(run, step):
    """All that is trained, in one row."""
    parts = run.checkpoints.load(step).parts
    names = [(label, name) for label, part in parts.items() for name in ("weights", "biases") if name in part]
    return np.concatenate([parts[label][name].ravel() for label, name in names]).astype(np.float64)


def test_no_step_is_longer_than_the_limit(tmp_path):
    run, free = _train(tmp_path, "run", clip_norm=1e-3), _train(tmp_path, "free")
    for step in range(8):
        length, whole = (np.linalg.norm(_numbers(each, step + 1) - _numbers(each, step)) for each in (run, free))
        assert length == pytest.approx(0.5 * 1e-3, rel=1e-3)
        assert whole > 0.5 * 2e-3
    way, free_way = (_numbers(each, 1) - _numbers(each, 0) for each in (run, free))
    assert way @ free_way == pytest.approx(np.linalg.norm(way) * np.linalg.norm(free_way), rel=1e-4)


@pytest.mark.parametrize("augmentation", [None, "flip:alternate,crop:1,mixup:0.4"])
def test_a_batch_in_parts_trains_as_the_whole_one(tmp_path, augmentation):
    """Augmentation draws by the place in the whole batch."""
    options = {"augmentation": augmentation}
    whole, parted = _train(tmp_path, "whole", **options), _train(tmp_path, "parted", accumulate=4, **options)
    np.testing.assert_allclose(_numbers(parted, 8), _numbers(whole, 8), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(_numbers(whole, 8), _numbers(whole, 7))
    lines = [[line for line in each.read_metrics() if "test_loss" in line] for each in (whole, parted)]
    for one, other in zip(*lines, strict=True):
        assert one["iteration"] == other["iteration"]
        assert one["epoch_accuracy"] == other["epoch_accuracy"]
        assert one["epoch_loss"] == pytest.approx(other["epoch_loss"], rel=1e-5)


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
def test_a_run_that_goes_on_has_the_same_bits(tmp_path):
    options = {"network": "tiny", "optimizer": "adam", "clip_norm": 0.1, "accumulate": 2}
    run = _train(tmp_path, "run", **options)
    ended = run.weights_path.read_bytes()
    resume(DATA, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(3))
    assert run.weights_path.read_bytes() == ended
    for name, value in (("clip_norm", 0.2), ("accumulate", 4)):
        other = RunFolder.create(tmp_path, {**run.config, "options": {**run.config["options"], name: value}}, name=name)
        with pytest.raises(MPSFileError, match=rf"its options\.{name} is {options[name]}, got {value}"):
            resume(DATA, other, CPU, checkpoint=run.checkpoints.load(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm must be above 0, or None, got 0.0"),
        ({"clip_norm": float("nan")}, "clip_norm must be a number, got nan"),
        ({"accumulate": 0}, "accumulate must be a whole number from 1 on, got 0"),
        (
            {"accumulate": 3},
            "batch_size must be a multiple of 3, the number of parts that it is computed in, got 8. Use 6 or 9",
        ),
    ],
)
def test_other_options_are_refused_before_there_is_a_run(options, message):
    with pytest.raises(MPSArgumentError, match=re.escape(message)):
        describe_run(DATA, _options(**options))
