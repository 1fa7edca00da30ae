"""Safetensors files as parts that lie one behind the other: large arrays are written as they lie in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 8
_LENGTH = 8
_NAMES = {
    name: (rank, said)
    for rank, (name, said) in enumerate((
        ("bool", "BOOL"), ("uint8", "U8"), ("int8", "I8"), ("int16", "I16"), ("uint16", "U16"), ("float16", "F16"),
        ("int32", "I32"), ("uint32", "U32"), ("float32", "F32"), ("float64", "F64"), ("int64", "I64"),
        ("uint64", "U64"),
    ))
}  # fmt: skip
"""What safetensors calls formats of numbers, and which lie behind which: its own writer puts the last one first."""


class SafetensorsParts:
    """A file of named arrays, byte for byte as safetensors' own writer has it, which makes two copies of all of them.

    Going through it gives the head, and each array's bytes, of which a copy is made only where they do not lie in C
    order. Raises `UnicodeEncodeError` where a name or the metadata hold half of a pair of surrogates.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
        names = sorted(arrays, key=lambda name: (-_said(arrays[name])[0], name))
        self._arrays = [arrays[name] for name in names]
        header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
        end = 0
        for name, array in zip(names, self._arrays, strict=True):
            start, end = end, end + array.nbytes
            header[name] = {"dtype": _said(array)[1], "shape": [*array.shape], "data_offsets": [start, end]}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNED)
        self.head = len(text).to_bytes(_LENGTH, "little") + text
        """The length of the header, and the header."""
        self.size = len(self.head) + end
        """Bytes of the whole."""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self.head
        for array in self._arrays:
            stored = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
            yield stored.reshape(-1).view(np.uint8).data


def _said(array: NDArray[Any]) -> tuple[int, str]:
    return _NAMES[array.dtype.name]
