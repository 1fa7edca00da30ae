"""Command buffers: what kernels record to, and its life from the first encode to the last completed handler."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from openmps.errors import MPSTypeError, MTLCommandBufferError, MTLExecutionError
from openmps.metal.blit import MTLBlitCommandEncoder
from openmps.metal.execution import Execution, Handler, Latch, Work
from openmps.metal.lane import Lane, Place
from openmps.types import MTLCommandBufferErrorCode, MTLCommandBufferStatus, MTLResourceOptions

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice
    from openmps.metal.memory import MTLBuffer
    from openmps.metal.queue import MTLCommandQueue

_log = logging.getLogger(__name__)
_COMMITTED = MTLCommandBufferStatus.COMMITTED


class Lifetime:
    """The stream of work that a temporary object belongs to.

    Every command buffer begins one. An `MPSCommandBuffer` shares that of the buffer it wraps, and hands it to the next
    buffer when it commits and continues, so temporary objects outlive that commit. Compare lifetimes by identity.
    """

    __slots__ = ("before_end", "ended")

    def __init__(self) -> None:
        self.ended = False
        """Whether its last command buffer was committed: temporary objects of this lifetime are gone."""
        self.before_end: list[Callable[[MTLCommandBuffer], None]] = []
        """Called with the last command buffer just before it is committed."""

    def end(self, last: MTLCommandBuffer) -> None:
        """End with the command buffer ``last``, which is about to be committed."""
        callbacks, self.before_end = self.before_end, []
        for callback in callbacks:
            callback(last)
        self.ended = True


class Recording:
    """What a Metal command buffer holds until its commit."""

    __slots__ = ("debug_groups", "encoder", "execution", "label", "lane", "lifetime", "place", "queue")

    def __init__(self, queue: MTLCommandQueue, lane: Lane) -> None:
        self.queue = queue
        self.lane = lane
        self.execution = Execution(lane.timer())
        self.lifetime = Lifetime()
        self.label: str | None = None
        self.place: Place | None = None
        self.encoder: MTLBlitCommandEncoder | None = None
        self.debug_groups: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether something can be encoded."""
        return self.encoder is None and self.execution.status < _COMMITTED


