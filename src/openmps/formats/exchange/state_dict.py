"""State dicts of PyTorch, written by ``torch.save(module.state_dict(), path)``.

A file is a ZIP archive of a pickle and of one member a storage, or, before PyTorch 1.6, a row of pickles with the
storages behind them. It is read without unpickling: ``torch.load(path, weights_only=True)`` runs nothing either, but
takes any memory that a file asks for. Each tensor is checked against the storage that it says it lies in.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.exchange.pickles import ORDERED, Made, Named, Persistent, PickleError, read_pickle
from openmps.formats.exchange.zips import Zip
from openmps.formats.paths import read_file

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PICKLES = 5
_ELEMENTS: Mapping[str, str] = {
    "torch.FloatStorage": "<f4", "torch.HalfStorage": "<f2", "torch.DoubleStorage": "<f8", "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4", "torch.ShortStorage": "<i2", "torch.CharStorage": "<i1", "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "|b1", "torch.BFloat16Storage": "bfloat16",
}  # fmt: skip
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_DEEPEST = 8
_AGAIN = 4
"""How often all tensors together may name the numbers that the file has: tied weights are one storage."""

Storage = Callable[[str, np.dtype[Any], int], "NDArray[Any]"]


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The tensors of a state dict by name; of a checkpoint that holds one, as ``model.conv1.weight``.

    What is neither tensor nor mapping is passed over. Raises ``MPSFileError`` where the file is damaged, or names a
    class that no state dict has.
    """
    who = "load_state_dict"
    data = read_file(path, who, begins=(b"PK", b"\x80"), what="a state dict of PyTorch")
    try:
        return _Reader(data, who, os.fspath(path)).tensors()
    except PickleError as error:
        rule = "must be a state dict of PyTorch"
        remedy = "Save module.state_dict() with torch.save."
        raise MPSFileError(who, os.fspath(path), rule, error, remedy) from error


def state_dict_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A file that ``torch.load(path, weights_only=True)`` reads as a mapping from names to tensors."""
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}, file)
    return file.getvalue()


class _Reader:
    """One file, its storages, and how many bytes of them were named so far."""

    def __init__(self, data: bytes, who: str, path: str) -> None:
        self._who, self._path = who, path
        self._budget = _AGAIN * len(data)
        self._storages: dict[str, NDArray[Any]] = {}
        self._zip = Zip(data, who, path) if data[:2] == b"PK" else None
        self._document, self._bytes_of = self._of_zip() if self._zip is not None else self._legacy(data)

    def _of_zip(self) -> tuple[Any, Callable[[str], memoryview]]:
        """Everything lies in one folder of the archive."""
        assert self._zip is not None
        pickles = [name for name in self._zip.names if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise PickleError("it has no data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        for name in self._zip.names:
            if name == f"{folder}byteorder" and bytes(self._zip.read(name)) != b"little":
                raise PickleError("its numbers are big-endian")
            if name == f"{folder}constants.pkl":
                raise PickleError("it is a TorchScript module, which holds a program")
        zipped = self._zip
        document, _ = read_pickle(bytes(zipped.read(pickles[0])))

        def bytes_of(key: str) -> memoryview:
            name = f"{folder}data/{key}"
            if name not in zipped.names:
                raise PickleError(f"its storage {key[:40]!r} is not there")
            return zipped.read(name)

        return document, bytes_of

    def _legacy(self, data: bytes) -> tuple[Any, Callable[[str], memoryview]]:
        """A row of pickles: two numbers, the system, the document and the keys; behind them lengths and numbers."""
        place, found = 0, []
        for _ in range(_LEGACY_PICKLES):
            each, place = read_pickle(data, place)
            found.append(each)
            if found[0] != _MAGIC:
                raise PickleError("it does not begin as one")
        if not isinstance(found[2], dict) or found[2].get("little_endian") is not True:
            raise PickleError("its numbers are big-endian")
        keys = found[4]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise PickleError("its storages have no names")
        view = memoryview(data)
        lengths = _lengths_of(found[3])
        parts: dict[str, memoryview] = {}
        for key in keys:
            if key not in lengths:
                raise PickleError(f"its storage {key[:40]!r} is of no tensor")
            count = int.from_bytes(view[place : place + 8], "little")
            parts[key] = view[place + 8 : place + 8 + count * lengths[key]]
            if len(parts[key]) != count * lengths[key]:
                raise PickleError("it ends too early")
            place += 8 + count * lengths[key]

        def bytes_of(key: str) -> memoryview:
            if key not in parts:
                raise PickleError(f"its storage {key[:40]!r} is not there")
            return parts[key]

        return found[3], bytes_of

    # --- tensors ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Every tensor by its name."""
        table = _table(self._document)
        if table is None:
            raise PickleError(f"it holds {_kind(self._document)} in the place of names and tensors")
        found: dict[str, NDArray[Any]] = {}
        self._collect(table, "", found, 0)
        if not found:
            raise PickleError("it holds no tensors")
        return found

    def _collect(self, table: dict[Any, Any], prefix: str, found: dict[str, NDArray[Any]], depth: int) -> None:
        if depth > _DEEPEST:
            raise PickleError(f"its mappings are more than {_DEEPEST} deep in one another")
        for key, value in table.items():
            name = f"{prefix}{key}"
            self._budget -= len(name)
            inner = _table(value)
            if inner is not None:
                self._collect(inner, f"{name}.", found, depth + 1)
            elif isinstance(value, Made):
                if name in found:
                    raise PickleError(f"it has the name {name[:80]} twice")
                found[name] = self._tensor(value)
            if self._budget < 0:
                raise PickleError("it names the same numbers too often")

    def _tensor(self, made: Made) -> NDArray[Any]:
        name = made.of.name
        if name in _PARAMETERS and made.arguments and isinstance(made.arguments[0], Made):
            return self._tensor(made.arguments[0])
        if name not in _TENSORS:
            raise PickleError(f"it names {name[:80]}, which is no part of a state dict")
        if len(made.arguments) < 4:
            raise PickleError("a tensor lacks its size or its strides")
        if any(isinstance(each, dict) and each for each in made.arguments[6:]):
            raise PickleError("a tensor is the negative or the conjugate of what is stored")
        storage, offset, size, strides = made.arguments[:4]
        lengths = [*_whole(size), *_whole(strides), *_whole((offset,))]
        if len(size) != len(strides) or len(size) > 32 or len(lengths) != 2 * len(size) + 1:
            raise PickleError("a tensor has sizes that are none")
        return self._view(self._storage(storage), offset, size, strides)

    def _view(
        self, storage: NDArray[Any], offset: int, size: tuple[int, ...], strides: tuple[int, ...]
    ) -> NDArray[Any]:
        """The numbers at these places, if all of them are in the storage."""
        count = math.prod(size)
        last = offset + sum((length - 1) * stride for length, stride in zip(size, strides, strict=True))
        if not 0 < count <= storage.size or last >= storage.size:
            raise PickleError(f"a tensor of size {size} does not lie in its storage of {storage.size} numbers")
        self._budget -= count * storage.itemsize
        steps = [stride * storage.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)

    def _storage(self, storage: Any) -> NDArray[Any]:
        """A storage's numbers: those that the file has, of the type that the pickle says."""
        key, kind, count = _storage_facts(storage)
        text = _ELEMENTS[kind]
        if key not in self._storages:
            data = self._bytes_of(key)
            self._storages[key] = np.frombuffer(data, np.uint8)
        numbers = self._storages[key]
        width = 2 if text == "bfloat16" else np.dtype(text).itemsize
        if numbers.size != count * width:
            raise PickleError(f"its storage {key[:40]!r} has {numbers.size} bytes, not {count} numbers of {width}")
        if text == "bfloat16":  # the upper half of a float32
            self._budget -= 2 * numbers.size
            return (numbers.view("<u2").astype("<u4") << 16).view("<f4")
        return numbers.view(text)


