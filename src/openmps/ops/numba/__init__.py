"""Faster forms of filters and recurrent layers on the CPU, as loops that Numba compiles: of the extra ``filters``.

`library` loads it when a filter that has such a form first runs on a picture that is not small, or a layer over several
steps.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from openmps.locks import new_reentrant_lock

LARGE = 1 << 16
"""Numbers of a picture that are worth loading it."""
preparing = new_reentrant_lock()
"""Held while a thread loads or compiles: a fork waits for that, as its process would have Numba's locks closed."""


def _hold() -> None:
    preparing.__enter__()


def _let_go() -> None:
    with suppress(RuntimeError):  # an interrupt ended the wait for it
        preparing.__exit__(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)


@cache
def is_installed() -> bool:
    """Whether the package is there; nothing is loaded."""
    return find_spec("numba") is not None


@cache
def _loaded() -> Any:
    with preparing:
        return _load()


def _load() -> Any:
    fault: object = None
    try:
        found = import_module("numba")
        if not found.config.DISABLE_JIT:
            return found
        fault = "NUMBA_DISABLE_JIT is set"
    except (ImportError, OSError) as error:
        fault = error
    logging.getLogger(__name__).warning("Numba cannot be used, so filters and layers take other forms: %s", fault)
    return None


_ends: list[bool] = []
"""Whether the process ends."""
atexit.register(_ends.append, True)


def library() -> Any:
    """The module ``numba``; None where there is none, and at the end of a process that has not loaded it.

    What it makes then would be gone before the objects that hold it.
    """
    if _ends and "numba" not in sys.modules:
        return None
    return _loaded() if is_installed() else None


def takes(x: Tensor) -> bool:
    """Whether there are loops for these float32 numbers, and enough of them."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() >= LARGE and library() is not None
