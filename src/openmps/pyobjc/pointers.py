"""Pointers: what Python passes for them, and what stands for those that come back."""

from __future__ import annotations

import array
import ctypes
import os
from collections.abc import Iterable, Sequence
from mmap import PAGESIZE
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from openmps.pyobjc.types import CType
from openmps.pyobjc.values import value_in

_FORMATS = {
    "f": "f",
    "d": "d",
    "Q": "Q",
    "q": "q",
    "I": "I",
    "i": "i",
    "S": "H",
    "s": "h",
    "C": "B",
    "v": "B",
    "Z": "?",
}
"""The format of memory, as NumPy and the buffer protocol name it, of each code."""


class _Null:
    """``objc.NULL``: a null pointer."""

    only: ClassVar[_Null | None] = None

    def __new__(cls) -> _Null:
        if cls.only is None:
            cls.only = super().__new__(cls)
        return cls.only

    def __repr__(self) -> str:
        return "objc.NULL"


NULL = _Null()


def element_dtype(kind: CType) -> np.dtype[Any]:
    """The elements that a pointer points to, bytes for ``void *``."""
    if kind.code[1:] not in _FORMATS:
        raise ValueError(f"no elements can be made of the encoding {kind.code!r}")
    return np.dtype(_FORMATS[kind.code[1:]])


def is_null(value: object) -> bool:
    """Whether an argument passes a null pointer."""
    return value is None or value is NULL


# --- in ---------------------------------------------------------------------------------------------------------------


def bytes_in(value: Any) -> memoryview:
    """The bytes of a buffer that a ``const void *`` gets: of any element type and shape, without gaps."""
    view = buffer_in(value)
    return view.cast("B") if view.nbytes else view


def buffer_in(value: Any) -> memoryview:
    """A buffer without gaps, of its own element type and shape."""
    if isinstance(value, str):
        raise TypeError(f"Expecting byte-buffer, got {type(value).__name__}")
    try:
        view = memoryview(value)
    except TypeError:
        give = getattr(type(value), "__buffer__", None)  # Python 3.11 does not ask classes for it
        if give is None:
            raise TypeError(f"Expecting byte-buffer, got {type(value).__name__}") from None
        view: memoryview = give(value, 0)
    if not view.c_contiguous:
        raise ValueError("ndarray is not C-contiguous")
    return view


def at_least(view: memoryview, length: int) -> memoryview:
    """The first bytes of a buffer that must hold as many as another argument says."""
    if len(view) < length:
        raise ValueError(f"Requesting buffer of {length}, have buffer of {len(view)}")
    return view[:length]


def numbers_in(value: Any, kind: CType) -> NDArray[Any]:
    """The elements that a ``const float *`` gets: of a list or tuple, of an array of that type, of a 1-D buffer."""
    dtype = element_dtype(kind)
    if isinstance(value, array.array):
        if value.typecode != _FORMATS[kind.code[1:]]:
            raise ValueError(
                f"type mismatch between array.array of {value.typecode} and and C array of {kind.code[1:]}"
            )
        _check_count(kind, len(value), "Requesting buffer of {}, have buffer of {}")
        return np.array(value, dtype)
    if isinstance(value, (list, tuple)):
        _check_count(kind, len(value), "expecting {} values got {}")
        return np.array([_number(each, kind) for each in value], dtype)
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"converting to a C array: expecting a sequence, got {type(value).__name__}") from None
    if view.ndim != 1 or view.itemsize != dtype.itemsize or not view.c_contiguous:
        raise ValueError("buffer not compatible")
    return np.frombuffer(view, dtype).copy()


def _check_count(kind: CType, given: int, said: str) -> None:
    if kind.count is not None and given != kind.count:
        raise ValueError(said.format(kind.count, given))


def _number(value: Any, kind: CType) -> int | float:
    return value_in(value, CType(kind.name.rstrip("*"), kind.code[1:]))


# --- out --------------------------------------------------------------------------------------------------------------


