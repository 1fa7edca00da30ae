"""Arrays of numbers that users pass: what counts as one, how it is rounded, and the shape that it must have."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSError, MPSTypeError
from openmps.metal.device import MTLBuffer
from openmps.metal.host_elements import check_has_no_mask

_LAYOUTS = {
    "OIHW": "numpy.transpose(w, (0, 2, 3, 1))",
    "HWIO": "numpy.transpose(w, (3, 0, 1, 2))",
    "IOHW, of another framework's transposed convolution": "numpy.transpose(w[:, :, ::-1, ::-1], (1, 2, 3, 0))",
}
"""What makes OHWI weights of those in another order of the axes; the order begins the name."""
_OHWI = "OHWI"
_BYTES = ("B", "b", "c")
"""Formats of views of bytes."""


def elements(who: str, argument: str, data: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """What a data source gives: numbers of any kind, rounded to ``dtype``; arrays of uint8 are raw bytes of it.

    Raises:
        MPSTypeError: They are no real numbers, have a mask, or are floats where integers belong.
        MPSArgumentError: A finite number does not fit ``dtype``, or the bytes are no whole elements.
    """
    raw = _raw(data)
    rule = f"must be numbers that fit {np.dtype(dtype).name}, or its raw bytes"
    array = real_numbers(who, argument, data, rule) if raw is None else raw
    if array.dtype == np.uint8 and dtype is not np.uint8:
        return _viewed(who, argument, np.ascontiguousarray(array).reshape(-1), dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise MPSTypeError(who, argument, rule, f"an array of {array.dtype}")
    return _rounded(who, argument, array, dtype)


def numbers(who: str, argument: str, data: Any) -> NDArray[np.float32]:
    """What somebody passes as an argument: numbers of any kind, uint8 too, as float32; raw bytes are float32.

    Raises:
        MPSTypeError: They are no real numbers, or have a mask.
        MPSArgumentError: A finite number does not fit float32, or the bytes are no whole numbers.
    """
    raw = _raw(data)
    if raw is not None:
        return _viewed(who, argument, raw, np.float32)
    return _rounded(who, argument, real_numbers(who, argument, data, "must be float32 numbers"), np.float32)


def _raw(data: Any) -> NDArray[np.uint8] | None:
    """The bytes of what is nothing else; None of numbers, those behind a view of a buffer among them."""
    if isinstance(data, MTLBuffer):
        return np.asarray(data.contents())
    is_raw = isinstance(data, bytes | bytearray) or (isinstance(data, memoryview) and data.format in _BYTES)
    return np.frombuffer(data, np.uint8) if is_raw else None


def real_numbers(who: str, argument: str, data: Any, rule: str) -> NDArray[Any]:
    """An array, a tensor, a number or nested sequences of numbers as an array of booleans, integers or floats.

    ``rule`` says in an error what they must be.

    Raises:
        MPSTypeError: They are no real numbers, or have a mask, which would be lost.
        MPSError: They are those of an object of this package that refuses to be read, as an image that is not written.
    """
    check_has_no_mask(who, argument, data)
    try:
        if isinstance(data, torch.Tensor):
            data = data.detach().cpu()
            data = (data.float() if data.dtype is torch.bfloat16 else data).numpy()
        array = np.asarray(data)
    except MPSError:  # of an image, say, that cannot be read yet
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as fault:
        raise MPSTypeError(who, argument, rule, type(data).__name__) from fault
    if array.dtype.kind not in "biuf":
        got = f"an array of {array.dtype}" if isinstance(data, np.ndarray) else type(data).__name__
        raise MPSTypeError(who, argument, rule, got)
    return array


def row(who: str, argument: str, array: NDArray[np.float32], count: int, rule: str) -> NDArray[np.float32]:
    """A copy of ``count`` numbers in one row; ``rule`` says in an error what it must be.

    Axes of length 1 do not count. As many numbers in rows and columns are no row.
    """
    if array.size != count or max(array.shape, default=1) != count:
        got = f"{array.size} number(s)" if array.ndim < 2 else f"shape {array.shape}"
        raise MPSArgumentError(who, argument, rule, got)
    return np.array(array, np.float32).reshape(-1)


def variances(who: str, argument: str, values: NDArray[Any]) -> NDArray[Any]:
    """``values`` if none is negative; NaN is left for the results to show."""
    wrong = values < 0
    if wrong.any():
        rule = "must be variances, numbers of at least 0"
        raise MPSArgumentError(who, argument, rule, f"{values[wrong][0]} for channel {int(wrong.argmax())}")
    return values


def in_shape(
    who: str, argument: str, array: NDArray[Any], shape: tuple[int, ...], what: str = "numbers"
) -> NDArray[Any]:
    """Weights of a convolution, OHWI: an array of this shape, or as many elements in one row.

    Fewer axes than four will do if only axes of length 1 are missing: ``[O, rows, columns]`` of a depthwise
    convolution. Anything else is another order of the same numbers, which an error tells from the shape.
    """
    is_flat = array.ndim == 1 and array.size == prod(shape)
    is_short = array.ndim < len(shape) and _without_ones(array.shape) == _without_ones(shape)
    if not (is_flat or is_short or array.shape == shape):
        rule = f"must hold {prod(shape)} {what}, OHWI (inputs of one group) {shape}, or flat in that order"
        raise MPSArgumentError(who, argument, rule, f"{array.size} {what}, shape {array.shape}", _advice(array, shape))
    return array.reshape(shape)


def _advice(array: NDArray[Any], shape: tuple[int, ...]) -> str:
    """Which transpositions make the shape that is wanted; nothing for another number of elements."""
    found = array.shape
    if array.size != prod(shape):
        return ""
    if array.ndim == 2 and len(array) == shape[0]:
        outputs, rows, columns, inputs = shape
        planes = f"numpy.transpose(w.reshape({outputs}, {inputs}, {rows}, {columns}), (0, 2, 3, 1))"
        return f"Pass {planes} if the images were flattened as [channels, rows, columns], else w.reshape{shape}"
    named = [
        f"{call} if it is {name}"
        for name, call in _LAYOUTS.items()
        if len(found) == len(shape) and all(found[name.index(axis)] == shape[_OHWI.index(axis)] for axis in _OHWI)
    ]
    if named:
        return f"Pass {', or '.join(named)}"
    fitting = [order for order in permutations(range(len(found))) if tuple(found[axis] for axis in order) == shape]
    if fitting:
        return f"These fit: {', '.join(f'numpy.transpose(w, {order})' for order in fitting)}"
    return "Bring the axes into the order [output channels, rows, columns, input channels] first"


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _viewed(who: str, argument: str, raw: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if raw.size % kind.itemsize:
        raise MPSArgumentError(who, argument, f"must be whole {kind.name} numbers", f"{raw.size} bytes")
    return raw.view(dtype)


def _rounded(who: str, argument: str, array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    kind = np.dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(kind, copy=False)
    if np.can_cast(array.dtype, kind, "safe"):
        return found
    wrong = np.isfinite(array) & ~np.isfinite(found) if kind.kind == "f" else found != array
    if wrong.any():
        raise MPSArgumentError(who, argument, f"must be numbers that fit {kind.name}", array[wrong].flat[0])
    return found
