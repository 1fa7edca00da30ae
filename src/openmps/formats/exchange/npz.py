"""NumPy's .npz files: arrays of numbers by name, never pickled objects."""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.exchange.zips import Zip
from openmps.formats.paths import read_file

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_HEADER = re.compile(
    r"\s*\{\s*'descr'\s*:\s*'([<>|=][biuf]\d{1,2})'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    r"\s*'shape'\s*:\s*\(((?:\d{1,19}L?,\s*)*(?:\d{1,19}L?)?)\)\s*,?\s*\}\s*"
)
_KINDS = "biuf"
_SUFFIX = ".npy"


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, as ``np.savez`` and ``np.savez_compressed`` write them.

    Nothing is unpickled, and a file that would unpack to more than 16 times its length is refused. Raises
    ``MPSFileError`` naming the file and the array at fault.
    """
    who = "load_npz"
    archive = Zip(read_file(path, who, begins=(b"PK",), what="a whole ZIP archive"), who, os.fspath(path))
    found: dict[str, NDArray[Any]] = {}
    for name in archive.names:
        if not name.endswith(_SUFFIX):
            raise MPSFileError(who, os.fspath(path), "must hold arrays, .npy, alone", repr(name)[:200])
        found[name.removesuffix(_SUFFIX)] = _array(archive.read(name), name, who, os.fspath(path))
    return found


def load_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The array of a .npy file, as ``np.save`` writes it; raises as `load_npz`."""
    who = "load_npy"
    data = read_file(path, who, begins=(_MAGIC,), what="an array of NumPy's, .npy or .npz")
    return _array(memoryview(data), Path(path).name, who, os.fspath(path))


def npy_bytes(array: NDArray[Any]) -> bytes:
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def npz_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """An .npz file, not compressed. The same arrays give the same bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in tensors.items():  # np.savez takes no array of the name "file"
            with archive.open(zipfile.ZipInfo(f"{name}{_SUFFIX}"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def _array(data: memoryview, name: str, who: str, path: str) -> NDArray[Any]:
    def wrong(rule: str, got: object = None) -> MPSFileError:
        return MPSFileError(who, path, f"array {name.removesuffix(_SUFFIX)[:200]!r} {rule}", got)

    start = bytes(data[:12])
    width = {1: 2, 2: 4, 3: 4}.get(start[6] if len(start) > 6 else 0)
    if start[:6] != _MAGIC or width is None:
        raise wrong("must be of NumPy's format .npy")
    length = int.from_bytes(start[8 : 8 + width], "little")
    body = 8 + width + length
    if length > _LONGEST_HEADER or body > len(data):
        raise wrong("must have its header whole")
    facts = _HEADER.fullmatch(bytes(data[8 + width : body]).decode("latin-1"))
    if facts is None:
        raise wrong("must hold booleans, integers or floats: pickled objects are never read")
    kind, shape = _kind(facts[1]), tuple(int(each.rstrip("L ")) for each in facts[3].split(",") if each.strip())
    if kind is None or len(shape) > 32:
        raise wrong("must hold booleans, integers or floats of up to 64 bits", facts[1])
    if math.prod(shape) * kind.itemsize != len(data) - body:
        raise wrong(f"must hold {len(data) - body:,} bytes, as the file does", f"shape {shape} of {kind}"[:200])
    if not math.prod(shape):
        raise wrong("must hold numbers", f"shape {shape}"[:200])
    return np.frombuffer(data[body:], kind).reshape(shape, order="F" if facts[2] == "True" else "C")


def _kind(text: str) -> np.dtype[Any] | None:
    try:
        kind = np.dtype(text)
    except TypeError:
        return None
    return kind if kind.kind in _KINDS and kind.itemsize <= 8 else None
