"""What is done to a file: blind changes of its bytes, and changes of what they mean.

A mutation takes the honest bytes and random numbers and returns bytes, or a `Special` that takes the file's place.
A checksum is made to fit again by the targets that have one, so that a change reaches the code behind it.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Random = np.random.Generator


@dataclass(frozen=True)
class Special:
    """Something else under the file's name: a folder, a pipe, a device, a broken link, or nothing."""

    kind: str


Mutation = Callable[[bytes, Random], "bytes | Special"]


def _place(data: bytes, random: Random) -> int:
    """A place in the bytes, in the first kilobyte every other time: there the structure is."""
    return int(random.integers(max(1, min(len(data), 1024) if random.random() < 0.5 else len(data))))


# --- blind ------------------------------------------------------------------------------------------------------------


def flipped_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        if changed:
            changed[_place(data, random)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def overwritten(data: bytes, random: Random) -> bytes:
    at, count = _place(data, random), int(random.integers(1, 33))
    run = random.choice([b"\0" * count, b"\xff" * count, random.bytes(count), b"[" * count, b"9" * count])
    return data[:at] + bytes(run)[: len(data) - at] + data[at + count :]


def truncated(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def inserted(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + random.bytes(int(random.integers(1, 65))) + data[at:]


def removed(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + data[at + int(random.integers(1, 65)) :]


def duplicated(data: bytes, random: Random) -> bytes:
    low, high = sorted((_place(data, random), _place(data, random)))
    return data[:high] + data[low:high] + data[high:]


def exchanged(data: bytes, random: Random) -> bytes:
    low, high = sorted((_place(data, random), _place(data, random)))
    return data[high:] + data[low:high] + data[:low]


def lengthened(data: bytes, random: Random) -> bytes:
    """Another length in the first eight bytes."""
    lengths = [0, 1, len(data) - 8, len(data), len(data) + 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
    return struct.pack("<Q", max(0, int(random.choice(np.array(lengths, dtype=object))))) + data[8:]


def replaced(data: bytes, random: Random) -> Special:
    return Special(str(random.choice(["folder", "pipe", "device", "broken link", "endless link", "nothing"])))


BLIND: tuple[Mutation, ...] = (
    flipped_bits, overwritten, truncated, inserted, removed, duplicated, exchanged, lengthened, replaced
)  # fmt: skip


# --- JSON, written by hand so that it can be wrong --------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """Text that stands in the JSON as it is."""

    text: str


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may be double."""


def text_of(value: Any) -> str:
    """JSON that also knows `Raw` and `Pairs`; of what a change put into itself, lists in lists."""
    try:
        return _text(value)
    except RecursionError:
        return "[" * 2000 + "]" * 2000


def _text(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(each) for each in value) + "]"
    return json.dumps(value)


def _deep(random: Random) -> Raw:
    depth = int(random.choice([20, 120, 900, 5_000, 50_000]))
    left, right = [("[", "]"), ('{"list":[', "]}"), ('{"a":', "}")][int(random.integers(3))]
    return Raw(left * depth + "1" + right * depth)


INTEGERS = (0, 1, 2, 255, 2**16 - 1, 2**31 - 1, -1, -(2**31))
"""What whole numbers of 32 bits become."""
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    0.5, -0.0, 1e-300, 1e308, float("inf"), float("-inf"), float("nan"), Raw("1e999"), Raw("9" * 400),
    Raw("-" + "9" * 5000),
)  # fmt: skip
TEXTS = (
    "", "x", "0", "None", "../escaped", "../../../../escaped", "/escaped", "..\\escaped", "a/b", "a\0b", "con", ".",
    "..", "\ud800", "\U0001f600", "x" * 5000, "__class__", "__init__", "device", "os.system", "builtins.eval", "%s%n",
    "${HOME}", "F16", "BF16", "I64", "BOOL", "F64", "F8_E4M3", "U8", "-1", "inf", "nan",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], [1, 2], {"a": 1}, {"object": 0}, {"object": -1}, {"object": 10**9},
    {"array": "0"}, {"array": "none"}, {"image": 0}, {"state": [0, 0]}, {"list": []}, {"list": [{"list": [1]}]},
    {"enum": "MPSDataType", "value": 268435488}, {"enum": "IntEnum", "value": 0},
    {"struct": "MTLSize", "fields": [1, 2, 3]},
    {"struct": "MPSOffset", "fields": [10**18, 10**18, 10**18]}, {"allocator": "ordinary"}, {"float": "nan"},
    {"float": "inf"},
)  # fmt: skip


def _hostile(random: Random, words: tuple[str, ...]) -> Any:
    kind = int(random.integers(5))
    if kind == 0:
        return _deep(random)
    pool: tuple[Any, ...] = (NUMBERS, TEXTS, OTHERS, words or TEXTS)[kind - 1]
    return copy.deepcopy(pool[int(random.integers(len(pool)))])  # later changes may be made within it


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a tree, as a container and its key."""
    found: list[tuple[Any, Any]] = []
    ahead = [value]
    while ahead:
        here = ahead.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, each in list(items):
            found.append((here, key))
            ahead.append(each)
    return found


def changed_tree(tree: Any, random: Random, words: tuple[str, ...] = ()) -> Any:
    """A tree of JSON with one to three places changed; the tree itself is changed too."""
    for _ in range(int(random.integers(1, 4))):
        nodes = _nodes(tree)
        if nodes:
            box, key = nodes[int(random.integers(len(nodes)))]
            _CHANGES[int(random.integers(len(_CHANGES)))](box, key, nodes, random, words)
    return tree


def _put(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    box[key] = _hostile(random, words)


def _drop(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    del box[key]


def _nudge(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    now = box[key]
    if isinstance(now, int) and not isinstance(now, bool):
        box[key] = [now + 1, now - 1, -now, now * 2, now ^ (1 << int(random.integers(34)))][int(random.integers(5))]
    elif isinstance(now, list) and now:
        box[key] = [now[::-1], now[:-1], now * 2, now + now[:1]][int(random.integers(4))]
    else:
        box[key] = [now, now] if random.random() < 0.5 else _hostile(random, words)


def _move(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    """A copy of another place of the tree."""
    other, there = nodes[int(random.integers(len(nodes)))]
    if not isinstance(other[there], Raw):
        box[key] = json.loads(json.dumps(other[there], default=str))


def _rename(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    pool = words if words and random.random() < 0.5 else TEXTS
    if isinstance(box, dict):
        box[pool[int(random.integers(len(pool)))]] = box.pop(key)


def _double(box: Any, key: Any, nodes: Any, random: Random, words: tuple[str, ...]) -> None:
    """The same key twice, which JSON does not forbid."""
    now = box[key]
    if isinstance(now, dict) and now:
        first = next(iter(now))
        box[key] = Raw(text_of(Pairs([*now.items(), (first, _hostile(random, words))])))


_CHANGES = (_put, _put, _put, _drop, _nudge, _nudge, _move, _rename, _double)


def _only(tree: list[Any]) -> Any:
    """What is left of a tree in a list of one, whose root may have gone too."""
    return tree[0] if tree else Raw("")


def changed_json(data: bytes, random: Random) -> bytes:
    """JSON, or lines of JSON, with places changed."""
    lines = data.split(b"\n")
    at = int(random.integers(max(1, len(lines) - 1))) if len(lines) > 2 and lines[0].endswith(b"}") else None
    text = data if at is None else lines[at]
    changed = text_of(_only(changed_tree([json.loads(text)], random))).encode("utf-8", "surrogatepass")
    return changed if at is None else b"\n".join([*lines[:at], changed, *lines[at + 1 :]])


# --- safetensors ------------------------------------------------------------------------------------------------------


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and numbers of a whole file."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_safetensors(header: Any, body: bytes) -> bytes:
    """A file of any header."""
    text = text_of(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def changed_header(data: bytes, random: Random) -> bytes:
    """Any place of the header changed: dtypes, shapes, offsets, names, metadata."""
    header, body = split_safetensors(data)
    return join_safetensors(_only(changed_tree([header], random)), body)


def changed_offsets(data: bytes, random: Random) -> bytes:
    """Arrays that overlap, run backwards, leave gaps or reach beyond the file, and shapes whose product overflows."""
    header, body = split_safetensors(data)
    names = [name for name in header if name != "__metadata__"]
    entry = header[names[int(random.integers(len(names)))]]
    begin, end = entry["data_offsets"]
    size = len(body)
    entry.update(
        [
            {"data_offsets": [end, begin]},
            {"data_offsets": [begin, 2**63]},
            {"data_offsets": [begin - 4, end - 4]},
            {"data_offsets": [begin + 4, end + 4]},
            {"data_offsets": [0, size], "shape": [size // 4]},
            {"data_offsets": [0, end]},
            {"data_offsets": [-8, end]},
            {"data_offsets": [begin, end, end]},
            {"shape": [2**32, 2**32]},
            {"shape": [2**63, 2]},
            {"shape": [-1]},
            {"shape": [0, 2**62]},
            {"shape": [1] * 70},
            {"shape": [(end - begin) // 4]},
            {"dtype": "F16"},
            {"dtype": "F64"},
            {"dtype": "I32"},
            {"dtype": "BF16"},
        ][int(random.integers(18))]
    )
    return join_safetensors(header, body)


SAFETENSORS: tuple[Mutation, ...] = (changed_header, changed_offsets)
