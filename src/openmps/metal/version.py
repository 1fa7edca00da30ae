"""Versions: what is derived from something knows which version of it that was, and compares when it is read."""

from __future__ import annotations


class Version:
    """Counts the changes of its one owner."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def advance(self) -> None:
        """Say that the owner has changed."""
        self.number += 1
