"""Which thread launches a record on the CPU: the worker of its queue, or the thread that waits for the record.

Each thread that launches has a team of the engine's threads (OpenMP) of its own. As long as the teams of a process
together have no more threads than there are cores, these stay awake between two parallel loops; else they fall asleep
after each, and waking them takes longer than many a loop. So where two teams do not fit, the waiting thread launches:
it may have a team already, by calls of torch. Where nobody waits the worker does, a little later.

To wake the worker costs more than many a small record, wherever it runs. So a thread that waits at once for what it
commits is left the next record, too, and the worker, which looks now and then while there are commits, is not told.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from openmps.metal.execution import Execution
from openmps.metal.in_flight import InFlight
from openmps.metal.thread_modes import are_overridden

T = TypeVar("T")
_PATIENCE = 0.01
"""Seconds without a sign of a committing or waiting thread after which a worker begins."""
_LAUNCH = 1.0
"""Seconds after which a worker looks again whether another thread still launches."""
_AT_ONCE = 1e-3
"""Seconds from the commit of a record within which a thread waits for it at once."""
_LIVELY = 1.0
"""Seconds from the last sign of a thread for which a worker goes on looking."""


class Patience:
    """How a worker leaves records to threads that are about to wait for them."""

    __slots__ = ("_is_waited_for", "_may_look", "_waits_at_once", "has_team", "heard", "is_leaving", "looks", "news")

    def __init__(self, *, worker_may_look: bool = True) -> None:
        self.heard = 0.0
        """When a thread last made or committed a command buffer of the queue, or launched a record of it."""
        self.news = threading.Event()
        """Set where a thread has launched records, or waits for some that it does not launch."""
        self.looks = False
        """Whether the worker looks by itself for what it was not told of."""
        self.is_leaving = False
        """Whether the worker waits to see what becomes of a record, and looks behind that for others."""
        self.has_team = False
        """Whether the worker has a team for which there are no cores, as it has launched."""
        self._may_look = worker_may_look
        self._is_waited_for = True
        self._waits_at_once = False

    def arrive(self, execution: Execution) -> None:
        """A thread begins to wait for a record that is not finished."""
        now = time.monotonic()
        if now - self.heard < _PATIENCE:
            self._is_waited_for = True
        self._waits_at_once = now - execution.committed_at < _AT_ONCE

    def tell(self) -> None:
        """A thread has launched records, or waits for some that it does not launch."""
        if self.is_leaving:
            self.news.set()

    def see_to(self, execution: Execution) -> None:
        """The worker is about to launch a record, unless a thread has."""
        self.has_team |= not (execution.launched or two_teams_fit(execution.intra_op_threads))

    @property
    def will_look(self) -> bool:
        """Whether the worker comes by for what it is not told of: it looks, or will when it is back."""
        return self.looks or self.is_leaving

    def is_left(self, execution: Execution) -> bool:
        """Whether a thread is expected to wait for a record at once, so that the worker need not be told of it."""
        return self._waits_at_once and not execution.has_handlers

    def next_item(self, inbox: SimpleQueue[T], in_flight: InFlight, running: threading.Lock) -> T | Execution:
        """What the worker is to see to: what it is told of, or a record that was left and that nobody came for."""
        try:
            while True:
                self.looks = False
                # In this order: what is committed meanwhile is seen here, or its thread sees that nobody looks.
                self.looks = self._may_look and (self._is_lively() or in_flight.oldest() is not None)
                with suppress(Empty):
                    return inbox.get(timeout=_PATIENCE if self.looks or self.has_team else None)
                if self.has_team:
                    # Loaded here: most workers never launch where two teams do not fit.
                    from openmps.metal.worker_team import give_team_back

                    self.has_team = False
                    give_team_back()
                if not running.locked() and (forgotten := self._forgotten(in_flight)) is not None:
                    return forgotten
        finally:
            self.looks = False

    def _is_lively(self) -> bool:
        return time.monotonic() - self.heard < _LIVELY

    def _forgotten(self, in_flight: InFlight) -> Execution | None:
        """The oldest record if no thread has come for it; then none is expected to come for the next one either."""
        oldest = in_flight.oldest()
        if oldest is None or oldest.launched or time.monotonic() - oldest.committed_at < _PATIENCE:
            return None
        self._waits_at_once = False
        return oldest

    def leave(self, execution: Execution, running: threading.Lock) -> None:
        """Return when the worker is to see to a record: at once where two teams fit, or nobody came the last time.

        Who launches a record holds ``running``.
        """
        if two_teams_fit(execution.intra_op_threads) or execution.scheduled_handlers:
            return
        self.is_leaving = True  # before the first look at what the others do, who look at it behind that
        try:
            self._leave(execution, running)
        finally:
            self.is_leaving = False

    def _leave(self, execution: Execution, running: threading.Lock) -> None:
        while self._is_waited_for:
            self.news.clear()
            if execution.launched and not execution.completed_handlers:
                # Its thread ends it, and would find ``running`` held as it goes on. A dropped one has no such thread.
                while running.locked() and not execution.finished.wait(_LAUNCH):
                    pass
                return
            if execution.launched or execution.is_awaited:
                return
            # Not taken here: a lock whose new owner waits for the interpreter would keep waiting threads away.
            left = _LAUNCH if running.locked() else self.heard + _PATIENCE - time.monotonic()
            if left <= 0.0:
                self._is_waited_for = False
            else:
                self.news.wait(left)


def runs_alike_here(execution: Execution) -> bool:
    """Whether a record runs in this thread as in a worker, which calls handlers and has no modes of torch.

    Where two teams do not fit it may have completed handlers, which stay the worker's.
    """
    threads = execution.intra_op_threads
    if threads != torch.get_num_threads() or execution.scheduled_handlers or are_overridden():
        return False
    return not execution.completed_handlers or not two_teams_fit(threads)


def two_teams_fit(threads: int) -> bool:
    """Whether there are cores for two teams of so many threads, who share no thread but the process's first one."""
    return threads < 2 or 2 * threads - 1 <= cores()


@cache
def cores() -> int:
    """How many the process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
