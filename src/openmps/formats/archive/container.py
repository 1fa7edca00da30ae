"""The bytes of an archive: one safetensors file whose header carries a JSON document and a checksum of everything.

Archives of kernels and checkpoints of a training are such files; their documents tell them apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from openmps.checks import memory_for
from openmps.errors import MPSFileError
from openmps.formats.json_text import parsed
from openmps.formats.paths import reading, require_file
from openmps.formats.safetensors_parts import SafetensorsParts

Arrays = dict[str, NDArray[Any]]

VERSION = 1
_LARGEST_HEADER = 32 << 20
"""Bytes of a document with its names: read as JSON, it takes a multiple of that."""
_KEY = "openmps.archive"
"""One entry: several would stand in the header in an order that changes from run to run."""
_HEADER_LENGTH = 8


def pack(document: dict[str, Any], arrays: Arrays) -> bytes:
    """A document and its arrays as bytes."""
    return joined(parts_of(document, arrays))


def parts_of(document: dict[str, Any], arrays: Arrays) -> SafetensorsParts:
    """The same as parts of a file, which hold the arrays as they are."""
    return _sealed(json.dumps({"version": VERSION, **document}, separators=(",", ":"), allow_nan=False), arrays)


def seal(text: str, arrays: Arrays) -> bytes:
    """The text of a document and its arrays as bytes, with the checksum of both."""
    return joined(_sealed(text, arrays))


def joined(parts: SafetensorsParts) -> bytes:
    """Parts as one."""
    with memory_for("archive", "contents"):
        return b"".join(parts)


def _sealed(text: str, arrays: Arrays) -> SafetensorsParts:
    with memory_for("archive", "contents"):
        metadata = {_KEY: f"{_checksum(text, arrays)} {text}"}
        # A file without arrays is not a safetensors file to every reader.
        return SafetensorsParts(arrays or {"none": np.zeros(0, np.float32)}, metadata)


def unpack(data: bytes, who: str, what: str = "archive") -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of an archive; ``MPSFileError`` where the bytes are not one, whole and unchanged.

    ``what`` is how errors call the bytes: the file, where they come from one.
    """
    with reading(what, who):
        return _unpacked(data, who, what)


def _unpacked(data: bytes, who: str, what: str) -> tuple[dict[str, Any], Arrays]:
    text, checksum = _header(data, len(data), who, what)
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as fault:
        raise _damaged(who, what, "its arrays cannot be read", fault) from fault
    arrays.pop("none", None)
    if _checksum(text, arrays) != checksum:
        raise _damaged(who, what, "its checksum differs")
    return _document(text, who, what), arrays


def check_document(parts: SafetensorsParts, who: str) -> None:
    """Raise what `unpack` raises of the document of an archive, whose arrays are not looked at."""
    with reading("archive", who):
        _document(_header(parts.head, parts.size, who, "archive")[0], who, "archive")


def _document(text: str, who: str, what: str) -> dict[str, Any]:
    """The document of a text."""
    try:
        document: Any = parsed(text)
    except (ValueError, RecursionError) as fault:
        raise _damaged(who, what, "its document is no JSON", fault) from fault
    if not isinstance(document, dict):
        raise _damaged(who, what, "its document is no object")
    version = document.get("version")
    if version != VERSION:
        raise MPSFileError(who, what, f"must be of version {VERSION}", version, "Read it with a newer openmps")
    return document


def read_archive(path: str | os.PathLike[str], who: str) -> bytes:
    """The bytes of the file at ``path``, for `unpack`; one that cannot be an archive is refused unread."""
    length = require_file(path, who)
    with reading(path, who), Path(path).open("rb") as file:
        start = file.read(_HEADER_LENGTH)
        _header_length(start, length, who, os.fspath(path))
        file.seek(0)
        return file.read(length)


def _header_length(start: bytes, length: int, who: str, what: str) -> int:
    """How long the header of a file of ``length`` bytes is, by its first bytes."""
    found = int.from_bytes(start[:_HEADER_LENGTH], "little")
    if len(start) < _HEADER_LENGTH or not 0 < found <= length - _HEADER_LENGTH:
        raise _damaged(who, what, "it ends before its header does")
    if found > _LARGEST_HEADER:
        raise MPSFileError(who, what, f"must have a header of no more than {_LARGEST_HEADER:,} bytes", f"{found:,}")
    return found


def _header(data: bytes, size: int, who: str, what: str) -> tuple[str, str]:
    """The document and the checksum in the header, whose length is checked against the bytes that there are."""
    length = _header_length(data, size, who, what)
    try:
        header: Any = parsed(data[_HEADER_LENGTH : _HEADER_LENGTH + length].decode())
        checksum, _, text = header["__metadata__"][_KEY].partition(" ")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise _damaged(who, what, "its header is not that of an archive", fault) from fault
    return text, checksum


def _checksum(text: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode("utf-8", "surrogatepass"))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _damaged(who: str, what: str, rule: str, fault: Exception | None = None) -> MPSFileError:
    return MPSFileError(who, what, f"is damaged or none of openmps: {rule}", fault and type(fault).__name__)
