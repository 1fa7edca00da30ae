"""Records appended to a file, one JSON object a line, readable after any interruption."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats.atomic import flush
from openmps.formats.json_text import require_shallow
from openmps.formats.paths import is_there, path_of, read_file, reading

_DEEPEST = 64
_LONGEST = 1 << 30
"""Bytes of the longest file: some seven million lines of a training."""
_LONGEST_LINE = 1 << 24
_AS_IT_IS = getattr(os, "O_BINARY", 0)
"""Windows would write two characters for a line feed."""
_FREE, _BYTES_OF_ONE = 1 << 17, 8
"""Lists and mappings that a file may have, and for how many bytes one more: an empty one takes sixty of memory."""
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonLines:
    """A file that only grows: each record is one line, written by one call of the system.

    A process that is killed leaves at most one torn line, the last one, without its line feed. Reading drops it; the
    next :meth:`append` cuts it off first. A line that has its line feed is whole, so a broken one is damage, and an
    error. A file of more than 1 GiB is refused, a line of more than 16 MiB, and more lists and mappings than 131,072
    and one for 8 bytes of the file: what is read takes a small multiple of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path_of(path, "JsonLines")
        self._mended = False

    def append(self, record: Mapping[str, object]) -> None:
        """Add one record, a mapping; numbers and arrays of NumPy and torch are accepted, NaN and infinities survive.

        JSON has no NaN: they are stored as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, and texts that
        read so with an apostrophe before them. The line reaches the operating system before this returns, so that
        killing the process cannot lose it. Raises ``MPSTypeError`` for what `read` could not give back.
        """
        who = f"JsonLines {self.path.name!r}"
        if not isinstance(record, Mapping):
            rule = "must be a mapping of names to values"
            raise MPSTypeError(who, "record", rule, type(record).__name__, 'Give the value a name: {"loss": 0.5}')
        line = _line(record, who)
        try:
            self._mend()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _AS_IT_IS, 0o666)
            try:
                written = os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._mended = False
            raise MPSFileError(who, str(self.path), "could not be written", error.strerror or error) from error
        if written != len(line):
            self._mended = False
            raise MPSFileError(who, str(self.path), f"must take a line of {len(line)} bytes", f"room for {written}")

    def read(self) -> list[dict[str, object]]:
        """All records, oldest first; empty where nothing has been written yet.

        Raises ``MPSFileError`` naming file and line where a line that ends with a line feed is not a JSON object.
        """
        who = f"JsonLines {self.path.name!r}"
        if not is_there(self.path, who):
            return []
        content = read_file(self.path, who, _LONGEST)
        most = _FREE + len(content) // _BYTES_OF_ONE
        count = content.count(b"[") + content.count(b"{")
        if count > most:
            raise MPSFileError(who, str(self.path), f"must hold at most {most:,} lists and mappings", f"{count:,}")
        records: list[dict[str, object]] = []
        with reading(self.path, who):
            # Line by line: a list of all lines takes a multiple of a file of empty ones.
            for number, line in enumerate(io.BytesIO(content), start=1):
                record = _parse(line.removesuffix(b"\n"))
                if record is None and not line.endswith(b"\n"):
                    break  # torn
                if record is None:
                    rule = f"line {number} must be a JSON object"
                    got = repr(line[:60])[1:]
                    raise MPSFileError(who, str(self.path), rule, got, "Delete the line to read the others.")
                records.append(record)
        return records

    def flush(self) -> int:
        """Make the records so far durable, and return how many bytes they take: what `cut` takes."""
        who = f"JsonLines {self.path.name!r}"
        if not is_there(self.path, who):
            return 0
        flush(self.path)
        with reading(self.path, who):
            return os.path.getsize(self.path)

    def cut(self, length: int) -> None:
        """Drop every record behind the first ``length`` bytes.

        Raises ``MPSFileError`` where the file is shorter, or where the cut would not be between two records.
        """
        who = f"JsonLines {self.path.name!r}"
        content = read_file(self.path, who, _LONGEST) if is_there(self.path, who) else b""
        if length > len(content) or content[max(length - 1, 0) : length] not in (b"\n", b""):
            rule = f"must hold {length} bytes of whole lines, as it did when the checkpoint was written"
            raise MPSFileError(who, str(self.path), rule, f"{len(content)} bytes", "Put the file back, or train again.")
        if length < len(content):
            with reading(self.path, who, "could not be cut"):
                os.truncate(self.path, length)
        self._mended = False

    def _mend(self) -> None:
        """Before the first line of this process: end the last line, or cut it off where it is torn."""
        who = f"JsonLines {self.path.name!r}"
        if not self._mended and is_there(self.path, who):
            content = read_file(self.path, who, _LONGEST)
            end = content.rfind(b"\n") + 1
            if content[end:] and _parse(content[end:]) is not None:
                with self.path.open("ab") as file:
                    file.write(b"\n")
            elif content[end:]:
                os.truncate(self.path, end)
        self._mended = True