class CommandBuffer(ABC):
    """What kernels encode to: an `MTLCommandBuffer`, or an `MPSCommandBuffer` around one (MTLCommandBuffer.h).

    Encoding only records. After `commit` the queue runs the record in order while Python goes on: on the CPU on the
    queue's own thread, on CUDA on the stream that is current in the committing thread. Handlers run on the queue's
    thread in the order they were added; all completed handlers have returned before `wait_until_completed` returns.
    When a work or a handler raises, the status becomes ERROR and `error` says why; the rest of a failed record is
    skipped, its completed handlers still run, and so do later buffers of the queue.

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

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> MTLDevice:
        """The device that runs the work."""
        return self.recording.queue.device

    @property
    def command_queue(self) -> MTLCommandQueue:
        """The queue that made the buffer."""
        return self.recording.queue

    @property
    def lifetime(self) -> Lifetime:
        """The stream of work that temporary objects made with this buffer belong to."""
        return self.recording.lifetime

    @property
    def label(self) -> str | None:
        """A name for errors and debugging."""
        return self.recording.label

    @label.setter
    def label(self, value: str | None) -> None:
        self.recording.label = value

    @property
    def name(self) -> str:
        """Class and label, as errors call the buffer."""
        return f"{type(self).__name__} {self.label!r}" if self.label else type(self).__name__

    @property
    def status(self) -> MTLCommandBufferStatus:
        """How far the command buffer has come."""
        return self.recording.execution.status

    @property
    def error(self) -> MTLExecutionError | None:
        """Why the work failed, with the original exception as its ``__cause__``; None while nothing has."""
        return self.recording.execution.error

    @property
    def error_code(self) -> MTLCommandBufferErrorCode:
        """The kind of `error`: OUT_OF_MEMORY, INTERNAL for every other fault, NONE while nothing has failed."""
        error = self.error
        if error is None:
            return MTLCommandBufferErrorCode.NONE
        if isinstance(error.__cause__, (MemoryError, torch.OutOfMemoryError)):
            return MTLCommandBufferErrorCode.OUT_OF_MEMORY
        return MTLCommandBufferErrorCode.INTERNAL

    @property
    def gpu_start_time(self) -> float:
        """When the device began the work, in seconds of `time.perf_counter`; 0 until it is done (macOS 10.15).

        On CUDA the difference between start and end is measured by the device itself.
        """
        return self.recording.execution.times[0]

    @property
    def gpu_end_time(self) -> float:
        """When the device ended the work, in seconds of `time.perf_counter`; 0 until it is done (macOS 10.15)."""
        return self.recording.execution.times[1]

    def __repr__(self) -> str:
        return f"<{self.name}, {self.status.name}, on {self.device.name}>"

    # --- recording ---------------------------------------------------------------------------------------------------

    def record(self, label: str, work: Work) -> None:
        """Add one piece of work. It runs once, after everything recorded earlier, when the buffer executes.

        Args:
            label: What the work is, for errors: the kernel's class and label.
            work: Called without arguments, and dropped right after it ran.

        Raises:
            MTLCommandBufferError: The buffer is committed already, or an encoder is open on it.
        """
        recording = self.recording
        if not recording.is_open:
            self._refuse_encode(f"encode of {label!r}")
        if not callable(work):
            raise MPSTypeError(self.name, f"work {label!r}", "must be callable", type(work).__name__)
        if recording.debug_groups:
            label = "/".join((*recording.debug_groups, label))
        recording.execution.works.append((label, work))

    def push_debug_group(self, string: str) -> None:
        """Begin a named group: work recorded until `pop_debug_group` carries the name before its own in errors."""
        if not isinstance(string, str):
            raise MPSTypeError(self.name, "string", "must be a str", type(string).__name__)
        self.recording.debug_groups += (string,)

    def pop_debug_group(self) -> None:
        """End the group that was begun last."""
        if not self.recording.debug_groups:
            remedy = "Call push_debug_group before it"
            raise MTLCommandBufferError(self.name, "pop_debug_group", "needs an open group", None, remedy)
        self.recording.debug_groups = self.recording.debug_groups[:-1]

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

    def _check_handler(self, method: str, block: Handler) -> None:
        if not callable(block):
            raise MPSTypeError(self.name, f"block of {method}", "must be callable", type(block).__name__)
        if self.recording.execution.status >= _COMMITTED:
            self._refuse_after_commit(method)

    def _refuse_encode(self, action: str) -> None:
        encoder = self.recording.encoder
        if encoder is None:
            self._refuse_after_commit(action)
        else:
            remedy = "Call its end_encoding first"
            raise MTLCommandBufferError(self.name, action, "needs every encoder to be ended", encoder.name, remedy)

    def _refuse_after_commit(self, action: str) -> None:
        raise MTLCommandBufferError(
            self.name,
            action,
            "is allowed before commit only",
            f"status {self.recording.execution.status.name}",
            "Make another command buffer with command_queue.command_buffer()",
        )

    # --- running -----------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Fix the place in the queue's order without committing: buffers that are enqueued later run later.

        A second call changes nothing. A buffer that is dropped without a commit gives its place back.
        """
        recording = self.recording
        if recording.execution.status >= _COMMITTED:
            self._refuse_after_commit("enqueue")
        if recording.place is None:
            recording.place = Place()
        recording.lane.reserve(recording.place)
        recording.execution.status = MTLCommandBufferStatus.ENQUEUED

    def commit(self) -> None:
        """Hand the record to the queue and return at once; nothing can be encoded afterwards.

        Raises:
            MTLCommandBufferError: The buffer is committed already, or an encoder is open on it.
        """
        self._check_commit("commit")
        self.recording.lifetime.end(self.root_command_buffer)
        self.root_command_buffer.hand_over()

    def _check_commit(self, method: str) -> None:
        if not self.recording.is_open:
            self._refuse_encode(method)
        if self.recording.lane.is_closed:
            remedy = "Wait for the last buffer before that"
            fault = MTLCommandBufferError(self.name, method, "came too late: the process is ending", None, remedy)
            # What a handler raises is seen by those who look at its buffer, and they are gone.
            _log.error("%s", fault)
            raise fault

    def wait_until_scheduled(self) -> None:
        """Block until everything before this buffer is done and its scheduled handlers have returned."""
        self._wait(self.recording.execution.scheduled, "wait_until_scheduled")

    def wait_until_completed(self) -> None:
        """Block until the work is done and all completed handlers have returned.

        Raises:
            MTLExecutionError: Work or a handler failed; the original exception is the ``__cause__``.
            MTLCommandBufferError: The buffer is not committed, or the wait comes from a handler that it waits for.
        """
        self._wait(self.recording.execution.finished, "wait_until_completed")
        if (error := self.error) is not None:
            # A fresh exception each time: a traceback on the one that is kept would keep the caller's frames alive. It
            # has no name here: this frame would be in a cycle with it.
            raise MTLExecutionError(error.who, error.argument, error.rule, error.got, error.remedy) from error.__cause__

    def _wait(self, latch: Latch, method: str) -> None:
        recording = self.recording
        status = f"status {recording.execution.status.name}"
        if recording.execution.status < _COMMITTED:
            remedy = "Call commit first, or the wait would never return"
            raise MTLCommandBufferError(self.name, method, "needs a committed buffer", status, remedy)
        if not recording.lane.wait(recording.execution, latch):
            rule = "cannot be called by a handler or work that the buffer waits for"
            raise MTLCommandBufferError(self.name, method, rule, status, "Add a completed handler to it instead")


