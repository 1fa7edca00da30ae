"""The bytes of an archive: one safetensors file whose header carries a JSON document and a checksum of everything.

Archives of kernels and checkpoints of a training are such files; their documents tell them apart.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from openmps.errors import MPSFileError

Arrays = dict[str, NDArray[Any]]

VERSION = 1
_KEY = "openmps.archive"
"""One entry: several would stand in the header in an order that changes from run to run."""
_HEADER_LENGTH = 8


def pack(document: dict[str, Any], arrays: Arrays) -> bytes:
    """A document and its arrays as bytes."""
    return seal(json.dumps({"version": VERSION, **document}, separators=(",", ":"), allow_nan=False), arrays)


def seal(text: str, arrays: Arrays) -> bytes:
    """The text of a document and its arrays as bytes, with the checksum of both."""
    metadata = {_KEY: f"{_checksum(text, arrays)} {text}"}
    # A file without arrays is not a safetensors file to every reader.
    return save(arrays or {"none": np.zeros(0, np.float32)}, metadata)


def unpack(data: bytes, who: str, what: str = "archive") -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays of an archive; ``MPSFileError`` where the bytes are not one, whole and unchanged.

    ``what`` is how errors call the bytes: the file, where they come from one.
    """
    text, checksum = _header(data, who, what)
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as fault:
        raise _damaged(who, what, "its arrays cannot be read", fault) from fault
    arrays.pop("none", None)
    if _checksum(text, arrays) != checksum:
        raise _damaged(who, what, "its checksum differs")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise _damaged(who, what, "its document is no JSON", fault) from fault
    if not isinstance(document, dict):
        raise _damaged(who, what, "its document is no object")
    version = document.get("version")
    if version != VERSION:
        raise MPSFileError(who, what, f"must be of version {VERSION}", version, "Read it with a newer openmps")
    return document, arrays


def _header(data: bytes, who: str, what: str) -> tuple[str, str]:
    """The document and the checksum in the header, whose length is checked against the bytes that are there."""
    length = int.from_bytes(data[:_HEADER_LENGTH], "little")
    if len(data) < _HEADER_LENGTH or length > len(data) - _HEADER_LENGTH:
        raise _damaged(who, what, "it ends before its header does")
    try:
        header = json.loads(data[_HEADER_LENGTH : _HEADER_LENGTH + length].decode())
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
