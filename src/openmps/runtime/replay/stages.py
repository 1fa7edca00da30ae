"""Memory of the host for what replays read: filled stage by stage, in turn, while the device reads those before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.metal.stream import Event, current_stream
from openmps.ops.triton import runs_on
from openmps.runtime.host import TENSOR_TYPES

STAGES = 8
"""Stages that may be under way at most; the host looks after half of them at a time."""
_HALF = STAGES // 2
ALIGNMENT = 256
"""Of each value, in bytes, as the device allocates memory."""


class Slot:
    """Where one value lies among the bytes of a stage."""

    def __init__(self, value: Tensor, first: int) -> None:
        self._shape, self._strides, self._dtype = value.shape, value.stride(), value.dtype
        last = sum((size - 1) * stride for size, stride in zip(self._shape, self._strides, strict=True))
        self.size = (last + 1) * value.element_size()
        self._first, self.end = first, first + self.size

    def of(self, memory: Tensor) -> Tensor:
        """The value in memory of a stage."""
        return memory[self._first : self.end].view(self._dtype).as_strided(self._shape, self._strides)


class Stage:
    """Host memory for what one replay reads."""

    def __init__(self, memory: Tensor, slots: Sequence[Slot]) -> None:
        self.bytes = memory
        self.array: Any = memory.numpy()
        self.places = [slot.of(memory) for slot in slots]
        self.spans = [
            (place.data_ptr(), slot.size, place.shape, place.stride(), place.dtype)
            for place, slot in zip(self.places, slots, strict=True)
        ]
        """Where the bytes of each value go, how many there are, and how they lie."""
        self.arrays = [*map(_as_array, self.places)]
        """The places as the arrays lie that images are made of."""


def _as_array(place: Tensor) -> Any:
    """The place of images as the array that they may come as; None for that of something else."""
    may_be_one = place.dim() == 4 and place.dtype in TENSOR_TYPES.values()
    return place.permute(0, 2, 3, 1).numpy() if may_be_one else None


class Stages:
    """The stages of a capture, and the memory of the device that they come to.

    Where kernels in Triton run, the capture begins with a launch that brings the next stage by itself; elsewhere the
    host copies it before the replay. Whoever drops a capture has waited for its replays, which read here.
    """

    def __init__(self, size: int, slots: Sequence[Slot], device: torch.device) -> None:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        self._device, is_cuda = device, device.type == "cuda"
        self.bytes = torch.zeros(size, dtype=torch.uint8, device=device)
        """What captured work reads."""
        host = torch.zeros((STAGES, size), dtype=torch.uint8, pin_memory=is_cuda)
        self._stages = [Stage(memory, slots) for memory in host]
        self._read = [Event(blocking=True) for _ in range(2)] if is_cuda else []
        """Behind the last read of the first half of the stages, and of the second one."""
        self._turn = 0
        self._is_filled = False
        """Whether a stage is filled of which it is not known that it was replayed."""
        self.come_by_themselves = size > 0 and runs_on(device)
        """Whether the capture brings them; else they are sent."""
        if self.come_by_themselves:
            from openmps.ops.triton.host_stages import turns_of

            self._words = host.view(torch.int64), self.bytes.view(torch.int64)
            self._turns = turns_of(self._words[0], device)
            """Where the device counts."""
            # Compiled before the capture begins.
            self.receive()
            self.restart()

    def fill(self) -> Stage:
        """The next stage, which nobody reads any more."""
        if self._is_filled:
            self.restart()
        if self._read and not self._turn % _HALF:
            self._read[self._turn // _HALF].synchronize()
        self._is_filled = True
        return self._stages[self._turn]

    def send(self) -> None:
        """Bring what was filled to the device, in the order of the stream."""
        self.bytes.copy_(self._stages[self._turn].bytes, non_blocking=True)

    def receive(self) -> None:
        """The first launch of a capture that brings what was filled."""
        if self.come_by_themselves:
            from openmps.ops.triton.host_stages import bring_stage

            bring_stage(*self._words, self._turns)

    def leave(self) -> None:
        """What was filled was replayed: the next stage is the next one's."""
        turn = self._turn
        if self._read and turn % _HALF == _HALF - 1:
            self._read[turn // _HALF].record(current_stream(self._device))
        self._turn = (turn + 1) % STAGES
        self._is_filled = False

    def restart(self) -> None:
        """Have the device count from here on: behind a fault, or an interrupt, nobody knows what it has read."""
        if self._read:
            torch.cuda.synchronize(self._device)
        if self.come_by_themselves:
            self._turns.fill_(self._turn)
