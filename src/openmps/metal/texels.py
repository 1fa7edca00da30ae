"""What an `MTLTexture` does by itself: its memory, its levels and slices, reads and writes by the CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import Shown, memory_for, of_kind, store, whole
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.locks import new_lock
from openmps.metal.array_protocols import as_array
from openmps.metal.host_elements import as_elements
from openmps.metal.pending import Region, mark_written, wait_until_written
from openmps.metal.pixel_formats import PIXEL_LAYOUTS, PixelLayout, numbers_of
from openmps.metal.processor import Processor
from openmps.metal.resource import Resource
from openmps.metal.texture_descriptor import MTLTextureDescriptor, level_bytes, level_size
from openmps.types import (
    ELEMENT_BYTES,
    NUMPY_DTYPES,
    MTLPixelFormat,
    MTLRegion,
    MTLTextureType,
    MTLTextureUsage,
    NSRange,
)

_BGRA = (2, 1, 0, 3)
"""Blue, green, red, alpha of components in the order of memory, and back."""
_allocation = new_lock()  # for an assignment only: a process may be forked while it is held


class TexelMemory(Protocol):
    """Memory that one mip level of a texture shows: elements ``[N, C, H, W]``.

    Channels of an image are a texture's slices of so many components as its pixels have, the last one filled up; the
    slices of the images follow one another.
    """

    def tensor(self) -> Tensor:
        """The elements, allocated on first use."""
        ...

    def region(self) -> Region:
        """The memory, as what writes and what reads it is compared by."""
        ...


class LevelMemory:
    """Memory of one mip level that belongs to a texture: ``[1, slices * components, height, width]``, zero at first.

    It lies channels-last, so that the components of all slices lie side by side: images see any number of them as
    their channels without a copy.
    """

    def __init__(self, device: Processor, descriptor: MTLTextureDescriptor, level: int) -> None:
        layout, (width, height) = PIXEL_LAYOUTS[descriptor.pixel_format], level_size(descriptor, level)
        self._shape = (1, layout.components * descriptor.array_length, height, width)
        self._device = device
        self._dtype = torch.from_numpy(np.empty(0, NUMPY_DTYPES[layout.channel_format])).dtype
        self._tensor: Tensor | None = None
        self.block: Any = None
        """The same memory as that of images; made, and left here, by the floor that knows images."""

    @property
    def present(self) -> Tensor | None:
        """The memory, if there is any."""
        return self._tensor

    def tensor(self) -> Tensor:
        """The elements, allocated on first use."""
        if self._tensor is None:
            with memory_for("MTLTexture", "memory"), torch.inference_mode(False):
                place, order = self._device.torch_device, torch.channels_last
                fresh = torch.empty(self._shape, dtype=self._dtype, device=place, memory_format=order).zero_()
            with _allocation:
                self._tensor = fresh if self._tensor is None else self._tensor
        return self._tensor

    def region(self) -> Region:
        """All of it."""
        return Region(self, (), self._tensor)


class Texels(Resource):
    """The pixels of an `MTLTexture`."""

    _descriptor: MTLTextureDescriptor
    _levels: tuple[TexelMemory, ...]
    _slices: range
    """Which of the slices of the memory these are."""
    _parent: Self | None = None
    _first_level: int = 0
    _first_slice: int = 0
    _made_by: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("width", "height", "pixel_format", "texture_type", "array_length", "mipmap_level_count", "usage"),
        "new_texture(descriptor) of the device",
    )

    def _lay_out(self, descriptor: MTLTextureDescriptor, memory: TexelMemory | None) -> None:
        """See ``memory`` in level 0, or have memory of its own in every level."""
        levels = range(descriptor.mipmap_level_count)
        own = tuple(LevelMemory(self.device, descriptor, level) for level in levels) if memory is None else (memory,)
        store(self, "_descriptor", descriptor)
        store(self, "_levels", own)
        store(self, "_slices", range(descriptor.array_length))

    width = Shown[int]("_descriptor.width", "Pixels in a row of level 0.")
    height = Shown[int]("_descriptor.height", "Rows of pixels of level 0.")
    depth = Shown[int]("_descriptor.depth", "1: textures of three dimensions are not offered.")
    pixel_format = Shown[MTLPixelFormat]("_descriptor.pixel_format", "How a pixel is stored.")
    texture_type = Shown[MTLTextureType]("_descriptor.texture_type", "TYPE_2D, or TYPE_2D_ARRAY of slices.")
    array_length = Shown[int]("_descriptor.array_length", "Slices; 1 unless it is an array.")
    mipmap_level_count = Shown[int]("_descriptor.mipmap_level_count", "Levels, each of half the size of the one above.")
    sample_count = Shown[int]("_descriptor.sample_count", "1: there is no multisampling.")
    usage = Shown[MTLTextureUsage]("_descriptor.usage", "What the texture was made for; it changes nothing here.")
    parent_texture = Shown["Texels | None"]("_parent", "The texture that a view was made from, else None.")
    parent_relative_level = Shown[int]("_first_level", "The level of the parent that is a view's level 0.")
    parent_relative_slice = Shown[int]("_first_slice", "The slice of the parent that is a view's slice 0.")

    def descriptor(self) -> MTLTextureDescriptor:
        """A descriptor that makes a texture like this one. Our addition."""
        return self._descriptor.copy()

    def __repr__(self) -> str:
        levels = f", {self.mipmap_level_count} levels" if self.mipmap_level_count > 1 else ""
        slices = f", {self.array_length} slices" if self.array_length > 1 else ""
        size = f"{self.width}x{self.height} {self.pixel_format.name}{levels}{slices}"
        return f"<{self.name} {size}, {self.storage_mode.name}, on {self.device.name}>"

    @property
    def is_allocated(self) -> bool:
        """Whether there is memory yet; it is allocated on first use."""
        return any(level.region().tensor is not None for level in self._levels)

    @property
    def allocated_size(self) -> int:
        """Bytes of memory that the texture shows now (macOS 10.13): 0 before the first use."""
        there = [index for index, level in enumerate(self._levels) if level.region().tensor is not None]
        return sum(level_bytes(self._descriptor, index) for index in there)

    def _discard(self) -> None:
        # Images may see the memory: it stays, and holds what new memory would.
        for level in range(self.mipmap_level_count) if self.is_allocated else ():
            for index in range(self.array_length):
                self._stored(level, index).zero_()

    # --- the CPU's side ----------------------------------------------------------------------------------------------

    def replace_region(
        self,
        region: MTLRegion | None,
        mipmap_level: int,
        with_bytes: Any,
        bytes_per_row: int | None = None,
        *,
        slice: int = 0,
    ) -> None:
        """Store elements in a region of a level, of one slice (``replaceRegion:mipmapLevel:slice:withBytes:…``).

        Args:
            region: Which pixels, all of the level where it is None.
            mipmap_level: Which level.
            with_bytes: An array ``[height, width, components]`` of the format's own dtype, in the order of the pixel
                format (blue first in BGRA formats), or raw bytes.
            bytes_per_row: From one row of raw bytes to the next; without it rows follow one another.
            slice: Which slice of an array.

        Raises:
            MPSArgumentError: The storage mode is PRIVATE; there is no such level, slice or region; bytes are missing.
            MPSTypeError: The elements have another type than the format's.
        """
        self._check_cpu_access("replace_region")
        rows, columns = self._selected(region, mipmap_level, slice)
        shape = (rows.stop - rows.start, columns.stop - columns.start, self._layout.components)
        data = with_bytes if bytes_per_row is None else self._tight(with_bytes, bytes_per_row, shape)
        dtype = NUMPY_DTYPES[self._layout.channel_format]
        pixels = self._reordered(as_elements(self.name, "with_bytes", data, dtype, shape, "Look at the region"))
        self._put(self._stored(mipmap_level, slice)[:, rows, columns], mipmap_level, pixels)

    def get_bytes(self, region: MTLRegion | None = None, mipmap_level: int = 0, slice: int = 0) -> NDArray[Any]:
        """The elements of a region of a level, a copy ``[height, width, components]`` in the format's own dtype.

        They come in the order of the pixel format: blue first in BGRA formats. Components that an image of three
        channels, or of any number that is no multiple of four, does not have are 0. Arguments as for `replace_region`.
        Waits for committed command buffers that write the texture.

        Raises:
            MPSArgumentError: The storage mode is PRIVATE; there is no such level, slice or region.
            MTLCommandBufferError: A command buffer that is not committed has yet to write the texture.
        """
        self._check_cpu_access("get_bytes")
        rows, columns = self._selected(region, mipmap_level, slice)
        return self._reordered(self._read("get_bytes", mipmap_level, slice)[rows, columns])

    def numpy(self, mipmap_level: int = 0) -> NDArray[np.float32]:
        """The numbers of a level, a float32 copy ``[H, W, components]``, or ``[slices, H, W, components]`` of an array.

        Red comes first in every format; numbers of sRGB formats are linear, as a shader reads them. Our addition.
        """
        self._check_cpu_access("numpy")
        self._selected(None, mipmap_level, 0)
        slices = [self._read("numpy", mipmap_level, index) for index in range(self.array_length)]
        found = numbers_of(np.stack(slices), self._layout)
        return found if self.texture_type is MTLTextureType.TYPE_2D_ARRAY else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return as_array(self.name, self.numpy(), dtype, copy, is_own=True, remedy="Use numpy(), which is a copy")

    def new_texture_view(
        self,
        pixel_format: MTLPixelFormat,
        texture_type: MTLTextureType | None = None,
        levels: NSRange | range | None = None,
        slices: NSRange | range | None = None,
    ) -> Self:
        """A texture in the memory of this one: of some levels, some slices, or with the curve of sRGB put on or off.

        Raises:
            MPSArgumentError: The format stores pixels in another way; there are no such levels or slices; the type is
                not that of so many slices.
        """
        asked, descriptor = self._viewed_as(pixel_format), self.descriptor()
        level_span = _span(self.name, "levels", levels, self.mipmap_level_count)
        slice_span = _span(self.name, "slices", slices, self.array_length)
        descriptor.pixel_format = asked
        descriptor.width, descriptor.height = level_size(descriptor, level_span.start)
        descriptor.mipmap_level_count, descriptor.array_length = len(level_span), len(slice_span)
        if texture_type is not None:
            descriptor.texture_type = self._type_of_view(texture_type, len(slice_span))
        view = copy.copy(self)
        for name, value in (
            ("_descriptor", descriptor),
            ("_levels", self._levels[level_span.start : level_span.stop]),
            ("_slices", self._slices[slice_span.start : slice_span.stop]),
            ("_parent", self),
            ("_first_level", level_span.start),
            ("_first_slice", slice_span.start),
        ):
            store(view, name, value)
        view.label = None
        return view

    # --- for those who extend the framework --------------------------------------------------------------------------

    def shown_memory(self) -> tuple[TexelMemory, range]:
        """The memory of level 0, and which of its slices these are."""
        return self._levels[0], self._slices

    def put(self, mipmap_level: int, pixels: NDArray[Any]) -> None:
        """Store the elements of all of slice 0 of a level, red first, whatever the storage mode."""
        level = _below(self.name, "mipmap_level", mipmap_level, self.mipmap_level_count)
        stored = self._stored(level, 0)
        expected = *stored.shape[1:], self._layout.components
        if np.shape(pixels) != expected:
            rule = f"must be all of the level, {expected}"
            raise MPSArgumentError(self.name, "pixels", rule, np.shape(pixels), "Use replace_region for a part")
        self._put(stored, level, pixels)

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _layout(self) -> PixelLayout:
        return PIXEL_LAYOUTS[self._descriptor.pixel_format]

    def _stored(self, level: int, slice: int) -> Tensor:
        """The elements of a slice, ``[components, height, width]``: of an image only those that it has."""
        stored, components = self._levels[level].tensor(), self._layout.components
        image, place = divmod(self._slices[slice], -(-stored.shape[1] // components))
        return stored[image, components * place : components * (place + 1)]

    def _put(self, stored: Tensor, level: int, pixels: NDArray[Any]) -> None:
        stored.copy_(torch.from_numpy(np.ascontiguousarray(pixels[..., : len(stored)])).permute(2, 0, 1))
        mark_written((self._levels[level].region(),))

    def _read(self, method: str, level: int, slice: int) -> NDArray[Any]:
        """A copy of the elements of a slice, ``[height, width, components]``, in the order of memory."""
        wait_until_written(self.name, method, (self._levels[level].region(),))
        stored = self._stored(level, slice).permute(1, 2, 0).cpu().numpy()
        found = np.zeros((*stored.shape[:2], self._layout.components), stored.dtype)
        found[..., : stored.shape[2]] = stored
        return found

    def _reordered(self, pixels: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(pixels[..., _BGRA] if self._layout.is_bgra else pixels)

    def _selected(self, region: object, level: object, slice: object) -> tuple[slice, slice]:
        """Rows and columns of a region of a level that is there."""
        index = _below(self.name, "mipmap_level", level, self.mipmap_level_count)
        _below(self.name, "slice", slice, self.array_length)
        width, height = level_size(self._descriptor, index)
        if region is None:
            return _slice(0, height), _slice(0, width)
        found = of_kind(self.name, "region", region, MTLRegion)
        origin, size = found.origin, found.size
        if (origin.z, size.depth) != (0, 1):
            raise MPSArgumentError(self.name, "region", "must have z 0 and depth 1", f"{origin.z} and {size.depth}")
        if size.width < 1 or size.height < 1 or origin.x + size.width > width or origin.y + size.height > height:
            got = f"{size.width}x{size.height} from ({origin.x}, {origin.y})"
            raise MPSArgumentError(self.name, "region", f"must lie in the {width}x{height} pixels of the level", got)
        return _slice(origin.y, origin.y + size.height), _slice(origin.x, origin.x + size.width)

    def _tight(self, data: Any, bytes_per_row: object, shape: tuple[int, int, int]) -> bytes:
        """Raw bytes whose rows follow one another."""
        if not isinstance(data, bytes | bytearray | memoryview):
            rule = "must be left out where with_bytes is an array, which has strides of its own"
            raise MPSTypeError(self.name, "bytes_per_row", rule, shown(bytes_per_row))
        height, row = shape[0], shape[1] * shape[2] * ELEMENT_BYTES[self._layout.channel_format]
        pitch = whole(self.name, "bytes_per_row", bytes_per_row, row)
        raw = bytes(data)
        needed = pitch * (height - 1) + row
        if len(raw) < needed:
            raise MPSArgumentError(self.name, "with_bytes", f"must hold {needed} bytes", len(raw))
        return b"".join(raw[first : first + row] for first in range(0, needed, pitch))

    def _viewed_as(self, pixel_format: object) -> MTLPixelFormat:
        """A format that differs from the texture's in the curve of sRGB at most."""
        layout = PIXEL_LAYOUTS.get(pixel_format) if isinstance(pixel_format, MTLPixelFormat) else None
        if layout is None or layout._replace(is_srgb=False) != self._layout._replace(is_srgb=False):
            rule = f"must be {self.pixel_format.name}, or differ from it in sRGB alone"
            got = getattr(pixel_format, "name", shown(pixel_format))
            raise MPSArgumentError(self.name, "pixel_format", rule, got, "Copy the numbers to another texture")
        return MTLPixelFormat(pixel_format)  # pyright: ignore[reportArgumentType]

    def _type_of_view(self, texture_type: object, slices: int) -> MTLTextureType:
        allowed = [MTLTextureType.TYPE_2D_ARRAY, *([MTLTextureType.TYPE_2D] if slices == 1 else [])]
        if not isinstance(texture_type, MTLTextureType) or texture_type not in allowed:
            rule = f"must be {' or '.join(each.name for each in allowed)} for {slices} slice(s)"
            raise MPSArgumentError(self.name, "texture_type", rule, getattr(texture_type, "name", shown(texture_type)))
        return texture_type


_slice = slice
"""The built-in class, where an argument has its name."""


def _below(who: str, argument: str, value: object, count: int) -> int:
    index = whole(who, argument, value, 0)
    if index >= count:
        raise MPSArgumentError(who, argument, f"must be below {count}", shown(value))
    return index


def _span(who: str, argument: str, span: object, count: int) -> range:
    """A range of what there is ``count`` of, as Python's."""
    if span is None:
        return range(count)
    found = range(span.location, span.location + span.length) if isinstance(span, NSRange) else span
    if not isinstance(found, range) or found.step != 1:
        raise MPSTypeError(who, argument, "must be an NSRange(location, length), or a range of step 1", shown(span))
    if not 0 <= found.start < found.stop <= count:
        raise MPSArgumentError(who, argument, f"must select some of {count}", shown(span))
    return found
