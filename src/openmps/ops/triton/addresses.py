"""Tables of addresses and numbers that kernels read, where there are too many for arguments.

A capture's memory is used by others between its replays, and none can be had from the device while it is under way: a
table in a capture lies in memory from before, which whoever keeps the capture holds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_ROOM = 1 << 17
"""Numbers of all tables of a capture."""
_here = threading.local()
"""``tables``: those of the capture that is under way on the calling thread."""


class Tables:
    """Memory for the tables that are made while it is entered: filled when the capture has ended."""

    def __init__(self, device: torch.device) -> None:
        self._memory: Tensor | None = torch.empty(_ROOM, dtype=torch.int64, device=device)
        self._numbers: list[int] = []

    def __enter__(self) -> Tables:
        _here.tables = self
        return self

    def __exit__(self, *fault: object) -> None:
        _here.tables = None

    @property
    def room(self) -> int:
        """How many more numbers there is a place for."""
        return _ROOM - len(self._numbers)

    def add(self, numbers: Sequence[int]) -> Tensor:
        """A table that is filled later."""
        assert self._memory is not None
        first = len(self._numbers)
        self._numbers += numbers
        return self._memory[first : len(self._numbers)]

    def fill(self) -> None:
        """Fill the tables, in the order of the current stream; memory without any is let go."""
        if self._memory is None or not self._numbers:
            self._memory = None
            return
        self._memory[: len(self._numbers)].copy_(torch.tensor(self._numbers, dtype=torch.int64))


def has_room(count: int) -> bool:
    """Whether a table of so many numbers can be made now."""
    tables: Tables | None = getattr(_here, "tables", None)
    return tables is None or count <= tables.room


def table(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Numbers on a device, int64, for kernels that are launched behind this. See `has_room`."""
    tables: Tables | None = getattr(_here, "tables", None)
    return torch.tensor(numbers, dtype=torch.int64, device=device) if tables is None else tables.add(numbers)


def zeros(count: int, device: torch.device) -> Tensor:
    """Zeros on a device, int64, for kernels that leave zeros: a capture does not clear them at each replay."""
    if getattr(_here, "tables", None) is None:
        return torch.zeros(count, dtype=torch.int64, device=device)
    return table([0] * count, device)
