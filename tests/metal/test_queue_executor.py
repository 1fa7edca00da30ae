"""Asynchrony, threads and the ends of queues and processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch

from openmps.errors import MPSArgumentError, MPSTypeError, MTLExecutionError
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MTLCommandBufferStatus as Status

PATIENCE = 60.0


def blocked(queue: MTLCommandQueue, gate: threading.Event) -> MTLCommandBuffer:
    """A committed buffer that keeps the queue's thread until the gate opens."""
    buffer = queue.command_buffer()
    buffer.add_scheduled_handler(lambda _: gate.wait(PATIENCE))
    buffer.commit()
    return buffer


def test_python_goes_on_while_the_queue_is_busy(queue: MTLCommandQueue) -> None:
    gate = threading.Event()
    first = blocked(queue, gate)
    second = queue.command_buffer()
    second.commit()
    assert not first.recording.execution.finished.is_set()
    gate.set()
    second.wait_until_completed()
    assert first.status is Status.COMPLETED


def test_the_cpu_computes_while_python_goes_on() -> None:
    gate, seen = threading.Event(), list[bool]()
    buffer = mtl_device("cpu").new_command_queue().command_buffer()
    buffer.record("work", lambda: seen.append(gate.wait(PATIENCE)))
    buffer.commit()
    assert seen == []
    gate.set()
    buffer.wait_until_completed()
    assert seen == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpu_computes_while_python_goes_on() -> None:
    queue = mtl_device("cuda").new_command_queue()
    spin = partial(torch.cuda._sleep, 10**9)
    first, second = queue.command_buffer(), queue.command_buffer()
    for buffer in (first, second):
        buffer.record("spin", spin)
        buffer.commit()
    assert second.status < Status.COMPLETED
    second.wait_until_completed()
    assert first.gpu_end_time - first.gpu_start_time > 0.1
    assert second.gpu_start_time >= first.gpu_end_time - 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_records_keep_their_order_across_streams() -> None:
    device = mtl_device("cuda")
    queue, value = device.new_command_queue(), torch.zeros(1, device=device.torch_device)

    def slow_append(digit: int) -> None:
        torch.cuda._sleep(10**8)
        value.mul_(10).add_(digit)

    torch.cuda.synchronize()
    for digit, stream in enumerate([torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()], start=1):
        buffer = queue.command_buffer()
        buffer.record("append", partial(slow_append, digit))
        with torch.cuda.stream(stream):
            buffer.commit()
    buffer.wait_until_completed()
    assert value.item() == 123.0


def test_two_threads_feed_one_queue(queue: MTLCommandQueue) -> None:
    ran: list[tuple[int, int]] = []
    handled: list[tuple[int, int]] = []
    inside = threading.Lock()

    def work(key: tuple[int, int]) -> None:
        assert inside.acquire(blocking=False), "two records run at the same time"
        ran.append(key)
        inside.release()

    def feed(thread: int) -> None:
        for number in range(500):
            buffer = queue.command_buffer()
            buffer.record("work", partial(work, (thread, number)))
            buffer.add_completed_handler(lambda _, number=number: handled.append((thread, number)))
            buffer.commit()
        buffer.wait_until_completed()

    run_threads(partial(feed, 0), partial(feed, 1))
    assert handled == ran
    for thread in (0, 1):
        assert [number for owner, number in ran if owner == thread] == list(range(500))


def test_two_queues_with_a_thread_each(mtl: MTLDevice) -> None:
    totals = [torch.zeros(1, device=mtl.torch_device) for _ in range(2)]

    def feed(total: torch.Tensor) -> None:
        queue = mtl.new_command_queue()
        for number in range(500):
            buffer = queue.command_buffer()
            buffer.record("add", partial(torch.add, total, number, out=total))
            buffer.commit()
        buffer.wait_until_completed()

    run_threads(*(partial(feed, total) for total in totals))
    assert [total.item() for total in totals] == [124750.0, 124750.0]


def run_threads(*targets: Callable[[], None]) -> None:
    faults: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_full_queue_blocks_until_there_is_room(mtl: MTLDevice) -> None:
    queue, gate, made = mtl.new_command_queue(max_command_buffer_count=2), threading.Event(), threading.Event()
    first = blocked(queue, gate)
    last = queue.command_buffer()
    last.commit()

    def make() -> None:
        queue.command_buffer()
        made.set()

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    assert not made.wait(0.05)
    gate.set()
    assert made.wait(PATIENCE)
    maker.join(PATIENCE)
    first.wait_until_completed()
    last.wait_until_completed()


def test_a_handler_of_a_full_queue_makes_buffers(mtl: MTLDevice) -> None:
    queue, finished = mtl.new_command_queue(max_command_buffer_count=1), threading.Event()
    buffer = queue.command_buffer()

    def go_on(_: MTLCommandBuffer) -> None:
        following = queue.command_buffer()
        following.add_completed_handler(lambda _: finished.set())
        following.commit()

    buffer.add_completed_handler(go_on)
    buffer.commit()
    assert finished.wait(PATIENCE)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_queue_needs_room_for_a_buffer(mtl: MTLDevice, count: int) -> None:
    with pytest.raises(MPSArgumentError, match="max_command_buffer_count"):
        mtl.new_command_queue(max_command_buffer_count=count)


