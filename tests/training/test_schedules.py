"""Schedules against torch's, what a run says of them, and a run with one that was stopped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as reference

from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training import DataSplit, RunFolder, TrainingOptions, describe_run, resume, run_options, train
from small_data import stripes

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")
STEPS, RATE = 60, 0.4


def _constant(optimizer, steps):
    return reference.ConstantLR(optimizer, factor=1.0)


def _linear(optimizer, steps):
    falling = reference.LinearLR(optimizer, 1.0, 0.0, total_iters=round(0.3 * steps))
    level = reference.ConstantLR(optimizer, factor=1.0)
    return reference.SequentialLR(optimizer, [level, falling], [steps - round(0.3 * steps)])


def _step(optimizer, steps):
    return reference.MultiStepLR(optimizer, [-(-steps // 3), -(-2 * steps // 3)], gamma=0.1)


def _cosine(optimizer, steps):
    return reference.CosineAnnealingLR(optimizer, T_max=steps)


def _one_cycle(optimizer, steps):
    # torch comes to the end in the last step, and to the peak one step before the part that it is told.
    part = (0.3 * steps + 1) / (steps + 1)
    return reference.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=part, cycle_momentum=False)


def _rates(make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
    scheduler, found = make(optimizer, steps), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(found)


@in_one_test
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's SequentialLR does what it warns of
@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize(
    ("name", "make"),
    [("constant", _constant), ("linear", _linear), ("step", _step), ("cosine", _cosine), ("one-cycle", _one_cycle)],
)
def test_rates_are_those_of_torch(name, make, warmup):
    options = TrainingOptions(1, learning_rate=RATE, schedule=name, warmup=warmup)
    rising = np.arange(1, warmup + 1) / (warmup + 1)
    after = _rates(make, STEPS - warmup)
    found = [options.learning_rate_at(step, STEPS) for step in range(STEPS)]
    np.testing.assert_allclose(found, [*(rising * after[0]), *after], rtol=1e-9, atol=1e-12)


def test_a_warm_up_before_a_cosine_is_torchs_linear_one():
    def make(optimizer, steps):
        rising = reference.LinearLR(optimizer, 1 / 11, total_iters=10)
        falling = reference.CosineAnnealingLR(optimizer, T_max=steps - 10)
        return reference.SequentialLR(optimizer, [rising, falling], [10])

    options = TrainingOptions(1, learning_rate=RATE, schedule="cosine", warmup=10)
    found = [options.learning_rate_at(step, STEPS) for step in range(STEPS)]
    np.testing.assert_allclose(found, _rates(make, STEPS), rtol=1e-9, atol=1e-12)


@in_one_test
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"schedule": "cosin"}, MPSArgumentError, "schedule must be one of linear, constant, step, cosine, one-cycle"),
        ({"schedule": ["cosine"]}, MPSArgumentError, "schedule must be one of"),
        (
            {"schedule": "cosine", "decay": 0.3},
            MPSArgumentError,
            "decay must be left out: it is of the schedule linear",
        ),
        ({"warmup": -1}, MPSArgumentError, "warmup must be a whole number from 0 on, got -1"),
        ({"warmup": 8}, MPSArgumentError, "warmup must be fewer than the 8 steps of the training, got 8"),
        ({"schedule": lambda step, steps: -0.5}, MPSArgumentError, "factor must be 0 or more, got -0.5 in step 0 of 8"),
        ({"schedule": lambda step, steps: "1"}, MPSTypeError, "factor must be a number"),
        ({"schedule": lambda step, steps: float("nan")}, MPSArgumentError, "factor must be a number, got nan"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_before_there_is_a_run(options, kind, message):
    with pytest.raises(kind, match=message):
        describe_run(DATA, TrainingOptions(2, batch_size=8, **options))


# --- in a run --------------------------------------------------------------------------------------------------------


DATA = DataSplit(stripes(33), stripes(12))


def halves(step, steps):
    """A schedule of one's own."""
    return 1.0 if 2 * step < steps else 0.5


def _train(parent, name, **options):
    chosen = TrainingOptions(2, batch_size=8, network="tiny", checkpoint_every=1, checkpoints_kept=99, **options)
    run = RunFolder.create(parent, describe_run(DATA, chosen), name=name)
    train(DATA, run, chosen, CPU)
    return run


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize("options", [{"schedule": "cosine", "warmup": 3}, {"schedule": halves}])
def test_a_run_that_goes_on_follows_its_schedule_to_the_same_bits(tmp_path, options):
    run = _train(tmp_path, "run", **options)
    ended = run.weights_path.read_bytes()
    again = {"schedule": halves} if options["schedule"] is halves else {}
    resume(DATA, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(2), **again)
    assert run.weights_path.read_bytes() == ended
    other = _train(tmp_path, "other")
    assert other.weights_path.read_bytes() != ended


def test_a_run_does_not_go_on_by_another_schedule(tmp_path):
    run = _train(tmp_path, "run", schedule=halves)
    assert run.config["options"]["schedule"] == {"function": f"{__name__}.halves"}
    with pytest.raises(MPSArgumentError, match=r"schedule must be given again: the run was trained by .*\.halves"):
        resume(DATA, run, CPU)
    with pytest.raises(MPSArgumentError, match=r"schedule must be that of the run, .*halves.* got .*<lambda>"):
        resume(DATA, run, CPU, schedule=lambda step, steps: 1.0)
    linear = RunFolder.create(tmp_path, describe_run(DATA, TrainingOptions(2, batch_size=8)), name="linear")
    with pytest.raises(MPSArgumentError, match=r"schedule must be that of the run, linear, got cosine"):
        resume(DATA, linear, CPU, schedule="cosine")


@pytest.mark.parametrize("schedule", ["cosin", 3, {}, {"function": 3}])
def test_a_damaged_description_is_an_error_of_its_file(tmp_path, schedule):
    run = RunFolder.create(tmp_path, describe_run(DATA, TrainingOptions(2, batch_size=8)), name="run")
    run.amend({"options": {**run.config["options"], "schedule": schedule}})
    with pytest.raises(MPSFileError, match=r"run\.json must have the options of a training"):
        run_options(run)
