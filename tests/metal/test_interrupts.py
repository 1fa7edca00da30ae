"""Interrupts (Ctrl-C) between any two instructions of a commit leave the queue in order."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from openmps.errors import MTLCommandBufferError
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue
from openmps.runtime.devices import mtl_device
from openmps.types import MTLCommandBufferStatus as Status
from striking import interrupted

PATIENCE = 60.0
MOST = 100_000
"""Buffers that are made before an interrupt counts as lost."""


class Run:
    """A queue with one buffer, which is committed or enqueued, and a later one."""

    def __init__(self, *, is_warm: bool) -> None:
        self.queue: MTLCommandQueue = mtl_device("cpu").new_command_queue(max_command_buffer_count=2)
        self.ran: list[str] = []
        if is_warm:
            self.finish(self.queue.command_buffer())
        self.buffer = self.queue.command_buffer()
        self.buffer.record("work", lambda: self.ran.append("first"))
        self.buffer.add_completed_handler(lambda _: self.ran.append("handled"))

    def finish(self, buffer: MTLCommandBuffer) -> None:
        if buffer.status < Status.COMMITTED:
            buffer.commit()
        assert buffer.recording.execution.finished.wait(PATIENCE), "the queue is stuck"

    def check(self) -> None:
        """Both run, once and in order, and the queue has room again."""
        self.finish(self.buffer)
        for _ in range(3):
            later = self.queue.command_buffer()
            later.record("work", lambda: self.ran.append("later"))
            self.finish(later)
        assert self.ran == ["first", "handled", *["later"] * 3]


ACTIONS: dict[str, Callable[[Run], object]] = {
    "commit": lambda run: run.buffer.commit(),
    "enqueue": lambda run: run.buffer.enqueue(),
    "enqueue and commit": lambda run: (run.buffer.enqueue(), run.buffer.commit()),
}


@pytest.mark.parametrize("is_warm", [False, True], ids=["first commit", "later commit"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_interrupt_at_every_place(action: str, is_warm: bool) -> None:
    """The buffer shows in its status whether it was committed, and can be committed if it was not."""
    at = 0
    while True:
        at += 1
        run = Run(is_warm=is_warm)
        if not interrupted(lambda run=run: ACTIONS[action](run), at):
            break
        run.check()
    assert at > (15 if "commit" in action else 2)


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("action", ["commit", "enqueue"])
def test_a_buffer_that_is_dropped_after_an_interrupt(action: str) -> None:
    """Whether it had been committed or not, it does not hold up the others."""
    at = 0
    while True:
        at += 1
        run = Run(is_warm=True)
        if not interrupted(lambda run=run: ACTIONS[action](run), at):
            break
        del run.buffer
        gc.collect()
        later = run.queue.command_buffer()
        run.finish(later)
        assert run.ran in ([], ["first", "handled"])


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Send this thread a signal, and again until one has ended the block: a callback of the collector loses its own."""
    main, is_over = threading.get_ident(), threading.Event()

    def send() -> None:
        wait = seconds
        while not is_over.wait(wait):
            signal.pthread_kill(main, signal.SIGINT)
            wait = 0.2

    def handle(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set():
            signal.default_int_handler(number, frame)

    before, sender = signal.signal(signal.SIGINT, handle), threading.Thread(target=send)
    try:
        sender.start()
        yield
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread(),
    reason="needs POSIX signals in the main thread",
)
def test_interrupts_at_any_time() -> None:
    """Real signals, while a loop makes and commits buffers as fast as it can."""
    for number in range(100):
        queue = mtl_device("cpu").new_command_queue(max_command_buffer_count=8)
        made = deque[MTLCommandBuffer](maxlen=MOST)
        with pytest.raises(KeyboardInterrupt), interrupted_after(number * 2e-5):  # noqa: PT012
            # On a machine with other work the timer's thread may come late.
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                buffer = queue.command_buffer()
                buffer.commit()
                made.append(buffer)
        last = queue.command_buffer()
        last.commit()
        assert last.recording.execution.finished.wait(PATIENCE), "the queue is stuck"
        assert all(buffer.recording.execution.finished.is_set() for buffer in made)
        with pytest.raises(MTLCommandBufferError):
            last.commit()
