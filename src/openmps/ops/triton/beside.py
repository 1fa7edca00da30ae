"""Launches side by side: small ones leave most of a GPU idle, and two that do not wait for one another share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")
_beside: dict[tuple[int | None, int], torch.cuda.Stream] = {}
"""The stream beside each one that something was captured on."""
_behind: dict[tuple[int | None, int], torch.cuda.Stream] = {}
"""The same for what can wait until the others leave something of the GPU idle: of the lowest priority."""


def beside(device: torch.device, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What two functions give, whose launches read nothing that the other's write.

    In a capture those of the second become a branch of the graph, which ends here: all before it is done first, and all
    behind it waits for both, so that memory of either may be used and given back by what follows. Elsewhere they come
    one after the other: another stream costs the host more than it gains. What a library keeps for each stream, as
    cuBLAS does, must not be asked for in the second.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return first(), second()
    current = torch.cuda.current_stream(device)
    key = device.index, current.cuda_stream
    other = _beside.get(key)
    if other is None:
        other = _beside[key] = torch.cuda.Stream(device, priority=current.priority)
    other.wait_stream(current)
    with torch.cuda.stream(other):
        made = second()
    found = first()
    current.wait_stream(other)
    return found, made


class Branch:
    """Launches that what follows does not wait for, until their `end`: nothing is read or written by both before.

    In a capture they become a branch of the graph; elsewhere they are launched at the end. What a library keeps for
    each stream, as cuBLAS does, must not be asked for.
    """

    def __init__(self, device: torch.device, launch: Callable[[], None]) -> None:
        self._launch = launch
        """Holds what it reads and writes until the end, so that nothing else comes to be there."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream(device)
        key = device.index, current.cuda_stream
        stream = _behind.get(key)
        if stream is None:
            stream = _behind[key] = torch.cuda.Stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            launch()
        self._stream = stream

    def end(self) -> None:
        """Have all that follows wait."""
        if self._stream is None:
            self._launch()
        else:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
