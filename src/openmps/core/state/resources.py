"""What a state holds: buffers, and images in the place of the framework's textures (MPSState.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from openmps.checks import NamedAttributes, described, listed, store, whole
from openmps.core.image.descriptor import MPSImageDescriptor, check_fits, check_is_descriptor
from openmps.core.image.image import MPSImage
from openmps.core.lifetime import check_device, check_is_device
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.locks import new_lock
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region
from openmps.selectors import Factory
from openmps.types import MPSStateResourceType, MPSStateTextureInfo, MTLStorageMode

Resource = MTLBuffer | MPSImage
"""What a state may hold: a buffer, or an image in the place of the framework's texture."""
# For an assignment only: a process that is forked while another thread holds it could never take it.
_making = new_lock()


class MPSStateResourceList(NamedAttributes):
    """Buffers and textures that a state is to be made with (MPSState.h, macOS 10.13.4).

    ``MPSStateResourceList(buffer_sizes=[…])`` or ``(texture_descriptors=[…])``, then `append_buffer` and
    `append_texture`. Texture descriptors are `MPSImageDescriptor` objects. In a state the textures come first.

    >>> sizes = mps.MPSStateResourceList(buffer_sizes=[16, 64])
    >>> mps.MPSState(mps.mtl_device("cpu"), resource_list=sizes).resource_size()
    80
    """

    resource_list = Factory("resourceList", "resourceListWithBufferSizes:", "resourceListWithTextureDescriptors:")

    _buffer_sizes: list[int]
    _texture_descriptors: list[MPSImageDescriptor]

    def __init__(
        self,
        buffer_sizes: Sequence[int] | Sequence[MPSImageDescriptor] = (),
        texture_descriptors: Sequence[MPSImageDescriptor] = (),
    ) -> None:
        store(self, "_buffer_sizes", [])
        store(self, "_texture_descriptors", [])
        who, sizes, textures = "MPSStateResourceList", buffer_sizes, texture_descriptors
        if type(sizes) is not list:  # which kernels give
            sizes = listed(who, "buffer_sizes", cast("Iterable[object]", sizes), "numbers of bytes")
        if type(textures) is not tuple:
            textures = listed(who, "texture_descriptors", textures, "MPSImageDescriptor")
        for given in cast("Sequence[int | MPSImageDescriptor]", sizes):
            if isinstance(given, MPSImageDescriptor):
                self.append_texture(given)
            else:
                self.append_buffer(given)
        for descriptor in textures:
            self.append_texture(descriptor)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self._buffer_sizes)
        return described(self, *self._texture_descriptors, f"buffers of {sizes} bytes" if sizes else None)

    def append_buffer(self, size: int) -> None:
        """Add a buffer of ``size`` bytes."""
        rule = "must be a positive number of bytes"
        self._buffer_sizes.append(whole("MPSStateResourceList", "size", size, rule=rule))

    def append_texture(self, descriptor: MPSImageDescriptor) -> None:
        """Add a texture."""
        checked = check_is_descriptor("MPSStateResourceList", "descriptor", descriptor)
        checked.validate("MPSStateResourceList")
        self._texture_descriptors.append(checked.copy())

    def slots(self) -> list[Slot]:
        """A place for each resource, textures first."""
        textures = [Slot(descriptor=descriptor.copy()) for descriptor in self._texture_descriptors]
        return textures + [Slot(size=size) for size in self._buffer_sizes]


@dataclass(slots=True)
class Slot:
    """A resource that is given, or made when it is first asked for."""

    size: int = 0
    descriptor: MPSImageDescriptor | None = None
    resource: Resource | None = None

    @classmethod
    def of(cls, who: str, argument: str, resource: object) -> Slot:
        """A place with a resource that is there."""
        if isinstance(resource, MTLBuffer):
            return cls(size=resource.length, resource=resource)
        if isinstance(resource, MPSImage):
            if resource.is_temporary:
                raise MPSArgumentError(who, argument, "must not be temporary", repr(resource))
            return cls(descriptor=resource.descriptor(), resource=resource)
        raise MPSTypeError(who, argument, "must be an MTLBuffer or an MPSImage", type(resource).__name__)

    @property
    def kind(self) -> MPSStateResourceType:
        """BUFFER or TEXTURE."""
        return MPSStateResourceType.BUFFER if self.descriptor is None else MPSStateResourceType.TEXTURE

    @property
    def info(self) -> MPSStateTextureInfo:
        """The shape of a texture; all zero for a buffer."""
        return MPSStateTextureInfo() if self.descriptor is None else self.descriptor.texture_info()

    def bytes_held(self, who: str) -> int:
        """Bytes of the resource, allocated or not."""
        if self.descriptor is None:
            return self.size
        return self.descriptor.validate(who).bytes_as(self.descriptor.channel_format)

    def check_fits(self, who: str, device: MTLDevice) -> None:
        """Raise `MPSArgumentError` if the resource is larger than all the memory of the device."""
        if self.descriptor is None:
            device.check_length(who, "buffer_size", self.size)
        else:
            check_fits(who, device, self.descriptor.channel_format, self.descriptor.validate(who))

    def regions(self) -> Sequence[Region]:
        """The memory of the resource; none where there is no resource yet."""
        found = self.resource
        if found is None:
            return ()
        return found.whole().regions() if isinstance(found, MPSImage) else (found.region(0, found.length),)

    def get(self, device: MTLDevice, command_buffer: CommandBuffer | None) -> Resource:
        """The resource; a new one is private to ``command_buffer`` if one is given."""
        found = self.resource
        return self.keep(self._make(device, command_buffer)) if found is None else found

    def keep(self, fresh: Resource) -> Resource:
        """The resource: ``fresh``, unless there is one by now."""
        # The encoding thread and the queue's thread may both be the first.
        with _making:
            if self.resource is None:
                self.resource = fresh
            return self.resource

    def _make(self, device: MTLDevice, command_buffer: CommandBuffer | None) -> Resource:
        if self.descriptor is None:
            if command_buffer is not None:
                return command_buffer.temporary_buffer(self.size)
            return device.new_buffer(length=self.size)
        descriptor = self.descriptor.copy()
        if command_buffer is not None:
            descriptor.storage_mode = MTLStorageMode.PRIVATE
        return MPSImage(device, descriptor)


def slots_of(
    who: str,
    buffer_size: int | None,
    texture_descriptor: MPSImageDescriptor | None,
    resource_list: MPSStateResourceList | None,
) -> list[Slot]:
    """Places for resources to be made."""
    if buffer_size is not None:
        return MPSStateResourceList(buffer_sizes=[buffer_size]).slots()
    if texture_descriptor is not None:
        return MPSStateResourceList(texture_descriptors=[texture_descriptor]).slots()
    if resource_list is None:
        return []
    if not isinstance(resource_list, MPSStateResourceList):
        raise MPSTypeError(who, "resource_list", "must be an MPSStateResourceList", type(resource_list).__name__)
    return resource_list.slots()


def device_of(who: str, device: MTLDevice | None, given: list[Slot]) -> MTLDevice | None:
    """The one device of a state and of the resources that it was given."""
    if device is not None:
        check_is_device(who, "device", device)
    for index, slot in enumerate(given):
        if slot.resource is not None:
            device = slot.resource.device if device is None else device
            check_device(who, f"resource {index}", slot.resource.device, device)
    return device
