"""The life of a command buffer: record, commit, wait, handlers, faults, misuse."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from openmps.errors import MPSTypeError, MTLCommandBufferError, MTLExecutionError
from openmps.metal.device import CommandBuffer, MTLCommandBuffer, MTLCommandQueue
from openmps.types import MTLCommandBufferErrorCode as Code
from openmps.types import MTLCommandBufferStatus as Status

PATIENCE = 60.0


def finish(buffer: CommandBuffer) -> None:
    buffer.commit()
    buffer.wait_until_completed()


def failing(queue: MTLCommandQueue, fault: BaseException | None = None) -> MTLCommandBuffer:
    buffer = queue.command_buffer()
    buffer.label = "step 3"

    def work() -> None:
        raise fault or ZeroDivisionError("by design")

    buffer.record("MPSCNNSoftMax 'top'", work)
    return buffer


def test_life_cycle(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    seen: list[object] = []
    assert buffer.status is Status.NOT_ENQUEUED
    buffer.enqueue()
    assert buffer.status is Status.ENQUEUED
    buffer.add_scheduled_handler(lambda b: seen.append(("scheduled", b.status)))
    buffer.add_completed_handler(lambda b: seen.append(("completed", b.status)))
    buffer.record("work", lambda: seen.append("work"))
    assert seen == []
    buffer.commit()
    buffer.wait_until_scheduled()
    assert ("scheduled", Status.SCHEDULED) in seen
    buffer.wait_until_completed()
    assert buffer.status is Status.COMPLETED
    assert buffer.error is None
    assert buffer.error_code is Code.NONE
    assert len(seen) == 3
    assert seen.index("work") < seen.index(("completed", Status.COMPLETED))
    buffer.wait_until_completed()


def test_what_it_is(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    assert isinstance(buffer, CommandBuffer)
    assert buffer.device is queue.device
    assert buffer.command_queue is queue
    assert buffer.root_command_buffer is buffer
    assert buffer.retained_references
    assert not queue.command_buffer_with_unretained_references().retained_references
    assert buffer.name == "MTLCommandBuffer"
    buffer.label = "train"
    assert buffer.name == "MTLCommandBuffer 'train'"
    assert "NOT_ENQUEUED" in repr(buffer)
    assert queue.device.name in repr(buffer)


def test_works_run_once_in_order_on_the_device(queue: MTLCommandQueue) -> None:
    value = torch.zeros(4, device=queue.device.torch_device)
    buffer = queue.command_buffer()

    def append(digit: int) -> None:
        value.mul_(10).add_(digit)

    for digit in range(1, 6):
        buffer.record(f"digit {digit}", partial(append, digit))
    finish(buffer)
    assert value.tolist() == [12345.0] * 4


def test_enqueue_fixes_the_order(queue: MTLCommandQueue) -> None:
    order: list[str] = []
    buffers = {name: queue.command_buffer() for name in "abc"}
    for name, buffer in buffers.items():
        buffer.record(name, lambda name=name: order.append(name))
    buffers["a"].enqueue()
    buffers["b"].enqueue()
    buffers["b"].enqueue()
    buffers["c"].commit()
    buffers["b"].commit()
    assert order == []
    assert buffers["c"].status is Status.COMMITTED
    buffers["a"].commit()
    buffers["c"].wait_until_completed()
    assert order == ["a", "b", "c"]


def test_an_enqueued_buffer_that_is_dropped_does_not_hold_up_the_queue(queue: MTLCommandQueue) -> None:
    dropped = queue.command_buffer()
    dropped.enqueue()
    later = queue.command_buffer()
    later.commit()
    assert later.status is Status.COMMITTED
    del dropped
    gc.collect()
    later.wait_until_completed()


def test_gpu_times(queue: MTLCommandQueue) -> None:
    first, second = queue.command_buffer(), queue.command_buffer()
    assert (first.gpu_start_time, first.gpu_end_time) == (0.0, 0.0)
    value = torch.ones(1000, device=queue.device.torch_device)

    def work() -> None:
        value.cumsum_(0)

    first.record("work", work)
    finish(first)
    finish(second)
    assert 0 < first.gpu_start_time <= first.gpu_end_time
    assert first.gpu_start_time < second.gpu_end_time


# --- handlers --------------------------------------------------------------------------------------------------------


def test_handlers_return_before_the_wait(queue: MTLCommandQueue) -> None:
    gate, seen = threading.Event(), list[int]()
    buffer = queue.command_buffer()

    def slow(_: MTLCommandBuffer) -> None:
        assert gate.wait(PATIENCE)
        seen.append(1)

    buffer.add_completed_handler(slow)
    buffer.add_completed_handler(lambda _: seen.append(2))
    buffer.commit()
    assert seen == []
    gate.set()
    buffer.wait_until_completed()
    assert seen == [1, 2]


def test_a_handler_that_raises_is_reported_and_stops_nobody(queue: MTLCommandQueue) -> None:
    seen: list[str] = []
    buffer = queue.command_buffer()
    buffer.label = "step"

    def broken(_: MTLCommandBuffer) -> None:
        raise KeyError("loss")

    buffer.add_completed_handler(broken)
    buffer.add_completed_handler(lambda b: seen.append(b.status.name))
    buffer.commit()
    with pytest.raises(MTLExecutionError, match=r"MTLCommandBuffer 'step': completed handler .*broken.*KeyError"):
        buffer.wait_until_completed()
    assert seen == ["ERROR"]
    assert buffer.error is not None
    assert isinstance(buffer.error.__cause__, KeyError)
    finish(queue.command_buffer())


def test_a_scheduled_handler_that_raises_does_not_stop_the_work(queue: MTLCommandQueue) -> None:
    seen: list[str] = []
    buffer = queue.command_buffer()
    buffer.add_scheduled_handler(lambda _: [][0])
    buffer.record("work", lambda: seen.append("work"))
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="scheduled handler"):
        buffer.wait_until_completed()
    assert seen == ["work"]
    assert buffer.status is Status.ERROR


def test_a_second_fault_is_logged(queue: MTLCommandQueue, logged: Any) -> None:
    buffer = failing(queue)
    buffer.add_completed_handler(lambda _: {}["lost"])
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="ZeroDivisionError"):
        buffer.wait_until_completed()
    assert "completed handler" in logged.text
    assert "KeyError: 'lost'" in logged.text


class Unreadable(Exception):
    """A fault that cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_fault_whose_text_cannot_be_read(queue: MTLCommandQueue) -> None:
    """It is kept, the other handlers run and nobody waits for ever."""

    def fail(*_: object) -> None:
        raise Unreadable

    seen: list[str] = []
    by_work, by_handler = queue.command_buffer(), queue.command_buffer()
    by_work.record("work", fail)
    by_handler.add_scheduled_handler(fail)
    by_handler.add_completed_handler(fail)
    by_handler.add_completed_handler(lambda b: seen.append(b.status.name))
    for buffer in (by_work, by_handler):
        buffer.commit()
        with pytest.raises(MTLExecutionError, match="got Unreadable, whose text cannot be read"):
            buffer.wait_until_completed()
    assert seen == ["ERROR"]


