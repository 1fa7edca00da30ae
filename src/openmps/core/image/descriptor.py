"""MPSImageDescriptor: shape and format of an image to be made (MPSImage.h, macOS 10.13)."""

from __future__ import annotations

from openmps.checks import KnownAttributes, as_index, store
from openmps.core.image.storage import Extent
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.metal.device import MTLDevice
from openmps.metal.pixel_formats import PIXEL_LAYOUTS
from openmps.selectors import Factory, name_arguments
from openmps.types import (
    NUMPY_DTYPES,
    MPSImageFeatureChannelFormat,
    MPSStateTextureInfo,
    MTLCPUCacheMode,
    MTLPixelFormat,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
)

_PIXEL_FORMATS = {
    (layout.channel_format, layout.components): pixel_format
    for pixel_format, layout in PIXEL_LAYOUTS.items()
    if not (layout.is_bgra or layout.is_srgb)
}


@name_arguments
class MPSImageDescriptor(KnownAttributes):
    """Shape and format of an image to be made (MPSImage.h, macOS 10.13).

    ``width`` and ``height`` are pixels, ``feature_channels`` numbers a pixel, ``number_of_images`` images in one
    object. ``pixel_format`` follows from the channel format and the channel count. ``usage`` and ``cpu_cache_mode``
    are kept for the program that asks for them and change nothing here; an image of ``storage_mode`` PRIVATE refuses
    reads and writes by the CPU. A side may be longer than 16,384 pixels, which no texture of a Mac has: `openmps lint`
    names such images of graphs.
    """

    image_descriptor = Factory(
        "imageDescriptorWithChannelFormat:width:height:featureChannels:",
        "imageDescriptorWithChannelFormat:width:height:featureChannels:numberOfImages:usage:",
    )

    __slots__ = (
        "channel_format",
        "cpu_cache_mode",
        "feature_channels",
        "height",
        "number_of_images",
        "storage_mode",
        "usage",
        "width",
    )

    channel_format: MPSImageFeatureChannelFormat
    width: int
    height: int
    feature_channels: int
    number_of_images: int
    usage: MTLTextureUsage
    cpu_cache_mode: MTLCPUCacheMode
    storage_mode: MTLStorageMode

    def __init__(
        self,
        channel_format: MPSImageFeatureChannelFormat,
        width: int = 1,
        height: int = 1,
        feature_channels: int = 1,
        number_of_images: int = 1,
        usage: MTLTextureUsage = MTLTextureUsage.SHADER_READ | MTLTextureUsage.SHADER_WRITE,
    ) -> None:
        self.channel_format = channel_format
        store(self, "width", width)
        store(self, "height", height)
        store(self, "feature_channels", feature_channels)
        store(self, "number_of_images", number_of_images)
        self.usage = usage
        store(self, "cpu_cache_mode", MTLCPUCacheMode.DEFAULT_CACHE)
        store(self, "storage_mode", MTLStorageMode.SHARED)

    @property
    def pixel_format(self) -> MTLPixelFormat:
        """The texture format behind the image: 1, 2 or 4 components of the channel format."""
        components = 4 if self.feature_channels > 2 else max(1, self.feature_channels)
        return _PIXEL_FORMATS.get((self.channel_format, components), MTLPixelFormat.INVALID)

    def copy(self) -> MPSImageDescriptor:
        """A descriptor of its own with the same values."""
        twin = MPSImageDescriptor.__new__(MPSImageDescriptor)
        store(twin, "channel_format", self.channel_format)
        store(twin, "width", self.width)
        store(twin, "height", self.height)
        store(twin, "feature_channels", self.feature_channels)
        store(twin, "number_of_images", self.number_of_images)
        store(twin, "usage", self.usage)
        store(twin, "cpu_cache_mode", self.cpu_cache_mode)
        store(twin, "storage_mode", self.storage_mode)
        return twin

    __copy__ = copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MPSImageDescriptor):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    # Descriptors change: they are no keys.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return (
            f"MPSImageDescriptor({self.channel_format.name}, width={self.width}, height={self.height}, "
            f"feature_channels={self.feature_channels}, number_of_images={self.number_of_images})"
        )

    # --- for those who make images --------------------------------------------------------------------------------

    def validate(self, who: str) -> Extent:
        """The shape of an image made from this descriptor.

        Raises:
            MPSArgumentError: The format cannot be stored, a size is not an integer of at least 1, or the storage mode
                is MEMORYLESS.
        """
        if self.channel_format not in NUMPY_DTYPES:
            rule = "must be UNORM8, UNORM16, FLOAT16 or FLOAT32"
            remedy = "Choose one of MPSImageFeatureChannelFormat"
            raise MPSArgumentError(who, "image_descriptor.channel_format", rule, self.channel_format.name, remedy)
        if self.storage_mode not in (MTLStorageMode.SHARED, MTLStorageMode.MANAGED, MTLStorageMode.PRIVATE):
            rule = "must be SHARED, MANAGED or PRIVATE"
            raise MPSArgumentError(who, "image_descriptor.storage_mode", rule, self.storage_mode.name)
        return Extent(
            _size(who, "width", self.width),
            _size(who, "height", self.height),
            _size(who, "feature_channels", self.feature_channels),
            _size(who, "number_of_images", self.number_of_images),
        )

    def texture_info(self) -> MPSStateTextureInfo:
        """What `MPSState.texture_info_at_index` says of a texture made from this descriptor."""
        slices = slices_of(self.feature_channels) * self.number_of_images
        return MPSStateTextureInfo(
            width=self.width,
            height=self.height,
            depth=1,
            array_length=slices,
            pixel_format=self.pixel_format,
            texture_type=texture_type_of(self.feature_channels, self.number_of_images),
            usage=self.usage,
        )


def check_is_descriptor(who: str, argument: str, descriptor: object) -> MPSImageDescriptor:
    """``descriptor`` if it is one."""
    if not isinstance(descriptor, MPSImageDescriptor):
        raise MPSTypeError(who, argument, "must be an MPSImageDescriptor", type(descriptor).__name__)
    return descriptor


def descriptors_of(who: str, given: object) -> list[MPSImageDescriptor]:
    """The descriptors of source images, one or a sequence of them."""
    if isinstance(given, MPSImageDescriptor):
        return [given]
    return listed(who, "image_descriptors", given, MPSImageDescriptor)


def check_fits(who: str, device: MTLDevice, channel_format: MPSImageFeatureChannelFormat, extent: Extent) -> None:
    """Raise `MPSArgumentError` if images of this shape are larger than all the memory of the device."""
    limit = device.max_buffer_length
    needed = extent.bytes_as(channel_format)
    if needed > limit:
        rule = f"must fit the {limit} bytes of memory of {device.name!r}"
        raise MPSArgumentError(who, "image_descriptor", rule, f"{needed} bytes for {extent}")


def slices_of(feature_channels: int) -> int:
    """Four-channel slices of one image."""
    return -(-feature_channels // 4)


def texture_type_of(feature_channels: int, number_of_images: int) -> MTLTextureType:
    """2D for one image of at most four channels, else a 2D array of four-channel slices."""
    single = feature_channels <= 4 and number_of_images == 1
    return MTLTextureType.TYPE_2D if single else MTLTextureType.TYPE_2D_ARRAY


def _size(who: str, name: str, value: object) -> int:
    number = value if type(value) is int else as_index(value)
    if number is None or number < 1:
        raise MPSArgumentError(who, f"image_descriptor.{name}", "must be an integer of at least 1", shown(value))
    return number
