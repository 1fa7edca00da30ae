"""Standard output and errors, through one filter: names in files of strangers may be of any characters."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, TextIO

from openmps.errors import printable


class Printable:
    """A stream of text that writes what moves the cursor of a terminal, line ends apart, as what it is called."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write text; every line is printable then."""
        self.unfiltered.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


@contextmanager
def printable_streams() -> Generator[None]:
    """Filter the standard streams within."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Printable(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
