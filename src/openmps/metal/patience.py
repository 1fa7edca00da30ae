"""Which thread launches a record on the CPU: the worker of its queue, or the thread that waits for the record.

Each thread that launches has a team of the engine's threads (OpenMP) of its own. As long as the teams of a process
together have no more threads than there are cores, these stay awake between two parallel loops; else they fall asleep
after each, and waking them takes longer than many a loop. So where two teams do not fit, the waiting thread launches:
it may have a team already, by calls of torch. Where nobody waits the worker does, a little later.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache

import torch

from openmps.metal.execution import Execution
from openmps.metal.thread_modes import are_overridden

_PATIENCE = 0.01
"""Seconds without a sign of a committing or waiting thread after which a worker begins."""
_LAUNCH = 1.0
"""Seconds after which a worker looks again whether another thread still launches."""


class Patience:
    """How a worker leaves records to threads that are about to wait for them."""

    __slots__ = ("_is_waited_for", "heard", "news")

    def __init__(self) -> None:
        self.heard = 0.0
        """When a thread last made or committed a command buffer of the queue, or launched a record of it."""
        self.news = threading.Event()
        """Set where a thread has launched records, or waits for some that it does not launch."""
        self._is_waited_for = True

    def arrive(self) -> None:
        """A thread begins to wait for a record that is not finished."""
        if time.monotonic() - self.heard < _PATIENCE:
            self._is_waited_for = True

    def leave(self, execution: Execution, running: threading.Lock) -> None:
        """Return when the worker is to see to a record: at once where two teams fit, or nobody came the last time.

        Who launches a record holds ``running``.
        """
        if two_teams_fit(execution.intra_op_threads) or execution.scheduled_handlers:
            return
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
