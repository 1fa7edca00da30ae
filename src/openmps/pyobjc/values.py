"""Numbers, enumerations, vectors and structs across the bridge."""

from __future__ import annotations

import operator
from importlib import import_module
from typing import Any

from openmps.pyobjc.naming import snake
from openmps.pyobjc.structs import STRUCTS
from openmps.pyobjc.tables import enumeration_codes
from openmps.pyobjc.types import BOOLEANS, INTEGERS, CType
from openmps.pyobjc.vectors import BY_CODE

package: Any = import_module("openmps")
"""The package's public names; a floor below them may not import them where import-linter looks."""


def public(name: str) -> Any:
    """What openmps calls so; None for what it does not have."""
    return getattr(package, name) if name in package.__all__ else None


def is_value(kind: CType) -> bool:
    """Whether a type is that of a number, of a vector or of a struct."""
    return kind.code in BOOLEANS or kind.code in INTEGERS or kind.code in ("f", "d") or kind.code[0] in "{<"


def value_in(value: Any, kind: CType) -> Any:
    """What openmps gets for a number, an enumeration's value, a vector or a struct; for these two a tuple does."""
    if kind.code in BOOLEANS:
        return bool(value)
    if kind.code in INTEGERS:
        return _enumerated(_integer(value, kind), kind)
    if kind.code in ("f", "d"):
        return real_in(value, kind.name)
    return _vector_in(value, kind) if kind.code[0] == "<" else _struct_in(value, kind.name)


def value_out(value: Any, kind: CType) -> Any:
    """What Python gets for a number, a vector or a struct of openmps."""
    if kind.code in BOOLEANS:
        return bool(value)
    if kind.code in INTEGERS:
        return int(value)
    if kind.code in ("f", "d"):
        return float(value)
    return BY_CODE[kind.code](*value) if kind.code[0] == "<" else struct_out(value, kind.name)


def _integer(value: Any, kind: CType) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"depythonifying '{kind.name}', got '{type(value).__name__}'") from None
    span = INTEGERS[kind.code]
    if span.start == 0 and -span.stop // 2 <= number < 0:
        return number + span.stop
    if number not in span:
        raise ValueError(f"depythonifying '{kind.name}', got '{type(value).__name__}' of wrong magnitude")
    return number


def _enumerated(number: int, kind: CType) -> Any:
    found = public(kind.name) if kind.name in enumeration_codes() else None
    return number if found is None else found(number)


def real_in(value: Any, name: str) -> float:
    """What openmps gets for a float or double; text is no number."""
    fault = None
    if not isinstance(value, (str, bytes)) and hasattr(type(value), "__float__"):
        try:
            return float(value)
        except (TypeError, OverflowError) as found:  # an array of several numbers, an integer of 400 digits
            fault = found
    raise ValueError(f"depythonifying '{name}', got '{type(value).__name__}'") from fault


def _vector_in(value: Any, kind: CType) -> tuple[int | float, ...]:
    made = BY_CODE[kind.code]
    if not isinstance(value, (tuple, list)) or len(value) != made.size:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"depythonifying {made.size} values of a {made.__name__}, got {value!r}")
    element = CType(made.__name__, made.element)
    return made(*(value_in(each, element) for each in value))  # pyright: ignore[reportUnknownVariableType]


def _struct_in(value: Any, name: str) -> Any:
    given, made = STRUCTS[name].of(value), public(name)
    fields: dict[str, Any] = {}
    for field, kind in zip(given._fields, given._types, strict=True):
        if field[0] == "_":
            continue
        item = getattr(given, field)
        part = CType(field, kind) if isinstance(kind, str) else CType(kind.__name__, "{")
        fields[snake(field)] = value_in(item, part)
    return made(**fields)


def struct_out(value: Any, name: str) -> Any:
    """A struct of openmps as a new struct of this name."""
    kind = STRUCTS[name]
    made = kind()
    for field, part in zip(kind._fields, kind._types, strict=True):
        if field[0] != "_":
            code = CType(field, part) if isinstance(part, str) else CType(part.__name__, "{")
            setattr(made, field, value_out(getattr(value, snake(field)), code))
    return made
