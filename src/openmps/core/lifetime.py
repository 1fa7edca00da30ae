"""Where and for how long objects may be used: on their own device, and temporary ones on their own command buffer."""

from __future__ import annotations

from weakref import ref

from openmps.checks import Single
from openmps.core.read_count import ReadCounts
from openmps.errors import MPSDeviceError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.metal.device import CommandBuffer, MTLCommandBuffer, MTLDevice
from openmps.metal.execution import Releasable, Release, keep_place
from openmps.metal.mps_command_buffer import MPSCommandBuffer

COMMAND_BUFFERS: frozenset[type] = frozenset({MTLCommandBuffer, MPSCommandBuffer})
"""Told without asking an abstract class, which is slow."""


class _Remaining:
    """Memory of temporary objects that goes back in queue order when their lifetime ends with reads left."""

    def __init__(self) -> None:
        self._objects: list[ref[Releasable]] = []
        self._limit = 1024

    def add(self, memory: ref[Releasable]) -> None:
        """Have memory go back then, unless nobody holds it any more."""
        self._objects.append(memory)
        if len(self._objects) > self._limit:
            self._objects = [each for each in self._objects if each() is not None]
            self._limit = 1024 + 2 * len(self._objects)

    def __call__(self, last: MTLCommandBuffer) -> None:
        remaining = [memory for each in self._objects if (memory := each()) is not None]
        if remaining:
            last.record("release of temporary objects", Release(*remaining))


class TemporaryCounts(ReadCounts, Single):
    """Read counts of ``size`` objects in one piece of memory, which goes back, in queue order, after the last read.

    Memory that still has reads left goes back after the last work of the command buffer. The counts hold no memory.
    """

    __slots__ = ("_memory", "command_buffer")

    _instead = "Make another temporary object on the command buffer, or copy what an ordinary one holds"
    name = "a temporary object"

    def __init__(self, command_buffer: CommandBuffer, memory: Releasable, size: int) -> None:
        super().__init__(size)
        self.command_buffer = command_buffer
        self._memory = held = ref(memory)
        callbacks = command_buffer.lifetime.before_end
        remaining = callbacks[0] if callbacks else None
        if not isinstance(remaining, _Remaining):
            callbacks.insert(0, remaining := _Remaining())
        remaining.add(held)

    def _end(self) -> None:
        memory = self._memory()
        if memory is not None and not self.command_buffer.lifetime.ended:
            self.command_buffer.root_command_buffer.record("release of a temporary object", Release(memory))


def check_is_device(who: str, argument: str, device: object) -> MTLDevice:
    """``device`` if it is one."""
    if not isinstance(device, MTLDevice):
        remedy = "Make one with MTLCreateSystemDefaultDevice() or mtl_device(name)"
        raise MPSTypeError(who, argument, "must be an MTLDevice", type(device).__name__, remedy)
    return device


def check_is_open(who: str, command_buffer: object) -> CommandBuffer:
    """``command_buffer`` if it is one that temporary objects can be made for."""
    if type(command_buffer) not in COMMAND_BUFFERS and not isinstance(command_buffer, CommandBuffer):
        remedy = "Make one with command_queue.command_buffer()"
        got = type(command_buffer).__name__
        raise MPSTypeError(who, "command_buffer", "must be a command buffer", got, remedy)
    checked: CommandBuffer = command_buffer  # pyright: ignore[reportAssignmentType]
    if checked.lifetime.ended:
        got = f"status {checked.status.name}"
        remedy = "Make it before the commit, or for another command buffer"
        raise MTLCommandBufferError(who, "command_buffer", "must not be committed yet", got, remedy)
    return checked


def check_device(who: str, argument: str, found: MTLDevice, needed: MTLDevice) -> None:
    """Raise `MPSDeviceError` unless both are the same device."""
    if found is not needed:
        rule = f"must belong to the device {needed}"
        raise MPSDeviceError(who, argument, rule, found, "Make kernels, images and command queue from one device")


def check_lifetime(who: str, argument: str, own: CommandBuffer, used: CommandBuffer) -> None:
    """Raise `MPSLifetimeError` unless a temporary object is used on the command buffer that it was made for."""
    if own.lifetime is not used.lifetime:
        rule = "is temporary and must be used on the command buffer that it was made for"
        remedy = "Make an ordinary object, or use one MPSCommandBuffer with commit_and_continue()"
        raise MPSLifetimeError(who, argument, rule, "another command buffer", remedy)


def check_reads(who: str, argument: str, fewest: int, name: str) -> None:
    """Raise `MPSLifetimeError` if a temporary object, or one of a batch, has no reads left."""
    if fewest == 0:
        remedy = "Raise its read_count before the encode that reads it last"
        raise MPSLifetimeError(who, argument, "must have reads left", f"{name} with read_count 0", remedy)


def check_not_ended(who: str, argument: str, command_buffer: CommandBuffer) -> None:
    """Raise `MPSLifetimeError` if the command buffer of a temporary object was committed."""
    if command_buffer.lifetime.ended:
        rule = "is gone: the command buffer of a temporary object was committed"
        raise MPSLifetimeError(who, argument, rule, remedy="Use it before the commit, or make an ordinary object")


def record_synchronize(who: str, command_buffer: CommandBuffer, device: MTLDevice | None) -> None:
    """A synchronize keeps its place in the record; memory is coherent, so there is nothing to move."""
    checked = check_is_open(who, command_buffer)
    if device is not None:
        check_device(who, "command_buffer", checked.device, device)
    checked.record(f"synchronize of {who}", keep_place)
