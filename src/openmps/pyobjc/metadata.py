"""Types of selectors: what the headers declare, and what ``objc.registerMetaDataForSelector`` says otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from openmps.errors import warn_user
from openmps.pyobjc.declarations import Method, declarations
from openmps.pyobjc.errors import RefusedByPyObjCWarning, error
from openmps.pyobjc.types import BLOCKS, CType, coded, ctype

Row = Mapping[str, Any]
_rows: dict[tuple[str, str], Row] = {}
FIRST = 2
"""The index of the first argument in metadata: self and the selector come before it."""
_KEYS = {"arguments", "retval", "required", "comment"}
_ENTRY_KEYS = {
    *("type", "type_modifier", "c_array_of_variable_length", "c_array_of_fixed_length", "c_array_length_in_arg"),
    *("null_accepted", "already_retained", "already_cfretained", "comment"),
}
_CODE = re.compile(r"[noNrRAV]*(\^*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\[[^]]*\]|<[^>]*>|@\?|[a-zA-Z#:*@?]))\d*")


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a selector's result and arguments."""

    result: CType
    arguments: tuple[CType, ...]

    @property
    def signature(self) -> bytes:
        """All encodings in a row, self and the selector before the arguments."""
        return "".join([self.result.encoding, "@:", *(each.encoding for each in self.arguments)]).encode()


def register(class_: bytes, selector: bytes, metadata: Row) -> None:
    """``objc.registerMetaDataForSelector``: the last row for a class and selector holds."""
    for what, value in (("class name", class_), ("selector", selector)):
        if not isinstance(value, bytes):
            raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    if not isinstance(metadata, Mapping):
        raise TypeError("metadata should be a dictionary")
    entries = [metadata.get("retval") or {}, *(metadata.get("arguments") or {}).values()]
    _check_entries(entries, metadata.get("arguments") or {})
    unknown = [str(each) for each in metadata if each not in _KEYS]
    unknown += [str(each) for entry in entries for each in entry if each not in _ENTRY_KEYS]
    if unknown:
        raise error(f"registerMetaDataForSelector: openmps knows no metadata {', '.join(unknown)}")
    _rows[class_.decode(), selector.decode()] = metadata


def _check_entries(entries: Sequence[Any], arguments: Mapping[Any, Any]) -> None:
    """Raise unless entries are dictionaries with codes as bytes, and arguments have numbers."""
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise TypeError(f"metadata of a result or an argument should be a dictionary, not {type(entry).__name__}")
        for key in ("type", "type_modifier"):
            if not isinstance(entry.get(key, b""), bytes):
                raise TypeError(f"{key} must be bytes, not {type(entry[key]).__name__}")
    for place in arguments:
        if not isinstance(place, int):
            raise TypeError(f"arguments have numbers from {FIRST} on, got {place!r}")


def types_of(method: Method, owner: str, ancestry: Sequence[str]) -> Types:
    """The types of a method that the class ``owner`` declares, in a class with these names of itself and its bases.

    A registered row of a class in front of the owner, or of the owner itself, stands in the place of its directions and
    array lengths: who registers one says them again.
    """
    declared = Types(method.result, method.arguments)
    for name in ancestry:
        row = _rows.get((name, method.selector))
        if row is not None and not (name != owner and _is_other_kind(declared.result, row)):
            return _changed(Types(_plain(declared.result), tuple(map(_plain, declared.arguments))), row)
        if name == owner and any(each.direction or each.is_array for each in (declared.result, *declared.arguments)):
            return declared
    return declared


def _is_other_kind(result: CType, row: Row) -> bool:
    """Whether a row says of an object that it is a pointer, as rows for data sources do of a state's ``weights``."""
    return result.code == "@" and (row.get("retval") or {}).get("type", b"@")[:1] == b"^"


def warn_if_hidden(method: Method, names: Sequence[str]) -> None:
    """Warn of a getter that PyObjC takes for the data sources' of that name, whose result is a ``void *``."""
    protocol = informal().get("-" + method.selector)
    is_hidden = protocol is not None and protocol.result.code == "^v" and method.result.code == "@"
    if is_hidden and not any((name, method.selector) in _rows for name in names if name != "NSObject"):
        said = (
            f"{names[0]}.{method.selector}() is a wild pointer under PyObjC's metadata of data sources. First call "
            f'objc.registerMetaDataForSelector(b"{names[0]}", b"{method.selector}", {{"retval": {{"type": b"@"}}}}), '
            "or use resourceAtIndex_allocateMemory_"
        )
        warn_user(said, RefusedByPyObjCWarning)


def _plain(kind: CType) -> CType:
    return replace(kind, direction="", is_array=False, length_in=None, count=None)


def _changed(types: Types, row: Row) -> Types:
    arguments = list(types.arguments)
    for place, entry in (row.get("arguments") or {}).items():
        index = int(place) - FIRST
        if not 0 <= index < len(arguments):
            raise error(f"metadata of a selector with {len(arguments)} arguments has an argument {place}")
        arguments[index] = _with(arguments[index], entry)
    return Types(_with(types.result, row.get("retval") or {}), tuple(arguments))


def _with(kind: CType, entry: Row) -> CType:
    code = entry["type"].decode() if "type" in entry else kind.encoding
    direction = entry["type_modifier"].decode() if "type_modifier" in entry else ""
    if code[:1] in "noN" and code[1:2] == "^":
        direction, code = direction or code[0], code[1:]
    length = entry.get("c_array_length_in_arg")
    is_array = any(name.startswith("c_array_") and entry[name] for name in entry)
    name = kind.name if code == kind.code else coded(code).name
    count = entry.get("c_array_of_fixed_length")
    return CType(name, code, direction, is_array, length if isinstance(length, int) else None, count)


def signature_types(signature: bytes) -> Types:
    """The types of a signature: the result, self, the selector and the arguments."""
    result, _, _, *arguments = (coded(each) for each in _CODE.findall(signature.decode()))
    return Types(result, tuple(arguments))


@cache
def informal() -> Mapping[str, Method]:
    """The methods of all protocols, which any object may have, by signed selector."""
    found = (each for each in declarations().values() if each.is_protocol and each.block.header.startswith("MPS"))
    return {signed: method for each in found for signed, method in each.methods.items()}


def described(types: Types, selector: str, is_class_method: bool) -> dict[str, Any]:
    """What ``__metadata__()`` of a selector shows."""
    arguments = [{"type": b"@", "null_accepted": True}, {"type": b":", "null_accepted": True}]
    return {
        "selector": selector.encode(),
        "classmethod": is_class_method,
        "retval": _entry(types.result),
        "arguments": (*arguments, *map(_entry, types.arguments)),
    }


def _entry(kind: CType) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": kind.encoding.encode(), "null_accepted": True}
    if kind.length_in is not None:
        entry["c_array_length_in_arg"] = kind.length_in
    elif kind.count is not None:
        entry["c_array_of_fixed_length"] = kind.count
    elif kind.is_array:
        entry["c_array_of_variable_length"] = True
    if kind.name in BLOCKS:
        result, arguments = BLOCKS[kind.name]
        parts = [
            {"type": b"^v", "null_accepted": True},
            *({"type": ctype(each).encoding.encode(), "null_accepted": True} for each in arguments),
        ]
        entry["callable"] = {"retval": {"type": ctype(result).encoding.encode()}, "arguments": tuple(parts)}
    return entry
