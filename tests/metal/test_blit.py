"""The blit encoder: copies, fills, and what it holds up while it is open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError, MTLCommandBufferError
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer, MPSPredicate
from openmps.runtime.devices import mtl_device
from openmps.types import MTLResourceOptions, NSRange


def test_copy_and_fill(queue: MTLCommandQueue) -> None:
    source = queue.device.new_buffer(data=np.arange(8, dtype=np.uint8))
    hidden = queue.device.new_buffer(8, options=MTLResourceOptions.STORAGE_MODE_PRIVATE)
    result = queue.device.new_buffer(8)
    buffer = queue.command_buffer()
    with buffer.blit_command_encoder() as blit:
        blit.copy_from_buffer(source, 1, hidden, 3, 4)
        blit.fill_buffer(hidden, range(6, 8), 255)
        blit.copy_from_buffer(hidden, 0, result, 0, 8)
        blit.fill_buffer(result, NSRange(0, 1), 9)
        blit.synchronize_resource(result)
    assert result.memory(torch.uint8).tolist() == [0] * 8
    buffer.commit()
    buffer.wait_until_completed()
    assert result.contents().tolist() == [9, 0, 0, 1, 2, 3, 255, 255]


def test_it_copies_within_one_buffer(queue: MTLCommandQueue) -> None:
    data = queue.device.new_buffer(data=b"abcd....")
    buffer = queue.command_buffer()
    with buffer.blit_command_encoder() as blit:
        blit.copy_from_buffer(data, 0, data, 4, 4)
        with pytest.raises(MPSArgumentError, match="overlap"):
            blit.copy_from_buffer(data, 0, data, 3, 4)
    buffer.commit()
    buffer.wait_until_completed()
    assert data.contents().tobytes() == b"abcdabcd"


def test_an_open_encoder_holds_up_everything_else(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    blit = buffer.blit_command_encoder()
    blit.label = "upload"
    actions: list[Any] = [buffer.commit, buffer.blit_command_encoder, buffer.commit_and_pass_on]
    for action in (*actions, lambda: buffer.record("kernel", lambda: None)):
        with pytest.raises(MTLCommandBufferError, match=r"MTLBlitCommandEncoder 'upload'.*end_encoding"):
            action()
    buffer.add_completed_handler(lambda _: None)
    blit.end_encoding()
    for method in (blit.end_encoding, lambda: blit.fill_buffer(queue.device.new_buffer(4), range(4), 0)):
        with pytest.raises(MTLCommandBufferError, match="not ended"):
            method()
    buffer.record("kernel", lambda: None)
    buffer.commit()
    buffer.wait_until_completed()


def test_a_fault_in_the_block_ends_the_encoder(queue: MTLCommandQueue) -> None:
    buffer = queue.command_buffer()
    with pytest.raises(ZeroDivisionError), buffer.blit_command_encoder():
        raise ZeroDivisionError
    buffer.commit()
    buffer.wait_until_completed()


def test_a_predicate_is_for_kernels_not_for_copies(queue: MTLCommandQueue) -> None:
    data = queue.device.new_buffer(4)
    buffer = MPSCommandBuffer(queue)
    buffer.predicate = MPSPredicate(device=queue.device)
    with buffer.blit_command_encoder() as blit:
        blit.fill_buffer(data, range(4), 1)
    buffer.commit()
    buffer.wait_until_completed()
    assert data.contents().tolist() == [1] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5, 0, 4), MPSArgumentError, "source must stay within 8 bytes"),
        ((0, 5, 4), MPSArgumentError, "destination must stay within 8 bytes"),
        ((0, 0, 9), MPSArgumentError, "source must stay within 8 bytes"),
        ((-1, 0, 4), ValueError, "location"),
        ((0, 0, -1), ValueError, "length"),
        ((0, 0.5, 1), (ValueError, TypeError), "location"),
    ],
)
def test_wrong_ranges(queue: MTLCommandQueue, arguments: Any, error: Any, message: str) -> None:
    source, destination = queue.device.new_buffer(8), queue.device.new_buffer(8)
    from_byte, to_byte, size = arguments
    with queue.command_buffer().blit_command_encoder() as blit, pytest.raises(error, match=message):
        blit.copy_from_buffer(source, from_byte, destination, to_byte, size)


def test_wrong_arguments(mtl: MTLDevice, queue: MTLCommandQueue) -> None:
    data = mtl.new_buffer(4)
    with queue.command_buffer().blit_command_encoder() as blit:
        for value in (-1, 256, 1.0, True):
            with pytest.raises(MPSArgumentError, match="byte, 0 to 255"):
                blit.fill_buffer(data, range(4), value)  # type: ignore[arg-type]
        with pytest.raises(MPSTypeError, match="MTLBuffer"):
            blit.fill_buffer(torch.zeros(4), range(4), 0)  # type: ignore[arg-type]
        with pytest.raises(MPSTypeError, match="MTLResource"):
            blit.synchronize_resource("data")  # type: ignore[arg-type]
        with pytest.raises(MPSArgumentError, match="PRIVATE"):
            blit.synchronize_resource(mtl.new_buffer(4, options=MTLResourceOptions.STORAGE_MODE_PRIVATE))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_buffers_of_another_device_are_refused() -> None:
    here, there = mtl_device("cuda").new_buffer(4), mtl_device("cpu").new_buffer(4)
    with mtl_device("cuda").new_command_queue().command_buffer().blit_command_encoder() as blit:
        with pytest.raises(MPSDeviceError, match="source"):
            blit.copy_from_buffer(there, 0, here, 0, 4)
        with pytest.raises(MPSDeviceError, match="resource"):
            blit.synchronize_resource(there)
