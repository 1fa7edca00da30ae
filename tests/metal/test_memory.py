"""Buffers: typed views, adopted tensors, the CPU's side, misuse."""

from __future__ import annotations

import array
import threading
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError
from openmps.metal.device import MTLBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSPurgeableState, MTLCPUCacheMode, MTLResourceOptions, MTLStorageMode, NSRange

PRIVATE = MTLResourceOptions.STORAGE_MODE_PRIVATE
MANAGED = MTLResourceOptions.STORAGE_MODE_MANAGED


def test_a_new_buffer_is_zero_and_allocated_on_first_use(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(length=10)
    assert buffer.length == 10
    assert buffer.device is mtl
    assert buffer.heap is None
    assert buffer.storage_mode is MTLStorageMode.SHARED
    assert buffer.cpu_cache_mode is MTLCPUCacheMode.DEFAULT_CACHE
    assert not buffer.is_allocated
    assert buffer.allocated_size == 0
    assert "not allocated" in repr(buffer)
    tensor = buffer.tensor(torch.uint8)
    assert buffer.is_allocated
    assert buffer.allocated_size == 10
    assert tensor.device == mtl.torch_device
    assert tensor.tolist() == [0] * 10
    buffer.label = "weights"
    assert repr(buffer).startswith("<MTLBuffer 'weights', 10 bytes, SHARED, on ")


def test_views_share_the_memory(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(length=16)
    floats, tail = buffer.tensor(torch.float32), buffer.tensor(torch.int32, 8)
    floats.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert tail.tolist() == [0x40400000, 0x40800000]
    assert buffer.tensor(torch.float32, 4, 2).tolist() == [2.0, 3.0]
    assert buffer.tensor(torch.float32, 16).tolist() == []
    assert buffer.contents().view(np.float32).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_threads_that_use_a_buffer_first_share_its_memory(mtl: MTLDevice) -> None:
    for _ in range(20):
        buffer, start, found = mtl.new_buffer(length=4), threading.Barrier(4), list[int]()

        def use(buffer: MTLBuffer = buffer, start: threading.Barrier = start, found: list[int] = found) -> None:
            start.wait()
            found.append(buffer.tensor(torch.uint8).data_ptr())

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [buffer.tensor(torch.uint8).data_ptr()] * 4


@in_one_test
@pytest.mark.parametrize(
    ("dtype", "offset", "count", "message"),
    [
        (torch.float32, 2, 1, "offset must be a multiple of 4"),
        (torch.float32, -4, 1, "offset"),
        (torch.float32, 1.0, 1, "offset"),
        (torch.float32, True, 1, "offset"),
        (torch.float32, 0, None, "count must say how many"),
        (torch.float32, 12, None, "count must say how many"),
        (torch.float32, 0, -1, "count"),
        (torch.float32, 0, 1.0, "count"),
        (torch.float32, 0, 3, "must stay within 10 bytes"),
        (torch.float32, 12, 0, "must stay within 10 bytes"),
        (torch.uint8, 0, 11, "must stay within 10 bytes"),
    ],
)
def test_a_view_must_fit(mtl: MTLDevice, dtype: torch.dtype, offset: Any, count: Any, message: str) -> None:
    with pytest.raises(MPSArgumentError, match=message):
        mtl.new_buffer(length=10).tensor(dtype, offset, count)


def test_a_view_needs_a_torch_dtype(mtl: MTLDevice) -> None:
    with pytest.raises(MPSTypeError, match=r"dtype must be a torch\.dtype, got 'float32'"):
        mtl.new_buffer(length=8).tensor("float32")  # type: ignore[arg-type]


# --- data ------------------------------------------------------------------------------------------------------------

READ_ONLY = np.arange(6, dtype=np.uint8)
READ_ONLY.flags.writeable = False


@in_one_test
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x01\x02", [1, 2]),
        (bytearray(b"\x03\x04"), [3, 4]),
        (memoryview(b"abcdef")[::2], [97, 99, 101]),
        (array.array("H", [1, 256]), [1, 0, 0, 1]),
        (np.array([[1, 2], [3, 4]], np.uint8).T, [1, 3, 2, 4]),
        (np.float32(1.0), [0, 0, 128, 63]),
        (np.array(1, np.uint16), [1, 0]),
        (READ_ONLY, [0, 1, 2, 3, 4, 5]),
        (torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T, [1, 3, 2, 4]),
        (torch.tensor(1.0, dtype=torch.bfloat16), [128, 63]),
    ],
    ids=["bytes", "bytearray", "strided", "array", "transposed", "scalar", "zero-d", "read-only", "tensor", "bfloat16"],
)
def test_data_of_many_kinds(mtl: MTLDevice, data: Any, expected: list[int]) -> None:
    buffer = mtl.new_buffer(data=data)
    assert buffer.length == len(expected)
    assert buffer.contents().tolist() == expected


