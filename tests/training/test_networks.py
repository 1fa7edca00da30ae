"""Networks by name: trained, gone on with to the same bits, tested, predicted with."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from commands import run_command
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.runtime.devices import mtl_device
from openmps.training import architectures
from openmps.training.data import load_dataset
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.inference import Classifier
from openmps.training.loop import TrainingOptions, describe_run, resume, train
from openmps.training.network import Network, NetworkShape, optimizer_factory
from openmps.training.run_description import run_options
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat as Format

CPU = mtl_device("cpu")
MNIST = Path(__file__).parents[2].parent / "shared" / "data" / "mnist"
NARROW = {
    "mobilenet": partial(architectures.mobilenet, width=1 / 8),
    "resnet18": partial(architectures.resnet18, width=4),
    "resnet50": partial(architectures.resnet50, width=4),
    "inception": partial(architectures.inception, width=4),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, unflushed, undrawn):
    """Narrow networks, files that are not flushed, no pictures: those are tested elsewhere."""
    rows = {name: replace(row, describe=NARROW.get(name, row.describe)) for name, row in architectures.NETWORKS.items()}
    monkeypatch.setattr("openmps.training.network.NETWORKS", rows)


def _dataset(count, side=16):
    """Horizontal and vertical stripes with noise."""
    generator = np.random.default_rng(count)
    labels = np.arange(count) % 2
    stripes = np.zeros((2, side, side, 1))
    stripes[0, ::2], stripes[1, :, ::2] = 200, 200
    images = stripes[labels] + generator.integers(0, 55, (count, side, side, 1))
    return Dataset(images.astype(np.uint8), labels, ("rows", "columns"), "stripes")


DATA = DataSplit(_dataset(32), _dataset(12))


def _train(parent, name, network, data=DATA, **changes):
    options = TrainingOptions(**{"epochs": 1, "batch_size": 8, "checkpoint_every": 2, **changes}, network=network)
    run = RunFolder.create(parent, describe_run(data, options), name=name)
    return run, train(data, run, options, CPU)


def _trained(folder, network, optimizer):
    """A run that several tests read, and what came of it."""
    return _train(folder, "whole", network, checkpoints_kept=9, optimizer=optimizer)


def _metrics(run):
    return [{**line, "seconds": 0, "images_per_second": 0} for line in run.read_metrics()]


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [("tiny", "rmsprop"), ("tiny", "sgd"), *((name, "adam") for name in architectures.NETWORKS)],
)
def test_two_steps_and_on_to_the_same_bytes(tmp_path, once, network, optimizer):
    whole, result = once(_trained, network, optimizer)
    assert whole.checkpoints.steps() == [0, 2, 4]
    assert result.evaluation.confusion.total == 12
    shutil.copytree(whole.path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    found = resume(DATA, run, CPU, checkpoint=run.checkpoints.load(2))
    assert (found.resumed_from, found.iterations) == (2, 4)
    assert found.evaluation.loss == result.evaluation.loss
    assert whole.weights_path.read_bytes() == run.weights_path.read_bytes()
    assert _metrics(run) == _metrics(whole)
    mine, theirs = (each.checkpoints.load(4).parts for each in (run, whole))
    for part in theirs.keys() - {"training loop"}:
        assert mine[part].keys() == theirs[part].keys()
        for name, value in theirs[part].items():
            np.testing.assert_array_equal(mine[part][name], value, err_msg=f"{part}, {name}")


@pytest.mark.parametrize("network", ["tiny", "mobilenet", "resnet18", "inception"])
def test_every_array_of_a_network_is_trained(once, network):
    run, _ = once(_trained, network, "adam")
    shape = NetworkShape.of(DATA.training.images, 2, network)
    before = Network.create(shape, seed=0, optimizer=optimizer_factory("adam", 1e-3)).arrays()
    after = run.load_weights(shape.arrays())
    assert list(before) == list(shape.arrays())
    for name, array in before.items():
        assert array.shape == shape.arrays()[name]
        assert (after[name] != array).any(), name


def test_running_statistics_come_back_with_the_weights(tmp_path):
    run, result = _train(tmp_path, "run", "tiny", epochs=3)
    classifier = Classifier.open(run, CPU)
    assert classifier.evaluate(DATA.test).loss == result.evaluation.loss
    arrays = run.load_weights()
    shape = NetworkShape.of(DATA.training.images, 2, "tiny")
    forgotten = arrays | {name: np.zeros_like(arrays[name]) for name in arrays if name.endswith(".mean")}
    other = Classifier(Network.from_arrays(shape, forgotten), CPU, classifier.class_names)
    assert (other.probabilities(DATA.test.images) != classifier.probabilities(DATA.test.images)).any()
    summary = classifier.summary()
    assert summary.parameters == sum(array.size for array in arrays.values())
    assert {row.label: row.parameters for row in summary.rows}["first_norm"] == 4 * 8
    assert (run.path / "first_norm_variance.dat").stat().st_size == 4 * 8


def test_half_precision_is_near_single_precision(tmp_path):
    losses = [
        _train(tmp_path, each.name, "tiny", channel_format=each, epochs=3)[1].evaluation.loss
        for each in (Format.FLOAT16, Format.FLOAT32)
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@functools.cache
def _some_digits():
    found = load_dataset(MNIST)
    return DataSplit(*(
        Dataset(each.images[:count], each.labels[:count], each.class_names, each.name)
        for each, count in ((found.training, 240), (found.test, 80))
    ))  # fmt: skip


@pytest.mark.skipif(not (MNIST / "train-images-idx3-ubyte.gz").is_file(), reason=f"the MNIST files are not in {MNIST}")
@pytest.mark.parametrize("network", ["tiny", "lenet", "mobilenet", "resnet18", "inception"])
def test_on_real_digits(tmp_path, network):
    run, result = _train(tmp_path, "run", network, _some_digits(), batch_size=40, epochs=2, checkpoint_every=6)
    lines = run.read_metrics()
    assert result.iterations == 12
    first, last = (line["epoch_loss"] for line in lines if "epoch_loss" in line)
    assert last < first


# --- run folders ------------------------------------------------------------------------------------------------------


def test_a_run_without_a_name_is_of_the_sample_network(tmp_path):
    run, result = _train(tmp_path, "run", "sample")
    file = run.path / "run.json"
    description = json.loads(file.read_text())
    assert description["network"].pop("name") == "sample"
    file.write_text(json.dumps(description))
    again = RunFolder.open(run.path)
    assert run_options(again).network == "sample"
    assert Classifier.open(again, CPU).evaluate(DATA.test).loss == result.evaluation.loss


@pytest.mark.parametrize("name", ["alexnet", 3, None, ["tiny"]])
def test_a_run_of_an_unknown_network_is_named(tmp_path, once, name):
    shutil.copytree(once(_trained, "tiny", "adam")[0].path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    run.amend({"network": {**run.config["network"], "name": name}})
    with pytest.raises(
        MPSFileError, match="network must be one of sample, tiny, lenet, mobilenet, resnet18, resnet50,"
    ):
        Classifier.open(RunFolder.open(run.path), CPU)


def test_checkpoints_of_another_network_are_refused(tmp_path):
    run, _ = _train(tmp_path, "tiny", "tiny")
    other, _ = _train(tmp_path, "lenet", "lenet")
    with pytest.raises(MPSFileError, match="its network.name is 'lenet', got 'tiny'"):
        resume(DATA, run, CPU, checkpoint=other.checkpoints.newest())


def test_names_and_sizes_are_checked():
    with pytest.raises(MPSArgumentError, match=r"TrainingOptions: network must be one of sample, .*, got 'alexnet'"):
        TrainingOptions(epochs=1, network="alexnet")
    with pytest.raises(MPSArgumentError, match="height must be 8 or more, got 7. Give larger images, or resize them"):
        NetworkShape(7, 8, 1, 2, "resnet18")


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    for index, (image, label) in enumerate(zip(DATA.training.images, DATA.training.labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True, parents=True)
        Image.fromarray(image[..., 0]).save(folder / str(label) / f"{index}.png")
    return folder


@pytest.mark.parametrize("network", ["tiny", "lenet", "resnet18", "mobilenet"])
def test_train_evaluate_predict_summary(capsys, tmp_path, pictures, network):
    path = tmp_path / "run"
    arguments = ("train", "--network", network, "--data", pictures, "--run", path, "--epochs", 1, "--batch-size", 8)
    status, out, err = run_command(capsys, *arguments, "--device", "cpu")
    assert (status, err) == (0, "")
    accuracy = out.splitlines()[-1]
    assert RunFolder.open(path).config["network"]["name"] == network
    assert run_command(capsys, "evaluate", path, "-q")[1].splitlines() == [accuracy]
    status, out, _ = run_command(capsys, "predict", path, next(pictures.glob("0/*.png")))
    assert status == 0 and " %" in out
    status, out, _ = run_command(capsys, "summary", path)
    assert status == 0
    assert ("MPSCNNBatchNormalizationNode" in out) == (network != "lenet")
    assert run_command(capsys, "train", "--resume", path, "--epochs", 2, "--network", network, "-q")[0] == 0
    status, _, err = run_command(capsys, "train", "--resume", path, "--network", "sample")
    assert status == 2
    assert f"--network must be {network}, as the run was started with, got sample" in err


def test_a_network_that_there_is_not(capsys, tmp_path):
    status, _, err = run_command(capsys, "train", "--network", "alexnet", "--run", tmp_path / "run")
    assert status == 2
    assert "'alexnet' is none of sample, tiny, lenet, mobilenet, resnet18, resnet50, inception" in err
