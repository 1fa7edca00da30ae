"""Memory that methods of data sources return pointers to, read as the framework reads it.

How depends on the metadata of the selector: a pointer of unsaid length is made of an iterable of numbers, a plain
``void *`` is an address. The descriptor and the other methods of the data source say how many elements there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import warn_user
from openmps.pyobjc.errors import RefusedByPyObjCWarning
from openmps.pyobjc.pointers import buffer_in, is_null, memory_at, numbers_returned
from openmps.pyobjc.runtime import native_object, selector_of
from openmps.pyobjc.types import CType
from openmps.pyobjc.values import public

Shape = tuple[int, ...]
_FLOAT32 = np.dtype(np.float32)
_WORD_BITS = 32
_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "FLOAT32": _FLOAT32,
        "FLOAT16": np.dtype(np.float16),
        "UINT8": np.dtype(np.uint8),
        "UINT32": np.dtype(np.uint32),
    }
)
_LOOKED_UP = 256


def _descriptor(source: Any) -> Any:
    return native_object(_asked(source, "descriptor"))


def _asked(source: Any, name: str) -> Any:
    return selector_of(source, name)()


def _weights(source: Any) -> tuple[Shape, np.dtype[Any]]:
    kind, shape = public("MPSDataType")(_asked(source, "dataType")).name, _descriptor(source).weight_shape()
    if kind not in _DTYPES:
        raise ValueError(f"{type(source).__name__}.dataType() returned {kind}, of which there are no weights")
    return (*shape[:3], -(-shape[3] // _WORD_BITS)) if kind == "UINT32" else shape, _DTYPES[kind]


def _channels(source: Any) -> tuple[Shape, np.dtype[Any]]:
    return (int(_asked(source, "numberOfFeatureChannels")),), _FLOAT32


_EXTENTS: Mapping[str, Callable[[Any], tuple[Shape, np.dtype[Any]]]] = MappingProxyType(
    {
        "weights": _weights,
        "biasTerms": lambda source: ((_descriptor(source).output_feature_channels,), _FLOAT32),
        "rangesForUInt8Kernel": lambda source: ((_descriptor(source).output_feature_channels, 2), _FLOAT32),
        "lookupTableForUInt8Kernel": lambda source: ((_LOOKED_UP,), _FLOAT32),
        **dict.fromkeys(("gamma", "beta", "mean", "variance"), _channels),
    }
)
"""The shape and elements of what each selector's pointer points to."""


def read_returned(source: Any, selector: str, kind: CType, answer: Any) -> NDArray[Any] | None:
    """The elements at the pointer that a method of a data source returned; None for a null pointer.

    Raises:
        TypeError: The answer is no sequence where metadata says that it is an array.
        ValueError: It is no address where metadata says that it is one, or has too few elements.
    """
    (shape, dtype), who = _EXTENTS[selector](source), f"{type(source).__name__}.{selector}"
    if not kind.is_array:
        return _at_address(who, kind, answer, shape, dtype)
    if kind.code == "^v":
        found = _of_buffer(who, answer, dtype)
    else:
        numbers = numbers_returned(who, answer, kind)
        found = None if numbers is None else numbers.reshape(-1)
    if found is None:
        return None
    found, count = found.view(dtype), math.prod(shape)
    if len(found) < count:
        said = f"{who}() returned {len(found)} elements"
        raise ValueError(f"{said}, and the framework reads {count}, as the descriptor says")
    return found[:count].reshape(shape)


def _at_address(who: str, kind: CType, answer: Any, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    if kind.code != "^v" and not is_null(answer):
        said = f"{who}() returned {type(answer).__name__} for a {kind.name}, which only None can stand for"
        raise ValueError(f'{said}. Register metadata: {{"retval": {{"type": b"^v"}}}} for an address')
    if not is_null(answer) and not isinstance(answer, int):
        raise ValueError(f"{who}() returned {type(answer).__name__}, and its metadata says that it is an address")
    found = memory_at(who, answer, dtype, math.prod(shape))
    return None if found is None else found.reshape(shape)


def _of_buffer(who: str, answer: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """What PyObjC's own metadata refuses: weights as a buffer, or as a sequence of numbers."""
    if is_null(answer):
        return None
    said = (
        f"{who}() returns {type(answer).__name__}: PyObjC refuses that on a Mac "
        '("depythonifying unknown typespec 0x76"). Call objc.registerMetaDataForSelector(b"NSObject", b"weights", '
        '{"retval": {"type": b"^v"}}) first, and return the address of the numbers'
    )
    warn_user(said, RefusedByPyObjCWarning)
    if isinstance(answer, (list, tuple)):
        try:
            return np.array(answer, dtype).reshape(-1)
        except (TypeError, ValueError, OverflowError) as fault:
            raise ValueError(
                f"{who}() returned a {type(answer).__name__} that is no array of {dtype}: {fault}"
            ) from fault
    view = buffer_in(answer)
    if view.itemsize != 1 and np.asarray(view).dtype != dtype:
        raise ValueError(f"{who}() returned a buffer of {np.asarray(view).dtype}, and dataType() says {dtype}")
    if view.nbytes % dtype.itemsize:
        raise ValueError(f"{who}() returned {view.nbytes} bytes, which are no whole elements of {dtype}")
    return np.frombuffer(view.cast("B") if view.nbytes else view, dtype)
