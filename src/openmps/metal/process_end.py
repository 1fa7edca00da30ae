"""The end of the process, and its forks: what was committed is finished, by threads that end before the interpreter."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from typing import Protocol

from openmps.locks import new_lock


class Executor(Protocol):
    """What runs the records of one queue."""

    def strand(self) -> None:
        """End with an error what can never run."""
        ...

    def drain(self) -> None:
        """Wait for everything that has been handed on, and end the worker."""
        ...

    def forget_threads(self) -> None:
        """In a forked process: the worker stayed behind in the parent."""
        ...


executors: weakref.WeakSet[Executor] = weakref.WeakSet()
"""Those of the process."""
waits = new_lock()
"""Held while a worker looks whether it may wait; in a forked process another one."""
is_ending = False
"""Whether the process ends. Each commit asks, so it is no event."""
ended_threads: deque[int] = deque(maxlen=1024)
"""The system's numbers of the threads of workers that have come to their end."""
_PATIENCE = 2.0
"""Seconds that the end of the process may wait for them: the system may have given a number to another thread."""


def _drain_all() -> None:
    """Finish what was committed: all queues to the end, since handlers of one may wait for buffers of another."""
    global is_ending
    is_ending = True
    here = list(executors)
    for executor in here:
        executor.strand()
    for executor in here:
        executor.drain()
    _wait_for_threads()


def _wait_for_threads() -> None:
    """Wait until the system has ended the threads of all former workers.

    To Python a thread has ended while the engine still takes down what it keeps for each thread. That needs the
    interpreter, and aborts the process if it is gone.
    """
    patience = time.monotonic() + _PATIENCE
    for thread in list(ended_threads):
        while os.path.exists(f"/proc/self/task/{thread}") and time.monotonic() < patience:
            time.sleep(0.001)


def _forget_threads() -> None:
    global waits
    waits = new_lock()
    for executor in list(executors):
        executor.forget_threads()


# A daemon thread that is inside torch while the interpreter goes away crashes the process.
atexit.register(_drain_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