def test_data_is_copied(mtl: MTLDevice) -> None:
    numbers = np.array([1, 2, 3], np.uint8)
    tensor = torch.tensor([4, 5, 6], dtype=torch.uint8, device=mtl.torch_device)
    buffers = mtl.new_buffer(data=numbers), mtl.new_buffer(data=tensor)
    numbers[:] = 0
    tensor.zero_()
    assert [buffer.contents().tolist() for buffer in buffers] == [[1, 2, 3], [4, 5, 6]]


def test_a_length_takes_the_first_bytes_of_the_data(mtl: MTLDevice) -> None:
    assert mtl.new_buffer(2, b"abc").contents().tobytes() == b"ab"
    with pytest.raises(MPSArgumentError, match="got 3 bytes"):
        mtl.new_buffer(4, b"abc")


@pytest.mark.parametrize("data", ["text", [1, 2], 7, np.array([object()]), torch.eye(3).to_sparse()])
def test_data_that_is_not_bytes(mtl: MTLDevice, data: Any) -> None:
    with pytest.raises(MPSTypeError, match="MTLBuffer: data must"):
        mtl.new_buffer(data=data)


@pytest.mark.parametrize("data", [b"", np.zeros(0), torch.zeros(0)])
def test_data_must_not_be_empty(mtl: MTLDevice, data: Any) -> None:
    with pytest.raises(MPSArgumentError, match="at least one byte"):
        mtl.new_buffer(data=data)


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (None, MPSTypeError),
        (1.5, MPSTypeError),
        (True, MPSTypeError),
        ("4", MPSTypeError),
        (0, MPSArgumentError),
        (-1, MPSArgumentError),
        (2**60, MPSArgumentError),
    ],
)
def test_wrong_lengths(mtl: MTLDevice, length: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="MTLBuffer: length"):
        mtl.new_buffer(length=length)


def test_memory_that_cannot_be_had_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no")

    buffer = mtl_device("cpu").new_buffer(length=8)
    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(MPSArgumentError, match="MTLBuffer: length must fit the free memory"):
        buffer.contents()


# --- options ---------------------------------------------------------------------------------------------------------


def test_options(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(4, options=MANAGED | MTLResourceOptions.CPU_CACHE_MODE_WRITE_COMBINED)
    assert buffer.storage_mode is MTLStorageMode.MANAGED
    assert buffer.cpu_cache_mode is MTLCPUCacheMode.WRITE_COMBINED
    untracked = mtl.new_buffer(4, options=PRIVATE | MTLResourceOptions.HAZARD_TRACKING_MODE_UNTRACKED)
    assert untracked.storage_mode is MTLStorageMode.PRIVATE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (MTLResourceOptions.STORAGE_MODE_MEMORYLESS, MPSArgumentError),
        (0x70, MPSArgumentError),
        (5, MPSArgumentError),
        ("private", MPSTypeError),
        (True, MPSTypeError),
    ],
)
def test_wrong_options(mtl: MTLDevice, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="MTLBuffer: options"):
        mtl.new_buffer(4, options=options)


def test_private_memory_is_the_devices_alone(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(4, options=PRIVATE)
    for method in (buffer.contents, lambda: buffer.did_modify_range(range(4))):
        with pytest.raises(MPSArgumentError, match="PRIVATE"):
            method()
    with pytest.raises(MPSArgumentError, match="private memory"):
        mtl.new_buffer(data=b"1234", options=PRIVATE)
    assert buffer.tensor(torch.int32).tolist() == [0]


# --- bind ------------------------------------------------------------------------------------------------------------


def test_bind_takes_a_tensor_without_a_copy(mtl: MTLDevice) -> None:
    result = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=mtl.torch_device)
    buffer = mtl.new_buffer(length=16)
    before = buffer.tensor(torch.float32)
    buffer.bind(result)
    view = buffer.tensor(torch.float32)
    assert view.data_ptr() == result.data_ptr()
    result[0, 0] = 9.0
    assert view.tolist() == [9.0, 2.0, 3.0, 4.0]
    assert buffer.contents().view(np.float32).tolist() == [9.0, 2.0, 3.0, 4.0]
    assert before.tolist() == [0.0] * 4


