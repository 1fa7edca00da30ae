"""Files and folders that a user names: there and of the right kind, or an error that says what is there instead."""

from __future__ import annotations

import os
from pathlib import Path

from openmps.errors import MPSFileError

_NONE = "nothing there"


def require_file(path: str | os.PathLike[str], who: str) -> int:
    """The length in bytes of the plain file at ``path``; ``MPSFileError`` where there is none."""
    if not os.path.isfile(path):
        raise MPSFileError(
            who, os.fspath(path), "must be a file", "a folder or device" if os.path.exists(path) else _NONE
        )
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise unreadable(path, who, error) from error


def require_folder(path: str | os.PathLike[str], who: str) -> None:
    """Raise ``MPSFileError`` unless ``path`` is a folder."""
    if not os.path.isdir(path):
        raise MPSFileError(who, os.fspath(path), "must be a folder", "a file" if os.path.exists(path) else _NONE)


def read_file(path: str | os.PathLike[str], who: str) -> bytes:
    """All bytes of the plain file at ``path``."""
    require_file(path, who)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, who, error) from error


def visible_entries(path: str | os.PathLike[str], who: str) -> list[Path]:
    """What the folder at ``path`` holds, by name, without hidden files and folders."""
    require_folder(path, who)
    try:
        return sorted((entry for entry in Path(path).iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise unreadable(path, who, error) from error


def unreadable(path: str | os.PathLike[str], who: str, error: OSError) -> MPSFileError:
    """The error to raise where the system refuses to read what is there."""
    return MPSFileError(who, os.fspath(path), "could not be read", error.strerror or error)
