"""The serial, asynchronous heart of a command queue: order, launch, and a thread that sees each record to its end."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from queue import SimpleQueue

import torch

from openmps.metal.execution import Execution, HostTimer, Latch, StreamOrder, Timer
from openmps.metal.pending import be_in_queue

_numbers = itertools.count(1)


class _Signal(Enum):
    ADVANCE = auto()
    STOP = auto()


@dataclass(slots=True, eq=False)
class Place:
    """The place of one command buffer in the order of its queue."""

    execution: Execution | None = None
    abandoned: bool = False
    is_reserved: bool = False
    is_handed_on: bool = False


@dataclass(slots=True, eq=False)
class _Turn:
    """The right of one thread to hand on the record of a place."""

    place: Place | None = None


class Lane:
    """Runs records one after the other, in the order of their places.

    On the CPU the worker thread launches each record. On CUDA the committing thread launches it on the device's current
    stream, and the worker waits for the stream. In both cases the worker calls the handlers. It starts with the first
    commit and knows nothing of the queue, so that an unused queue can be collected; then `close` ends it.

    An interrupt (Ctrl-C) may strike the committing thread between any two steps. So every step may be taken twice
    without harm, and what was left half done is taken up by the worker.
    """

    def __init__(self, device: torch.device, capacity: int) -> None:
        self._device = device
        self._launches_at_commit = device.type == "cuda"
        self._capacity = capacity
        self._stream_order = StreamOrder(device) if self._launches_at_commit else None
        self._name = f"openmps queue {next(_numbers)} on {device}"
        self._reset()
        _lanes.add(self)

    def _reset(self) -> None:
        self._inbox: SimpleQueue[Execution | _Signal] = SimpleQueue()
        self._order: deque[Place] = deque()
        self._under_way: deque[Execution] = deque()
        # Only ever held for a few steps, by `with` on the lock itself: an interrupt cannot come between.
        self._lock = threading.Lock()
        self._turn: _Turn | None = None
        self._launcher: int | None = None
        self._worker: threading.Thread | None = None
        self._waits_for: tuple[Lane, Latch] | None = None

    # --- the committing side ------------------------------------------------------------------------------------------

    def timer(self) -> Timer:
        """A timer for the next record."""
        return HostTimer() if self._stream_order is None else self._stream_order.timer()

    def reserve(self, place: Place) -> None:
        """Put ``place`` last in the order, once. Places after it wait until it is committed or abandoned."""
        if not place.is_reserved:
            self._order.append(place)
            place.is_reserved = True

    def abandon(self, place: Place) -> None:
        """Give a place back. Called by finalizers, hence takes no lock."""
        place.abandoned = True
        self._inbox.put(_Signal.ADVANCE)

    def commit(self, place: Place, execution: Execution) -> None:
        """Run ``execution``, once, when its place comes up."""
        place.execution = execution
        try:
            self.reserve(place)
            self.advance()
        except BaseException:
            self._inbox.put(_Signal.ADVANCE)
            raise

    def start(self) -> None:
        """Have a worker, before the first commit."""
        if self._worker is not None:
            return
        with self._lock:
            if self._worker is not None:
                return
            self._worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                self._worker.start()
            except BaseException:
                # If it runs all the same, it finds that it is not the worker.
                self._worker = None
                raise

    @property
    def is_closed(self) -> bool:
        """Whether the process is ending: only functions at exit, on the main thread, may still commit."""
        return _ending.is_set() and threading.current_thread() is not threading.main_thread()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for_room(self) -> None:
        """Block while as many records are under way as the queue holds, unless they wait for this thread."""
        if len(self._under_way) < self._capacity or threading.get_ident() == self._launcher:
            return
        while (oldest := self._oldest_of_a_full_queue()) is not None:
            if not self.wait(oldest, oldest.finished):
                return

    def _oldest_of_a_full_queue(self) -> Execution | None:
        with self._lock:
            while self._under_way and self._under_way[0].finished.is_set():
                self._under_way.popleft()
            return self._under_way[0] if len(self._under_way) >= self._capacity else None

    def wait(self, execution: Execution, latch: Latch) -> bool:
        """Wait for what happens to a record of this lane; False, at once, if that would be for ever.

        It would be where the record needs the calling thread: to be launched, as the worker of this lane, or as the
        worker of a lane that the worker of this lane waits for.
        """
        if latch.is_set():
            return True
        if threading.get_ident() == self._launcher and not execution.launched:
            return False
        waiter: Lane | None = getattr(_serving, "lane", None)
        if waiter is None:
            latch.wait()
            return True
        with _waits:
            if self._waits_on(waiter) and not latch.is_set():
                return False
            waiter._waits_for = self, latch
        latch.wait()
        waiter._waits_for = None
        return True

    def _waits_on(self, waiter: Lane) -> bool:
        lane = self
        while lane is not waiter:
            if lane._waits_for is None or lane._waits_for[1].is_set():
                return False
            lane = lane._waits_for[0]
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
        except BaseException:
            # An interrupt of this thread: the worker takes up what others may have left to it.
            self._end(turn)
            self._inbox.put(_Signal.ADVANCE)
            raise

    def _take(self, turn: _Turn) -> Execution | None:
        with self._lock:
            while self._order and (self._order[0].abandoned or self._order[0].is_handed_on):
                self._order.popleft()
            if self._turn is not None or not self._order or self._order[0].execution is None:
                return None
            turn.place = self._order[0]
            self._launcher = threading.get_ident()
            self._turn = turn
            return turn.place.execution

    def _launch_here(self, execution: Execution) -> None:
        if torch.cuda.current_device() == self._device.index:
            execution.launch()
        else:
            with torch.cuda.device(self._device):
                execution.launch()

    def _end(self, turn: _Turn) -> None:
        if self._turn is not turn:
            return
        place = turn.place
        if place is not None and place.execution is not None and not place.is_handed_on:
            self._under_way.append(place.execution)
            self._inbox.put(place.execution)
            place.is_handed_on = True
        self._launcher = None
        self._turn = None

    # --- the worker's side --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._work_off()
        finally:
            _ended.append(threading.get_native_id())

    def _work_off(self) -> None:
        with self._lock:
            if self._worker is not threading.current_thread():
                return
        _serving.lane = self
        be_in_queue()
        while (item := self._inbox.get()) is not _Signal.STOP:
            # Faults are kept by the record itself; what else a work raises must not end this thread.
            with suppress(BaseException):
                if item is _Signal.ADVANCE:
                    self.advance()
                elif not item.finished.is_set():
                    self._see_to_its_end(item)
            self._oldest_of_a_full_queue()
            del item

    def _see_to_its_end(self, execution: Execution) -> None:
        with suppress(BaseException):
            execution.announce()
        if not execution.launched:
            if torch.get_num_threads() != execution.intra_op_threads:
                torch.set_num_threads(execution.intra_op_threads)
            with suppress(BaseException):
                execution.launch()
        execution.finish()

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the worker after what it has been handed."""
        self._inbox.put(_Signal.STOP)

    def strand(self) -> None:
        """End with an error what waits behind a place that nobody has committed."""
        self.advance()
        with self._lock:
            places = [place for place in self._order if not place.abandoned]
            first = next((index for index, place in enumerate(places) if place.execution is None), len(places))
            behind = [place for place in places[first:] if place.execution is not None]
            self._order = deque(place for place in places if place not in behind)
        for place in behind:
            assert place.execution is not None
            place.execution.give_up(
                "never came: a buffer that was enqueued before it was not committed", "Commit every one"
            )
            self._inbox.put(place.execution)

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
        """In a forked process: the worker stayed behind in the parent, with the work it had."""
        self._reset()


