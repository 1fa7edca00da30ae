"""What is new at each replay, brought to the device: small things of the host's together, in a stage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ctypes import memmove

import torch
from torch import Tensor

from openmps.metal.stream import current_stream
from openmps.runtime.host import Host, as_elements
from openmps.runtime.replay.stages import ALIGNMENT, Slot, Stages

_WORD = 8
MOST_STAGED_BYTES = 1 << 16
"""Larger values go to the device by themselves: to put them into the stage would cost more than a copy."""


class _Detour:
    """Memory that a large value comes to from the host while the device computes, and goes on from in its turn.

    What a capture reads is read until its end: the next value cannot come there before that.
    """

    def __init__(self, place: Tensor) -> None:
        self._place, self._memory = place, torch.empty_like(place)
        self._stream = torch.cuda.Stream(place.device)
        self._has_come, self._is_free = torch.cuda.Event(), torch.cuda.Event()
        # Earlier work may still use what was there before.
        self._is_free.record(current_stream(place.device))

    def bring(self, value: Tensor, stream: torch.cuda.Stream) -> None:
        """Bring a value to its place, in the order of a stream."""
        self._stream.wait_event(self._is_free)
        with torch.cuda.stream(self._stream):
            self._memory.copy_(value, non_blocking=True)
        self._has_come.record(self._stream)
        stream.wait_event(self._has_come)
        self._place.copy_(self._memory, non_blocking=True)
        self._is_free.record(stream)


class Upload:
    """Memory of a capture for values like those given and for so many numbers, float64 or int64 each."""

    def __init__(self, hosts: Sequence[Host], numbers: Sequence[float], device: torch.device) -> None:
        values = [*map(as_elements, hosts)]
        layout = "".join("q" if isinstance(number, int) else "d" for number in numbers)
        self._pack = struct.Struct(f"={layout}").pack_into
        end, slots, self._staged = _WORD * len(numbers), list[Slot](), list[int]()
        for place, value in enumerate(values):
            if value.device.type == "cpu" and value.nbytes <= MOST_STAGED_BYTES:
                slots.append(Slot(value, -(-end // ALIGNMENT) * ALIGNMENT))
                self._staged.append(place)
                end = slots[-1].end
        self._alone = [place for place in range(len(values)) if place not in self._staged]
        """Places of the values that are never staged."""
        self.stages = Stages(end, slots, device)
        """Of the values that are staged, and the numbers."""
        memory = self.stages.bytes
        words = memory[: _WORD * len(numbers)].view(torch.int64).unbind()
        self.numbers = [
            word if isinstance(number, int) else word.view(torch.float64)
            for word, number in zip(words, numbers, strict=True)
        ]
        """Where operations read the numbers, as tensors without axes."""
        staged = dict(zip(self._staged, [slot.of(memory) for slot in slots], strict=True))
        self.values = [
            staged[place]
            if place in staged
            else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            for place, value in enumerate(values)
        ]
        """Where they read the values."""
        self._device, self._is_cuda = device, device.type == "cuda"
        self._detours: dict[int, _Detour] = {}
        """Of large values from the host, by their places."""

    def send(self, values: Sequence[Host], numbers: Sequence[float]) -> None:
        """Have other values and numbers come to the device, in the order of the stream, for the next replay."""
        stage = self.stages.fill()
        self._pack(stage.array, 0, *numbers)
        for place, slot, array, (address, size, shape, strides, dtype) in zip(
            self._staged, stage.places, stage.arrays, stage.spans, strict=True
        ):
            value = values[place]
            if not isinstance(value, Tensor):
                array[...] = value
            elif value.stride() == strides and value.shape == shape and value.dtype is dtype and not value.is_cuda:
                # Gaps and all: the engine's copy costs several times as much.
                memmove(address, value.data_ptr(), size)
            else:
                slot.copy_(value)
        if not self.stages.come_by_themselves:
            self.stages.send()
        for place in self._alone:
            value = as_elements(values[place])
            if self._is_cuda and not value.is_cuda and value.is_pinned():
                self._bring(place, value)
            else:
                self.values[place].copy_(value, non_blocking=True)

    def _bring(self, place: int, value: Tensor) -> None:
        """Copy a large value from pinned memory of the host while earlier work runs."""
        detour = self._detours.get(place)
        if detour is None:
            detour = self._detours[place] = _Detour(self.values[place])
        detour.bring(value, current_stream(self._device))
