"""Raw files: float32 and float16, two files a layer and one, and what does not fit."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from openmps import MPSArgumentError, MPSCNNConvolutionDescriptor, MPSFileError, MPSWeightsError
from openmps.formats import WeightLayer, load_raw, save_raw

PARTS = ("gamma", "beta", "mean", "variance")
LAYERS = {
    "conv": MPSCNNConvolutionDescriptor(3, 2, 2, 4),
    "norm": WeightLayer.batch_normalization("norm", 3),
}
ARRAYS = {
    "conv.weights": np.arange(48, dtype=np.float32).reshape(4, 2, 3, 2) / 8,
    "conv.biases": np.array([0.5, -1, 65504, 2.0**-24], np.float32),
    **{f"norm.{part}": np.arange(3, dtype=np.float32) for part in PARTS},
}
TWO = ["conv_weights.dat", "conv_biases.dat", "norm_gamma.dat", "norm_beta.dat", "norm_mean.dat", "norm_variance.dat"]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("one_file", [False, True])
def test_every_bit_comes_back(half, one_file, tmp_path):
    files = save_raw(tmp_path, ARRAYS, half=half, one_file=one_file)
    assert [file.name for file in files] == (["conv.dat", "norm.dat"] if one_file else TWO)
    form = f"<48{'e' if half else 'f'}"
    assert files[0].read_bytes().startswith(struct.pack(form, *(each / 8 for each in range(48))))
    kind = np.float16 if half else np.float32
    found = load_raw(tmp_path, LAYERS).arrays
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].tobytes() == array.astype(kind).tobytes()
        assert (found[name].shape, found[name].dtype) == (array.shape, kind)
    again = tmp_path / "again"
    again.mkdir()
    for one, other in zip(files, save_raw(again, found, one_file=one_file), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_one_file_of_two_formats_has_the_wider_one(tmp_path):
    arrays = ARRAYS | {"conv.weights": ARRAYS["conv.weights"].astype(np.float16)}
    save_raw(tmp_path, arrays, one_file=True)
    found = load_raw(tmp_path, LAYERS).arrays
    assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


def test_bin_files_and_other_names(tmp_path):
    for file in save_raw(tmp_path, ARRAYS):
        file.rename(file.with_suffix(".bin"))
    assert list(load_raw(tmp_path, LAYERS).arrays) == list(ARRAYS)
    (tmp_path / "conv_weights.bin").rename(tmp_path / "conv1-W")
    (tmp_path / "conv_biases.bin").rename(tmp_path / "conv1-b")
    names = {"conv.weights": "conv1-W", "conv.biases": "conv1-b"}
    assert list(load_raw(tmp_path, LAYERS, names=names).arrays) == list(ARRAYS)
    data = ARRAYS["norm.gamma"].tobytes() * 4
    (tmp_path / "bn.raw").write_bytes(data)
    arrays = load_raw(tmp_path, LAYERS, names={**names, "norm": "bn.raw"}).arrays
    assert arrays["norm.variance"].tobytes() == data[:12]


def test_biases_that_a_descriptor_leaves_open(tmp_path):
    save_raw(tmp_path, {"conv.weights": ARRAYS["conv.weights"]}, one_file=True)
    assert list(load_raw(tmp_path, {"conv": LAYERS["conv"]}).arrays) == ["conv.weights"]
    one = {"conv": MPSCNNConvolutionDescriptor(1, 1, 1, 4)}
    (tmp_path / "conv.dat").write_bytes(bytes(16))  # 4 weights in float32, or with their biases in float16
    with pytest.raises(MPSWeightsError, match="must say what it is by its length, got 16 bytes, which two are"):
        load_raw(tmp_path, one)


def test_all_that_does_not_fit_is_listed(tmp_path):
    (tmp_path / "conv_weights.dat").write_bytes(bytes(100))
    (tmp_path / "conv_biases.dat").mkdir()
    with pytest.raises(MPSWeightsError) as caught:
        load_raw(tmp_path, {**LAYERS, "last": MPSCNNConvolutionDescriptor(1, 1, 1, 1)})
    assert [problem.replace(f"{tmp_path}", "…") for problem in caught.value.problems] == [
        "…/conv_weights.dat must hold 192 bytes (float32) or 96 (float16), got 100 bytes",
        "…/conv_biases.dat must be a file, got a folder or device",
        *(f"… must have norm_{part}.dat, or norm.dat for the whole layer, got neither" for part in PARTS),
        "… must have last_weights.dat, or last.dat for the whole layer, got neither",
    ]
    with pytest.raises(MPSFileError, match="must be a folder, got nothing there"):
        load_raw(tmp_path / "gone", LAYERS)


@pytest.mark.parametrize("file", ["../conv.dat", "/etc/passwd", "a/b", "..", "", "a\0b", "a\\b"])
def test_names_of_files_stay_in_the_folder(file, tmp_path):
    with pytest.raises(MPSArgumentError, match="names must give names of files in the folder"):
        load_raw(tmp_path, LAYERS, names={"conv": file})
    with pytest.raises(MPSArgumentError, match="names must name a layer of the network or an array, got 'cnov'"):
        load_raw(tmp_path, LAYERS, names={"cnov": "x"})


LABELS = ["/0/Conv", "../conv", "a:b", "a/b", "a_b", "A_B", ".hidden", "Conv@0", 'q"', "a b", "..", "a\n"]


@pytest.mark.parametrize("one_file", [False, True])
def test_labels_that_are_no_names_of_files(one_file, tmp_path, rng):
    inner = tmp_path / "inner"
    inner.mkdir()
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 2, 2)
    arrays = {f"{label}.weights": rng.random((2, 1, 1, 2), np.float32) for label in LABELS}
    files = save_raw(inner, arrays, one_file=one_file)
    assert len({file.name.casefold() for file in files}) == len(LABELS)
    assert sorted(tmp_path.rglob("*.dat")) == sorted(inner.iterdir())
    names = [file.name.removesuffix(".dat").removesuffix("_weights") for file in files]
    assert names[:5] == ["_0_Conv", "_._conv", "a_b-5", "a_b-4", "a_b-2"] and names[7] == "Conv_0"
    for labels in (LABELS, LABELS[::-1]):
        found = load_raw(inner, dict.fromkeys(labels, descriptor)).arrays
        assert {name: found[name].tobytes() for name in arrays} == {n: a.tobytes() for n, a in arrays.items()}
    some = {name: arrays[name] for name in ("a/b.weights", "a_b.weights")}
    other = tmp_path / "other"
    other.mkdir()
    save_raw(other, some, one_file=one_file)
    with pytest.raises(MPSWeightsError, match="a_b-3"):
        load_raw(other, dict.fromkeys(["a:b", "a/b", "a_b", "A_B"], descriptor))


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of Unix")
def test_links_to_what_is_no_file(tmp_path):
    (tmp_path / "conv.dat").symlink_to("/dev/zero")
    with pytest.raises(MPSWeightsError, match="must be a file, got a folder or device"):
        load_raw(tmp_path, LAYERS)


def test_float16_takes_what_it_can_hold(tmp_path):
    arrays = {"a.weights": np.array([1e5, -2, np.inf], np.float32), "b.weights": np.array([0.1, 1e-9], np.float32)}
    with pytest.raises(MPSWeightsError) as caught:
        save_raw(tmp_path, arrays, half=True)
    assert caught.value.problems == (
        "a.weights: 1 of 3 numbers are too large for float16, up to 100000",
        "b.weights: float16 rounds 2 of 2 numbers, by up to 2.44e-05",
    )
    with pytest.raises(MPSWeightsError, match="too large for float16") as caught:
        save_raw(tmp_path, arrays, half=True, allow_rounding=True)
    assert len(caught.value.problems) == 1
    assert list(tmp_path.iterdir()) == []
    save_raw(tmp_path, {"b.weights": arrays["b.weights"]}, half=True, allow_rounding=True)
    assert (tmp_path / "b_weights.dat").read_bytes() == struct.pack("<2e", 0.1, 0.0)
    with pytest.raises(MPSWeightsError, match="float32 rounds 1 of 1 numbers"):
        save_raw(tmp_path, {"b.weights": np.array([0.1])})
    for special in (np.nan, np.inf, -np.inf, -0.0):
        save_raw(tmp_path, {"c.weights": np.array([special], np.float32)}, half=True)


def test_no_older_file_goes_before_all_are_written(tmp_path, monkeypatch):
    save_raw(tmp_path, ARRAYS)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    from openmps.formats import atomic

    real, calls = atomic._read_back, []

    def fail(path, content):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(5, "it reads back otherwise")
        real(path, content)

    monkeypatch.setattr(atomic, "_read_back", fail)
    with pytest.raises(MPSFileError, match="could not be written, got it reads back otherwise"):
        save_raw(tmp_path, {name: array + 1 for name, array in ARRAYS.items()})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
