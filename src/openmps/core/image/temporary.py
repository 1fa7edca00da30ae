"""MPSTemporaryImage: an image that lives on one command buffer (MPSImage.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from openmps.checks import listed, one_of_two, store
from openmps.core.image.descriptor import MPSImageDescriptor, check_is_descriptor, slices_of
from openmps.core.image.image import MPSImage, MPSImageAllocator, defined_above, new_storage
from openmps.core.image.storage import Storage
from openmps.core.image.textures import described_by
from openmps.core.lifetime import TemporaryCounts, check_is_open, check_lifetime, check_not_ended, check_reads
from openmps.core.read_count import ReadCounts
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLTexture
from openmps.metal.texture_descriptor import MTLTextureDescriptor
from openmps.selectors import Factory
from openmps.types import MPSPurgeableState, MTLStorageMode


class MPSTemporaryImage(MPSImage):
    """An image that lives on one command buffer, in memory that is reused once it was read (MPSImage.h, macOS 10.13).

    `read_count` starts at 1: each encode that reads the image takes one for each source argument, writing takes none;
    at 0 the contents are gone and using the image raises `MPSLifetimeError`. The CPU cannot read or write it.

    ``texture_descriptor`` is an `MTLTextureDescriptor`, or an `MPSImageDescriptor` in its place: its number of
    four-channel slices, divided by what ``feature_channels`` need, is the number of images.

    Raises:
        MTLCommandBufferError: The command buffer is committed already.
        MPSArgumentError: The descriptor cannot be stored, or is larger than the device's memory.
    """

    temporary_image = Factory(
        "temporaryImageWithCommandBuffer:imageDescriptor:",
        "temporaryImageWithCommandBuffer:textureDescriptor:featureChannels:",
    )

    _command_buffer: CommandBuffer
    _counts: ReadCounts
    _index: int

    def __init__(
        self,
        command_buffer: CommandBuffer,
        image_descriptor: MPSImageDescriptor | None = None,
        feature_channels: int | None = None,
        *,
        texture_descriptor: MPSImageDescriptor | MTLTextureDescriptor | None = None,
    ) -> None:
        name = type(self).__name__
        command_buffer = check_is_open(name, command_buffer)
        one_of_two(name, "image_descriptor", image_descriptor, "texture_descriptor", texture_descriptor)
        if texture_descriptor is not None:
            if isinstance(texture_descriptor, MTLTextureDescriptor):
                texture_descriptor = described_by(name, command_buffer.device, texture_descriptor)
            image_descriptor = _of_texture(name, texture_descriptor, feature_channels)
        elif feature_channels is not None:
            raise MPSTypeError(name, "feature_channels", "belongs to texture_descriptor=…", feature_channels)
        descriptor = private_copy(name, image_descriptor)
        storage = new_storage(name, command_buffer.device, descriptor)
        self._initialise(command_buffer.device, descriptor, storage, None)
        self._join(command_buffer, TemporaryCounts(command_buffer, storage.block, 1), 0)

    def _join(self, command_buffer: CommandBuffer, counts: ReadCounts, index: int) -> None:
        store(self, "_command_buffer", command_buffer)
        store(self, "_counts", counts)
        store(self, "_index", index)

    @classmethod
    def temporary_member(
        cls,
        descriptor: MPSImageDescriptor,
        storage: Storage,
        command_buffer: CommandBuffer,
        counts: ReadCounts,
        index: int,
        parent: MPSImage | None = None,
    ) -> MPSTemporaryImage:
        """Member ``index`` of a temporary batch that lies in one block, or of the views of ``parent``."""
        image = MPSTemporaryImage.__new__(MPSTemporaryImage)
        image._initialise(command_buffer.device, descriptor, storage, parent)
        image._join(command_buffer, counts, index)
        return image

    @classmethod
    def from_numpy(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Not offered: the CPU cannot write temporary images."""
        _refuse(cls.__name__, "from_numpy", "Use MPSImage.from_numpy")

    @classmethod
    def from_tensor(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Not offered: a temporary image has memory of its own."""
        _refuse(cls.__name__, "from_tensor", "Use MPSImage.from_tensor")

    @staticmethod
    def default_allocator() -> MPSImageAllocator:
        """The allocator of temporary images, the default of a kernel's encode."""
        return defined_above.temporary_allocator

    @staticmethod
    def prefetch_storage(command_buffer: CommandBuffer, image_descriptor_list: Sequence[MPSImageDescriptor]) -> None:
        """A hint about images to come; checks the arguments and has no other effect."""
        who = "MPSTemporaryImage.prefetch_storage"
        check_is_open(who, command_buffer)
        descriptors = listed(who, "image_descriptor_list", image_descriptor_list, "MPSImageDescriptor")
        for index, descriptor in enumerate(descriptors):
            check_is_descriptor(who, f"image_descriptor_list[{index}]", descriptor).validate(who)

    @property
    def is_temporary(self) -> bool:
        """Whether the image lives on one command buffer."""
        return True

    @property
    def read_count(self) -> int:
        """How many more encodes may read the image; starts at 1. Set it before the last read; 0 frees the memory."""
        return self._counts.get(self._index)

    @read_count.setter
    def read_count(self, value: int) -> None:
        check_not_ended(self.name, "read_count", self._command_buffer)
        self._counts.set(self.name, self._index, value)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from the read count."""
        self._counts.take(self.name, amount, (self._index,))

    def add_reads(self, amount: int) -> None:
        """Change the read count unless it is 0; it does not go below 0."""
        self._counts.add(amount, (self._index,))

    def fewest_reads(self) -> int | None:
        """The read count."""
        return self.read_count

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use this image, and what it is a view of."""
        super().check_usable(who, argument, command_buffer)
        check_lifetime(who, argument, self._command_buffer, command_buffer)
        check_reads(who, argument, self.read_count, repr(self))
        if self._parent is not None:
            self._parent.check_usable(who, f"{argument}.parent", command_buffer)

    @property
    def texture(self) -> MTLTexture:
        """Not offered: nobody would count the reads of the texture."""
        self.check_cpu_access("texture")
        return super().texture

    def set_purgeable_state(self, state: MPSPurgeableState) -> MPSPurgeableState:
        """ALLOCATION_DEFERRED or NON_VOLATILE: the memory belongs to the command buffer, requests are ignored."""
        allocated = self.storage.block.is_allocated
        return MPSPurgeableState.NON_VOLATILE if allocated else MPSPurgeableState.ALLOCATION_DEFERRED

    def check_cpu_access(self, method: str) -> None:
        """Raise: the CPU cannot reach a temporary image."""
        rule = "is not offered: a temporary image cannot be reached by the CPU"
        remedy = (
            "Encode into an MPSImage, or set destination_image_allocator, for a further result of a graph the "
            "image_allocator of its node, to MPSImage.default_allocator()"
        )
        raise MPSLifetimeError(self.name, method, rule, remedy=remedy)

    def _views(self, storages: list[Storage]) -> list[MPSImage]:
        self.check_usable(self.name, "view", self._command_buffer)
        # The views of one call hold one read of the parent, given back when the last of them was read.
        counts = ReadCounts(len(storages), lambda: self.add_reads(-1))
        descriptor, command_buffer = self.descriptor(), self._command_buffer
        return [
            MPSTemporaryImage.temporary_member(descriptor, storage, command_buffer, counts, index, self)
            for index, storage in enumerate(storages)
        ]


def private_copy(who: str, descriptor: object) -> MPSImageDescriptor:
    """A copy of a descriptor, for memory that the CPU cannot reach."""
    twin = check_is_descriptor(who, "image_descriptor", descriptor).copy()
    twin.storage_mode = MTLStorageMode.PRIVATE
    return twin


def _of_texture(who: str, texture: MPSImageDescriptor, feature_channels: int | None) -> MPSImageDescriptor:
    """The images that a texture of this shape holds."""
    descriptor = check_is_descriptor(who, "texture_descriptor", texture).copy()
    extent = descriptor.validate(who)
    if feature_channels is None:
        return descriptor
    slices = slices_of(extent.channels) * extent.images
    descriptor.feature_channels = feature_channels
    needed = slices_of(descriptor.validate(who).channels)
    if needed > slices:
        rule = f"must fit the {slices} four-channel slice(s) of the texture"
        raise MPSArgumentError(who, "feature_channels", rule, feature_channels)
    descriptor.number_of_images = slices // needed
    return descriptor


def _refuse(who: str, method: str, remedy: str) -> NoReturn:
    raise MPSTypeError(who, method, "is not offered: the CPU cannot write a temporary image", remedy=remedy)
