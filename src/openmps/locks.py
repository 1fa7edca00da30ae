"""Locks whose ``with`` no interrupt leaves closed."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

_Reentrant: Any = _thread.RLock


class InterruptSafeLock(_Reentrant):
    """A lock that a thread may take again, for Python 3.14 and later.

    Up to 3.13 nothing comes between the taking of a lock and the block of its ``with``. From then on the interpreter
    looks for signals behind each call of a function in C: what a handler raises there, as Ctrl-C does, would leave the
    lock closed for good, and a handler that waits for a thread would have the lock that this thread may need. It does
    not look when a function of Python returns, nor behind an attribute. Other threads run where it looks, and one of
    them may fork: in the new process the lock is open, unless its own thread has it.
    """

    _taken: bool = property(_Reentrant.acquire)  # pyright: ignore[reportAssignmentType]
    """True, once the lock is taken: an interrupt of the wait for it comes before that."""

    def __init__(self) -> None:
        _locks.add(self)

    def __enter__(self) -> bool:
        return self._taken


_locks: weakref.WeakSet[InterruptSafeLock] = weakref.WeakSet()


def _open_in_fork() -> None:
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_in_fork)

_LEAVES_OPEN = sys.version_info < (3, 14)


def new_lock() -> threading.Lock:
    """A lock that is taken by ``with`` alone, of threads that do not take it again while they have it."""
    made: Any = threading.Lock() if _LEAVES_OPEN else InterruptSafeLock()
    return made


def new_reentrant_lock() -> AbstractContextManager[Any]:
    """One that a thread may take again, as a signal's handler does of the thread that it interrupts."""
    return threading.RLock() if _LEAVES_OPEN else InterruptSafeLock()
