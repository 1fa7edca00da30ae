"""Nothing waits for ever: forks, finalizers, signal handlers, and buffers that nobody commits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import striking
from openmps.errors import MTLCommandBufferError
from openmps.metal import patience
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue
from openmps.runtime.devices import mtl_device
from openmps.types import MTLCommandBufferStatus as Status
from striking import at_every_place

PATIENCE = 60.0

# --- forks ------------------------------------------------------------------------------------------------------------

FORK = """
import os, signal, threading
import numpy as np
import openmps as mps

signal.alarm(50)
device = mps.mtl_device("cpu")
queue = device.new_command_queue()
x, y = (mps.MPSImage.from_numpy(device, np.ones((1, 1, 1), np.float32)) for _ in range(2))
gate, begun = threading.Event(), threading.Event()
first, second, later = (queue.command_buffer() for _ in range(3))
first.record("hold", lambda: (begun.set(), gate.wait(50)))
mps.MPSCNNNeuronReLU(device).encode(second, x, y)
second.add_completed_handler(lambda _: print("handled", flush=True))
first.commit()
second.commit()
later.enqueue()
later.record("later", lambda: print("later", flush=True))
assert begun.wait(50)

def tell(wait):
    try:
        wait()
        print("done", flush=True)
    except mps.MTLExecutionError as error:
        print(error, flush=True)

if (child := os.fork()) == 0:
    signal.alarm(50)
    tell(first.wait_until_completed)
    tell(second.wait_until_scheduled)
    tell(second.wait_until_completed)
    tell(y.numpy)
    print(second.status.name, second.error is not None, x.numpy().item(), flush=True)
    later.commit()
    tell(later.wait_until_completed)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", flush=True)
gate.set()
tell(second.wait_until_completed)
"""
STAYED = (
    "MTLCommandBuffer: its work stayed with the process that committed it, of which this one is a fork. "
    "Wait for it before the fork, or encode it again here"
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_and_the_buffers_of_its_parent(run_script: Callable[[str], str]) -> None:
    """What the parent committed is lost to the child, and says so; what nobody has committed is the child's, too."""
    assert run_script(FORK).splitlines() == [
        STAYED,
        "done",
        STAYED,
        STAYED,
        "ERROR True 1.0",
        "later",
        "done",
        "parent",
        "handled",
        "done",
    ]


STRUCK = """
import os, signal, sys, threading, types
sys.path.insert(0, %r)
import torch
import openmps as mps
from striking import at_every_place
signal.alarm(50)
device = mps.mtl_device("cpu")
heap = device.new_heap(mps.MTLHeapDescriptor(1 << 16))
philox, mtgp = mps.MPSMatrixRandomPhilox(device), mps.MPSMatrixRandomMTGP32(device)
adam, dropout = mps.MPSNNOptimizerAdam(device, 0.1), mps.MPSCNNDropout(device, 0.5, 7, mps.MTLSize(1, 1, 1))
image = lambda: mps.MPSImage(device, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32))
watched = device.new_buffer(length=4)
watched.flush = lambda: True
device.watch(watched)
mtgp._memory("words", None).next_words(1)
actions = {
    "buffer of a heap": lambda: heap.new_buffer(256),
    "first use of a buffer": lambda: device.new_buffer(length=4).memory(torch.uint8),
    "first use of an image": lambda: image().storage.tensor(),
    "binding": lambda: device.new_buffer(length=4).bind_unless_allocated(torch.zeros(4, dtype=torch.uint8)),
    "host copies": device.flush_host_copies,
    "Adam's steps": adam._rate,
    "dropout's steps": lambda: dropout._number("step", None),
    "Philox": lambda: philox._number("begin", types.SimpleNamespace(note=4)),
    "MTGP32": lambda: mtgp._memory("words", None).next_words(1),
    "a copy of MTGP32": lambda: mtgp._memory("words", None).copy(torch.device("cpu")),
}
statuses = []

def fork():
    if (child := os.fork()) == 0:
        signal.alarm(5)
        action()
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])

def strike():
    other = threading.Thread(target=fork)
    other.start()
    other.join()

for name, action in actions.items():
    statuses.clear()
    for place in at_every_place():
        place(action, strike)
    print(name, bool(statuses) and not any(statuses), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_at_every_place_of_another_thread(run_script: Callable[[str], str]) -> None:
    """The child waits for no lock of a thread that stayed behind."""
    told = run_script(STRUCK % str(Path(striking.__file__).parent)).splitlines()
    assert len(told) == 10 and all(each.endswith(" True") for each in told), told


# --- the end of the interpreter ---------------------------------------------------------------------------------------

FINALIZER = """
import signal, sys
signal.alarm(50)
from openmps.runtime.devices import mtl_device

