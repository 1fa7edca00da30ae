"""Who makes the images that encodes return (MPSImage.h, macOS 10.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage

if TYPE_CHECKING:
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.metal.command import CommandBuffer


@runtime_checkable
class MPSImageAllocator(Protocol):
    """Makes the images that encodes return (MPSImage.h, macOS 10.13).

    An allocator may also offer ``image_batch(command_buffer, image_descriptor, kernel, count)``; without it `image` is
    called ``count`` times.
    """

    def image(self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        """An image that lives at least until the command buffer has completed."""
        ...


class OrdinaryImages:
    """Makes ordinary images; see `MPSImage.default_allocator`."""

    def image(self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        """An ordinary image."""
        return MPSImage(command_buffer.device, image_descriptor)

    def image_batch(
        self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any, count: int
    ) -> MPSImageBatch:
        """``count`` ordinary images in one block."""
        return MPSImageBatch.allocate(command_buffer.device, image_descriptor, count)


class TemporaryImages:
    """Makes temporary images; see `MPSTemporaryImage.default_allocator`."""

    def image(self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any) -> MPSImage:
        """A temporary image."""
        return MPSTemporaryImage(command_buffer, image_descriptor)

    def image_batch(
        self, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, kernel: Any, count: int
    ) -> MPSImageBatch:
        """``count`` temporary images in one block."""
        return MPSImageBatch.allocate_temporary(command_buffer, image_descriptor, count)


ORDINARY: MPSImageAllocator = OrdinaryImages()
TEMPORARY: MPSImageAllocator = TemporaryImages()
