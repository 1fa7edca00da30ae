"""Elements that a program gives to be stored: arrays of the stored type, or raw bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.errors import MPSArgumentError, MPSError, MPSTypeError


def check_has_no_mask(who: str, argument: str, data: object) -> None:
    """Raise for a masked array, whose mask would be lost."""
    if isinstance(data, np.ma.MaskedArray):
        raise MPSTypeError(who, argument, "must have no mask", "a masked array", "Fill it first: array.filled(0)")


def as_elements(
    who: str, argument: str, data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], remedy: str
) -> NDArray[Any]:
    """A copy of ``data`` as elements of ``dtype`` in this shape: from raw bytes, or from an array of that type."""
    if isinstance(data, bytes | bytearray | memoryview):
        return _from_bytes(who, argument, data, dtype, shape)
    check_has_no_mask(who, argument, data)
    try:
        array = np.asarray(data.detach().cpu().numpy() if isinstance(data, Tensor) else data)
    except MPSError:
        raise
    except (TypeError, ValueError, RuntimeError) as fault:
        raise MPSTypeError(who, argument, "must be an array of numbers, or bytes", type(data).__name__) from fault
    if array.dtype != dtype:
        rule = f"must have the image's own element type {dtype}"
        conversion = f"Convert it, for example with numpy.asarray(data, dtype=numpy.{dtype})"
        raise MPSTypeError(who, argument, rule, array.dtype, conversion)
    flat = array.ndim == 1 and array.size == math.prod(shape)
    if not flat and _without_ones(array.shape) != _without_ones(shape):
        image = shape if shape[0] > 1 else shape[1:]
        rule = f"must be shaped {image}, or hold {math.prod(shape)} elements in a row"
        raise MPSArgumentError(who, argument, rule, f"shape {array.shape}", remedy)
    # A copy of its own: torch would warn of an array that cannot be written.
    return np.array(array, dtype=dtype, order="C").reshape(shape)


def _from_bytes(who: str, argument: str, data: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    raw = np.frombuffer(bytes(data), np.uint8)
    needed = math.prod(shape) * dtype.itemsize
    if raw.size != needed:
        rule = f"must hold {needed} bytes, {math.prod(shape)} elements of {dtype}"
        raise MPSArgumentError(who, argument, rule, f"{raw.size} bytes")
    return raw.view(dtype).reshape(shape).copy()


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
