"""Kinds of arguments that hold several things, or text: a named error for what is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar, cast

from openmps.checks import members
from openmps.errors import MPSTypeError

T = TypeVar("T")


def text(who: str, argument: str, value: object) -> str:
    """``value`` if it is text."""
    if not isinstance(value, str):
        raise MPSTypeError(who, argument, "must be text", type(value).__name__)
    return value


def listed(who: str, argument: str, value: object, kind: type[T], what: str = "") -> list[T]:
    """The members of a sequence, each of a class; text, mappings and sets, which have no order, are no sequences."""
    rule = f"must be a sequence of {what or kind.__name__}"
    if isinstance(value, str | bytes | Set):
        raise MPSTypeError(who, argument, rule, type(value).__name__)
    if kind is not object and isinstance(value, kind):  # an array has arrays as its members
        raise MPSTypeError(who, argument, rule, f"one {kind.__name__} by itself", f"Give a list: [{argument}]")
    found = members(who, argument, cast("Iterable[object]", value), rule)
    for each in found:
        if not isinstance(each, kind):
            raise MPSTypeError(who, argument, rule, f"{type(each).__name__} among them")
    return cast("list[T]", found)


def mapped(who: str, argument: str, value: object, kind: type[T], what: str = "") -> dict[str, T]:
    """A mapping from names to things of a class."""
    rule = f"must be a mapping from names to {what or kind.__name__}"
    if not isinstance(value, Mapping):
        raise MPSTypeError(who, argument, rule, type(value).__name__)
    found = cast("Mapping[object, object]", value)
    for name, each in found.items():
        if not isinstance(name, str) or not isinstance(each, kind):
            raise MPSTypeError(who, argument, rule, f"{name!r}: {type(each).__name__}")
    return dict(cast("Mapping[str, T]", value))


def optional_mapping(who: str, argument: str, value: object) -> dict[str, Any]:
    """A mapping from names to text; none for None."""
    return {} if value is None else mapped(who, argument, value, str, "text")
