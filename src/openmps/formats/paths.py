"""Files and folders that a user names: there and of the right kind, or an error that says what is there instead."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from openmps.errors import MPSFileError

_NONE = "nothing there"


def require_file(path: str | os.PathLike[str], who: str) -> int:
    """The length in bytes of the plain file at ``path``; ``MPSFileError`` where there is none."""
    if not os.path.isfile(path):
        rule = "must be a file"
        raise MPSFileError(who, os.fspath(path), rule, "a folder or device" if os.path.exists(path) else _NONE)
    with reading(path, who):
        return os.stat(path).st_size


def require_folder(path: str | os.PathLike[str], who: str) -> None:
    """Raise ``MPSFileError`` unless ``path`` is a folder."""
    if not os.path.isdir(path):
        raise MPSFileError(who, os.fspath(path), "must be a folder", "a file" if os.path.exists(path) else _NONE)


def read_file(path: str | os.PathLike[str], who: str) -> bytes:
    """All bytes of the plain file at ``path``."""
    require_file(path, who)
    with reading(path, who):
        return Path(path).read_bytes()


def visible_entries(path: str | os.PathLike[str], who: str) -> list[Path]:
    """What the folder at ``path`` holds, by name, without hidden files and folders."""
    require_folder(path, who)
    with reading(path, who):
        return sorted((entry for entry in Path(path).iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)


@contextmanager
def reading(path: str | os.PathLike[str], who: str, rule: str = "could not be read") -> Generator[None]:
    """Raise ``MPSFileError`` where the system refuses what is done within."""
    try:
        yield
    except OSError as error:
        raise MPSFileError(who, os.fspath(path), rule, error.strerror or error) from error
