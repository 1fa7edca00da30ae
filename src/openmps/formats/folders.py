"""Folders that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from openmps.checks import flag
from openmps.errors import MPSFileError
from openmps.formats.paths import path_of


def require_new_folder(path: str | os.PathLike[str], who: str, *, replace: bool = False) -> Path:
    """The path, where there is nothing yet; or, with ``replace``, a folder."""
    target = path_of(path, who, "folder")
    may_be_there = flag(who, "replace", replace) and os.path.isdir(target) and not os.path.islink(target)
    if os.path.lexists(target) and not may_be_there:
        rule, remedy = "must be a new folder", "Choose another name, or remove it."
        raise MPSFileError(who, str(path), rule, "something there", remedy)
    return target


@contextmanager
def whole_folder(path: str | os.PathLike[str], who: str, *, replace: bool = False) -> Generator[Path]:
    """A folder to be filled, which becomes ``path`` when the block ends, and goes when it fails.

    Folders above it that are missing are made. With ``replace`` it takes the place of a folder all of whose files it
    has, too: none is lost.

    Raises:
        MPSFileError: ``path`` is there, or has other files, or cannot be written.
    """
    target = require_new_folder(path, who, replace=replace)
    temporary = target.parent / f".openmps-{secrets.token_hex(8)}.tmp"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if replace and os.path.isdir(target):
            _replace(target, temporary, who)
        else:
            temporary.rename(target)
    except OSError as error:
        raise MPSFileError(who, str(path), "could not be written", error.strerror or error) from error
    except MPSFileError as error:
        place, remedy = (text.replace(str(temporary), str(path)) for text in (error.argument, error.remedy))
        raise MPSFileError(error.who, place, error.rule, error.got, remedy) from error.__cause__
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)


def _replace(target: Path, made: Path, who: str) -> None:
    """Put a folder in the place of one that has no files but those that are in this one, too."""
    lost = sorted(_files(target) - _files(made))
    if lost:
        rule = "must hold no files but those that are written anew"
        raise MPSFileError(who, str(target), rule, ", ".join(lost[:8]), "Remove them, or choose another name.")
    former = made.with_name(f".openmps-{secrets.token_hex(8)}.tmp")
    target.rename(former)
    try:
        made.rename(target)
    except BaseException:
        former.rename(target)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_symlink() or not each.is_dir()}
