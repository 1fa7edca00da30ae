"""Times of command buffers, and queues that do without them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from openmps.errors import MPSTypeError, MTLCommandBufferError
from openmps.metal import stream, stream_timer
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.metal.stream_timer import StreamOrder
from openmps.types import MTLCommandBufferStatus as Status

TIMES = ("gpu_start_time", "gpu_end_time")


def run(queue: MTLCommandQueue) -> MTLCommandBuffer:
    buffer, value = queue.command_buffer(), torch.ones(1000, device=queue.device.torch_device)
    buffer.label = "step 3"

    def work() -> None:
        value.cumsum_(0)

    buffer.record("work", work)
    buffer.commit()
    buffer.wait_until_completed()
    return buffer


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_queue_that_does_not_measure_refuses_to_tell(queue: MTLCommandQueue, name: str, is_wrapped: bool) -> None:
    assert queue.measures_times
    queue.measures_times = False
    buffer = run(queue)
    assert buffer.status is Status.COMPLETED
    asked = MPSCommandBuffer(command_buffer=queue.command_buffer()) if is_wrapped else buffer
    with pytest.raises(MTLCommandBufferError) as raised:
        getattr(asked, name)
    fault = raised.value
    assert fault.who == ("MPSCommandBuffer" if is_wrapped else "MTLCommandBuffer 'step 3'")
    assert (fault.argument, fault.rule) == (name, "must be measured")
    assert fault.remedy == "Set measures_times of the queue to True before it makes the buffer"


def test_buffers_are_measured_as_the_queue_said_when_it_made_them(queue: MTLCommandQueue) -> None:
    before = queue.command_buffer()
    queue.measures_times = False
    between = queue.command_buffer()
    queue.measures_times = True
    after = queue.command_buffer()
    for buffer in (before, between, after):
        buffer.commit()
    after.wait_until_completed()
    before.wait_until_completed()
    assert 0 < before.gpu_start_time <= before.gpu_end_time <= after.gpu_end_time
    with pytest.raises(MTLCommandBufferError):
        assert between.gpu_start_time


def test_only_truth_values_say_so(queue: MTLCommandQueue) -> None:
    wrong: Any = "no"
    with pytest.raises(MPSTypeError, match="measures_times"):
        queue.measures_times = wrong
    assert queue.measures_times


def test_events_are_asked_without_functions_of_python() -> None:
    """`torch.cuda` puts one around each method."""
    assert stream.Event is vars(torch._C)["_CudaEventBase"]
    assert issubclass(torch.cuda.Event, stream.Event)


class Event:
    """An event that notes what is done with it."""

    made: list[Event]

    def __init__(self, *, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing, self.blocking = enable_timing, blocking
        self.records = 0
        self.made.append(self)

    def record(self, stream: object) -> None:
        self.records += 1

    def query(self) -> bool:
        return True


class Stream:
    cuda_stream = 0


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> StreamOrder:
    """The order of a device that is none."""
    monkeypatch.setattr(Event, "made", [], raising=False)
    monkeypatch.setattr(stream_timer, "Event", Event)
    current = Stream()
    monkeypatch.setattr(stream_timer, "current_stream", lambda device: current)
    monkeypatch.setattr(stream_timer, "is_capturing", lambda: False)
    return StreamOrder(torch.device("cpu"))


@pytest.mark.parametrize(("measures", "events"), [(True, [(True, False), (True, True)]), (False, [(False, True)])])
def test_a_record_without_times_takes_one_event_and_gives_it_back(
    order: StreamOrder, measures: bool, events: list[tuple[bool, bool]]
) -> None:
    order.measures = measures
    for turn in (1, 2):
        timer: Any = order.timer()
        timer.begin()
        timer.end()
        assert timer.is_over()
        assert [(each.enable_timing, each.blocking) for each in Event.made] == events
        assert [each.records for each in Event.made] == [turn] * len(events)
        assert order.tail is not None
        assert order.tail[1] is Event.made[-1]
        del timer
        gc.collect()
