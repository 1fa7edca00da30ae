"""What a command buffer records, and its life from the first encode to the last completed handler."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch

from openmps.checks import KnownAttributes, Shown, Single, optional_text
from openmps.errors import MPSTypeError, MTLCommandBufferError, MTLExecutionError
from openmps.locks import new_lock
from openmps.metal.execution import Execution, Latch, Owner, Ticket, Work
from openmps.metal.explanation import CommandBufferExplanation, explained
from openmps.metal.pending import mark_unwritten, require_read_written, unwritten, watch
from openmps.metal.queue_executor import QueueExecutor
from openmps.types import MTLCommandBufferErrorCode, MTLCommandBufferStatus

_log = logging.getLogger(__name__)
_ENQUEUED, COMMITTED = MTLCommandBufferStatus.ENQUEUED, MTLCommandBufferStatus.COMMITTED
_deciding = new_lock()
"""Held while a record becomes enqueued or committed, and for nothing that is called: forks and signals are safe."""


class Encoder(Owner, Protocol):
    """An open encoder: nothing else can be encoded until it has ended."""

    @property
    def works(self) -> tuple[tuple[str, Work], ...]:
        """What it has recorded so far."""
        ...


class Record:
    """What a Metal command buffer holds until its commit."""

    is_reusable: ClassVar[bool] = False
    """See `openmps.metal.pending.Unfinished`."""

    __slots__ = ("__weakref__", "debug_groups", "encoder", "execution", "executor", "is_measured", "label", "ticket")

    def __init__(self, executor: QueueExecutor) -> None:
        self.executor = executor
        self.execution = Execution(executor.timer(), executor.player, executor.no_player)
        self.is_measured = executor.clock.measures
        """Whether somebody may ask when it began and ended."""
        self.label: str | None = None
        self.ticket: Ticket | None = None
        self.encoder: Encoder | None = None
        self.debug_groups: tuple[str, ...] = ()
        watch(self)

    @property
    def status(self) -> MTLCommandBufferStatus:
        """How far it has come."""
        execution = self._looked_at()
        is_scheduled = execution.status is COMMITTED and execution.scheduled.is_set()
        return MTLCommandBufferStatus.SCHEDULED if is_scheduled else execution.status

    @property
    def error(self) -> MTLExecutionError | None:
        """Why it failed; None while nothing has."""
        return self._looked_at().error

    @property
    def times(self) -> tuple[float, float]:
        """When the device began and ended it; 0 until it is done."""
        return self._looked_at().times

    def _looked_at(self) -> Execution:
        execution = self.execution
        if execution.is_quiet and not execution.finished.is_set():
            self.executor.retire()
        return execution

    @property
    def is_open(self) -> bool:
        """Whether something can be encoded."""
        return self.encoder is None and self.execution.status < COMMITTED

    def hand_over(self, owner: Owner) -> bool:
        """Commit: the executor runs the works in their turn; False if it was committed already."""
        executor, execution = self.executor, self.execution
        if executor.worker is None:
            executor.start()
        execution.prepare(owner)
        ticket, is_mine = Ticket(weakref.ref(self)), False
        try:
            # Of several threads one commits. Nothing is called here, so that no interrupt or signal comes between.
            with _deciding:
                if execution.status < COMMITTED:
                    self.ticket = ticket = ticket if self.ticket is None else self.ticket
                    execution.status = COMMITTED
                    is_mine = True
            if is_mine:
                executor.commit(ticket, execution)
        except BaseException:
            # An interrupt: a commit that shows in the status takes place.
            if is_mine:
                executor.commit(ticket, execution)
            raise
        return is_mine

    def enqueue(self) -> bool:
        """Take the place in the queue's order, once; False if the record is committed already."""
        ticket, is_open = Ticket(weakref.ref(self)), False
        with _deciding:
            if self.execution.status < COMMITTED:
                self.ticket = ticket = ticket if self.ticket is None else self.ticket
                self.execution.status = _ENQUEUED
                is_open = True
        if is_open:
            self.executor.reserve(ticket)
        return is_open

    # --- what it has yet to write; see `openmps.metal.pending` -------------------------------------------------------

    @property
    def name(self) -> str:
        """Class and label, as errors call the command buffer."""
        return f"MTLCommandBuffer {self.label!r}" if self.label else "MTLCommandBuffer"

    @property
    def is_committed(self) -> bool:
        """Whether the works will run without more ado."""
        return self.execution.status >= COMMITTED

    @property
    def is_finished(self) -> bool:
        """Whether the works have run and the completed handlers have returned; not where they stayed behind a fork."""
        return self.execution.finished.is_set() and not self.execution.works

    def unfinished_works(self) -> tuple[tuple[str, Work], ...]:
        """What has not run to its end, what an open encoder holds with it."""
        works = tuple(self.execution.works)
        return works if self.encoder is None else works + self.encoder.works

    def finish(self, who: str, action: str) -> MTLExecutionError | None:
        """Wait for the end of a committed record; why it failed, if it did."""
        self.wait(who, action, self.execution.finished)
        return self.execution.error

    def wait(self, who: str | Owner, action: str, latch: Latch) -> None:
        """Wait for what happens to a committed record; ``who`` waits, by name or as what has one.

        Raises:
            MTLCommandBufferError: It can never happen.
        """
        why = self.executor.wait(self.execution, latch)
        if why is not None:
            rule, remedy = why
            name, status = who if isinstance(who, str) else who.name, f"status {self.execution.status.name}"
            raise MTLCommandBufferError(name, action, rule, status, remedy)

    def abandon(self) -> None:
        """Nobody is left to commit it: its results cannot be read, and its ticket must not hold up the queue."""
        if self.execution.status < COMMITTED:
            mark_unwritten(self.unfinished_works(), self.name)
        if self.ticket is not None and self.ticket.is_open:
            self.executor.abandon(self.ticket)