class Owner:
    def __init__(self):
        self.queue = mtl_device("cpu").new_command_queue()
        self.buffer = self.queue.command_buffer()
        self.buffer.record("work", lambda: print("never"))
        if sys.argv[-1] == "warm":
            warm = self.queue.command_buffer()
            warm.commit()
    def __del__(self):
        try:
            self.buffer.commit()
            self.buffer.wait_until_completed()
        except Exception as error:
            sys.stdout.write(f"{error}\\n")
            sys.stdout.flush()

sys.argv.append(%r)
owner = Owner()
"""


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_commit_of_a_finalizer_at_the_end_of_the_interpreter(run_script: Callable[..., str], start: str) -> None:
    """No thread runs any more that could do the work."""
    assert run_script(FINALIZER % start, has_openmps=False).splitlines() == [
        "MTLCommandBuffer: commit came too late: the process is ending. Wait for the last buffer before that"
    ]


# --- signal handlers --------------------------------------------------------------------------------------------------


def nested(queue: MTLCommandQueue, ran: list[str], waited: list[bool]) -> None:
    """What a signal handler may do: encode, commit, and wait, which is refused where it would wait for itself."""
    buffer = queue.command_buffer()
    buffer.record("work", lambda: ran.append("nested"))
    buffer.commit()
    try:
        buffer.wait_until_completed()
        waited.append(True)
    except MTLCommandBufferError as error:
        waited.append("cannot be called by a handler" not in str(error))


@pytest.mark.parametrize("is_warm", [False, True], ids=["first commit", "later commit"])
def test_a_signal_handler_that_commits_at_every_place(is_warm: bool) -> None:
    """Whatever it interrupts of a commit, nothing hangs and everything runs once."""
    waited, places = list[bool](), 0
    for place in at_every_place():
        queue, ran = mtl_device("cpu").new_command_queue(max_command_buffer_count=1), list[str]()
        if is_warm:
            queue.command_buffer().commit()
        buffer = queue.command_buffer()
        buffer.record("work", lambda ran=ran: ran.append("first"))

        def strike(queue: MTLCommandQueue = queue, ran: list[str] = ran) -> None:
            nested(queue, ran, waited)

        timer = threading.Timer(PATIENCE, os._exit, (1,))
        timer.daemon = True
        timer.start()
        struck = place(buffer.commit, strike)
        last = queue.command_buffer()
        last.commit()
        last.wait_until_completed()
        buffer.wait_until_completed()
        timer.cancel()
        assert sorted(ran) == (["first", "nested"] if struck else ["first"])
        places += struck
    assert places > 20
    assert {True, False} <= set(waited)


@pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="needs POSIX signals in the main thread",
)
def test_signal_handlers_that_commit_at_any_time(run_script: Callable[[str], str]) -> None:
    """Real signals, while a loop commits as fast as it can."""
    script = """
    import signal, time
    from openmps.runtime.devices import mtl_device
    queue, ran, made = mtl_device("cpu").new_command_queue(4), [], []
    def commit(*_):
        buffer = queue.command_buffer()
        buffer.record("work", lambda: ran.append(1))
        buffer.commit()
        made.append(buffer)
    signal.alarm(50)
    signal.signal(signal.SIGVTALRM, commit)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1e-3, 1e-3)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        commit()
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    for buffer in made:
        buffer.wait_until_completed()
    print(len(ran) == len(made))
    """
    assert run_script(script) == "True\n"


# --- a buffer behind one that nobody commits --------------------------------------------------------------------------

BEHIND = """
import signal, threading
from openmps.cpu.parts import run_parts
from openmps.runtime.devices import mtl_device
signal.alarm(50)
both = threading.Barrier(2)
run_parts(lambda part: both.wait(), range(2), 2)
queue = mtl_device("cpu").new_command_queue()
a, b = queue.command_buffer(), queue.command_buffer()
a.label, b.label = "a", "b"
a.enqueue()
b.record("work", lambda: print("ran", flush=True))
b.commit()
for wait in (b.wait_until_completed, b.wait_until_scheduled):
    try:
        wait()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
