"""Records without handlers on a device that goes on by itself: any thread sees them to their end.

A timer that tests open stands for the device, and the CPU for what launches on it.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from typing import Any

import pytest

from openmps.errors import MTLExecutionError
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue
from openmps.runtime.devices import mtl_device
from openmps.types import MTLCommandBufferStatus as Status
from striking import interrupted

PATIENCE = 60.0


class Gate:
    """A timer of work that is done when a test says so."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waited: list[int] = []

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def is_over(self) -> bool:
        return self.opened.is_set()

    def wait(self) -> None:
        self.waited.append(threading.get_ident())
        if not self.opened.is_set():
            assert threading.current_thread() is not threading.main_thread(), "Ctrl-C could not reach it"
        assert self.opened.wait(PATIENCE)

    def times(self) -> tuple[float, float]:
        return 1.0, 2.0


class Device:
    """A queue whose records are launched by the committing thread, as on CUDA."""

    def __init__(self, capacity: int = 64) -> None:
        self.queue: MTLCommandQueue = mtl_device("cpu").new_command_queue(capacity)
        self.executor: Any = self.queue._executor
        self.executor._launches_at_commit = True
        self.executor._launch_here = lambda execution: execution.launch()
        self.gates: list[Gate] = []
        # Nothing that the executor has knows this object and its queue, which would never be collected.
        self.executor.timer = functools.partial(_timer, self.gates)
        self.calls: list[object] = []

    def buffer(self, handler: object = None) -> MTLCommandBuffer:
        """A committed buffer; what its handler is called with is noted."""
        made = self.queue.command_buffer()
        if handler is not None:
            made.add_completed_handler(lambda _: self.calls.append(handler))
        made.commit()
        return made

    def opened(self) -> Device:
        """The same, with a device that is always done."""
        self.executor.timer = functools.partial(_timer, self.gates, is_open=True)
        return self


def _timer(gates: list[Gate], *, is_open: bool = False) -> Gate:
    gates.append(Gate())
    if is_open:
        gates[-1].opened.set()
    return gates[-1]


def test_a_look_at_the_status_sees_records_to_their_end() -> None:
    device = Device()
    first, second = device.buffer(), device.buffer()
    assert (first.status, second.status) == (Status.SCHEDULED, Status.COMMITTED)
    assert first.gpu_end_time == 0.0
    device.gates[0].opened.set()
    assert (first.status, second.status) == (Status.COMPLETED, Status.SCHEDULED)
    assert (first.gpu_start_time, first.gpu_end_time, first.error) == (1.0, 2.0, None)
    device.gates[1].opened.set()
    assert second.gpu_end_time == 2.0
    main = threading.get_ident()
    assert device.gates[0].waited == device.gates[1].waited == [main]


def test_a_commit_sees_earlier_records_to_their_end() -> None:
    device = Device()
    first = device.buffer()
    device.gates[0].opened.set()
    device.buffer()
    assert first.recording.execution.finished.is_set()
    device.buffer()
    assert [each.finished.is_set() for each in device.executor._in_flight] == [False] * 2


def test_a_waiting_thread_is_woken_however_long_it_takes() -> None:
    device = Device()
    buffers = [device.buffer() for _ in range(3)]
    threading.Timer(0.05, lambda: [gate.opened.set() for gate in device.gates]).start()
    buffers[1].wait_until_scheduled()
    buffers[2].wait_until_completed()
    assert {each.status for each in buffers} == {Status.COMPLETED}
    assert {each.error for each in buffers} == {None}
    assert threading.get_ident() not in device.gates[0].waited


def test_a_thread_that_waits_before_the_commit_of_what_is_enqueued_first() -> None:
    """It finds nothing to look after yet."""
    device = Device().opened()
    first, second = device.queue.command_buffer(), device.queue.command_buffer()
    first.enqueue()
    second.commit()
    seen: list[Status] = []
    thread = threading.Thread(target=lambda: (second.wait_until_completed(), seen.append(second.status)))
    thread.start()
    time.sleep(0.05)
    first.commit()
    thread.join(0.5)
    assert seen == [Status.COMPLETED]


