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


def give_team_back() -> None:
    """Let the threads of the calling thread's team end; its next parallel loop makes others."""
    pause = _pause()
    if pause is not None:
        pause(_SOFT)
