"""A device and all that it makes: buffers, heaps, queues, command buffers and their encoders.

These classes name one another, as the framework's do: they stand together so that each is fully known to the others.
What each does by itself lies below, in `processor`, `resource`, `heap`, `blit` and `recording`.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from sys import is_finalizing
from typing import Any, ClassVar, Self

import torch

from openmps.checks import NamedAttributes, Shown, Single, described, having, of_kind, store, whole
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal import process_end
from openmps.metal.array_protocols import Taken
from openmps.metal.blit import BlitEncoder
from openmps.metal.execution import PlayerFactory, Work
from openmps.metal.heap import Arena, MTLHeapDescriptor
from openmps.metal.host_copy import flushing
from openmps.metal.host_memory import keep_freed_memory
from openmps.metal.processor import Processor, torch_device_of
from openmps.metal.queue_executor import QueueExecutor
from openmps.metal.queue_settings import QueueSettings
from openmps.metal.recording import COMMITTED, Lifetime, Record, Recorder
from openmps.metal.resource import Bytes, Resource, bytes_of, modes_of
from openmps.metal.texels import TexelMemory, Texels
from openmps.metal.texture_descriptor import MTLTextureDescriptor, checked_descriptor
from openmps.selectors import name_arguments
from openmps.types import MTLCPUCacheMode, MTLResourceOptions, MTLStorageMode, NSRange

_TO_MAKE_ONE = "Make one with MTLCreateSystemDefaultDevice() or mtl_device(name)"
Handler = Callable[["MTLCommandBuffer"], object]
"""Called with the command buffer that was scheduled or has completed; what it returns is ignored."""


class MTLDevice(Processor):
    """The CPU or one CUDA GPU (MTLDevice.h, macOS 10.11). Made, one for each, by `mtl_device` and its like.

    ``make_player(torch_device)``, for those who extend the framework, is called for each new queue: it makes what
    replays the queue's work, or returns None where each work is to run by itself, as on a device without it.
    """

    def __init__(self, torch_device: torch.device, make_player: PlayerFactory | None = None) -> None:
        if not isinstance(torch_device, torch.device):
            got = type(torch_device).__name__
            raise MPSTypeError("MTLDevice", "torch_device", "must be a torch.device", got, _TO_MAKE_ONE)
        if make_player is not None:
            remedy = "Leave it out for queues that run each work by itself"
            having("__call__", "must be a function of a torch.device", remedy)("MTLDevice", "make_player", make_player)
        super().__init__(torch_device)
        self._make_player = make_player
        self._watched: set[weakref.ref[MTLBuffer]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of what holds a device hold the same device.
        return device_of, (str(self._torch_device), self._make_player)

    make_player = Shown[PlayerFactory | None]("_make_player", "What makes the players of its queues.")

    def new_command_queue(self, max_command_buffer_count: int = 64) -> MTLCommandQueue:
        """A queue that runs command buffers in order; at most so many are in flight before it blocks."""
        return MTLCommandQueue(self, max_command_buffer_count)

    def new_buffer(
        self,
        length: int | None = None,
        data: Any = None,
        options: MTLResourceOptions = MTLResourceOptions.STORAGE_MODE_SHARED,
    ) -> MTLBuffer:
        """A buffer of ``length`` zero bytes, or with a copy of ``data``.

        Args:
            length: Bytes; with ``data``, how many of its first bytes (all by default).
            data: Bytes, a NumPy array, a tensor, or any object with the buffer protocol.
            options: Storage mode and cache mode. A buffer with data cannot be private.

        Raises:
            MPSArgumentError: The length is not positive, larger than the data or than `max_buffer_length`.
            MPSTypeError: NumPy cannot view the data.
        """
        if data is None:
            return MTLBuffer(self, length, options)  # pyright: ignore[reportArgumentType]
        if modes_of("MTLBuffer", options)[0] is MTLStorageMode.PRIVATE:
            remedy = "Make a shared buffer and copy it with a blit encoder's copy_from_buffer"
            raise MPSArgumentError("MTLBuffer", "data", "cannot go into private memory", "PRIVATE", remedy)
        if length is not None:
            self.check_length("MTLBuffer", "length", length)
        storage = bytes_of("MTLBuffer", data, length).to(self._torch_device)
        return MTLBuffer(self, storage.numel(), options, storage=storage)

    def new_heap(self, descriptor: MTLHeapDescriptor) -> MTLHeap:
        """A block of memory to cut buffers from."""
        return MTLHeap(self, descriptor)

    def new_texture(self, descriptor: MTLTextureDescriptor) -> MTLTexture:
        """A texture of zeros."""
        return MTLTexture(self, descriptor)

    def watch(self, buffer: MTLBuffer) -> None:
        """Flush the host copy of ``buffer`` at every commit, as long as someone may write to it."""
        self._watched.add(weakref.ref(buffer, self._watched.discard))

    has_host_copies = Shown["set[weakref.ref[MTLBuffer]]"]("_watched", "Buffers with host copies to flush, if any.")

    def flush_host_copies(self) -> None:
        """Bring what the CPU wrote by way of `MTLBuffer.contents` to the device."""
        if not self._watched:
            return
        with flushing():
            for reference in self._watched.copy():
                buffer = reference()
                if buffer is None or not buffer.flush():
                    self._watched.discard(reference)


_devices: dict[tuple[torch.device, PlayerFactory | None], MTLDevice] = {}


def device_of(which: str | torch.device, make_player: PlayerFactory | None) -> MTLDevice:
    """The one device of this machine called ``which`` whose queues have players by ``make_player``; for `mtl_device`.

    Raises:
        MPSDeviceError: This machine, or this build of PyTorch, does not have the device.
        MPSArgumentError: It is not the name of a device.
    """
    key = torch_device_of(which), make_player
    found = _devices.get(key)
    return _devices.setdefault(key, MTLDevice(*key)) if found is None else found


class MTLResource(Resource):
    """Memory of one device (MTLResource.h, macOS 10.11).

    ``cpu_cache_mode`` is kept for the program that asks for it and changes nothing here.
    """

    _device: MTLDevice
    _heap: MTLHeap | None

    def __init__(
        self, device: MTLDevice, storage_mode: MTLStorageMode, cpu_cache_mode: MTLCPUCacheMode, heap: MTLHeap | None
    ) -> None:
        super().__init__(storage_mode, cpu_cache_mode)
        store(self, "_device", device)
        store(self, "_heap", heap)

    def __repr__(self) -> str:
        return described(self, self._device.name)

    @property
    def device(self) -> MTLDevice:
        """The device whose memory holds the resource."""
        return self._device

    @property
    def heap(self) -> MTLHeap | None:
        """The heap that the memory is part of; None for a resource made by the device (macOS 10.13)."""
        return self._heap


class MTLBuffer(Bytes, MTLResource):
    """``length`` bytes on a device (MTLBuffer.h, macOS 10.11). Made by `MTLDevice.new_buffer` or `MTLHeap.new_buffer`.

    The memory is allocated, and zero, on first use.
    """

    def __init__(
        self,
        device: MTLDevice,
        length: int,
        options: MTLResourceOptions = MTLResourceOptions.STORAGE_MODE_SHARED,
        *,
        heap: MTLHeap | None = None,
        storage: torch.Tensor | None = None,
    ) -> None:
        if not isinstance(device, MTLDevice):
            self._check_is_device(device)
        if storage is not None and not isinstance(storage, torch.Tensor):
            raise MPSTypeError("MTLBuffer", "storage", "must be a torch.Tensor", type(storage).__name__)
        MTLResource.__init__(self, device, *modes_of("MTLBuffer", options), heap)
        count = device.check_length("MTLBuffer", "length", length) if storage is None else storage.numel()
        store(self, "_length", count)
        store(self, "_storage", storage)

    @classmethod
    def _check_is_device(cls, device: object) -> None:
        of_kind(cls.__name__, "device", device, MTLDevice, _TO_MAKE_ONE)

    @classmethod
    def holding(cls, device: MTLDevice, taken: Taken) -> Self:
        """A buffer in the memory of elements that were taken; for those who extend the framework."""
        buffer = cls(device, taken.elements.nbytes, storage=taken.elements.reshape(-1).view(torch.uint8))
        store(buffer, "_origin", taken.origin)
        return buffer

    def _watch_host_copy(self) -> None:
        self._device.watch(self)

    def shape_key(self) -> Hashable:
        """How long it is; for those who extend the framework."""
        return self._length

    def empty_like(self) -> MTLBuffer:
        """Another buffer of this length, without memory; for those who extend the framework."""
        return MTLBuffer(self._device, self._length)


class MTLTexture(Texels, MTLResource):
    """Pixels of 1, 2 or 4 components in mip levels and slices (MTLTexture.h, macOS 10.11). Made by `new_texture`.

    A texture is the memory of images, never a copy: ``MPSImage(texture=…, feature_channels=…)`` sees it, and an image's
    `texture` is its memory. The memory is allocated, and zero, on first use.

    Raises:
        MPSArgumentError: The descriptor cannot be stored, or is larger than the device's memory.
    """

    def __init__(
        self, device: MTLDevice, descriptor: MTLTextureDescriptor, *, memory: TexelMemory | None = None
    ) -> None:
        of_kind("MTLTexture", "device", device, MTLDevice, _TO_MAKE_ONE)
        checked = checked_descriptor("MTLTexture", device, descriptor)
        MTLResource.__init__(self, device, checked.storage_mode, checked.cpu_cache_mode, None)
        self._lay_out(checked, memory)


class MTLHeap(Arena):
    """A block of memory of one device that buffers are cut from. Made by `MTLDevice.new_heap`.

    A buffer's bytes come back to the heap when the buffer and every tensor and array taken from it are gone.

    Raises:
        MPSArgumentError: The size is not positive or too large, or the storage mode is MANAGED or MEMORYLESS.
        MPSMemoryError: There is no free memory of this size.
    """

    def __init__(self, device: MTLDevice, descriptor: MTLHeapDescriptor) -> None:
        super().__init__(of_kind("MTLHeap", "device", device, MTLDevice, _TO_MAKE_ONE), descriptor)
        self._device = device

    device = Shown[MTLDevice]("_device", "The device whose memory this is.")

    def new_buffer(self, length: int, options: MTLResourceOptions | None = None) -> MTLBuffer | None:
        """A buffer of ``length`` zero bytes, or None when no gap of the heap is long enough.

        ``options``, where given, must name the heap's own storage and cache mode.
        """
        length = self._device.check_length(self.name, "length", length)
        asked = self._checked(options)
        storage = self._cut(length)
        return None if storage is None else MTLBuffer(self._device, length, asked, heap=self, storage=storage)


class MTLBlitCommandEncoder(BlitEncoder):
    """Records copies between buffers of one device. Made by `MTLCommandBuffer.blit_command_encoder`.

    While it is open nothing else can be encoded on its command buffer. As a context manager it ends itself::

        with command_buffer.blit_command_encoder() as blit:
            blit.copy_from_buffer(source, 0, destination, 0, source.length)
    """

    def __init__(self, command_buffer: CommandBuffer, close: Callable[[list[tuple[str, Work]]], None]) -> None:
        super().__init__(command_buffer.device, close)

    def synchronize_resource(self, resource: MTLResource) -> None:
        """Make what the device wrote to ``resource`` visible to the CPU once the command buffer has completed.

        Memory is coherent at the ends of command buffers here, so this only checks that the CPU may read it at all.
        """
        self._check_open("synchronize_resource")
        self._check_readable(resource)

    def copy_from_buffer(
        self, source: MTLBuffer, source_offset: int, destination: MTLBuffer, destination_offset: int, size: int
    ) -> None:
        """Copy ``size`` bytes from ``source_offset`` of ``source`` to ``destination_offset`` of ``destination``.

        Raises:
            MPSArgumentError: A range leaves its buffer, or the ranges overlap within one buffer.
            MTLCommandBufferError: A command buffer that was dropped was to write what is copied.
        """
        self._check_open("copy_from_buffer")
        self._copy(source, source_offset, destination, destination_offset, size)

    def fill_buffer(self, buffer: MTLBuffer, range: NSRange | range, value: int) -> None:
        """Set every byte of ``range`` to ``value`` (0 to 255)."""
        self._check_open("fill_buffer")
        self._fill(buffer, range, value)

    def __enter__(self) -> MTLBlitCommandEncoder:
        return self


@name_arguments
class MTLCommandQueue(QueueSettings, NamedAttributes, Single):
    """A serial queue of command buffers. Made by `MTLDevice.new_command_queue`.

    Buffers run one after the other in the order in which they were enqueued or, without `enqueue`, committed; Python
    goes on meanwhile. All queues of a CUDA device share the stream that is current where a buffer is committed. Memory
    that is given back is taken again in the order of the stream that it was first taken on: a program that commits
    under several streams keeps its images and buffers until the work that uses them has completed.

    At the end of the process what was committed is finished; handlers can commit no more then. Several threads may feed
    one queue, each with command buffers of its own.

    Args:
        device: The device that runs the work.
        max_command_buffer_count: How many committed buffers may be in flight before `command_buffer` blocks, so that a
            loop that encodes faster than the device runs does not pile up memory.
    """

    label: str | None = None
    """A name for errors and debugging."""
    _instead = "Make another with new_command_queue() of the device"
    _made_by: ClassVar[Mapping[str, str]] = {"device": "new_command_queue() of the other device"}

    def __init__(self, device: MTLDevice, max_command_buffer_count: int = 64) -> None:
        of_kind("MTLCommandQueue", "device", device, MTLDevice, _TO_MAKE_ONE)
        count = whole(
            "MTLCommandQueue", "max_command_buffer_count", max_command_buffer_count, rule="must be at least 1"
        )
        if device.torch_device.type == "cpu":
            keep_freed_memory()
        self._device = device
        player = None if device.make_player is None else device.make_player(device.torch_device)
        super().__init__(QueueExecutor(device.torch_device, count, player))
        # The thread knows the executor only, and ends with the queue. At exit the executor runs what is left.
        weakref.finalize(self, self._executor.close).atexit = False

    def __repr__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"<{type(self).__name__}{label} on {self._device.name}>"

    device = Shown[MTLDevice]("_device", "The device that runs the work.")

    def command_buffer(self) -> MTLCommandBuffer:
        """A new command buffer. Blocks while as many as the queue holds are in flight."""
        self._executor.wait_for_room()
        return MTLCommandBuffer(self, self._executor)

    def command_buffer_with_unretained_references(self) -> MTLCommandBuffer:
        """A new command buffer that is not asked to keep what it uses alive; see `MTLCommandBuffer`."""
        self._executor.wait_for_room()
        return MTLCommandBuffer(self, self._executor, retained_references=False)


class Recording(Record):
    """What a Metal command buffer holds until its commit, and what it belongs to."""

    __slots__ = ("lifetime", "queue")

    queue: MTLCommandQueue
    lifetime: Lifetime


class CommandBuffer(Recorder):
    """What kernels encode to: an `MTLCommandBuffer`, or an `MPSCommandBuffer` around one (MTLCommandBuffer.h).

    Encoding only records. After `commit` the queue runs the record in order while Python goes on: on the CPU on the
    queue's own thread, some milliseconds later where threads wait for the queue's records, or on the one that does; on
    CUDA on the stream that is current in the committing thread. Handlers run on the queue's thread in the order they
    were added; all completed handlers have returned before `wait_until_completed` returns. When a work or a handler
    raises, the status becomes ERROR and `error` says why; the rest of a failed record is skipped, its completed
    handlers still run, and so do later buffers of the queue.

    One thread at a time may encode to a command buffer.
    """

    @property
    @abstractmethod
    def root_command_buffer(self) -> MTLCommandBuffer:
        """The Metal command buffer that records the work now."""

    @property
    @abstractmethod
    def recording(self) -> Recording:
        """Where encodes are recorded now; for those who extend the framework."""

    device = Shown[MTLDevice]("recording.queue.device", "The device that runs the work.")
    command_queue = Shown[MTLCommandQueue]("recording.queue", "The queue that made the buffer.")
    lifetime = Shown[Lifetime](
        "recording.lifetime", "The stream of work that temporary objects made with this buffer belong to."
    )

    def __repr__(self) -> str:
        return f"<{self.name}, {self.status.name}, on {self.device.name}>"

    def blit_command_encoder(self) -> MTLBlitCommandEncoder:
        """An encoder for copies between buffers. Until its `end_encoding` nothing else can be encoded."""
        recording = self.recording
        if not recording.is_open:
            self._refuse_encode("blit_command_encoder")

        def close(works: list[tuple[str, Work]]) -> None:
            recording.encoder = None
            for label, work in works:
                self.root_command_buffer.record(label, work)

        recording.encoder = MTLBlitCommandEncoder(self, close)
        return recording.encoder

    def add_scheduled_handler(self, block: Handler) -> None:
        """Have ``block(command_buffer)`` called on the queue's thread when everything before this buffer is done."""
        self._check_handler("add_scheduled_handler", block)
        self.recording.execution.scheduled_handlers.append(block)

    def add_completed_handler(self, block: Handler) -> None:
        """Have ``block(command_buffer)`` called on the queue's thread when the work is done or has failed.

        It gets the `MTLCommandBuffer`. It may commit further buffers, and wait for those of other queues; a wait for a
        buffer that needs this thread to go on, such as one of the same queue that is still to run, raises.
        """
        self._check_handler("add_completed_handler", block)
        self.recording.execution.completed_handlers.append(block)

    def temporary_buffer(self, length: int) -> MTLBuffer:
        """A private buffer of ``length`` bytes for a temporary object of this command buffer."""
        return self.device.new_buffer(length=length, options=MTLResourceOptions.STORAGE_MODE_PRIVATE)

    def commit(self) -> None:
        """Hand the record to the queue and return at once; nothing can be encoded afterwards.

        Raises:
            MTLCommandBufferError: The buffer is committed already, or an encoder is open on it.
        """
        recording = self.recording
        is_open = recording.encoder is None and recording.execution.status < COMMITTED
        if not is_open or process_end.is_ending or is_finalizing():
            self._check_commit("commit", recording)
        root, lifetime = self.root_command_buffer, recording.lifetime
        if lifetime.before_end:
            lifetime.end(root)
        lifetime.ended = True
        root.hand_over()


