"""Checks that values are members of an enumeration, or flags of one; those of attributes that are declared so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum, IntFlag
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from openmps.errors import MPSArgumentError, shown

_Member = TypeVar("_Member", bound=Enum)
_Flags = TypeVar("_Flags", bound=IntFlag)


def _is_of_others(kind: type[Enum], value: object) -> bool:
    """Whether a value is a truth value or of another enumeration: as numbers they are equal to members."""
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"  # NumPy has its own
    return is_truth or (isinstance(value, Enum) and not isinstance(value, kind))


def member(who: str, argument: str, kind: type[_Member], value: object, rule: str | None = None) -> _Member:
    """``value``, a member of an enumeration or its number, as the member."""
    try:
        return kind(None if _is_of_others(kind, value) else value)
    except ValueError as fault:
        rule = rule or f"must be one of {', '.join(each.name for each in kind)}"
        raise MPSArgumentError(who, argument, rule, shown(value)) from fault


def member_of(kind: type[_Member], rule: str | None = None) -> Callable[[str, str, Any], _Member]:
    """The check that a value is a member of an enumeration."""
    return lambda who, argument, value: member(who, argument, kind, value, rule)


def flags_of(kind: type[_Flags]) -> Callable[[str, str, Any], _Flags]:
    """The check that a value is a combination of an enumeration's flags."""
    known = reduce(or_, (int(each) for each in kind), 0)

    def check(who: str, argument: str, value: Any) -> _Flags:
        if not isinstance(value, int) or _is_of_others(kind, value) or value & ~known:
            rule = f"must combine {', '.join(each.name or '' for each in kind)} of {kind.__name__}"
            raise MPSArgumentError(who, argument, rule, repr(value))
        return kind(value)

    return check


def declared_checks(kind: type) -> dict[str, Callable[[str, str, Any], Enum]]:
    """The checks of the attributes that a class declares, in its own body, to be of an enumeration."""
    module, checks = vars(sys.modules[kind.__module__]), dict[str, Callable[[str, str, Any], Enum]]()
    for name, declaration in getattr(kind, "__annotations__", {}).items():
        declared = module.get(declaration)
        if isinstance(declared, type) and issubclass(declared, Enum):
            checks[name] = flags_of(declared) if issubclass(declared, IntFlag) else member_of(declared)
    return checks
