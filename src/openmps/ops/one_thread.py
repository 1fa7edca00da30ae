"""Work of the engine's that is too small for several threads, on the CPU: the calling thread does it alone.

A library that splits a step of microseconds has its threads wait for one another at each. Where these are on cores of
one cache that takes less than it saves, where they are not more, and beside a busy process much more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch


@cache
def _setters() -> tuple[Callable[[int], Any], Callable[[int], int] | None] | None:
    """What sets how many threads OpenMP and MKL have work for, of the calling thread alone; None where nothing does.

    `torch.set_num_threads` tells threads that begin meanwhile, too. MKL's function gives what it was told before.
    """
    if not torch.backends.openmp.is_available():
        return None
    try:
        library = ctypes.PyDLL(import_module("torch._C").__file__)
        openmp = library.omp_set_num_threads
        openmp.argtypes, openmp.restype = [ctypes.c_int], None
        mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    except (OSError, AttributeError, TypeError):  # its symbols are not those of what it is linked to
        return None
    if mkl is not None:
        mkl.argtypes, mkl.restype = [ctypes.c_int], ctypes.c_int
    return openmp, mkl


class OneThread:
    """A block in which operations of the CPU have the calling thread alone, if ``applies``; results are the same."""

    __slots__ = ("_before", "_mkl_before")

    def __init__(self, *, applies: bool) -> None:
        # To ask makes the engine set a thread up that it has not seen, so that it does not do so in the block.
        before = torch.get_num_threads() if applies else 1
        self._before = before if before > 1 and _setters() is not None else 0
        self._mkl_before = 0

    def __enter__(self) -> None:
        setters = _setters()
        if self._before and setters is not None:
            openmp, mkl = setters
            if mkl is not None:
                self._mkl_before = mkl(1)
            openmp(1)

    def __exit__(self, *_: object) -> None:
        setters = _setters()
        if self._before and setters is not None:
            openmp, mkl = setters
            openmp(self._before)
            if mkl is not None:
                mkl(self._mkl_before)
