"""Averages of weights against loops and torch's, and runs that test and keep them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from openmps.errors import MPSArgumentError, MPSFileError
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.runtime.devices import mtl_device
from openmps.training import (
    Classifier,
    DataSplit,
    RunFolder,
    TrainingOptions,
    describe_run,
    optimizer_factory,
    resume,
    train,
)
from openmps.training.data_sources import TrainableConvolutionDataSource
from small_data import stripes

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")

CPU = mtl_device("cpu")
SHARE, STEPS = 0.75, 8


DATA = DataSplit(stripes(33), stripes(12))


def _options(**changes):
    more = {"network": "tiny", "checkpoint_every": 1, "checkpoints_kept": 99, "learning_rate": 0.05, **changes}
    return TrainingOptions(**{"epochs": 2, "batch_size": 8, **more})


def _train(parent, name, **changes):
    run = RunFolder.create(parent, describe_run(DATA, _options(**changes)), name=name)
    return run, train(DATA, run, _options(**changes), CPU)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run, and its numbers after each step, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)
        run, result = _train(tmp_path_factory.mktemp("runs"), "run", average=SHARE)
    parts = [run.checkpoints.load(step).parts for step in range(1, STEPS + 1)]
    names = [(label, name) for label, part in parts[0].items() for name in part if f"average.{name}" in part]
    return run, result, {f"{label}.{name}": [part[label][name] for part in parts] for label, name in names}


def _by_loops(steps):
    total, weight = np.zeros(steps[0].shape), 0.0
    for numbers in steps:
        total = SHARE * total + (1 - SHARE) * numbers.astype(np.float64)
        weight = SHARE * weight + (1 - SHARE)
    return total / weight


def _by_torch(steps):
    """torch's averages, told the share of each step."""

    def move(average, now, count):
        return average + (now - average) * (1 - SHARE) / (1 - SHARE ** (count + 1))

    model = torch.nn.ParameterList([torch.zeros(steps[0].shape, dtype=torch.float64)])
    kept = AveragedModel(model, avg_fn=move)
    for numbers in steps:
        model[0].data.copy_(torch.from_numpy(numbers))
        kept.update_parameters(model)
    return kept.module[0].numpy(force=True)


@pytest.mark.parametrize("expected", [_by_loops, _by_torch])
def test_averages_are_those_of_the_formula(averaged, expected):
    run, _, numbers = averaged
    found = run.load_weights()
    assert found.keys() == numbers.keys()
    assert {name.partition(".")[2] for name in found} == {"weights", "biases", "gamma", "beta", "mean", "variance"}
    for name, steps in numbers.items():
        np.testing.assert_allclose(found[name], expected(steps), rtol=1e-5, atol=1e-6)
        assert np.abs(found[name] - steps[-1]).max() > 1e-4, name


def test_the_tests_are_of_the_averages(averaged, tmp_path):
    run, result, _ = averaged
    assert Classifier.open(run, CPU).evaluate(DATA.test).loss == result.evaluation.loss
    plain, other = _train(tmp_path, "plain")
    assert other.evaluation.loss != result.evaluation.loss
    # What is trained is not changed by them.
    for label, part in plain.checkpoints.load(STEPS).parts.items():
        for name, value in part.items():
            if isinstance(value, np.ndarray) and label not in ("training loop", "epoch metrics"):
                np.testing.assert_array_equal(value, run.checkpoints.load(STEPS).parts[label][name])


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
def test_a_run_that_goes_on_has_the_same_averages(tmp_path):
    run, result = _train(tmp_path, "run", average=SHARE, keep="best")
    ended = run.weights_path.read_bytes()
    for step in (0, 3, STEPS):
        again = resume(DATA, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(step))
        assert run.weights_path.read_bytes() == ended, step
        assert again.evaluation.loss == result.evaluation.loss
    run.amend({"options": {**run.config["options"], "average": 0.5}})
    with pytest.raises(MPSFileError, match=r"its options\.average is 0\.75, got 0\.5"):
        resume(DATA, run, CPU)


def _source():
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 2, 2)
    return TrainableConvolutionDataSource(descriptor, np.ones(4), np.ones(2), optimizer=optimizer_factory("sgd", 0.1))


def test_states_with_and_without_averages_are_told_apart():
    kept, plain = _source(), _source()
    kept.keep_average(0.5)
    with pytest.raises(MPSArgumentError, match=r"state misses 'average\.biases'"):
        kept.restore_training_state(plain.training_state())
    with pytest.raises(MPSArgumentError, match=r"state must not hold 'average\.biases'"):
        plain.restore_training_state(kept.training_state())
    with pytest.raises(MPSArgumentError, match=r"state 'average\.biases\.steps' must be a whole number"):
        kept.restore_training_state({**kept.training_state(), "average.biases.steps": -1})
    np.testing.assert_array_equal(kept.averages()["weights"], kept.weights())
    kept.keep_average(None)
    assert kept.training_state().keys() == plain.training_state().keys()


@pytest.mark.parametrize("average", [0.0, 1.0, float("nan")])
def test_other_shares_are_refused(average):
    with pytest.raises(MPSArgumentError, match="average must be"):
        TrainingOptions(1, average=average)
    with pytest.raises(MPSArgumentError, match="decay must be"):
        _source().keep_average(average)
