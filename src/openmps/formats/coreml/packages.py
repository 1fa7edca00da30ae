"""Packages and files of Core ML on the disk: the message of a model, and where its weights lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from openmps.errors import MPSFileError
from openmps.formats.coreml.protos import Protos
from openmps.formats.json_text import parsed
from openmps.formats.paths import beneath, is_folder, path_of, read_file

READER = "openmps.formats.coreml"
"""Who refuses a package."""
MANIFEST, DATA = "Manifest.json", "Data"
_LARGEST_MANIFEST = 1 << 20
_LARGEST_MODEL = (1 << 31) - 1
"""Bytes of a message: the encoding goes no further."""
_FIRST = (b"\x08", b"\x12")
"""How a model begins: its version, or its description."""
SUFFIXES = (".mlpackage", ".mlmodel")


@dataclass(frozen=True)
class Package:
    """A model as it lies on the disk."""

    message: Any
    """The ``Model`` of coremltools."""
    folder: Path | None
    """What paths of weights begin at; None for a file by itself."""
    size: int
    """Bytes of the message."""


def read_package(path: str | os.PathLike[str], protos: Protos) -> Package:
    """The model of a package, which is a folder, or of a file.

    Raises:
        MPSFileError: There is none, or it is damaged.
    """
    where = path_of(path, READER)
    file = _model_file(where) if is_folder(where, READER) else where
    data = read_file(file, READER, _LARGEST_MODEL, begins=_FIRST, what="a Core ML model")
    try:
        message = protos.model.Model.FromString(data)
    except Exception as error:  # of the protobuf package, which may be another one at each release
        why = f"it cannot be parsed ({type(error).__name__})"
        raise damaged(os.fspath(path), why) from error
    return Package(message, None if file == where else file.parent, len(data))


def damaged(what: str, why: str) -> MPSFileError:
    """That a file or package is none of Core ML, or a damaged one."""
    return MPSFileError(READER, what, f"is no Core ML model, or a damaged one: {why}", None, "Export it again")


def _model_file(folder: Path) -> Path:
    """The file of the model that the manifest of a package names."""
    text = read_file(folder / MANIFEST, READER, _LARGEST_MANIFEST)
    try:
        manifest = cast("Any", parsed(text.decode()))
        location = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(os.fspath(folder), f"its {MANIFEST} names no model ({type(error).__name__})") from error
    found = beneath(folder / DATA, location) if isinstance(location, str) else None
    if found is None:
        raise damaged(os.fspath(folder), f"its {MANIFEST} names a model outside of {DATA}: {str(location)[:200]!r}")
    return found
