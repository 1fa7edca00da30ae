"""MTLTextureDescriptor: shape and format of a texture to be made (MTLTexture.h, macOS 10.11)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from openmps.checks import NamedAttributes, flag, is_whole, of_kind
from openmps.errors import MPSArgumentError, shown
from openmps.metal.pixel_formats import PIXEL_LAYOUTS
from openmps.metal.processor import Processor
from openmps.selectors import name_arguments
from openmps.types import (
    ELEMENT_BYTES,
    MTLCPUCacheMode,
    MTLPixelFormat,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
)

LONGEST_SIDE = 16384
"""Pixels of a texture's side, on every GPU that has had MPSNNGraph since macOS 10.13, and on A9 and later."""
MOST_SLICES = 2048
"""Of an array, on the same GPUs."""
_TYPES = (MTLTextureType.TYPE_2D, MTLTextureType.TYPE_2D_ARRAY)
_STORED = (MTLStorageMode.SHARED, MTLStorageMode.MANAGED, MTLStorageMode.PRIVATE)


@name_arguments
@dataclass
class MTLTextureDescriptor(NamedAttributes):
    """Shape and format of a texture to be made (MTLTexture.h, macOS 10.11).

    ``width`` and ``height`` are pixels of level 0; each further one of the ``mipmap_level_count`` levels has half of
    them, rounded down, at least 1. A ``texture_type`` of TYPE_2D_ARRAY has ``array_length`` slices of that size.
    ``usage`` and ``cpu_cache_mode`` are kept for the program that asks for them and change nothing here; a texture of
    ``storage_mode`` PRIVATE refuses reads and writes by the CPU. Other types of textures, a ``depth`` and a
    ``sample_count`` other than 1 are refused where a texture is made.
    """

    texture_type: MTLTextureType = MTLTextureType.TYPE_2D
    pixel_format: MTLPixelFormat = MTLPixelFormat.RGBA8_UNORM
    width: int = 1
    height: int = 1
    depth: int = 1
    mipmap_level_count: int = 1
    sample_count: int = 1
    array_length: int = 1
    usage: MTLTextureUsage = MTLTextureUsage.SHADER_READ
    storage_mode: MTLStorageMode = MTLStorageMode.SHARED
    cpu_cache_mode: MTLCPUCacheMode = MTLCPUCacheMode.DEFAULT_CACHE

    @classmethod
    def texture_2d_descriptor(
        cls, pixel_format: MTLPixelFormat, width: int, height: int, mipmapped: bool
    ) -> MTLTextureDescriptor:
        """The descriptor of a 2D texture; ``mipmapped`` ones have all levels, down to one pixel.

        Raises:
            MPSArgumentError: The width or the height is not an integer of at least 1.
        """
        descriptor = cls(pixel_format=pixel_format, width=width, height=height)
        if flag(cls.__name__, "mipmapped", mipmapped):
            descriptor.mipmap_level_count = _most_levels(cls.__name__, descriptor)
        return descriptor

    def copy(self) -> MTLTextureDescriptor:
        """An equal descriptor."""
        return replace(self)


def checked_descriptor(who: str, device: Processor, descriptor: object) -> MTLTextureDescriptor:
    """A copy of a descriptor that textures of the device can be made of.

    Raises:
        MPSArgumentError: It cannot be stored, or is larger than the device's memory.
        MPSTypeError: It is no descriptor.
    """
    given = of_kind(who, "descriptor", descriptor, MTLTextureDescriptor)
    for name, allowed in (
        ("texture_type", _TYPES),
        ("pixel_format", tuple(PIXEL_LAYOUTS)),
        ("storage_mode", _STORED),
    ):
        value = getattr(given, name)
        if value not in allowed:
            rule = f"must be {', '.join(each.name for each in allowed)}"
            raise MPSArgumentError(who, f"descriptor.{name}", rule, value.name)
    most = MOST_SLICES if given.texture_type is MTLTextureType.TYPE_2D_ARRAY else 1
    _require(who, given, "array_length", most)
    for name in ("depth", "sample_count"):
        _require(who, given, name, 1)
    levels = _most_levels(who, given)
    _require(who, given, "mipmap_level_count", levels)
    needed = sum(level_bytes(given, level) for level in range(given.mipmap_level_count))
    if needed > device.max_buffer_length:
        rule = f"must fit the {device.max_buffer_length} bytes of memory of {device}"
        raise MPSArgumentError(who, "descriptor", rule, f"{needed} bytes")
    return given.copy()


def level_size(descriptor: MTLTextureDescriptor, level: int) -> tuple[int, int]:
    """Width and height of a mip level."""
    return max(1, descriptor.width >> level), max(1, descriptor.height >> level)


def level_bytes(descriptor: MTLTextureDescriptor, level: int) -> int:
    """Bytes of all slices of a mip level."""
    layout, size = PIXEL_LAYOUTS[descriptor.pixel_format], level_size(descriptor, level)
    return math.prod(size) * layout.components * descriptor.array_length * ELEMENT_BYTES[layout.channel_format]


def _most_levels(who: str, descriptor: MTLTextureDescriptor) -> int:
    """How many mip levels the size allows: the last has one pixel."""
    sides = (descriptor.width, descriptor.height)
    for name in ("width", "height"):
        _require(who, descriptor, name, LONGEST_SIDE)
    return max(sides).bit_length()


def _require(who: str, descriptor: MTLTextureDescriptor, name: str, most: int) -> None:
    value = getattr(descriptor, name)
    if not is_whole(value, 1) or value > most:
        rule = "must be 1" if most == 1 else f"must be an integer of 1 to {most}"
        remedy = "Slices need the texture_type TYPE_2D_ARRAY" if name == "array_length" and most == 1 else ""
        raise MPSArgumentError(who, f"descriptor.{name}", rule, shown(value), remedy)