def test_a_queue_needs_a_device() -> None:
    with pytest.raises(MPSTypeError, match="MTLDevice"):
        MTLCommandQueue("cpu")  # type: ignore[arg-type]


def test_the_worker_ends_with_its_queue(mtl: MTLDevice) -> None:
    before = set(threading.enumerate())
    queue = mtl.new_command_queue()
    assert not set(threading.enumerate()) - before  # those of other tests may end meanwhile
    buffer = queue.command_buffer()
    buffer.commit()
    buffer.wait_until_completed()
    (worker,) = set(threading.enumerate()) - before
    assert "openmps" in worker.name
    del queue, buffer
    gc.collect()
    worker.join(PATIENCE)
    assert not worker.is_alive()


@pytest.mark.parametrize("worker_runs", [True, False])
def test_a_record_that_failed_is_let_go(queue: MTLCommandQueue, worker_runs: bool) -> None:
    """Its error has the frames that it went through, and with them what the caller has; the queue lives on."""

    class Mine:
        pass

    def fail() -> weakref.ref[Mine]:
        mine, done = Mine(), threading.Event()
        buffer = queue.command_buffer()
        buffer.record("work", lambda: float("no number"))
        if worker_runs:
            buffer.add_completed_handler(lambda _: done.set())
        buffer.commit()
        assert not worker_runs or done.wait(PATIENCE)
        with pytest.raises(MTLExecutionError):
            buffer.wait_until_completed()
        return weakref.ref(mine)

    mine = fail()
    for _ in range(100):
        gc.collect()  # again: the worker lets go of a record after it has told those that wait
        if mine() is None:
            break
        time.sleep(0.02)
    assert mine() is None


def test_a_dropped_queue_finishes_what_was_committed(mtl: MTLDevice) -> None:
    gate, finished = threading.Event(), threading.Event()
    queue = mtl.new_command_queue()
    blocked(queue, gate)
    last = queue.command_buffer()
    last.add_completed_handler(lambda _: finished.set())
    last.commit()
    del queue, last
    gc.collect()
    gate.set()
    assert finished.wait(PATIENCE)


def test_the_committing_thread_sets_the_number_of_threads_of_the_work() -> None:
    queue, seen = mtl_device("cpu").new_command_queue(), list[int]()
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            buffer = queue.command_buffer()
            buffer.record("look", lambda: seen.append(torch.get_num_threads()))
            buffer.commit()
            buffer.wait_until_completed()
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 1]


@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread(),
    reason="needs POSIX signals in the main thread",
)
def test_an_interrupted_wait_leaves_the_queue_usable(queue: MTLCommandQueue) -> None:
    gate, main = threading.Event(), threading.get_ident()
    buffer = blocked(queue, gate)
    interrupt = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may arrive as soon as the timer runs
        interrupt.start()
        buffer.wait_until_completed()
    interrupt.join()
    gate.set()
    buffer.wait_until_completed()
    again = queue.command_buffer()
    again.commit()
    again.wait_until_completed()


SCRIPT = """
import sys, threading, torch
from openmps.runtime.devices import mtl_device

queue = mtl_device(DEVICE).new_command_queue()
value = torch.ones(400, 400, device=queue.device.torch_device)

def commit(number):
    buffer = queue.command_buffer()
    for _ in range(5):
        buffer.record("product", lambda: torch.mm(value, value) is None)
    buffer.add_completed_handler(lambda b: print(number, b.status.name))
    buffer.commit()
    return buffer
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "queue = None"])
def test_the_interpreter_ends_after_the_pending_work(
    device: torch.device, run_script: Callable[..., str], ending: str
) -> None:
    script = SCRIPT.replace("DEVICE", repr(str(device))) + f"for number in range(20): commit(number)\n{ending}\n"
    told = run_script(script, has_openmps=False)
    assert told.splitlines() == [f"{number} COMPLETED" for number in range(20)]


def test_functions_at_exit_may_still_compute(device: torch.device, run_script: Callable[..., str]) -> None:
    script = f"import atexit\n{SCRIPT.replace('DEVICE', repr(str(device)))}"
    script += "commit(0)\natexit.register(lambda: commit(1).wait_until_completed())\n"
    assert run_script(script, has_openmps=False).splitlines() == ["0 COMPLETED", "1 COMPLETED"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_a_worker_of_its_own(run_script: Callable[[str], str]) -> None:
    script = """
    import os, sys, threading
    from openmps.runtime.devices import mtl_device

    queue, gate = mtl_device("cpu").new_command_queue(), threading.Event()
    held = queue.command_buffer()
    held.record("hold", lambda: gate.wait(60) and None)
    held.commit()
    child = os.fork()
    buffer = queue.command_buffer()
    buffer.record("print", lambda: print("child" if child == 0 else "parent", flush=True))
    buffer.commit()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        gate.set()
    buffer.wait_until_completed()
    """
    assert run_script(script).splitlines() == ["child", "parent"]
