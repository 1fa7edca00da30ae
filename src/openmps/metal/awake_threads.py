"""Whether the engine's threads stay awake between two parallel loops: not while other processes want their cores.

PyTorch's threads (OpenMP, libgomp) wait for one another awake for some 20 ms where the teams of the process together
have no more threads than there are cores, else for some 50 us, and then asleep. Awake is what an idle machine wants.
Beside a busy process it takes the core from the very thread that is waited for, and a loop of microseconds then takes
as long as the system leaves a thread alone. So while others take a part of the cores, a thread is held that has a team
without work: of more threads than cores, none stays awake. What is computed is the same.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from openmps.metal.patience import cores, two_teams_fit

_SEEN, _PAUSE = 0.2, 1.0
"""Seconds after which others are judged, at the end of a launch, and those in which nothing is looked at then."""
_BUSY, _CALM = 0.15, 0.075
"""Parts of the cores' time that others take: from which on threads fall asleep, and up to which they stay awake again.
Of 16 cores one that is taken slows a loop down less than 15 threads that must be woken for it."""
_LOOP = 2**15
"""Numbers of a loop that the engine gives a thread of its own."""
_STAT = "/proc/stat"
_BUSY_COLUMNS = 1, 2, 3, 6, 7
"""Of a core in that file: the time of processes, of those of less priority, of the system and of interrupts."""


class _Moment(NamedTuple):
    at: float
    others: float
    """Seconds that the cores were busy with something else."""


class AwakeThreads:
    """Sees at launches how much of the cores others take."""

    def __init__(self) -> None:
        self._next = 0.0
        self._begun: _Moment | None = None
        self._release = threading.Event()
        self.holder: threading.Thread | None = None
        """The thread whose team puts all others to sleep; None while they stay awake."""

    def watch(self, launch: Callable[[], object], threads: int) -> None:
        """Launch work of so many threads, and see what others take meanwhile, now and then.

        To look takes longer than a small launch: it is done before the first of many, and behind the last.
        """
        if time.monotonic() < self._next or two_teams_fit(threads):
            launch()
            return
        if self._begun is None:
            self._begun = _now()
        try:
            launch()
        finally:
            begun = self._begun
            if begun is not None and time.monotonic() - begun.at >= _SEEN and (ended := _now()) is not None:
                self._judge(ended.at - begun.at, ended.others - begun.others)

    def _judge(self, seconds: float, taken: float) -> None:
        """Threads that do so at once do it twice, without harm."""
        self._next, self._begun = time.monotonic() + _PAUSE, None
        share = taken / seconds / cores()
        if self.holder is None and share > _BUSY:
            self._hold()
        elif self.holder is not None and share < _CALM:
            self.release()

    def _hold(self) -> None:
        release, has_team = threading.Event(), threading.Event()

        def hold() -> None:
            try:
                torch.empty(torch.get_num_threads() * _LOOP).zero_()
            finally:
                has_team.set()
            release.wait()

        holder = threading.Thread(target=hold, name="openmps: the engine's threads fall asleep", daemon=True)
        holder.start()
        self._release, self.holder = release, holder
        has_team.wait()

    def release(self) -> None:
        """Let the threads stay awake."""
        holder, self.holder = self.holder, None
        if holder is not None:
            self._release.set()
            holder.join()

    def forget(self) -> None:
        """In a forked process: the thread stayed behind in the parent."""
        self.holder, self._begun, self._next = None, None, 0.0


def _now() -> _Moment | None:
    """None where the system does not say how busy the cores are that the process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores, ticks = {f"cpu{core}" for core in os.sched_getaffinity(0)}, 0
    try:
        with open(_STAT) as file:
            for line in file:
                name, *_ = fields = line.split()
                if not name.startswith("cpu"):
                    break
                ticks += sum(int(fields[column]) for column in _BUSY_COLUMNS) if name in cores else 0
    except (OSError, ValueError, IndexError):
        return None
    return _Moment(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK") - time.process_time())


awake_threads = AwakeThreads()
"""Those of the process."""
atexit.register(awake_threads.release)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=awake_threads.forget)


def helpers() -> list[threading.Thread | None]:
    """Threads that commit nothing: the one that puts others to sleep, and those that make parts of pictures."""
    from openmps.cpu.parts import part_threads  # few programs ask, or have them

    return [awake_threads.holder, *part_threads.threads]
