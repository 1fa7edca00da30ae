"""Memory given to other libraries and taken from them: DLPack, and the array protocol of NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import is_whole, memory_for, optional_flag
from openmps.errors import MPSArgumentError, MPSBufferError, MPSError, MPSTypeError, shown

ALIGNMENT = 16
"""Memory that is shared begins at a multiple of so many bytes: it may be seen as elements of any type."""
_ARRAY_TYPES: Mapping[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "bool"),
    )
}
NUMBER_TYPES = frozenset({*_ARRAY_TYPES.values(), torch.bfloat16} - {torch.complex64, torch.bool})
"""Real numbers: what elements of memory that is taken may be."""
_CPU, _CUDA = 1, 2
"""Kinds of devices in dlpack.h."""
_KINDS = {"cpu": _CPU, "cuda": _CUDA}
_TO_SHARE = "Leave copy out to allow a copy"

# --- given to others -----------------------------------------------------------------------------------------------


def location(device: torch.device) -> tuple[int, int]:
    """A device as DLPack says it: its kind and its index."""
    return _KINDS[device.type], device.index or 0


def exported(who: str, tensor: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> object:
    """The answer to ``__dlpack__``: a capsule with the memory of ``tensor``, or with a copy; of the array API.

    Raises:
        MPSBufferError: Another device is asked for than this one or the CPU, or ``copy`` is False and it takes one.
        MPSTypeError: An argument has the wrong type.
        MPSArgumentError: There is no such stream.
    """
    copy = optional_flag(who, "copy", copy)
    if max_version is not None and not _is_pair(max_version):
        raise MPSTypeError(who, "max_version", "must be None or (major, minor)", shown(max_version))
    if dl_device is not None and not _is_pair(dl_device):
        raise MPSTypeError(who, "dl_device", "must be None or (kind, index), two integers", shown(dl_device))
    here = location(tensor.device)
    if dl_device is not None and tuple(dl_device) != here:
        tensor = _on_the_host(who, tensor, tuple(dl_device), copy)
        copy = None
    _check_stream(who, tensor, stream)
    try:
        if tensor.is_cuda:
            with torch.cuda.device(tensor.device):
                return tensor.__dlpack__(stream=stream, max_version=max_version, copy=copy)
        return tensor.__dlpack__(max_version=max_version, copy=copy)
    except (BufferError, RuntimeError, AssertionError) as fault:
        rule = "must be one that DLPack can hand over"
        raise MPSBufferError(who, "memory", rule, str(fault)) from fault


def as_array(who: str, held: NDArray[Any], dtype: Any, copy: Any, *, is_own: bool, remedy: str) -> NDArray[Any]:
    """The answer to ``__array__``: ``held``, which is the object's memory unless ``is_own``, or a copy.

    Raises:
        MPSArgumentError: ``copy`` is False, and ``dtype`` or the object takes one.
        MPSTypeError: ``dtype`` is none, or ``copy`` no flag.
    """
    copy = optional_flag(who, "copy", copy)
    try:
        wanted = held.dtype if dtype is None else np.dtype(dtype)
    except TypeError as fault:
        raise MPSTypeError(who, "dtype", "must be a type of NumPy", shown(dtype)) from fault
    if copy is False and is_own:
        raise MPSArgumentError(
            who, "copy", f"must not be False: numbers are given as a {held.dtype} copy", copy, remedy
        )
    if copy is False and wanted != held.dtype:
        raise MPSArgumentError(who, "copy", f"must not be False: {held.dtype} becomes {wanted} by a copy", copy, remedy)
    return held.astype(wanted, copy=bool(copy) and not is_own)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(is_whole, value))


def _on_the_host(who: str, tensor: Tensor, wanted: tuple[int, ...], copy: bool | None) -> Tensor:
    """A copy in the CPU's memory, which is what DLPack has objects give besides their own."""
    if wanted != (_CPU, 0):
        rule, remedy = f"must be {location(tensor.device)} or the CPU, ({_CPU}, 0)", "Move what is taken afterwards"
        raise MPSBufferError(who, "dl_device", rule, wanted, remedy)
    if copy is False:
        rule = "must not be False: memory of a GPU reaches the CPU by a copy"
        raise MPSBufferError(who, "copy", rule, copy, _TO_SHARE)
    with memory_for(who, "memory"):
        return tensor.cpu()


def _check_stream(who: str, tensor: Tensor, stream: Any) -> None:
    if stream is not None and not is_whole(stream):
        raise MPSTypeError(who, "stream", "must be None or an integer", shown(stream))
    if not tensor.is_cuda and stream not in (None, -1):
        raise MPSArgumentError(who, "stream", "must be None for memory of the CPU", stream)
    if tensor.is_cuda and stream is not None and (stream < -1 or stream in (0, 2)):
        rule = "must be None, -1, 1 for the default stream, or the address of one"
        raise MPSArgumentError(who, "stream", rule, stream)


