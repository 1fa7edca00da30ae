"""IDX files: what they hold comes back, and every kind of damage names the file and what was found."""

import gzip
import hashlib
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps.errors import MPSFileError
from openmps.training.data import load_dataset
from openmps.training.idx import load_idx, read_idx

MNIST = Path(__file__).parents[2].parent / "shared" / "data" / "mnist"
IMAGES = np.random.default_rng(0).integers(0, 256, (20, 4, 3)).astype(np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 3


def idx(array, magic=None):
    header = struct.pack(">I", 0x0800 + array.ndim) if magic is None else magic
    return header + b"".join(struct.pack(">I", length) for length in array.shape) + array.tobytes()


def write(folder, *, dot="-", packed=False, test=True):
    parts = {"train": (IMAGES, LABELS)} | ({"t10k": (IMAGES[:6], LABELS[:6])} if test else {})
    for part, (images, labels) in parts.items():
        for kind, code, array in (("images", "idx3", images), ("labels", "idx1", labels)):
            content = gzip.compress(idx(array)) if packed else idx(array)
            (folder / f"{part}-{kind}{dot}{code}-ubyte{'.gz' if packed else ''}").write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dot", ["-", "."])
def test_reads_all_spellings(tmp_path, dot, packed):
    write(tmp_path, dot=dot, packed=packed)
    training, test = load_idx(tmp_path)
    np.testing.assert_array_equal(training.images, IMAGES[..., None])
    np.testing.assert_array_equal(training.labels, LABELS)
    np.testing.assert_array_equal(test.images, IMAGES[:6, ..., None])
    assert training.class_names == test.class_names == ("0", "1", "2")
    assert training.images.flags.writeable
    same = load_dataset(tmp_path)
    np.testing.assert_array_equal(same.test.images, test.images)


def test_gzip_is_seen_from_the_content(tmp_path):
    write(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(gzip.compress(idx(IMAGES)))
    (tmp_path / "train-labels-idx1-ubyte").rename(tmp_path / "train-labels-idx1-ubyte.gz")
    np.testing.assert_array_equal(load_idx(tmp_path).training.images[..., 0], IMAGES)


def test_without_test_files_a_fifth_is_held_out(tmp_path):
    write(tmp_path, test=False)
    training, test = load_idx(tmp_path, seed=1)
    assert (len(training), len(test)) == (17, 3)
    assert sorted(set(test.labels.tolist())) == [0, 1, 2]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named(tmp_path, name):
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(MPSFileError) as caught:
        load_idx(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert name in str(caught.value)


CONTENT = idx(IMAGES)
PACKED = gzip.compress(CONTENT)
DAMAGE = {
    "empty": (b"", "header of 16 bytes, got 0 bytes"),
    "half a header": (CONTENT[:10], "header of 16 bytes, got 10 bytes"),
    "truncated": (CONTENT[:-1], r"must hold 240 bytes behind its header of \(20, 4, 3\), got a file of 255 bytes"),
    "too long": (CONTENT + b"x", r"must hold 240 bytes behind its header of \(20, 4, 3\), got more"),
    "labels for images": (idx(LABELS) + bytes(100), "must start with 00 00 08 03"),
    "float": (idx(IMAGES, struct.pack(">I", 0x0D03)), "must start with 00 00 08 03: .* got 00 00 0d 03"),
    "little-endian magic": (idx(IMAGES, struct.pack("<I", 0x0803)), "got 03 08 00 00"),
    "text": (b"<!DOCTYPE html><html>404 Not Found</html>", "must start with 00 00 08 03: .* got 3c 21 44 4f"),
    "oversized": (CONTENT[:4] + struct.pack(">3I", 2**32 - 1, 28, 28) + bytes(99), "got a file of 115 bytes"),
    "huge": (CONTENT[:4] + b"\xff" * 12 + bytes(99), "got a file of 115 bytes"),
    "no images": (
        CONTENT[:4] + struct.pack(">3I", 0, 28, 28),
        r"at least one byte of data, got a header of \(0, 28, 28\)",
    ),
    "no width": (CONTENT[:4] + struct.pack(">3I", 9, 28, 0), "at least one byte of data"),
    "gzip truncated": (PACKED[:-20], "must be a whole gzip file, got Compressed file ended"),
    "gzip without end": (PACKED[:-8], "must be a whole gzip file"),
    "gzip header only": (PACKED[:5], "must be a whole gzip file"),
    "gzip wrong checksum": (PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "must be a whole gzip file, got CRC check failed"),
    "gzip wrong length": (PACKED[:-4] + b"\0\0\0\0", "must be a whole gzip file, got Incorrect length"),
    "gzip damaged": (PACKED[:40] + b"\xff" * 40 + PACKED[80:], "must be a whole gzip file"),
    "gzip of no deflate stream": (PACKED[:10] + b"\x07" + PACKED[11:], "must be a whole gzip file, got Error -3"),
    "gzip and more": (PACKED + b"garbage", "must be a whole gzip file, got Not a gzipped file"),
    "gzip of less": (gzip.compress(CONTENT[:-7]), r"behind its header of \(20, 4, 3\), got 233 bytes"),
    "gzip of more": (gzip.compress(CONTENT + b"x"), r"behind its header of \(20, 4, 3\), got more"),
    "gzip of nothing": (gzip.compress(b""), "header of 16 bytes, got 0 bytes"),
    "gzip oversized": (gzip.compress(CONTENT[:4] + b"\xff" * 12 + bytes(99)), r"behind its header of \(4294967295, "),
}


@in_one_test
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_names_the_file_and_what_was_found(tmp_path, damage):
    content, message = DAMAGE[damage]
    write(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(MPSFileError, match=message) as caught:
        load_idx(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 4 << 20


def test_a_gzip_header_that_claims_what_compression_could_hold_costs_what_is_there(tmp_path):
    """One megabyte of noise could be sixty of zeros by its length, so it must be read to be refuted."""
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20).astype(np.uint8).tobytes()
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x0803, 60, 1000, 1000) + noise, 1))
    tracemalloc.start()
    with pytest.raises(MPSFileError, match=r"must hold 60000000 bytes .* got 1048576 bytes"):
        read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_little_that_unpacks_to_much_is_refused_unread(tmp_path):
    path, count = tmp_path / "x", 300
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x0803, count, 1000, 1000) + bytes(count * 10**6)))
    assert path.stat().st_size < count * 1100
    tracemalloc.start()
    with pytest.raises(MPSFileError, match=r"must hold 300000000 bytes .* Fetch it again, or unpack it if it is whole"):
        read_idx(path, 3)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert read_idx(path, 3).shape == (count, 1000, 1000)


