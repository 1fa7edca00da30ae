"""Standard output and errors, through one filter: names in files of strangers may be of any characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
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


class PrintableErrors(Printable):
    """The stream of errors and notes: where nobody can read them, results are given all the same."""

    def write(self, text: str) -> int:
        """Write text, or nothing from the first that cannot be written on."""
        try:
            return super().write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Write what was kept back."""
        try:
            self.unfiltered.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        with suppress(OSError, ValueError):  # a stream that is no file
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.unfiltered.fileno())
            os.close(nowhere)


@contextmanager
def printable_streams() -> Generator[None]:
    """Filter the standard streams within."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Printable(before[0]), PrintableErrors(before[1])  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
