"""The system that a graph is to run on: ``macos-10.14``, ``ios-12``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from openmps.errors import MPSArgumentError
from openmps.graph.nodes.releases import IOS, order_of

_SYSTEMS = {"macos": "macOS", "ios": "iOS", "tvos": "tvOS"}
_IOS = (*map(str, range(11, 19)), "26")
_VERSIONS = {"macos": ("10.13", "10.14", "10.15", *map(str, range(11, 16)), "26"), "ios": _IOS, "tvos": _IOS}
"""Systems that have MPSNNGraph; of each, any version that begins so."""
_REMEDY = "Write macos-10.14, ios-12 or tvos-12.1"


@dataclass(frozen=True, slots=True)
class Target:
    """A system and its version."""

    system: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """``ios-12.1`` → iOS 12.1; raises `MPSArgumentError` for another text."""
        found = re.fullmatch(r"(macos|ios|tvos)-(\d{1,3}(?:\.\d{1,3}){0,2})", text.lower()) if text else None
        if found is None:
            raise MPSArgumentError("lint", "target", "must be a system and its version", repr(text), _REMEDY)
        system, version = found[1], found[2]
        if not any(f"{version}.".startswith(f"{each}.") for each in _VERSIONS[system]):
            rule = f"must be a version of {_SYSTEMS[system]}: {', '.join(_VERSIONS[system])}"
            raise MPSArgumentError("lint", "target", rule, repr(text))
        return cls(system, version)

    def has(self, macos: str) -> bool:
        """Whether something is there that came with a release of macOS, and the iOS beside it."""
        needed = macos if self.system == "macos" else IOS[macos]
        return _padded(self.version) >= _padded(needed)

    def since(self, macos: str) -> str:
        """A release of macOS in this system's words: macOS 10.15, iOS 13.0."""
        return f"{_SYSTEMS[self.system]} {macos if self.system == 'macos' else IOS[macos]}"

    def __str__(self) -> str:
        return f"{_SYSTEMS[self.system]} {self.version}"


def _padded(version: str) -> tuple[int, ...]:
    return (*order_of(version), 0, 0, 0)[:3]
