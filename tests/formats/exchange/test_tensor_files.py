"""Files of named arrays: what NumPy, safetensors and PyTorch wrote comes back, and nothing hostile gets in."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from in_one_test import in_one_test
from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats import load_tensors, save_safetensors, save_tensors

ARRAYS = {
    "conv1.weight": np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype(np.float32),
    "conv1/bias": np.array([0.5, -np.inf, np.nan, -0.0], np.float16),
    "file": np.array([[1.0, 1e300]]),
    "counter": np.array(3, np.int64),
    "flags": np.array([True, False]),
}


def _equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".pth"])
def test_every_bit_comes_back(suffix, tmp_path):
    path = tmp_path / f"w{suffix}"
    save_tensors(path, ARRAYS)
    _equal(load_tensors(path), ARRAYS)
    first = path.read_bytes()
    save_tensors(path, load_tensors(path))
    assert path.read_bytes() == first


def test_others_read_what_is_written(tmp_path):
    for suffix in (".npz", ".safetensors", ".pt"):
        save_tensors(tmp_path / f"w{suffix}", ARRAYS)
    with np.load(tmp_path / "w.npz", allow_pickle=False) as found:
        _equal(dict(found), ARRAYS)
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    _equal({name: tensor.numpy() for name, tensor in found.items()}, ARRAYS)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes(save, tmp_path):
    arrays = {**ARRAYS, "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big": np.arange(3, dtype=">f4")}
    save(tmp_path / "w.npz", **{name: array for name, array in arrays.items() if name != "file"})
    del arrays["file"]
    found = load_tensors(tmp_path / "w.npz")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("legacy", [False, True])
def test_what_pytorch_writes(legacy, tmp_path):
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    whole = torch.arange(24.0).reshape(4, 6)
    tensors: dict[str, Any] = {
        **module.state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "brain": torch.tensor([1.5, -2.25, 3e38]).bfloat16(),
        "column": whole[:, 2],
        "turned": whole.t(),
        "last": torch.rand(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "tied": whole,
        "double": torch.tensor([1e300], dtype=torch.float64),
    }
    path = tmp_path / "w.pt"
    torch.save(OrderedDict(tensors), path, _use_new_zipfile_serialization=not legacy)
    read = torch.load(path, weights_only=True)
    found = load_tensors(path)
    assert found.keys() == tensors.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(found[name], (tensor.float() if name == "brain" else tensor).detach().numpy())


def test_a_checkpoint_with_a_state_dict_in_it(tmp_path):
    state = {"epoch": 3, "rate": 0.1, "model": torch.nn.Linear(2, 1).state_dict(), "note": "x", "list": [1, 2]}
    torch.save(state, tmp_path / "w.ckpt")
    assert list(load_tensors(tmp_path / "w.ckpt")) == ["model.weight", "model.bias"]


def test_safetensors_of_pytorch_and_our_own(tmp_path):
    save_file({"a": torch.ones(2).bfloat16(), "b": torch.ones(2).half()}, tmp_path / "a.safetensors", {"format": "pt"})
    found = load_tensors(tmp_path / "a.safetensors")
    assert [str(found[name].dtype) for name in "ab"] == ["float32", "float16"]
    path = tmp_path / "own.safetensors"
    save_safetensors(path, {"conv.weights": np.ones((1, 1, 1, 1))})
    assert load_tensors(path)["conv.weights"].shape == (1, 1, 1, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(MPSFileError, match="another checksum"):
        load_tensors(path)


# --- hostile ----------------------------------------------------------------------------------------------------------


def _npy(header: str, body: bytes = bytes(16)) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + body


def _zip(path: Any, members: Any, method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)


GOOD = _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }")


@in_one_test
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"), "pickled objects are never read"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"), "must hold 16 bytes"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -2), }"), "pickled objects are never read"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", b""), "must hold numbers"),
        (_npy("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }"), "must hold booleans, integers or floats"),
        (_npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }"), "of up to 64 bits, got <f16"),
        (_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }"), "pickled objects"),
        (_npy("{'descr': __import__('os').system('true'), 'shape': (4,), }"), "pickled objects"),
        (
            _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 40 + ") }"),
            "must have its header whole|must hold",
        ),
        (GOOD[:60], "must have its header whole"),
        (b"junk", "must be of NumPy's format"),
    ],
)
def test_npy_headers_that_lie(content, message, tmp_path):
    _zip(tmp_path / "w.npz", [("a.npy", content)])
    with pytest.raises(MPSFileError, match=message):
        load_tensors(tmp_path / "w.npz")


def test_archives_that_lie(tmp_path):
    path = tmp_path / "w.npz"
    _zip(path, [("a.npy", bytes(50 << 20))], zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    with pytest.raises(MPSFileError, match="must unpack to at most 16 times its .* bytes, got 52,428,800 bytes"):
        load_tensors(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    _zip(path, [("a.npy", GOOD)], zipfile.ZIP_LZMA)
    with pytest.raises(MPSFileError, match="packed in another way than deflated"):
        load_tensors(path)
    _zip(path, [("../a.npy", GOOD), ("b.txt", b"x")])
    with pytest.raises(MPSFileError, match=r"must hold arrays, \.npy, alone, got 'b\.txt'"):
        load_tensors(path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        _zip(path, [("a.npy", GOOD), ("a.npy", GOOD)])
    with pytest.raises(MPSFileError, match="a name that is there twice"):
        load_tensors(path)
    path.write_bytes(b"PK\5\6" + bytes(8) + struct.pack("<II", 1 << 30, 0) + bytes(2))
    with pytest.raises(MPSFileError, match="a list of its members of 1,073,741,824 bytes"):
        load_tensors(path)
    path.write_bytes(b"PK no archive")
    with pytest.raises(MPSFileError, match="must be a whole ZIP archive, got no list of its members"):
        load_tensors(path)
    _zip(path, [("a.npy", GOOD)])
    data = path.read_bytes()
    path.write_bytes(data.replace(GOOD, GOOD[:-1] + b"\1"))
    with pytest.raises(MPSFileError, match="Bad CRC-32"):
        load_tensors(path)


def test_names_of_members_lead_nowhere(tmp_path):
    _zip(tmp_path / "w.npz", [("../../escaped.npy", GOOD)])
    assert list(load_tensors(tmp_path / "w.npz")) == ["../../escaped"]
    assert [each.name for each in tmp_path.iterdir()] == ["w.npz"]


class _Evil:
    def __reduce__(self) -> Any:
        return (eval, ("1 + 1",))


def _pickled(tmp_path: Any, change: Any) -> Any:
    """A state dict whose pickle was changed."""
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(2, 3), "b": torch.ones(2, 3)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    members[name] = change(members[name])
    _zip(path, members.items())
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"),
            "does not lie in its storage",
        ),
        (lambda data: data.replace(b"K\x02K\x03\x86", b"M\x00\x04K\x03\x86"), r"size \(1024, 3\) does not lie"),
        (lambda data: data.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x03\x86"), "has sizes that are none"),
        (lambda data: data.replace(b"FloatStorage", b"DoubleStorage"), "has 24 bytes, not 6 numbers of 8"),
        (
            lambda data: data.replace(b"FloatStorage", b"ComplexFloatStorage"),
            "torch.ComplexFloatStorage, which are no weights",
        ),
        (
            lambda data: data.replace(b"_rebuild_tensor_v2", b"_rebuild_qtensor"),
            "torch._utils._rebuild_qtensor, which is no part",
        ),
        (lambda data: data.replace(b"torch._utils\n", b"os\n"), r"names os\._rebuild_tensor_v2"),
        (lambda data: b"\x80\x02" + b"}" * 600_000, "more than 500,000 instructions"),
        (lambda data: b"\x80\x02" + b"j\xff\xff\xff\x7f.", "recalls entry 2147483647"),
        (lambda data: b"\x80\x02" + b"\x8a\xff" + bytes(255) + b".", "an integer of 255 bytes"),
        (lambda data: b"\x80\x02K\x01.", "it holds a int in the place of names and tensors"),
        (lambda data: b"\x80\x02}.", "it holds no tensors"),
        (lambda data: b"\x80\x63}.", "it has version 99"),
        (lambda data: data[:40], "it ends too early"),
        (lambda data: b"\x80\x02\x81.", "which no state dict has"),
    ],
)
def test_pickles_that_lie(change, message, tmp_path):
    path = _pickled(tmp_path, change)
    with pytest.raises(MPSFileError, match=f"must be a state dict of PyTorch, got .*{message}"):
        load_tensors(path)


def test_nothing_in_a_pickle_is_run(tmp_path):
    for value in (_Evil(), {"a": _Evil()}, torch.nn.Linear(1, 1)):
        torch.save(value, tmp_path / "w.pt")
        with pytest.raises(MPSFileError, match=r"Save module\.state_dict\(\) with torch\.save"):
            load_tensors(tmp_path / "w.pt")
    _zip(tmp_path / "w.pt", [("m/data.pkl", b"\x80\x02}."), ("m/constants.pkl", b"\x80\x02).")])
    with pytest.raises(MPSFileError, match="it is a TorchScript module, which holds a program"):
        load_tensors(tmp_path / "w.pt")


def test_numbers_that_are_named_too_often(tmp_path):
    one = torch.ones(100_000)
    torch.save({f"{place}": one for place in range(100)}, tmp_path / "w.pt")
    with pytest.raises(MPSFileError, match="it names the same numbers too often"):
        load_tensors(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w.h5", "must begin as an HDF5 file"),
        ("w.keras", "must be a whole ZIP archive"),
        ("w.dat", "Raw .dat files are read with the network's shapes"),
        ("w.bin", "must be a state dict of PyTorch"),
        ("w.pt", "must be a state dict of PyTorch"),
        ("w.safetensors", "must be a whole safetensors file"),
        ("w.npz", "must be a whole ZIP archive"),
    ],
)
def test_a_text_file_of_any_name(name, message, tmp_path):
    (tmp_path / name).write_text("hello\n" * 20)
    with pytest.raises(MPSFileError, match=message):
        load_tensors(tmp_path / name)
    with pytest.raises(MPSFileError, match="must be a file, got nothing there"):
        load_tensors(tmp_path / "gone" / name)


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(MPSFileError, match=r"must end in one of \.npz, \.safetensors, \.pt, \.pth, got '\.h5'"):
        save_tensors(tmp_path / "w.h5", ARRAYS)
    with pytest.raises(MPSTypeError, match="a must hold booleans, integers or floats"):
        save_tensors(tmp_path / "w.npz", {"a": np.ones(2, complex)})
    assert list(tmp_path.iterdir()) == []


def test_an_empty_safetensors_entry(tmp_path):
    save_file({"a": torch.ones(0)}, tmp_path / "a.safetensors")
    with pytest.raises(MPSFileError, match="tensor 'a' must hold numbers"):
        load_tensors(tmp_path / "a.safetensors")


def test_a_file_in_the_place_of_memory():
    with pytest.raises(MPSTypeError, match="path must be a path"):
        load_tensors(io.BytesIO())  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_long_file_that_does_not_begin_as_one_is_not_read(suffix, tmp_path):
    path = tmp_path / f"w{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a hole, which takes no disk
    tracemalloc.start()
    try:
        with pytest.raises(MPSFileError, match="something that does not begin as one"):
            load_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_tensor_that_is_the_negative_of_its_storage(tmp_path):
    torch.save({"w": torch.ones(2)._neg_view()}, tmp_path / "w.pt")
    with pytest.raises(MPSFileError, match="the negative or the conjugate of what is stored"):
        load_tensors(tmp_path / "w.pt")
