"""Class bodies: which functions are selectors, of which types, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from openmps.errors import warn_user
from openmps.pyobjc.declarations import Method
from openmps.pyobjc.errors import ObjCSuperWarning, error
from openmps.pyobjc.metadata import Types, informal, types_of
from openmps.pyobjc.naming import is_initializer, keywords
from openmps.pyobjc.protocols import formal_protocol
from openmps.pyobjc.selectors import (
    check_prototype,
    default_selector,
    objects,
    python_method,
    python_name,
    returns_value,
    selector,
    unavailable_selector,
)

_PASSED_ON = ("__init__", "__new__", "__classcell__", "__qualname__", "__module__", "__doc__", "__slots__")


class objc_super(super):  # noqa: N801
    """``objc.super``."""


def check_protocols(protocols: Iterable[Any]) -> None:
    """Raise unless all of them are protocols."""
    for each in protocols:
        if not isinstance(each, formal_protocol):
            raise TypeError(
                f"protocols list contains object that isn't an Objective-C protocol, but type {type(each).__name__}"
            )


def check_super(namespace: Mapping[str, Any]) -> None:
    """Warn of a class body that calls Python's own super()."""
    module = sys.modules.get(str(namespace.get("__module__")))
    if "__classcell__" in namespace and module is not None and getattr(module, "super", None) is not objc_super:
        said = "Objective-C subclass uses super(), but super is not objc.super"
        warn_user(said, ObjCSuperWarning)


def transformed(name: str, value: Any, bases: tuple[type, ...], protocols: Iterable[formal_protocol]) -> Any:
    """A value of a class body: functions with the name of a selector are selectors."""
    if isinstance(value, python_method):
        return value.__wrapped__
    if isinstance(value, selector) or name in _PASSED_ON:
        return value
    function = value.__func__ if isinstance(value, classmethod) else value
    if isinstance(function, python_method):
        return classmethod(function.__wrapped__)
    found = default_selector(name) if isinstance(function, FunctionType) else None
    if found is None or _is_suspended(function):
        return value
    inherited = next((each for each in (_inherited(base, name) for base in bases) if each is not None), None)
    _check_overrides(name, inherited)
    is_class_method = isinstance(value, classmethod) or (inherited is not None and inherited.isClassMethod)
    check_prototype(function, found)
    types = _types(found.decode(), function, is_class_method, inherited, protocols)
    return selector(function, found, isClassMethod=is_class_method, types=types)


def _is_suspended(function: Any) -> bool:
    flags = function.__code__.co_flags
    return bool(flags & (0x20 | 0x80 | 0x200))  # a generator, a coroutine, or both


def _inherited(base: type, name: str) -> selector | None:
    return base.selector_named(name) if hasattr(base, "selector_named") else None  # pyright: ignore[reportAttributeAccessIssue]


def _check_overrides(name: str, inherited: selector | None) -> None:
    """Refuse a method that the framework would call in the place of its own, and openmps cannot."""
    owner = getattr(inherited, "definingClass", None)
    if owner is None or not owner.is_native or owner.__name__ in ("NSObject", "objc_object"):
        return
    if not name.startswith("init") and not isinstance(inherited, unavailable_selector):
        raise error(
            f"{owner.__name__}.{name}: openmps cannot call a method of Python in the place of the framework's. "
            "Give it another name, or make an NSObject subclass that conforms to a protocol"
        )


def _types(
    name: str, function: Any, is_class_method: bool, inherited: selector | None, protocols: Iterable[formal_protocol]
) -> Callable[[Any], Types]:
    """The types of a method of Python: of the method it overrides, of its protocol, of any protocol, or all objects."""
    signed = ("+" if is_class_method else "-") + name
    said = [each.methods[signed] for each in protocols if signed in each.methods]
    method = said[0] if said else informal().get(signed)
    count = name.count(":")

    def types(kind: Any) -> Types:
        if method is None and inherited is not None:
            return inherited.types(kind)
        plain = objects(count, returns_value(function))
        found = method or Method(name, is_class_method, plain.result, plain.arguments)
        return types_of(found, "NSObject", ancestry(kind))

    return types


def own_keywords(contents: Mapping[str, Any]) -> dict[tuple[str, ...], str | None]:
    """The Python names of a class's initializers by the keywords that stand for them."""
    found: dict[tuple[str, ...], str | None] = {}
    for value in contents.values():
        if isinstance(value, selector) and is_initializer("-" + value.selector.decode()):
            found[keywords(value.selector.decode())] = python_name(value.selector)
    return found


def ancestry(kind: Any) -> list[str]:
    """The names of a class and its bases."""
    return [each.__name__ for each in kind.__mro__ if hasattr(each, "selector_named")]
