"""Files that are either the old one or the new one, whole: never half written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats.paths import path_of

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Content: TypeAlias = "Buffer | Iterable[Buffer] | Callable[[BinaryIO], object]"
"""The bytes of a file, parts of them that lie one behind the other and can be gone through twice, or a function that
writes them into the binary file it is given."""

_LEFTOVER = re.compile(r"\.openmps-[0-9a-f]{16}\.tmp")
_CHUNK = 1 << 20
_WHO, _RULE = "write_atomic", "must be bytes, a list of them, or a function that writes"
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


def write_atomic(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file so that a reader, or the next start after a crash, finds either the old content or all of the new.

    The bytes go into a new file in the same folder, which is flushed to the disk, read back unless a function wrote it,
    renamed over ``path``, and the folder is flushed too. Whatever fails (a full disk, an exception of ``content``,
    Ctrl-C), the file at ``path`` is untouched and, as long as the folder can be written, no temporary file is left. An
    existing file keeps its permissions, which the temporary one has too; a symbolic link stays a link and the file that
    it points to is replaced.

    Raises ``MPSFileError`` where the folder is missing or the file cannot be written, ``MPSTypeError`` where
    ``content`` is none of these; an exception of ``content`` other than ``OSError`` passes unchanged.
    """
    write_for(_WHO, path, content)


def write_for(who: str, path: str | os.PathLike[str], content: Content) -> None:
    """`write_atomic`, for a function whose name its errors have."""
    if not callable(content) and (isinstance(content, str | Iterator) or not isinstance(content, Iterable)):
        raise MPSTypeError(who, "content", _RULE, type(content).__name__)
    if isinstance(content, memoryview):
        content = content.tobytes()  # one of every second number can be written no other way
    target = Path(os.path.realpath(path_of(path, who)))
    permissions = _permissions(who, target)
    temporary = target.parent / f".openmps-{secrets.token_hex(8)}.tmp"
    try:
        _write_new(temporary, content, permissions)
        temporary.replace(target)
    except OSError as error:
        _discard(temporary)
        rule, remedy = "could not be written", "" if permissions is None else "The previous file is untouched."
        raise MPSFileError(who, str(path), rule, error.strerror or error, remedy) from error
    except BaseException:
        _discard(temporary)
        raise
    _sync_folder(target.parent)


