"""The host's copy of device memory, tried on tensors of any device."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from openmps.metal.host_copy import HostCopy


@pytest.fixture
def storage(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def test_writes_stay_on_the_host_until_they_are_flushed(storage: torch.Tensor) -> None:
    host = HostCopy()
    array = host.read(storage)
    array[[1, 5]] = 50, 60
    assert storage.tolist() == list(range(8))
    assert host.flush(storage)
    assert storage.tolist() == [0, 50, 2, 3, 4, 60, 6, 7]


def test_reading_again_keeps_what_was_written_and_brings_what_the_device_wrote(storage: torch.Tensor) -> None:
    host = HostCopy()
    array = host.read(storage)
    array[0] = 100
    storage[7] = 200
    assert host.read(storage) is array
    assert array.tolist() == [100, 1, 2, 3, 4, 5, 6, 200]
    assert host.flush(storage)
    assert storage.tolist() == [100, 1, 2, 3, 4, 5, 6, 200]


def test_a_flush_leaves_what_the_device_wrote_between(storage: torch.Tensor) -> None:
    host = HostCopy()
    array = host.read(storage)
    array[[0, 7]] = 100, 107
    storage[3] = 33
    assert host.flush(storage)
    assert storage.tolist() == [100, 1, 2, 33, 4, 5, 6, 107]
    assert host.read(storage).tolist() == storage.tolist()


def test_a_write_sends_its_range_and_no_more(storage: torch.Tensor) -> None:
    host = HostCopy()
    array = host.read(storage)
    array[:] = 9
    host.write(storage, 2, 4)
    assert storage.tolist() == [0, 1, 9, 9, 4, 5, 6, 7]
    assert host.flush(storage)
    assert storage.tolist() == [9] * 8


def test_the_array_lives_as_long_as_someone_may_write_to_it(storage: torch.Tensor) -> None:
    host = HostCopy()
    host.read(storage)[0] = 1
    gc.collect()
    assert host.flush(storage)
    assert storage[0] == 1
    assert not host.flush(storage)

    floats = host.read(storage).view(np.float32)
    assert host.flush(storage)
    floats[0] = 1.0
    assert host.flush(storage)
    assert storage.view(torch.float32)[0] == 1.0
    del floats
    assert not host.flush(storage)
