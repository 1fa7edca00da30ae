"""Networks of ONNX files, trained like those of the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_models import conv, error, model, node, numbers, reference, saved
from openmps import MPSImageFeatureChannelFormat, mtl_device
from openmps.cli import main
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.training import Batch, Classifier, Network, NetworkShape, RunFolder, optimizer_factory
from openmps.training.imported import ImportedTopology, fingerprint, imported_size

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")
CPU = mtl_device("cpu")
SIDE, CLASSES = 8, 3


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether files reach the disk is tested with `write_atomic`."""
    monkeypatch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)


def classifier(*, last: str = "p", side: Any = SIDE) -> Any:
    """Convolution, batch normalization, ReLU, mean, product, biases and softmax."""
    nodes = [
        conv("x", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c g b m v", "n"),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "q"),
        node("Flatten", "q", "f"),
        node("MatMul", "f k", "d"),
        node("Add", "d t", "l"),
        node("Softmax", "l", "p", axis=1),
    ]
    rows = {"g": numbers(6), "b": numbers(6), "m": numbers(6), "v": np.abs(numbers(6)) + 1}
    shape = {"x": ["n", 3, side, side]}
    return model(nodes, shape, (last,), w=numbers(6, 3, 3, 3), k=numbers(6, CLASSES), t=numbers(CLASSES), **rows)


def outside(folder: Path, **options: Any) -> Path:
    """The classifier with its numbers in a file beside it, as exporters write it."""
    path = folder / "outside.onnx"
    onnx.save(classifier(**options), path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    return path


def network(path: Path, classes: int = CLASSES) -> Network:
    shape = NetworkShape(SIDE, SIDE, 3, classes, str(path))
    return Network.create(shape, seed=0, optimizer=optimizer_factory("adam", 1e-2))


def pictures(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


@pytest.mark.parametrize("last", ["p", "l"])
@pytest.mark.parametrize("side", [SIDE, "s"])
def test_as_many_classes_as_the_file_has_give_its_numbers(last: str, side: Any, tmp_path: Path) -> None:
    images = pictures()
    x = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / 255
    path = saved(classifier(last=last, side=side), tmp_path)
    found = Classifier(network(path), CPU, ("a", "b", "c")).probabilities(images)
    assert error(found, reference(classifier(), {"x": x})["p"]) < 1e-5


def test_another_number_of_classes_takes_a_new_layer_and_the_file_s_other_numbers(tmp_path: Path) -> None:
    path = saved(classifier(), tmp_path)
    same, other = network(path).arrays(), network(path, 5).arrays()
    assert list(same) == list(other)
    changed = [name for name in same if same[name].shape != other[name].shape]
    assert [other[name].shape[-1] if "weights" not in name else other[name].shape[0] for name in changed] == [5] * len(
        changed
    )
    kept = [name for name in same if name not in changed]
    assert {"Conv_c.weights", "BatchNormalization_n.mean"} <= set(kept)
    for name in kept:
        np.testing.assert_array_equal(same[name], other[name])
    head = ImportedTopology(str(path), SIDE, SIDE, 3, 5).head
    assert head.is_new and head.classes == CLASSES and f"{head.label}.weights" in changed
    assert 0 < np.abs(other[f"{head.label}.weights"]).max() <= (3 / 6) ** 0.5


def test_a_step_trains_every_layer(tmp_path: Path) -> None:
    from openmps.training.stepper import TrainingStepper

    trained = network(saved(classifier(), tmp_path), 4)
    before = trained.arrays()
    float32 = MPSImageFeatureChannelFormat.FLOAT32
    stepper = TrainingStepper(trained, CPU, float32, batch_size=5, dropout_seed=0)
    stepper.step(stepper.prepare(Batch(pictures(), np.arange(5) % 4, np.arange(5))))
    stepper.wait()
    after = trained.arrays()
    for name in before:
        assert np.abs(after[name] - before[name]).max() > 0, name


# --- by command -------------------------------------------------------------------------------------------------------


def test_running_statistics_move_as_the_file_says(tmp_path: Path) -> None:
    made = classifier()
    made.graph.node[1].attribute.append(onnx.helper.make_attribute("momentum", 0.75))
    found = []
    for each in (made, classifier()):
        shape = NetworkShape(SIDE, SIDE, 3, CLASSES, str(saved(each, tmp_path)))
        source: Any = shape.layers()["BatchNormalization_n"].trainable("n", 0, optimizer_factory("adam", 1e-2))
        found.append(source.momentum)
    assert found == [0.25, 0.1]


def folders(tmp_path: Path) -> Path:
    """Two classes that differ in brightness."""
    from PIL import Image

    generator = np.random.default_rng(1)
    for place, name in enumerate(("dark", "light")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(10):
            pixels = generator.integers(0, 100, (12, 10, 3)) + 150 * place
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / name / f"{index}.png")
    return tmp_path / "images"


def test_a_file_is_trained_on_folders_of_images_by_one_command(tmp_path: Path, capsys: Any) -> None:
    path, run = saved(classifier(), tmp_path), tmp_path / "run"
    options = ["--data", folders(tmp_path), "--network", path, "--run", run, "--epochs", 6, "--batch-size", 4]
    more = ["--learning-rate", 0.05, "--device", "cpu", "--quiet"]
    assert main([str(each) for each in ("train", *options, *more)]) == 0
    output = capsys.readouterr()
    assert "gives 3 classes" in output.err and "and 2 here: its weights are new" in output.err
    assert float(output.out.split()[-2]) == 100
    path.unlink()  # the run has all that it needs
    assert main(["train", "--resume", str(run), "--epochs", "7", "--quiet"]) == 0
    opened = Classifier.open(run, CPU)
    assert opened.shape.network == str(run / "network.onnx")
    light = np.full((1, SIDE, SIDE, 3), 220, np.uint8)
    assert opened.probabilities(light)[0].argmax() == 1
    (run / "network.onnx").write_bytes(classifier(last="l").SerializeToString())
    with pytest.raises(MPSFileError, match="must be the file that the run was trained with"):
        Classifier.open(RunFolder.open(run), CPU)


def test_a_run_keeps_a_file_with_the_numbers_of_those_beside_it(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "given").mkdir()
    path, run = outside(tmp_path / "given"), tmp_path / "run"
    options = ["--data", folders(tmp_path), "--network", path, "--run", run, "--epochs", 1, "--batch-size", 4]
    assert main([str(each) for each in ("train", *options, "--device", "cpu", "--quiet")]) == 0
    assert fingerprint(str(path)) == fingerprint(str(run / "network.onnx"))
    for each in (tmp_path / "given").iterdir():
        each.unlink()
    assert main(["train", "--resume", str(run), "--epochs", "2", "--quiet"]) == 0
    images = pictures()
    assert Classifier.open(run, CPU).probabilities(images).shape == (5, 2)
    kept = onnx.load(run / "network.onnx", load_external_data=False)
    assert {each.data_location for each in kept.graph.initializer} == {0}


def test_numbers_beside_a_file_that_change_are_read_again(tmp_path: Path) -> None:
    path = outside(tmp_path)
    inside = network(saved(classifier(), tmp_path)).arrays()
    before = network(path).arrays()
    assert all(np.array_equal(before[name], inside[name]) for name in inside)
    data = np.fromfile(tmp_path / "outside.bin", np.float32)
    (2 * data).tofile(tmp_path / "outside.bin")
    os.utime(tmp_path / "outside.bin", ns=(1, 1))
    after = network(path).arrays()
    assert all(np.array_equal(after[name], 2 * before[name]) for name in before)


def test_images_take_the_size_that_the_file_wants(tmp_path: Path) -> None:
    assert imported_size(str(saved(classifier(), tmp_path))) == (SIDE, SIDE, 3)
    assert imported_size(str(saved(classifier(side="s"), tmp_path))) == (None, None, 3)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_input_with_channels_last_is_refused_as_such(tmp_path: Path, capsys: Any) -> None:
    made = model(
        [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), conv("t", "c"), node("GlobalAveragePool", "c", "y")],
        {"x": ["n", SIDE, SIDE, 3]}, w=numbers(CLASSES, 3, 3, 3),
    )  # fmt: skip
    path = str(saved(made, tmp_path))
    assert main(["train", "--data", str(folders(tmp_path)), "--network", path, "--run", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err
    assert "must take images as N x C x H x W, got 'x' as N x H x W x C" in text and "--channels" not in text


def test_channels_that_no_image_file_has_are_the_model_s(tmp_path: Path) -> None:
    made = model([conv("x", "y")], {"x": ["n", 4, SIDE, SIDE]}, w=numbers(CLASSES, 4, 3, 3))
    with pytest.raises(MPSArgumentError, match="must take images of 1 or 3 channels, grey or red green blue, got 4"):
        imported_size(str(saved(made, tmp_path)))


def test_several_pixels_of_logits_are_refused_before_a_run_is_made(tmp_path: Path, capsys: Any) -> None:
    made = model([conv("x", "y")], {"x": ["n", 3, SIDE, SIDE + 2]}, w=numbers(CLASSES, 3, 3, 3))
    path, run = str(saved(made, tmp_path)), tmp_path / "run"
    assert main(["train", "--data", str(folders(tmp_path)), "--network", path, "--run", str(run)]) == 2
    assert "must end in one pixel, whose channels are the classes, got 'y' of 8x6 pixels" in capsys.readouterr().err
    assert not run.exists()


def test_images_of_another_size_name_the_options_that_make_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(MPSArgumentError, match="of class folders, --image-size 8x8 --channels 3 makes them"):
        ImportedTopology(str(saved(classifier(), tmp_path)), 9, SIDE, 3, CLASSES)
    with pytest.raises(MPSArgumentError, match="of class folders, --channels 3 makes them"):
        ImportedTopology(str(saved(classifier(side="s"), tmp_path)), SIDE, SIDE, 1, CLASSES)


def _residual() -> Any:
    nodes = [conv("x", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("Add", "c r", "y")]
    return model(nodes, {"x": ["n", 3, SIDE, SIDE]}, w=numbers(6, 3, 3, 3))


def _of_two_outputs() -> Any:
    nodes = [conv("x", "y"), node("Relu", "x", "z")]
    return model(nodes, {"x": ["n", 3, SIDE, SIDE]}, ("y", "z"), w=numbers(6, 3, 3, 3))


def _depthwise(*, alone: bool) -> Any:
    nodes = [] if alone else [conv("x", "d", "k")]
    nodes += [conv("x" if alone else "d", "y", group=3)]
    more = {} if alone else {"k": numbers(3, 3, 1, 1)}
    return model(nodes, {"x": ["n", 3, SIDE, SIDE]}, w=numbers(3, 1, 3, 3), **more)


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (_residual, "must end in a fully connected layer"),
        (lambda: model([node("Relu", "x", "y")], {"x": ["n", 3]}), "must be a model of one input of images"),
        (_of_two_outputs, "must have one output"),
        (lambda: _depthwise(alone=True), "by a layer that reads all channels"),
        (lambda: _depthwise(alone=False), "by a layer that reads all channels"),
        (lambda: model([conv("x", "y")], {"x": ["n", 4, 8, 8]}, w=numbers(6, 4, 3, 3)), "4x8x8"),
    ],
)  # fmt: skip
def test_models_that_are_no_classifiers_of_such_images_are_refused(made: Any, rule: str, tmp_path: Path) -> None:
    with pytest.raises(MPSArgumentError, match=rule):
        network(saved(made(), tmp_path))


def test_files_that_are_none_or_not_whole_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.onnx"
    with pytest.raises(MPSFileError, match="got nothing there"):
        network(text)
    text.write_text("not a model")
    with pytest.raises(MPSFileError, match="is no ONNX model"):
        network(text)
    path = outside(tmp_path)
    (tmp_path / "outside.bin").unlink()
    with pytest.raises(MPSFileError, match=r"outside.bin must be there: it holds tensor"):
        network(path)
    with pytest.raises(MPSArgumentError, match=r"or the path of an \.onnx file"):
        NetworkShape(8, 8, 3, 2, "resnet1000")
