"""Weight files: what is written comes back, and nothing damaged or hostile gets in."""

import hashlib
import json
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.formats import weights

ARRAYS = {
    "conv2.weights": np.arange(48, dtype=np.float32).reshape(4, 2, 3, 2),
    "conv2.biases": np.array([0.5, -1.0, np.inf, np.nan], dtype=np.float32),
    "conv1.weights": np.full((2, 1, 1, 3), 1 / 3, dtype=np.float32),
}
SHAPES = {name: array.shape for name, array in ARRAYS.items()}


def metadata(layers, version=1, layout="OHWI", **more):
    return {"openmps.weights": json.dumps({"version": version, "layout": layout, "layers": layers, **more})}


def raw_safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


# --- raw files -----------------------------------------------------------------------------------------------------


def test_dat_is_little_endian_float32_in_c_order(tmp_path):
    array = np.array([[1.0, -2.5], [np.pi, 1e-40]], dtype=np.float64)
    weights.save_dat(tmp_path / "a.dat", array.T)
    assert (tmp_path / "a.dat").read_bytes() == struct.pack("<4f", 1.0, np.pi, -2.5, 1e-40)
    np.testing.assert_array_equal(weights.load_dat(tmp_path / "a.dat", (2, 2)), array.T.astype(np.float32))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f4").reshape(1, 2, 1, 3),
        np.arange(6, dtype=np.float16).reshape(1, 2, 1, 3),
        np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)[:, :, ::2],
        torch.arange(6).reshape(1, 2, 1, 3).to(torch.bfloat16),
        torch.arange(6).float().reshape(1, 3, 2, 1).permute(0, 2, 3, 1),
        torch.arange(6).float().reshape(1, 2, 1, 3).requires_grad_(),
    ],
    ids=["big-endian", "float16", "strided", "bfloat16", "permuted", "parameter"],
)
def test_dat_and_safetensors_take_every_floating_array(tmp_path, array):
    plain = array.detach().float().numpy() if isinstance(array, torch.Tensor) else array.astype(np.float32)
    weights.save_dat(tmp_path / "a.dat", array)
    weights.save_safetensors(tmp_path / "a.safetensors", {"a.weights": array})
    found = weights.load_dat(tmp_path / "a.dat", plain.shape)
    np.testing.assert_array_equal(found, plain)
    assert found.flags.writeable
    assert found.dtype == np.float32
    np.testing.assert_array_equal(weights.load_safetensors(tmp_path / "a.safetensors")["a.weights"], plain)


@pytest.mark.parametrize("change", [-1, -4, 1, 4, -24])
def test_dat_of_another_length_is_refused_with_both_lengths(tmp_path, change):
    path = tmp_path / "conv1_weights.dat"
    path.write_bytes(bytes(24 + change))
    with pytest.raises(MPSFileError) as caught:
        weights.load_dat(path, (1, 2, 1, 3))
    message = str(caught.value)
    assert str(path) in message
    assert "must hold 24 bytes, float32 of shape (1, 2, 1, 3)" in message
    assert f"got {24 + change} bytes" in message


def test_dat_of_half_the_length_hints_at_float16(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes(12))
    with pytest.raises(MPSFileError, match="may hold float16"):
        weights.load_dat(tmp_path / "a.dat", (6,))


