"""MPSCommandBuffer: a command buffer that can be committed while it goes on (MPSCommandBuffer.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from openmps.checks import KnownAttributes, Shown, described, of_kind, one_of_two, store
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError, MTLCommandBufferError, MTLExecutionError
from openmps.metal.device import (
    CommandBuffer,
    Lifetime,
    MTLBuffer,
    MTLCommandBuffer,
    MTLCommandQueue,
    MTLDevice,
    MTLHeap,
    Recording,
)
from openmps.metal.execution import Work
from openmps.metal.heap import MTLHeapDescriptor
from openmps.metal.pending import Region, Writer, unwritten
from openmps.metal.reusable_commands import ReusableCommands
from openmps.selectors import name_arguments
from openmps.types import MTLCommandBufferStatus, MTLStorageMode

HEAP_CACHE_SECONDS = 5.0
"""The ``cache_delay`` that heap providers are given: the framework's default heap cache duration."""


_COMMITTED = MTLCommandBufferStatus.COMMITTED


@name_arguments
class MPSPredicate(KnownAttributes):
    """A condition in device memory: the uint32 at ``offset`` bytes of ``buffer`` (MPSCommandBuffer.h, macOS 10.15).

    ``MPSPredicate(buffer, offset)`` reads an existing buffer; ``MPSPredicate(device=device)`` makes a buffer of its
    own, which holds 0 at first.

    Raises:
        MPSArgumentError: The offset is not a multiple of 4, or the number would leave the buffer.
    """

    def __init__(
        self, buffer: MTLBuffer | None = None, offset: int | None = None, *, device: MTLDevice | None = None
    ) -> None:
        one_of_two("MPSPredicate", "buffer", buffer, "device", device)
        if device is not None:
            of_kind("MPSPredicate", "device", device, MTLDevice)
            buffer = device.new_buffer(length=4)
        buffer = of_kind("MPSPredicate", "buffer", buffer, MTLBuffer)
        offset = 0 if offset is None else offset
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0 or offset % 4:
            raise MPSArgumentError("MPSPredicate", "offset", "must be a multiple of 4", repr(offset))
        if offset + 4 > buffer.length:
            got = f"{offset} in {buffer.length} bytes"
            raise MPSArgumentError("MPSPredicate", "offset", "must leave 4 bytes in the buffer", got)
        self._buffer = buffer
        self._offset = offset

    def __repr__(self) -> str:
        return described(self, f"the uint32 at byte {self._offset} of {self._buffer!r}")

    predicate_buffer = Shown[MTLBuffer]("_buffer", "The buffer that holds the number.")
    predicate_offset = Shown[int]("_offset", "Where the number begins, in bytes.")

    def regions(self) -> tuple[Region]:
        """The bytes of the number."""
        return (self._buffer.region(self._offset, 4),)

    def holds(self) -> bool:
        """Whether the number is not 0 now. On CUDA this waits for the stream."""
        return bool(self._buffer.memory(torch.int32, self._offset, 1).item())


class MPSHeapProvider(Protocol):
    """Supplies heaps for temporary objects (MPSCommandBuffer.h, macOS 10.15).

    It may also have ``retire_heap(heap, cache_delay)``, called when the work that used the heap has completed;
    ``cache_delay`` is how many seconds the memory is worth keeping.
    """

    def new_heap(self, descriptor: MTLHeapDescriptor) -> MTLHeap | None:
        """A heap of at least ``descriptor.size`` bytes, or None."""
        ...


class _Stream:
    """The Metal command buffers that one MPSCommandBuffer, and those around it, record to one after the other."""

    def __init__(self, root: MTLCommandBuffer) -> None:
        self.root = root
        self.recording = root.recording
        self.earlier: list[MTLCommandBuffer] = []

    def go_on(self) -> None:
        successor = self.root.commit_and_pass_on()
        self.earlier = [buffer for buffer in self.earlier if not _succeeded(buffer)]
        self.earlier.append(self.root)
        self.root, self.recording = successor, successor.recording

    def first_error(self) -> MTLExecutionError | None:
        return next((buffer.error for buffer in (*self.earlier, self.root) if buffer.error is not None), None)


def _succeeded(buffer: MTLCommandBuffer) -> bool:
    return buffer.recording.execution.finished.is_set() and buffer.error is None


@dataclass(frozen=True, slots=True, eq=False)
class Predicated(Writer):
    """Work that runs only if a predicate holds when its turn comes."""

    predicate: MPSPredicate
    work: Work

    def writes(self) -> Iterable[Region]:
        """What the work writes if it runs."""
        return self.work.writes() if isinstance(self.work, Writer) else ()

    def reads(self) -> Iterable[Region]:
        """The predicate, and what the work reads if it runs."""
        yield from self.predicate.regions()
        yield from self.work.reads() if isinstance(self.work, Writer) else ()

    def __call__(self) -> None:
        """Run it then."""
        if self.predicate.holds():
            self.work()


