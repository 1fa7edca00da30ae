"""Arrays of numbers in HDF5 files as Keras writes them: read by the format's specification, version 3.0, nothing else.

What is read: the first superblock, groups of symbol tables, data sets of integers and floats that lie in one piece.
That is what h5py writes unless it is told otherwise. A file is memory that is looked at: no number is copied, each
group is visited once, and what points out of the file is an error. Links to other files, and pieces outside the file,
are never followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_OBJECTS = 20_000
_MOST_LOOKS = 2_000_000
"""At messages, lists and names of the whole file, so that none is looked at for long."""
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
_MOST_BLOCKS = 64
"""Of messages of one object."""
_NOWHERE = (1 << 64) - 1
_SPACE, _KIND, _EXTERNAL, _LAYOUT, _CONTINUED, _TABLE = 0x01, 0x03, 0x07, 0x08, 0x10, 0x11
_LINKS = (0x02, 0x06)
"""Groups of newer versions."""
_INTEGER, _FLOAT = 0, 1
_FLOATS = {2: (10, 5, 0, 10, 15), 4: (23, 8, 0, 23, 127), 8: (52, 11, 0, 52, 1023)}
"""Of IEEE's floats by their bytes: place and size of the exponent, of the mantissa, and the bias."""
_REMEDY = "Write it with h5py's own settings, not compressed, or as an .npz."
_Messages = dict[int, memoryview]


