"""The source as it grows: statements, names, files, the classes that it needs, and since when it runs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from openmps.formats.paths import file_stem
from openmps.formats.swift import classes
from openmps.formats.swift.literals import Names, string
from openmps.graph.nodes import MPSNNFilterNode
from openmps.graph.releases import FIRST, newest

_INDENT = "    "
_WIDTH = 120


def _key(name: str) -> str:
    """What a file system may take two names for."""
    return unicodedata.normalize("NFKC", name).casefold()


class Text:
    """What writers of one model share."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.names = Names()
        self.files: dict[str, bytes] = {}
        self.lines: list[str] = []
        self._classes: list[str] = [classes.FILES]
        self._releases = {FIRST}
        self._stems: set[str] = {f"{model}.swift".lower()}

    # --- statements ---------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A statement of the initializer."""
        self.lines.append(text)

    def call(self, head: str, arguments: Mapping[str, str]) -> None:
        """A call with labelled arguments, in several lines where one is too long."""
        given = [f"{label}: {value}" for label, value in arguments.items()]
        whole = f"{head}({', '.join(given)})"
        if len(whole) + 2 * len(_INDENT) <= _WIDTH:
            self.line(whole)
            return
        self.line(f"{head}(")
        for place, each in enumerate(given):
            self.line(f"{_INDENT}{each}{',' * (place < len(given) - 1)}")
        self.line(")")

    # --- files --------------------------------------------------------------------------------------------------------

    def file(self, stem: str, content: bytes) -> str:
        """The name of a new file, after a layer: each is taken once, whatever the case of its letters."""
        wanted = file_stem(stem)
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