def test_a_handler_is_named_without_its_arguments(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    buffer.add_completed_handler(partial(failing, "not a queue"))  # type: ignore[arg-type]
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="completed handler failing must run"):
        buffer.wait_until_completed()


def test_a_handler_may_commit_further_buffers(queue: MTLCommandQueue) -> None:
    order: list[int] = []
    finished = threading.Event()

    def go_on(count: int) -> None:
        buffer = queue.command_buffer()
        buffer.record(f"work {count}", lambda: order.append(count))
        buffer.add_completed_handler(lambda _: go_on(count + 1) if count < 4 else finished.set())
        buffer.commit()

    go_on(0)
    assert finished.wait(PATIENCE)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("which", ["own", "later"])
def test_a_handler_cannot_wait_for_what_waits_for_it(queue: MTLCommandQueue, which: str) -> None:
    first, second = queue.command_buffer(), queue.command_buffer()
    faults: list[MTLCommandBufferError] = []

    def wait(buffer: MTLCommandBuffer) -> None:
        target = buffer if which == "own" else second
        with pytest.raises(MTLCommandBufferError, match="handler or work that the buffer waits for") as caught:
            target.wait_until_completed()
        faults.append(caught.value)

    both_committed = threading.Event()
    first.add_scheduled_handler(lambda _: both_committed.wait(PATIENCE))
    first.add_completed_handler(wait)
    first.commit()
    second.commit()
    both_committed.set()
    first.wait_until_completed()
    second.wait_until_completed()
    assert len(faults) == 1


