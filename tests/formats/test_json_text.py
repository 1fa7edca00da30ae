"""JSON of files: what is nested too deep is refused alike by every version of Python, before it is read."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from pathlib import Path

import pytest

from openmps.errors import MPSFileError
from openmps.formats.json_text import parsed, read_json
from openmps.training.json_lines import JsonLines

DEEPEST = 512


def nested(depth: int, inside: str = "1") -> str:
    """Lists and mappings by turns."""
    opened = ["[" if index % 2 else '{"a": ' for index in range(depth)]
    closed = ["]" if index % 2 else "}" for index in range(depth)]
    return "".join(opened) + inside + "".join(reversed(closed))


@pytest.mark.parametrize(
    "inside", ["1", '"[{]"', r'"\"["', r'"\\"', r'"a\\\"[["', r'"\n"', r'"a\n[", "\u005b\\", "["', '["[", "[", ""]']
)
def test_how_deep_lists_and_mappings_may_be(inside: str) -> None:
    depth = DEEPEST - (inside[0] == "[")
    text = nested(depth, inside)
    assert parsed(text) == json.loads(text)
    with pytest.raises(ValueError, match="more than 512 deep in one another"):
        parsed(nested(depth + 1, inside))


def test_brackets_behind_an_escape_are_told_from_those_in_strings() -> None:
    rng = random.Random(0)
    pieces = ("[", "[", "[", r'"\n"', r'"\"[["', '"]"', r'"[\\"', '"a", ', "1, ")
    for _ in range(200):
        opened = ["[", *rng.choices(pieces, k=rng.randint(1200, 1900))]
        text = "".join(each if each == "[" or each.endswith(", ") else f"{each}, " for each in opened) + "0"
        depth = opened.count("[")
        text += "]" * depth
        if depth <= DEEPEST:
            assert parsed(text) == json.loads(text)
        else:
            with pytest.raises(ValueError, match="more than 512 deep in one another"):
                parsed(text)


def test_many_that_are_not_in_one_another() -> None:
    for one in ("[]", "{}", '"["', r'"\"[[["', '{"]": [1, "\ud800"]}'):
        text = f"[{', '.join([one] * 2000)}]"
        assert parsed(text) == json.loads(text)


@pytest.mark.parametrize("text", ['"' + '\\"' * 500_000, '"' * 1_000_001, "\\" * 1_000_001, "]" * 1_000_000])
def test_text_that_is_none_is_gone_through_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="Expecting|Unterminated|Extra data|deep in one another"):
        parsed(text + "[" * 600)
    assert time.process_time() - began < 5


def test_a_deep_file_takes_no_more_than_a_flat_one(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000 + "]" * 200_000)
    tracemalloc.start()
    with pytest.raises(MPSFileError, match="must be JSON, got it holds lists or mappings more than 512 deep"):
        read_json(path, "reader", 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * path.stat().st_size


def test_a_deep_line_is_refused_as_cheaply(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + '}\n{"a": 2}\n')
    tracemalloc.start()
    with pytest.raises(MPSFileError, match="line 2 must be a JSON object"):
        JsonLines(path).read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * path.stat().st_size
