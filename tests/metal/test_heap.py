"""Heaps: sizes, gaps, buffers that give their bytes back."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLCommandQueue, MTLDevice, MTLHeap
from openmps.metal.heap import ALIGNMENT, MTLHeapDescriptor
from openmps.types import MPSPurgeableState, MTLCPUCacheMode, MTLResourceOptions, MTLStorageMode


@pytest.fixture
def heap(mtl: MTLDevice) -> MTLHeap:
    return mtl.new_heap(MTLHeapDescriptor(size=4 * ALIGNMENT))


def test_a_new_heap(mtl: MTLDevice) -> None:
    descriptor = MTLHeapDescriptor(size=1000)
    assert descriptor.storage_mode is MTLStorageMode.PRIVATE
    heap = mtl.new_heap(descriptor)
    descriptor.size = 5
    assert heap.device is mtl
    assert heap.size == heap.current_allocated_size == heap.max_available_size(1) == 1000
    assert heap.used_size == 0
    assert heap.storage_mode is MTLStorageMode.PRIVATE
    assert heap.cpu_cache_mode is MTLCPUCacheMode.DEFAULT_CACHE
    assert descriptor.copy() == descriptor
    assert descriptor.copy() is not descriptor
    heap.label = "arena"
    assert repr(heap) == "<MTLHeap 'arena', 0 of 1000 bytes used, PRIVATE>"


def test_buffers_do_not_overlap(heap: MTLHeap) -> None:
    buffers = [heap.new_buffer(ALIGNMENT) for _ in range(4)]
    assert heap.new_buffer(1) is None
    assert heap.max_available_size(1) == 0
    for value, buffer in enumerate(buffers, start=1):
        assert buffer is not None
        assert buffer.heap is heap
        assert buffer.is_allocated
        assert buffer.storage_mode is MTLStorageMode.PRIVATE
        buffer.tensor(torch.uint8).fill_(value)
    assert [set(buffer.tensor(torch.uint8).tolist()) for buffer in buffers if buffer] == [{1}, {2}, {3}, {4}]


def test_the_bytes_come_back_and_are_zero_again(heap: MTLHeap) -> None:
    first, second = heap.new_buffer(300), heap.new_buffer(500)
    assert first is not None
    assert second is not None
    assert heap.used_size == 4 * ALIGNMENT
    first.tensor(torch.uint8).fill_(1)
    del first
    assert heap.used_size == 2 * ALIGNMENT
    again = heap.new_buffer(2 * ALIGNMENT)
    assert again is not None
    assert again.tensor(torch.uint8).sum().item() == 0
    del again, second
    assert heap.used_size == 0
    assert heap.max_available_size(1) == heap.size


def test_a_view_keeps_the_bytes(heap: MTLHeap) -> None:
    buffer = heap.new_buffer(heap.size)
    assert buffer is not None
    view = buffer.tensor(torch.float32)[3:7]
    del buffer
    gc.collect()
    assert heap.new_buffer(1) is None
    del view
    assert heap.new_buffer(heap.size) is not None


def test_an_array_keeps_the_bytes(mtl: MTLDevice) -> None:
    heap = mtl.new_heap(MTLHeapDescriptor(64, MTLStorageMode.SHARED))
    buffer = heap.new_buffer(64)
    assert buffer is not None
    array = buffer.contents().view(np.int16)
    array[:] = 7
    assert buffer.tensor(torch.int16).tolist() == [7] * 32
    del buffer
    gc.collect()
    assert (heap.new_buffer(64) is None) == (not mtl.is_cuda)
    assert array.tolist() == [7] * 32


def test_recorded_work_keeps_the_bytes(queue: MTLCommandQueue) -> None:
    heap, gate = queue.device.new_heap(MTLHeapDescriptor(64)), threading.Event()
    held, buffer = queue.command_buffer(), queue.command_buffer()
    held.add_scheduled_handler(lambda _: gate.wait(60))
    temporary = heap.new_buffer(64)
    assert temporary is not None
    view = temporary.tensor(torch.uint8)
    buffer.record("fill", partial(view.fill_, 1))
    del temporary, view
    held.commit()
    assert heap.new_buffer(64) is None
    buffer.commit()
    gate.set()
    buffer.wait_until_completed()
    assert heap.new_buffer(64) is not None


def test_a_heap_outlives_its_name(mtl: MTLDevice) -> None:
    buffer = mtl.new_heap(MTLHeapDescriptor(16)).new_buffer(16)
    assert buffer is not None
    gc.collect()
    assert buffer.heap is not None
    view = buffer.tensor(torch.uint8).fill_(3)
    del buffer
    gc.collect()
    assert view.tolist() == [3] * 16


def test_the_last_bytes_count(mtl: MTLDevice) -> None:
    heap = mtl.new_heap(MTLHeapDescriptor(ALIGNMENT + 10))
    first = heap.new_buffer(ALIGNMENT)
    assert heap.max_available_size(1) == heap.max_available_size(ALIGNMENT) == 10
    assert heap.max_available_size(2 * ALIGNMENT) == 0
    last = heap.new_buffer(10)
    assert last is not None
    del first, last
    assert heap.max_available_size(1) == ALIGNMENT + 10


@pytest.mark.parametrize("seed", range(3))
def test_gaps_are_merged_whatever_the_order(mtl: MTLDevice, seed: int) -> None:
    random = np.random.default_rng(seed)
    heap = mtl.new_heap(MTLHeapDescriptor(64 * ALIGNMENT))
    alive: list[Any] = []
    for _ in range(300):
        buffer = heap.new_buffer(int(random.integers(1, 5 * ALIGNMENT)))
        if buffer is not None:
            alive.append(buffer)
        if buffer is None or random.random() < 0.4:
            alive.pop(int(random.integers(len(alive))))
        del buffer
        assert heap.used_size == sum(-(-item.length // ALIGNMENT) * ALIGNMENT for item in alive)
    alive.clear()
    assert heap.max_available_size(1) == heap.size


def test_options_must_agree(mtl: MTLDevice, heap: MTLHeap) -> None:
    assert heap.new_buffer(4, MTLResourceOptions.STORAGE_MODE_PRIVATE) is not None
    for options in (MTLResourceOptions.STORAGE_MODE_SHARED, MTLResourceOptions(0x21)):
        with pytest.raises(MPSArgumentError, match="must agree"):
            heap.new_buffer(4, options)


def test_memory_of_a_heap_is_not_replaced(heap: MTLHeap) -> None:
    buffer = heap.new_buffer(4)
    assert buffer is not None
    with pytest.raises(MPSArgumentError, match="heap"):
        buffer.bind(torch.zeros(1, device=heap.device.torch_device))
    with pytest.raises(MPSArgumentError, match="heap"):
        buffer.set_purgeable_state(MPSPurgeableState.EMPTY)


@pytest.mark.parametrize("size", [0, -1, 2**60])
def test_wrong_sizes(mtl: MTLDevice, heap: MTLHeap, size: int) -> None:
    with pytest.raises(MPSArgumentError, match=r"MTLHeap: descriptor.size"):
        mtl.new_heap(MTLHeapDescriptor(size=size))
    with pytest.raises(MPSArgumentError, match="MTLHeap: length"):
        heap.new_buffer(size)


def test_wrong_descriptors(mtl: MTLDevice, heap: MTLHeap) -> None:
    for mode in (MTLStorageMode.MANAGED, MTLStorageMode.MEMORYLESS):
        with pytest.raises(MPSArgumentError, match=f"SHARED or PRIVATE, got {mode.name}"):
            mtl.new_heap(MTLHeapDescriptor(4, mode))
    with pytest.raises(MPSArgumentError, match="^MTLHeapDescriptor: storage_mode must be one of SHARED, .*, got 7"):
        MTLHeapDescriptor(4, 7)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="MTLHeapDescriptor"):
        mtl.new_heap(1024)  # type: ignore[arg-type]
    for alignment in (0, 3, -2, 1.0, True):
        with pytest.raises(MPSArgumentError, match="power of two"):
            heap.max_available_size(alignment)  # type: ignore[arg-type]
