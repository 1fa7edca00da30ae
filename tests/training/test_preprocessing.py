"""What a run says of its pixels: the formula, what is refused, and that predictions follow it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openmps.cli import main
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training import (
    Classifier,
    Dataset,
    DataSplit,
    NetworkShape,
    Preprocessing,
    RunFolder,
    TrainingOptions,
    describe_run,
    resume,
    train,
)
from openmps.training.inference import describe_network

CPU = mtl_device("cpu")
CAFFE = Preprocessing("BGR", (104, 117, 123), (1, 1, 0.5))


@pytest.fixture
def run(tmp_path):
    """A network of coloured images."""
    shape = NetworkShape(8, 8, 3, 2, "tiny")
    folder = RunFolder.create(tmp_path, describe_network(shape, ("a", "b")), name="run")
    random = np.random.default_rng(0)
    folder.save_weights({name: random.random(lengths) / 8 + 0.1 for name, lengths in shape.arrays().items()})
    return folder


def test_the_formula_pixel_by_pixel():
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 3), np.uint8)
    found = CAFFE.applied(images)
    assert (found.dtype, found.shape) == (np.float32, images.shape)
    for n, y, x, c in np.ndindex(images.shape):
        expected = (int(images[n, y, x, 2 - c]) - (104, 117, 123)[c]) * (1, 1, 0.5)[c]
        assert found[n, y, x, c] == expected


def test_a_run_says_what_it_sees_and_predictions_follow(run):
    images = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 3), np.uint8)
    assert json.loads((run.path / "run.json").read_text())["preprocessing"] == {
        "order": "RGB",
        "mean": [0, 0, 0],
        "scale": [1 / 255] * 3,
    }
    plain = Classifier.open(run, CPU)
    assert str(plain.preprocessing) == "RGB, pixels / 255"
    run.amend(Preprocessing("BGR", (0, 0, 0), (1 / 255,) * 3).describe())
    turned = Classifier.open(run.path, CPU)
    np.testing.assert_allclose(turned.probabilities(images), plain.probabilities(images[..., ::-1].copy()), atol=1e-6)
    run.amend(Preprocessing("RGB", (51, 51, 51), (1 / 255,) * 3).describe())
    darker = Classifier.open(run.path, CPU)
    np.testing.assert_allclose(darker.probabilities(images // 2 + 51), plain.probabilities(images // 2), atol=1e-6)
    assert str(darker.preprocessing) == "RGB, (pixels - 51) / 255"
    assert str(CAFFE) == "BGR, (pixels - (104, 117, 123)) * (1, 1, 0.5)"


def test_exported_source_says_what_is_done_to_pixels(run, tmp_path, capsys):
    sources = []
    for name, given in (("Plain", None), ("Caffe", Preprocessing("BGR", (104, 117, 123.68), (1, 1, 1 / 58.395)))):
        if given is not None:
            run.amend(given.describe())
        assert main(["export", "--swift", str(run.path), str(tmp_path / name)]) == 0
        sources.append(" ".join((tmp_path / name / f"{name}.swift").read_text().replace("\n//", "").split()))
    capsys.readouterr()
    assert "Images are 8x8x3, unorm8: 0 to 255 stand for 0 to 1, no mean is taken off." in sources[0]
    seen = Preprocessing("BGR", (104, 117, 123.68), (1, 1, 1 / 58.395))
    assert f"Images are 8x8x3, {seen}, as float16 or float32." in sources[1]
    assert f"mean: [104.0, 117.0, 123.68], scale: [1.0, 1.0, {np.float32(1 / 58.395)!s}]" in sources[1]
    assert "no mean is taken off" not in sources[1]


def test_a_run_of_old_says_nothing_and_is_plain(run):
    description = json.loads((run.path / "run.json").read_text())
    del description["preprocessing"]
    (run.path / "run.json").write_text(json.dumps(description))
    found = Classifier.open(run.path, CPU).preprocessing
    assert found is not None and found.is_plain


@pytest.mark.parametrize(
    "given",
    [
        None, [], {}, {"order": "RGB"}, {"order": "RBG", "mean": [0] * 3, "scale": [1] * 3},
        {"order": ["RGB"], "mean": [0] * 3, "scale": [1] * 3},
        {"order": "RGB", "mean": [0] * 2, "scale": [1] * 3}, {"order": "RGB", "mean": "000", "scale": [1] * 3},
        {"order": "RGB", "mean": [0] * 3, "scale": [1, 0, 1]}, {"order": "RGB", "mean": [0] * 3, "scale": [1, 1, 1e39]},
        {"order": "RGB", "mean": [0] * 3, "scale": [1] * 3, "std": [1] * 3},
        {"order": "grey", "mean": [0], "scale": [1]},
    ],
)  # fmt: skip
def test_a_description_that_is_none(given, run):
    run.amend({"preprocessing": given})
    with pytest.raises(
        MPSFileError, match=r"run\.json must describe (its preprocessing|preprocessing of the network's 3)"
    ):
        Classifier.open(run.path, CPU)


def test_arguments_are_checked():
    with pytest.raises(MPSArgumentError, match="order must be one of grey, RGB, BGR, got 'rgb'"):
        Preprocessing("rgb", (0, 0, 0), (1, 1, 1))
    with pytest.raises(MPSTypeError, match="mean must be a number for each channel, got 0"):
        Preprocessing("grey", 0, (1,))  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="scale must be a finite number, got inf"):
        Preprocessing("grey", (0,), (float("inf"),))
    for scale in (0.0, -1e-40):
        with pytest.raises(MPSArgumentError, match="scale must not be 0 as float32, which images have"):
            Preprocessing("grey", (0,), (scale,))


def test_training_refuses_pixels_that_it_does_not_show(tmp_path):
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (16, 8, 8, 3), np.uint8), np.arange(16) % 2
    data = DataSplit(Dataset(images, labels, ("a", "b"), "x"), Dataset(images, labels, ("a", "b"), "x"))
    options = TrainingOptions(epochs=1, batch_size=8, network="tiny")
    other = RunFolder.create(tmp_path, {**describe_run(data, options), **CAFFE.describe()}, name="other")
    for go in (lambda: train(data, other, options, CPU), lambda: resume(data, other, CPU)):
        with pytest.raises(
            MPSFileError, match="must have the preprocessing that networks are trained with, RGB, pixels / 255"
        ):
            go()