class MTLCommandBuffer(CommandBuffer):
    """A record of work for one queue (MTLCommandBuffer.h, macOS 10.11). Made by `MTLCommandQueue.command_buffer`.

    ``retained_references`` is False for a buffer of `MTLCommandQueue.command_buffer_with_unretained_references`; what
    was recorded holds the memory that it uses either way.
    """

    def __init__(self, command_queue: MTLCommandQueue, lane: Lane, retained_references: bool = True) -> None:
        self._recording = Recording(command_queue, lane)
        self._retained_references = retained_references

    def __del__(self) -> None:
        # A place that will never be committed must not hold up the queue. There is no recording if __init__ failed.
        recording: Recording | None = getattr(self, "_recording", None)
        if recording is not None and recording.place is not None and recording.place.execution is None:
            recording.lane.abandon(recording.place)

    @property
    def root_command_buffer(self) -> MTLCommandBuffer:
        """The buffer itself."""
        return self

    @property
    def recording(self) -> Recording:
        """Where encodes are recorded; for those who extend the framework."""
        return self._recording

    @property
    def retained_references(self) -> bool:
        """Whether the buffer was asked to keep what it uses alive; it always does."""
        return self._retained_references

    def hand_over(self) -> None:
        """Commit, whether or not another buffer goes on with the lifetime; for `commit` and `commit_and_pass_on`."""
        recording = self._recording
        recording.queue.device.flush_host_copies()
        recording.lane.start()
        if recording.place is None:
            recording.place = Place()
        try:
            recording.execution.commit(self)
            recording.lane.commit(recording.place, recording.execution)
        except BaseException:
            # An interrupt: a commit that shows in the status takes place.
            if recording.execution.status >= _COMMITTED:
                recording.lane.commit(recording.place, recording.execution)
            raise

    def commit_and_pass_on(self) -> MTLCommandBuffer:
        """Commit, and return a new buffer that goes on with this one's lifetime, label and debug groups."""
        self._check_commit("commit_and_continue")
        successor = self._recording.queue.command_buffer()
        recording = successor.recording
        recording.lifetime = self._recording.lifetime
        recording.label = self._recording.label
        recording.debug_groups = self._recording.debug_groups
        self.hand_over()
        return successor
