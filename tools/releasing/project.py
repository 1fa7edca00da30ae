"""What a release is called: the version, where else it stands, its date, and the Pythons that it names."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/openmps/__init__.py"
VERSIONED = {
    SOURCE: r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.+)"$',
}
"""Where the version stands. The first is the one that counts; `cut` writes them all."""
_UNRELEASED = "## [Unreleased]\n"
_SECTION = r"^## \[{}\] - (\d{{4}}-\d\d-\d\d)$"
_DATED = {"CITATION.cff": r"^date-released: (.+)$"}
_PYTHON = re.compile(r"Programming Language :: Python :: (\d+\.\d+)$")
_NUMBER = r"(0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}((a|b|rc){_NUMBER})?")


class ReleaseError(Exception):
    """What keeps a release from being made; its text says what to do."""


def metadata(root: Path = ROOT) -> dict[str, Any]:
    """The project's own table of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version(root: Path = ROOT) -> str:
    """The version of the package; ReleaseError where another place has another one."""
    found = {name: _read(root / name, pattern) for name, pattern in VERSIONED.items()}
    for name, text in found.items():
        if text != found[SOURCE]:
            raise ReleaseError(f"{name} has version {text}, {SOURCE} has {found[SOURCE]}: make cut VERSION=… sets both")
    return found[SOURCE]


def released(of: str, root: Path = ROOT) -> datetime.date:
    """The day of a version's section in the changelog, above which nothing may be unreleased."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(_SECTION.format(re.escape(of)), text, re.MULTILINE)
    if section is None:
        raise ReleaseError(f"CHANGELOG.md has no section of {of}: make cut VERSION={of}")
    left = text.partition(_UNRELEASED)[2].partition("\n## ")[0].strip()
    if left:
        raise ReleaseError(f"CHANGELOG.md says under Unreleased: {left.splitlines()[0]!r}: make cut VERSION=…")
    for name, pattern in _DATED.items():
        if _read(root / name, pattern) != section[1]:
            raise ReleaseError(f"{name} must have the date of the changelog, {section[1]}: make cut VERSION=…")
    return datetime.date.fromisoformat(section[1])


def epoch(day: datetime.date) -> int:
    """SOURCE_DATE_EPOCH of a release: the day's first second in UTC, the same wherever it is built."""
    return int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp())


def pythons(root: Path = ROOT) -> list[str]:
    """The Pythons that the classifiers name, such as 3.11."""
    found = [_PYTHON.match(each) for each in metadata(root)["classifiers"]]
    return [each[1] for each in found if each]


def cut(new: str, day: datetime.date, root: Path = ROOT) -> None:
    """Make what is unreleased the section of a new version, and write that version wherever it stands."""
    if not _VERSION.fullmatch(new):
        raise ReleaseError(f"VERSION must be three numbers, such as 0.3.0 or 0.3.0rc1, got {new!r}")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if re.search(_SECTION.format(re.escape(new)), text, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has a section of {new} already")
    if Version(new) < Version(version(root)):
        raise ReleaseError(f"VERSION must not be earlier than {version(root)}, got {new}")
    if not text.partition(_UNRELEASED)[2].partition("\n## ")[0].strip():
        raise ReleaseError("CHANGELOG.md says nothing under Unreleased")
    changelog.write_text(text.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{new}] - {day}\n", 1), encoding="utf-8")
    for name, pattern in VERSIONED.items():
        _write(root / name, pattern, new)
    for name, pattern in _DATED.items():
        _write(root / name, pattern, str(day))


def _read(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{path.name} has no line {pattern}")
    return found[1]


def _write(path: Path, pattern: str, text: str) -> None:
    before = path.read_text(encoding="utf-8")
    found = re.search(pattern, before, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{path.name} has no line {pattern}")
    path.write_text(before[: found.start(1)] + text + before[found.end(1) :], encoding="utf-8")