# --- taken from others ---------------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """Elements of an array or tensor without gaps, on the device that they were taken for."""

    elements: Tensor
    origin: str
    """Whether their memory is shared, in the words of a text that describes the object."""


class Offered(NamedTuple):
    """Elements of another library's, and what is in the way of sharing their memory."""

    elements: Tensor
    obstacle: str
    """Empty where nothing is; the end of a sentence that begins with "it"."""
    what: str = "a tensor"


def taken_array(
    who: str,
    device: torch.device,
    array: Any,
    copy: Any,
    axes: Collection[int] | None = None,
    types: Collection[torch.dtype] = NUMBER_TYPES,
) -> Taken:
    """The elements of an array for a device: its memory where that can be shared, else a copy.

    ``axes`` are the numbers of axes that it may have; any but none without. ``types`` are those of its elements.

    Raises:
        MPSArgumentError: It has another number of axes or an axis of size 0; or the memory cannot be shared and
            ``copy`` is False.
        MPSTypeError: It is no array, has a mask, or elements of another type or byte order.
    """
    copy = optional_flag(who, "copy", copy)
    given = _as_array(who, array)
    names = [dtype.name for dtype, kind in _ARRAY_TYPES.items() if kind in types]
    if _ARRAY_TYPES.get(given.dtype) not in types:
        raise MPSTypeError(who, "array", f"must hold {', '.join(names)}", given.dtype, _remedy(given.dtype, names))
    _check_axes(who, "array", given.shape, axes)
    obstacle = _obstacle(given)
    with torch.inference_mode(False), memory_for(who, "array"):
        if copy or obstacle:
            _check_may_copy(who, "array", copy, obstacle, given.shape, given.strides)
            return _copied(torch.from_numpy(np.array(given, order="C")), device, "an array", is_own=True)
        return _taken(who, "array", device, Offered(torch.from_numpy(given), "", "an array"), copy)


def taken_tensor(
    who: str,
    device: torch.device,
    tensor: Any,
    copy: Any,
    axes: Collection[int] | None = None,
    types: Collection[torch.dtype] = NUMBER_TYPES,
) -> Taken:
    """The same of a tensor of PyTorch or of another library that has ``__dlpack__``; arrays of NumPy, too."""
    if isinstance(tensor, np.ndarray):
        return taken_array(who, device, tensor, copy, axes, types)
    copy = optional_flag(who, "copy", copy)
    offered = offered_tensor(who, tensor)
    given = offered.elements
    if given.dtype not in types:
        names = [str(each).removeprefix("torch.") for each in types]
        remedy = "Convert it first, as with tensor.to(torch.float32)"
        raise MPSTypeError(who, "tensor", f"must hold {', '.join(sorted(names))}", given.dtype, remedy)
    _check_axes(who, "tensor", tuple(given.shape), axes)
    with torch.inference_mode(False), memory_for(who, "tensor"):
        return _taken(who, "tensor", device, offered, copy)


def offered_tensor(who: str, tensor: Any) -> Offered:
    """A tensor of PyTorch, or of another library by DLPack, with its memory.

    Raises:
        MPSTypeError: It is none, or no dense tensor of the CPU or a GPU.
    """
    if isinstance(tensor, Tensor):
        given, is_read_only = tensor.detach().resolve_conj().resolve_neg(), False
    elif not hasattr(tensor, "__dlpack__"):
        rule = "must be a torch.Tensor, or another library's tensor with __dlpack__"
        raise MPSTypeError(who, "tensor", rule, type(tensor).__name__)
    else:
        given, is_read_only = _imported(who, tensor)
    if given.layout is not torch.strided or given.is_quantized:
        raise MPSTypeError(who, "tensor", "must be a dense tensor of plain numbers", f"{given.layout} {given.dtype}")
    if given.device.type not in _KINDS:
        raise MPSTypeError(who, "tensor", "must lie in the memory of the CPU or of a GPU", given.device)
    is_changed = isinstance(tensor, Tensor) and given.data_ptr() != tensor.data_ptr()
    obstacles = {
        "is read-only": is_read_only,
        "was made in inference mode": given.is_inference(),
        "has numbers that are to be negated": is_changed,
    }
    return Offered(given, next((each for each, holds in obstacles.items() if holds), ""))


