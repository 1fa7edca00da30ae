"""Tensors of a model: numbers in the file, or beside it as external data."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.onnx.problems import READER, NodeError
from openmps.formats.paths import beneath, reading, require_file

_LARGEST_TENSOR = 2 << 30
"""Bytes of one tensor."""
_MOST_AXES = 16


def _widened(words: NDArray[Any]) -> NDArray[Any]:
    """bfloat16, which NumPy does not know, as float32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def _same(words: NDArray[Any]) -> NDArray[Any]:
    return words


_TYPES: dict[int, tuple[str, str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    1: ("<f4", "float_data", _same),
    2: ("u1", "int32_data", _same),
    3: ("i1", "int32_data", _same),
    4: ("<u2", "int32_data", _same),
    5: ("<i2", "int32_data", _same),
    6: ("<i4", "int32_data", _same),
    7: ("<i8", "int64_data", _same),
    9: ("?", "int32_data", _same),
    10: ("<f2", "int32_data", lambda words: words),
    11: ("<f8", "double_data", _same),
    12: ("<u4", "uint64_data", _same),
    13: ("<u8", "uint64_data", _same),
    16: ("<u2", "int32_data", _widened),
}
"""Of each ONNX number type: how its bytes are read, the field that holds its numbers otherwise, and what follows."""
_HALF = 10
BFLOAT16 = 16
"""The ONNX type of numbers of which NumPy has none."""


def to_bfloat16(array: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers rounded to bfloat16, to the even one of two as near, as float32."""
    words = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (words + 0x7FFF + (words >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), np.float32(np.nan), rounded.view(np.float32))


def dtype_of(kind: int) -> np.dtype[Any] | None:
    """NumPy's type of the numbers of an ONNX type; None for text and for types that are not read."""
    if kind not in _TYPES:
        return None
    return np.dtype(np.float32) if kind == BFLOAT16 else np.dtype(_TYPES[kind][0])


def array_of(tensor: Any, folder: Path | None) -> NDArray[Any]:
    """The numbers of a ``TensorProto``, whose external data lies beneath ``folder``.

    Raises `NodeError` for text and for number types of less than a byte, `MPSFileError` where numbers are missing.
    """
    what, dtype, shape = _described(tensor)
    _, field, finish = _TYPES[tensor.data_type]
    count = math.prod(shape)
    if is_external(tensor):
        data = _external(tensor, count * dtype.itemsize, folder, what)
    elif tensor.HasField("raw_data"):
        data = tensor.raw_data
    else:
        return finish(_listed(tensor, field, dtype, shape, what))
    if len(data) != count * dtype.itemsize:
        rule = f"must hold {count * dtype.itemsize:,} bytes, {dtype} of shape {shape}"
        raise MPSFileError(READER, what, rule, f"{len(data):,}")
    return finish(np.frombuffer(data, dtype).reshape(shape))


def _described(tensor: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    """What a ``TensorProto`` is called, the type of its numbers as they are stored, and its shape."""
    what = f"tensor {str(tensor.name)[:80]!r}"
    if tensor.data_type not in _TYPES:
        raise NodeError(f"{what} is of ONNX number type {tensor.data_type}, which is not read")
    dtype, shape = np.dtype(_TYPES[tensor.data_type][0]), tuple(int(length) for length in tensor.dims)
    if tensor.HasField("segment"):
        raise MPSFileError(READER, what, "must be whole", "a segment of a larger one", "Save the model again")
    if len(shape) > _MOST_AXES or any(length < 0 for length in shape):
        raise MPSFileError(READER, what, f"must have up to {_MOST_AXES} axes, none of a negative length", shape)
    if math.prod(shape) * dtype.itemsize > _LARGEST_TENSOR:
        raise MPSFileError(READER, what, f"must be no larger than {_LARGEST_TENSOR:,} bytes", f"shape {shape}")
    return what, dtype, shape


def _listed(tensor: Any, field: str, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Numbers that stand one by one in a field."""
    numbers = getattr(tensor, field)
    if len(numbers) != math.prod(shape):
        raise MPSFileError(READER, what, f"must hold {math.prod(shape):,} numbers, for {shape}", f"{len(numbers):,}")
    try:
        if tensor.data_type == _HALF:
            return np.array(numbers, np.uint16).view(np.float16).reshape(shape)
        return np.array(numbers, dtype).reshape(shape)
    except OverflowError as error:
        raise MPSFileError(READER, what, f"must hold numbers of {dtype}", "a larger one") from error


# --- external data ----------------------------------------------------------------------------------------------------


def is_external(tensor: Any) -> bool:
    """Whether the numbers of a ``TensorProto`` lie in another file."""
    return tensor.data_location == 1


def external_file(tensor: Any, folder: Path) -> Path:
    """The file of a tensor's external data."""
    given = {str(entry.key): str(entry.value) for entry in tensor.external_data[:8]}
    return _beneath(folder, given.get("location", ""), f"tensor {str(tensor.name)[:80]!r}")


def take_in(tensor: Any, folder: Path) -> int:
    """Move the external data of a ``TensorProto`` into it; how many bytes they are.

    Raises `NodeError` for number types that are not read, `MPSFileError` where numbers are missing.
    """
    what, dtype, shape = _described(tensor)
    size = math.prod(shape) * dtype.itemsize
    tensor.raw_data = _external(tensor, size, folder, what)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    return size


def _external(tensor: Any, size: int, folder: Path | None, what: str) -> bytes:
    """The bytes of a tensor out of a file beneath the model's folder."""
    given = {str(entry.key): str(entry.value) for entry in tensor.external_data[:8]}
    path = _beneath(folder, given.get("location", ""), what)
    offset, length = _count(given, "offset", 0, what), _count(given, "length", size, what)
    if length != size:
        raise MPSFileError(READER, what, f"must have {size:,} bytes of external data", f"length {length:,}")
    found = require_file(path, READER, 1 << 62)
    if offset + length > found:
        rule = f"must hold bytes {offset:,} to {offset + length:,} of {what}"
        raise MPSFileError(READER, os.fspath(path), rule, f"a file of {found:,} bytes", "Copy the whole file again")
    with reading(path, READER), path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _count(given: dict[str, str], key: str, default: int, what: str) -> int:
    text = given.get(key)
    if text is None:
        return default
    if re.fullmatch("[0-9]{1,18}", text) is None:
        raise MPSFileError(READER, what, f"must have a whole number as the {key} of its external data", text[:40])
    return int(text)


def _beneath(folder: Path | None, location: str, what: str) -> Path:
    """The file of external data, which must lie in the model's folder, links followed."""
    rule = "must have its external data in a file beneath the model's folder"
    if folder is None:
        raise MPSFileError(READER, what, rule, "a model without a folder", "Load it by its path")
    path = beneath(folder, location)
    if path is None:
        raise MPSFileError(READER, what, rule, repr(location[:200]))
    if not os.path.lexists(path):
        remedy = "Copy it beside the model"
        raise MPSFileError(READER, os.fspath(path), f"must be there: it holds {what}", "nothing there", remedy)
    return path