def _open(command_buffer: object) -> tuple[CommandBuffer, MPSCommandBuffer | None]:
    """A command buffer that can be gone on with, and the same where it is itself one around another."""
    if not isinstance(command_buffer, CommandBuffer):
        got = type(command_buffer).__name__
        raise MPSTypeError("MPSCommandBuffer", "command_buffer", "must be a command buffer", got)
    if isinstance(command_buffer, ReusableCommands):
        remedy = "Encode them to the MPSCommandBuffer"
        raise MPSTypeError("MPSCommandBuffer", "command_buffer", "must be committed", "ReusableCommands", remedy)
    if command_buffer.status >= MTLCommandBufferStatus.COMMITTED:
        got = f"status {command_buffer.status.name}"
        raise MTLCommandBufferError("MPSCommandBuffer", "command_buffer", "must not be committed yet", got)
    return command_buffer, command_buffer if isinstance(command_buffer, MPSCommandBuffer) else None


class MPSCommandBuffer(CommandBuffer):
    """A command buffer around another one, usable wherever a command buffer is (MPSCommandBuffer.h, macOS 10.15).

    ``MPSCommandBuffer(queue)`` begins a new Metal command buffer; ``MPSCommandBuffer(command_buffer=…)`` goes on with
    the given one, which may itself be an `MPSCommandBuffer`.

    `commit_and_continue` starts the work recorded so far and goes on with a new Metal command buffer: temporary objects
    stay valid, handlers that were added before belong to the part that was committed. `error` and
    `wait_until_completed` report the first fault of all parts.
    """

    _command_buffer: CommandBuffer
    _inner: MPSCommandBuffer | None = None
    _stream: _Stream
    _device: MTLDevice
    _lifetime: Lifetime
    _predicate: MPSPredicate | None = None
    _heap_provider: MPSHeapProvider | None = None
    _heaps: tuple[MTLHeap, ...] = ()

    def __init__(
        self, command_queue: MTLCommandQueue | None = None, command_buffer: CommandBuffer | None = None
    ) -> None:
        if (command_queue is None) is (command_buffer is None):
            one_of_two("MPSCommandBuffer", "command_queue", command_queue, "command_buffer", command_buffer)
        if command_queue is not None:
            if not isinstance(command_queue, MTLCommandQueue):
                remedy = "A command buffer is given as command_buffer=…"
                got = type(command_queue).__name__
                raise MPSTypeError("MPSCommandBuffer", "command_queue", "must be an MTLCommandQueue", got, remedy)
            root, inner = command_queue.command_buffer(), None
            command_buffer = root
        else:
            command_buffer, inner = _open(command_buffer)
            root = command_buffer.root_command_buffer
        if inner is not None:
            store(self, "_inner", inner)
        # Every step of a program makes one.
        store(self, "_command_buffer", command_buffer)
        store(self, "_stream", _Stream(root) if inner is None else inner._stream)
        store(self, "_device", command_buffer.device)
        store(self, "_lifetime", command_buffer.lifetime)

    # --- what it wraps -----------------------------------------------------------------------------------------------

    command_buffer = Shown[CommandBuffer]("_command_buffer", "The command buffer that this one was made with.")
    root_command_buffer = Shown[MTLCommandBuffer](  # pyright: ignore[reportIncompatibleMethodOverride]
        "_stream.root", "The Metal command buffer that records the work now."
    )
    recording = Shown[Recording](  # pyright: ignore[reportIncompatibleMethodOverride]
        "_stream.recording", "Where encodes are recorded now; for those who extend the framework."
    )
    device = Shown[MTLDevice]("_device", "The device that runs the work.")
    lifetime = Shown[Lifetime](
        "_lifetime", "The stream of work that temporary objects made with this buffer belong to."
    )
    retained_references = Shown[bool](
        "_stream.root.retained_references", "Whether the Metal command buffer was asked to keep what it uses alive."
    )

    @property
    def status(self) -> MTLCommandBufferStatus:
        """How far the part that records now has come; ERROR also when it is done and an earlier part has failed."""
        status = self.recording.status
        failed = status is MTLCommandBufferStatus.COMPLETED and self._stream.first_error() is not None
        return MTLCommandBufferStatus.ERROR if failed else status

    @property
    def error(self) -> MTLExecutionError | None:
        """The first fault of all parts, with the original exception as its ``__cause__``."""
        return self._stream.first_error()

    def commit_and_continue(self) -> None:
        """Commit what was recorded so far and go on with a new Metal command buffer of the same queue.

        Handlers added before stay with the committed part and run when it is done; handlers added afterwards belong to
        the new one. Temporary objects, predicate, heaps, label and debug groups carry over.

        Raises:
            MTLCommandBufferError: The buffer is committed already, or an encoder is open on it.
        """
        if not self.recording.is_open:
            self._refuse_encode("commit_and_continue")
        self._stream.go_on()

    def wait_until_completed(self) -> None:
        """Block until all parts are done and their handlers have returned; see `CommandBuffer.wait_until_completed`."""
        super().wait_until_completed()
        self._stream.earlier.clear()

    # --- predicates --------------------------------------------------------------------------------------------------

    @property
    def predicate(self) -> MPSPredicate | None:
        """Work recorded through this wrapper from now on runs only if the predicate holds when its turn comes.

        Wrappers nest: the predicates of this one and of every `MPSCommandBuffer` that it wraps must hold. On CUDA each
        predicated work makes the committing thread wait for the stream.
        """
        return self._predicate

    @predicate.setter
    def predicate(self, value: MPSPredicate | None) -> None:
        if value is not None and not isinstance(value, MPSPredicate):
            raise MPSTypeError(self.name, "predicate", "must be an MPSPredicate or None", type(value).__name__)
        if value is not None and value.predicate_buffer.device is not self.device:
            rule = f"must belong to the device {self.device}"
            raise MPSDeviceError(self.name, "predicate", rule, value.predicate_buffer.device)
        self._predicate = value

    def record(self, label: str, work: Work) -> None:
        """Add one piece of work, under the predicates of this wrapper and those inside; see `CommandBuffer.record`."""
        recording = self._stream.recording
        if (
            self._predicate is None
            and self._inner is None
            and recording.encoder is None
            and recording.execution.status < _COMMITTED
            and not recording.debug_groups
            and callable(work)
            and not unwritten
        ):
            recording.execution.works.append((label, work))
            return
        inner = self._stream.root if self._inner is None else self._inner
        inner.record(label, work if self._predicate is None else Predicated(self._predicate, work))

    # --- heaps -------------------------------------------------------------------------------------------------------

    @property
    def heap_provider(self) -> MPSHeapProvider | None:
        """Supplies the heaps that `temporary_buffer` cuts from; None for the engine's own allocator."""
        return self._heap_provider

    @heap_provider.setter
    def heap_provider(self, value: MPSHeapProvider | None) -> None:
        if value is not None and not callable(getattr(value, "new_heap", None)):
            raise MPSTypeError(self.name, "heap_provider", "must have a method new_heap", type(value).__name__)
        self._heap_provider = value

    def prefetch_heap(self, workload_size: int) -> None:
        """Get memory for temporary objects of ``workload_size`` bytes together, before the first of them is made.

        With a `heap_provider` this asks it for one heap. Without, on CUDA, the engine's allocator takes the memory from
        the device now; on the CPU there is nothing to prepare.
        """
        self.device.check_length(self.name, "workload_size", workload_size)
        if self._heap_provider is not None:
            self._new_heap(self._heap_provider, workload_size)
        elif self.device.is_cuda:
            torch.empty(workload_size, dtype=torch.uint8, device=self.device.torch_device)

    def temporary_buffer(self, length: int) -> MTLBuffer:
        """A private buffer of ``length`` bytes for a temporary object.

        It is cut from a heap of the `heap_provider`. Without one, or when it has no heap, the engine allocates it.
        """
        if self._heap_provider is None:
            return self._command_buffer.temporary_buffer(length)
        self.device.check_length(self.name, "length", length)
        for heap in self._heaps:
            if (buffer := heap.new_buffer(length)) is not None:
                return buffer
        heap = self._new_heap(self._heap_provider, length)
        buffer = None if heap is None else heap.new_buffer(length)
        return self._command_buffer.temporary_buffer(length) if buffer is None else buffer

    def _new_heap(self, provider: MPSHeapProvider, size: int) -> MTLHeap | None:
        heap = provider.new_heap(MTLHeapDescriptor(size=size))
        if heap is None:
            return None
        if not isinstance(heap, MTLHeap):
            got = type(heap).__name__
            raise MPSTypeError(self.name, "heap_provider.new_heap", "must return an MTLHeap or None", got)
        if heap.device is not self.device or heap.storage_mode is not MTLStorageMode.PRIVATE:
            rule = f"must return a private heap of the device {self.device}"
            raise MPSDeviceError(self.name, "heap_provider.new_heap", rule, repr(heap))
        if not self._heaps:
            self.lifetime.before_end.append(self._retire_heaps)
        self._heaps += (heap,)
        return heap

    def _retire_heaps(self, last: MTLCommandBuffer) -> None:
        heaps, self._heaps = self._heaps, ()
        retire = getattr(self._heap_provider, "retire_heap", None)
        if retire is not None:
            last.add_completed_handler(lambda _: [retire(heap, HEAP_CACHE_SECONDS) for heap in heaps])
