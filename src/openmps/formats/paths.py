"""Files and folders that a user names: there and of the right kind, or an error that says what is there instead."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from openmps.checks import OF_MEMORY
from openmps.errors import MPSError, MPSFileError, MPSMemoryError, MPSTypeError

LARGEST = 4 << 30
"""Bytes of the longest file that is read as a whole, unless a reader says less."""
_NONE = "nothing there"
_SCARCE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""What the machine lacks, which says nothing about the file."""


def path_of(path: object, who: str, argument: str = "path") -> Path:
    """``path`` as one that the system can be asked for.

    Raises:
        MPSTypeError: It is neither text nor a `Path`.
        MPSFileError: It holds a null character, or others that no name of a file can have.
    """
    plain = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(plain, str):
        raise MPSTypeError(who, argument, "must be a path, as text or a Path", type(path).__name__)
    try:
        is_allowed = b"\0" not in os.fsencode(plain)
    except UnicodeEncodeError:
        is_allowed = False
    if not is_allowed:
        rule = "must be a path that the system can have, without null characters"
        raise MPSFileError(who, argument, rule, repr(plain))
    return Path(plain)


def require_file(path: str | os.PathLike[str], who: str, most: int = LARGEST) -> int:
    """The length in bytes of the plain file at ``path``; ``MPSFileError`` where there is none, or a longer one."""
    found = _status(path, who)
    if found is None or not stat.S_ISREG(found.st_mode):
        raise MPSFileError(who, os.fspath(path), "must be a file", "a folder or device" if found else _NONE)
    if not os.access(path, os.R_OK):
        refusal = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise MPSFileError(who, os.fspath(path), "could not be read", refusal.strerror) from refusal
    length = found.st_size
    if length > most:
        raise MPSFileError(who, os.fspath(path), f"must be no longer than {most:,} bytes", f"{length:,}")
    return length


def is_there(path: str | os.PathLike[str], who: str) -> bool:
    """Whether there is something at ``path``; ``MPSFileError`` where the system does not say."""
    return _status(path, who) is not None


def is_file(path: str | os.PathLike[str], who: str) -> bool:
    """Whether there is a plain file at ``path``; ``MPSFileError`` where the system does not say."""
    found = _status(path, who)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: str | os.PathLike[str], who: str) -> bool:
    """Whether there is a folder at ``path``; ``MPSFileError`` where the system does not say."""
    found = _status(path, who)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths lead to one file, or would if it were there."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one is not there, or cannot be looked at: its reader says so
        return os.path.realpath(one) == os.path.realpath(other)


def is_within(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path, links followed, leads to a place in a folder, whether there is something or not."""
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def beneath(folder: str | os.PathLike[str], location: str) -> Path | None:
    """The path of a relative name within a folder, links followed; None where it leads out of it, or names nothing."""
    try:
        os.fsencode(location)
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can hold
        return None
    if not location or "\0" in location or os.path.isabs(location) or "\\" in location:
        return None
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, location))
    return Path(path) if path.startswith(os.path.join(root, "")) else None


def is_forbidden(error: MPSFileError) -> bool:
    """Whether a file could not be read for lack of permission, which says nothing of what it holds."""
    return isinstance(error.__cause__, PermissionError)


def require_folder(path: str | os.PathLike[str], who: str) -> None:
    """Raise ``MPSFileError`` unless ``path`` is a folder."""
    found = _status(path, who)
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise MPSFileError(who, os.fspath(path), "must be a folder", "a file" if found else _NONE)


def _status(path: str | os.PathLike[str], who: str) -> os.stat_result | None:
    """What is at ``path``; None where there is nothing, which is something else than no permission to look."""
    path = path_of(path, who)
    with reading(path, who):
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None


def read_file(
    path: str | os.PathLike[str], who: str, most: int = LARGEST, *, begins: tuple[bytes, ...] = (), what: str = ""
) -> bytes:
    """All bytes of the plain file at ``path``, of which there may be ``most``.

    Of one that does not begin as ``what`` does, no more than its beginning is read.
    """
    length = require_file(path, who, most)
    with reading(path, who), Path(path).open("rb") as file:
        start = file.read(max(map(len, begins), default=0))
        if begins and not start.startswith(begins):
            raise MPSFileError(who, os.fspath(path), f"must be {what}", "something that does not begin as one")
        file.seek(0)
        return file.read(length)


def begins_with(path: str | os.PathLike[str], who: str, start: bytes) -> bool:
    """Whether the plain file at ``path`` begins with some bytes."""
    require_file(path, who)
    with reading(path, who), Path(path).open("rb") as file:
        return file.read(len(start)) == start


def visible_entries(path: str | os.PathLike[str], who: str) -> list[Path]:
    """What the folder at ``path`` holds, by name, without hidden files and folders."""
    require_folder(path, who)
    with reading(path, who):
        return sorted((entry for entry in Path(path).iterdir() if not entry.name.startswith(".")), key=lambda e: e.name)


def shortage(error: BaseException) -> type[MPSError] | None:
    """The error for want of memory or of open files, where that is what a library's error comes from; else None.

    Libraries written in C put it into words: pillow raises an OSError without a number, zlib an error with its own.
    """
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, MemoryError) or OF_MEMORY.search(str(cause)):
            return MPSMemoryError
        if isinstance(cause, OSError) and cause.errno in _SCARCE:
            return MPSMemoryError if cause.errno == errno.ENOMEM else MPSError
    return None


@contextmanager
def reading(path: str | os.PathLike[str], who: str, rule: str = "could not be read") -> Generator[None]:
    """Raise ``MPSFileError`` where the system refuses what is done within.

    Where the machine is short of memory or of open files it is ``MPSMemoryError`` or ``MPSError``: nothing is wrong
    with the file, which must not be taken for a damaged one.
    """
    try:
        yield
    except MemoryError as error:
        remedy = "Free some, or use smaller files."
        raise MPSMemoryError(who, os.fspath(path), "needs more memory than there is", None, remedy) from error
    except OSError as error:
        kind = MPSError if error.errno in _SCARCE else MPSFileError
        raise kind(who, os.fspath(path), rule, error.strerror or error) from error


_LONGEST_STEM = 200
"""Bytes of the stem of a file's name; systems take 255 with what is added."""


def file_stem(label: str) -> str:
    """A label as the stem of a file's name: characters that some system or an app's bundle refuses become underscores.

    Colons and slashes among them, blanks, and ``@``, which stands before a scale in a bundle.
    """
    stem = re.sub(r'[/\\:*?"<>|@\x00-\x20\x7f\ud800-\udfff]', "_", label)
    stem = stem.encode()[:_LONGEST_STEM].decode(errors="ignore")
    return f"_{stem[1:]}" if stem.startswith((".", "-")) else stem
