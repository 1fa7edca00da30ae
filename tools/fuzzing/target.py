"""What is fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzing.mutations import BLIND, Mutation


@dataclass(frozen=True)
class Target:
    """A kind of file, and how it is loaded.

    ``write`` puts the honest files into a folder, ``load`` reads them, and ``says`` turns what was loaded into bytes:
    two objects are equal if theirs are. ``is_as_written`` is asked of what a changed file was loaded as, where that is
    not the original: whether it is what the file says now. A file whose checksum shows every change has nothing to ask.
    ``use`` does something with it then, which may end in an error of openmps and in no other.
    ``blind`` and ``knowing`` are mutations; after a knowing one a checksum may fit again.
    """

    name: str
    write: Callable[[Path], None]
    load: Callable[[Path], Any]
    says: Callable[[Any], bytes]
    is_as_written: Callable[[Path, Any], bool]
    knowing: tuple[Mutation, ...]
    blind: tuple[Mutation, ...] = BLIND
    has_checksum: bool = True
    use: Callable[[Any], object] = lambda loaded: None
