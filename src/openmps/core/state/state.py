"""MPSState: what one kernel hands to another besides images (MPSState.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from html import escape
from typing import Any

from openmps.checks import KnownAttributes, Labelled, Shown, flag, listed, store
from openmps.convention import current
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.lifetime import (
    TemporaryCounts,
    check_device,
    check_is_device,
    check_is_open,
    check_lifetime,
    check_not_ended,
    check_reads,
    record_synchronize,
)
from openmps.core.numbers import integer
from openmps.core.state.resources import MPSStateResourceList, Resource, Slot, device_of, slots_of
from openmps.errors import MPSLifetimeError, MPSTypeError, counted
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.memory import Memory
from openmps.metal.pending import Region, require_written, unwritten
from openmps.runtime.binding import MemoryBinding, copied
from openmps.tables import html_table
from openmps.types import MPSStateResourceType, MPSStateTextureInfo

_PAGE = 16384
"""Bytes of a page of memory of Apple's processors."""


class Saved(MemoryBinding, Memory):
    """What a forward kernel leaves for its gradient kernel, filled in when the work runs."""

    __slots__ = ("__weakref__", "content")

    is_persistent = False
    is_memory = True

    def __init__(self) -> None:
        self.content: Any = None

    @property
    def present(self) -> Any:
        """What was left."""
        return self.content

    def shape_key(self) -> Hashable:
        """Nothing: each such place can stand for every other."""
        return None

    def empty_like(self) -> Saved:
        """Another such place."""
        return Saved()

    def memories(self) -> tuple[Saved]:
        """Itself."""
        return (self,)

    def view_key(self) -> Hashable:
        """All of it."""
        return None

    @property
    def is_whole(self) -> bool:
        """It is the memory."""
        return True

    def rebind(self, memories: Sequence[Saved]) -> Saved:
        """The other memory."""
        return memories[0]

    def value(self) -> Any:
        """What was left, as the input of a function; None if nothing was."""
        return self.content

    def regions(self) -> tuple[Region]:
        """What the forward kernel leaves, as what writes and what reads it is compared by."""
        return (Region(self),)

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Keep what the forward function gives; a tensor that is not the state's alone is copied."""
        self.content = copied(value) if is_shared else value


def _resource(who: str, value: object) -> Resource:
    """A resource in the place of the device."""
    if isinstance(value, MTLBuffer | MPSImage):
        return value
    remedy = "Pass a device, a resource or a list of resources"
    raise MPSTypeError(who, "device", "must be an MTLDevice", type(value).__name__, remedy)