del a
b.wait_until_completed()
"""


def test_a_wait_behind_a_buffer_that_nobody_commits(run_script: Callable[[str], str]) -> None:
    """There is one thread: it cannot wait and commit, nor do those that join in parts of its work."""
    rule = "would never return: MTLCommandBuffer 'a', enqueued before it, is not committed, got status COMMITTED"
    remedy = "Commit that one, or drop it"
    assert run_script(BEHIND).splitlines() == [
        f"MTLCommandBufferError MTLCommandBuffer 'b': wait_until_completed {rule}. {remedy}",
        f"MTLCommandBufferError MTLCommandBuffer 'b': wait_until_scheduled {rule}. {remedy}",
        "ran",
    ]


def test_a_wait_behind_a_buffer_that_another_thread_may_commit(logged: Any) -> None:
    """It goes on, and says what it waits for."""
    queue = mtl_device("cpu").new_command_queue()
    ahead, behind = queue.command_buffer(), queue.command_buffer()
    ahead.label = "ahead"
    ahead.enqueue()
    behind.commit()
    timer = threading.Timer(2.5, ahead.commit)
    timer.start()
    behind.wait_until_completed()
    timer.join()
    assert behind.status is Status.COMPLETED
    told = [record.getMessage() for record in logged.records]
    assert told == [
        "a wait goes on until MTLCommandBuffer 'ahead' is committed, which was enqueued before: "
        "commit that one, or drop it"
    ]


# --- two threads ------------------------------------------------------------------------------------------------------


class Slices:
    """Threads change as often as they can."""

    def __enter__(self) -> None:
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)

    def __exit__(self, *_: object) -> None:
        sys.setswitchinterval(self._before)


@pytest.mark.parametrize("is_enqueued", [False, True])
def test_one_of_several_threads_commits_a_buffer(is_enqueued: bool) -> None:
    """The others are told that it is committed."""
    queue = mtl_device("cpu").new_command_queue(1000)
    with Slices():
        for _ in range(200):
            buffer, ran, told = queue.command_buffer(), list[int](), list[bool]()
            buffer.record("work", lambda ran=ran: ran.append(1))
            start = threading.Barrier(4)

            def commit(buffer: MTLCommandBuffer = buffer, told: list[bool] = told, start: Any = start) -> None:
                start.wait(PATIENCE)
                try:
                    if is_enqueued:
                        buffer.enqueue()
                    buffer.commit()
                    told.append(True)
                except MTLCommandBufferError:
                    told.append(False)

            threads = [threading.Thread(target=commit) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            buffer.wait_until_completed()
            assert (ran, sorted(told)) == ([1], [False, False, False, True])
    later = queue.command_buffer()
    later.commit()
    later.wait_until_completed()


def test_the_second_commit_at_every_place_of_the_first() -> None:
    """Another thread commits while the first is anywhere in its own: one is told yes, the work runs once."""
    both = 0
    for place in at_every_place():
        queue, ran, told = mtl_device("cpu").new_command_queue(), list[int](), list[str]()
        buffer = queue.command_buffer()
        buffer.record("work", lambda ran=ran: ran.append(1))

        def commit(who: str, buffer: MTLCommandBuffer = buffer, told: list[str] = told) -> None:
            try:
                buffer.commit()
                told.append(who)
            except MTLCommandBufferError:
                told.append("")

        def strike(commit: Callable[[str], None] = commit) -> None:
            other = threading.Thread(target=commit, args=("other",))
            other.start()
            other.join(0.02)  # it may need the lock that the first one has

        struck = place(lambda commit=commit: commit("first"), strike)
        buffer.wait_until_completed()
        for other in threading.enumerate():
            if other is not threading.current_thread() and "queue" not in other.name and not other.daemon:
                other.join(PATIENCE)
        assert ran == [1]
        assert len([each for each in told if each]) == 1
        both += struck
    assert both > 20


# --- a waiting thread runs what the worker has not begun --------------------------------------------------------------


def _ran_here(queue: MTLCommandQueue, handler: Callable[[object], object] | None = None) -> bool:
    """Whether the thread that waits for a buffer runs it."""
    ran: list[int] = []
    buffer = queue.command_buffer()
    buffer.record("work", lambda: ran.append(threading.get_ident()))
    if handler is not None:
        buffer.add_completed_handler(handler)
    buffer.commit()
    buffer.wait_until_completed()
    assert buffer.status is Status.COMPLETED
    return ran == [threading.get_ident()]


def test_a_waiting_thread_runs_what_runs_alike_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "two_teams_fit", lambda _: True)
    queue = mtl_device("cpu").new_command_queue()
    assert any(_ran_here(queue) for _ in range(200))
    # Handlers are the worker's, and modes of torch are the thread's that set them.
    assert not any(_ran_here(queue, lambda _: None) for _ in range(50))
    with torch.device("meta"):
        assert not any(_ran_here(queue) for _ in range(50))


def _run_and_sleep(buffer: MTLCommandBuffer) -> None:
    buffer.commit()
    buffer.wait_until_completed()
    time.sleep(1.0)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals come to the main thread")
def test_an_interrupt_comes_between_works_and_never_within() -> None:
    queue, ended = mtl_device("cpu").new_command_queue(), list[int]()

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append(1)

    for count in range(1, 51):
        buffer = queue.command_buffer()
        buffer.record("work", work)
        with pytest.raises(KeyboardInterrupt):
            _run_and_sleep(buffer)
        buffer.wait_until_completed()
        assert (buffer.status, buffer.error, len(ended)) == (Status.COMPLETED, None, count)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_order_where_several_threads_wait() -> None:
    queue, ran = mtl_device("cpu").new_command_queue(64), list[int]()
    buffers = [queue.command_buffer() for _ in range(60)]
    for number, buffer in enumerate(buffers):
        buffer.record("work", partial(ran.append, number))
    threads = [
        threading.Thread(target=lambda mine: [each.wait_until_completed() for each in mine], args=(buffers[start::3],))
        for start in range(3)
    ]
    for buffer in buffers:
        buffer.commit()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert ran == list(range(60))
