"""The stream that a thread works on: asked for at each commit, so it is told by its handle where that can be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from openmps.errors import MPSDeviceError

_engine: Any = getattr(torch, "_C", None)
_handle_of: Callable[[int], int] | None = getattr(_engine, "_cuda_getCurrentRawStream", None)
current_index: Callable[[], int] = getattr(_engine, "_cuda_getDevice", torch.cuda.current_device)
"""The CUDA device that is current in this thread, once anything was done on one."""
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
Event: type[torch.cuda.Event] = getattr(_engine, "_CudaEventBase", torch.cuda.Event)
"""The engine's own class. That of `torch.cuda` puts a function of Python around each method, and commits ask thrice."""
DEFAULT = 0
"""The handle of a device's default stream."""


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device with an index that is current in this thread."""
    if _handle_of is None:
        return torch.cuda.current_stream(device)
    key = device.index, _handle_of(device.index)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = torch.cuda.current_stream(device)
    return stream


def is_capturing() -> bool:
    """Whether the program captures what this thread launches: never on the default stream, which need not be asked."""
    if _handle_of is not None and _handle_of(current_index()) == DEFAULT:
        return False
    return torch.cuda.is_current_stream_capturing()


def is_default_stream(device: torch.device) -> bool:
    """Whether the stream that is current in this thread is the device's default one."""
    if _handle_of is None:
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    return _handle_of(device.index) == DEFAULT


def brought(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a CUDA device of what is on the host, for whatever stream is current when it is used.

    Raises:
        MPSDeviceError: The program captures a CUDA graph by itself, which would make the copy again at each replay.
    """
    if torch.cuda.is_current_stream_capturing():
        rule = "made from an array must be on the device before the program captures what reads them"
        raise MPSDeviceError("MPSImage", "elements", rule, None, "Call tensor() of the images before the capture")
    # Records under another stream wait for the default one, and for no third one.
    return host.to(device, non_blocking=is_default_stream(device))