class MPSState(KnownAttributes, Labelled):
    """An opaque object that carries data from one kernel to another (MPSState.h, macOS 10.13).

    Made by a kernel's ``result_state…`` methods, or from resources: ``MPSState(device, buffer_size=…)``,
    ``(device, texture_descriptor=…)``, ``(device, resource_list=…)``, ``(resource=…)``, ``(resources=[…])``; resources
    are allocated when they are first asked for. Temporary states (`temporary_state`) live on one command buffer.

    Raises:
        MPSTypeError: Resources are asked for without a device, or in more than one of these ways.
        MPSDeviceError: Resources of different devices.

    >>> import openmps as mps
    >>> state = mps.MPSState(mps.mtl_device("cpu"), buffer_size=16)
    >>> state.resource.length, state.is_temporary
    (16, False)
    """

    saved: Saved
    """What the forward kernel left for its gradient; for those who extend the framework."""
    _slots: list[Slot]
    _device: MTLDevice | None
    _counts: TemporaryCounts | None = None
    """The read counts of a temporary state, or of those of a batch that it stands for or is one of."""
    _members: tuple[int, ...] | None = None
    """Its own place among those of a batch; None for a state that stands for all of them."""

    def __init__(
        self,
        device: MTLDevice | Resource | Sequence[Resource] | None = None,
        buffer_size: int | MPSImageDescriptor | MPSStateResourceList | None = None,
        *,
        texture_descriptor: MPSImageDescriptor | None = None,
        resource_list: MPSStateResourceList | None = None,
        resource: Resource | None = None,
        resources: Sequence[Resource] | None = None,
    ) -> None:
        store(self, "saved", Saved())
        if (
            isinstance(device, MTLDevice)
            and buffer_size is texture_descriptor is resource_list is resource is resources is None
        ):
            vars(self).update(_slots=[], _device=device)
            return
        name = type(self).__name__
        if isinstance(device, list | tuple):
            device, resources = None, device
        elif device is not None and not isinstance(device, MTLDevice):
            device, resource = None, _resource(name, device)
        if isinstance(buffer_size, MPSImageDescriptor):
            buffer_size, texture_descriptor = None, buffer_size
        elif isinstance(buffer_size, MPSStateResourceList):
            buffer_size, resource_list = None, buffer_size
        ways = (buffer_size, texture_descriptor, resource_list, resource, resources)
        given = [Slot.of(name, "resource", resource)] if resource is not None else []
        several = listed(name, "resources", resources, "MTLBuffer and MPSImage") if resources is not None else ()
        given += [Slot.of(name, f"resources[{index}]", item) for index, item in enumerate(several)]
        wanted = slots_of(name, buffer_size, texture_descriptor, resource_list)
        if sum(way is not None for way in ways) > 1:
            rule = "must be asked for in one way: a size, a descriptor, a list, one resource, or several"
            raise MPSTypeError(name, "resources", rule)
        if device is None and wanted:
            raise MPSTypeError(name, "device", "is needed to allocate resources", None)
        store(self, "_slots", given + wanted)
        store(self, "_device", device_of(name, device, given))
        for slot in wanted:
            slot.check_fits(name, check_is_device(name, "device", device))

    @classmethod
    def temporary_state(
        cls,
        command_buffer: CommandBuffer,
        buffer_size: int | MPSImageDescriptor | MPSStateResourceList | None = None,
        *,
        texture_descriptor: MPSImageDescriptor | None = None,
        resource_list: MPSStateResourceList | None = None,
    ) -> MPSState:
        """A state that lives on ``command_buffer``; its read count starts at 1 and its resources are private."""
        state = MPSState(
            check_is_open("MPSState", command_buffer).device,
            buffer_size,
            texture_descriptor=texture_descriptor,
            resource_list=resource_list,
        )
        state.make_temporary(command_buffer)
        return state

    def make_temporary(self, command_buffer: CommandBuffer, count: int = 1) -> None:
        """Tie the state, or the ``count`` states that it stands for, to a command buffer; for kernels."""
        if not isinstance(command_buffer, CommandBuffer):
            check_is_open(self.name, command_buffer)
        store(self, "_counts", TemporaryCounts(command_buffer, self, count))

    # --- what it is -------------------------------------------------------------------------------------------------

    device = Shown[MTLDevice | None]("_device", "The device that holds the resources; None for a state without any.")

    @property
    def is_temporary(self) -> bool:
        """Whether the state lives on one command buffer; False for states without resources."""
        return self._counts is not None and bool(self._slots)

    @property
    def lives_on(self) -> CommandBuffer | None:
        """The command buffer that a temporary state belongs to."""
        return None if self._counts is None else self._counts.command_buffer

    @property
    def read_count(self) -> int:
        """How many more encodes may read a temporary state (starts at 1); 0 for a permanent one."""
        return 0 if self._counts is None else self._counts.fewest(self._members)

    @read_count.setter
    def read_count(self, value: int) -> None:
        counts = self._counts
        if counts is None:
            rule = "is kept by temporary states only"
            raise MPSLifetimeError(self.name, "read_count", rule, value, "A permanent state needs no count")
        check_not_ended(self.name, "read_count", counts.command_buffer)
        for index in range(counts.size) if self._members is None else self._members:
            counts.set(self.name, index, value)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from a temporary state; a permanent one has no count."""
        if self._counts is not None:
            self._counts.take(self, amount, self._members)

    def add_reads(self, amount: int) -> None:
        """Change the read count of a temporary state unless it is 0; it does not go below 0."""
        if self._counts is not None:
            self._counts.add(amount, self._members)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use this state."""
        if self._device is not None and self._device is not command_buffer.device:
            check_device(who, argument, self._device, command_buffer.device)
        counts = self._counts
        if counts is not None:
            if counts.command_buffer.lifetime is not command_buffer.lifetime:
                check_lifetime(who, argument, counts.command_buffer, command_buffer)
            if not counts.fewest(self._members):
                check_reads(who, argument, 0, self.name)

    # --- resources --------------------------------------------------------------------------------------------------

    @property
    def resource_count(self) -> int:
        """Number of buffers and textures."""
        return len(self._slots)

    def resource_at_index(self, index: int, allocate_memory: bool = True) -> Resource | None:
        """The resource at ``index``, textures first; None if there is none yet and ``allocate_memory`` is False."""
        slot = self._slot(index)
        if self._counts is not None:
            check_not_ended(self.name, f"resource {index}", self._counts.command_buffer)
            check_reads(self.name, f"resource {index}", self.read_count, self.name)
        if slot.resource is not None or self._device is None:
            return slot.resource
        if allocate_memory is not True and not flag(self.name, "allocate_memory", allocate_memory):
            return None
        return slot.get(self._device, self.lives_on)

    @property
    def resource(self) -> Resource | None:
        """The first resource, allocated if need be (deprecated in the framework); None if there is none."""
        return self.resource_at_index(0) if self._slots else None

    def resource_type_at_index(self, index: int) -> MPSStateResourceType:
        """BUFFER or TEXTURE; NONE if there is no such resource."""
        found = isinstance(index, int) and 0 <= index < len(self._slots)
        return self._slots[index].kind if found else MPSStateResourceType.NONE

    def buffer_size_at_index(self, index: int) -> int:
        """Bytes of the buffer at ``index``; 0 if it is a texture. Allocates nothing."""
        return self._slot(index).size

    def texture_info_at_index(self, index: int) -> MPSStateTextureInfo:
        """Shape of the texture at ``index``; all zero if it is a buffer. Allocates nothing."""
        return self._slot(index).info

    def resource_size(self) -> int:
        """Bytes of all resources, allocated or not; in whole pages by the convention ``state_resource_size``."""
        page = _PAGE if current()["state_resource_size"] == "pages" else 1
        return sum(-(-slot.bytes_held(self.name) // page) * page for slot in self._slots)

    def _slot(self, index: int) -> Slot:
        count = len(self._slots)
        rule = f"must be an integer below resource_count, {count}"
        return self._slots[integer(self.name, "index", index, 0, count - 1, rule=rule)]

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Make queued results visible to the CPU once ``command_buffer`` has completed; memory is coherent here.

        The call is checked and keeps its place in the record.
        """
        if unwritten:
            require_written(
                self.name,
                "synchronize",
                [*self.saved.regions(), *(each for slot in self._slots for each in slot.regions())],
            )
        record_synchronize(self.name, command_buffer, self.device)

    def destination_image_descriptor(
        self,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None,
        for_kernel: Any,
        suggested_descriptor: MPSImageDescriptor,
    ) -> MPSImageDescriptor:
        """Called while a kernel that takes this state sizes its result; returns the suggestion as it is.

        An override must return the descriptor wanted and may set the kernel's offset.
        """
        return suggested_descriptor

    # --- for the encode path ----------------------------------------------------------------------------------------

    def parts(self) -> tuple[object, ...]:
        """Itself and the memory that it holds."""
        return (self, self.saved, *self._slots)

    def update_operands(self) -> Sequence[Any]:
        """What an update of parameters is bound to of this state."""
        return ()

    def release(self) -> None:
        """Give back what a temporary state holds, when its last read has run."""
        self.saved = Saved()
        for slot in self._slots:
            slot.resource = None

    def place_in_batch(self, whole: MPSState, index: int) -> None:
        """Be counted as state ``index`` of those that ``whole`` stands for."""
        self._counts, self._members = whole._counts, (index,)

    def __repr__(self) -> str:
        temporary = f", temporary, read_count {self.read_count}" if self._counts is not None else ""
        sizes = ", ".join(str(slot.descriptor or f"{slot.size:,} bytes") for slot in self._slots)
        held = f"{counted(self.resource_count, 'resource')}{f' of {sizes}' if sizes else ''}"
        return f"<{self.name}, {held}{temporary}>"

    def _repr_html_(self) -> str:
        rows = [("resource", "what", "bytes")]
        for place, slot in enumerate(self._slots):
            rows.append((str(place), slot.kind.name.lower(), f"{slot.bytes_held(self.name):,}"))
        return f"<p>{escape(repr(self))}</p>{html_table(rows)}"


class BatchableState(MPSState):
    """A state of which a batch can hold one an image."""

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch that this state stands for."""
        raise MPSTypeError(self.name, "member", "is not offered by this class")
