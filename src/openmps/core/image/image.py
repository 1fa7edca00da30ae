"""MPSImage: pixels with any number of feature channels, and who makes them (MPSImage.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, Labelled, Shown, of_kind, store
from openmps.core.image import arrays, io, textures, views
from openmps.core.image.descriptor import MPSImageDescriptor, check_fits, check_is_descriptor, texture_type_of
from openmps.core.image.picture import png_of
from openmps.core.image.storage import Block, Extent, Shape, Stack, Storage
from openmps.core.lifetime import check_device, check_is_device, record_synchronize
from openmps.core.operand import Operand
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.array_protocols import exported, location
from openmps.metal.device import CommandBuffer, MTLDevice, MTLTexture
from openmps.metal.pending import mark_written, require_written, unwritten, wait_until_written
from openmps.metal.resource import check_purgeable
from openmps.types import (
    ELEMENT_BYTES,
    PRECISION_BITS,
    MPSDataLayout,
    MPSImageFeatureChannelFormat,
    MPSImageReadWriteParams,
    MPSPurgeableState,
    MTLPixelFormat,
    MTLRegion,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
    NSRange,
)


class MPSImage(KnownAttributes, Labelled, Operand):
    """Images of numbers with any count of feature channels (MPSImage.h, macOS 10.13).

    ``MPSImage(device, image_descriptor)`` makes an image whose memory is allocated, and zero, on first use;
    `from_numpy` and `from_tensor` make one of numbers that are there.
    ``MPSImage(parent_image=…, slice_range=…, feature_channels=…)`` is a view of a range of four-channel slices of
    another image: whole images of it, or some channels of one.
    ``MPSImage(texture=…, feature_channels=…)`` is an image in the memory of a texture: of its level 0, which as an
    array holds as many images as its slices of four channels are enough for. Without ``feature_channels`` an image has
    as many as a pixel of the texture has components; a picture without alpha in an RGBA texture is one of 3. What is
    written to either shows in both.

    `read_bytes` and `write_bytes` show the stored elements in the framework's two layouts, `numpy` gives the numbers,
    `tensor` the memory itself. Reading waits for committed command buffers that write the image, and raises while one
    that is not committed has yet to write it; in a handler, or in recorded work, the image is read as it is then.

    Raises:
        MPSArgumentError: The descriptor cannot be stored, or is larger than the device's memory; the texture has too
            few slices, or its colours are stored by the curve of sRGB.
        MPSTypeError: An argument has the wrong type, or the parent is temporary.
        MTLCommandBufferError: The image is read while a command buffer that is not committed has yet to write it.
    """

    _device: MTLDevice
    _descriptor: MPSImageDescriptor
    _parent: MPSImage | None
    _texture: MTLTexture | None = None
    _is_of_texture: bool = False
    _whole: Stack | None = None
    _purgeable: MPSPurgeableState
    storage: Storage
    """Where the pixels are; for those who extend the framework."""

    def __init__(
        self,
        device: MTLDevice | MPSImage | MTLTexture | None = None,
        image_descriptor: MPSImageDescriptor | NSRange | range | int | None = None,
        feature_channels: int | None = None,
        *,
        parent_image: MPSImage | None = None,
        slice_range: NSRange | range | None = None,
        texture: MTLTexture | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(device, MTLTexture) and texture is None:
            texture, device = device, None  # (texture, feature_channels)
            if feature_channels is None and isinstance(image_descriptor, int):
                feature_channels, image_descriptor = image_descriptor, None
        if texture is not None:
            if not (device is image_descriptor is parent_image is slice_range is None):
                raise MPSTypeError(name, "texture", "must be given with feature_channels alone")
            self._see(name, texture, feature_channels)
            return
        if isinstance(device, MPSImage) and isinstance(image_descriptor, NSRange | range):
            parent_image, slice_range = device, image_descriptor  # (parent_image, slice_range, feature_channels)
        if parent_image is None:
            device = check_is_device(name, "device", device)
            descriptor = check_is_descriptor(name, "image_descriptor", image_descriptor).copy()
            self._initialise(device, descriptor, new_storage(name, device, descriptor), None)
            return
        of_kind(name, "parent_image", parent_image, MPSImage)
        if parent_image.is_temporary:
            remedy = "Use its batch_representation() or sub_image()"
            raise MPSTypeError(name, "parent_image", "must not be temporary", repr(parent_image), remedy)
        view = views.of_slices(parent_image.name, parent_image.storage, slice_range, feature_channels)
        self._initialise(parent_image.device, parent_image.descriptor(), view, parent_image)

    def _initialise(
        self, device: MTLDevice, descriptor: MPSImageDescriptor, storage: Storage, parent: MPSImage | None
    ) -> None:
        store(self, "storage", storage)
        store(self, "_device", device)
        store(self, "_descriptor", descriptor)
        store(self, "_parent", parent)
        store(self, "_purgeable", MPSPurgeableState.NON_VOLATILE)

    def _see(self, name: str, texture: MTLTexture, feature_channels: object) -> None:
        """Be an image in the memory of a texture."""
        descriptor, storage = textures.seen_of(name, texture, feature_channels)
        self._initialise(texture.device, descriptor, storage, None)
        store(self, "_texture", texture)
        store(self, "_is_of_texture", True)

    @classmethod
    def member(
        cls, device: MTLDevice, descriptor: MPSImageDescriptor, storage: Storage, parent: MPSImage | None = None
    ) -> MPSImage:
        """An image whose pixels are there already: one of a batch in one block, or a view of ``parent``."""
        image = MPSImage.__new__(MPSImage)
        image._initialise(device, descriptor, storage, parent)
        return image

    @classmethod
    def from_numpy(
        cls, device: MTLDevice, array: Any, channel_format: MPSImageFeatureChannelFormat | None = None
    ) -> MPSImage:
        """An image with a copy of ``array``, ``[height, width, channels]``, or ``[images, height, width, channels]``.

        Elements of the format's own type are stored as they are: uint8 255 stands for 1.0 in UNORM8. Other floating
        point numbers are rounded, from float32, and clamped to [0, 1] by the unorm formats. Without a
        ``channel_format`` uint8, uint16, float16 and float32 keep their type, and float64 becomes FLOAT32. The inverse
        of `numpy`.

        Raises:
            MPSArgumentError: The array has another number of axes, or an axis of size 0.
            MPSTypeError: Its type has no such meaning in the format, as integers in FLOAT32.
        """
        block = arrays.from_numpy(cls.__name__, device, array, channel_format, (3, 4))
        return MPSImage.member(device, arrays.descriptor_of(block), Storage.of(block))

    @classmethod
    def from_tensor(
        cls,
        device: MTLDevice,
        tensor: Any,
        channel_format: MPSImageFeatureChannelFormat | None = None,
        copy: bool | None = None,
        data_layout: MPSDataLayout = MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH,
    ) -> MPSImage:
        """An image of a tensor in PyTorch's order, ``[channels, height, width]`` or ``[images, channels, …]``.

        With a ``data_layout`` of HEIGHT_X_WIDTH_X_FEATURE_CHANNELS it is ``[height, width, channels]`` or ``[images,
        height, …]``: then memory without gaps is channels-last.
        ``tensor`` is a torch.Tensor or another library's with ``__dlpack__``. Its memory is shared, so that writing to
        either shows in both, if it lies on the device, channels-last, in the format's own type; else, and with
        ``copy=True``, it is copied. ``copy=False`` raises rather than copy. Types as for `from_numpy`. The inverse of
        `tensor`.

        Raises:
            MPSArgumentError: As `from_numpy`; or the memory cannot be shared and ``copy`` is False.
            MPSTypeError: As `from_numpy`; or it is no tensor.
        """
        block = arrays.from_tensor(cls.__name__, device, tensor, channel_format, copy, (3, 4), data_layout)
        return MPSImage.member(device, arrays.descriptor_of(block), Storage.of(block))

    @staticmethod
    def default_allocator() -> MPSImageAllocator:
        """The allocator of ordinary images."""
        return defined_above.ordinary_allocator

    # --- what it is -------------------------------------------------------------------------------------------------

    device = Shown[MTLDevice]("_device", "The device whose memory holds the image.")
    width = Shown[int]("storage.block.extent.width", "Pixels in a row.")
    height = Shown[int]("storage.block.extent.height", "Rows of pixels.")
    feature_channels = Shown[int]("storage.channels", "Numbers in a pixel.")
    number_of_images = Shown[int]("storage.count", "Images in this object.")
    feature_channel_format = Shown[MPSImageFeatureChannelFormat](
        "storage.block.channel_format", "How a number is stored."
    )

    @property
    def pixel_format(self) -> MTLPixelFormat:
        """The texture format behind the image."""
        return self.descriptor().pixel_format if self._texture is None else self._texture.pixel_format

    @property
    def precision(self) -> int:
        """Bits of numeric precision of a channel: 8, 16, 11 (half) or 24 (single)."""
        return PRECISION_BITS[self.feature_channel_format]

    @property
    def pixel_size(self) -> int:
        """Bytes from one pixel of a texture slice to the next in the framework: 1, 2 or 4 elements."""
        components = self.feature_channels if self.feature_channels < 3 else 4
        return ELEMENT_BYTES[self.feature_channel_format] * components

    usage = Shown[MTLTextureUsage](
        "_descriptor.usage", "What the image was made for; the CPU may write it whatever it says."
    )

    @property
    def texture_type(self) -> MTLTextureType:
        """2D for one image of at most four channels, else a 2D array of four-channel slices."""
        return texture_type_of(self.feature_channels, self.number_of_images)

    @property
    def texture(self) -> MTLTexture:
        """The image's memory as a texture, always the same object: the one that it was made from, if any.

        Each image has a slice of the texture for each four channels; components that it does not have are 0 there.
        """
        if self._texture is None:
            store(self, "_texture", textures.texture_of(self.device, self.descriptor(), self.storage))
        found: Any = self._texture
        return found

    parent = Shown["MPSImage | None"](
        "_parent", "The image that a view was made from; None for an image with memory of its own."
    )

    @property
    def is_temporary(self) -> bool:
        """Whether the image lives on one command buffer."""
        return False

    def descriptor(self) -> MPSImageDescriptor:
        """A descriptor that makes an image like this one."""
        twin = self._descriptor.copy()
        twin.width, twin.height = self.width, self.height
        twin.feature_channels, twin.number_of_images = self.feature_channels, self.number_of_images
        return twin

    def resource_size(self) -> int:
        """Bytes of the memory behind the image, allocated or not; 0 for a view, and for an image of a texture."""
        return (
            0
            if self._parent is not None or self._is_of_texture
            else self.storage.extent.bytes_as(self.feature_channel_format)
        )

    def set_purgeable_state(self, state: MPSPurgeableState) -> MPSPurgeableState:
        """Say whether the contents may be discarded, and return what held before.

        The result is ALLOCATION_DEFERRED while there is no memory yet; the request is ignored then. EMPTY discards the
        contents: the next use finds zeros. VOLATILE contents are kept here.

        Raises:
            MPSArgumentError: ALLOCATION_DEFERRED is no state to ask for.
        """
        check_purgeable(self.name, state)
        block, empty = self.storage.block, MPSPurgeableState.EMPTY
        if not block.is_allocated and self._purgeable is not empty:
            return MPSPurgeableState.ALLOCATION_DEFERRED
        before = self._purgeable
        if state is not MPSPurgeableState.KEEP_CURRENT:
            self._purgeable = state
        if state is empty and self.storage.is_whole and not block.is_shared:
            block.discard()
        elif state is empty and block.is_allocated:
            self.storage.tensor().zero_()
        return before

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Make the results of queued work visible to the CPU when ``command_buffer`` has completed.

        Memory is coherent here, so nothing is moved; the call is checked and keeps its place in the record.
        """
        if unwritten:
            require_written(self.name, "synchronize", (self.storage.region(),))
        record_synchronize(self.name, command_buffer, self.device)

    # --- contents ---------------------------------------------------------------------------------------------------

    def read_bytes(
        self,
        data_layout: MPSDataLayout = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS,
        region: MTLRegion | None = None,
        feature_channel_info: MPSImageReadWriteParams | None = None,
        image_index: int = 0,
    ) -> NDArray[Any]:
        """The stored elements, tight, in the format's own dtype.

        Returns ``[y, x, channel]`` (HEIGHT_X_WIDTH_X_FEATURE_CHANNELS) or ``[channel, y, x]`` of image
        ``image_index``; with a region of depth n > 1, n images from ``image_index + region.origin.z`` on, along a new
        first axis.
        """
        self._wait_until_written("read_bytes")
        return io.read(self.name, self.storage, data_layout, region, feature_channel_info, image_index)

    def write_bytes(
        self,
        data_bytes: Any,
        data_layout: MPSDataLayout = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS,
        region: MTLRegion | None = None,
        feature_channel_info: MPSImageReadWriteParams | None = None,
        image_index: int = 0,
    ) -> None:
        """Store elements, given in the format's own dtype (or as raw bytes) in one of the two layouts.

        Arguments as for `read_bytes`. ``data_bytes`` is an array of the shape that `read_bytes` returns, or flat.
        """
        self.check_cpu_access("write_bytes")
        io.write(self.name, self.storage, data_bytes, data_layout, region, feature_channel_info, image_index)
        mark_written((self.storage.region(),))

    def numpy(self) -> NDArray[np.float32]:
        """The numbers of the image, a float32 copy: ``[H, W, C]``, or ``[N, H, W, C]`` if there are several images."""
        self._wait_until_written("numpy")
        values = arrays.to_numpy(self.storage.values())
        return values[0] if self.number_of_images == 1 else values

    def tensor(self) -> torch.Tensor:
        """The stored elements ``[N, C, H, W]`` as a tensor that shares the image's memory."""
        self._wait_until_written("tensor")
        return self.storage.tensor()

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> object:
        return exported(self.name, self.tensor(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return location(self.device.torch_device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return arrays.array_of(self.name, self.numpy(), dtype, copy)

    def _wait_until_written(self, method: str) -> None:
        """Raise, or wait, unless the CPU may read the image now."""
        self.check_cpu_access(method)
        wait_until_written(self.name, method, (self.storage.region(),))

    def check_cpu_access(self, method: str) -> None:
        """Raise unless the CPU may read and write the image."""
        if self._descriptor.storage_mode is MTLStorageMode.PRIVATE:
            remedy = "Encode into an image of storage mode SHARED"
            raise MPSArgumentError(self.name, method, "needs memory that the CPU may touch", "PRIVATE storage", remedy)

    # --- views ------------------------------------------------------------------------------------------------------

    def batch_representation(self, sub_range: NSRange | range | None = None) -> Sequence[MPSImage]:
        """The images of this object, or those of ``sub_range``, as an `MPSImageBatch` of views.

        They share its memory both ways. Views of a temporary image together hold one of its reads, given back when the
        last of them was read.
        """
        return defined_above.batch_of(self._views(views.of_images(self.name, self.storage, sub_range)))

    def sub_image(self, feature_channel_range: NSRange | range) -> MPSImage:
        """A view of some feature channels; location and length are multiples of 4, a length too long is cut."""
        return self._views([views.of_channels(self.name, self.storage, feature_channel_range)])[0]

    def _views(self, storages: list[Storage]) -> list[MPSImage]:
        descriptor = self.descriptor()
        return [MPSImage.member(self.device, descriptor, storage, self) for storage in storages]

    # --- for the encode path ----------------------------------------------------------------------------------------

    def whole(self) -> Stack:
        """All images, as an encode sees them."""
        whole = self._whole
        if whole is None or whole.parts[0] is not self.storage:
            whole = self.stack(0, self.storage.count)
            store(self, "_whole", whole)
        return whole

    def stack(self, first: int, count: int) -> Stack:
        """``count`` of the images, from ``first`` on, as an encode sees them."""
        part = self.storage if (first, count) == (0, self.storage.count) else self.storage.narrowed(first, count)
        return Stack((part,), Shape(part.extent, part.block.channel_format))

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use this image."""
        if self.device is not (device := command_buffer.device):
            check_device(who, argument, self.device, device)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from the read count; ordinary images have none."""

    def add_reads(self, amount: int) -> None:
        """Change the read count unless it is 0; ordinary images have none."""

    def fewest_reads(self) -> int | None:
        """The read count; ordinary images have none."""
        return None

    def __repr__(self) -> str:
        several = f", {self.number_of_images} images" if self.number_of_images > 1 else ""
        return (
            f"<{self.name} {self.width}x{self.height}x{self.feature_channels} "
            f"{self.feature_channel_format.name}{several} on {self.device.name}>"
        )

    def _repr_png_(self) -> bytes | None:
        return png_of(self.numpy)


@runtime_checkable
class MPSImageAllocator(Protocol):
    """Makes the images that encodes return (MPSImage.h, macOS 10.13).

    An allocator may also offer ``image_batch(command_buffer, image_descriptor, kernel, count)``; without it `image` is
    called ``count`` times.
    """

    def image(self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        """An image that lives at least until the command buffer has completed."""
        ...


class DefinedAbove:
    """What images hand out and modules above define, which say so here, once, when they are imported."""

    ordinary_allocator: MPSImageAllocator
    temporary_allocator: MPSImageAllocator
    batch_of: Callable[[Iterable[MPSImage]], Sequence[MPSImage]]


defined_above = DefinedAbove()


def new_storage(who: str, device: MTLDevice, descriptor: MPSImageDescriptor, count: int = 1) -> Storage:
    """Memory for ``count`` images of this descriptor, allocated on first use."""
    extent = descriptor.validate(who)
    if count != 1:
        extent = Extent(extent.width, extent.height, extent.channels, count * extent.images)
    check_fits(who, device, descriptor.channel_format, extent)
    return Storage.of(Block(device.torch_device, descriptor.channel_format, extent))
