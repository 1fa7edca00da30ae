"""Keras' files: read without Keras and without h5py, which write them here."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps.errors import MPSFileError, MPSWeightsError
from openmps.formats import WeightLayer, import_weights, load_tensors

h5py = pytest.importorskip("h5py", reason="h5py, which writes the files, is not installed")
Array = np.ndarray
CONV = mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4)
DENSE = mps.MPSCNNConvolutionDescriptor(2, 2, 4, 5)


def _numbers(rng: np.random.Generator) -> dict[str, Array]:
    """By the names of the network: Keras' orders of axes."""
    shapes = {"conv": [(3, 3, 2, 4), (4,)], "norm": [(4,)] * 4, "fc": [(16, 5), (5,)]}
    return {
        f"{layer}/{place}": rng.normal(size=shape).astype(np.float32)
        for layer, each in shapes.items()
        for place, shape in enumerate(each)
    }


def _bytes(arrays: Mapping[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w", **options) as made:
        for name, array in arrays.items():
            made.create_dataset(name, data=array)
            made[name].parent.attrs["of"] = "a layer"
        made.attrs["layer_names"] = [b"x" * 200] * 40
    return file.getvalue()


LAYERS = {
    "conv": CONV,
    "norm": WeightLayer.batch_normalization("norm", 4),
    "fc": WeightLayer.fully_connected("fc", DENSE),
}
WORDS = {"conv": ("kernel:0", "bias:0"), "norm": ("gamma:0", "beta:0", "moving_mean:0", "moving_variance:0")}
WORDS["fc"] = WORDS["conv"]


@pytest.mark.parametrize("kind", ["keras 2", "keras 2, weights", "keras 3", "keras 3, .keras"])
def test_a_network_takes_what_keras_saved(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    given, names, prefix = _numbers(rng), dict[str, str](), ""
    suffix = ".keras" if kind.endswith(".keras") else ".h5"
    path = tmp_path / f"model{suffix}"
    if kind.startswith("keras 2"):
        prefix = "" if kind.endswith("weights") else "model_weights/"
        file = {}
        for name, array in given.items():
            layer, place = name.split("/")
            file[f"{prefix}{layer}/{layer}/{WORDS[layer][int(place)]}"] = array
        path.write_bytes(_bytes(file))
    else:
        names = {"conv": "layers/conv2d", "norm": "layers/batch_normalization", "fc": "layers/dense"}
        data = _bytes({f"{names[name.split('/')[0]]}/vars/{name.split('/')[1]}": each for name, each in given.items()})
        if suffix == ".keras":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("config.json", '{"class_name": "os.system"}')
                archive.writestr("model.weights.h5", data)
        else:
            path.write_bytes(data)
    mapping = import_weights(load_tensors(path), LAYERS, "keras", names=names, prefix=prefix)
    arrays = mapping.arrays
    np.testing.assert_array_equal(arrays["conv.weights"], given["conv/0"].transpose(3, 0, 1, 2))
    np.testing.assert_array_equal(arrays["conv.biases"], given["conv/1"])
    np.testing.assert_array_equal(arrays["fc.weights"].reshape(5, 16), given["fc/0"].T)
    for place, part in enumerate(("gamma", "beta", "mean", "variance")):
        np.testing.assert_array_equal(arrays[f"norm.{part}"], given[f"norm/{place}"])


def test_a_normalization_without_scales_is_not_mistaken(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(_bytes({f"norm/vars/{place}": rng.normal(size=4).astype(np.float32) for place in range(3)}))
    with pytest.raises(MPSWeightsError, match="variance"):
        import_weights(load_tensors(path), {"norm": WeightLayer.batch_normalization("norm", 4)}, "keras")


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8", "u1", "<i4", ">i8"])
def test_numbers_keep_their_format(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    path, array = tmp_path / "model.hdf5", (100 * rng.normal(size=(2, 3, 4))).astype(kind)
    many = {f"group{place // 7}/{place}": (array + array.dtype.type(place)).astype(kind) for place in range(60)}
    path.write_bytes(_bytes({**many, "one": array.ravel()[0]}))
    found = load_tensors(path)
    assert set(found) == {*many, "one"}
    for name, each in many.items():
        assert found[name].dtype == np.dtype(kind)
        np.testing.assert_array_equal(found[name], each)


def _compressed() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_dataset("a", data=np.zeros((64, 64), np.float32), compression="gzip")
    return file.getvalue()


def _linked(link: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["a"] = link
    return file.getvalue()


def _circle() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_group("a")["b"] = made["/"]
    return file.getvalue()


REFUSED = {
    "text": (lambda: b"no HDF5", "must begin as an HDF5 file"),
    "nothing in it": (lambda: _bytes({}), "must hold weights"),
    "compressed": (_compressed, "must lie in one piece"),
    "newer format": (lambda: _bytes({"a": np.ones(3)}, libver="latest"), "format that h5py writes by default"),
    "order kept": (lambda: _bytes({"a": np.ones(3)}, track_order=True), "format that h5py writes by default"),
    "soft link": (lambda: _linked(h5py.SoftLink("/etc")), "must be in the file"),
    "other file": (lambda: _linked(h5py.ExternalLink("/etc/passwd", "/")), "must be in the file|by default"),
    "strings": (lambda: _bytes({"a": "text"}), "must hold integers or floats"),
    "complex numbers": (lambda: _bytes({"a": np.ones(3, np.complex64)}), "must hold integers or floats"),
    "no numbers": (lambda: _bytes({"a": np.ones((0, 3))}), "must hold numbers|must be whole"),
    "circle": (_circle, "must have each object once"),
    "cut off": (lambda: _bytes({"a": np.ones(1000)})[:2000], "must be whole|beyond its end"),
}


@in_one_test
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    make, words = REFUSED[name]
    path = tmp_path / "model.h5"
    path.write_bytes(make())
    with pytest.raises(MPSFileError, match=words) as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)


def test_a_keras_file_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(MPSFileError, match=r"must hold model\.weights\.h5, got config\.json"):
        load_tensors(path)


@pytest.mark.slow
def test_damaged_files_give_named_errors_and_take_little_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    whole = bytearray(_bytes({f"layers/{place}/vars/0": rng.normal(size=(3, 3, 2, 4)) for place in range(12)}))
    path, refused = tmp_path / "model.h5", 0
    tracemalloc.start()
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.choice([0, 1, 0x7F, 0xFF, rng.integers(256)])
        path.write_bytes(data[: rng.integers(1, len(data))] if rng.random() < 0.1 else data)
        try:
            load_tensors(path)
        except MPSFileError:
            refused += 1
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert refused > 20
