"""Releases of macOS, and the iOS that goes with each; the table of nodes says since which there is each class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FIRST = "10.13"
"""The macOS that brought MPSNNGraph."""
FIRST_GRADIENTS = "10.13.4"
"""The macOS that brought gradient nodes."""

IOS: Mapping[str, str] = {
    "10.13": "11.0",
    "10.13.4": "11.3",
    "10.14": "12.0",
    "10.14.1": "12.1",
    "10.15": "13.0",
    "11.0": "14.0",
    "12.0": "15.0",
    "13.0": "16.0",
}
"""The iOS, and tvOS, of each macOS."""


def order_of(macos: str) -> tuple[int, ...]:
    """``10.14.1`` as numbers, which compare as releases follow one another."""
    return tuple(int(part) for part in macos.split("."))


def newest(releases: Iterable[str]) -> str:
    """The latest of some releases of macOS, the first one if there are none."""
    return max([FIRST, *releases], key=order_of)