def test_dat_of_a_huge_expected_shape_costs_no_memory(tmp_path):
    (tmp_path / "a.dat").write_bytes(bytes(16))
    tracemalloc.start()
    with pytest.raises(MPSFileError, match="got 16 bytes"):
        weights.load_dat(tmp_path / "a.dat", (1 << 20, 1 << 20, 1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_dat_missing_folder_or_shape(tmp_path):
    with pytest.raises(MPSFileError, match="must be a file, got nothing there"):
        weights.load_dat(tmp_path / "none.dat", (1,))
    with pytest.raises(MPSFileError, match="must be a file, got a folder"):
        weights.load_dat(tmp_path, (1,))
    for shape in ((), (0,), (-1, 2), (True,)):
        with pytest.raises(MPSArgumentError, match="one or more positive lengths"):
            weights.load_dat(tmp_path / "none.dat", shape)


def test_integers_objects_and_overflow_are_refused(tmp_path):
    path = tmp_path / "a.dat"
    with pytest.raises(MPSTypeError, match="must hold floating-point numbers, got int64"):
        weights.save_dat(path, np.arange(3))
    with pytest.raises(MPSTypeError, match="NumPy array or a torch tensor, got list"):
        weights.save_dat(path, [1.0])
    with pytest.raises(MPSArgumentError, match=r"must fit float32 \(up to 3.4e38\), got a magnitude of 1e\+39"):
        weights.save_dat(path, np.array([1.0, -1e39]))
    weights.save_dat(path, np.array([np.inf, np.nan]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.dat"]


def test_dat_files_of_a_network(tmp_path):
    paths = weights.save_dat_files(tmp_path, ARRAYS)
    assert [path.name for path in paths] == ["conv2_weights.dat", "conv2_biases.dat", "conv1_weights.dat"]
    found = weights.load_dat_files(tmp_path, SHAPES)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    (tmp_path / "conv2_biases.dat").unlink()
    with pytest.raises(MPSFileError, match=r"conv2_biases\.dat must be a file, got nothing there"):
        weights.load_dat_files(tmp_path, SHAPES)


@in_one_test
@pytest.mark.parametrize("label", ["../evil", "a/b", "a\\b", "C:x", ".hidden", "a\0b", "a\nb", 'a"b'])
def test_labels_that_leave_the_folder_are_refused(tmp_path, label):
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(MPSArgumentError, match="must be usable as a file name"):
        weights.save_dat_files(inner, {"good.weights": np.ones(1), f"{label}.weights": np.ones(1)})
    assert list(tmp_path.rglob("*.dat")) == []


@pytest.mark.parametrize("pair", [("a_b.c", "a.b_c"), ("Conv.weights", "conv.weights")])
def test_arrays_that_would_share_a_file_are_refused(tmp_path, pair):
    with pytest.raises(MPSArgumentError, match="must not share the file"):
        weights.save_dat_files(tmp_path, dict.fromkeys(pair, np.ones(1)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["weights", ".weights", "conv1.", ""])
def test_array_names_need_label_and_part(tmp_path, name):
    with pytest.raises(MPSArgumentError, match="a layer's label, a dot and a part"):
        weights.save_safetensors(tmp_path / "a", {name: np.ones(1)})
    assert weights.split_name("block.1.weights") == ("block.1", "weights")


# --- safetensors ---------------------------------------------------------------------------------------------------


def test_safetensors_round_trip_keeps_values_and_layer_order(tmp_path):
    path = tmp_path / "weights.safetensors"
    weights.save_safetensors(path, {**ARRAYS, "conv1.biases": np.zeros(2), "conv2.alpha": np.ones(1)})
    for shapes in (None, {**SHAPES, "conv1.biases": (2,), "conv2.alpha": (1,)}):
        found = weights.load_safetensors(path, shapes)
        assert list(found) == ["conv2.weights", "conv2.biases", "conv2.alpha", "conv1.weights", "conv1.biases"]
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].flags.writeable


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    contents = set()
    for attempt in range(10):
        weights.save_safetensors(tmp_path / str(attempt), ARRAYS)
        contents.add((tmp_path / str(attempt)).read_bytes())
    assert len(contents) == 1


def test_the_file_is_plain_safetensors_with_metadata(tmp_path):
    weights.save_safetensors(tmp_path / "a", ARRAYS)
    content = (tmp_path / "a").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["openmps.weights"])
    digest = hashlib.sha256(b'["conv2", "conv1"]')
    for name in sorted(ARRAYS):
        values = np.ascontiguousarray(ARRAYS[name], "<f4")
        digest.update(f'\0"{name}"\0{values.shape}\0'.encode() + values.tobytes())
    assert facts == {"version": 1, "layout": "OHWI", "layers": ["conv2", "conv1"], "sha256": digest.hexdigest()}
    start, end = header["conv1.weights"]["data_offsets"]
    assert content[8 + length :][start:end] == ARRAYS["conv1.weights"].tobytes()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({**SHAPES, "conv3.weights": (1,)}, "'conv3.weights' is missing"),
        ({k: v for k, v in SHAPES.items() if k != "conv2.biases"}, "'conv2.biases' is not expected"),
        ({**SHAPES, "conv2.biases": (5,)}, "array 'conv2.biases' must have shape (5,), got (4,)"),
        (
            {**SHAPES, "conv2.weights": (4, 3, 2, 2)},
            "array 'conv2.weights' must have shape (4, 3, 2, 2), got (4, 2, 3, 2)",
        ),
    ],
    ids=["missing", "surplus", "length", "order"],
)
def test_another_networks_file_is_refused_by_name(tmp_path, shapes, message):
    path = tmp_path / "weights.safetensors"
    weights.save_safetensors(path, ARRAYS)
    with pytest.raises(MPSFileError) as caught:
        weights.load_safetensors(path, shapes)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8])
def test_another_number_format_is_refused(tmp_path, dtype):
    path = tmp_path / "a"
    path.write_bytes(
        save({"a.weights": np.ones(2, dtype=np.float32), "a.biases": np.ones(2, dtype=dtype)}, metadata(["a"]))
    )
    with pytest.raises(MPSFileError, match=r"array 'a.biases' must be float32 \(F32\), got [FIU]"):
        weights.load_safetensors(path)


