"""Parts of one computation by several threads at once: of functions that let go of the interpreter, such as OpenCV's.

The thread that asks does parts itself, others join in when they come: where none comes in time, it has done them all,
and it waits for those alone that have begun. Threads start on first use; at the end of the interpreter they have
nothing to do, for what is recorded has been finished by then. They never use torch, which would give each its own team.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from openmps.locks import new_lock

T = TypeVar("T")


def run_parts(
    do: Callable[[T], object], parts: Sequence[T], threads: int, is_over: Callable[[], bool] | None = None
) -> None:
    """Call ``do`` once with each part, in so many threads, the calling one among them.

    The first error that arises keeps parts that have not begun from being done, and is raised when the others have
    ended. Where ``is_over`` says that nobody works any more, their threads are not waited for. Interrupts are held back
    by whoever runs recorded work, as everywhere.
    """
    others = min(threads, len(parts)) - 1
    if others < 1:
        for each in parts:
            do(each)
        return
    job = _Job(do, parts)
    part_threads.send(job, others)
    job.run(is_over)


class _Job:
    """The parts that are left, and who does them."""

    __slots__ = ("_do", "_ends", "_joined", "_left")

    def __init__(self, do: Callable[[Any], object], parts: Sequence[Any]) -> None:
        self._do: Callable[[Any], object] | None = do
        self._left = deque(parts)
        self._joined: deque[None] = deque()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, is_over: Callable[[], bool] | None = None) -> None:
        """Do what no other thread does, and return when they have ended, too, or all is over."""
        fault: BaseException | None = None
        try:
            self._do_parts()
        finally:
            # Who joins from now on finds nothing left. What others do is waited for: memory is given back behind this.
            self._left.clear()
            ended = 0
            # Asked anew: who comes late and finds nothing ends before others do.
            while ended < len(self._joined) and not (is_over is not None and is_over()):
                fault = self._ends.get() or fault
                ended += 1
            self._do = None  # a thread that comes late gets the job all the same
        if fault is not None:
            raise fault

    def join(self) -> None:
        """Do parts beside the thread that asked."""
        self._joined.append(None)  # before a part is taken: who finds none left sees all that have joined
        fault: BaseException | None = None
        try:
            self._do_parts()
        except BaseException as error:  # raised by the thread that asked
            fault = error
        self._ends.put(fault)

    def _do_parts(self) -> None:
        do, left = self._do, self._left
        while left and do is not None:
            try:
                part = left.popleft()
            except IndexError:  # another thread took it
                return
            try:
                do(part)
            except BaseException:
                left.clear()
                raise


class PartThreads:
    """The threads that join in."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked process: threads stayed behind in the parent, with what they did."""
        self._lock = new_lock()
        self._inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []

    def send(self, job: _Job, count: int) -> None:
        """Ask so many threads to join in; fewer where the system gives no more."""
        if len(self.threads) < count:
            with self._lock:
                self._start(count)
        for _ in range(min(count, len(self.threads))):
            self._inbox.put(job)

    def _start(self, count: int) -> None:
        while len(self.threads) < count:
            name = f"openmps: parts of pictures {len(self.threads) + 1}"
            thread = threading.Thread(target=_serve, args=(self._inbox,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system's limit is reached, or the interpreter ends
                return
            self.threads.append(thread)


def _serve(inbox: SimpleQueue[_Job | None]) -> None:
    """Until there is no job, but None."""
    while (job := inbox.get()) is not None:
        job.join()
        del job  # with what it holds, before the wait for another one


part_threads = PartThreads()
"""Those of the process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=part_threads.forget)
