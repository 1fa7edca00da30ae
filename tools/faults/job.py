"""What is done while something fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """Something that is done on objects and files of its own, made anew for each fault."""

    name: str
    prepare: Callable[[Path], Any]
    """Make what is there before, in an empty folder; what the others are given."""
    act: Callable[[Any], object]
    """What fails. It returns what it made, as bytes or text; what a command buffer reports it raises."""
    older: Callable[[Any], object]
    """What was there before and must still be, as it reads; where it is replaced, None."""
    newer: Callable[[Any], object] = lambda made: None
    """What the act replaces, as it reads: before the act, after a fault and after the act it is one of two values."""
