"""The stream that a thread works on: asked for at each commit, so it is told by its handle where that can be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_engine: Any = getattr(torch, "_C", None)
_handle_of: Callable[[int], int] | None = getattr(_engine, "_cuda_getCurrentRawStream", None)
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
_DEFAULT = 0
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


def is_default_stream(device: torch.device) -> bool:
    """Whether the stream that is current in this thread is the device's default one."""
    if _handle_of is None:
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    return _handle_of(device.index) == _DEFAULT
