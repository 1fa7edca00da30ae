"""Where images come from: the bundled digits, and telling one kind of folder from another."""

import os
import sys

import numpy as np
import pytest

from openmps.errors import MPSArgumentError, MPSError, MPSFileError
from openmps.formats import load_safetensors
from openmps.formats.paths import require_file, require_folder
from openmps.training.data import has_class_folders, load_dataset, load_digits_dataset
from openmps.training.idx import load_idx
from openmps.training.image_folder import load_image, load_image_folder


def test_digits_are_scikit_learns_scaled_to_bytes():
    datasets = pytest.importorskip("sklearn.datasets")
    dataset = load_digits_dataset()
    bunch = datasets.load_digits()
    assert dataset.images.shape == (1797, 8, 8, 1)
    assert dataset.class_names == tuple("0123456789")
    assert dataset.labels.tolist() == bunch.target.tolist()
    np.testing.assert_array_equal(np.rint(dataset.images[..., 0] * (16 / 255)), bunch.images)
    assert (dataset.images.min(), dataset.images.max()) == (0, 255)


def test_where_scikit_learn_has_another_file_its_reader_is_asked(monkeypatch):
    pytest.importorskip("sklearn.datasets")
    read = load_digits_dataset()
    monkeypatch.setattr("openmps.training.data.find_spec", lambda name: None)
    asked = load_digits_dataset()
    assert (asked.images.tobytes(), asked.labels.tobytes()) == (read.images.tobytes(), read.labels.tobytes())


def test_the_default_is_the_digits_with_a_fifth_of_each_held_out():
    training, test = load_dataset(seed=4)
    assert len(training) + len(test) == 1797
    for label in range(10):
        share = np.sum(test.labels == label) / (np.sum(test.labels == label) + np.sum(training.labels == label))
        assert share == pytest.approx(0.2, abs=0.01)


def test_folders_of_neither_kind_say_what_they_hold(tmp_path):
    with pytest.raises(MPSFileError, match=r"MNIST-style files .* got an empty folder"):
        load_dataset(tmp_path)
    for name in "abcdefg":
        (tmp_path / f"{name}.csv").write_bytes(b"1")
    with pytest.raises(MPSFileError, match=r"got a.csv, b.csv, c.csv, d.csv, e.csv, …"):
        load_dataset(tmp_path)
    with pytest.raises(MPSFileError, match="must be a folder, got a file"):
        load_dataset(tmp_path / "a.csv")
    with pytest.raises(MPSFileError, match="must be a folder, got nothing there"):
        load_dataset(str(tmp_path / "none"))


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MPSError, match=r"needs scikit-learn.*pip install '\.\[train\]'"):
        load_dataset()


@pytest.mark.parametrize("options", [{"size": (9, 8)}, {"channels": 3}, {"skip_broken": True}])
def test_options_that_change_nothing_are_refused(options):
    (name,) = options
    with pytest.raises(MPSArgumentError, match=rf"load_dataset: {name} must .* Leave it out: it is for class folders"):
        load_dataset(**options)
    assert len(load_dataset(size=(8, 8), channels=1).training) > 1000


@pytest.mark.parametrize("read", [lambda path: require_file(path, "x"), lambda path: require_folder(path, "x")])
def test_no_permission_is_something_else_than_nothing_there(tmp_path, monkeypatch, read):
    def forbidden(path, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("openmps.formats.paths.os.stat", forbidden)
    with pytest.raises(MPSFileError, match="could not be read, got Permission denied"):
        read(tmp_path / "a")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"")
    monkeypatch.setattr("openmps.formats.paths.os.access", lambda path, mode: False)
    for read in (load_image, load_safetensors):
        with pytest.raises(MPSFileError, match=r"a\.png could not be read, got Permission denied"):
            read(path)


@pytest.fixture
def forbidden(monkeypatch):
    """Has the system refuse to say anything of the files with some text in their path."""

    def forbid(text):
        stat = os.stat

        def refuse(path, **options):
            if text in str(path):
                raise PermissionError(13, "Permission denied")
            return stat(path, **options)

        monkeypatch.setattr("openmps.formats.paths.os.stat", refuse)

    return forbid


def test_a_folder_that_nothing_may_be_looked_at_in(tmp_path, forbidden):
    """Its names may be listed: whether they are files or folders, the system does not say."""
    for name in ("train-images-idx3-ubyte", "cats"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"")
    forbidden("ubyte")
    for read in (load_dataset, load_idx, has_class_folders):
        with pytest.raises(MPSFileError, match=r"idx3-ubyte could not be read, got Permission denied$"):
            read(tmp_path / "train-images-idx3-ubyte")
    forbidden("cats/cats")
    with pytest.raises(MPSFileError, match=r"cats could not be read, got Permission denied$"):
        load_image_folder(tmp_path / "cats")


def test_an_image_that_may_not_be_read_is_not_skipped_as_broken(tmp_path, forbidden):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("L", (2, 2)).save(tmp_path / name / f"{number}.png")
    assert len(load_image_folder(tmp_path, skip_broken=True)) == 4
    forbidden("a/1.png")
    with pytest.raises(MPSFileError, match=r"1\.png could not be read, got Permission denied$"):
        load_image_folder(tmp_path, skip_broken=True)