_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
_serving = threading.local()
"""``lane``: whose worker the calling thread is."""
_waits = threading.Lock()
"""Held while a worker looks whether it may wait."""
_ending = threading.Event()
"""Set when the process ends."""
_ended: deque[int] = deque(maxlen=1024)
"""The system's numbers of the threads of workers that have come to their end."""
_PATIENCE = 2.0
"""Seconds that the end of the process may wait for them: the system may have given a number to another thread."""


def _drain_all() -> None:
    """Finish what was committed: all queues to the end, since handlers of one may wait for buffers of another."""
    _ending.set()
    lanes = list(_lanes)
    for lane in lanes:
        lane.strand()
    for lane in lanes:
        lane.drain()
    _see_off_the_threads()


def _see_off_the_threads() -> None:
    """Wait until the system has ended the threads of all former workers.

    To Python a thread has ended while the engine still takes down what it keeps for each thread. That needs the
    interpreter, and aborts the process if it is gone.
    """
    patience = time.monotonic() + _PATIENCE
    for thread in list(_ended):
        while os.path.exists(f"/proc/self/task/{thread}") and time.monotonic() < patience:
            time.sleep(0.001)


def _forget_threads() -> None:
    for lane in list(_lanes):
        lane.forget_threads()


# A daemon thread that is inside torch while the interpreter goes away crashes the process.
atexit.register(_drain_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
