"""A folder that one writer at a time may use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from openmps.errors import MPSFileError

try:
    _fcntl: Any = importlib.import_module("fcntl")
except ImportError:  # Windows has no advisory locks on folders
    _fcntl = None


@contextmanager
def folder_lock(folder: Path, who: str, rule: str) -> Generator[None]:
    """Hold the folder's advisory lock; ``MPSFileError`` with ``rule`` where somebody else holds it.

    The lock leaves nothing on disk and ends with the process at the latest; processes that are forked meanwhile have no
    part in it. Where a system or a file system has no such locks, everybody may enter.
    """
    descriptor = _locked(folder, who, rule) if _fcntl is not None else None
    try:
        yield
    finally:
        # In a forked process it is no longer among those held: it was closed, and its number may be another file's.
        if descriptor is not None and descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


_held: set[int] = set()
"""The descriptors of the locks that this process holds."""


def _let_go() -> None:
    """In a forked process: a lock lasts until all copies of its descriptor are closed."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _locked(folder: Path, who: str, rule: str) -> int | None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise MPSFileError(who, str(folder), "must be a folder that can be opened", error.strerror or error) from error
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise MPSFileError(who, str(folder), rule, "a lock that is held", "Wait until the other one ends.") from error
    except OSError:  # a network file system without locks
        os.close(descriptor)
        return None
    _held.add(descriptor)
    return descriptor