def test_a_bomb_behind_a_small_header_is_not_unpacked(tmp_path):
    path = tmp_path / "x"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    content = packer.compress(struct.pack(">4I", 0x0803, 1, 2, 2))
    content += b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(MPSFileError, match=r"must hold 4 bytes .* got more"):
        read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            LABELS[:-1],
            "one label for each of the 20 images of train-images-idx3-ubyte, got 19",
        ),
        ("t10k-labels-idx1-ubyte", LABELS[:6] + 7, "labels of 0 to 2, the training labels, got 9"),
        ("t10k-images-idx3-ubyte", IMAGES[:6, :3], "images of 3x4 as the training files do, got 3x3"),
    ],
)
def test_files_that_do_not_belong_together(tmp_path, name, array, message):
    write(tmp_path)
    (tmp_path / name).write_bytes(idx(array))
    with pytest.raises(MPSFileError, match=message) as caught:
        load_idx(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(MPSFileError, match="must be a file, got nothing there"):
        read_idx(tmp_path / "none", 1)
    with pytest.raises(MPSFileError, match="must be a file, got a folder"):
        read_idx(tmp_path, 1)


def raw_mnist(name, header):
    """The bytes behind the header, by zlib alone: skips gzip's fixed and optional header fields by hand."""
    content = (MNIST / name).read_bytes()
    start = 10
    if content[3] & 8:
        start = content.index(0, start) + 1
    return zlib.decompress(content[start:-8], -15)[header:]


@pytest.mark.skipif(not MNIST.is_dir(), reason="the MNIST files are not in ../shared/data/mnist")
def test_mnist_is_what_its_bytes_say():
    split = load_dataset(MNIST)
    for dataset, part, count in ((split.training, "train", 60000), (split.test, "t10k", 10000)):
        pixels = raw_mnist(f"{part}-images-idx3-ubyte.gz", 16)
        labels = raw_mnist(f"{part}-labels-idx1-ubyte.gz", 8)
        assert dataset.images.shape == (count, 28, 28, 1)
        assert len(pixels) == count * 784
        assert len(labels) == count
        assert hashlib.sha256(dataset.images.tobytes()).digest() == hashlib.sha256(pixels).digest()
        assert dataset.labels.tolist() == list(labels)
        last = pixels[-784:]
        assert dataset.images[-1, 14, :, 0].tolist() == list(last[14 * 28 : 15 * 28])
        assert dataset.class_names == tuple("0123456789")
    # As published: the first training digits are 5 0 4 1 9, and the training pixels' mean is 33.3 of 255.
    assert split.training.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert float(split.training.images.mean()) == pytest.approx(255 * 0.1307, rel=1e-3)
