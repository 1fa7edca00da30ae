"""MPSState and its batches: what one kernel hands to another besides images (MPSState.h, macOS 10.13)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.lifetime import (
    check_device,
    check_is_device,
    check_is_open,
    check_lifetime,
    check_not_ended,
    check_reads,
    record_synchronize,
    temporary_counts,
)
from openmps.core.read_count import ReadCounts
from openmps.core.sequences import position
from openmps.core.state.resources import MPSStateResourceList, Resource, Slot, device_of, slots_of
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.types import MPSStateResourceType, MPSStateTextureInfo

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


@dataclass(slots=True)
class Saved:
    """What a forward kernel leaves for its gradient kernel, filled in when the work runs."""

    value: Any = None


class _Contents:
    """The contents of a temporary state. It does not keep the state alive, nor the state itself in a cycle."""

    def __init__(self, state: MPSState) -> None:
        self._state = weakref.ref(state)

    def release(self) -> None:
        """Drop what the state holds."""
        state = self._state()
        if state is not None:
            state.drop_contents()


@dataclass(frozen=True, slots=True)
class _Lifetime:
    """The command buffer and the read counts of a temporary state; ``index`` is its place among those of a batch."""

    command_buffer: CommandBuffer
    contents: _Contents
    counts: ReadCounts
    index: int | None = None

    @property
    def members(self) -> tuple[int, ...] | None:
        """Whose counts these are; None for a state that stands for all of them."""
        return None if self.index is None else (self.index,)


class MPSState:
    """An opaque object that carries data from one kernel to another (MPSState.h, macOS 10.13).

    Made by a kernel's ``result_state…`` methods, or from resources: ``MPSState(device, buffer_size=…)``,
    ``(device, texture_descriptor=…)``, ``(device, resource_list=…)``, ``(resource=…)``, ``(resources=[…])``; resources
    are allocated when they are first asked for. Temporary states (`temporary_state`) live on one command buffer.

    Raises:
        MPSTypeError: Resources are asked for without a device, or in more than one of these ways.
        MPSDeviceError: Resources of different devices.
    """

    label: str | None
    """A name for errors and debugging."""
    saved: Saved
    """What the forward kernel left for its gradient; for those who extend the framework."""

    def __init__(
        self,
        device: MTLDevice | None = None,
        *,
        buffer_size: int | None = None,
        texture_descriptor: MPSImageDescriptor | None = None,
        resource_list: MPSStateResourceList | None = None,
        resource: Resource | None = None,
        resources: Sequence[Resource] | None = None,
    ) -> None:
        self.label = None
        self.saved = Saved()
        self._lifetime: _Lifetime | None = None
        name = type(self).__name__
        given = [Slot.of(name, "resource", resource)] if resource is not None else []
        given += [Slot.of(name, f"resources[{index}]", item) for index, item in enumerate(resources or ())]
        wanted = slots_of(name, buffer_size, texture_descriptor, resource_list)
        ways = (buffer_size, texture_descriptor, resource_list, resource, resources)
        if sum(way is not None for way in ways) > 1:
            rule = "must be asked for in one way: a size, a descriptor, a list, one resource, or several"
            raise MPSTypeError(name, "resources", rule)
        if device is None and wanted:
            raise MPSTypeError(name, "device", "is needed to allocate resources", None)
        self._slots = given + wanted
        self._device = device_of(name, device, given)
        for slot in wanted:
            slot.check_fits(name, check_is_device(name, "device", device))

    @classmethod
    def temporary_state(
        cls,
        command_buffer: CommandBuffer,
        *,
        buffer_size: int | None = None,
        texture_descriptor: MPSImageDescriptor | None = None,
        resource_list: MPSStateResourceList | None = None,
    ) -> MPSState:
        """A state that lives on ``command_buffer``; its read count starts at 1 and its resources are private."""
        state = MPSState(
            check_is_open("MPSState", command_buffer).device,
            buffer_size=buffer_size,
            texture_descriptor=texture_descriptor,
            resource_list=resource_list,
        )
        state.make_temporary(command_buffer)
        return state

    def make_temporary(self, command_buffer: CommandBuffer, count: int = 1) -> None:
        """Tie the state, or the ``count`` states that it stands for, to a command buffer; for kernels."""
        check_is_open(self.name, command_buffer)
        contents = _Contents(self)
        self._lifetime = _Lifetime(command_buffer, contents, temporary_counts(command_buffer, contents, count))

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Class and label, as errors call the state."""
        return f"{type(self).__name__} {self.label!r}" if self.label else type(self).__name__

    @property
    def device(self) -> MTLDevice | None:
        """The device that holds the resources; None for a state without any."""
        return self._device

    @property
    def is_temporary(self) -> bool:
        """Whether the state lives on one command buffer; False for states without resources."""
        return self._lifetime is not None and bool(self._slots)

    @property
    def lives_on(self) -> CommandBuffer | None:
        """The command buffer that a temporary state belongs to."""
        return None if self._lifetime is None else self._lifetime.command_buffer

    @property
    def read_count(self) -> int:
        """How many more encodes may read a temporary state (starts at 1); 0 for a permanent one."""
        return 0 if self._lifetime is None else self._lifetime.counts.fewest(self._lifetime.members)

    @read_count.setter
    def read_count(self, value: int) -> None:
        lifetime = self._lifetime
        if lifetime is None:
            raise MPSLifetimeError(
                self.name, "read_count", "is kept by temporary states only", value, "A permanent state needs no count"
            )
        check_not_ended(self.name, "read_count", lifetime.command_buffer)
        for index in range(lifetime.counts.size) if lifetime.members is None else lifetime.members:
            lifetime.counts.set(self.name, index, value)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from a temporary state; a permanent one has no count."""
        if self._lifetime is not None:
            self._lifetime.counts.take(self.name, amount, self._lifetime.members)

    def add_reads(self, amount: int) -> None:
        """Change the read count of a temporary state unless it is 0; it does not go below 0."""
        if self._lifetime is not None:
            self._lifetime.counts.add(amount, self._lifetime.members)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use this state."""
        if self._device is not None:
            check_device(who, argument, self._device, command_buffer.device)
        if self._lifetime is not None:
            check_lifetime(who, argument, self._lifetime.command_buffer, command_buffer)
            check_reads(who, argument, self.read_count, self.name)

    # --- resources --------------------------------------------------------------------------------------------------

    @property
    def resource_count(self) -> int:
        """Number of buffers and textures."""
        return len(self._slots)

    def resource_at_index(self, index: int, allocate_memory: bool = True) -> Resource | None:
        """The resource at ``index``, textures first; None if there is none yet and ``allocate_memory`` is False."""
        slot = self._slot(index)
        if self._lifetime is not None:
            check_not_ended(self.name, f"resource {index}", self._lifetime.command_buffer)
            check_reads(self.name, f"resource {index}", self.read_count, self.name)
        if not allocate_memory or self._device is None:
            return slot.resource
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
        """Bytes of all resources, allocated or not."""
        return sum(slot.bytes_held(self.name) for slot in self._slots)

    def _slot(self, index: int) -> Slot:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self._slots):
            rule = f"must be an integer below resource_count, {len(self._slots)}"
            raise MPSArgumentError(self.name, "index", rule, repr(index))
        return self._slots[index]

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Make queued results visible to the CPU once ``command_buffer`` has completed; memory is coherent here.

        The call is checked and keeps its place in the record.
        """
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

    def absorb(self, produced: Any) -> None:
        """Take what a kernel's work produced for this state, when the work runs."""
        self.saved.value = produced

    def drop_contents(self) -> None:
        """Give back what a temporary state holds, when its last read has run."""
        self.saved = Saved()
        for slot in self._slots:
            slot.resource = None

    def place_in_batch(self, whole: MPSState, index: int) -> None:
        """Be counted as state ``index`` of those that ``whole`` stands for."""
        shared = whole._lifetime
        if shared is not None:
            self._lifetime = _Lifetime(shared.command_buffer, shared.contents, shared.counts, index)

    def __repr__(self) -> str:
        temporary = f", temporary, read_count {self.read_count}" if self._lifetime is not None else ""
        return f"<{self.name}, {self.resource_count} resource(s){temporary}>"


