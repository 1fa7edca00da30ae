"""MNIST's file format (IDX), plain or gzipped, read without trusting what the header claims."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError, size_text
from openmps.formats.paths import LARGEST, is_file, path_of, reading, require_file
from openmps.training.dataset import Dataset, DataSplit

_WHO = "load_idx"
_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
# Images and labels pack a few times, blank ones a thousand times: memory must not follow from so little.
_LARGEST_EXPANSION = 100
_ALWAYS_UNPACKED = 64 << 20
_CHUNK = 1 << 18
_KINDS = {"images": ("idx3", 3), "labels": ("idx1", 1)}


def load_idx(folder: str | os.PathLike[str], *, seed: int = 0) -> DataSplit:
    """MNIST-style IDX files: training images and labels, and the test images and labels where the folder has them.

    The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, with ``.`` in place of the last ``-`` before ``idx`` accepted, and ``.gz`` behind;
    what is gzipped is seen from the content. A plain file goes before a gzipped one of the same name. Without test
    files a stratified fifth of the training images is held out (``seed``, see :meth:`Dataset.split`). Classes are
    named by their numbers, 0 to the largest training label.

    Raises ``MPSFileError`` naming the file and what was found: a missing file, an empty or truncated one, damaged
    compression, a wrong magic number, a header that claims more or less than the file holds, counts of images and
    labels that differ, a test label that no training image has.
    """
    root = path_of(folder, _WHO, "folder")
    name = root.resolve().name
    training = _load_part(root, "train", f"{name}, training part")
    if not any(_find(root, "t10k", kind) for kind in _KINDS):
        return replace(training, name=name).split(seed=seed)
    test = _load_part(root, "t10k", f"{name}, test part")
    if test.images.shape[1:] != training.images.shape[1:]:
        rule = f"must hold images of {_size(training.images)} as the training files do"
        raise MPSFileError(_WHO, str(_find(root, "t10k", "images")), rule, _size(test.images))
    if len(test.class_names) > len(training.class_names):
        rule = f"must hold labels of 0 to {len(training.class_names) - 1}, the training labels"
        raise MPSFileError(_WHO, str(_find(root, "t10k", "labels")), rule, len(test.class_names) - 1)
    return DataSplit(training, replace(test, class_names=training.class_names))


def has_idx_files(folder: Path) -> bool:
    """Whether ``folder`` holds at least one of the files that :func:`load_idx` reads."""
    return any(_find(folder, part, kind) for part in ("train", "t10k") for kind in _KINDS)


def read_idx(path: str | os.PathLike[str], dimensions: int) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes, plain or gzipped, as an array of ``dimensions`` axes.

    The header is 00 00 08 and the number of axes, then one big-endian 32-bit length an axis. Never takes more memory
    than the bytes that are really there. Files are up to 4 GiB long; a gzipped one unpacks to 64 MiB, or to a hundred
    times its length.
    """
    file, length = path_of(path, _WHO), require_file(path, _WHO)
    with reading(file, _WHO):
        try:
            with file.open("rb") as raw:
                packed = raw.read(2) == _GZIP_MAGIC
                raw.seek(0)
                if not packed:
                    return _read_stream(raw, file, dimensions, length, length)
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    most = min(max(length * _LARGEST_EXPANSION, _ALWAYS_UNPACKED), LARGEST)
                    return _read_stream(unpacked, file, dimensions, length, most)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise MPSFileError(_WHO, str(file), "must be a whole gzip file", error, "Fetch the file again.") from error


def _load_part(folder: Path, part: str, name: str) -> Dataset:
    paths = {kind: _required(folder, part, kind) for kind in _KINDS}
    images = read_idx(paths["images"], 3)
    labels = read_idx(paths["labels"], 1)
    if len(images) != len(labels):
        rule = f"must hold one label for each of the {len(images)} images of {paths['images'].name}"
        raise MPSFileError(_WHO, str(paths["labels"]), rule, f"{len(labels)} labels")
    classes = tuple(str(label) for label in range(int(labels.max()) + 1))
    return Dataset(images[..., np.newaxis], labels.astype(np.int64), classes, name)


def _names(part: str, kind: str) -> list[str]:
    code = _KINDS[kind][0]
    return [f"{part}-{kind}{dot}{code}-ubyte{end}" for end in ("", ".gz") for dot in "-."]


def _find(folder: Path, part: str, kind: str) -> Path | None:
    return next((folder / name for name in _names(part, kind) if is_file(folder / name, _WHO)), None)


def _required(folder: Path, part: str, kind: str) -> Path:
    found = _find(folder, part, kind)
    if found is None:
        rule = f"must hold the {kind} of its {part} part"
        raise MPSFileError(_WHO, str(folder), rule, None, f"Looked for {', '.join(_names(part, kind))}.")
    return found


def _read_stream(
    stream: BinaryIO | gzip.GzipFile, file: Path, dimensions: int, length: int, most: int
) -> NDArray[np.uint8]:
    """Read header and bytes; the file is ``length`` bytes long and may hold ``most``."""
    shape = _read_header(stream.read(4 + 4 * dimensions), file, dimensions)
    header, expected = 4 + 4 * dimensions, math.prod(shape)
    if expected == 0:
        raise MPSFileError(_WHO, str(file), "must hold at least one byte of data", f"a header of {shape}")
    rule = f"must hold {expected} bytes behind its header of {shape}"
    if header + expected > most:
        remedy = "Fetch the file again." if most == length else "Fetch it again, or unpack it if it is whole."
        raise MPSFileError(_WHO, str(file), rule, f"a file of {length} bytes", remedy)
    data = bytearray()
    # One byte past the end: it tells a longer file, and makes gzip verify its checksum.
    while chunk := stream.read(min(expected + 1 - len(data), _CHUNK)):
        data += chunk
    if len(data) != expected:
        got = "more" if len(data) > expected else f"{len(data)} bytes"
        raise MPSFileError(_WHO, str(file), rule, got, "Fetch the file again.")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read_header(header: bytes, file: Path, dimensions: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * dimensions:
        rule = f"must start with an IDX header of {4 + 4 * dimensions} bytes"
        raise MPSFileError(_WHO, str(file), rule, f"{len(header)} bytes", "Fetch the file again.")
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if header[:4] != magic:
        rule = f"must start with {magic.hex(' ')}: unsigned bytes, {dimensions} dimensions"
        raise MPSFileError(_WHO, str(file), rule, header[:4].hex(" "))
    return tuple(int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4))


def _size(images: NDArray[np.uint8]) -> str:
    return size_text(images.shape[1:3])
