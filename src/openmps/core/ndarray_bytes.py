"""Elements of n-dimensional arrays in the host's memory at distances that a caller says (MPSNDArray.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from openmps.checks import is_whole, listed
from openmps.core.arrays import elements, real_numbers
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.host_elements import check_has_no_mask


class _Spaced(NamedTuple):
    """Where elements lie in bytes from the lowest one on."""

    first: int
    """The byte of element 0 of all dimensions."""
    strides: tuple[int, ...]
    """In bytes, the slowest dimension first."""
    length: int
    """Bytes up to the end of the last element."""


def _spaced(who: str, sizes: Sequence[int], unit: int, stride_bytes: Any) -> _Spaced:
    given = listed(who, "stride_bytes", stride_bytes, "int")
    if len(given) != len(sizes):
        rule = f"must hold {len(sizes)} distances, one a dimension, dimension 0 first"
        raise MPSArgumentError(who, "stride_bytes", rule, len(given))
    for index, each in enumerate(given):
        if isinstance(each, bool) or not isinstance(each, int):
            raise MPSTypeError(who, f"stride_bytes[{index}]", "must be an integer", type(each).__name__)
    strides = tuple(given[::-1])
    reach = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    first = -sum(min(0, each) for each in reach)
    return _Spaced(first, strides, first + sum(max(0, each) for each in reach) + unit)


def to_strided(who: str, array: NDArray[Any], stride_bytes: Any) -> NDArray[np.uint8]:
    """Bytes in which the elements lie at these distances, dimension 0 first; those between them are 0."""
    at = _spaced(who, array.shape, array.itemsize, stride_bytes)
    found = np.zeros(at.length, np.uint8)
    _seen(found, at, array)[...] = array
    return found


def from_strided(who: str, buffer: Any, sizes: Sequence[int], dtype: np.dtype[Any], stride_bytes: Any) -> NDArray[Any]:
    """The elements that lie in a buffer at these distances."""
    at = _spaced(who, sizes, dtype.itemsize, stride_bytes)
    held = _bytes_of(who, buffer)
    if held.size < at.length:
        raise MPSArgumentError(who, "buffer", f"must hold {at.length} bytes for these strides", held.size)
    return _seen(held, at, np.empty(sizes, dtype)).copy()


def _seen(held: NDArray[np.uint8], at: _Spaced, like: NDArray[Any]) -> NDArray[Any]:
    """Elements in bytes, at any of them: their bytes are an axis more."""
    spaced = as_strided(held[at.first :], (*like.shape, like.itemsize), (*at.strides, 1))
    return spaced.view(like.dtype)[..., 0]


def packed(who: str, buffer: Any, sizes: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The elements of a buffer without gaps: an array of this shape, or flat, or raw bytes."""
    check_has_no_mask(who, "buffer", buffer)
    given = real_numbers(who, "buffer", buffer, "must be elements") if isinstance(buffer, torch.Tensor) else buffer
    if isinstance(given, np.ndarray) and given.dtype not in (dtype, np.uint8):
        rule, remedy = f"must have the array's own element type {dtype}", f"Convert it: array.astype(numpy.{dtype})"
        raise MPSTypeError(who, "buffer", rule, given.dtype, remedy)
    if not isinstance(given, np.ndarray) or given.dtype != dtype:
        given = elements(who, "buffer", given, dtype.type) if dtype.kind in "iuf" else _bytes_of(who, given)
    if given.dtype != dtype and given.size == prod(sizes) * dtype.itemsize:
        given = given.view(dtype)
    if given.dtype != dtype or given.shape not in (tuple(sizes), (prod(sizes),)):
        rule = f"must hold {prod(sizes)} elements of {dtype}, {tuple(sizes)} or flat"
        raise MPSArgumentError(who, "buffer", rule, f"{given.dtype}, shape {given.shape}")
    return given.reshape(sizes)


def _bytes_of(who: str, buffer: Any) -> NDArray[np.uint8]:
    check_has_no_mask(who, "buffer", buffer)
    try:
        held = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
        return np.ascontiguousarray(held).reshape(-1).view(np.uint8)
    except (TypeError, ValueError, BufferError) as fault:
        raise MPSTypeError(who, "buffer", "must be an array, or bytes", type(buffer).__name__) from fault


def whole_strides(who: str, argument: str, given: Any, count: int, unit: int) -> list[int] | None:
    """Distances of rows in bytes as numbers of elements, dimension 1 first; None for those without gaps."""
    if given is None:
        return None
    strides = listed(who, argument, given, "int")
    if len(strides) != max(0, count - 1):
        rule = f"must hold {max(0, count - 1)} distances, one a dimension, dimension 1 first"
        raise MPSArgumentError(who, argument, rule, len(strides))
    for index, each in enumerate(strides):
        if not is_whole(each, 0) or each % unit:
            rule = f"must be a multiple of {unit}, the bytes of an element, of at least 0"
            raise MPSArgumentError(who, f"{argument}[{index}]", rule, repr(each))
    return [each // unit for each in strides]