def test_handlers_are_called_in_order_and_after_all_before_them() -> None:
    device = Device()
    buffers = [device.buffer(number if number % 2 else None) for number in range(6)]
    for gate in reversed(device.gates):
        assert device.calls == []
        gate.opened.set()
    buffers[5].wait_until_completed()
    assert device.calls == [1, 3, 5]
    assert {each.status for each in buffers} == {Status.COMPLETED}


def test_a_full_queue_makes_room() -> None:
    device = Device(2).opened()
    for _ in range(10):
        device.buffer()
        assert len(device.executor._in_flight) <= 2


def test_a_queue_goes_though_nobody_has_looked_and_what_is_under_way_comes_to_its_end() -> None:
    device = Device()
    execution = device.buffer().recording.execution
    gates, queue, worker = device.gates, weakref.ref(device.queue), device.executor.worker
    del device.executor.timer  # which holds this device
    del device
    assert queue() is None
    gates[0].opened.set()
    worker.join(PATIENCE)
    assert execution.finished.is_set()


def test_what_a_device_reports_late_names_the_command_buffer() -> None:
    device = Device()
    buffer = device.queue.command_buffer()
    buffer.label = "mine"
    fault = RuntimeError("the device is lost")

    def fail() -> None:
        raise fault

    device.gates[0].is_over = fail
    device.gates[0].wait = fail
    buffer.commit()
    assert buffer.status is Status.ERROR
    with pytest.raises(MTLExecutionError, match="MTLCommandBuffer 'mine': work on the device") as caught:
        buffer.wait_until_completed()
    assert caught.value.__cause__ is fault


@pytest.mark.parametrize("handled", [False, True])
def test_an_interrupt_at_every_place_of_a_commit_and_a_wait(handled: bool) -> None:
    at = 0
    while True:
        at += 1
        device = Device(2).opened()
        buffer = device.queue.command_buffer()
        if handled:
            buffer.add_completed_handler(lambda _, device=device: device.calls.append("handled"))

        def step(buffer: MTLCommandBuffer = buffer) -> None:
            buffer.commit()
            assert buffer.status is not Status.NOT_ENQUEUED
            buffer.wait_until_completed()

        if not interrupted(step, at):
            break
        if buffer.status < Status.COMMITTED:
            buffer.commit()
        # As of `test_interrupts`: what is asked of the queue right behind an interrupt, the worker does.
        for each in (None, None, "later"):
            later = device.buffer(each)
        assert later.recording.execution.finished.wait(PATIENCE), "the queue is stuck"
        # A launch that was interrupted has failed.
        assert buffer.recording.execution.status in (Status.COMPLETED, Status.ERROR)
        assert device.calls == [*["handled"] * handled, "later"]
    assert at > 30


def test_many_threads_see_one_record_to_its_end() -> None:
    for _ in range(50):
        device = Device()
        buffer, barrier = device.buffer(), threading.Barrier(4)
        seen: list[Status] = []

        def wait(buffer: Any = buffer, barrier: Any = barrier, seen: list[Status] = seen) -> None:
            barrier.wait()
            buffer.wait_until_completed()
            seen.append(buffer.status)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        device.gates[0].opened.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert seen == [Status.COMPLETED] * 3


def test_records_that_ended_leave_room_before_they_are_forgotten() -> None:
    device = Device(capacity=2)
    first, second = device.buffer(), device.buffer()
    in_flight = device.executor._in_flight
    assert in_flight.are(2)
    device.gates[0].opened.set()
    device.executor.retire()
    assert first.status is Status.COMPLETED
    assert len(in_flight) == 2
    assert not in_flight.are(2)
    third = device.queue.command_buffer()  # it does not wait: the second is not done
    device.gates[1].opened.set()
    second.wait_until_completed()
    assert third.status is Status.NOT_ENQUEUED
