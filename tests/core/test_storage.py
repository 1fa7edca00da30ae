"""What images are made of: formats, blocks, what happens when threads or memory get in the way."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from openmps.core.image import storage
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.pixels import Pixels
from openmps.core.image.storage import Block, Extent, Shape, Stack, Storage, Target
from openmps.core.state.state import Saved
from openmps.errors import MPSMemoryError
from openmps.kernels.loss import MPSCNNLossLabels
from openmps.kernels.loss.labels import loss_writer
from openmps.metal.device import MTLDevice
from openmps.ops.elements import DTYPES, decode, encode
from openmps.runtime.binding import Numbers
from openmps.runtime.devices import mtl_device
from openmps.runtime.host import as_elements, layout_of
from openmps.types import (
    MPSImageFeatureChannelFormat,
    MTLCommandBufferErrorCode,
)

Format = MPSImageFeatureChannelFormat
FORMATS = [Format.UNORM8, Format.UNORM16, Format.FLOAT16, Format.FLOAT32]
FLOAT32 = Format.FLOAT32
CPU = mtl_device("cpu")


def descriptor(width: int = 5, height: int = 4, channels: int = 3, images: int = 1) -> MPSImageDescriptor:
    return MPSImageDescriptor(FLOAT32, width, height, channels, images)


# --- formats ---------------------------------------------------------------------------------------------------------


def test_unorm_numbers_are_exact_and_come_back(device: torch.device) -> None:
    for channel_format, count in ((Format.UNORM8, 256), (Format.UNORM16, 65536)):
        dtype = DTYPES[channel_format]
        stored = torch.arange(count, dtype=torch.int32, device=device).to(dtype)
        numbers = decode(stored, channel_format)
        expected = (np.arange(count, dtype=np.float64) / (count - 1)).astype(np.float32)
        np.testing.assert_array_equal(numbers.cpu().numpy(), expected)
        assert torch.equal(encode(numbers, channel_format).to(torch.int32), stored.to(torch.int32))


@pytest.mark.parametrize(("channel_format", "top"), [(Format.UNORM8, 255), (Format.UNORM16, 65535)])
def test_unorm_stores_round_to_even_clamp_and_have_no_nan(
    device: torch.device, channel_format: Format, top: int
) -> None:
    halves = ((np.arange(top) + 0.5) / top).astype(np.float32)
    given = np.array([-np.inf, -1.0, -0.0, 0.0, 1.0, 1.5, np.inf, np.nan, *halves], np.float32)
    stored = encode(torch.from_numpy(given).to(device), channel_format).to(torch.int64).cpu().numpy()
    assert stored[:8].tolist() == [0, 0, 0, 0, top, top, top, 0]
    scaled = halves * np.float32(top)
    ties = scaled % 1 == 0.5
    assert ties.any()
    np.testing.assert_array_equal(stored[8:][ties] % 2, 0)
    assert np.abs(stored[8:] - scaled).max() <= 0.5


def test_half_numbers_reach_all_of_unorm16() -> None:
    assert encode(torch.tensor([1.0, 0.5], dtype=torch.float16), Format.UNORM16).tolist() == [65535, 32768]


def test_half_stores_round_once() -> None:
    given = torch.tensor([1 + 2**-11, 1 + 2**-11 + 2**-20, 65519.0, 65520.0, -1e6, 2**-25 * 1.01, np.nan])
    stored = encode(given, Format.FLOAT16)
    assert stored.dtype is torch.float16
    expected = np.array([1, 1 + 2**-10, 65504, np.inf, -np.inf, 2**-24, np.nan], np.float16)
    np.testing.assert_array_equal(stored.numpy(), expected)


@pytest.mark.parametrize("channel_format", FORMATS)
def test_numpy_gives_the_numbers(mtl: MTLDevice, rng: np.random.Generator, channel_format: Format) -> None:
    numbers = rng.random((2, 3, 4, 5)).astype(np.float32)
    image = MPSImage.from_numpy(mtl, numbers, channel_format)
    steps = {Format.UNORM8: 255, Format.UNORM16: 65535}.get(channel_format)
    if steps:
        expected = np.round(numbers * np.float32(steps)).astype(np.float64) / steps
    else:
        expected = numbers.astype(np.float16 if channel_format is Format.FLOAT16 else np.float32)
    read = image.numpy()
    assert (read.dtype, read.shape, read.flags.c_contiguous) == (np.float32, (2, 3, 4, 5), True)
    np.testing.assert_array_equal(read, expected.astype(np.float32))


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_memory_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    image = MPSImage(CPU, descriptor())

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise fault

    monkeypatch.setattr(storage.torch, "empty", refuse)
    with pytest.raises(MPSMemoryError, match=r"must fit the free memory of cpu, got 240 bytes for 5x4x3") as caught:
        image.tensor()
    assert isinstance(caught.value, MemoryError)
    assert caught.value.__cause__ is fault


def test_running_out_of_memory_is_told_by_the_command_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    image = MPSImage(CPU, descriptor())

    def refuse(_: Block) -> torch.Tensor:
        raise MPSMemoryError("MPSImage", "image", "must fit")

    monkeypatch.setattr(Block, "_begun", refuse)
    command_buffer = CPU.new_command_queue().command_buffer()
    command_buffer.record("Kernel", lambda: image.stack(0, 1).values())
    command_buffer.commit()
    with pytest.raises(Exception, match="must fit"):
        command_buffer.wait_until_completed()
    assert command_buffer.error_code is MTLCommandBufferErrorCode.OUT_OF_MEMORY


def test_other_faults_are_not_called_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    monkeypatch.setattr(storage.torch, "empty", refuse)
    with pytest.raises(RuntimeError, match="a bug"):
        MPSImage(CPU, descriptor()).tensor()


def test_threads_that_use_an_image_first_get_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, gate = Block._begun, threading.Barrier(4)

    def slowly(block: Block) -> torch.Tensor:
        made = zeros(block)
        threading.Event().wait(0.02)
        return made

    monkeypatch.setattr(Block, "_begun", slowly)
    block, seen = Block(torch.device("cpu"), FLOAT32, Extent(2, 2, 1, 1)), []

    def use() -> None:
        gate.wait()
        seen.append(block.tensor().data_ptr())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(seen), len(set(seen))) == (4, 1)


def test_results_reach_those_who_hold_the_memory_already() -> None:
    block = Block(torch.device("cpu"), FLOAT32, Extent(2, 2, 1, 1))
    held = block.tensor()
    block.adopt(torch.ones(1, 1, 2, 2))
    assert (held.sum(), block.tensor().data_ptr()) == (4, held.data_ptr())


def _parts(*blocks: Block) -> Stack:
    parts = tuple([Storage.of(block) for block in blocks])
    return Stack(parts, Shape(Extent(2, 2, 1, 3 * len(blocks)), Format.FLOAT32))


def _held() -> Block:
    """A block with an array as it came."""
    batch = MPSImageBatch.from_numpy(mtl_device("cpu"), np.ones((3, 2, 2, 1), np.float32))
    return batch.whole().parts[0].block


def _block() -> Block:
    return Block(torch.device("cpu"), Format.FLOAT32, Extent(2, 2, 1, 3))


def test_how_memory_is_seen_is_told_at_once() -> None:
    """As by two questions."""
    block = _block()
    whole = [_parts(block), _parts(block, _block()), MPSImageBatch.from_numpy(mtl_device("cpu"), np.ones((3, 2, 2, 1)))]
    views: list[Any] = [*whole[:2], whole[2].whole(), Pixels(whole[0], Target.all_of(whole[0].extent))]
    views += [loss_writer(MPSCNNLossLabels.batch(mtl_device("cpu"), np.ones((3, 2), np.float32))), Saved(), Numbers(
        mtl_device("cpu").new_buffer(length=16)
    )]  # fmt: skip
    for view in views:
        for _ in range(2):  # the second time a key is known
            memories, key = view.seen()
            assert [*map(id, memories)] == [*map(id, view.memories())]
            assert key == (None if view.is_memory else view.view_key())


def test_what_is_there_is_told_without_a_tensor() -> None:
    """Of an array as it came, and where nothing is there; of all else only `present` tells."""
    held, empty, stored, deferred = _held(), _block(), _block(), _block()
    assert held.outline() == layout_of(as_elements(np.ones((3, 2, 2, 1), np.float32)))
    assert empty.outline() == (None, empty.shape_key())
    stored.tensor()
    deferred.defer(lambda: torch.ones(3, 1, 2, 2))
    held.tensor()
    assert [each.outline() for each in (stored, deferred, held, Saved())] == [None] * 4
    deferred.resolve()
    assert deferred.outline() is None


def test_adopted_memory_is_channels_last() -> None:
    block = Block(torch.device("cpu"), FLOAT32, Extent(3, 2, 4, 2))
    result = torch.randn(2, 4, 2, 3)
    block.adopt(result)
    assert block.tensor().is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(block.tensor(), result, rtol=0, atol=0)
    expanded = Block(torch.device("cpu"), FLOAT32, Extent(3, 2, 4, 2))
    expanded.adopt(torch.ones(1).expand(2, 4, 2, 3))
    expanded.tensor()[0, 0, 0, 0] = 5
    assert expanded.tensor().sum() == 47 + 5
