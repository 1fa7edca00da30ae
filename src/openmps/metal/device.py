"""Devices: the CPU and the CUDA GPUs of this machine (MTLDevice.h, macOS 10.11)."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import torch

from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError
from openmps.metal.heap import MTLHeap, MTLHeapDescriptor
from openmps.metal.memory import MTLBuffer, bytes_of, modes_of
from openmps.metal.queue import MTLCommandQueue
from openmps.types import MTLResourceOptions, MTLStorageMode


class MTLDevice:
    """The CPU or one CUDA GPU. There is one object for each, made by `mtl_device` and the functions beside it."""

    def __init__(self, torch_device: torch.device) -> None:
        self._torch_device = torch_device
        self._name = torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else _cpu_name()
        self._watched: weakref.WeakSet[MTLBuffer] = weakref.WeakSet()
        self._watched_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MTLDevice {self._name!r} ({self._torch_device})>"

    def __str__(self) -> str:
        # In errors: the GPUs of one machine often have the same name.
        return f"{self._name!r} ({self._torch_device})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of what holds a device hold the same device.
        return mtl_device, (str(self._torch_device),)

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the processor."""
        return self._name

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

    # --- what it makes -----------------------------------------------------------------------------------------------

    def new_command_queue(self, max_command_buffer_count: int = 64) -> MTLCommandQueue:
        """A queue that runs command buffers in order; at most so many are under way before it blocks."""
        return MTLCommandQueue(self, max_command_buffer_count)

    def new_buffer(
        self,
        length: int | None = None,
        data: Any = None,
        options: MTLResourceOptions = MTLResourceOptions.STORAGE_MODE_SHARED,
    ) -> MTLBuffer:
        """A buffer of ``length`` zero bytes, or with a copy of ``data``.

        Args:
            length: Bytes; with ``data``, how many of its first bytes (all by default).
            data: Bytes, a NumPy array, a tensor, or any object with the buffer protocol.
            options: Storage mode and cache mode. A buffer with data cannot be private.

        Raises:
            MPSArgumentError: The length is not positive, larger than the data or than `max_buffer_length`.
            MPSTypeError: NumPy cannot view the data.
        """
        storage_mode = modes_of("MTLBuffer", options)[0]
        if data is None:
            return MTLBuffer(self, self.check_length("MTLBuffer", "length", length), options)
        if storage_mode is MTLStorageMode.PRIVATE:
            remedy = "Make a shared buffer and copy it with a blit encoder's copy_from_buffer"
            raise MPSArgumentError("MTLBuffer", "data", "cannot go into private memory", storage_mode.name, remedy)
        if length is not None:
            self.check_length("MTLBuffer", "length", length)
        storage = bytes_of("MTLBuffer", data, length).to(self._torch_device)
        return MTLBuffer(self, storage.numel(), options, storage=storage)

    def new_heap(self, descriptor: MTLHeapDescriptor) -> MTLHeap:
        """A block of memory to cut buffers from."""
        return MTLHeap(self, descriptor)

    # --- for the other classes ---------------------------------------------------------------------------------------

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

    def watch(self, buffer: MTLBuffer) -> None:
        """Flush the host copy of ``buffer`` at every commit, as long as someone may write to it."""
        with self._watched_lock:
            self._watched.add(buffer)

    def flush_host_copies(self) -> None:
        """Bring what the CPU wrote by way of `MTLBuffer.contents` to the device."""
        if not self._watched:
            return
        with self._watched_lock:
            for buffer in list(self._watched):
                if not buffer.flush():
                    self._watched.discard(buffer)


_devices: dict[torch.device, MTLDevice] = {}
_devices_lock = threading.Lock()


def _device(torch_device: torch.device) -> MTLDevice:
    with _devices_lock:
        if torch_device not in _devices:
            _devices[torch_device] = MTLDevice(torch_device)
        return _devices[torch_device]


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The first CUDA GPU where there is one, else the CPU."""
    return _device(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The CUDA GPUs in PyTorch's order, then the CPU."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [_device(device) for device in (*gpus, torch.device("cpu"))]


def mtl_device(which: str | torch.device | MTLDevice = "auto") -> MTLDevice:
    """The device called ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` for the system's default.

    Raises:
        MPSDeviceError: This machine, or this build of PyTorch, does not have the device.
        MPSArgumentError: It is not the name of a device.
    """
    if isinstance(which, MTLDevice):
        return which
    if which == "auto":
        return MTLCreateSystemDefaultDevice()
    if not isinstance(which, (str, torch.device)):
        raise MPSTypeError("mtl_device", "which", "must be the name of a device", type(which).__name__)
    try:
        wanted = torch.device(which)
    except RuntimeError as fault:
        raise MPSArgumentError("mtl_device", "which", "must be auto, cpu, cuda or cuda:N", repr(which)) from fault
    if wanted.type == "cpu":
        return _device(torch.device("cpu"))
    if wanted.type != "cuda":
        raise MPSDeviceError("mtl_device", "which", "must be the CPU or a CUDA GPU", repr(str(which)), "Use auto")
    if not torch.cuda.is_available():
        remedy = "Use cpu or auto, or install a CUDA build of PyTorch and the NVIDIA driver"
        raise MPSDeviceError("mtl_device", "which", "needs a CUDA GPU that PyTorch can use", repr(str(which)), remedy)
    index = torch.cuda.current_device() if str(wanted) == "cuda" else wanted.index
    if index >= torch.cuda.device_count():
        got = f"{str(which)!r} of {torch.cuda.device_count()} GPUs"
        raise MPSDeviceError("mtl_device", "which", "must be a GPU of this machine", got, "Count from cuda:0")
    return _device(torch.device("cuda", index))


def MPSSupportsMTLDevice(device: MTLDevice | None) -> bool:
    """Whether kernels run on ``device``: on every `MTLDevice`, not on None (MetalPerformanceShaders.h, macOS 10.13)."""
    return isinstance(device, MTLDevice)


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


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"
