"""JSON of files, which takes a bounded amount of memory."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from openmps.errors import MPSFileError
from openmps.formats.paths import read_file, reading

_MOST_VALUES = 1 << 20
"""Lists, mappings and commas: of two characters each, an empty list takes sixty bytes."""


def parsed(text: str) -> object:
    """The value of a JSON text; `ValueError` where it is none, holds too many values, or a name twice."""
    count = sum(text.count(each) for each in "[{,")
    if count > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    return json.loads(text, object_pairs_hook=_once)


def read_json(path: str | os.PathLike[str], who: str, most: int) -> object:
    """The value in a file of so many bytes at most; ``MPSFileError`` where there is none."""
    data = read_file(path, who, most)
    try:
        with reading(path, who):
            return parsed(data.decode())  # of bytes, it would guess the encoding
    except (ValueError, RecursionError) as error:
        raise MPSFileError(who, os.fspath(path), "must be JSON", error) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {twice[:200]!r} is there twice")
    return found
