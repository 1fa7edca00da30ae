"""Selectors that the rule of names does not reach: bytes, copies, factories; and those that openmps has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.pyobjc.bridge import to_native
from openmps.pyobjc.foundation import error_of
from openmps.pyobjc.pointers import buffer_out, bytes_in
from openmps.pyobjc.runtime import native_class, native_object, object_for
from openmps.pyobjc.transfers import TRANSFERS
from openmps.pyobjc.types import OBJECT, ctype
from openmps.types import NUMPY_DTYPES, MPSDataLayout

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "bytes": "data",
        "for_reading_from_data": "init_for_reading_from_data",
        "for_reading_with_data": "init_for_reading_with_data",
    }
)
"""Words of selectors that openmps says otherwise."""
_ARCHIVE = "archive whole objects with NSKeyedArchiver, and read them with MPSKeyedUnarchiver"
WITHOUT: Mapping[str, str] = MappingProxyType(
    {
        "-initWithCoder:": _ARCHIVE,
        "-initWithCoder:device:": _ARCHIVE,
        "-encodeWithCoder:": _ARCHIVE,
        "-regions": "PyObjC does not know how many regions the pointer points to; keep the list that you passed",
        "-newBufferWithBytesNoCopy:length:options:deallocator:": "use newBufferWithBytes_length_options_, which copies",
        "-newLibraryWithSource:options:error:": "Metal source cannot be compiled here: use the framework's kernels",
    }
)
"""Why a selector is not offered."""

# --- bytes of images --------------------------------------------------------------------------------------------------

_LAYOUT, _REGION, _INFO = ctype("MPSDataLayout"), ctype("MTLRegion"), ctype("MPSImageReadWriteParams")
_COUNT, _PIXELS = ctype("NSUInteger"), ctype("MTLPixelFormat")


class _Transfer:
    """The elements of an image that one call names, and where they lie in the caller's memory."""

    def __init__(self, image: Any, arguments: Sequence[Any], strides: Sequence[str]) -> None:
        layout, *rest = arguments
        given = dict(zip(strides, rest, strict=False))
        region, info = rest[len(strides) : -1] if strides else (None, None)
        self.layout = to_native(layout, _LAYOUT)
        self.region = None if region is None else to_native(region, _REGION)
        self.info = None if info is None else to_native(info, _INFO)
        self.index = to_native(rest[-1], _COUNT)
        self.dtype = NUMPY_DTYPES[image.feature_channel_format]
        self.shape = self._shape(image)
        self.strides = self._strides(**{name: to_native(each, _COUNT) for name, each in given.items()})

    @property
    def named(self) -> dict[str, Any]:
        """The arguments that openmps takes."""
        return {
            "data_layout": self.layout,
            "region": self.region,
            "feature_channel_info": self.info,
            "image_index": self.index,
        }

    def _shape(self, image: Any) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels."""
        whole = (image.width, image.height, 1)
        size = self.region.size if self.region is not None else None
        width, height, depth = whole if size is None else (size.width, size.height, size.depth)
        info = self.info
        channels = image.feature_channels if info is None else info.number_of_feature_channels_to_read_write
        return depth, height, width, channels

    def _strides(self, column: int = 0, row: int = 0, image: int = 0) -> tuple[int, int, int, int]:
        """Bytes from one image, row, column and channel to the next; what is 0 follows without a gap."""
        _, height, width, channels = self.shape
        size, is_planar = self.dtype.itemsize, self.layout is MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
        column = column or (size if is_planar else size * channels)
        row = row or column * width
        plane = row * height
        return image or plane * (channels if is_planar else 1), row, column, plane if is_planar else size

    def elements(self, memory: memoryview) -> NDArray[Any]:
        """The elements in the caller's memory, in the order of the layout.

        Raises:
            ValueError: The memory ends before them.
        """
        ends = [(count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)]
        needed = sum(ends) + self.dtype.itemsize
        if needed > len(memory):
            raise ValueError(f"Requesting buffer of {needed}, have buffer of {len(memory)}")
        strides = [stride if count > 1 else 0 for count, stride in zip(self.shape, self.strides, strict=True)]
        found = np.ndarray(self.shape, self.dtype, memory, strides=strides)
        return found.transpose(0, 3, 1, 2) if self.layout is MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH else found


def _reader(*strides: str) -> Callable[..., Any]:
    def read(image: Any, buffer: Any, *arguments: Any) -> Any:
        native = native_object(image)
        transfer = _Transfer(native, arguments, strides)
        elements = transfer.elements(buffer_out(buffer))
        elements[...] = native.read_bytes(**transfer.named).reshape(elements.shape)
        return buffer

    return read


def _writer(*strides: str) -> Callable[..., Any]:
    def write(image: Any, buffer: Any, *arguments: Any) -> None:
        native = native_object(image)
        transfer = _Transfer(native, arguments, strides)
        native.write_bytes(np.ascontiguousarray(transfer.elements(bytes_in(buffer))), **transfer.named)

    return write


# --- copies, blits, errors --------------------------------------------------------------------------------------------


def _copy(thing: Any, zone: None, device: Any = None) -> Any:
    native = native_object(thing)
    made = native.copy() if device is None else native.copy(to_native(device, OBJECT))
    return object_for(made, type(thing))


def _blit(encoder: Any, source: Any, source_offset: Any, to: Any, to_offset: Any, size: Any) -> None:
    numbers = [to_native(each, _COUNT) for each in (source_offset, to_offset, size)]
    buffers = [to_native(each, OBJECT) for each in (source, to)]
    native_object(encoder).copy_from_buffer(buffers[0], numbers[0], buffers[1], numbers[1], numbers[2])


def _texture_2d(kind: Any, pixel_format: Any, width: Any, height: Any, mipmapped: Any) -> Any:
    sides = [to_native(each, _COUNT) for each in (width, height)]
    made = native_class(kind).texture_2d_descriptor(to_native(pixel_format, _PIXELS), *sides, bool(mipmapped))
    return object_for(made, kind)


def _variadic(*_: Any) -> Any:
    raise TypeError("variadic methods of numbers are not supported")


def _error(command_buffer: Any) -> Any:
    native = native_object(command_buffer)
    return None if native.error is None else error_of(native.error, int(native.error_code))


_WRITE_WITH_COLUMNS = (
    "-writeBytes:dataLayout:bytesPerColumn:bytesPerRow:bytesPerImage:region:featureChannelInfo:imageIndex:"
)
BY_HAND: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "-readBytes:dataLayout:imageIndex:": _reader(),
        "-readBytes:dataLayout:bytesPerRow:region:featureChannelInfo:imageIndex:": _reader("row"),
        "-readBytes:dataLayout:bytesPerRow:bytesPerImage:region:featureChannelInfo:imageIndex:": _reader(
            "row", "image"
        ),
        "-writeBytes:dataLayout:imageIndex:": _writer(),
        "-writeBytes:dataLayout:bytesPerRow:region:featureChannelInfo:imageIndex:": _writer("row"),
        "-writeBytes:dataLayout:bytesPerRow:bytesPerImage:region:featureChannelInfo:imageIndex:": _writer(
            "row", "image"
        ),
        _WRITE_WITH_COLUMNS: _writer("column", "row", "image"),
        "-copyWithZone:": _copy,
        "-copyWithZone:device:": _copy,
        "-copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:": _blit,
        "-error": _error,
        "+texture2DDescriptorWithPixelFormat:width:height:mipmapped:": _texture_2d,
        "+descriptorWithDataType:dimensionSizes:": _variadic,
        "+resourceListWithBufferSizes:": _variadic,
        "+resourceListWithTextureDescriptors:": _variadic,
        **TRANSFERS,
    }
)
"""What calls these selectors: the object, and the arguments as Python passes them."""
