"""Records that were launched and have not ended, and how those are retired at whose end nobody is called.

A thread that waits for the device, and wants the interpreter when it wakes, costs each record of a small network more
than the record itself. So on CUDA a record without handlers is retired by whoever comes next: by the next commit,
by a look at its status, by the thread that waits for it. What is done then may be done by two threads at once, and
again after an interrupt, without harm.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from openmps.metal.execution import Execution, Latch

_PATIENCE = 5e-4
"""Seconds that a waiting thread asks the device again and again: about what it takes to wake others, a few times."""
_give_way: Callable[[], object] = partial(time.sleep, 0) if os.name == "nt" else partial(select.select, (), (), (), 0)
"""Lets other threads have the interpreter. A sleep of no time takes 50 us but on Windows: timers have slack."""


class InFlight:
    """Records that were launched and have not ended, the oldest first."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: deque[Execution] = deque()
        """Those that were handed on and not dropped yet; once more does no harm."""

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Execution]:
        # A copy in one step: records come and go on other threads.
        return iter(tuple(self.records))

    def are(self, count: int) -> bool:
        """Whether so many have not come to their end, as far as is known without asking the device."""
        left = len(self.records)
        # Those that have are mostly the first.
        for each in tuple(self.records) if left >= count else ():
            left -= each.finished.is_reached
            if left < count:
                break
        return left >= count

    @property
    def is_busy(self) -> bool:
        """Whether handlers may yet be called, or works launched."""
        return any(not each.finished.is_set() and not each.is_quiet for each in self)

    def oldest(self) -> Execution | None:
        """The first that has not come to its end."""
        for each in tuple(self.records):
            if not each.finished.is_set():
                return each
        return None

    def up_to(self, execution: Execution) -> Iterator[Execution]:
        """Those before a record that have not come to their end, then the record itself."""
        for each in self:
            if each is execution:
                break
            if not each.finished.is_set():
                yield each
        yield execution

    def before(self, execution: Execution) -> list[Execution]:
        """Those before a record that have not come to their end."""
        return list(self.up_to(execution))[:-1]

    def forget(self) -> None:
        """Drop those at the front that have come to their end. One thread at a time may."""
        records = self.records
        while records and records[0].finished.is_reached:
            records.popleft()

    def retire(self, new: Execution | None = None) -> None:
        """Finish the quiet records at the front that the device has done; ``new`` is not asked for."""
        for each in tuple(self.records):  # a copy in one step
            if each.finished.is_reached:
                continue
            if each is new or not each.is_quiet:
                return
            if not each.scheduled.is_reached:
                each.scheduled.set()  # all before it is done
            if not each.is_over():
                return
            each.finish()

    def wait_briefly(self, latch: Latch) -> None:
        """Go on with that until something has happened to one of them, a short time at most."""
        self.retire()
        until = time.perf_counter() + _PATIENCE
        while not latch.is_set() and time.perf_counter() < until:
            oldest = self.oldest()
            if oldest is None or not oldest.is_quiet:
                return
            _give_way()
            self.retire()