class MPSStateBatch(Sequence[MPSState]):
    """An immutable sequence of states, one an image; a state that serves the whole batch is repeated.

    A kernel that makes one state an image gives a batch with one record and one block of data for all of them; the
    single states are made when they are asked for. Their reads are counted apart.
    """

    def __init__(self, states: Sequence[MPSState] = ()) -> None:
        for index, state in enumerate(states):
            if not isinstance(state, MPSState):
                raise MPSTypeError("MPSStateBatch", f"states[{index}]", "must be an MPSState", type(state).__name__)
        self._states: list[MPSState | None] = list(states)
        distinct = {id(state) for state in states}
        self.shared: MPSState | None = states[0] if len(distinct) == 1 else None
        """The state that stands for the whole batch, if one does."""
        self._apart = False

    @classmethod
    def of_images(cls, shared: BatchableState, count: int) -> MPSStateBatch:
        """``count`` states, one an image, over the record and data of ``shared``."""
        if shared.lives_on is not None:
            shared.make_temporary(shared.lives_on, count)
        batch = cls()
        batch._states = [None] * count
        batch.shared = shared
        batch._apart = True
        return batch

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[MPSState]:
        return (self._state(index) if state is None else state for index, state in enumerate(self._states))

    @overload
    def __getitem__(self, index: int) -> MPSState: ...
    @overload
    def __getitem__(self, index: slice) -> MPSStateBatch: ...
    def __getitem__(self, index: int | slice) -> MPSState | MPSStateBatch:
        found = position("MPSStateBatch", index, len(self))
        if isinstance(found, int):
            return self._state(found)
        return MPSStateBatch([self._state(each) for each in found])

    def _state(self, index: int) -> MPSState:
        state = self._states[index]
        if state is None and isinstance(self.shared, BatchableState):
            state = self._states[index] = self.shared.member(index)
            state.place_in_batch(self.shared, index)
        if state is None:
            raise MPSTypeError("MPSStateBatch", f"state {index}", "cannot be told from the others", repr(self.shared))
        return state

    def unique(self) -> list[MPSState]:
        """The different states, in order of first appearance."""
        return list({id(state): state for state in self}.values())

    def counted(self) -> list[MPSState]:
        """The states whose read counts the batch goes by."""
        return [self.shared] if self.shared is not None else self.unique()

    def count_unique(self) -> int:
        """The number of different states."""
        return len(self) if self._apart else len(self.unique())

    def __repr__(self) -> str:
        kind = "no states" if not self._states else repr(self.shared if self.shared is not None else self[0])
        return f"<MPSStateBatch of {len(self)}: {kind}>"


