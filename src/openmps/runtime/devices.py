"""The devices of this machine, one object each, whose queues replay on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from openmps.errors import MPSDeviceError
from openmps.metal.device import MTLDevice, device_of

if TYPE_CHECKING:
    from openmps.runtime.replay.replayer import Replayer


def player_of(torch_device: torch.device) -> Replayer | None:
    """The player of a new queue: a replayer on CUDA, none on a CPU."""
    if torch_device.type != "cuda":
        return None
    # A replayer has the rules of fusion, and with them all operations: a kernel on a CPU needs none of it.
    from openmps.runtime.replay.recorder import CudaRecorder
    from openmps.runtime.replay.replayer import Replayer

    return Replayer(torch_device, CudaRecorder(torch_device))


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The first CUDA GPU where there is one, else the CPU."""
    return device_of("auto", player_of)


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The CUDA GPUs in PyTorch's order, then the CPU.

    Raises:
        MPSDeviceError: The driver of the GPUs does not answer.
    """
    try:
        count = torch.cuda.device_count()
    except RuntimeError as fault:
        raise MPSDeviceError("MTLCopyAllDevices", "GPUs", "must answer", f"{fault}") from fault
    return [device_of(name, player_of) for name in (*(f"cuda:{index}" for index in range(count)), "cpu")]


def MPSSupportsMTLDevice(device: MTLDevice | None) -> bool:
    """Whether kernels run on ``device``: on every `MTLDevice`, not on None (MetalPerformanceShaders.h, macOS 10.13)."""
    return isinstance(device, MTLDevice)


def mtl_device(which: str | torch.device | MTLDevice = "auto") -> MTLDevice:
    """The device called ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` for the system's default.

    Raises:
        MPSDeviceError: This machine, or this build of PyTorch, does not have the device.
        MPSArgumentError: It is not the name of a device.
    """
    return which if isinstance(which, MTLDevice) else device_of(which, player_of)
