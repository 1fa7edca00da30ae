"""What a command queue runs: the record of one command buffer, from commit to its last completed handler."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol
from weakref import ref

import torch

from openmps.errors import MTLExecutionError
from openmps.metal.explanation import Content, Passage, WorkOutcome
from openmps.metal.pending import mark_unwritten, mark_written_by, unreadable, unwritten
from openmps.metal.thread_modes import ThreadModes
from openmps.types import MTLCommandBufferStatus as Status

WAIT_SLICE = 0.2
"""Seconds between two looks of a waiting thread at what it waits for."""

_log = logging.getLogger(__name__)

Work = Callable[[], None]
"""One encoded piece of work: reads and writes tensors when it is called."""


def keep_place() -> None:
    """Work that only keeps its place in the record."""


MAX_CAPTURE_COUNT = 16
"""How many captures a player keeps unless said otherwise."""


class Player(Protocol):
    """Runs works of a record together, if it knows how; one a queue."""

    max_capture_count: int
    """How many captures it keeps."""
    allow_fusion: bool
    """Whether kernels encoded one by one may run as parts of one another."""

    def play(self, works: deque[tuple[str, Work]], passages: list[Passage]) -> int:
        """Run some works from the front together and take them off, or say how many of those there are to run alone.

        What becomes of them is added to ``passages``.
        """
        ...

    def forget(self) -> None:
        """Let go of its captures; what comes again is captured anew."""
        ...


PlayerFactory = Callable[[torch.device], Player | None]
"""Makes the player of a new queue of a device; None where each work runs by itself."""


class Releasable(Protocol):
    """Memory of a temporary object."""

    def release(self) -> None:
        """Give the memory back; called when the work before it has run."""
        ...

    def parts(self) -> Iterable[object]:
        """Itself and the memory that is given back with it."""
        ...


class Release:
    """Work that gives memory of temporary objects back. It runs also when work before it has failed."""

    __slots__ = ("memories",)

    def __init__(self, *memories: Releasable) -> None:
        self.memories = memories

    def __call__(self) -> None:
        """Give it back."""
        for memory in self.memories:
            memory.release()


class Owner(Protocol):
    """The command buffer of a record: all that the record knows of it is what errors call it."""

    @property
    def name(self) -> str:
        """Class and label."""
        ...


Handler = Callable[[Any], object]
"""Called with the owner of a record that was scheduled or has completed; what it returns is ignored."""


class Timer(Protocol):
    """When the device began and ended one record."""

    def begin(self) -> None:
        """Note the place before the first work."""
        ...

    def end(self) -> None:
        """Note the place after the last work."""
        ...

    def wait(self) -> None:
        """Block until the device has passed the end."""
        ...

    def is_over(self) -> bool:
        """Whether it has."""
        ...

    def times(self) -> tuple[float, float]:
        """When it began and ended, in seconds of `time.perf_counter`; asked once it has passed the end."""
        ...


class HostTimer:
    """Times of work that has run when its call returns."""

    _began = _ended = 0.0

    def begin(self) -> None:
        """See `Timer`."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """See `Timer`."""
        self._ended = time.perf_counter()

    def wait(self) -> None:
        """See `Timer`; there is nothing to wait for."""

    def is_over(self) -> bool:
        """See `Timer`."""
        return True

    def times(self) -> tuple[float, float]:
        """See `Timer`."""
        return self._began, self._ended


class Clock:
    """Makes the timers of one queue: those of work that has run when its call returns."""

    measures = True
    """Whether somebody may ask when records began and ended."""

    def timer(self) -> Timer:
        """That of the next record."""
        return HostTimer()


class Latch:
    """Something that happens once and that threads wait for: a `threading.Event` that is cheap to make."""

    is_reached = False
    """Whether it has happened: what `is_set` says, without a call."""
    _lock: threading.Lock | None = None
    """Closed until then; the first thread that waits makes it."""

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self.is_reached

    def set(self) -> None:
        """Let it have happened; a second call changes nothing, nor does one of another thread at the same time."""
        if not self.is_reached:
            self.is_reached = True
            # In this order: a thread that waits has made the lock before it looks, or makes it and sees that it has.
            if self._lock is not None:
                self._open(self._lock)

    @staticmethod
    def _open(lock: threading.Lock) -> None:
        with suppress(RuntimeError):  # It is open.
            lock.release()

    def wait(self, patience: float = math.inf) -> bool:
        """Block until it has happened, or for so many seconds; whether it has.

        The wait is cut into slices so that an interrupt reaches it on every operating system. One that arrives between
        the two calls on the lock costs the other threads a slice, no more.
        """
        if self.is_reached:
            return True
        made = threading.Lock()
        made.acquire()
        lock: threading.Lock = vars(self).setdefault("_lock", made)
        # In this order: what happens meanwhile is seen here, or opens the lock.
        end = time.monotonic() + patience
        while not self.is_reached and time.monotonic() < end:
            if lock.acquire(timeout=WAIT_SLICE):
                self._open(lock)
        return self.is_reached


class Execution:
    """The record of one command buffer.

    A queue's executor calls `launch`, which runs the works in order, then `announce` and `finish` on its worker thread;
    of a quiet one it calls `finish` alone, on any thread, and as often as it likes.
    """

    status = Status.NOT_ENQUEUED
    error: MTLExecutionError | None = None
    launched = False
    is_quiet = False
    """Whether nothing is left to do at its end but to say so; known when it is handed on."""
    is_awaited = False
    """Whether somebody waits who will not look after it himself."""
    is_left = False
    """Whether the worker was not told of it, as the thread that has committed it is about to wait."""
    committed_at = 0.0
    """When, by `time.monotonic`."""
    intra_op_threads = 0
    _skipped = 0
    _is_timed = False
    _owner: Owner | None = None
    _named: ref[Owner] | None = None

    def __init__(self, timer: Timer, player: Player | None = None, no_player: str = "") -> None:
        self.works: deque[tuple[str, Work]] = deque()
        self.scheduled_handlers: list[Handler] = []
        self.completed_handlers: list[Handler] = []
        self.scheduled = Latch()
        self.finished = Latch()
        self.contents: list[Content] = []
        """What is kept of all works, from the launch on."""
        self.passages: list[Passage] = []
        """What became of the works, as far as the player has said."""
        self._timer = timer
        self.player = player
        """Runs works together or in its own way; None where each runs by itself."""
        self._no_player = no_player
        """Why there is none."""

    def prepare(self, owner: Owner) -> None:
        """Before the commit, which the status shows: ``owner`` is kept alive until `finish` has called its handlers."""
        self._owner = owner
        self.intra_op_threads = torch.get_num_threads()

    def launch(self) -> None:
        """Run the works in order, dropping each right after it ran. A fault is kept as `error` and skips the rest.

        Only what is meant for the calling thread itself (an interrupt) is raised as well.
        """
        modes = ThreadModes()
        try:
            try:
                modes.leave()
                self._run_all()
            finally:
                modes.give_back()
        finally:
            if not modes.are_back:  # an interrupt came as they were given back
                modes.give_back()

    def _contents(self) -> list[Content]:
        """What is kept of works when they have run: nothing that they hold alive. `_run_all` has it in its own line."""
        return [(label, getattr(work, "function", None)) for label, work in tuple(self.works)]

    def _run_all(self) -> None:
        label = "(start)"
        try:
            self.contents = [(label, getattr(work, "function", None)) for label, work in tuple(self.works)]
            if unwritten:
                found = unreadable(self.works)
                if found is not None:
                    label, fault = found
                    raise fault
                mark_written_by(self.works)
            self._timer.begin()
            while self.works:
                label = self.works[0][0]
                alone = len(self.works) if self.player is None else self.player.play(self.works, self.passages)
                for _ in range(alone):
                    # It stays the first while it runs: a thread that wants to read looks for what is yet to be written.
                    label, work = self.works[0]
                    work()
                    del work
                    self.works.popleft()
        except BaseException as fault:
            # This frame would keep the works alive for as long as the error is kept.
            fault.__traceback__ = fault.__traceback__ and fault.__traceback__.tb_next
            self._fail(f"work {label!r}", fault, "The rest of this command buffer was skipped")
            if not isinstance(fault, Exception):
                raise
        finally:
            if self.works:
                # The work that failed is still the first: it was to run.
                self._skip_the_rest(max(0, len(self.works) - (self.error is not None)))
            self._end_timer()
            self.launched = True

    def announce(self) -> None:
        """Everything before this record is done: call the scheduled handlers."""
        self.status = Status.SCHEDULED
        try:
            if self.scheduled_handlers:
                self._call(self.scheduled_handlers, "scheduled handler")
        finally:
            self.scheduled.set()

    def finish(self) -> None:
        """Wait for the device, call the completed handlers, then let the waiting threads go on."""
        if self.finished.is_reached:
            return
        try:
            self._timer.wait()
            self._is_timed = True
        except Exception as fault:
            self._fail("work on the device", fault, "The device reports faults of earlier work late")
        self.status = Status.COMPLETED if self.error is None else Status.ERROR
        try:
            if self.completed_handlers:
                self._call(self.completed_handlers, "completed handler")
        finally:
            self._owner = None
            self.finished.set()

    @property
    def has_handlers(self) -> bool:
        """Whether somebody is called when it is scheduled or has completed."""
        return bool(self.scheduled_handlers or self.completed_handlers)

    def be_quiet(self) -> None:
        """Have nothing left to do at the end. The owner, which holds the queue, need not wait for somebody to look."""
        if self._owner is not None:
            self._named = ref(self._owner)
            self._owner = None
        self.is_quiet = True

    def is_over(self) -> bool:
        """Whether the device has done what was launched, or has failed: then `finish` does not block."""
        try:
            return self._timer.is_over()
        except RuntimeError:
            return True

    @property
    def times(self) -> tuple[float, float]:
        """When the device began and ended, in seconds of `time.perf_counter`; 0 until it is done."""
        return self._timer.times() if self._is_timed else (0.0, 0.0)

    def give_up(self, rule: str, remedy: str) -> None:
        """Drop the works of a record that will never be launched; `finish` still calls the completed handlers."""
        self.contents, skipped = self._contents(), len(self.works)
        self._keep("its turn", rule, None, remedy)
        self._skip_the_rest(skipped)
        self.launched = True

    def stay_behind(self) -> None:
        """In a forked process: the work stays with the process that committed it, and so do the handlers.

        What was recorded is kept, so that it shows what was not written here.
        """
        if self.finished.is_set():
            return
        self.contents, self._skipped = self._contents(), len(self.works)
        rule = "stayed with the process that committed it, of which this one is a fork"
        self._keep("its work", rule, None, "Wait for it before the fork, or encode it again here")
        self.status, self._owner, self.launched = Status.ERROR, None, True
        self.scheduled.set()
        self.finished.set()

    def told(self) -> tuple[list[Content], list[Passage]]:
        """What is kept of the works, and what became of them."""
        if not self.launched:
            contents = self.contents or self._contents()
            return contents, [Passage(len(contents), WorkOutcome.PENDING, "")]
        left = len(self.contents) - self._skipped
        known = _first(self.passages, left)
        rest = left - sum(passage.works for passage in known)
        alone = Passage(rest, WorkOutcome.RUN, "" if self.player else self._no_player)
        return self.contents, [*known, alone, Passage(self._skipped, WorkOutcome.SKIPPED, "")]

    def _skip_the_rest(self, skipped: int) -> None:
        self._skipped = skipped
        mark_unwritten(self.works, self._who(), self.error)
        for _, work in self.works:
            if isinstance(work, Release):
                with suppress(Exception):
                    work()
        self.works.clear()

    def _end_timer(self) -> None:
        try:
            self._timer.end()
        except Exception as fault:
            self._fail("work on the device", fault, "The device reports faults of earlier work late")

    def _call(self, handlers: list[Handler], kind: str) -> None:
        owner = self._owner
        if owner is None:
            return
        for handler in handlers:
            try:
                handler(owner)
            except BaseException as fault:
                fault.__traceback__ = fault.__traceback__ and fault.__traceback__.tb_next
                self._fail(f"{kind} {_name_of(handler)}", fault, "The work itself and the other handlers ran")
        handlers.clear()

    def _fail(self, what: str, fault: BaseException, remedy: str) -> None:
        """Keep the first fault as `error` and log the others. Nothing that a user's objects do here may raise."""
        if isinstance(fault, MemoryError | torch.OutOfMemoryError):
            # What the frames of the fault hold is the memory that was missing.
            clear_frames(fault.__traceback__)
        if self.error is None:
            self._keep(what, "must run to its end", _text(fault), remedy).__cause__ = fault
            return
        with suppress(Exception):
            _log.error("%s: %s failed after an earlier fault", self._who(), what, exc_info=fault)

    def _keep(self, what: str, rule: str, got: str | None, remedy: str) -> MTLExecutionError:
        self.error = MTLExecutionError(self._who(), what, rule, got, remedy)
        if self.status is Status.COMPLETED:
            self.status = Status.ERROR
        return self.error

    def _who(self) -> str:
        owner = self._named() if self._owner is None and self._named is not None else self._owner
        return "MTLCommandBuffer" if owner is None else owner.name


def _first(passages: Sequence[Passage], works: int) -> list[Passage]:
    """What became of so many works at most."""
    found: list[Passage] = []
    for passage in passages:
        found.append(passage._replace(works=min(passage.works, works)))
        works -= found[-1].works
    return found


def _text(fault: BaseException) -> str:
    kind = type(fault).__name__
    try:
        return f"{kind}: {fault}"
    except Exception:
        return f"{kind}, whose text cannot be read"


def _name_of(handler: Handler) -> str:
    """What a handler is called, without its arguments: those may be large."""
    function = handler.func if isinstance(handler, partial) else handler
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__name__


class Ticket:
    """The position of one command buffer in the order of its queue."""

    execution: Execution | None = None
    abandoned: bool = False
    is_reserved: bool = False
    is_handed_on: bool = False

    def __init__(self, record: ref[Owner] | None = None) -> None:
        self.record = record

    @property
    def is_open(self) -> bool:
        """Whether nobody has committed it yet, or dropped it."""
        return self.execution is None and not self.is_handed_on and not self.abandoned