class BatchableState(MPSState):
    """A state of which a batch can hold one an image."""

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch that this state stands for."""
        raise MPSTypeError(self.name, "member", "is not offered by this class")


def as_state_batch(who: str, argument: str, states: object) -> MPSStateBatch:
    """Any sequence of states as a batch."""
    if isinstance(states, MPSStateBatch):
        return states
    if isinstance(states, MPSState) or not isinstance(states, Sequence):
        raise MPSTypeError(who, argument, "must be a sequence of MPSState", type(states).__name__)
    for index, state in enumerate(states):
        if not isinstance(state, MPSState):
            raise MPSTypeError(who, f"{argument}[{index}]", "must be an MPSState", type(state).__name__)
    return MPSStateBatch(states)


def MPSStateBatchIncrementReadCount(batch: Sequence[MPSState] | None, amount: int) -> int:
    """Add ``amount`` to the read count of each different temporary state once (MPSState.h, macOS 10.13.4).

    States whose count is 0 already are left alone. ``None`` is accepted. Returns the number of different states.
    """
    if batch is None:
        return 0
    who = "MPSStateBatchIncrementReadCount"
    whole = as_state_batch(who, "batch", batch)
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise MPSTypeError(who, "amount", "must be an integer", repr(amount))
    for state in whole.counted():
        state.add_reads(amount)
    return whole.count_unique()


def MPSStateBatchSynchronize(batch: Sequence[MPSState], command_buffer: CommandBuffer) -> None:
    """Synchronize each different state once (MPSState.h, macOS 10.13.4)."""
    for state in as_state_batch("MPSStateBatchSynchronize", "batch", batch).counted():
        state.synchronize(command_buffer)


def MPSStateBatchResourceSize(batch: Sequence[MPSState] | None) -> int:
    """Bytes of the resources of the different states (MPSState.h, macOS 10.13.4); ``None`` is accepted."""
    if batch is None:
        return 0
    return sum(state.resource_size() for state in as_state_batch("MPSStateBatchResourceSize", "batch", batch).counted())