@in_one_test
@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "without it the order of the weights is not known"),
        ({"format": "pt"}, "without it the order"),
        ({"openmps.weights": "{"}, "must have JSON as metadata"),
        ({"openmps.weights": "[" * 100_000}, "must have JSON as metadata"),
        ({"openmps.weights": "[1]"}, "must have version 1 and layout OHWI"),
        (metadata(["a"], version=2), "got version 2, layout 'OHWI'"),
        (metadata(["a"], layout="OIHW"), "got version 1, layout 'OIHW'"),
        (metadata(["a"], sha257="0"), "must have no metadata but layers, layout, sha256, version, got ['sha257']"),
        (metadata("a"), "must list the labels of its layers"),
        (metadata([1]), "must list the labels of its layers"),
        (metadata(["a", "b"]), "'b' without an array"),
        (metadata([]), "arrays of 'a', which they do not list"),
    ],
)
def test_metadata_are_checked(tmp_path, facts, message):
    path = tmp_path / "weights"
    path.write_bytes(save({"a.weights": np.ones(2, dtype=np.float32)}, facts))
    with pytest.raises(MPSFileError) as caught:
        weights.load_safetensors(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_changed_number_or_order_is_seen(tmp_path):
    path = tmp_path / "w.safetensors"
    weights.save_safetensors(path, ARRAYS)
    content = path.read_bytes()
    for changed in (
        content[:-1] + bytes([content[-1] ^ 1]),
        content.replace(b'[\\"conv2\\", \\"conv1\\"]', b'[\\"conv1\\", \\"conv2\\"]'),
    ):
        assert changed != content
        path.write_bytes(changed)
        with pytest.raises(MPSFileError, match="must hold what was saved, got another checksum"):
            weights.load_safetensors(path)


@pytest.mark.parametrize("name", ["weights", ".weights", "a."])
def test_names_without_a_layer_are_refused(tmp_path, name):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save({name: np.ones(2, dtype=np.float32)}, metadata([name.rpartition(".")[0]])))
    with pytest.raises(MPSFileError, match="array name must be a layer's label, a dot and a part"):
        weights.load_safetensors(path)


def test_an_error_is_of_bounded_length(tmp_path):
    path = tmp_path / "w.safetensors"
    name = "x" * 100_000 + ".weights"
    path.write_bytes(save({name: np.ones(2, dtype=np.int32)}, metadata([name.rpartition(".")[0]])))
    with pytest.raises(MPSFileError) as caught:
        weights.load_safetensors(path)
    assert len(str(caught.value)) < 4000


def test_a_file_without_a_checksum_is_read(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save({"a.weights": np.ones(2, dtype=np.float32)}, metadata(["a"])))
    assert weights.load_safetensors(path)["a.weights"].tolist() == [1.0, 1.0]


HEAD = {"__metadata__": metadata(["a"])}


@in_one_test
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        bytes(8),
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack("<Q", 6) + b"[1, 2]",
        b"\x80\x04\x95" + b"cos\nsystem\n(S'false'\ntR." * 4,
        raw_safetensors({**HEAD, "a.weights": entry([1 << 40], 0, 1 << 42)}, bytes(64)),
        raw_safetensors({**HEAD, "a.weights": entry([4], 0, 8)}, bytes(8)),
        raw_safetensors({**HEAD, "a.weights": entry([2], 8, 16)}, bytes(16)),
        raw_safetensors({**HEAD, "a.weights": entry([2], 0, 8), "a.biases": entry([2], 4, 12)}, bytes(12)),
        raw_safetensors({**HEAD, "a.weights": entry([2], 0, 8)}, bytes(9)),
        raw_safetensors({**HEAD, "a.weights": entry([1 << 62, 1 << 62], 0, 8)}, bytes(8)),
        raw_safetensors({**HEAD, "a.weights": entry([-1], 0, 8)}, bytes(8)),
        raw_safetensors({**HEAD, "a.weights": entry([2], 0, 8, "X9")}, bytes(8)),
    ],
    ids=range(16),
)
def test_damaged_and_hostile_files_give_a_named_error_and_no_memory(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(MPSFileError) as caught:
        weights.load_safetensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "must be a whole safetensors file" in str(caught.value)
    assert str(path) in str(caught.value)
    assert peak < 1 << 20


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    weights.save_safetensors(path, ARRAYS)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(MPSFileError, match=r"weights\.safetensors"):
            weights.load_safetensors(path, SHAPES)


def test_every_changed_header_byte_is_refused_or_changes_no_number(tmp_path):
    path = tmp_path / "weights.safetensors"
    weights.save_safetensors(path, ARRAYS)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    for position in range(8 + length):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        try:
            found = weights.load_safetensors(path, SHAPES)
        except MPSFileError:
            continue
        for name, array in ARRAYS.items():  # a padding space or the like
            np.testing.assert_array_equal(found[name], array)


def test_a_shape_without_elements_but_with_a_huge_axis(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(raw_safetensors({**HEAD, "a.weights": entry([1 << 62, 0], 0, 0)}))
    with pytest.raises(MPSFileError, match=r"weights\.safetensors"):
        weights.load_safetensors(path, {"a.weights": (2, 2)})


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(MPSFileError, match="must be a file, got nothing there"):
        weights.load_safetensors(tmp_path / "none")
    with pytest.raises(MPSFileError, match="must be a file, got a folder or device"):
        weights.load_safetensors(tmp_path)