def _line(record: Mapping[str, object], who: str) -> bytes:
    plain = plain_json(record, who, "record", _stored)
    try:
        line = json.dumps(plain, allow_nan=False).encode() + b"\n"
    except ValueError as error:  # a whole number of more than 4300 digits
        raise MPSTypeError(who, "record", "must hold values that JSON can write", error) from error
    if len(line) > _LONGEST_LINE:
        raise MPSTypeError(who, "record", f"must be a line of at most {_LONGEST_LINE:,} bytes", f"{len(line):,}")
    return line


def _stored(value: float | str) -> float | str:
    """Text and numbers so that `_with_non_finite` gives them back."""
    if isinstance(value, str):
        return "'" + value if value.lstrip("'") in _NON_FINITE else value
    return value if math.isfinite(value) else next(name for name, x in _NON_FINITE.items() if repr(x) == repr(value))


def plain_json(
    value: object, who: str, where: str, store: Callable[[float | str], object] | None = None, depth: int = _DEEPEST
) -> object:
    """``value`` made of nothing but what JSON has; NumPy and torch values become numbers and lists.

    ``store`` says how floats and texts are written, if not as they are. Raises ``MPSTypeError`` naming the place
    (``where``, with keys and indices) of anything else, of NaN and infinities among it, and of lists in lists deeper
    than ``depth``.
    """
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        value = _listed(value, who, where)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float | str):
        if store is None and isinstance(value, float) and not math.isfinite(value):
            raise MPSTypeError(who, where, "must be finite: JSON has no other numbers", value)
        return value if store is None else store(value)
    if depth == 0:
        rule = f"must be no deeper than {_DEEPEST} lists or mappings in one another"
        raise MPSTypeError(who, "the record" if len(where) > 60 else where, rule, type(value).__name__)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        for key, _ in items:
            if not isinstance(key, str):
                raise MPSTypeError(who, where, "must have strings as keys", f"{key!r}")
        return {str(key): plain_json(item, who, f"{where}[{key!r}]", store, depth - 1) for key, item in items}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        items = enumerate(cast("Sequence[object]", value))
        return [plain_json(item, who, f"{where}[{index}]", store, depth - 1) for index, item in items]
    raise MPSTypeError(who, where, "must be a number, a string, a list or a mapping of these", type(value).__name__)


def _listed(value: np.generic | NDArray[Any] | torch.Tensor, who: str, where: str) -> object:
    try:
        return value.tolist()
    except (RuntimeError, TypeError) as error:
        raise MPSTypeError(who, where, "must be a dense tensor that holds numbers", type(value).__name__) from error


def _parse(line: bytes) -> dict[str, object] | None:
    if len(line) > _LONGEST_LINE:
        return None
    try:
        text = line.decode()  # of bytes, JSON's reader guesses the encoding
        require_shallow(text)
        found = _with_non_finite(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _with_non_finite(value: object, depth: int = _DEEPEST) -> object:
    """``value`` with the strings that stand for NaN and the infinities made numbers again."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value[1:] if value[:1] == "'" and value.lstrip("'") in _NON_FINITE else value)
    if isinstance(value, list | dict) and depth == 0:
        raise RecursionError
    if isinstance(value, list):
        return [_with_non_finite(item, depth - 1) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _with_non_finite(item, depth - 1) for key, item in cast("dict[str, object]", value).items()}
    return value
