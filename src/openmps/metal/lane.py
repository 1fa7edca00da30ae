"""The serial, asynchronous heart of a command queue: order, launch, and a thread that sees each record to its end."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from enum import Enum, auto
from queue import SimpleQueue

import torch

from openmps.metal.execution import WAIT_SLICE, Execution, HostTimer, StreamOrder, Timer

_numbers = itertools.count(1)


class _Signal(Enum):
    ADVANCE = auto()
    STOP = auto()


class Place:
    """The place of one command buffer in the order of its queue."""

    __slots__ = ("abandoned", "execution")

    def __init__(self) -> None:
        self.execution: Execution | None = None
        self.abandoned = False


class Lane:
    """Runs records one after the other, in the order of their places.

    On the CPU the worker thread launches each record. On CUDA the committing thread launches it on the device's current
    stream, and the worker waits for the stream. In both cases the worker calls the handlers. It starts with the first
    commit and knows nothing of the queue, so that an unused queue can be collected; then `close` ends it.
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
        self._state = threading.Condition(threading.Lock())
        self._in_flight = 0
        self._advancing = False
        self._launcher: int | None = None
        self._worker: threading.Thread | None = None

    # --- the committing side ------------------------------------------------------------------------------------------

    def timer(self) -> Timer:
        """A timer for the next record."""
        return HostTimer() if self._stream_order is None else self._stream_order.timer()

    def reserve(self) -> Place:
        """The next place of the order. Everything reserved later waits until it is committed or abandoned."""
        place = Place()
        self._order.append(place)
        return place

    def abandon(self, place: Place) -> None:
        """Give a place back. Called by finalizers, hence takes no lock."""
        place.abandoned = True
        self._inbox.put(_Signal.ADVANCE)

    def commit(self, place: Place, execution: Execution) -> None:
        """Run ``execution`` when its place comes up."""
        if self._worker is None:
            self._start()
        place.execution = execution
        self.advance()

    def wait_for_room(self) -> None:
        """Block while as many records are under way as the queue holds."""
        if self._in_flight < self._capacity or threading.get_ident() in self._own_threads():
            return
        with self._state:
            while self._in_flight >= self._capacity:
                self._state.wait(WAIT_SLICE)

    def would_deadlock(self, execution: Execution) -> bool:
        """Whether the calling thread is the one that ``execution`` still needs."""
        ident = threading.get_ident()
        worker = self._worker
        if worker is not None and ident == worker.ident:
            return True
        return ident == self._launcher and not execution.launched

    def _own_threads(self) -> tuple[int | None, ...]:
        worker = self._worker
        return (self._launcher, None if worker is None else worker.ident)

    def _start(self) -> None:
        with self._state:
            if self._worker is None:
                worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
                worker.start()
                self._worker = worker

    # --- order --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Hand on every record whose turn it is. One thread does so at a time; others leave theirs to it."""
        while (execution := self._take()) is not None:
            try:
                self._hand_on(execution)
            except BaseException:
                # An interrupt of this thread: the worker takes up what others may have left to it.
                self._inbox.put(_Signal.ADVANCE)
                raise

    def _hand_on(self, execution: Execution) -> None:
        try:
            if self._launches_at_commit:
                self._launch_here(execution)
        finally:
            self._inbox.put(execution)
            self._launcher = None
            self._advancing = False

    def _launch_here(self, execution: Execution) -> None:
        if torch.cuda.current_device() == self._device.index:
            execution.launch()
        else:
            with torch.cuda.device(self._device):
                execution.launch()

    def _take(self) -> Execution | None:
        with self._state:
            while self._order and self._order[0].abandoned:
                self._order.popleft()
            if self._advancing or not self._order or self._order[0].execution is None:
                return None
            self._advancing = True
            self._launcher = threading.get_ident()
            self._in_flight += 1
            return self._order.popleft().execution

    # --- the worker's side --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not _Signal.STOP:
            # Faults are kept by the record itself; what else a work raises must not end this thread.
            with suppress(BaseException):
                if item is _Signal.ADVANCE:
                    self.advance()
                else:
                    self._see_to_its_end(item)
            del item

    def _see_to_its_end(self, execution: Execution) -> None:
        try:
            execution.announce()
            if not execution.launched:
                if torch.get_num_threads() != execution.intra_op_threads:
                    torch.set_num_threads(execution.intra_op_threads)
                with suppress(BaseException):
                    execution.launch()
            execution.finish()
        finally:
            with self._state:
                self._in_flight -= 1
                self._state.notify_all()

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the worker after what it has been handed."""
        self._inbox.put(_Signal.STOP)

    def drain(self) -> None:
        """Wait for everything that has been handed on, and end the worker; a later commit starts another."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            self.close()
            worker.join()
            self._worker = None

    def forget_threads(self) -> None:
        """In a forked process: the worker stayed behind in the parent, with the work it had."""
        self._reset()


_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


def _drain_all() -> None:
    for lane in list(_lanes):
        lane.drain()


def _forget_threads() -> None:
    for lane in list(_lanes):
        lane.forget_threads()


# A daemon thread that is inside torch while the interpreter goes away crashes the process.
atexit.register(_drain_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
