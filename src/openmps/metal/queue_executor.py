"""Runs the records of a command queue: in order, launched by the queue or a worker thread, each retired at its end."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch

from openmps.checks import Shown
from openmps.locks import new_lock
from openmps.metal import process_end
from openmps.metal.awake_threads import awake_threads, helpers
from openmps.metal.execution import Clock, Execution, Latch, Player, Ticket, Timer
from openmps.metal.in_flight import InFlight
from openmps.metal.patience import Patience, runs_alike_here
from openmps.metal.pending import be_in_queue
from openmps.metal.signals import SignalsHeldBack
from openmps.metal.stream import current_index
from openmps.metal.stream_timer import StreamOrder
from openmps.metal.thread_modes import ThreadModes

T = TypeVar("T")
_log = logging.getLogger(__name__)
_numbers = itertools.count(1)
_NO_PLAYER_ON_CPU = "not replayed: the device is a CPU"
_NO_PLAYER = "not replayed: the device makes no player for its queues"


class _Signal(Enum):
    ADVANCE = auto()
    STOP = auto()


class _Turn:
    """The right of one thread to launch the record of a ticket."""

    ticket: Ticket | None = None


class QueueExecutor:
    """Runs records one after the other, in the order of their tickets.

    On the CPU the worker thread launches each record, or the thread that waits for it if the worker has not begun: to
    wake another thread and to be woken by it takes longer than many a small network. See `openmps.metal.patience` for
    when it begins, and what it is told. On CUDA the committing thread launches each on the device's current stream, and
    the worker, which calls all handlers, waits for records that have some; for others see `openmps.metal.in_flight`. It
    starts with the first commit and knows nothing of the queue, so that an unused one goes; then `close` ends it.

    An interrupt (Ctrl-C) may reach the committing thread between any two instructions. So every step may be taken twice
    without harm, and what was left half done is taken up by the worker.
    """

    def __init__(self, device: torch.device, capacity: int, player: Player | None = None) -> None:
        self.device = device
        """What runs the work."""
        self._launches_at_commit = device.type == "cuda"
        self._capacity = capacity
        self.clock = StreamOrder(device) if self._launches_at_commit else Clock()
        """Says whether times are measured."""
        self.timer: Callable[[], Timer] = self.clock.timer
        """Makes the timer of the next record."""
        self.player = player
        """Runs works together; None where each is to run by itself."""
        self.no_player = _NO_PLAYER_ON_CPU if device.type == "cpu" else _NO_PLAYER
        """Why works run by themselves where there is none."""
        self._name = f"openmps queue {next(_numbers)} on {device}"
        self._reset()
        process_end.executors.add(self)

    @staticmethod
    def all() -> list[QueueExecutor]:
        """Those of the process."""
        return [each for each in list(process_end.executors) if isinstance(each, QueueExecutor)]

    def _reset(self) -> None:
        self._inbox: SimpleQueue[Execution | _Signal] = SimpleQueue()
        self._order: deque[Ticket] = deque()
        self._in_flight = InFlight()
        self._patience = Patience(worker_may_look=not self._launches_at_commit)
        self._lock, self._running = new_lock(), new_lock()
        self._holder: int | None = None
        self._turn: _Turn | None = None
        self._launcher: int | None = None
        self._worker: threading.Thread | None = None
        self._waits_for: tuple[QueueExecutor, Latch] | None = None

    # --- the committing side ------------------------------------------------------------------------------------------

    def reserve(self, ticket: Ticket) -> None:
        """Put ``ticket`` last in the order, once. Tickets after it wait until it is committed or abandoned."""
        if not ticket.is_reserved:
            self._order.append(ticket)
            ticket.is_reserved = True

    def abandon(self, ticket: Ticket) -> None:
        """Give a ticket back. Called by finalizers, hence takes no lock."""
        ticket.abandoned = True
        self._inbox.put(_Signal.ADVANCE)

    def commit(self, ticket: Ticket, execution: Execution) -> None:
        """Run ``execution``, once, when its ticket comes up."""
        ticket.execution = execution
        execution.committed_at = self._patience.heard = time.monotonic()
        try:
            self.reserve(ticket)
            self.advance()
            if self._launches_at_commit:
                self._in_flight.retire(execution)
        except BaseException:
            self._inbox.put(_Signal.ADVANCE)
            raise

    def start(self) -> None:
        """Have a worker, before the first commit."""
        if self._worker is None and not self._is_inside:
            self._locked(self._start)

    def _start(self) -> None:
        if self._worker is not None:
            return
        self._worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            self._worker.start()
        except BaseException:
            # If it runs all the same, it finds that it is not the worker.
            self._worker = None
            raise

    def _locked(self, steps: Callable[[], T]) -> T:
        """Take a few steps with the lock.

        No interrupt and no signal comes between taking the lock and saying who has it, nor between taking that back and
        giving the lock back: nothing is called there.
        """
        caller = threading.get_ident()
        with self._lock:
            self._holder = caller
            try:
                return steps()
            finally:
                self._holder = None

    @property
    def is_closed(self) -> bool:
        """Whether the process is ending: only functions at exit, on the main thread, may still commit.

        Finalizers that the interpreter runs after these may not: threads no longer run.
        """
        is_ending = process_end.is_ending and threading.current_thread() is not threading.main_thread()
        return is_ending or sys.is_finalizing()

    worker = Shown["threading.Thread | None"]("_worker", "The thread that sees records to their end.")

    is_at_work = Shown[bool]("_in_flight.is_busy", "Whether a record that was handed on may yet call handlers.")

    @property
    def _is_inside(self) -> bool:
        """Whether the caller is a signal handler that runs while its thread has the lock."""
        return self._holder == threading.get_ident()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for_room(self) -> None:
        """Block while as many records are in flight as the queue holds, unless they wait for this thread."""
        self._patience.heard = time.monotonic()
        if not self._in_flight.are(self._capacity) or threading.get_ident() == self._launcher or self._is_inside:
            return
        while (oldest := self._locked(self._oldest_of_a_full_queue)) is not None:
            if self.wait(oldest, oldest.finished) is not None:
                return

    def _oldest_of_a_full_queue(self) -> Execution | None:
        self._in_flight.forget()
        return self._in_flight.oldest() if len(self._in_flight) >= self._capacity else None

    def retire(self) -> None:
        """See quiet records to their end that the device has done; nothing is waited for."""
        self._in_flight.retire()

    def wait(self, execution: Execution, latch: Latch) -> tuple[str, str] | None:
        """Wait for what happens to a record of this queue; rule and remedy of an error if that would be for ever.

        It would be where the record needs the calling thread: to be launched, to be handed on by what a signal handler
        interrupts, as this queue's worker, or as the worker of a queue that this queue's worker waits for; and where it
        stands behind a ticket that nobody is there to commit.
        """
        if latch.is_set():
            return None
        if self._is_inside or (threading.get_ident() == self._launcher and self._is_to_be_handed_on(execution)):
            return _NEEDS_CALLER
        waiter: QueueExecutor | None = getattr(_serving, "executor", None)
        if waiter is None:
            if self._launches_at_commit:
                self._in_flight.wait_briefly(latch)
                if latch.is_set() and execution.error is None:
                    return None
            elif latch is execution.finished:
                helps = len(self._in_flight) > 1 and (execution.is_left or execution.intra_op_threads > 1)
                for each in self._in_flight.before(execution) if helps else ():
                    self._help(each)
                    self._await(each, each.finished)
                self._help(execution)
            told = self._await(execution, latch)
            if execution.error is not None:
                self._locked(self._in_flight.forget)
            return told
        with process_end.waits:
            if self._waits_on(waiter) and not latch.is_set():
                return _NEEDS_CALLER
            waiter._waits_for = self, latch
        try:
            return self._await(execution, latch)
        finally:
            waiter._waits_for = None

    def _help(self, execution: Execution) -> None:
        """Run a record that the calling thread is about to wait for, if it is the next one and the worker is idle."""
        patience, running = self._patience, self._running
        patience.arrive(execution)
        if running.locked() or not runs_alike_here(execution):
            execution.is_awaited = True
            patience.tell()
            return
        with SignalsHeldBack():
            # A handler of another signal, which runs all the same, learns that it cannot wait.
            _serving.executor, modes = self, ThreadModes()
            modes.note()
            try:
                with running:
                    if self._in_flight.oldest() is execution and not execution.launched:
                        self._see_to_its_end(execution, calls=False)
                        patience.heard = time.monotonic()
            finally:
                _serving.executor = None
                modes.give_back()
                patience.tell()

    def _is_to_be_handed_on(self, execution: Execution) -> bool:
        turn = self._turn
        ticket = None if turn is None else turn.ticket
        return not execution.launched or (ticket is not None and ticket.execution is execution)

    def _await(self, execution: Execution, latch: Latch) -> tuple[str, str] | None:
        has_told = False
        # In this order: a thread that hands it on meanwhile sees one, or this one the other.
        execution.is_awaited = True
        if (execution.is_quiet or execution.is_left) and not latch.is_set():
            self._inbox.put(execution)
        while not latch.wait(_LOOK):
            ahead = self._enqueued_ahead(execution)
            if ahead is None:
                continue
            remedy = "Commit that one, or drop it"
            if not _others_are_at_work():
                return f"would never return: {ahead}, enqueued before it, is not committed", remedy
            if not has_told:
                has_told = True
                _log.warning(
                    "a wait goes on until %s is committed, which was enqueued before: %s", ahead, remedy.lower()
                )
        return None

    def _enqueued_ahead(self, execution: Execution) -> str | None:
        """What a place before that of a record is called, if it is not committed."""
        tickets = tuple(self._order)
        if not any(ticket.execution is execution and not ticket.is_handed_on for ticket in tickets):
            return None
        for ticket in tickets:
            if ticket.execution is execution:
                return None
            if ticket.is_open:
                record = None if ticket.record is None else ticket.record()
                return "a command buffer" if record is None else record.name
        return None

    def _waits_on(self, waiter: QueueExecutor) -> bool:
        executor = self
        while executor is not waiter:
            if executor._waits_for is None or executor._waits_for[1].is_set():
                return False
            executor = executor._waits_for[0]
        return True

    # --- order --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Hand on every record whose turn it is. One thread does so at a time; others leave theirs to it."""
        turn = _Turn()
        try:
            while (execution := self._take(turn)) is not None:
                try:
                    if self._launches_at_commit:
                        self._launch_here(execution)
                finally:
                    self._end(turn)
                if len(self._order) == 1 and self._order[0] is turn.ticket:
                    # What comes from now on its own thread hands on; the next commit takes this place away.
                    return
        except BaseException:
            # An interrupt of this thread: the worker takes up what others may have left to it.
            self._end(turn)
            self._inbox.put(_Signal.ADVANCE)
            raise

    def _take(self, turn: _Turn) -> Execution | None:
        caller = threading.get_ident()
        if self._holder == caller:  # as `_is_inside` says
            # The worker takes it up, when the interrupted steps are done.
            self._inbox.put(_Signal.ADVANCE)
            return None
        with self._lock:  # as `_locked` does, which each commit would pay for
            self._holder = caller
            try:
                order, records = self._order, self._in_flight.records
                while order and (order[0].abandoned or order[0].is_handed_on):
                    order.popleft()
                while records and records[0].finished.is_reached:  # as its `forget` does
                    records.popleft()
                if self._turn is not None or not order or order[0].execution is None:
                    return None
                turn.ticket, self._launcher, self._turn = order[0], caller, turn
                return turn.ticket.execution
            finally:
                self._holder = None

    def _launch_here(self, execution: Execution) -> None:
        if current_index() == self.device.index:
            execution.launch()
        else:
            with torch.cuda.device(self.device):
                execution.launch()

    def _end(self, turn: _Turn) -> None:
        if self._turn is not turn:
            return
        ticket = turn.ticket
        if ticket is not None and (execution := ticket.execution) is not None and not ticket.is_handed_on:
            if not self._launches_at_commit:
                execution.is_left = self._patience.is_left(execution)
            elif execution.launched and not (execution.completed_handlers or execution.scheduled_handlers):
                execution.be_quiet()
            self._in_flight.records.append(execution)
            # In this order: a worker that stops to look meanwhile sees the record, or this thread sees that it stopped.
            if execution.is_awaited or not (execution.is_quiet or (execution.is_left and self._patience.will_look)):
                self._inbox.put(execution)
            ticket.is_handed_on = True
        if ticket is not None:
            # The place stays until the next is taken. The error of a record has, by frames, the queue that never goes.
            ticket.execution = None
        self._launcher = None
        self._turn = None

    # --- the worker's side --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._work_off()
        finally:
            process_end.ended_threads.append(threading.get_native_id())

    def _work_off(self) -> None:
        # A start that was interrupted has the lock until it has said that this is not the worker.
        if not self._locked(lambda: self._worker is threading.current_thread()):
            return
        _serving.executor = self
        be_in_queue()
        next_item = partial(self._patience.next_item, self._inbox, self._in_flight, self._running)
        while (item := next_item()) is not _Signal.STOP:
            # Faults are kept by the record itself; what else a work raises must not end this thread.
            with suppress(BaseException):
                if item is _Signal.ADVANCE:
                    self.advance()
                else:
                    with suppress(BaseException):  # the record is seen to all the same
                        self._patience.leave(item, self._running)
                    if not item.finished.is_set():
                        self._see_all_to_their_end(item)
            self._locked(self._in_flight.forget)
            del item
        for execution in self._in_flight:
            self._see_all_to_their_end(execution)

    def _see_all_to_their_end(self, last: Execution) -> None:
        """A record, and quiet ones before it."""
        with self._running:
            for each in self._in_flight.up_to(last):
                if not each.finished.is_set():
                    self._patience.see_to(each)
                    self._see_to_its_end(each)

    def _see_to_its_end(self, execution: Execution, *, calls: bool = True) -> None:
        if execution.is_quiet:
            execution.scheduled.set()
            execution.finish()
            return
        with suppress(BaseException):
            try:
                execution.announce()
            finally:
                if not execution.launched:
                    self._launch(execution)
        if calls or not execution.completed_handlers:
            execution.finish()

    @staticmethod
    def _launch(execution: Execution) -> None:
        if torch.get_num_threads() != (threads := execution.intra_op_threads):
            torch.set_num_threads(threads)
        execution.launch() if threads < 2 else awake_threads.watch(execution.launch, threads)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the worker after what it has been handed."""
        self._inbox.put(_Signal.STOP)

    def strand(self) -> None:
        """End with an error what waits behind a place that nobody has committed."""
        self.advance()
        behind = self._locked(self._behind_a_gap)
        for ticket in behind:
            assert ticket.execution is not None
            ticket.execution.give_up(
                "never came: a buffer that was enqueued before it was not committed", "Commit every one"
            )
            self._inbox.put(ticket.execution)

    def _behind_a_gap(self) -> list[Ticket]:
        """Take those that wait behind a place that nobody has committed out of the order."""
        tickets = [ticket for ticket in self._order if not ticket.abandoned and not ticket.is_handed_on]
        first = next((index for index, ticket in enumerate(tickets) if ticket.execution is None), len(tickets))
        behind = [ticket for ticket in tickets[first:] if ticket.execution is not None]
        self._order = deque(ticket for ticket in tickets if ticket not in behind)
        return behind

    def drain(self) -> None:
        """Wait for everything that has been handed on, and end the worker; a later commit starts another."""
        while (worker := self._worker) is not None and worker is not threading.current_thread():
            self.close()
            worker.join()
            self._worker = None
            late = [item for item in self._leavings() if item is not _Signal.STOP]
            for item in late:
                self._inbox.put(item)
            if late:
                self.start()

    def _leavings(self) -> Iterator[Execution | _Signal]:
        """What came between the last signal to the worker and its end."""
        while not self._inbox.empty():
            yield self._inbox.get()

    def forget_threads(self) -> None:
        """In a forked process: the worker stayed behind in the parent, with the work it had.

        Places that nobody has committed yet are this process's too.
        """
        tickets = tuple(self._order)
        committed = [ticket.execution for ticket in tickets if ticket.execution is not None]
        behind = [*self._in_flight, *committed]
        self._reset()
        self._order.extend(ticket for ticket in tickets if ticket.execution is None and not ticket.abandoned)
        for execution in behind:
            execution.stay_behind()


_serving = threading.local()
"""``executor``: whose worker the calling thread is."""
_LOOK = 1.0
"""Seconds between two looks of a waiting thread at what stands before what it waits for."""
_NEEDS_CALLER = (
    "cannot be called by a handler or work that the buffer waits for",
    "Add a completed handler to it instead",
)


def forget_captures(device: torch.device) -> None:
    """Let go of the captures of all queues of a device: they may hold connections to other processes, which end."""
    for executor in QueueExecutor.all():
        if executor.device == device and executor.player is not None:
            executor.player.forget()


def _others_are_at_work() -> bool:
    """Whether there is a thread, or a handler to come, that might commit something."""
    executors = QueueExecutor.all()
    workers = {*helpers(), *(executor.worker for executor in executors)}
    others = {*threading.enumerate()} - workers - {threading.current_thread()}
    return bool(others) or any(executor.is_at_work for executor in executors)
