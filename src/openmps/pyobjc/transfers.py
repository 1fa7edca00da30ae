"""Bytes of textures and of n-dimensional arrays, as their selectors pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.pyobjc.bridge import to_native
from openmps.pyobjc.pointers import at_least, buffer_out, bytes_in, is_null
from openmps.pyobjc.runtime import native_object
from openmps.pyobjc.types import ctype
from openmps.types import DATA_TYPE_DTYPES

_COUNT, _REGION, _DISTANCES = ctype("NSUInteger"), ctype("MTLRegion"), ctype("in NSInteger[]")

# --- textures ---------------------------------------------------------------------------------------------------------


def _get_bytes(texture: Any, buffer: Any, row: Any, region: Any, level: Any, index: Any = 0) -> Any:
    """Fill a buffer with the elements of a region, rows ``row`` bytes apart."""
    memory, distance = buffer_out(buffer), to_native(row, _COUNT)
    where = [to_native(each, _COUNT) for each in (level, index)]
    found = native_object(texture).get_bytes(to_native(region, _REGION), *where)
    length = found[0].nbytes
    if distance < length:
        raise ValueError(f"bytesPerRow must be at least {length}, the bytes of a row of the region, got {distance}")
    at_least(memory, (len(found) - 1) * distance + length)
    np.ndarray(found.shape, found.dtype, memory, strides=(distance, *found.strides[1:]))[...] = found
    return buffer


def _get_slice(texture: Any, buffer: Any, row: Any, image: Any, region: Any, level: Any, index: Any) -> Any:
    """The same of a slice; ``image`` is the distance of planes, of which a region has one."""
    to_native(image, _COUNT)
    return _get_bytes(texture, buffer, row, region, level, index)


def _replace(texture: Any, region: Any, level: Any, buffer: Any, row: Any, index: Any = 0) -> None:
    """Store the elements of a region, which lie in rows ``row`` bytes apart."""
    where, distance = [to_native(each, _COUNT) for each in (level, index)], to_native(row, _COUNT)
    area = to_native(region, _REGION)
    native_object(texture).replace_region(area, where[0], bytes_in(buffer), distance, slice=where[1])


def _replace_slice(texture: Any, region: Any, level: Any, index: Any, buffer: Any, row: Any, image: Any) -> None:
    """The same of a slice; ``image`` is the distance of planes, of which a region has one."""
    to_native(image, _COUNT)
    _replace(texture, region, level, buffer, row, index)


# --- n-dimensional arrays ---------------------------------------------------------------------------------------------


def _elements(array: Any, memory: memoryview, distances: Any) -> NDArray[Any]:
    """The elements of an array in memory, at distances in bytes, dimension 0 first; without gaps where there are none.

    Raises:
        ValueError: The memory ends before them, there is no distance for each dimension, or one is negative.
    """
    dtype = np.dtype(DATA_TYPE_DTYPES[array.data_type])
    given: Sequence[int] | None = None if is_null(distances) else to_native(distances, _DISTANCES).tolist()
    if given is None:
        return np.ndarray(array.shape, dtype, at_least(memory, prod(array.shape) * dtype.itemsize))
    if len(given) != len(array.shape) or min(given, default=0) < 0:
        raise ValueError(f"strideBytes must be {len(array.shape)} distances of at least 0, got {given}")
    strides = tuple(given[::-1])
    needed = sum((size - 1) * each for size, each in zip(array.shape, strides, strict=True)) + dtype.itemsize
    return np.ndarray(array.shape, dtype, at_least(memory, needed), strides=strides)


def _read_array(array: Any, buffer: Any, distances: Any) -> Any:
    native = native_object(array)
    elements = _elements(native, buffer_out(buffer), distances)
    elements[...] = native.read_bytes()
    return buffer


def _write_array(array: Any, buffer: Any, distances: Any) -> None:
    native = native_object(array)
    native.write_bytes(np.ascontiguousarray(_elements(native, bytes_in(buffer), distances)))


TRANSFERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "-getBytes:bytesPerRow:fromRegion:mipmapLevel:": _get_bytes,
        "-getBytes:bytesPerRow:bytesPerImage:fromRegion:mipmapLevel:slice:": _get_slice,
        "-replaceRegion:mipmapLevel:withBytes:bytesPerRow:": _replace,
        "-replaceRegion:mipmapLevel:slice:withBytes:bytesPerRow:bytesPerImage:": _replace_slice,
        "-readBytes:strideBytes:": _read_array,
        "-writeBytes:strideBytes:": _write_array,
    }
)
"""What calls these selectors: the object, and the arguments as Python passes them."""
