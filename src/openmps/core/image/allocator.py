"""The allocators of ordinary and of temporary images (MPSImage.h, macOS 10.13)."""

from __future__ import annotations

from typing import Any

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage, MPSImageAllocator, defined_above
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.metal.device import CommandBuffer


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

defined_above.ordinary_allocator = ORDINARY
defined_above.temporary_allocator = TEMPORARY