@pytest.mark.parametrize("queues", [2, 3])
def test_handlers_of_several_queues_cannot_wait_for_each_other(queue: MTLCommandQueue, queues: int) -> None:
    """One of them is told; then the others go on."""
    ring = [queue, *(queue.device.new_command_queue() for _ in range(queues - 1))]
    all_committed, outcomes = threading.Event(), list[str]()
    firsts, seconds = ([each.command_buffer() for each in ring] for _ in range(2))

    def wait(_: MTLCommandBuffer, other: MTLCommandBuffer) -> None:
        all_committed.wait(PATIENCE)
        try:
            other.wait_until_completed()
            outcomes.append("waited")
        except MTLCommandBufferError as fault:
            outcomes.append("refused" if "that the buffer waits for" in fault.rule else str(fault))

    for index, first in enumerate(firsts):
        first.add_completed_handler(partial(wait, other=seconds[(index + 1) % queues]))
    for buffer in (*firsts, *seconds):
        buffer.commit()
    all_committed.set()
    for buffer in (*firsts, *seconds):
        buffer.wait_until_completed()
    assert sorted(outcomes) == ["refused", *["waited"] * (queues - 1)]


def test_a_work_cannot_wait_for_its_own_buffer(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    buffer.record("work", buffer.wait_until_completed)
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="MTLCommandBufferError"):
        buffer.wait_until_completed()


def test_a_handler_may_wait_for_an_earlier_buffer_and_for_another_queue(queue: MTLCommandQueue) -> None:
    other = queue.device.new_command_queue().command_buffer()
    first, second = queue.command_buffer(), queue.command_buffer()
    second.add_completed_handler(lambda _: (first.wait_until_completed(), other.wait_until_completed()))
    other.commit()
    first.commit()
    second.commit()
    second.wait_until_completed()
    assert other.status is Status.COMPLETED


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_failing_work(queue: MTLCommandQueue) -> None:
    seen: list[object] = []
    buffer, later = failing(queue), queue.command_buffer()
    buffer.record("after", lambda: seen.append("after"))
    buffer.add_completed_handler(lambda b: seen.append((b.status, type(b.error))))
    later.record("later", lambda: seen.append("later"))
    buffer.commit()
    later.commit()
    later.wait_until_completed()
    assert seen in ([(Status.ERROR, MTLExecutionError), "later"], ["later", (Status.ERROR, MTLExecutionError)])
    for _ in range(2):
        with pytest.raises(MTLExecutionError) as caught:
            buffer.wait_until_completed()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert str(caught.value).startswith(
        "MTLCommandBuffer 'step 3': work \"MPSCNNSoftMax 'top'\" must run to its end, got ZeroDivisionError: by design"
    )
    assert buffer.error_code is Code.INTERNAL
    assert later.error is None


def test_the_cause_says_where_the_work_failed(queue: MTLCommandQueue) -> None:
    buffer = failing(queue)
    buffer.commit()
    with pytest.raises(MTLExecutionError) as caught:
        buffer.wait_until_completed()
    traceback = caught.value.__cause__.__traceback__
    assert traceback is not None
    assert traceback.tb_frame.f_code.co_name == "work"


