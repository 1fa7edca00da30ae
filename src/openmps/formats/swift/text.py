"""The source as it grows: statements, names, files, the classes that it needs, and since when it runs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import pairwise

from openmps.formats.paths import file_stem
from openmps.formats.swift.classes import template
from openmps.formats.swift.literals import Names, string
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.releases import FIRST, newest

_INDENT = "  "
_WIDTH = 99
"""Of a line: what `swift-format` takes by default, which counts the end of the line."""


def _key(name: str) -> str:
    """What a file system may take two names for."""
    return unicodedata.normalize("NFKC", name).casefold()


def laid_out(line: str) -> list[str]:
    """A statement in short lines: where it is longer, each part of its longest bracket has a line."""
    found = _longest_bracket(line) if len(line) > _WIDTH else None
    if found is None:
        return [line]
    start, end = found[0], found[-1]
    indent = line[: len(line) - len(line.lstrip())]
    parts = [line[first + 1 : last].strip() for first, last in pairwise(found)]
    commas = [","] * (len(parts) - 1) + ["," * (line[start] == "[" and len(parts) > 1)]
    rows = [f"{indent}{_INDENT}{part}{comma}" for part, comma in zip(parts, commas, strict=True)]
    return [line[: start + 1], *(each for row in rows for each in laid_out(row)), indent + line[end:]]


def _longest_bracket(line: str) -> list[int] | None:
    """Where the longest outermost bracket with a content opens, its commas, and where it closes."""
    found, places, depth = list[list[int]](), list[int](), 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[()\[\]{},]', line):
        sign, place = match[0], match.start()
        if sign in "([{":
            depth += 1
            if depth == 1:
                places = [place]
        elif sign in ")]}":
            depth -= 1
            if depth == 0 and sign != "}" and place > places[0] + 1:
                found.append([*places, place])
        elif sign == "," and depth == 1:
            places.append(place)
    return max(found, key=lambda each: each[-1] - each[0], default=None)


def call(head: str, arguments: Mapping[str, str]) -> str:
    """A call with labelled arguments."""
    return f"{head}({', '.join(f'{label}: {value}' for label, value in arguments.items())})"


class Text:
    """What writers of one model share."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.names = Names()
        self.files: dict[str, bytes] = {}
        self.lines: list[str] = []
        self._classes: list[str] = [template("files")]
        self._releases = {FIRST}
        self._stems: set[str] = {f"{model}.swift".lower()}

    # --- statements ---------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A statement of the initializer."""
        self.lines.append(text)

    def call(self, head: str, arguments: Mapping[str, str]) -> None:
        """A call with labelled arguments."""
        self.line(call(head, arguments))

    # --- files --------------------------------------------------------------------------------------------------------

    def file(self, stem: str, content: bytes) -> str:
        """The name of a new file, after the model and a layer: each is taken once, whatever the case of its letters.

        A bundle holds the files of all its models in one folder.
        """
        wanted = file_stem(f"{self.model}-{stem}")
        name, count = f"{wanted}.dat", 1
        while _key(name) in self._stems:
            count += 1
            name = f"{wanted}-{count}.dat"
        self._stems.add(_key(name))
        self.files[name] = content
        return name

    def path(self, file: str) -> str:
        """A file in the folder that the initializer is given."""
        return f"folder.appendingPathComponent({string(file)})"

    # --- what it needs ------------------------------------------------------------------------------------------------

    def needs(self, *releases: str) -> None:
        """Something that there is since a release of macOS."""
        self._releases.update(releases)

    @property
    def since(self) -> str:
        """The first macOS that has all that is used."""
        return newest(self._releases)

    def use(self, text: str) -> None:
        """A class that stands beside the model."""
        if text not in self._classes:
            self._classes.append(text)

    @property
    def beside(self) -> Iterable[str]:
        """The classes that stand beside the model, in the order of their first use."""
        return tuple(self._classes)

    def stem(self, node: MPSNNFilterNode) -> str:
        """What a node without a label is called."""
        name = type(node).__name__.removesuffix("Node")
        for prefix in ("MPSCNN", "MPSNN"):
            name = name.removeprefix(prefix)
        return name[:1].lower() + name[1:]
