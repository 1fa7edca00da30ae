"""Devices: one object each, found by name, with facts."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch

from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError
from openmps.metal import device as module
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import (
    MPSSupportsMTLDevice,
    MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice,
    mtl_device,
)


def test_there_is_one_object_for_each_device(mtl: MTLDevice) -> None:
    assert mtl_device(mtl) is mtl
    assert mtl_device(mtl.torch_device) is mtl
    assert mtl_device(str(mtl.torch_device)) is mtl
    assert mtl_device(mtl.torch_device.type) is mtl
    assert {mtl: 1}[mtl_device(mtl.torch_device)] == 1
    assert mtl in MTLCopyAllDevices()


def test_a_copy_of_a_device_is_the_device(mtl: MTLDevice) -> None:
    assert copy.copy(mtl) is mtl
    assert copy.deepcopy([mtl])[0] is mtl
    assert pickle.loads(pickle.dumps(mtl)) is mtl


def test_threads_agree_on_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_devices", {})
    start, found = threading.Barrier(8), list[MTLDevice]()

    def look() -> None:
        start.wait()
        found.append(mtl_device("cpu"))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(device) for device in found}) == 1


def test_the_default_is_the_first_gpu_or_the_cpu() -> None:
    expected = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    assert MTLCreateSystemDefaultDevice().torch_device == expected
    assert mtl_device() is mtl_device("auto") is MTLCreateSystemDefaultDevice()


def test_all_devices() -> None:
    devices = MTLCopyAllDevices()
    assert len(devices) == torch.cuda.device_count() + 1
    assert devices[0] is MTLCreateSystemDefaultDevice()
    assert len({device.registry_id for device in devices}) == len(devices)


def test_facts(mtl: MTLDevice) -> None:
    assert mtl.name
    assert mtl.name in repr(mtl)
    assert mtl.is_cuda == (mtl.torch_device.type == "cuda")
    assert mtl.registry_id == mtl_device(mtl.torch_device).registry_id
    assert mtl.max_buffer_length == mtl.recommended_max_working_set_size > 2**28
    if mtl.is_cuda:
        assert mtl.torch_device.index is not None
        assert mtl.max_buffer_length == torch.cuda.mem_get_info(mtl.torch_device)[1]
    else:
        assert mtl.has_unified_memory


def test_kernels_run_on_every_device(mtl: MTLDevice) -> None:
    assert MPSSupportsMTLDevice(mtl)
    assert not MPSSupportsMTLDevice(None)


@pytest.mark.parametrize(
    ("which", "error", "message"),
    [
        ("gpu", MPSArgumentError, "must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("", MPSArgumentError, "must be auto"),
        ("meta", MPSDeviceError, "CPU or a CUDA GPU"),
        ("cuda:99", MPSDeviceError, "GPU"),
        (torch.device("cuda:99"), MPSDeviceError, "GPU"),
        (0, MPSTypeError, "name of a device"),
        (None, MPSTypeError, "name of a device"),
    ],
)
def test_devices_that_are_not_there(which: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mtl_device(which)


def test_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert MTLCreateSystemDefaultDevice() is mtl_device("cpu")
    with pytest.raises(MPSDeviceError, match="install a CUDA build"):
        mtl_device("cuda")
