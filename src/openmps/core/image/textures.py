"""Images in the memory of textures, and textures in the memory of images (MPSImage.h, macOS 10.13).

Neither copies the other. A texture's own memory lies with the components of all slices side by side
(`openmps.metal.texels.LevelMemory`), so images of any number of channels are views of it: one image is a run of its
channels, several are the same elements with their channels counted from another one on.
"""

from __future__ import annotations

from typing import cast

from openmps.checks import of_kind, whole
from openmps.core.image import views
from openmps.core.image.descriptor import MPSImageDescriptor, slices_of, texture_type_of
from openmps.core.image.storage import Block, Storage
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice, MTLTexture
from openmps.metal.pixel_formats import PIXEL_LAYOUTS, PixelLayout
from openmps.metal.texels import LevelMemory
from openmps.metal.texture_descriptor import MTLTextureDescriptor, checked_descriptor
from openmps.types import MTLPixelFormat, MTLTextureType

_COMPONENTS = 4
"""Components of a pixel whose slices can be channels of one image."""


def texture_of(device: MTLDevice, descriptor: MPSImageDescriptor, storage: Storage) -> MTLTexture:
    """A texture in the memory of an image of this descriptor."""
    extent = storage.extent
    shape = MTLTextureDescriptor(
        texture_type=texture_type_of(extent.channels, extent.images),
        pixel_format=descriptor.pixel_format,
        width=extent.width,
        height=extent.height,
        array_length=slices_of(extent.channels) * extent.images,
        usage=descriptor.usage,
        storage_mode=descriptor.storage_mode,
        cpu_cache_mode=descriptor.cpu_cache_mode,
    )
    return MTLTexture(device, shape, memory=storage)


def seen_of(who: str, texture: MTLTexture, feature_channels: object) -> tuple[MPSImageDescriptor, Storage]:
    """The images of so many channels that a texture holds in level 0: what describes them, and where they are."""
    layout = _linear(who, "texture", of_kind(who, "texture", texture, MTLTexture).pixel_format)
    asked = layout.components if feature_channels is None else feature_channels
    channels = whole(who, "feature_channels", asked)
    _check_channels(who, texture, layout, channels)
    memory, slices = texture.shown_memory()
    if isinstance(memory, LevelMemory):
        seen = _own(memory, layout, slices, channels)
    else:
        seen = _of_image(who, cast("Storage", memory), slices, channels)
    extent = seen.extent
    descriptor = MPSImageDescriptor(
        layout.channel_format, extent.width, extent.height, channels, extent.images, texture.usage
    )
    descriptor.storage_mode, descriptor.cpu_cache_mode = texture.storage_mode, texture.cpu_cache_mode
    return descriptor, seen


def described_by(who: str, device: MTLDevice, descriptor: MTLTextureDescriptor) -> MPSImageDescriptor:
    """The images that a texture of this descriptor holds, of as many channels as its pixels have components."""
    texture = checked_descriptor(who, device, descriptor)
    layout = _linear(who, "texture_descriptor", texture.pixel_format)
    return MPSImageDescriptor(
        layout.channel_format, texture.width, texture.height, layout.components, texture.array_length, texture.usage
    )


def _linear(who: str, argument: str, pixel_format: MTLPixelFormat) -> PixelLayout:
    """The layout of a format without the curve of sRGB, which kernels would have to undo at each read."""
    layout = PIXEL_LAYOUTS[pixel_format]
    if layout.is_srgb:
        rule = "must have a linear format: kernels read the numbers that are stored"
        remedy = "Take texture.new_texture_view of the format without sRGB, or MPSImage.from_numpy of texture.numpy()"
        raise MPSArgumentError(who, argument, rule, pixel_format.name, remedy)
    return layout


def _check_channels(who: str, texture: MTLTexture, layout: PixelLayout, channels: int) -> None:
    most = layout.components
    if texture.texture_type is MTLTextureType.TYPE_2D_ARRAY and most == _COMPONENTS:
        most *= texture.array_length
    if channels > most:
        rule = f"must be at most {most}, the components of the texture"
        raise MPSArgumentError(who, "feature_channels", rule, channels, "More need a TYPE_2D_ARRAY of RGBA slices")


def _of_image(who: str, storage: Storage, slices: range, channels: int) -> Storage:
    """Images in the memory of other ones, which has their channels without gaps."""
    try:
        return views.of_slices(who, storage, slices, channels)
    except MPSArgumentError as fault:
        remedy = "Slices of a texture that is made of a descriptor can be any channels"
        raise MPSArgumentError(who, "feature_channels", fault.rule, fault.got, remedy) from None


def _own(memory: LevelMemory, layout: PixelLayout, slices: range, channels: int) -> Storage:
    """Images in a texture's own memory; those that are runs of its channels share one block."""
    if memory.block is None:
        memory.block = Block.over(memory.tensor(), layout.channel_format)
    block: Block = memory.block
    each = -(-channels // layout.components)
    count, first = len(slices) // each, layout.components * slices.start
    if count == 1:
        return Storage(block, 0, 1, first, channels)
    width = each * layout.components
    several = block.tensor()[0, first : first + count * width].unflatten(0, (count, width))
    return Storage.of(Block.over(several, layout.channel_format)).with_channels(0, channels)
