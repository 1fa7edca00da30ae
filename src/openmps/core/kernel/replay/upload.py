"""Numbers that are new at each encode, in memory of the device: all of them in one copy."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

_STAGES = 4
"""Copies that may be under way before the host waits for the oldest."""


class _Stage:
    """Host memory for the numbers of one copy."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.words = torch.zeros(count, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.array: Any = self.words.numpy()
        self.sent = torch.cuda.Event(blocking=True) if device.type == "cuda" else None


class Upload:
    """So many numbers on the device, float64 or int64 each, as tensors without axes."""

    def __init__(self, numbers: Sequence[float], device: torch.device) -> None:
        self._words = torch.zeros(len(numbers), dtype=torch.int64, device=device)
        self.tensors = [
            word if isinstance(number, int) else word.view(torch.float64)
            for word, number in zip(self._words.unbind(), numbers, strict=True)
        ]
        """Where operations read them."""
        self._layout = "=" + "".join("q" if isinstance(number, int) else "d" for number in numbers)
        self._stages = [_Stage(len(numbers), device) for _ in range(_STAGES if device.type == "cuda" else 1)]
        self._turn = 0

    def send(self, numbers: Sequence[float]) -> None:
        """Bring other numbers to the device, in the order of the stream."""
        if not numbers:
            return
        stage = self._stages[self._turn]
        self._turn = (self._turn + 1) % len(self._stages)
        if stage.sent is not None:
            stage.sent.synchronize()
        struct.pack_into(self._layout, stage.array, 0, *numbers)
        self._words.copy_(stage.words, non_blocking=True)
        if stage.sent is not None:
            stage.sent.record()
