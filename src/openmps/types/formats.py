"""Facts of formats of images and of types of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from openmps.errors import MPSTypeError
from openmps.types.enumerations import MPSDataType, MPSImageFeatureChannelFormat

PRECISION_BITS: Final[Mapping[MPSImageFeatureChannelFormat, int]] = {
    MPSImageFeatureChannelFormat.UNORM8: 8,
    MPSImageFeatureChannelFormat.UNORM16: 16,
    MPSImageFeatureChannelFormat.FLOAT16: 11,
    MPSImageFeatureChannelFormat.FLOAT32: 24,
}
"""Bits of precision of one feature channel; a float's exponent does not count."""

NUMPY_DTYPES: Final[Mapping[MPSImageFeatureChannelFormat, np.dtype[np.generic]]] = {
    MPSImageFeatureChannelFormat.UNORM8: np.dtype(np.uint8),
    MPSImageFeatureChannelFormat.UNORM16: np.dtype(np.uint16),
    MPSImageFeatureChannelFormat.FLOAT16: np.dtype(np.float16),
    MPSImageFeatureChannelFormat.FLOAT32: np.dtype(np.float32),
}
"""The NumPy type of one feature channel as it is stored."""

ELEMENT_BYTES: Final[Mapping[MPSImageFeatureChannelFormat, int]] = {
    channel_format: dtype.itemsize for channel_format, dtype in NUMPY_DTYPES.items()
}
"""Bytes of one feature channel of one pixel."""

DATA_TYPE_DTYPES: Final[Mapping[MPSDataType, np.dtype[np.generic]]] = {
    MPSDataType.FLOAT32: np.dtype(np.float32),
    MPSDataType.FLOAT16: np.dtype(np.float16),
    MPSDataType.COMPLEX_FLOAT32: np.dtype(np.complex64),
    MPSDataType.INT8: np.dtype(np.int8),
    MPSDataType.INT16: np.dtype(np.int16),
    MPSDataType.INT32: np.dtype(np.int32),
    MPSDataType.INT64: np.dtype(np.int64),
    MPSDataType.UINT8: np.dtype(np.uint8),
    MPSDataType.UINT16: np.dtype(np.uint16),
    MPSDataType.UINT32: np.dtype(np.uint32),
    MPSDataType.UINT64: np.dtype(np.uint64),
    MPSDataType.BOOL: np.dtype(np.bool_),
    MPSDataType.UNORM8: np.dtype(np.uint8),
}
"""The NumPy type of an element as it is stored. Single bits and pairs of float16 have none."""


def MPSSizeofMPSDataType(data_type: MPSDataType) -> int:
    """Bytes of one element: the low 16 bits of the type over 8, so 0 for ``UNORM1`` (MPSCoreTypes.h, macOS 13)."""
    if isinstance(data_type, bool) or not isinstance(data_type, int):
        raise MPSTypeError("MPSSizeofMPSDataType", "data_type", "must be an MPSDataType", type(data_type).__name__)
    return (data_type & 0xFFFF) >> 3
