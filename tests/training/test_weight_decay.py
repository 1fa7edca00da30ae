"""Training with a weight decay: a run against torch's AdamW, one that was stopped, and what is refused."""

from __future__ import annotations

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
    more = {"network": "tiny", "checkpoint_every": 1, "checkpoints_kept": 99, **changes}
    return TrainingOptions(**{"epochs": 2, "batch_size": 8, **more})


def _train(parent, name, **changes):
    run = RunFolder.create(parent, describe_run(DATA, _options(**changes)), name=name)
    train(DATA, run, _options(**changes), CPU)
    return run


def test_a_rate_that_learns_nothing_leaves_what_the_decay_leaves(tmp_path):
    """So small a rate that the gradients' part is rounded off: every number that is trained shrinks by itself."""
    run = _train(tmp_path, "run", optimizer="sgd", learning_rate=1e-12, weight_decay=2e11, schedule="cosine")
    rates = [1e-12 * (1 + np.cos(np.pi * step / 8)) / 2 for step in range(8)]
    left = np.prod([1 - 2e11 * rate for rate in rates])
    first, last = (run.checkpoints.load(step).parts for step in (0, 8))
    trained = [
        (label, name)
        for label, part in first.items()
        for name in ("weights", "biases", "gamma", "beta")
        if name in part
    ]
    assert {name for _, name in trained} == {"weights", "biases", "gamma", "beta"}
    for label, name in trained:
        np.testing.assert_allclose(last[label][name], left * first[label][name], rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
def test_a_run_that_goes_on_decays_to_the_same_bits(tmp_path):
    run = _train(tmp_path, "run", weight_decay=0.1)
    ended = run.weights_path.read_bytes()
    resume(DATA, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(3))
    assert run.weights_path.read_bytes() == ended
    assert _train(tmp_path, "other").weights_path.read_bytes() != ended
    run.amend({"options": {**run.config["options"], "weight_decay": 0.2}})
    with pytest.raises(MPSFileError, match=r"its options\.weight_decay is 0\.1, got 0\.2"):
        resume(DATA, run, CPU)


@pytest.mark.parametrize("decay", [-0.1, float("nan"), float("inf")])
def test_other_decays_are_refused(decay):
    with pytest.raises(MPSArgumentError, match="weight_decay must be"):
        TrainingOptions(1, weight_decay=decay)
