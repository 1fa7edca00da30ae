"""Memory of the CPU device: freed blocks are kept and used again.

A training step takes and frees blocks of megabytes in the same pattern each time. glibc hands such blocks back to the
system at once and asks for them anew, and every page of them is then cleared and mapped again: a fifth of the step of a
small network. Keeping them costs at most `KEPT_BYTES` of memory that the process has used before.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

KEPT_BYTES = 1 << 30
"""Freed memory at the top of the heap that is kept."""

_LARGEST_ON_HEAP = 32 << 20  # glibc's upper limit of M_MMAP_THRESHOLD
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # malloc.h
_SETTINGS = (
    (_MMAP_THRESHOLD, _LARGEST_ON_HEAP),
    (_TRIM_THRESHOLD, KEPT_BYTES),
    (_TOP_PAD, 64 << 20),
    # A queue works on a thread of its own; other arenas than the first give whole heaps back.
    (_ARENA_MAX, 1),
)


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks, once a process; returns whether it does.

    Called when the first queue of the CPU device is made. The setting is the process's: ``OPENMPS_KEEP_MEMORY=0`` in
    the environment leaves it alone. Other C libraries are left as they are.
    """
    if os.environ.get("OPENMPS_KEEP_MEMORY", "1") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in _SETTINGS)
