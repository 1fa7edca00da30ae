"""What a caller hands over as weights, turned into NumPy arrays."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSTypeError

Array: TypeAlias = "NDArray[Any] | torch.Tensor"
"""A NumPy array or a torch tensor, on any device."""


def to_numpy(array: object, who: str, argument: str) -> NDArray[Any]:
    """The same values as a NumPy array: no copy where ``array`` is one already, or a tensor in CPU memory.

    bfloat16, which NumPy does not know, becomes float32. Raises ``MPSTypeError`` for anything but an array or tensor.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise MPSTypeError(who, argument, "must have no mask: files keep none", "a masked array", "Fill it first.")
    if isinstance(array, np.ndarray):
        return cast("NDArray[Any]", array)
    if not isinstance(array, torch.Tensor):
        raise MPSTypeError(who, argument, "must be a NumPy array or a torch tensor", type(array).__name__)
    try:
        tensor = array.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        kind = f"{array.dtype} on {array.device}, {array.layout}"
        raise MPSTypeError(who, argument, "must be a dense tensor that NumPy can hold", kind) from error


def to_stored(array: object, who: str, argument: str) -> NDArray[Any]:
    """The values as files keep them: in C order and little-endian, of a number format that every reader knows.

    Raises ``MPSTypeError`` for complex numbers, long doubles, text, objects and masks.
    """
    values = to_numpy(array, who, argument)
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise MPSTypeError(who, argument, "must hold booleans, integers or floats of up to 64 bits", values.dtype)
    return np.asarray(values, values.dtype.newbyteorder("<"), order="C")


def to_float32(array: object, who: str, argument: str) -> NDArray[np.float32]:
    """The values as contiguous little-endian float32, the form in which weights are stored.

    float16 and bfloat16 widen exactly, float64 rounds to nearest. Raises ``MPSTypeError`` for integers (quantized
    weights need their ranges, which a plain array does not carry) and ``MPSArgumentError`` where a finite float64
    leaves the float32 range.
    """
    values = to_numpy(array, who, argument)
    if values.dtype.kind != "f":
        raise MPSTypeError(who, argument, "must hold floating-point numbers", values.dtype, "Convert it to float32.")
    with np.errstate(over="ignore"):
        stored = np.asarray(values, dtype="<f4", order="C")
    if values.dtype.itemsize > 4 and not np.array_equal(np.isfinite(values), np.isfinite(stored)):
        largest = float(np.max(np.abs(values[np.isfinite(values)])))
        raise MPSArgumentError(who, argument, "must fit float32 (up to 3.4e38)", f"a magnitude of {largest:g}")
    return stored
