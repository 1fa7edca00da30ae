"""Locks that an interrupt leaves open, wherever it comes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import openmps
from openmps.locks import InterruptSafeLock, new_lock, new_reentrant_lock
from striking import interrupted


class Interrupt(BaseException):
    """What the handler of a signal raises."""


def test_the_package_has_no_others() -> None:
    """But in `Latch`, which takes and opens its lock by calls."""
    source = Path(openmps.__file__).parent
    plain = re.compile(r"\bthreading\.(R?Lock|Condition)\(\)|from threading import .*\b(R?Lock|Condition)\b")
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if plain.search(path.read_text())}
    assert found == {"locks.py", "metal/execution.py"}


def test_they_keep_other_threads_out() -> None:
    for lock in (InterruptSafeLock(), new_lock(), new_reentrant_lock()):
        taken: list[str] = []

        def other(lock: Any = lock, taken: list[str] = taken) -> None:
            with lock:
                taken.append("other")

        with lock:
            thread = threading.Thread(target=other)
            thread.start()
            time.sleep(0.02)
            taken.append("this")
        thread.join()
        assert taken == ["this", "other"]


def test_a_thread_may_take_a_reentrant_one_again() -> None:
    for lock in (InterruptSafeLock(), new_reentrant_lock()):
        with lock, lock:
            pass


def test_an_error_comes_through() -> None:
    lock: Any = InterruptSafeLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    assert not lock._recursion_count()


def test_python_decides_which() -> None:
    is_new = sys.version_info >= (3, 14)
    assert isinstance(new_lock(), InterruptSafeLock) is is_new
    assert isinstance(new_reentrant_lock(), InterruptSafeLock) is is_new


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_opens_what_another_thread_has() -> None:
    lock: Any = InterruptSafeLock()
    own: Any = InterruptSafeLock()
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    with own:
        child = os.fork()
        if not child:
            os._exit(0 if lock.acquire(timeout=5) and own._is_owned() else 1)
    is_over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_comes_between_its_taking_and_the_block(times: int) -> None:
    lock: Any = InterruptSafeLock()

    def take() -> None:
        if times == 1:
            with lock:
                pass
        else:
            with lock, lock:
                pass

    assert not interrupted(take, 1)
    assert not lock._recursion_count()


@pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="needs POSIX timers in the main thread",
)
def test_signals_at_any_time() -> None:
    """Real ones, in a loop that does nothing else. Left closed, the lock would be taken once more than it is given.

    Nor does a handler run as it is being taken, and has been: one that waits would wait for whoever needs the lock.
    """
    lock, is_on = new_lock() if sys.version_info < (3, 14) else InterruptSafeLock(), True
    taking, had = InterruptSafeLock.__enter__.__code__, list[bool]()

    def strike(number: int, frame: FrameType | None) -> None:
        asks: Any = lock
        if frame is not None and frame.f_code is taking:
            had.append(asks._is_owned())
        if is_on:
            raise Interrupt

    def is_free() -> bool:
        found: list[bool] = []
        asks: Any = lock
        thread = threading.Thread(target=lambda: found.append(asks.acquire(timeout=1) and asks.release() is None))
        thread.start()
        thread.join()
        return found == [True]

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for number in range(200):
            is_on = True
            with pytest.raises(Interrupt):  # noqa: PT012
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-6)
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    for _ in range(50):
                        with lock:
                            pass
            is_on = False
            assert is_free(), number
        assert True not in had
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