class MTLCommandBuffer(CommandBuffer):
    """A record of work for one queue (MTLCommandBuffer.h, macOS 10.11). Made by `MTLCommandQueue.command_buffer`.

    ``retained_references`` is False for a buffer of `MTLCommandQueue.command_buffer_with_unretained_references`; what
    was recorded holds the memory that it uses either way.
    """

    _device: MTLDevice
    _recording: Recording
    _retained_references: bool = True

    def __init__(
        self, command_queue: MTLCommandQueue, executor: QueueExecutor, retained_references: bool = True
    ) -> None:
        if not isinstance(executor, QueueExecutor):
            remedy = "Make one with command_queue.command_buffer()"
            raise MPSTypeError("MTLCommandBuffer", "executor", "must be a queue's", type(executor).__name__, remedy)
        recording = Recording(executor)
        recording.queue, recording.lifetime = command_queue, Lifetime()
        store(self, "_recording", recording)
        store(self, "_device", command_queue.device)
        if not retained_references:
            store(self, "_retained_references", False)

    def __del__(self) -> None:
        # There is no recording if __init__ failed.
        recording: Recording | None = getattr(self, "_recording", None)
        if recording is not None and (recording.ticket is None or not recording.ticket.is_handed_on):
            recording.abandon()

    @property
    def root_command_buffer(self) -> MTLCommandBuffer:
        """The buffer itself."""
        return self

    device = Shown[MTLDevice]("_device", "The device that runs the work.")
    recording = Shown[Recording](  # pyright: ignore[reportIncompatibleMethodOverride]
        "_recording", "Where encodes are recorded; for those who extend the framework."
    )
    retained_references = Shown[bool](
        "_retained_references", "Whether the buffer was asked to keep what it uses alive; it always does."
    )

    def hand_over(self) -> None:
        """Commit, whether or not another buffer goes on with the lifetime; for `commit` and `commit_and_pass_on`."""
        if self._device.has_host_copies:
            self._device.flush_host_copies()
        if not self._recording.hand_over(self):
            self._refuse_encode("commit")

    def commit_and_pass_on(self) -> MTLCommandBuffer:
        """Commit, and return a new buffer that goes on with this one's lifetime, label and debug groups."""
        self._check_commit("commit_and_continue", self._recording)
        successor = self._recording.queue.command_buffer()
        recording, before = successor.recording, self._recording
        recording.lifetime, recording.label, recording.debug_groups = before.lifetime, before.label, before.debug_groups
        self.hand_over()
        return successor
