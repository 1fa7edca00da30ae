"""What fails, and where: calls of the system, allocations, and callbacks of a user, counted and made to fail."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch


class OfUserError(Exception):
    """What the callbacks of a user raise."""


@dataclass(frozen=True)
class Kind:
    """A kind of place: how its failure looks."""

    faults: tuple[tuple[str, Callable[[], BaseException]], ...]
    is_of_user: bool = False
    """Whether what is raised is the caller's own, and may come back as it is."""


def _system(*numbers: int) -> Kind:
    errors = [(errno.errorcode[each], functools.partial(OSError, each, os.strerror(each))) for each in numbers]
    return Kind((*errors, ("KeyboardInterrupt", KeyboardInterrupt)))


_CPU_TEXT = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
_MEMORY = Kind(
    (
        ("MemoryError", MemoryError),
        ("torch.OutOfMemoryError", lambda: torch.OutOfMemoryError("out of memory. Tried to allocate 2.00 GiB.")),
        ("RuntimeError of the CPU's allocator", lambda: RuntimeError(_CPU_TEXT)),
        ("KeyboardInterrupt", KeyboardInterrupt),
    )
)
_ARRAY = Kind((("MemoryError", MemoryError), ("KeyboardInterrupt", KeyboardInterrupt)))
OF_USER = Kind(
    (("OfUserError", lambda: OfUserError("mine")), ("KeyboardInterrupt", KeyboardInterrupt)),
    is_of_user=True,
)

SYSTEM: dict[str, Kind] = {
    "open": _system(errno.EACCES, errno.EIO, errno.ENOSPC, errno.EMFILE),
    "write": _system(errno.ENOSPC, errno.EIO),
    "read": _system(errno.EIO),
    "fsync": _system(errno.EIO, errno.ENOSPC),
    "replace": _system(errno.EACCES, errno.EIO, errno.ENOSPC),
    "unlink": _system(errno.EACCES, errno.EIO),
    "mkdir": _system(errno.ENOSPC, errno.EACCES, errno.EIO),
    "listdir": _system(errno.EACCES, errno.EIO),
    "stat": _system(errno.EACCES, errno.EIO),
    "chmod": _system(errno.EPERM),
    "truncate": _system(errno.EIO),
}
"""Calls of the operating system, by their names in `os`."""
ALLOCATIONS: dict[str, tuple[Any, str, Kind]] = {
    "torch.empty": (torch, "empty", _MEMORY),
    "torch.zeros": (torch, "zeros", _MEMORY),
    "torch.empty_like": (torch, "empty_like", _MEMORY),
    "torch.full": (torch, "full", _MEMORY),
    "Tensor.clone": (torch.Tensor, "clone", _MEMORY),
    "Tensor.contiguous": (torch.Tensor, "contiguous", _MEMORY),
    "conv2d": (torch.nn.functional, "conv2d", _MEMORY),
    "max_pool2d": (torch.nn.functional, "max_pool2d", _MEMORY),
    "torch.relu": (torch, "relu", _MEMORY),
    "numpy.empty": (np, "empty", _ARRAY),
    "numpy.zeros": (np, "zeros", _ARRAY),
    "numpy.ascontiguousarray": (np, "ascontiguousarray", _ARRAY),
}
"""Calls that take memory: where they are found, and how they fail."""


def kind_of(place: str) -> Kind:
    """How a place fails; what is not in the tables is a callback of a user."""
    if place in SYSTEM:
        return SYSTEM[place]
    return ALLOCATIONS[place][2] if place in ALLOCATIONS else OF_USER


class Strike:
    """Counts what is reached, and fails at one call of one place, or from that call on."""

    def __init__(
        self, place: str = "", call: int = 0, make: Callable[[], BaseException] | None = None, lasting: bool = False
    ) -> None:
        self.place, self.call, self.lasting = place, call, lasting
        self.counts: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self._make = make

    def reach(self, place: str) -> None:
        """Called at every place; raises where it is the one."""
        self.counts[place] += 1
        count = self.counts[place]
        if place != self.place or self._make is None:
            return
        if count == self.call or (self.lasting and count > self.call):
            self.raised.append(self._make())
            raise self.raised[-1]

    @contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        """Count and strike at calls that concern ``folder``, at allocations and callbacks, while within."""
        global _current
        _current = self
        try:
            with ExitStack() as stack:
                for name in SYSTEM:
                    if name not in ("read", "write"):
                        stack.enter_context(mock.patch.object(os, name, self._of_system(name, str(folder))))
                stack.enter_context(mock.patch.object(os, "write", self._short_write(os.write)))
                opened = self._opened(io.open, str(folder))
                for module in (io, builtins):
                    stack.enter_context(mock.patch.object(module, "open", opened))
                for place, (owner, name, _) in ALLOCATIONS.items():
                    stack.enter_context(mock.patch.object(owner, name, self._counted(place, getattr(owner, name))))
                yield
        finally:
            _current = None

    def _counted(self, place: str, original: Any) -> Any:
        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            self.reach(place)
            return original(*arguments, **options)

        return call

    def _of_system(self, name: str, folder: str) -> Any:
        original = getattr(os, name)

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            if _is_in(arguments[0] if arguments else ".", folder):
                self.reach(name)
            return original(*arguments, **options)

        return call

    def _short_write(self, original: Any) -> Any:
        def write(descriptor: int, data: Any) -> int:
            try:
                self.reach("write")
            except BaseException:
                original(descriptor, bytes(data)[: len(data) // 2])
                raise
            return original(descriptor, data)

        return write

    def _opened(self, original: Any, folder: str) -> Any:
        """Files whose reads and writes are counted, and half written where they fail."""

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "b" not in mode or not _is_in(file, folder):
                return original(file, mode, *arguments, **options)
            if not isinstance(file, int):
                self.reach("open")
            raw = _Raw(file, mode.replace("b", ""))
            raw.strike = self
            return io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)

        return opened


class _Raw(io.FileIO):
    strike: Strike

    def write(self, data: Any, /) -> int:
        try:
            self.strike.reach("write")
        except BaseException:
            super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)

    def readinto(self, buffer: Any, /) -> int:
        self.strike.reach("read")
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.strike.reach("read")
        return super().readall()


def _is_in(path: Any, folder: str) -> bool:
    if isinstance(path, int):
        return path > 2
    return os.path.abspath(os.fsdecode(path)).startswith(folder)


_current: Strike | None = None


def reach(place: str) -> None:
    """Called by the callbacks of the jobs."""
    if _current is not None:
        _current.reach(place)
