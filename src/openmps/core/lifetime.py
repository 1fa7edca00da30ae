"""Where and for how long objects may be used: on their own device, and temporary ones on their own command buffer."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from openmps.core.read_count import ReadCounts
from openmps.errors import MPSDeviceError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.metal.command import CommandBuffer, Lifetime, MTLCommandBuffer
from openmps.metal.device import MTLDevice
from openmps.metal.execution import Release


class Releasable(Protocol):
    """Memory of a temporary object."""

    def release(self) -> None:
        """Give the memory back; called when the work before it has run."""
        ...


class _Remaining:
    """Memory of temporary objects that goes back in queue order when their lifetime ends with reads left."""

    def __init__(self) -> None:
        self.objects: WeakSet[Releasable] = WeakSet()

    def __call__(self, last: MTLCommandBuffer) -> None:
        remaining = list(self.objects)

        def release() -> None:
            for each in remaining:
                each.release()

        if remaining:
            last.record("release of temporary objects", Release(release))


def temporary_counts(command_buffer: CommandBuffer, memory: Releasable, size: int) -> ReadCounts:
    """Read counts of ``size`` objects in one piece of memory, which goes back, in queue order, after the last read.

    Memory that still has reads left goes back after the last work of the command buffer.
    """
    lifetime = command_buffer.lifetime

    def release() -> None:
        if not lifetime.ended:
            command_buffer.root_command_buffer.record("release of a temporary object", Release(memory.release))

    _remaining_of(lifetime).objects.add(memory)
    return ReadCounts(size, release)


def _remaining_of(lifetime: Lifetime) -> _Remaining:
    for callback in lifetime.before_end:
        if isinstance(callback, _Remaining):
            return callback
    remaining = _Remaining()
    lifetime.before_end.append(remaining)
    return remaining


def check_is_device(who: str, argument: str, device: object) -> MTLDevice:
    """``device`` if it is one."""
    if not isinstance(device, MTLDevice):
        remedy = "Make one with MTLCreateSystemDefaultDevice() or mtl_device(name)"
        raise MPSTypeError(who, argument, "must be an MTLDevice", type(device).__name__, remedy)
    return device


def check_is_open(who: str, command_buffer: object) -> CommandBuffer:
    """``command_buffer`` if it is one that temporary objects can be made for."""
    if not isinstance(command_buffer, CommandBuffer):
        remedy = "Make one with command_queue.command_buffer()"
        got = type(command_buffer).__name__
        raise MPSTypeError(who, "command_buffer", "must be a command buffer", got, remedy)
    if command_buffer.lifetime.ended:
        got = f"status {command_buffer.status.name}"
        remedy = "Make it before the commit, or for another command buffer"
        raise MTLCommandBufferError(who, "command_buffer", "must not be committed yet", got, remedy)
    return command_buffer


def check_device(who: str, argument: str, found: MTLDevice, needed: MTLDevice) -> None:
    """Raise `MPSDeviceError` unless both are the same device."""
    if found is not needed:
        raise MPSDeviceError(
            who,
            argument,
            f"must belong to the device {needed}",
            found,
            "Make kernels, images and command queue from one device",
        )


def check_lifetime(who: str, argument: str, own: CommandBuffer, used: CommandBuffer) -> None:
    """Raise `MPSLifetimeError` unless a temporary object is used on the command buffer that it was made for."""
    if own.lifetime is not used.lifetime:
        raise MPSLifetimeError(
            who,
            argument,
            "is temporary and must be used on the command buffer that it was made for",
            "another command buffer",
            "Make an ordinary object, or use one MPSCommandBuffer with commit_and_continue()",
        )


def check_reads(who: str, argument: str, fewest: int, name: str) -> None:
    """Raise `MPSLifetimeError` if a temporary object, or one of a batch, has no reads left."""
    if fewest == 0:
        raise MPSLifetimeError(
            who,
            argument,
            "must have reads left",
            f"{name} with read_count 0",
            "Raise its read_count before the encode that reads it last",
        )


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
    checked.record(f"synchronize of {who}", _nothing)


def _nothing() -> None:
    """The work of a synchronize."""
