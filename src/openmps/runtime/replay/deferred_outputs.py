"""Results that stay in the memory of a capture until somebody asks for them: most losses nobody ever looks at.

The next replay, of whatever capture of the queue, may write that memory. What is still held then is copied before.
"""

from __future__ import annotations

from functools import partial
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

    def add(self, block: DeferrableMemory, value: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Have a block, which has no memory yet, copy a result when it is first asked for it.

        ``stream`` is the one that is current, which `resolve` gave.
        """
        # In this order: an interrupt may come in between.
        self.pending.append(ref(block))
        if self._is_cuda:
            self._stream = current_stream(self._device) if stream is None else stream
            block.defer(partial(_copied, value, self._stream))
        else:
            block.defer(value.clone)

    def resolve(self) -> torch.cuda.Stream | None:
        """Before anything is replayed: have those copied that are still held. The current stream, if it asked."""
        for each in self.pending:
            block = each()
            if block is not None:
                block.resolve()
        self.pending.clear()
        if self._stream is None:
            return None
        stream = current_stream(self._device)
        if stream is not self._stream and stream != self._stream:  # mostly the very object
            # Another thread may have had one copied there just now.
            stream.wait_stream(self._stream)
        return stream


def _copied(value: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """A copy of a result behind the replay that has made it on ``stream``, for whatever stream is current then."""
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
