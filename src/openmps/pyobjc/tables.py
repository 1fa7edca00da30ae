"""Two tables of what headers declare.

A line for each declaration, with its header and what it is: of a class its superclass and protocols, of a protocol the
word, of an enumeration the code of its integers, of a function nothing more. Below, indented, ``-`` and ``+`` are
methods with the types of the result and of the arguments, ``@`` properties with theirs, ``=`` values of an enumeration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FRAMEWORK = Path(__file__).with_name("framework.txt")
"""The headers of Metal Performance Shaders."""
METAL = Path(__file__).with_name("metal.txt")
"""What scripts use of Metal, whose objects are known by their protocols."""


@dataclass(frozen=True)
class Block:
    """A declaration as the table has it; of each member the first word, with its sign, and the rest."""

    name: str
    header: str
    kind: str
    members: tuple[tuple[str, str], ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The first words of the members that are available."""
        return tuple(first for first, said in self.members if said != "unavailable")


def read(path: Path) -> Iterator[Block]:
    """The declarations of a table."""
    for block in re.split(r"\n(?! )", path.read_text(encoding="utf-8").strip()):
        head, *rest = block.split("\n")
        name, header, kind = (*head.split(" ", 2), "")[:3]
        parts = (each.strip().partition(" ") for each in rest)
        yield Block(name, header, kind, tuple((first, said) for first, _, said in parts))


@cache
def blocks() -> Mapping[str, Block]:
    """Every declaration, by its name."""
    return {each.name: each for path in (METAL, FRAMEWORK) for each in read(path)}


@cache
def enumeration_codes() -> Mapping[str, str]:
    """The encoding of every enumeration's integers, by its name."""
    return {each.name: each.kind for each in blocks().values() if len(each.kind) == 1}
