"""JSON of files, which takes a bounded amount of memory."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from itertools import accumulate
from typing import Any

from openmps.errors import MPSFileError
from openmps.formats.paths import read_file, reading

_MOST_VALUES = 1 << 20
"""Lists, mappings and commas: of two characters each, an empty list takes sixty bytes."""
_DEEPEST = 512
"""Lists and mappings in one another. How many Python reads depends on its version, and on the stack that is left."""
_STEPS = {each: 1 if each in b"[{" else -1 for each in b"[]{}"}
_LEFT_OUT = bytes(sorted({*range(256)} - {*_STEPS, *b'"'}))
_STRING = re.compile(rb'"[^"]*+"?')
"""Without escapes. One that does not end takes the rest, so that nothing is read twice."""


def parsed(text: str) -> object:
    """The value of a JSON text; `ValueError` where it is none, holds too many values, too deep ones or a name twice."""
    count = sum(text.count(each) for each in "[{,")
    if count > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    require_shallow(text)
    return json.loads(text, object_pairs_hook=_once)


def require_shallow(text: str) -> None:
    """Raise `ValueError` where a JSON text has too many lists and mappings in one another."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    left = text.encode(errors="ignore")
    if b"\\" in left:  # pairs of backslashes first: what is left before a quote says that it ends no string
        left = left.replace(rb"\\", b"").replace(rb"\"", b"")
    left = left.translate(None, _LEFT_OUT).replace(b'""', b"")  # most strings, at once
    if max(accumulate(map(_STEPS.__getitem__, _STRING.sub(b"", left))), default=0) > _DEEPEST:
        raise ValueError(f"it holds lists or mappings more than {_DEEPEST} deep in one another")


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
