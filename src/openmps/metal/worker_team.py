"""The team of the engine's threads that a worker gets by launching, on the CPU, and gives back when it rests.

Where the teams of a process have more threads than there are cores, all of them fall asleep between two parallel loops,
those of other threads, too: what has hundreds of such loops then takes four times as long. See `openmps.metal.patience`
for why a worker launches at all there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module

import torch

_SOFT = 1
"""The kind of pause after which the next parallel loop makes a team as the first one did."""


@cache
def _pause() -> Callable[[int], int] | None:
    """OpenMP's function that gives the calling thread's team back; None where there is none."""
    if not torch.backends.openmp.is_available():
        return None
    try:
        found = ctypes.CDLL(import_module("torch._C").__file__).omp_pause_resource_all
    except (OSError, AttributeError, TypeError):  # its symbols are not those of what it is linked to
        return None
    found.argtypes, found.restype = [ctypes.c_int], ctypes.c_int
    return found


class WorkerTeam:
    """The team of one worker, whose own thread alone calls this."""

    __slots__ = ("is_too_much",)

    def __init__(self) -> None:
        self.is_too_much = False
        """Whether there is one, for which there are no cores."""

    def give_back(self) -> None:
        """The worker rests: let the threads of the team end."""
        pause = _pause() if self.is_too_much else None
        self.is_too_much = False
        if pause is not None:
            pause(_SOFT)
