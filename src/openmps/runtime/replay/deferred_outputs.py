"""Results that stay in the memory of a capture until somebody asks for them: most losses nobody ever looks at.

The next replay, of whatever capture of the queue, may write that memory. What is still held then is copied before.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import torch
from torch import Tensor

from openmps.errors import MPSDeviceError
from openmps.metal.memory import DeferrableMemory
from openmps.metal.stream import current_stream


class DeferredOutputs:
    """Results of the captures of one queue that are in the captures' memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self.pending: list[ref[DeferrableMemory]] = []
        """What is yet to be copied, where anybody still holds it."""
        self._stream: torch.cuda.Stream | None = None
        """Where it was computed."""

    def add(self, block: DeferrableMemory, value: Tensor) -> None:
        """Have a block, which has no memory yet, copy a result when it is first asked for it."""
        # In this order: an interrupt may come in between.
        self.pending.append(ref(block))
        if self._is_cuda:
            self._stream = current_stream(self._device)
            block.defer(_on_stream(value, self._stream))
        else:
            block.defer(value.clone)

    def resolve(self) -> None:
        """Before anything is replayed: have those copied that are still held."""
        for each in self.pending:
            block = each()
            if block is not None:
                block.resolve()
        self.pending.clear()
        if self._stream is None:
            return
        stream = current_stream(self._device)
        if stream is not self._stream and stream != self._stream:  # mostly the very object
            # Another thread may have had one copied there just now.
            stream.wait_stream(self._stream)


def _on_stream(value: Tensor, stream: torch.cuda.Stream) -> Callable[[], Tensor]:
    """Copies a result behind the replay that has made it, for whatever stream is current then."""

    def copied() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            rule = "made by a replay must be looked at before the program captures what reads them"
            raise MPSDeviceError("MPSImage", "elements", rule, None, "Call tensor() of the images before the capture")
        current = current_stream(value.device)
        if current == stream:
            return value.clone()
        with torch.cuda.stream(stream):
            copy = value.clone()
        current.wait_stream(stream)
        return copy

    return copied
