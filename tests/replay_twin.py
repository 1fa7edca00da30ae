"""The CPU twin of what captures CUDA graphs, and queues that use it.

It runs a static function again over the same memory, and what comes out lands in the memory of the first replay, as it
does with a CUDA graph: who keeps a result without a copy sees the next one in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import openmps as mps
from openmps.runtime.binding import copied
from openmps.runtime.replay.recorder import CudaRecorder
from openmps.runtime.replay.replayer import Replayer


def _each(values: Iterable[Any]) -> Iterator[Tensor | None]:
    """The tensors of values, those of tuples one by one."""
    for value in values:
        yield from _each(value) if isinstance(value, tuple) else (value,)


class TwinRecording:
    """What was captured: the static function itself."""

    def __init__(self, run: Callable[[], Sequence[Tensor | None]]) -> None:
        self._run = run
        self.values: list[Tensor | None] = []

    def replay(self) -> None:
        made = self._run()
        if not self.values:
            self.values = [*map(copied, made)]
        for place, value in zip(_each(self.values), _each(made), strict=True):
            assert (place is None) == (value is None)
            if place is not None and value is not None:
                assert (place.shape, place.dtype) == (value.shape, value.dtype)
                place.copy_(value)


class TwinRecorder:
    """Captures by keeping the static function."""

    def __init__(self) -> None:
        self.recorded = self.retired = 0

    def is_taken(self) -> bool:
        return False

    def record(self, run: Callable[[], Sequence[Tensor | None]]) -> TwinRecording:
        self.recorded += 1
        return TwinRecording(run)

    def retire(self) -> None:
        self.retired += 1


def replaying_queue(device: mps.MTLDevice | torch.device | str = "cpu", min_steps: int = 0) -> mps.MTLCommandQueue:
    """A queue that captures and replays whatever it can: with the twin on the CPU, with CUDA graphs on a GPU."""
    made = mps.mtl_device(device)
    queue = made.new_command_queue()
    recorder = CudaRecorder(made.torch_device) if made.is_cuda else TwinRecorder()
    queue._executor.player = Replayer(made.torch_device, recorder, min_steps)
    return queue


def replayer_of(queue: mps.MTLCommandQueue) -> Replayer:
    player = queue._executor.player
    assert isinstance(player, Replayer)
    return player


def outcomes(command_buffer: mps.CommandBuffer) -> list[str]:
    """What became of each work of a buffer that has run."""
    return [work.outcome.value for work in command_buffer.explain().works]


def assert_same(found: np.ndarray, expected: np.ndarray, device: torch.device, what: str = "") -> None:
    """Equal bit for bit; on a GPU, whose convolutions add in any order, to rounding."""
    if device.type == "cpu":
        np.testing.assert_array_equal(found, expected, err_msg=what)
    else:
        scale = float(np.abs(expected).max()) if expected.size else 0.0
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * scale + 1e-6, err_msg=what)