class Lifetime:
    """The stream of work that a temporary object belongs to.

    Every command buffer begins one. An `MPSCommandBuffer` shares that of the buffer it wraps, and hands it to the next
    buffer when it commits and continues, so temporary objects outlive that commit. Compare lifetimes by identity.
    """

    __slots__ = ("before_end", "ended")

    def __init__(self) -> None:
        self.ended = False
        """Whether its last command buffer was committed: temporary objects of this lifetime are gone."""
        self.before_end: list[Callable[[Any], None]] = []
        """Called with the last command buffer just before it is committed."""

    def end(self, last: Any) -> None:
        """End with the command buffer ``last``, which is about to be committed."""
        callbacks, self.before_end = self.before_end, []
        for callback in callbacks:
            callback(last)
        self.ended = True


class Recorder(KnownAttributes, Single, ABC):
    """What a `CommandBuffer` does with its record."""

    _instead = "Make another with command_buffer() of a queue, and encode to that one, too"

    @property
    @abstractmethod
    def recording(self) -> Record:
        """Where encodes are recorded now."""

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str | None:
        """A name for errors and debugging."""
        return self.recording.label

    @label.setter
    def label(self, value: str | None) -> None:
        self.recording.label = optional_text(type(self).__name__, "label", value)

    @property
    def name(self) -> str:
        """Class and label, as errors call the buffer."""
        return f"{type(self).__name__} {self.label!r}" if self.label else type(self).__name__

    status = Shown[MTLCommandBufferStatus]("recording.status", "How far the command buffer has come.")

    @property
    def error(self) -> MTLExecutionError | None:
        """Why the work failed, with the original exception as its ``__cause__``; None while nothing has."""
        return self.recording.error

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

        On CUDA the difference between start and end is measured by the device itself. Raises where the queue does not
        measure: see `MTLCommandQueue.measures_times`.
        """
        return self._measured("gpu_start_time").times[0]

    @property
    def gpu_end_time(self) -> float:
        """When the device ended the work, in seconds of `time.perf_counter`; 0 until it is done (macOS 10.15).

        Raises where the queue does not measure: see `MTLCommandQueue.measures_times`.
        """
        return self._measured("gpu_end_time").times[1]

    def _measured(self, attribute: str) -> Record:
        recording = self.recording
        if not recording.is_measured:
            remedy = "Set measures_times of the queue to True before it makes the buffer"
            raise MTLCommandBufferError(self.name, attribute, "must be measured", "a queue that does not", remedy)
        return recording

    def explain(self) -> CommandBufferExplanation:
        """What ran, step by step, what was fused, what was captured or replayed, and why the rest was not.

        Before the work has run it tells what was recorded. An `MPSCommandBuffer` tells the part that records now. Print
        it, or read its rows::

            command_buffer.wait_until_completed()
            print(command_buffer.explain())

        On a GPU, work that equals that of an earlier command buffer of the queue, but for numbers, images and what
        states carry, is captured as a CUDA graph the second time and replayed from then on;
        `MTLCommandQueue.max_capture_count` says how. Our addition.
        """
        return explained(str(self.recording.executor.device), *self.recording.execution.told())

    # --- recording ---------------------------------------------------------------------------------------------------

    def record(self, label: str, work: Work) -> None:
        """Add one piece of work. It runs once, after everything recorded earlier, when the buffer executes.

        Args:
            label: What the work is, for errors: the kernel's class and label.
            work: Called without arguments, and dropped right after it ran.

        Raises:
            MTLCommandBufferError: The buffer is committed already, or an encoder is open on it, or the work reads what
                a command buffer that was dropped was to write.
        """
        recording = self.recording
        if recording.encoder is not None or recording.execution.status >= COMMITTED:
            self._refuse_encode(f"encode of {label!r}")
        if not callable(work):
            raise MPSTypeError(self.name, f"work {label!r}", "must be callable", type(work).__name__)
        if recording.debug_groups:
            label = "/".join((*recording.debug_groups, label))
        if unwritten:
            require_read_written(label, work)
        recording.execution.works.append((label, work))

    @property
    def encodings(self) -> tuple[tuple[str, Work], ...]:
        """What the command buffer holds until it has run, pairs of label and work, for those who look inside.

        What an open encoder recorded is not among them yet. `MPSCommandBuffer` shows the part that records now.
        """
        return tuple(self.recording.execution.works)

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

    # --- running -----------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Fix the place in the queue's order without committing: buffers that are enqueued later run later.

        A second call changes nothing. A buffer that is dropped without a commit gives its place back.
        """
        recording = self.recording
        if not recording.enqueue():
            self._refuse_after_commit("enqueue")

    def wait_until_scheduled(self) -> None:
        """Block until everything before this buffer is done and its scheduled handlers have returned."""
        self._wait(self.recording.execution.scheduled, "wait_until_scheduled")

    def wait_until_completed(self) -> None:
        """Block until the work is done and all completed handlers have returned.

        Raises:
            MTLExecutionError: Work or a handler failed; the original exception is the ``__cause__``.
            MTLCommandBufferError: The buffer is not committed, the wait comes from a handler that it waits for, or it
                stands behind a buffer that was enqueued and that nobody is there to commit.
        """
        self._wait(self.recording.execution.finished, "wait_until_completed")
        if (error := self.error) is not None:
            # A fresh exception each time: a traceback on the one that is kept would keep the caller's frames alive. It
            # has no name here: this frame would be in a cycle with it.
            raise MTLExecutionError(error.who, error.argument, error.rule, error.got, error.remedy) from error.__cause__

    def _wait(self, latch: Latch, method: str) -> None:
        recording = self.recording
        if recording.execution.status < COMMITTED:
            status = f"status {recording.execution.status.name}"
            remedy = "Call commit first, or the wait would never return"
            raise MTLCommandBufferError(self.name, method, "needs a committed buffer", status, remedy)
        recording.wait(self, method, latch)

    # --- what is refused ---------------------------------------------------------------------------------------------

    def _check_commit(self, method: str, recording: Record) -> None:
        if recording.encoder is not None or recording.execution.status >= COMMITTED:
            self._refuse_encode(method)
        if recording.executor.is_closed:
            remedy = "Wait for the last buffer before that"
            fault = MTLCommandBufferError(self.name, method, "came too late: the process is ending", None, remedy)
            # What a handler raises is seen by those who look at its buffer, and they are gone.
            _log.error("%s", fault)
            raise fault

    def _check_handler(self, method: str, block: object) -> None:
        if not callable(block):
            raise MPSTypeError(self.name, f"block of {method}", "must be callable", type(block).__name__)
        if self.recording.execution.status >= COMMITTED:
            self._refuse_after_commit(method)

    def _refuse_encode(self, action: str) -> None:
        encoder = self.recording.encoder
        if encoder is None:
            self._refuse_after_commit(action)
        else:
            remedy = "Call its end_encoding first"
            raise MTLCommandBufferError(self.name, action, "needs every encoder to be ended", encoder.name, remedy)

    def _refuse_after_commit(self, action: str) -> None:
        rule = "is allowed before commit only"
        remedy = "Make another command buffer with command_queue.command_buffer()"
        raise MTLCommandBufferError(self.name, action, rule, f"status {self.recording.execution.status.name}", remedy)
