"""Files of weights beside a model: blobs of numbers, each behind 64 bytes that say what it is."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.coreml.packages import READER
from openmps.formats.paths import beneath, reading, require_file

Array = NDArray[Any]
BEGINNING = "@model_path/"
"""How the path of a file of weights begins: the folder of the model's file."""
SENTINEL, VERSION = 0xDEADBEEF, 2
HEADER = struct.Struct("<II56x")
"""Of a file: how many blobs it holds, and its version."""
BLOB = struct.Struct("<IIQQQ32x")
"""Of a blob: the sentinel, its type, its bytes, where they begin, and bits that are left over."""
_BYTE = 8
KINDS: dict[str, tuple[str, int, int]] = {
    "FLOAT16": ("<f2", 16, 1), "FLOAT32": ("<f4", 32, 2), "UINT8": ("u1", 8, 3), "INT8": ("i1", 8, 4),
    "INT16": ("<i2", 16, 6), "UINT16": ("<u2", 16, 7), "INT4": ("i1", 4, 8), "UINT1": ("u1", 1, 9),
    "UINT2": ("u1", 2, 10), "UINT4": ("u1", 4, 11), "UINT3": ("u1", 3, 12), "UINT6": ("u1", 6, 13),
    "INT32": ("<i4", 32, 14), "UINT32": ("<u4", 32, 15),
    "BOOL": ("?", 8, 0), "FLOAT64": ("<f8", 64, 0), "INT64": ("<i8", 64, 0), "UINT64": ("<u8", 64, 0),
}  # fmt: skip
"""Core ML's types of numbers: NumPy's, bits of a number, and the type of a blob; 0 where no blob holds such."""


def numbers_of(data: bytes, kind: str, shape: tuple[int, ...], what: str) -> Array:
    """Numbers of a type out of their bytes; those of less than a byte lie one behind another, lowest bits first.

    Raises:
        MPSFileError: There are not as many bytes as the shape has numbers.
    """
    dtype, bits, _ = KINDS[kind]
    count = math.prod(shape)
    if len(data) != -(-count * bits // _BYTE):
        rule = f"must hold {-(-count * bits // _BYTE):,} bytes, {kind} of shape {shape}"
        raise MPSFileError(READER, what, rule, f"{len(data):,}")
    if bits >= _BYTE:
        return np.frombuffer(data, dtype).reshape(shape)
    return unpacked(np.frombuffer(data, np.uint8), bits, count, is_signed=dtype == "i1").reshape(shape)


def unpacked(
    data: NDArray[np.uint8],
    bits: int,
    count: int,
    *,
    is_signed: bool = False,
    order: Literal["little", "big"] = "little",
) -> Array:
    """Whole numbers of so many bits, a byte each; the bits of a number and of a byte begin at one end of them."""
    rows = np.unpackbits(data, count=count * bits, bitorder=order).reshape(count, bits)
    found = np.packbits(rows if order == "little" else rows[:, ::-1], axis=1, bitorder="little")[:, 0]
    if not is_signed:
        return found
    return np.where(found >> (bits - 1), found.astype(np.int16) - (1 << bits), found).astype(np.int8)


class Blobs:
    """The files of weights of a model, of which no byte is read for two blobs."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[tuple[Path, int], tuple[int, bytes]] = {}
        self._left: dict[Path, int] = {}
        self.size = 0
        """Bytes that were read."""

    def array(self, name: str, offset: int, kind: str, shape: tuple[int, ...]) -> Array:
        """The numbers of a blob.

        Raises:
            MPSFileError: The file is missing or outside the package, or does not hold such a blob there.
        """
        found, data = self._blob(self._path(name), offset)
        if found != KINDS[kind][2]:
            rule = f"must hold a blob of {kind} at byte {offset:,}"
            raise MPSFileError(READER, name, rule, f"one of type {found}")
        return numbers_of(data, kind, shape, f"the blob at byte {offset:,} of {name}")

    def _path(self, name: str) -> Path:
        location = name.removeprefix(BEGINNING)
        found = None if self._folder is None or location == name else beneath(self._folder, location)
        if found is None:
            rule = "must be a file of the package, which is a folder"
            raise MPSFileError(READER, "the file of its weights", rule, repr(name[:200]), "Give the whole package")
        return found

    def _blob(self, path: Path, offset: int) -> tuple[int, bytes]:
        if (path, offset) not in self._known:
            left = self._left.get(path)
            length = require_file(path, READER, 1 << 62) if left is None else left
            with reading(path, READER), path.open("rb") as file:
                kind, data = _read(file, offset, length, os.fspath(path))
            self._left[path], self.size = length - len(data), self.size + len(data)
            self._known[path, offset] = kind, data
        return self._known[path, offset]


def _read(file: BinaryIO, offset: int, left: int, what: str) -> tuple[int, bytes]:
    """Type and bytes of the blob at a place, of which there may be so many."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(HEADER.size)
    if len(header) < HEADER.size or HEADER.unpack(header)[1] != VERSION:
        raise MPSFileError(READER, what, f"must be a file of weights of version {VERSION}", "something else")
    file.seek(min(offset, end))
    found = file.read(BLOB.size)
    if len(found) < BLOB.size or BLOB.unpack(found)[0] != SENTINEL:
        raise MPSFileError(READER, what, f"must hold a blob at byte {offset:,}", "none there", "Copy it again")
    _, kind, size, start, _ = BLOB.unpack(found)
    if start + size > end or size > left:
        rule = f"must hold {size:,} bytes from byte {start:,} on that are no other blob's"
        raise MPSFileError(READER, what, rule, f"a file of {end:,} bytes", "Copy the whole file again")
    file.seek(start)
    return kind, file.read(size)


class BlobWriter:
    """A file of weights, in parts that are made when it is gone through: arrays stay where they are until then."""

    _ALIGNED = 64

    def __init__(self) -> None:
        self._blobs: list[tuple[Array, str]] = []
        self._end = HEADER.size

    def add(self, array: Array, kind: str) -> int:
        """Where the head of a new blob begins."""
        offset, size = self._end, array.size * np.dtype(KINDS[kind][0]).itemsize
        self._blobs.append((array, kind))
        self._end = offset + BLOB.size + size + -size % self._ALIGNED
        return offset

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield HEADER.pack(len(self._blobs), VERSION)
        offset = HEADER.size
        for array, kind in self._blobs:
            stored = np.asarray(array, KINDS[kind][0], order="C").reshape(-1).view(np.uint8)
            start, padding = offset + BLOB.size, bytes(-stored.size % self._ALIGNED)
            yield BLOB.pack(SENTINEL, KINDS[kind][2], stored.size, start, 0)
            yield stored.data
            yield padding
            offset = start + stored.size + len(padding)