class Hdf5:
    """The data sets of a file in memory.

    Raises ``MPSFileError`` where it is damaged, and where it has what is not read.
    """

    def __init__(self, data: bytes, who: str, path: str) -> None:
        self._data, self._who, self._path = memoryview(data), who, path
        self._base = self._looks = 0
        if data[: len(SIGNATURE)] != SIGNATURE:
            self._refuse("must begin as an HDF5 file")
        if len(data) < 96 or data[8] > 1 or data[13:15] != b"\x08\x08":
            self._refuse("must be of the format that h5py writes by default", "another version", _REMEDY)
        start = 24 if data[8] == 0 else 28
        self._base, self._root = _uint(data[start : start + 8]), _uint(data[start + 40 : start + 48])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The data sets by name, with ``/`` between."""
        found: dict[str, NDArray[Any]] = {}
        visited, waiting = set[int](), [("", self._root)]
        while waiting:
            name, place = waiting.pop()
            if place in visited or len(name) > _LONGEST_PATH or len(visited) + len(waiting) > _MOST_OBJECTS:
                rule = f"must have each object once, and {_MOST_OBJECTS:,} at most"
                self._refuse(rule, f"{name[:200]!r}")
            visited.add(place)
            messages = self._messages(place)
            if _TABLE in messages:
                children = list(islice(self._children(messages[_TABLE]), _MOST_OBJECTS + 1))
                waiting += [(f"{name}/{each}" if name else each, at) for each, at in reversed(children)]
            elif any(each in messages for each in _LINKS):
                self._refuse(f"group {name[:200]!r} must be of the format that h5py writes by default", None, _REMEDY)
            elif name:
                found[name] = self._array(name, messages)
        return found

    # --- the file's structure -----------------------------------------------------------------------------------------

    def _bytes(self, place: int, length: int) -> memoryview:
        start = place + self._base
        if start + length > len(self._data):
            self._refuse("must be whole", f"{length:,} bytes at {place:,}, beyond its end")
        return self._data[start : start + length]

    def _look(self) -> None:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            self._refuse("must be whole", "lists that go on and on")

    def _messages(self, place: int) -> _Messages:
        """The messages of an object by kind; of one kind the first."""
        head = self._bytes(place, 16)
        if head[0] != 1:
            self._refuse("must be of the format that h5py writes by default", "objects of another version", _REMEDY)
        count, length = int.from_bytes(head[2:4], "little"), int.from_bytes(head[8:12], "little")
        found: _Messages = {}
        blocks = [(place + 16, length)]
        for index in range(_MOST_BLOCKS):
            if index >= len(blocks):
                return found
            for kind, data in self._block(*blocks[index], count):
                if kind == _CONTINUED and len(data) >= 16:
                    blocks.append((_uint(data[:8]), _uint(data[8:16])))
                found.setdefault(kind, data)
        self._refuse("must be whole", f"an object in more than {_MOST_BLOCKS} pieces")

    def _block(self, place: int, length: int, most: int) -> Iterator[tuple[int, memoryview]]:
        data, at = self._bytes(place, length), 0
        for _ in range(most):
            self._look()
            if at + 8 > len(data):
                return
            kind, size = _uint(data[at : at + 2]), _uint(data[at + 2 : at + 4])
            yield kind, data[at + 8 : at + 8 + size]
            at += 8 + size

    def _children(self, table: memoryview) -> Iterator[tuple[str, int]]:
        """Names and places of what a group holds, in the order of the names."""
        heap = self._bytes(_uint(table[8:16]), 32)
        if bytes(heap[:4]) != b"HEAP":
            self._refuse("must be whole", "a group without its names")
        names = self._bytes(_uint(heap[24:32]), _uint(heap[8:16]))
        waiting = [_uint(table[:8])]
        while waiting:
            self._look()
            place = waiting.pop()
            head = self._bytes(place, 8)
            used = _uint(head[6:8])
            if bytes(head[:4]) == b"TREE" and head[4] == 0:
                keys = self._bytes(place + 24, 16 * used + 8)
                if len(waiting) + used > _MOST_OBJECTS:
                    self._refuse("must be whole", "a group of too many lists")
                waiting += [_uint(keys[16 * index + 8 : 16 * index + 16]) for index in reversed(range(used))]
            elif bytes(head[:4]) == b"SNOD":
                entries = self._bytes(place + 8, 40 * used)
                for index in range(used):
                    self._look()
                    yield self._entry(entries[40 * index : 40 * index + 40], names)
            else:
                self._refuse("must be whole", "a group without its list")

    def _entry(self, entry: memoryview, names: memoryview) -> tuple[str, int]:
        start, place = _uint(entry[:8]), _uint(entry[8:16])
        text, zero, _ = bytes(names[start : start + _LONGEST_NAME + 1]).partition(b"\0")
        try:
            name = text.decode() if zero else ""
        except UnicodeDecodeError:
            name = ""
        if not name or "/" in name:
            self._refuse("must be whole", "an object without a name")
        if _uint(entry[16:20]) > 1 or place == _NOWHERE:
            self._refuse(f"{name[:200]!r} must be in the file", "a link by name", "Write what it stands for.")
        return name, place

    # --- data sets ----------------------------------------------------------------------------------------------------

    def _array(self, name: str, messages: _Messages) -> NDArray[Any]:
        said = f"data set {name[:200]!r}"
        if not all(kind in messages for kind in (_SPACE, _KIND, _LAYOUT)):
            self._refuse(f"{said} must have a shape, a type and a place")
        kind, shape = self._kind(said, messages[_KIND]), self._shape(said, messages[_SPACE])
        layout = bytes(messages[_LAYOUT][:24]).ljust(24, b"\0")
        if layout[0] not in (3, 4) or layout[1] > 1 or _EXTERNAL in messages:
            self._refuse(f"{said} must lie in one piece", "chunks, or another file", _REMEDY)
        length = math.prod(shape) * kind.itemsize
        if not length:
            self._refuse(f"{said} must hold numbers", f"shape {shape}")
        if layout[1] == 0:
            data = messages[_LAYOUT][4 : 4 + _uint(layout[2:4])]
        else:
            data = self._bytes(_uint(layout[2:10]), _uint(layout[10:18]))
        if len(data) != length:
            self._refuse(f"{said} must hold {length:,} bytes, as its shape says", f"{len(data):,} bytes")
        return np.frombuffer(data, kind).reshape(shape)

    def _kind(self, said: str, given: memoryview) -> np.dtype[Any]:
        message = bytes(given[:24]).ljust(24, b"\0")
        number_class, order, size = message[0] & 15, ">" if message[1] & 1 else "<", _uint(message[4:8])
        if number_class == _INTEGER and size in (1, 2, 4, 8):
            return np.dtype(f"{order}{'i' if message[1] & 8 else 'u'}{size}")
        places = (message[12], message[13], message[14], message[15], _uint(message[16:20]))
        if number_class == _FLOAT and not message[1] & 64 and _FLOATS.get(size) == places:
            return np.dtype(f"{order}f{size}")
        self._refuse(f"{said} must hold integers or floats", f"type {number_class} of {size} bytes")

    def _shape(self, said: str, given: memoryview) -> tuple[int, ...]:
        message = bytes(given).ljust(8, b"\0")
        version, rank = message[0], message[1]
        start = {1: 8, 2: 4}.get(version, 0)
        if not start or rank > 32 or len(message) < start + 8 * rank:
            self._refuse(f"{said} must have a shape")
        return tuple(_uint(message[start + 8 * axis : start + 8 * axis + 8]) for axis in range(rank))

    def _refuse(self, rule: str, got: object = None, remedy: str = "") -> NoReturn:
        raise MPSFileError(self._who, self._path, rule, got, remedy)


def _uint(data: bytes | memoryview) -> int:
    return int.from_bytes(data, "little")
