"""JSON of files, which takes a bounded amount of memory."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

_MOST_VALUES = 1 << 20
"""Lists, mappings and commas: of two characters each, an empty list takes sixty bytes."""


def parsed(text: str) -> object:
    """The value of a JSON text; `ValueError` where it is none, holds too many values, or a name twice."""
    count = sum(text.count(each) for each in "[{,")
    if count > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {twice[:200]!r} is there twice")
    return found
