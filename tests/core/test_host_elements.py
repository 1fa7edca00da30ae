"""Images made from arrays stay on the host until the device needs them; a replay brings them there by itself.

On the CPU, where there is one memory, blocks are made to hold what a block of a GPU does.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from openmps.core.image import storage
from openmps.core.image.storage import Block
from openmps.metal import stream
from openmps.types import NUMPY_DTYPES
from replay_twin import outcomes, replaying_queue

Array = np.ndarray
SHAPE = (2, 3, 4, 3)
"""Images, height, width, channels."""


@pytest.fixture
def bench(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Bench:
    if device.type == "cpu":
        monkeypatch.setattr(Block, "hold", lambda block, host: setattr(block, "_host", host))
        monkeypatch.setattr(storage, "brought", lambda host, device: host.clone())
    made = Bench.on(device)
    made.queue = replaying_queue(device)
    return made


@pytest.fixture
def double(bench: Bench) -> mps.MPSCNNNeuronLinear:
    kernel = mps.MPSCNNNeuronLinear(bench.device, 2.0, 0.0)
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    return kernel


def _array(number: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def _batch(bench: Bench, number: int) -> mps.MPSImageBatch:
    return mps.MPSImageBatch.from_numpy(bench.device, _array(number))


def _block(images: mps.MPSImageBatch) -> Block:
    return images.stack().parts[0].block


def _is_on_host(images: mps.MPSImageBatch) -> bool:
    block = _block(images)
    return block._tensor is None and block._host is not None and block.is_allocated


def _encoded(bench: Bench, kernel: Any, *images: Any) -> tuple[Any, list[str]]:
    command_buffer = bench.command_buffer()
    made = kernel.encode_batch(command_buffer, *images)
    finish(command_buffer)
    return made, outcomes(command_buffer)


def test_a_replay_reads_what_is_on_the_host(bench: Bench, double: Any) -> None:
    for number in range(5):
        x = _batch(bench, number)
        assert _is_on_host(x)
        made, found = _encoded(bench, double, x)
        np.testing.assert_array_equal(made.numpy(), 2 * _array(number))
        assert found == [["run"], ["captured"], *[["replayed"]] * 3][number]
        # What runs by itself has brought it to the device, and so has what was captured; a replay has not.
        assert _is_on_host(x) == (number > 1)
        np.testing.assert_array_equal(x.numpy(), _array(number))


def test_what_is_read_again_is_brought_to_the_device_once(bench: Bench, double: Any) -> None:
    for number in range(3):
        _encoded(bench, double, _batch(bench, number))
    x = _batch(bench, 7)
    for turn in range(4):
        made, found = _encoded(bench, double, x)
        assert found == ["replayed"]
        assert _is_on_host(x) == (turn == 0)
        np.testing.assert_array_equal(made.numpy(), 2 * _array(7))


def test_the_device_and_the_host_by_turns(bench: Bench, double: Any) -> None:
    """A record that was captured over images of the host is replayed over images of the device, and the other way."""
    for number, reads_first in enumerate([False, False, True, False, True, True, False]):
        x = _batch(bench, number)
        if reads_first:
            x.tensor()
        made, found = _encoded(bench, double, x)
        np.testing.assert_array_equal(made.numpy(), 2 * _array(number))
        assert found == [["run"], ["captured"], *[["replayed"]] * 5][number]


def test_what_is_written_after_a_replay_counts_in_the_next(bench: Bench, double: Any) -> None:
    x = _batch(bench, 0)
    for number in range(4):
        _encoded(bench, double, _batch(bench, number))
    for number in range(10, 13):
        for image, pixels in zip(x, _array(number), strict=True):
            image.write_bytes(pixels)
        made, found = _encoded(bench, double, x)
        assert found == ["replayed"]
        np.testing.assert_array_equal(made.numpy(), 2 * _array(number))


def test_the_array_may_change_at_once(bench: Bench, double: Any) -> None:
    array = _array(0)
    for number in range(4):
        array[...] = _array(number)
        x = mps.MPSImageBatch.from_numpy(bench.device, array)
        tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
        y = mps.MPSImageBatch.from_tensor(bench.device, tensor, copy=True)
        array[...] = 77.0
        np.testing.assert_array_equal(_encoded(bench, double, x)[0].numpy(), 2 * _array(number))
        np.testing.assert_array_equal(y.numpy(), _array(number))


def test_parts_of_a_batch_on_the_host(bench: Bench, double: Any) -> None:
    for number in range(5):
        x = _batch(bench, number)
        made, _ = _encoded(bench, double, x[1:])
        np.testing.assert_array_equal(made.numpy(), 2 * _array(number)[1:])
        apart = mps.MPSImageBatch([x[1], x[0]])
        np.testing.assert_array_equal(_encoded(bench, double, apart)[0].numpy(), 2 * _array(number)[::-1])


def test_a_destination_on_the_host_keeps_what_is_not_written(bench: Bench, double: Any) -> None:
    double.clip_rect = mps.MTLRegion(mps.MTLOrigin(1, 1, 0), mps.MTLSize(2, 1, 1))
    for number in range(4):
        to = _batch(bench, 50 + number)
        _encoded(bench, double, _batch(bench, number), to)
        expected = _array(50 + number)
        expected[:, 1:2, 1:3] = 2 * _array(number)[:, :1, :2]
        np.testing.assert_array_equal(to.numpy(), expected)


def test_elements_that_are_discarded_are_zero(bench: Bench) -> None:
    image = mps.MPSImage.from_numpy(bench.device, _array(0)[0])
    assert image.set_purgeable_state(mps.MPSPurgeableState.VOLATILE) is mps.MPSPurgeableState.NON_VOLATILE
    image.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
    assert not image.numpy().any()


def test_what_a_program_captures_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(mps.MPSDeviceError, match="before the program captures"):
        stream.brought(torch.zeros(1), torch.device("cpu"))


def test_two_threads_that_need_them_at_once_share_them(bench: Bench) -> None:
    for number in range(20):
        x, found, gate = _batch(bench, number), list[torch.Tensor](), threading.Barrier(4)

        def use(x: Any = x, found: list[torch.Tensor] = found, gate: threading.Barrier = gate) -> None:
            gate.wait()
            found.append(x.tensor())

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({each.data_ptr() for each in found}) == 1
        np.testing.assert_array_equal(x.numpy(), _array(number))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_images_of_a_program_that_captures_by_itself() -> None:
    """The copy to the device would be made again by each of its replays."""
    bench = Bench.on(torch.device("cuda", torch.cuda.current_device()))
    x, ones = _batch(bench, 1), torch.ones(4, device=bench.device.torch_device)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ones.add_(ones)
        with pytest.raises(mps.MPSDeviceError, match="before the program captures"):
            x.tensor()
    assert _is_on_host(x)
    np.testing.assert_array_equal(x.numpy(), _array(1))


@pytest.mark.parametrize("side", [8, 160])
def test_small_and_large_images_of_every_format(side: int, bench: Bench, double: Any) -> None:
    """Small ones go with the numbers of a replay, large ones by themselves."""
    formats = mps.MPSImageFeatureChannelFormat
    given = {formats.UNORM8: 255, formats.UNORM16: 65535, formats.FLOAT16: 1.0, formats.FLOAT32: 1.0}
    for channel_format, scale in given.items():
        for number in range(4):
            wide = np.random.default_rng(number).uniform(0, 0.25, (2, side, side, 2)) * scale
            array = wide.astype(NUMPY_DTYPES[channel_format])
            made, _ = _encoded(bench, double, mps.MPSImageBatch.from_numpy(bench.device, array))
            tolerance = 1.0 / scale if scale > 1 else 2.0**-11
            np.testing.assert_allclose(made.numpy(), 2 * (array / scale), atol=tolerance)