def test_bind_replaces_the_contents_on_the_cpus_side(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(length=4)
    buffer.contents()[:] = 7
    buffer.bind(torch.tensor([1], dtype=torch.int32, device=mtl.torch_device))
    assert buffer.contents().tolist() == [1, 0, 0, 0]


def test_a_bound_tensor_leaves_the_graph_of_its_maker(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(length=4)
    buffer.bind(torch.ones(1, device=mtl.torch_device, requires_grad=True))
    assert not buffer.tensor(torch.float32).requires_grad
    assert buffer.contents().view(np.float32).tolist() == [1.0]


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (lambda device: torch.zeros(3, device=device), MPSArgumentError, "must have 16 bytes, got 12"),
        (lambda device: torch.zeros(8, device=device)[::2], MPSArgumentError, "contiguous"),
        (lambda device: torch.zeros(2, 2, device=device).T, MPSArgumentError, "contiguous"),
        (lambda _: np.zeros(4, np.float32), MPSTypeError, "torch.Tensor"),
        (lambda _: torch.zeros(4, device="meta"), MPSDeviceError, "must lie on the device"),
    ],
)
def test_wrong_tensors_to_bind(mtl: MTLDevice, tensor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mtl.new_buffer(length=16).bind(tensor(mtl.torch_device))


def test_a_view_of_unaligned_memory_is_refused(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(length=4)
    buffer.bind(torch.zeros(5, dtype=torch.uint8, device=mtl.torch_device)[1:])
    with pytest.raises(MPSArgumentError, match="aligned"):
        buffer.tensor(torch.float32)


# --- the CPU's side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [MTLResourceOptions.STORAGE_MODE_SHARED, MANAGED])
def test_what_the_cpu_writes_is_there_for_committed_work(queue: MTLCommandQueue, options: MTLResourceOptions) -> None:
    source, result = (queue.device.new_buffer(8, options=options) for _ in range(2))
    views = source.tensor(torch.float32), result.tensor(torch.float32)
    source.contents().view(np.float32)[0] = 3.0
    source.contents().view(np.float32)[1] = 4.0
    buffer = queue.command_buffer()

    def work() -> None:
        views[1].copy_(views[0]).mul_(2)

    buffer.record("double", work)
    buffer.commit()
    buffer.wait_until_completed()
    assert result.contents().view(np.float32).tolist() == [6.0, 8.0]


def test_did_modify_range(mtl: MTLDevice) -> None:
    buffer = mtl.new_buffer(4, options=MANAGED)
    view = buffer.tensor(torch.uint8)
    buffer.contents()[:] = [1, 2, 3, 4]
    buffer.did_modify_range(range(1, 3))
    assert view[1:3].tolist() == [2, 3]
    buffer.did_modify_range(NSRange(0, 4))
    assert view.tolist() == [1, 2, 3, 4]
    buffer.did_modify_range(range(0))


@pytest.mark.parametrize(
    ("span", "error"),
    [
        (range(5), MPSArgumentError),
        (range(-1, 2), MPSArgumentError),
        (NSRange(3, 2), MPSArgumentError),
        (range(0, 4, 2), MPSTypeError),
        (slice(0, 4), MPSTypeError),
        ((0, 4), MPSTypeError),
    ],
)
def test_wrong_ranges(mtl: MTLDevice, span: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="MTLBuffer: range"):
        mtl.new_buffer(4).did_modify_range(span)


def test_purgeable_state(mtl: MTLDevice) -> None:
    State = MPSPurgeableState
    buffer = mtl.new_buffer(length=4)
    assert buffer.set_purgeable_state(State.VOLATILE) is State.ALLOCATION_DEFERRED
    buffer.contents()[:] = 5
    assert buffer.set_purgeable_state(State.KEEP_CURRENT) is State.NON_VOLATILE
    assert buffer.set_purgeable_state(State.VOLATILE) is State.NON_VOLATILE
    assert buffer.set_purgeable_state(State.NON_VOLATILE) is State.VOLATILE
    assert buffer.contents().tolist() == [5] * 4
    assert buffer.set_purgeable_state(State.EMPTY) is State.NON_VOLATILE
    assert buffer.set_purgeable_state(State.KEEP_CURRENT) is State.EMPTY
    assert not buffer.is_allocated
    assert buffer.contents().tolist() == [0] * 4
    assert buffer.set_purgeable_state(State.KEEP_CURRENT) is State.NON_VOLATILE
    with pytest.raises(MPSArgumentError, match="ALLOCATION_DEFERRED"):
        buffer.set_purgeable_state(State.ALLOCATION_DEFERRED)
    with pytest.raises(MPSTypeError, match="MPSPurgeableState"):
        buffer.set_purgeable_state(2)  # type: ignore[arg-type]


def test_bind_unless_there_is_memory(mtl: MTLDevice) -> None:
    """What somebody has looked at keeps its memory."""
    ones = torch.ones(4, device=mtl.torch_device)
    fresh, looked_at = mtl.new_buffer(length=16), mtl.new_buffer(length=16)
    taken = looked_at.tensor(torch.float32)
    assert fresh.bind_unless_allocated(ones)
    assert fresh.tensor(torch.float32).data_ptr() == ones.data_ptr()
    assert not looked_at.bind_unless_allocated(ones)
    assert not looked_at.tensor(torch.float32).any() and looked_at.tensor(torch.float32).data_ptr() == taken.data_ptr()
    with pytest.raises(MPSArgumentError, match="tensor must have 8 bytes, got 16"):
        mtl.new_buffer(length=8).bind_unless_allocated(ones)