def buffer_out(value: Any) -> memoryview:
    """The bytes of the writable buffer that a ``void *`` fills."""
    if value is None:
        raise TypeError("Need explicit buffer")
    view = bytes_in(value)
    if view.readonly:
        raise TypeError(f"Object is not writable: {type(value).__name__}")
    return view


class varlist:  # noqa: N801  # PyObjC's name
    """``objc.varlist``: elements from an address on, of which nobody says how many there are.

    ``memory`` are those that may be touched; PyObjC reads on behind them.
    """

    def __init__(self, memory: NDArray[Any], kind: CType) -> None:
        self._memory = memory.reshape(-1).view(element_dtype(kind))
        self.__typestr__ = kind.code[1:].encode()

    def as_buffer(self, count: int) -> memoryview:
        """A writable view of the first elements."""
        return memoryview(self._memory[: self._end(count)])  # pyright: ignore[reportArgumentType]

    def as_tuple(self, count: int) -> tuple[Any, ...]:
        """The first elements."""
        return tuple(self._memory[: self._end(count)].tolist())

    def _end(self, count: int) -> int:
        if count < 0:
            raise ValueError("objc.varlist does not support negative indexes")
        if count > len(self._memory):
            raise IndexError(f"Index '{count}' out of range")
        return count

    def _place(self, place: Any) -> Any:
        if isinstance(place, slice):
            if place.stop is None:
                raise ValueError("Slice end must be specified")
            if place.step not in (None, 1):
                raise ValueError("objc.varlist doesn't support slice steps other than 1")
            return slice(self._end(place.start or 0), self._end(place.stop))
        if not isinstance(place, int):
            raise TypeError(f"objc.varlist indices must be integers, got {type(place).__name__}")
        self._end(place + 1 if place >= 0 else place)
        return place

    def __getitem__(self, place: Any) -> Any:
        found = self._memory[self._place(place)]
        return tuple(found.tolist()) if isinstance(place, slice) else found.item()

    def __setitem__(self, place: Any, value: Any) -> None:
        where = self._place(place)
        if isinstance(place, slice) and len(value) != len(range(*where.indices(len(self._memory)))):
            raise ValueError("objc.varlist slice assignment doesn't support resizing")
        self._memory[where] = value


# --- results of methods in Python -------------------------------------------------------------------------------------


def numbers_returned(who: str, value: Any, kind: CType) -> NDArray[Any] | None:
    """The elements that a method of Python returns for a pointer of unsaid length: any iterable, NULL for none."""
    if value is NULL:
        return None
    if not isinstance(value, Iterable):
        said = f"{who}() returned {type(value).__name__} for a {kind.name}"
        raise TypeError(f"{said}: Sequence required, or objc.NULL for none")
    if kind.code == "^<2f>":
        return np.array([_pair(each) for each in value], np.float32)
    if kind.code == "^v":
        raise ValueError("depythonifying unknown typespec 0x76")
    return np.array([_number(each, kind) for each in value], element_dtype(kind))


def _pair(value: Any) -> Sequence[float]:
    low, high = value
    return float(low), float(high)


def memory_at(who: str, address: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any] | None:
    """A copy of elements at an address, None for a null pointer.

    Raises:
        ValueError: The process may not read there.
    """
    if is_null(address) or int(address) == 0:
        return None
    first, size = int(address), count * dtype.itemsize
    if not _is_readable(first, size):
        said = f"{who}() returned {first:#x}, where no {size} bytes can be read"
        raise ValueError(f"{said}: the array whose address it is must be kept, in an attribute of the data source")
    return np.frombuffer(ctypes.string_at(first, size), dtype)


def _is_readable(address: int, size: int) -> bool:
    """Whether all pages can be read: a pipe refuses a byte of others, where reading it would end the process."""
    if not 0 < address <= 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - size:
        return False
    reader, writer = os.pipe()
    try:
        for place in (address, *range(address - address % PAGESIZE + PAGESIZE, address + size, PAGESIZE)):
            os.write(writer, ctypes.c_char.from_address(place))
            os.read(reader, 1)
    except OSError:
        return False
    finally:
        os.close(reader)
        os.close(writer)
    return True
