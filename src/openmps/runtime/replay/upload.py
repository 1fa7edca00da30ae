"""What is new at each replay, brought to the device: small things of the host's together, in one copy."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ctypes import memmove
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.metal.stream import current_stream
from openmps.runtime.host import TENSOR_TYPES, Host, as_elements

_STAGES = 8
"""Copies that may be under way at most; the host looks after half of them at a time."""
_ALIGNMENT = 256
"""Of each value, in bytes, as the device allocates memory."""
_WORD = 8
MOST_STAGED_BYTES = 1 << 16
"""Larger values go to the device by themselves: to put them into the stage would cost more than a copy."""


class _Stage:
    """Host memory for one copy."""

    def __init__(self, size: int, slots: Sequence[_Slot], device: torch.device) -> None:
        self.bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.array: Any = self.bytes.numpy()
        self.places = [slot.of(self.bytes) for slot in slots]
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


class _Slot:
    """Where one value lies among the bytes."""

    def __init__(self, value: Tensor, first: int) -> None:
        self._shape, self._strides, self._dtype = value.shape, value.stride(), value.dtype
        last = sum((size - 1) * stride for size, stride in zip(self._shape, self._strides, strict=True))
        self.size = (last + 1) * value.element_size()
        self._first, self.end = first, first + self.size

    def of(self, memory: Tensor) -> Tensor:
        return memory[self._first : self.end].view(self._dtype).as_strided(self._shape, self._strides)


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
        end, slots, self._staged = _WORD * len(numbers), list[_Slot](), list[int]()
        for place, value in enumerate(values):
            if value.device.type == "cpu" and value.nbytes <= MOST_STAGED_BYTES:
                slots.append(_Slot(value, -(-end // _ALIGNMENT) * _ALIGNMENT))
                self._staged.append(place)
                end = slots[-1].end
        self._alone = [place for place in range(len(values)) if place not in self._staged]
        """Places of the values that are never staged."""
        self._bytes = torch.zeros(end, dtype=torch.uint8, device=device)
        words = self._bytes[: _WORD * len(numbers)].view(torch.int64).unbind()
        self.numbers = [
            word if isinstance(number, int) else word.view(torch.float64)
            for word, number in zip(words, numbers, strict=True)
        ]
        """Where operations read the numbers, as tensors without axes."""
        staged = dict(zip(self._staged, [slot.of(self._bytes) for slot in slots], strict=True))
        self.values = [
            staged[place]
            if place in staged
            else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            for place, value in enumerate(values)
        ]
        """Where they read the values."""
        self._device = device
        self._stages = [_Stage(end, slots, device) for _ in range(_STAGES if device.type == "cuda" else 1)]
        self._sent = [torch.cuda.Event(blocking=True) for _ in range(2)] if device.type == "cuda" else []
        """Behind the last copy of the first half of the stages, and of the second one."""
        self._turn = 0
        self._detours: dict[int, _Detour] = {}
        """Of large values from the host, by their places."""

    def send(self, values: Sequence[Host], numbers: Sequence[float]) -> None:
        """Bring other values and numbers to the device, in the order of the stream."""
        others: Iterable[int] = range(len(values))
        if self._bytes.numel():
            stage = self._stages[self._turn]
            half, place_in_half = divmod(self._turn, _STAGES // 2)
            self._turn = (self._turn + 1) % len(self._stages)
            if self._sent and not place_in_half:
                self._sent[half].synchronize()
            self._pack(stage.array, 0, *numbers)
            late = self._stage_all(stage, values)
            others = self._alone if not late else [*self._alone, *late]
            self._bytes.copy_(stage.bytes, non_blocking=True)
            if self._sent and place_in_half == _STAGES // 2 - 1:
                self._sent[half].record(current_stream(self._device))
        for place in others:
            value = as_elements(values[place])
            if self._sent and not value.is_cuda and value.is_pinned():
                self._bring(place, value)
            else:
                self.values[place].copy_(value, non_blocking=True)

    def _stage_all(self, stage: _Stage, values: Sequence[Host]) -> list[int]:
        """Put the small values of the host into a stage; the places of those that are on the device by now."""
        late: list[int] = []
        for place, slot, array, (address, size, shape, strides, dtype) in zip(
            self._staged, stage.places, stage.arrays, stage.spans, strict=True
        ):
            value = values[place]
            if not isinstance(value, Tensor):
                np.copyto(array, value)
            elif value.is_cuda:
                late.append(place)
            elif value.stride() == strides and value.shape == shape and value.dtype is dtype:
                # Gaps and all: the engine's copy costs several times as much.
                memmove(address, value.data_ptr(), size)
            else:
                slot.copy_(value)
        return late

    def _bring(self, place: int, value: Tensor) -> None:
        """Copy a large value from pinned memory of the host while earlier work runs."""
        detour = self._detours.get(place)
        if detour is None:
            detour = self._detours[place] = _Detour(self.values[place])
        detour.bring(value, current_stream(self._device))
