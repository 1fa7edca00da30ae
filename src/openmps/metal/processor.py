"""What runs the work: the facts of the CPU or of one CUDA GPU, and what its memory can take."""

from __future__ import annotations

import ctypes
import os
import zlib
from functools import cache

import torch

from openmps.checks import NamedAttributes, Shown
from openmps.cpu import cpu_features
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError


class Processor(NamedAttributes):
    """The CPU or one CUDA GPU, as `MTLDevice` describes it."""

    def __init__(self, torch_device: torch.device) -> None:
        self._torch_device = torch_device
        self._name = torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else cpu_features().name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} ({self._torch_device})>"

    def __str__(self) -> str:
        # In errors: the GPUs of one machine often have the same name.
        return f"{self._name!r} ({self._torch_device})"

    name = Shown[str]("_name", "The name of the processor.")

    @property
    def torch_device(self) -> torch.device:
        """The device as PyTorch calls it, with its index on CUDA."""
        return self._torch_device

    @property
    def is_cuda(self) -> bool:
        """Whether this is an NVIDIA GPU."""
        return self._torch_device.type == "cuda"

    @property
    def registry_id(self) -> int:
        """A number that tells the devices of this machine apart, the same in every process (macOS 10.13)."""
        return zlib.crc32(f"{self._torch_device} {self._name}".encode())

    @property
    def has_unified_memory(self) -> bool:
        """Whether CPU and device share one memory (macOS 10.15)."""
        return not self.is_cuda or bool(torch.cuda.get_device_properties(self._torch_device).is_integrated)

    @property
    def recommended_max_working_set_size(self) -> int:
        """Bytes of memory of the GPU, or of the machine for the CPU (macOS 10.12)."""
        return _memory_size(self._torch_device)

    @property
    def max_buffer_length(self) -> int:
        """The longest buffer in bytes: all memory there is (macOS 10.14)."""
        return _memory_size(self._torch_device)

    # --- what its memory can take -------------------------------------------------------------------------------------

    def check_length(self, who: str, argument: str, length: object) -> int:
        """``length`` if it is a size that memory of this device can have."""
        if isinstance(length, bool) or not isinstance(length, int):
            raise MPSTypeError(who, argument, "must be a number of bytes", repr(length))
        if not 0 < length <= self.max_buffer_length:
            raise MPSArgumentError(who, argument, f"must be 1 to {self.max_buffer_length} bytes", length)
        return length

    def check_tensor(self, who: str, argument: str, tensor: torch.Tensor) -> None:
        """Raise `MPSDeviceError` unless ``tensor`` lies in the memory of this device."""
        own, found = self._torch_device, tensor.device
        if found.type != own.type or (self.is_cuda and found.index != own.index):
            rule = f"must lie on the device {self}"
            raise MPSDeviceError(who, argument, rule, found, f"Move it with tensor.to({str(own)!r})")


def torch_device_of(which: object) -> torch.device:
    """The device of PyTorch that ``which`` names, for `mtl_device`.

    Raises:
        MPSDeviceError: This machine, or this build of PyTorch, does not have the device.
        MPSArgumentError: It is not the name of a device.
    """
    if not isinstance(which, (str, torch.device)):
        raise MPSTypeError("mtl_device", "which", "must be the name of a device", type(which).__name__)
    if which == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        wanted = torch.device(which)
    except RuntimeError as fault:
        raise MPSArgumentError("mtl_device", "which", "must be auto, cpu, cuda or cuda:N", repr(which)) from fault
    if wanted.type == "cpu":
        return torch.device("cpu")
    if wanted.type != "cuda":
        raise MPSDeviceError("mtl_device", "which", "must be the CPU or a CUDA GPU", repr(str(which)), "Use auto")
    if not torch.cuda.is_available():
        remedy = "Use cpu or auto, or install a CUDA build of PyTorch and the NVIDIA driver"
        raise MPSDeviceError("mtl_device", "which", "needs a CUDA GPU that PyTorch can use", repr(str(which)), remedy)
    index = torch.cuda.current_device() if str(wanted) == "cuda" else wanted.index
    if index >= torch.cuda.device_count():
        got = f"{str(which)!r} of {torch.cuda.device_count()} GPUs"
        raise MPSDeviceError("mtl_device", "which", "must be a GPU of this machine", got, "Count from cuda:0")
    return torch.device("cuda", index)


@cache
def _memory_size(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Windows has no sysconf.
    kilobytes = ctypes.c_ulonglong(0)
    ctypes.CDLL("kernel32").GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
    return kilobytes.value * 1024