@pytest.mark.parametrize("fault", [MemoryError("full"), torch.OutOfMemoryError("full")])
def test_out_of_memory_has_its_code(queue: MTLCommandQueue, fault: Exception) -> None:
    buffer = failing(queue, fault)
    buffer.commit()
    with pytest.raises(MTLExecutionError):
        buffer.wait_until_completed()
    assert buffer.error_code is Code.OUT_OF_MEMORY


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), SystemExit(1)])
def test_a_work_that_ends_the_thread_ends_its_buffer_only(queue: MTLCommandQueue, fault: BaseException) -> None:
    buffer, later = failing(queue, fault), queue.command_buffer()
    if queue.device.is_cuda:  # The committing thread runs it, so it is interrupted.
        with pytest.raises(type(fault)):
            buffer.commit()
    else:
        buffer.commit()
    with pytest.raises(MTLExecutionError, match=type(fault).__name__):
        buffer.wait_until_completed()
    finish(later)


def test_debug_groups_stand_before_the_labels(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    buffer.push_debug_group("net")
    buffer.push_debug_group("head")
    buffer.pop_debug_group()
    buffer.push_debug_group("loss")
    buffer.record("softmax", lambda: [][0])
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="work 'net/loss/softmax'"):
        buffer.wait_until_completed()


def test_encodings_are_what_it_holds_until_it_runs(queue: MTLCommandQueue) -> None:
    ran: list[str] = []
    first, second = (partial(ran.append, name) for name in ("first", "second"))
    buffer = queue.command_buffer()
    assert buffer.encodings == ()
    buffer.record("clamp", first)
    before = buffer.encodings
    buffer.push_debug_group("net")
    buffer.record("softmax", second)
    assert before == (("clamp", first),)
    assert buffer.encodings == (("clamp", first), ("net/softmax", second))
    with buffer.blit_command_encoder() as blit:
        blit.fill_buffer(queue.device.new_buffer(4), range(4), 1)
        assert len(buffer.encodings) == 2
    assert [label for label, _ in buffer.encodings] == ["clamp", "net/softmax", "net/fill_buffer"]
    assert ran == []
    finish(buffer)
    assert ran == ["first", "second"]
    assert buffer.encodings == ()


# --- misuse ----------------------------------------------------------------------------------------------------------

AFTER_COMMIT: dict[str, Callable[[MTLCommandBuffer], object]] = {
    "record": lambda b: b.record("late", lambda: None),
    "commit": lambda b: b.commit(),
    "enqueue": lambda b: b.enqueue(),
    "scheduled handler": lambda b: b.add_scheduled_handler(print),
    "completed handler": lambda b: b.add_completed_handler(print),
    "blit": lambda b: b.blit_command_encoder(),
    "pass on": lambda b: b.commit_and_pass_on(),
}


@pytest.mark.parametrize("action", AFTER_COMMIT)
@pytest.mark.parametrize("completed", [False, True])
def test_nothing_is_allowed_after_commit(queue: MTLCommandQueue, action: str, completed: bool) -> None:
    gate = threading.Event()
    buffer = queue.command_buffer()
    buffer.label = "once"
    buffer.add_scheduled_handler(lambda _: gate.wait(PATIENCE))
    if completed:
        gate.set()
    buffer.commit()
    if completed:
        buffer.wait_until_completed()
    with pytest.raises(MTLCommandBufferError, match=r"MTLCommandBuffer 'once': .*before commit only.*status"):
        AFTER_COMMIT[action](buffer)
    gate.set()
    buffer.wait_until_completed()


@pytest.mark.parametrize("method", ["wait_until_completed", "wait_until_scheduled"])
@pytest.mark.parametrize("enqueued", [False, True])
def test_waiting_before_commit_is_refused(queue: MTLCommandQueue, method: str, enqueued: bool) -> None:
    buffer = queue.command_buffer()
    if enqueued:
        buffer.enqueue()
    with pytest.raises(MTLCommandBufferError, match="needs a committed buffer"):
        getattr(buffer, method)()


def test_wrong_arguments(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    with pytest.raises(MTLCommandBufferError, match="open group"):
        buffer.pop_debug_group()
    with pytest.raises(MPSTypeError, match="string"):
        buffer.push_debug_group(3)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="add_completed_handler"):
        buffer.add_completed_handler("print")  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="work"):
        buffer.record("label", None)  # type: ignore[arg-type]