def _table(value: Any) -> dict[Any, Any] | None:
    """The entries of a dictionary, ordered or not."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Made) and value.of.name == ORDERED:
        return value.arguments[0]
    return None


def _kind(value: Any) -> str:
    if isinstance(value, Made):
        return value.of.name[:80]
    return "a class" if isinstance(value, Named) else f"a {type(value).__name__}"


def _whole(given: Any) -> list[int]:
    if not isinstance(given, tuple) or not all(type(each) is int and 0 <= each < 2**62 for each in given):
        raise PickleError("a tensor has sizes that are none")
    return list(given)


def _storage_facts(storage: Any) -> tuple[str, str, int]:
    """Key, class and length of a storage."""
    key = storage.key if isinstance(storage, Persistent) else ()
    if len(key) < 5 or key[0] != "storage" or not isinstance(key[1], Named) or not isinstance(key[2], str):
        raise PickleError("a tensor has no storage")
    if key[1].name not in _ELEMENTS:
        raise PickleError(f"it has numbers of {key[1].name[:80]}, which are no weights")
    (count,) = _whole((key[4],))
    if len(key) > 5 and key[5] is not None:
        raise PickleError("a storage is a part of another one")
    return key[2], key[1].name, count


def _lengths_of(document: Any) -> dict[str, int]:
    """How many bytes a number of each storage has: the file of old does not say it beside the numbers."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    ahead = [document]
    while ahead:
        here = ahead.pop()
        if id(here) in seen:
            continue
        if isinstance(here, Persistent):
            key, kind, _ = _storage_facts(here)
            text = _ELEMENTS[kind]
            found[key] = 2 if text == "bfloat16" else np.dtype(text).itemsize
        elif isinstance(here, Made):
            seen.add(id(here))
            ahead += here.arguments
        elif isinstance(here, dict):
            seen.add(id(here))
            ahead += here.values()
        elif isinstance(here, list | tuple):
            seen.add(id(here))
            ahead += here
    return found
