"""MPSCommandBuffer: continuing, predicates, heaps."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSTypeError,
    MTLCommandBufferError,
    MTLExecutionError,
)
from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice, MTLHeap
from openmps.metal.heap import MTLHeapDescriptor
from openmps.metal.mps_command_buffer import MPSCommandBuffer, MPSPredicate
from openmps.runtime.devices import mtl_device
from openmps.types import MTLCommandBufferStatus as Status
from openmps.types import MTLStorageMode


def finish(buffer: CommandBuffer) -> None:
    buffer.commit()
    buffer.wait_until_completed()


def test_it_is_a_command_buffer(queue: MTLCommandQueue) -> None:
    seen: list[object] = []
    buffer = MPSCommandBuffer(queue)
    assert isinstance(buffer, CommandBuffer)
    assert buffer.device is queue.device
    assert buffer.command_queue is queue
    assert buffer.command_buffer is buffer.root_command_buffer
    assert buffer.retained_references
    buffer.label = "step"
    assert buffer.root_command_buffer.label == "step"
    assert buffer.name == "MPSCommandBuffer 'step'"
    buffer.enqueue()
    assert buffer.status is Status.ENQUEUED
    buffer.add_scheduled_handler(lambda b: seen.append(b))
    buffer.add_completed_handler(lambda b: seen.append(b))
    buffer.record("work", lambda: seen.append("work"))
    buffer.commit()
    buffer.wait_until_scheduled()
    buffer.wait_until_completed()
    assert buffer.status is Status.COMPLETED
    assert buffer.gpu_end_time >= buffer.gpu_start_time > 0
    assert sorted(seen, key=str) == sorted([buffer.root_command_buffer, "work", buffer.root_command_buffer], key=str)


def test_it_goes_on_with_a_given_buffer(queue: MTLCommandQueue) -> None:
    order: list[str] = []
    inner = queue.command_buffer()
    inner.record("inner", lambda: order.append("inner"))
    buffer = MPSCommandBuffer(command_buffer=inner)
    assert buffer.command_buffer is inner
    assert buffer.root_command_buffer is inner
    assert buffer.lifetime is inner.lifetime
    buffer.record("outer", lambda: order.append("outer"))
    finish(buffer)
    assert order == ["inner", "outer"]
    assert inner.status is Status.COMPLETED


def test_encodings_are_those_of_the_present_metal_command_buffer(queue: MTLCommandQueue) -> None:
    buffer = MPSCommandBuffer(queue)
    buffer.record("one", lambda: None)
    assert buffer.encodings == buffer.root_command_buffer.encodings
    assert [label for label, _ in buffer.encodings] == ["one"]
    buffer.commit_and_continue()
    assert buffer.encodings == ()
    buffer.record("two", lambda: None)
    assert [label for label, _ in buffer.encodings] == ["two"]
    finish(buffer)


def test_commit_and_continue(queue: MTLCommandQueue) -> None:
    events: list[str] = []
    buffer = MPSCommandBuffer(queue)
    buffer.label = "step"
    buffer.push_debug_group("net")
    first, lifetime = buffer.root_command_buffer, buffer.lifetime
    buffer.record("one", lambda: events.append("one"))
    buffer.add_completed_handler(lambda b: events.append("old" if b is first else "?"))
    buffer.commit_and_continue()
    first.wait_until_completed()
    assert events == ["one", "old"]

    second = buffer.root_command_buffer
    assert second is not first
    assert buffer.command_buffer is first
    assert buffer.label == "step"
    assert buffer.lifetime is lifetime
    assert first.lifetime is lifetime
    assert not lifetime.ended
    assert buffer.status is Status.NOT_ENQUEUED
    buffer.record("two", lambda: events.append("two"))
    buffer.add_completed_handler(lambda b: events.append("new" if b is second else "?"))
    buffer.pop_debug_group()
    finish(buffer)
    assert lifetime.ended
    assert events == ["one", "old", "two", "new"]
    with pytest.raises(MTLCommandBufferError, match="MPSCommandBuffer 'step': commit_and_continue"):
        buffer.commit_and_continue()


def test_a_fault_of_an_earlier_part_is_not_lost(queue: MTLCommandQueue) -> None:
    buffer = MPSCommandBuffer(queue)
    buffer.record("broken", lambda: [][0])
    for _ in range(3):
        buffer.commit_and_continue()
    buffer.commit()
    with pytest.raises(MTLExecutionError, match="broken"):
        buffer.wait_until_completed()
    assert buffer.status is Status.ERROR
    assert buffer.root_command_buffer.error is None
    assert isinstance(buffer.error.__cause__, IndexError)


def test_waiting_after_continuing_needs_the_last_commit(queue: MTLCommandQueue) -> None:
    buffer = MPSCommandBuffer(queue)
    buffer.commit_and_continue()
    with pytest.raises(MTLCommandBufferError, match="committed"):
        buffer.wait_until_completed()
    finish(buffer)


def test_nested_wrappers_go_on_together(queue: MTLCommandQueue) -> None:
    order: list[str] = []
    inner = MPSCommandBuffer(queue)
    outer = MPSCommandBuffer(command_buffer=inner)
    assert outer.command_buffer is inner
    outer.record("a", lambda: order.append("a"))
    outer.commit_and_continue()
    assert outer.root_command_buffer is inner.root_command_buffer
    assert outer.lifetime is inner.lifetime
    inner.record("b", lambda: order.append("b"))
    outer.record("c", lambda: order.append("c"))
    inner.commit_and_continue()
    outer.record("d", lambda: order.append("d"))
    finish(outer)
    assert inner.status is Status.COMPLETED
    assert order == ["a", "b", "c", "d"]


def test_an_open_encoder_holds_the_wrapper_up(queue: MTLCommandQueue) -> None:
    buffer = MPSCommandBuffer(queue)
    encoder = buffer.blit_command_encoder()
    for action in (buffer.commit, buffer.commit_and_continue, lambda: buffer.record("late", lambda: None)):
        with pytest.raises(MTLCommandBufferError, match="end_encoding"):
            action()
    encoder.end_encoding()
    finish(buffer)


def test_wrong_constructors(queue: MTLCommandQueue) -> None:
    done = queue.command_buffer()
    finish(done)
    with pytest.raises(MPSTypeError, match="must be given, got neither"):
        MPSCommandBuffer()
    with pytest.raises(MPSTypeError, match="not both"):
        MPSCommandBuffer(queue, queue.command_buffer())
    with pytest.raises(MPSTypeError, match="command_buffer=…"):
        MPSCommandBuffer(queue.command_buffer())  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="must be a command buffer"):
        MPSCommandBuffer(command_buffer=queue)  # type: ignore[arg-type]
    with pytest.raises(MTLCommandBufferError, match="not be committed"):
        MPSCommandBuffer(command_buffer=done)


# --- predicates ------------------------------------------------------------------------------------------------------


def predicate(device: MTLDevice, value: int) -> MPSPredicate:
    return MPSPredicate(device.new_buffer(data=np.array([7, value], np.uint32)), 4)


def test_the_record_shows_predicates_and_the_work_under_them(queue: MTLCommandQueue) -> None:
    buffer = MPSCommandBuffer(queue)
    buffer.predicate, work = predicate(queue.device, 1), list
    buffer.record("one", work)
    ((label, under),) = buffer.encodings
    assert (label, under.predicate, under.work) == ("one", buffer.predicate, work)
    finish(buffer)


@pytest.mark.parametrize("value", [0, 1, 0x80000000])
def test_a_predicate_decides_at_execution(queue: MTLCommandQueue, value: int) -> None:
    seen: list[str] = []
    buffer = MPSCommandBuffer(queue)
    condition = predicate(queue.device, 1 if value == 0 else 0)
    buffer.predicate = condition
    assert buffer.predicate is condition
    buffer.record("conditional", lambda: seen.append("conditional"))
    buffer.predicate = None
    buffer.record("always", lambda: seen.append("always"))
    condition.predicate_buffer.contents().view(np.uint32)[1] = value
    finish(buffer)
    assert seen == (["conditional"] if value else []) + ["always"]


@pytest.mark.parametrize(("outer_value", "inner_value"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_nested_predicates_must_all_hold(queue: MTLCommandQueue, outer_value: int, inner_value: int) -> None:
    seen: list[str] = []
    inner = MPSCommandBuffer(queue)
    outer = MPSCommandBuffer(command_buffer=inner)
    inner.predicate, outer.predicate = predicate(queue.device, inner_value), predicate(queue.device, outer_value)
    outer.record("both", lambda: seen.append("both"))
    inner.record("inner", lambda: seen.append("inner"))
    outer.commit_and_continue()
    outer.record("both later", lambda: seen.append("both later"))
    finish(outer)
    expected = [
        ("both", outer_value and inner_value),
        ("inner", inner_value),
        ("both later", outer_value and inner_value),
    ]
    assert seen == [name for name, holds in expected if holds]


def test_earlier_work_may_set_a_predicate(queue: MTLCommandQueue) -> None:
    seen: list[str] = []
    condition = MPSPredicate(device=queue.device)
    assert condition.predicate_offset == 0
    assert condition.predicate_buffer.length == 4
    assert not condition.holds()
    buffer = MPSCommandBuffer(queue)

    def set_it() -> None:
        condition.predicate_buffer.tensor(torch.int32).fill_(1)

    buffer.record("set", set_it)
    buffer.predicate = condition
    buffer.record("conditional", lambda: seen.append("conditional"))
    finish(buffer)
    assert seen == ["conditional"]


def test_wrong_predicates(mtl: MTLDevice, queue: MTLCommandQueue) -> None:
    data = mtl.new_buffer(length=8)
    for offset in (2, -4, 0.5, True):
        with pytest.raises(MPSArgumentError, match="multiple of 4"):
            MPSPredicate(data, offset)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="4 bytes"):
        MPSPredicate(data, 8)
    with pytest.raises(MPSTypeError, match="must be given, got neither"):
        MPSPredicate()
    with pytest.raises(MPSTypeError, match="MTLBuffer"):
        MPSPredicate(b"1234")  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="MTLDevice"):
        MPSPredicate(device="cpu")  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="MPSPredicate or None"):
        MPSCommandBuffer(queue).predicate = data  # type: ignore[assignment]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_predicate_belongs_to_the_device() -> None:
    buffer = MPSCommandBuffer(mtl_device("cuda").new_command_queue())
    with pytest.raises(MPSDeviceError, match="predicate"):
        buffer.predicate = MPSPredicate(device=mtl_device("cpu"))


# --- heaps -----------------------------------------------------------------------------------------------------------


class Provider:
    def __init__(self, device: MTLDevice, supply: Callable[[MTLHeapDescriptor], MTLHeap | None] | None = None) -> None:
        self.supply = supply or device.new_heap
        self.sizes: list[int] = []
        self.heaps: list[MTLHeap] = []
        self.retired: list[tuple[MTLHeap, float]] = []

    def new_heap(self, descriptor: MTLHeapDescriptor) -> MTLHeap | None:
        self.sizes.append(descriptor.size)
        heap = self.supply(descriptor)
        if heap is not None:
            self.heaps.append(heap)
        return heap

    def retire_heap(self, heap: MTLHeap, cache_delay: float) -> None:
        self.retired.append((heap, cache_delay))


def test_temporary_buffers_come_from_the_providers_heaps(queue: MTLCommandQueue) -> None:
    provider, buffer = Provider(queue.device), MPSCommandBuffer(queue)
    buffer.heap_provider = provider
    assert buffer.heap_provider is provider
    buffer.prefetch_heap(1024)
    small = [buffer.temporary_buffer(256) for _ in range(4)]
    assert provider.sizes == [1024]
    assert all(item.heap is provider.heaps[0] and item.storage_mode is MTLStorageMode.PRIVATE for item in small)
    buffer.commit_and_continue()
    large = buffer.temporary_buffer(4000)
    assert provider.sizes == [1024, 4000]
    assert large.heap is provider.heaps[1]
    del small
    gc.collect()
    assert buffer.temporary_buffer(100).heap is provider.heaps[0]
    assert provider.retired == []
    finish(buffer)
    assert provider.retired == [(heap, 5.0) for heap in provider.heaps]


def test_heaps_retire_with_the_root(queue: MTLCommandQueue) -> None:
    root, provider = queue.command_buffer(), Provider(queue.device)
    buffer = MPSCommandBuffer(command_buffer=root)
    buffer.heap_provider = provider
    buffer.temporary_buffer(16)
    finish(root)
    assert len(provider.retired) == 1


def test_without_a_heap_the_engine_allocates(queue: MTLCommandQueue) -> None:
    outer = MPSCommandBuffer(command_buffer=MPSCommandBuffer(queue))
    for provider in (None, Provider(queue.device, lambda _: None)):
        outer.heap_provider = provider
        outer.prefetch_heap(64)
        buffer = outer.temporary_buffer(64)
        assert buffer.heap is None
        assert buffer.length == 64
        assert buffer.storage_mode is MTLStorageMode.PRIVATE


def test_wrong_heaps(queue: MTLCommandQueue) -> None:
    device, buffer = queue.device, MPSCommandBuffer(queue)
    with pytest.raises(MPSTypeError, match="new_heap"):
        buffer.heap_provider = object()  # type: ignore[assignment]
    with pytest.raises(MPSArgumentError, match="workload_size"):
        buffer.prefetch_heap(0)
    with pytest.raises(MPSTypeError, match="length"):
        buffer.temporary_buffer("1")  # type: ignore[arg-type]
    buffer.heap_provider = Provider(device, lambda _: "heap")  # type: ignore[arg-type,return-value]
    with pytest.raises(MPSTypeError, match="MTLHeap or None"):
        buffer.temporary_buffer(4)
    buffer.heap_provider = Provider(device, lambda d: device.new_heap(MTLHeapDescriptor(d.size, MTLStorageMode.SHARED)))
    with pytest.raises(MPSDeviceError, match="private heap"):
        buffer.temporary_buffer(4)
