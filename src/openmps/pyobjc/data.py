"""Foundation's NSData, of which any buffer can be made."""

# Tables of selectors, which have the private parts of objects.
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from openmps.pyobjc.nsobject import NSObject
from openmps.pyobjc.pointers import at_least, bytes_in
from openmps.pyobjc.types import ctype
from openmps.pyobjc.values import value_in


def _holding(data: Any, value: Any) -> Any:
    data._bytes = bytearray(value) if isinstance(data, NSMutableData) else bytes(value)
    return data


def _resized(data: Any, length: Any) -> None:
    count = _count(length)
    data._bytes = bytearray(data._bytes[:count]).ljust(count, b"\0")


def _first(value: Any, length: Any) -> memoryview:
    return at_least(bytes_in(value), _count(length))


def _count(length: Any) -> int:
    count: int = value_in(length, ctype("NSUInteger"))
    if count > sys.maxsize:
        raise ValueError(f"NSData: absurd length: {count}")
    return count


def _is_equal(data: Any, other: Any) -> bool:
    return isinstance(other, (NSData, bytes, bytearray, memoryview)) and bytes(other) == bytes(data)


def _described(data: Any) -> str:
    return f"{{length = {len(data)}, bytes = 0x{bytes(data)[:16].hex()}}}"


_DATA: Mapping[str, Callable[..., Any]] = {
    "init": lambda self: _holding(self, b""),
    "initWithBytes_length_": lambda self, value, length: _holding(self, _first(value, length)),
    "length": lambda self: len(self._bytes),
    "bytes": lambda self: memoryview(self._bytes),
    "copyWithZone_": lambda self, zone: NSData.from_python(self._bytes),
    "isEqual_": _is_equal,
    "hash": lambda self: hash(bytes(self)) & (2**64 - 1),
    "description": _described,
}
_FACTORIES: Mapping[str, Callable[..., Any]] = {
    "data": lambda cls: cls.from_python(),
    "dataWithData_": lambda cls, value: cls.from_python(value),
    "dataWithBytes_length_": lambda cls, value, length: cls.from_python(_first(value, length)),
    "dataWithLength_": lambda cls, length: cls.from_python(bytes(_count(length))),
}
_MUTABLE: Mapping[str, Callable[..., Any]] = {
    "mutableBytes": lambda self: memoryview(self._bytes),
    "setLength_": _resized,
    "appendBytes_length_": lambda self, value, length: self._bytes.extend(_first(value, length)),
}


class NSData(
    NSObject, is_native=True, protocols=("NSCopying", "NSSecureCoding"), selectors=_DATA, factories=_FACTORIES
):
    """Bytes."""

    __slots__ = ("_bytes",)

    @classmethod
    def from_python(cls, value: Any = b"") -> Any:
        """``NSData(b"…")``, of any buffer."""
        return _holding(cls.alloc(), bytes_in(value))

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, place: Any) -> Any:
        return self._bytes[place]

    def __bytes__(self) -> bytes:
        return bytes(self._bytes)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._bytes)


class NSMutableData(NSData, is_native=True, selectors=_MUTABLE):
    """Bytes that can be changed."""

    def __setitem__(self, place: Any, value: Any) -> None:
        self._bytes[place] = value
