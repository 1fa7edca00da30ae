"""The page of faults as data: of each fault its commands, and what of their output tells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "debugging.md"
_FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


class Section(NamedTuple):
    """One fault on the page."""

    commands: tuple[str, ...]
    """Lines of the shell."""
    statements: tuple[str, ...]
    """Lines of Python."""
    tells: tuple[tuple[str, ...], ...]
    """Of each line that tells, the pieces that it holds, in order."""

    @property
    def count(self) -> int:
        return len(self.commands) + len(self.statements)


def sections() -> dict[str, Section]:
    """The faults by their headings."""
    text = PAGE.read_text()
    part = text[text.index("## Ten faults") :]
    found: dict[str, Section] = {}
    for section in re.split(r"^### ", part, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        blocks = {language: code.strip().splitlines() for language, code in _FENCE.findall(body)}
        tells = tuple(tuple(line.split("…")) for line in blocks["text"])
        found[title] = Section(tuple(blocks.get("sh", ())), tuple(blocks.get("python", ())), tells)
    return found


def holds(output: str, pieces: tuple[str, ...]) -> bool:
    """Whether one line of the output has all pieces in order."""
    pattern = ".*".join(r"\s+".join(map(re.escape, piece.split())) for piece in pieces)
    return any(re.search(pattern, line) for line in output.splitlines())