def _taken(who: str, argument: str, device: torch.device, offered: Offered, copy: bool | None) -> Taken:
    given = offered.elements
    obstacles = {
        offered.obstacle: bool(offered.obstacle),
        "has gaps, or another order of its axes": not given.is_contiguous(),
        f"lies in the memory of {given.device}, not of {device}": given.device != device,
        f"does not begin at a multiple of {ALIGNMENT} bytes": given.data_ptr() % ALIGNMENT != 0,
    }
    obstacle = next((each for each, holds in obstacles.items() if holds), "")
    if not (copy or obstacle):
        return Taken(given, f"shares the memory of {offered.what}")
    _check_may_copy(who, argument, copy, obstacle, tuple(given.shape), given.stride())
    return _copied(given, device, offered.what)


def _copied(given: Tensor, device: torch.device, what: str, *, is_own: bool = False) -> Taken:
    """A copy without gaps on a device; ``is_own`` says that the elements are nobody else's."""
    elements = given.to(device)
    if elements.data_ptr() == given.data_ptr() and not is_own:
        elements = given.clone(memory_format=torch.contiguous_format)
    return Taken(elements.contiguous(), f"a copy of {what}")


def _check_may_copy(
    who: str, argument: str, copy: bool | None, obstacle: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    if copy is False:
        got = f"shape {shape} with strides {strides}"
        raise MPSArgumentError(who, argument, f"cannot be shared: it {obstacle}", got, _TO_SHARE)


def _as_array(who: str, array: Any) -> NDArray[Any]:
    if isinstance(array, np.ma.MaskedArray):
        raise MPSTypeError(who, "array", "must have no mask", "a masked array", "Fill it first: array.filled(0)")
    try:
        return np.asarray(array)
    except MPSError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as fault:
        rule = "must be an array, or something that NumPy can view as one"
        remedy = "For tensors there is from_dlpack"
        raise MPSTypeError(who, "array", rule, type(array).__name__, remedy) from fault


def _obstacle(array: NDArray[Any]) -> str:
    """Why an array's memory cannot be that of an object."""
    flags = array.flags
    if not flags.writeable:
        return "is read-only"
    if not flags.c_contiguous:
        return "has gaps, or another order of its axes"
    return "" if flags.aligned else f"does not begin at a multiple of {ALIGNMENT} bytes"


def _remedy(dtype: np.dtype[Any], names: Collection[str]) -> str:
    """How elements of this type become such that may be taken."""
    if not dtype.isnative:
        return 'Bring it into the order of this machine\'s bytes: array.astype(array.dtype.newbyteorder("="))'
    if dtype.kind not in "biuf":
        return ""
    meant = "uint8" if dtype.kind == "b" else "float32" if dtype.kind == "f" else "int32"
    return f"Convert it: array.astype(numpy.{meant})" if meant in names else ""


def _check_axes(who: str, argument: str, shape: tuple[int, ...], axes: Collection[int] | None) -> None:
    if 0 in shape or not shape or (axes is not None and len(shape) not in axes):
        many = "at least 1" if axes is None else " or ".join(map(str, axes))
        raise MPSArgumentError(who, argument, f"must have {many} axes, none of size 0", f"shape {shape}")


# --- capsules ------------------------------------------------------------------------------------------------------


class _Versioned(ctypes.Structure):
    """What ``DLManagedTensorVersioned`` of dlpack.h begins with."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


_READ_ONLY = 1
"""``DLPACK_FLAG_BITMASK_READ_ONLY``."""
_VERSIONED = b"dltensor_versioned"
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _imported(who: str, tensor: Any) -> tuple[Tensor, bool]:
    """A tensor of another library over the same memory, and whether it says that nobody may write there."""
    try:
        kind, index = tensor.__dlpack_device__()
        # The address of CUDA's default stream is 0, and 1 in the protocol.
        options = {"stream": torch.cuda.current_stream(int(index)).cuda_stream or 1} if kind == _CUDA else {}
        try:
            capsule = tensor.__dlpack__(max_version=(1, 0), **options)
        except TypeError as fault:
            if isinstance(fault, MPSError):
                raise
            capsule = tensor.__dlpack__(**options)  # from before there were versions
        is_read_only = bool(_is_capsule(capsule, _VERSIONED)) and _flags(capsule) & _READ_ONLY != 0
        with torch.inference_mode(False):
            return torch.from_dlpack(capsule), is_read_only
    except MPSError:
        raise
    except Exception as fault:  # another library's code
        raise MPSTypeError(who, "tensor", "must be one that DLPack can hand over", str(fault)) from fault


def _flags(capsule: object) -> int:
    return int(_Versioned.from_address(_address(capsule, _VERSIONED)).flags)