# --- memory ----------------------------------------------------------------------------------------------------------


class Big:
    pass


def test_a_work_is_dropped_right_after_it_ran(queue: MTLCommandQueue) -> None:
    thing, alive = Big(), list[bool]()
    kept = weakref.ref(thing)
    buffer = queue.command_buffer()

    def user(thing: Big) -> Callable[[], None]:
        return lambda: alive.append(thing is not None)

    buffer.record("user", user(thing))
    del thing
    buffer.record("looker", lambda: alive.append(kept() is not None))
    assert kept() is not None
    finish(buffer)
    assert alive == [True, False]


def test_a_failed_buffer_keeps_neither_works_nor_handlers(queue: MTLCommandQueue) -> None:
    buffer = failing(queue)
    things = [Big(), Big()]
    kept = [weakref.ref(thing) for thing in things]
    buffer.record("skipped", lambda thing=things[0]: None)
    buffer.add_completed_handler(lambda _, thing=things[1]: None)
    things.clear()
    buffer.commit()
    with pytest.raises(MTLExecutionError):
        buffer.wait_until_completed()
    assert [reference() for reference in kept] == [None, None]


def test_a_fault_that_was_told_is_freed_without_the_collector(queue: MTLCommandQueue) -> None:
    gc.disable()
    try:
        buffer = failing(queue)
        buffer.commit()
        with pytest.raises(MTLExecutionError) as caught:
            buffer.wait_until_completed()
        kept = weakref.ref(caught.value)
        del caught
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("fault", [MemoryError("full"), torch.OutOfMemoryError("full")])
def test_a_lack_of_memory_keeps_no_memory(queue: MTLCommandQueue, fault: Exception) -> None:
    """What the failing work held is free for the next try, while the error still tells where it failed."""
    kept: list[weakref.ref[Big]] = []

    def work() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise fault

    buffer = queue.command_buffer()
    buffer.record("work", work)
    buffer.commit()
    with pytest.raises(MTLExecutionError) as caught:
        buffer.wait_until_completed()
    assert kept[0]() is None
    traceback = caught.value.__cause__.__traceback__
    assert traceback is not None
    assert traceback.tb_frame.f_code.co_name == "work"


def test_several_threads_wait_for_one_buffer(queue: MTLCommandQueue) -> None:
    """Each is told of the fault by an exception of its own."""
    gate, told = threading.Event(), list[BaseException]()
    buffer = queue.command_buffer()
    buffer.add_scheduled_handler(lambda _: gate.wait(PATIENCE))
    buffer.add_completed_handler(lambda _: {}["lost"])

    def wait() -> None:
        with pytest.raises(MTLExecutionError, match="KeyError") as caught:
            buffer.wait_until_completed()
        told.append(caught.value)

    buffer.commit()
    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len({id(fault) for fault in told}) == 8


def test_a_completed_buffer_is_freed_without_the_collector(queue: MTLCommandQueue) -> None:
    gc.collect()
    gc.disable()
    try:
        buffer = queue.command_buffer()
        buffer.add_completed_handler(lambda _: None)
        finish(buffer)
        finish(queue.command_buffer())  # The worker has let go of the first one.
        kept = weakref.ref(buffer)
        del buffer
        assert kept() is None
    finally:
        gc.enable()


# --- lifetimes -------------------------------------------------------------------------------------------------------


def test_lifetime_ends_with_commit(queue: MTLCommandQueue) -> None:
    buffer, other = queue.command_buffer(), queue.command_buffer()
    lifetime = buffer.lifetime
    assert lifetime is buffer.lifetime
    assert lifetime is not other.lifetime
    assert not lifetime.ended
    buffer.commit()
    assert lifetime.ended
    buffer.wait_until_completed()


def test_lifetime_calls_back_before_it_ends(queue: MTLCommandQueue) -> None:
    buffer, seen = queue.command_buffer(), list[object]()
    buffer.lifetime.before_end.append(lambda last: seen.append((last, last.lifetime.ended)))
    finish(buffer)
    assert seen == [(buffer, False)]
