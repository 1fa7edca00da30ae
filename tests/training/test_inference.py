"""Classifying with a network: batches, figures of a test, run folders."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openmps.errors import MPSArgumentError, MPSFileError, MPSNonFiniteError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training import inference
from openmps.training.dataset import Dataset
from openmps.training.inference import Classifier, describe_network
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat as Format

SHAPE = NetworkShape(4, 6, 3, 4)
NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture(scope="module")
def network():
    return SampleNetwork.create(SHAPE, seed=0, optimizer=optimizer_factory("adam", 1e-3))


@pytest.fixture(scope="module")
def classifier(network):
    return Classifier(network, mtl_device("cpu"), NAMES)


@pytest.fixture
def run(tmp_path, network):
    folder = RunFolder.create(tmp_path, describe_network(SHAPE, NAMES), name="run")
    folder.save_weights(network.arrays())
    return folder


def _images(rng, count):
    return rng.integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)


def test_batches_do_not_change_the_probabilities(classifier, rng, monkeypatch):
    images = _images(rng, 11)
    whole = classifier.probabilities(images)
    assert whole.shape == (11, 4)
    np.testing.assert_allclose(whole.sum(axis=1), 1, rtol=1e-5)
    assert len(np.unique(whole[:, 0])) == 11
    for size in (1, 4, 10, 11):
        monkeypatch.setattr(inference, "_BATCH", size)
        np.testing.assert_allclose(classifier.probabilities(images), whole, atol=1e-6)


def test_figures_of_a_test(classifier, rng):
    images = _images(rng, 30)
    labels = rng.integers(0, 4, 30)
    probabilities = classifier.probabilities(images)
    evaluation = classifier.evaluate(Dataset(images, labels, NAMES, "random"))
    predictions = probabilities.argmax(axis=1)
    np.testing.assert_array_equal(evaluation.predictions, predictions)
    assert evaluation.accuracy == pytest.approx((predictions == labels).mean())
    assert evaluation.loss == pytest.approx(-np.log(probabilities[np.arange(30), labels].astype(float)).mean())
    assert evaluation.confusion.counts[2, 1] == ((labels == 2) & (predictions == 1)).sum()
    assert evaluation.confusion.class_names == NAMES


def test_a_probability_of_zero_makes_a_large_loss_not_an_infinite_one(classifier, rng, monkeypatch):
    sure = np.zeros((2, 4), np.float32)
    sure[:, 1] = 1
    monkeypatch.setattr(classifier, "probabilities", lambda images, between_batches=None: sure)
    loss = classifier.evaluate(Dataset(_images(rng, 2), np.array([0, 1]), NAMES, "two")).loss
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2)


def test_what_is_raised_between_batches_ends_the_work_and_leaves_the_classifier_usable(classifier, rng, monkeypatch):
    monkeypatch.setattr(inference, "_BATCH", 2)
    images, calls = _images(rng, 9), []

    def third():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classifier.probabilities(images, between_batches=third)
    assert classifier.probabilities(images).shape == (9, 4)


@pytest.mark.parametrize(
    ("images", "kind", "message"),
    [
        (np.zeros((2, 4, 6, 3), np.float32), MPSTypeError, "must be a NumPy array of uint8, 0 to 255, got float32"),
        ([[1]], MPSTypeError, "got list"),
        (np.zeros((4, 6, 3), np.uint8), MPSArgumentError, r"must be \[N, height, width, channels\] of \(N, 4, 6, 3\)"),
        (np.zeros((1, 6, 4, 3), np.uint8), MPSArgumentError, r"got shape \(1, 6, 4, 3\). Resize them"),
        (np.zeros((1, 4, 6, 1), np.uint8), MPSArgumentError, r"of \(N, 4, 6, 3\)"),
        (np.zeros((0, 4, 6, 3), np.uint8), MPSArgumentError, "N at least 1"),
    ],
)
def test_images_that_do_not_fit_are_named(classifier, images, kind, message):
    with pytest.raises(kind, match=message):
        classifier.probabilities(images)


def test_class_names_must_fit(classifier, network, rng):
    dataset = Dataset(_images(rng, 2), np.array([0, 1]), ("ant", "cat"), "others")
    with pytest.raises(
        MPSArgumentError, match="'others': class_names must be those of the network, ant, bee, cat, dog"
    ):
        classifier.evaluate(dataset)
    with pytest.raises(MPSTypeError, match="^Classifier: dataset must be a Dataset, got ndarray"):
        classifier.evaluate(dataset.images)
    with pytest.raises(MPSArgumentError, match="must be one for each of 4 classes, got 2"):
        Classifier(network, mtl_device("cpu"), ("ant", "bee"))


def test_a_test_set_may_lack_the_last_classes(classifier, rng):
    evaluation = classifier.evaluate(Dataset(_images(rng, 3), np.array([0, 1, 1]), ("ant", "bee"), "two"))
    assert evaluation.confusion.counts.shape == (4, 4)


# --- run folders ---------------------------------------------------------------------------------------------------


def test_the_network_of_a_run_gives_the_same_probabilities(run, classifier, rng):
    images = _images(rng, 5)
    assert Classifier.open(run)._graph.device is mtl_device("auto")
    for opened in (run, run.path, str(run.path)):
        again = Classifier.open(opened, mtl_device("cpu"))
        assert (again.shape, again.class_names) == (SHAPE, NAMES)
        np.testing.assert_array_equal(again.probabilities(images), classifier.probabilities(images))


def test_the_format_is_that_of_the_run_unless_given(tmp_path, network, rng):
    config = {**describe_network(SHAPE, NAMES), "options": {"format": "float16"}}
    folder = RunFolder.create(tmp_path, config, name="half")
    folder.save_weights(network.arrays())
    rows = Classifier.open(folder, mtl_device("cpu")).summary().rows
    assert {row.channel_format for row in rows[:-2]} == {Format.FLOAT16}
    assert {row.channel_format for row in rows[-2:]} == {Format.FLOAT32}
    single = Classifier.open(folder, mtl_device("cpu"), Format.FLOAT32).summary().rows
    assert {row.channel_format for row in single} == {Format.FLOAT32}


@pytest.mark.parametrize(
    "change",
    [
        {"network": None},
        {"network": {"height": 4, "width": 6}},
        {"network": {"height": "4", "width": 6, "channels": 3}},
        {"network": {"height": 4, "width": 6, "channels": 0}},
        {"class_names": None},
        {"class_names": ["one"]},
        {"class_names": [0, 1, 2, 3]},
        {"class_names": [["ant"], "bee", "cat", "dog"]},
        {"class_names": ["ant", "bee", "ant", "dog"]},
    ],
)
def test_damaged_descriptions_are_named(run, change):
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(MPSFileError, match=r"run/run\.json must describe a network and its classes"):
        Classifier.open(run.path, mtl_device("cpu"))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_network_that_gives_no_numbers_tells_no_class(network, number, rng):
    arrays = {name: np.full_like(array, number) for name, array in network.arrays().items()}
    broken = Classifier(SampleNetwork.from_arrays(SHAPE, arrays), mtl_device("cpu"), NAMES)
    images = _images(rng, 3)
    with pytest.raises(MPSNonFiniteError, match="probabilities must be finite, got NaN for 3 of 3 images"):
        broken.probabilities(images)
    with pytest.raises(MPSNonFiniteError, match="openmps weights show"):
        broken.evaluate(Dataset(images, np.arange(3), NAMES, "random"))


def test_weights_of_another_network_are_named(run):
    file = run.path / "run.json"
    content = json.loads(file.read_text())
    content["class_names"].append("eel")
    file.write_text(json.dumps(content))
    with pytest.raises(
        MPSFileError, match=r"array 'fc2\.weights' must have shape \(5, 1, 1, 1024\), got \(4, 1, 1, 1024\)"
    ):
        Classifier.open(run.path, mtl_device("cpu"))


def test_a_run_without_weights_is_named(tmp_path):
    folder = RunFolder.create(tmp_path, describe_network(SHAPE, NAMES), name="empty")
    with pytest.raises(MPSFileError, match="must hold weights.safetensors"):
        Classifier.open(folder, mtl_device("cpu"))
