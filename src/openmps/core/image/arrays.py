"""Arrays and tensors of other libraries in and out of images: NumPy channels-last, tensors in PyTorch's order."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import optional_flag
from openmps.core.image.descriptor import MPSImageDescriptor, check_fits
from openmps.core.image.storage import Block, Extent, Shape
from openmps.core.lifetime import check_is_device
from openmps.errors import MPSArgumentError, MPSError, MPSTypeError, shown
from openmps.metal.array_protocols import Offered, as_array, offered_tensor
from openmps.metal.device import MTLDevice
from openmps.metal.host_elements import check_has_no_mask
from openmps.ops.elements import DTYPES, encode
from openmps.runtime.host import TENSOR_TYPES
from openmps.types import MPSDataLayout as Layout
from openmps.types import MPSImageFeatureChannelFormat as Format

Axes = tuple[int, ...]
LEAST_PINNED_BYTES = 1 << 16
"""Arrays for a GPU that are smaller are staged together with the numbers of a replay."""
_FORMATS = {dtype: channel_format for channel_format, dtype in DTYPES.items()}
_NUMPY_AXES = {3: "[height, width, channels]", 4: "[images, height, width, channels]"}
_TENSOR_AXES = {
    Layout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH: {3: "[channels, height, width]", 4: "[images, channels, height, width]"},
    Layout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS: _NUMPY_AXES,
}


def from_numpy(who: str, device: MTLDevice, array: Any, channel_format: Format | None, axes: Axes) -> Block:
    """A block with a copy of an array whose last axis is the channels, with one of ``axes`` many axes."""
    if not isinstance(device, MTLDevice):
        check_is_device(who, "device", device)
    numbers = array if type(array) is np.ndarray else _as_array(who, array)
    if numbers.ndim not in axes or not numbers.size:
        _refuse_axes(who, "array", numbers.shape, [_NUMPY_AXES[count] for count in axes])
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return from_numpy(who, device, numbers, channel_format, axes)
    plain = _copy(who, numbers, device)
    batch = plain if numbers.ndim == 4 else plain.unsqueeze(0)
    return _block(who, device, batch.permute(0, 3, 1, 2), channel_format, "array", is_own=True)


def kept_shape(
    who: str, device: MTLDevice, sizes: tuple[int, ...], dtype: np.dtype[Any], wanted: Format | None
) -> Shape | None:
    """What a small array ``[N, H, W, C]`` becomes whose elements are stored as they are; None for any other."""
    elements = TENSOR_TYPES.get(dtype)
    if elements is None or len(sizes) != 4 or 0 in sizes or (wanted is not None and wanted not in DTYPES):
        return None
    images, height, width, channels = sizes
    if device.torch_device.type == "cuda" and math.prod(sizes) * dtype.itemsize >= LEAST_PINNED_BYTES:
        return None
    shape = _shape(who, device, (images, channels, height, width), elements, wanted, "array")
    return shape if elements is DTYPES[shape.channel_format] else None


def _as_array(who: str, array: Any) -> NDArray[Any]:
    check_has_no_mask(who, "array", array)
    try:
        return np.asarray(array)
    except MPSError:
        raise
    except (TypeError, ValueError, RuntimeError) as fault:
        rule = "must be an array, or something that NumPy can view as one"
        raise MPSTypeError(who, "array", rule, type(array).__name__, "For tensors there is from_tensor") from fault


def _copy(who: str, numbers: NDArray[Any], device: MTLDevice) -> Tensor:
    """A copy of an array, in the byte order of this machine; a large one that goes to a GPU in pinned memory."""
    dtype = TENSOR_TYPES.get(numbers.dtype)
    if dtype is not None and numbers.nbytes >= LEAST_PINNED_BYTES and device.torch_device.type == "cuda":
        pinned = torch.empty(numbers.shape, dtype=dtype, pin_memory=True)
        if numbers.flags.c_contiguous and numbers.flags.writeable:
            pinned.copy_(torch.from_numpy(numbers))  # by several threads; of other arrays the engine makes no tensor
        else:
            np.copyto(pinned.numpy(), numbers)
        return pinned
    if numbers.dtype == np.longdouble:
        numbers = numbers.astype(np.float64)
    try:
        native = numbers.dtype if numbers.dtype.isnative else numbers.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(numbers, native, order="C"))
    except TypeError as fault:
        rule = "must hold uint8, uint16 or floating point numbers"
        raise MPSTypeError(who, "array", rule, numbers.dtype) from fault


def from_tensor(
    who: str,
    device: MTLDevice,
    tensor: Any,
    channel_format: Format | None,
    copy: bool | None,
    axes: Axes,
    data_layout: Layout,
) -> Block:
    """A block that shares, or copies, the numbers of a tensor; see `MPSImage.from_tensor`."""
    device, copy = check_is_device(who, "device", device), optional_flag(who, "copy", copy)
    given, obstacle, _ = _as_tensor(who, tensor)
    try:
        layout = Layout(data_layout)
    except ValueError as fault:
        raise MPSArgumentError(who, "data_layout", "must be a value of MPSDataLayout", shown(data_layout)) from fault
    if given.dim() not in axes or not given.numel():
        _refuse_axes(who, "tensor", tuple(given.shape), [_TENSOR_AXES[layout][count] for count in axes])
    with torch.inference_mode(False):
        batch = given if given.dim() == 4 else given.unsqueeze(0)
        if layout is Layout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS:
            batch = batch.permute(0, 3, 1, 2)
        own = batch.clone(memory_format=torch.channels_last) if copy or obstacle else batch
        block = _block(who, device, own, channel_format, "tensor")
    if copy is False and block.tensor().data_ptr() != given.data_ptr():
        got = f"{given.dtype} on {given.device}, shape {tuple(given.shape)} with strides {given.stride()}"
        got += f", which {obstacle}" if obstacle else ""
        rule = f"cannot be shared: it must be {DTYPES[block.channel_format]} in channels-last memory of {device.name!r}"
        raise MPSArgumentError(who, "tensor", rule, got, "Leave copy out to allow a copy")
    return block


def descriptor_of(block: Block, number_of_images: int | None = None) -> MPSImageDescriptor:
    """The descriptor of an image with all images of a block, or with ``number_of_images`` of them."""
    extent = block.extent
    images = extent.images if number_of_images is None else number_of_images
    return MPSImageDescriptor(block.channel_format, extent.width, extent.height, extent.channels, images)


def to_numpy(values: Tensor) -> NDArray[np.float32]:
    """A copy of numbers ``[N, C, H, W]`` as an array ``[N, H, W, C]``."""
    return np.array(values.permute(0, 2, 3, 1).cpu().numpy(), dtype=np.float32, order="C")


def array_of(who: str, fresh: NDArray[np.float32], dtype: Any, copy: bool | None) -> NDArray[Any]:
    """The answer to ``__array__`` from a fresh copy of the numbers."""
    return as_array(who, fresh, dtype, copy, is_own=True, remedy="Use tensor(), which shares the memory")


def _as_tensor(who: str, tensor: Any) -> Offered:
    if isinstance(tensor, np.ndarray):
        rule = "must be a torch.Tensor, or another library's tensor with __dlpack__"
        remedy = "For arrays, channels last, there is from_numpy"
        raise MPSTypeError(who, "tensor", rule, type(tensor).__name__, remedy)
    return offered_tensor(who, tensor)


def _refuse_axes(who: str, argument: str, shape: tuple[int, ...], allowed: list[str]) -> NoReturn:
    rule = f"must be shaped {' or '.join(allowed)}, no axis of size 0"
    raise MPSArgumentError(who, argument, rule, f"shape {shape}", "A missing axis is added by indexing with None")


def _block(
    who: str,
    device: MTLDevice,
    values: Tensor,
    channel_format: Format | None,
    argument: str,
    *,
    is_own: bool = False,
) -> Block:
    """A block of elements or numbers ``[N, C, H, W]``; of those that are its own, channels-last, no copy is made."""
    shape = _shape(who, device, values.shape, values.dtype, _wanted(who, channel_format), argument)
    channel_format = shape.channel_format
    if values.dtype is torch.float64 and channel_format is Format.FLOAT32:
        _check_is_float32(who, argument, values)
    is_stored = values.dtype is DTYPES[channel_format]
    stored = values if is_stored else encode(values, channel_format)
    place = device.torch_device
    block = Block(place, channel_format, shape.extent)
    if place.type == "cuda" and not stored.is_cuda:
        block.hold(stored if is_own and is_stored else _apart(stored, values))
    elif is_own and is_stored:
        block.hold(stored)
    else:
        block.adopt(stored.to(place))
    return block


def _apart(stored: Tensor, given: Tensor) -> Tensor:
    """Elements on the host, channels-last, in memory that is not what was given; pinned if they are many."""
    stored = stored.contiguous(memory_format=torch.channels_last)
    if stored.nbytes >= LEAST_PINNED_BYTES and stored.data_ptr() != given.data_ptr():
        return stored.pin_memory()
    return stored if stored.data_ptr() != given.data_ptr() else stored.clone()


def _wanted(who: str, channel_format: Any) -> Format | None:
    """A format that can be stored, or none."""
    if channel_format is None or (isinstance(channel_format, int) and channel_format in DTYPES):
        found: Any = channel_format
        return found
    rule = "must be UNORM8, UNORM16, FLOAT16 or FLOAT32"
    raise MPSArgumentError(who, "channel_format", rule, getattr(channel_format, "name", repr(channel_format)))


@lru_cache(maxsize=512)
def _shape(
    who: str, device: MTLDevice, sizes: tuple[int, ...], dtype: torch.dtype, wanted: Format | None, argument: str
) -> Shape:
    """What tensors of these sizes, ``[N, C, H, W]``, and this type become."""
    channel_format = _format(who, dtype, wanted, argument)
    images, channels, height, width = sizes
    extent = Extent(width, height, channels, images)
    check_fits(who, device, channel_format, extent)
    return Shape(extent, channel_format)


def _check_is_float32(who: str, argument: str, values: Tensor) -> None:
    """Raise unless every finite number is one of float32; float16 and unorm formats say what they store instead."""
    lost = values.isfinite() & ~values.to(torch.float32).isfinite()
    if lost.any():
        raise MPSArgumentError(who, argument, "must hold numbers that fit float32", float(values[lost][0]))


def _format(who: str, dtype: torch.dtype, wanted: Format | None, argument: str) -> Format:
    """The format for elements of this type: what was wanted, or the type's own."""
    if dtype.is_floating_point:
        return Format(wanted) if wanted is not None else _FORMATS.get(dtype, Format.FLOAT32)
    own = _FORMATS.get(dtype)
    if own is not None and wanted in (None, own):
        return own
    rule = f"of type {str(dtype).removeprefix('torch.')} cannot be stored as {_what(wanted)}"
    remedy = "Convert it to floating point numbers first, for example divided by 255"
    raise MPSTypeError(who, argument, rule, remedy=remedy)


def _what(wanted: Format | None) -> str:
    return "an image: uint8, uint16 and floating point numbers can" if wanted is None else Format(wanted).name
