"""The list of cases: what is asked of a machine, as data that programs in any language read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

CASES_FILE = Path(__file__).parent / "cases.json"
FORMAT = 1


class Case(NamedTuple):
    """One thing that is asked."""

    name: str
    family: str
    """The row of the page that it counts in."""
    kind: str
    """How its entry is read: ``kernel``, ``graph``, ``training``, ``object``, ``matrices``, ``random``, ``spacing``,
    ``filter``."""
    entry: Mapping[str, Any]
    """All that the list says of it."""

    @property
    def questions(self) -> tuple[str, ...]:
        """The open questions that its answer decides, as K7, by their names in the table of conventions."""
        return tuple(self.entry.get("questions", ()))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that it asks."""
        return tuple(self.entry["classes"])

    @property
    def compares(self) -> str:
        """``numbers``; ``shape`` where numbers are drawn by a generator that nobody has documented."""
        return self.entry.get("compare", "numbers")


class CaseList(NamedTuple):
    """The whole list."""

    cases: Mapping[str, Case]
    controls: Mapping[str, Mapping[str, Any]]
    """Values that are known beyond doubt, by cases: a recorder must find them, and must see that it changed them."""
    digest: str
    """SHA-256 of the cases, by which recordings say what they answer."""


@cache
def cases() -> CaseList:
    """The list that the package holds."""
    document = json.loads(CASES_FILE.read_text(encoding="utf-8"))
    listed = [Case(each["name"], each["family"], each["kind"], each) for each in document["cases"]]
    controls = {each["case"]: each["values"] for each in document["controls"]}
    return CaseList({each.name: each for each in listed}, controls, document["digest"])
