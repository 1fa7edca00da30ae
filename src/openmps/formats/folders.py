"""New folders that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from openmps.errors import MPSFileError
from openmps.formats.paths import path_of


def require_new_folder(path: str | os.PathLike[str], who: str) -> Path:
    """The path, where there is nothing yet."""
    target = path_of(path, who, "folder")
    if os.path.lexists(target):
        rule, remedy = "must be a new folder", "Choose another name, or remove it."
        raise MPSFileError(who, str(path), rule, "something there", remedy)
    return target


@contextmanager
def whole_folder(path: str | os.PathLike[str], who: str) -> Generator[Path]:
    """A folder to be filled, which becomes ``path`` when the block ends, and goes when it fails.

    Folders above it that are missing are made.

    Raises:
        MPSFileError: ``path`` is there, or cannot be written.
    """
    target = require_new_folder(path, who)
    temporary = target.parent / f".openmps-{secrets.token_hex(8)}.tmp"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(target)
    except OSError as error:
        raise MPSFileError(who, str(path), "could not be written", error.strerror or error) from error
    except MPSFileError as error:
        place, remedy = (text.replace(str(temporary), str(path)) for text in (error.argument, error.remedy))
        raise MPSFileError(error.who, place, error.rule, error.got, remedy) from error.__cause__
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)