def write_all_atomic(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write several files: all are written, flushed and read back before the first older one is replaced.

    Whatever fails before that leaves every older file untouched. Returns the paths. Raises as `write_atomic`.
    """
    who = "write_all_atomic"
    targets = {path: Path(os.path.realpath(path_of(path, who))) for path in contents}
    for path, target in targets.items():
        if [*targets.values()].count(target) > 1:
            raise MPSFileError(
                who, str(path), "must be another file than the others", "one of them", "Choose other names."
            )
    permissions = {path: _permissions(who, target) for path, target in targets.items()}
    temporary: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            temporary[path] = targets[path].parent / f".openmps-{secrets.token_hex(8)}.tmp"
            _write_new(temporary[path], content, permissions[path])
        for path in contents:
            temporary[path].replace(targets[path])
    except BaseException as error:
        for path in temporary.values():
            _discard(path)
        if not isinstance(error, OSError):
            raise
        rule = "could not be written"
        raise MPSFileError(who, str(next(reversed(temporary))), rule, error.strerror or error) from error
    for folder in {target.parent for target in targets.values()}:
        _sync_folder(folder)
    return list(contents)


def digest_of(parts: Iterable[Buffer]) -> str:
    """The SHA-256 of the file that parts make."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def remove_leftovers(folder: str | os.PathLike[str]) -> list[str]:
    """Remove the temporary files that a process killed inside `write_atomic` left in ``folder``; returns their names.

    To be called when nobody else writes there. A folder that is missing has none.
    """
    folder = path_of(folder, "remove_leftovers", "folder")
    try:
        names = sorted(name for name in os.listdir(folder) if _LEFTOVER.fullmatch(name))
        for name in names:
            Path(folder, name).unlink(missing_ok=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MPSFileError("remove_leftovers", os.fspath(folder), "could not be cleared", error.strerror) from error
    return names


def make_folder(path: str | os.PathLike[str], *, parents: bool = False) -> None:
    """Make the folder ``path``, so that it is there after a crash; one that is there is kept.

    It is made in one that exists, or with ``parents`` with all that are missing.
    """
    folder = Path(os.path.realpath(path_of(path, "make_folder")))
    try:
        if (found := _mode(folder)) is not None and stat.S_ISDIR(found):
            return
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise MPSFileError("make_folder", str(path), "could not be made", error.strerror or error) from error
    _sync_folder(folder.parent)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise ``MPSFileError`` where `write_atomic` would: no folder, no permission, something that is no plain file.

    For those who do much before they write. A disk may still be full then.
    """
    target = Path(os.path.realpath(path_of(path, "write_atomic")))
    _permissions("write_atomic", target)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        rule, refusal = "could not be written", os.strerror(errno.EACCES)
        raise MPSFileError("write_atomic", os.fspath(path), rule, refusal, f"{target.parent} must let files be made")


def flush(path: str | os.PathLike[str]) -> None:
    """Make what was written to a file so far durable."""
    try:
        _sync(path_of(path, "flush"), os.O_RDWR)
    except OSError as error:
        raise MPSFileError("flush", os.fspath(path), "could not be written", error.strerror or error) from error


def _permissions(who: str, target: Path) -> int | None:
    """Those of the file that is there; None where there is none. What no file can take the place of is refused."""
    try:
        folder, found = _mode(target.parent), _mode(target)
    except OSError as error:
        rule = "could not be written"
        raise MPSFileError(who, str(target), rule, error.strerror or error, "It is untouched.") from error
    if folder is None:
        raise MPSFileError(who, str(target), "must be in a folder that exists", None, f"Make {target.parent} first.")
    if not stat.S_ISDIR(folder):
        raise MPSFileError(who, str(target), "must be in a folder", f"{target.parent}, which is a file")
    if found is not None and not stat.S_ISREG(found):
        raise MPSFileError(who, str(target), "must be a plain file or a new name", "a folder or device")
    return None if found is None else stat.S_IMODE(found)


def _mode(path: Path) -> int | None:
    """What ``path`` is, and who may use it; None where nothing is there, which is not the same as no answer."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _discard(temporary: Path) -> None:
    """Remove a temporary file. What made writing fail may forbid this too; `remove_leftovers` tries again."""
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)


def _write_new(path: Path, content: Content, permissions: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if permissions is None else 0o600)
    with open(descriptor, "wb") as file:
        if permissions is not None:
            with contextlib.suppress(OSError):  # a file system without permissions
                path.chmod(permissions | stat.S_IWUSR)
        if callable(content):
            content(file)
        else:
            for part in _parts(content):
                file.write(part)
    # Through a second descriptor, so that a writer which closes the file that it was given does no harm.
    _sync(path, os.O_RDWR)
    if not callable(content):
        _read_back(path, _parts(content))
    if permissions is not None:
        with contextlib.suppress(OSError):
            path.chmod(permissions)


def _parts(content: Buffer | Iterable[Buffer]) -> Iterator[Buffer]:
    for part in (content,) if isinstance(content, bytes | bytearray | memoryview) else content:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise MPSTypeError(_WHO, "content", _RULE, f"{type(part).__name__} among them")
        yield cast("Buffer", part)


def _read_back(path: Path, content: Iterable[Buffer]) -> None:
    """Raise ``OSError`` unless the file at ``path`` holds ``content`` and nothing else."""
    with path.open("rb") as file:
        for part in content:
            whole = memoryview(part)
            for place in range(0, len(whole), _CHUNK):
                wanted = whole[place : place + _CHUNK]
                if memoryview(file.read(len(wanted))) != wanted:
                    raise OSError(errno.EIO, "it reads back otherwise")
        if file.read(1):
            raise OSError(errno.EIO, "it reads back otherwise")


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable. The file is in place by now, so a system that cannot do this is no failure."""
    try:
        _sync(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise MPSFileError("write_atomic", str(folder), "could not be flushed", error.strerror or error) from error
