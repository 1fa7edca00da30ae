"""The framework's classes, each made of its declaration and of the class of openmps that has its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

from openmps.pyobjc.calls import implementation
from openmps.pyobjc.declarations import Declaration, Method, declarations
from openmps.pyobjc.metadata import Types, types_of
from openmps.pyobjc.naming import is_initializer, keywords
from openmps.pyobjc.nsobject import NSObject
from openmps.pyobjc.runtime import objc_class
from openmps.pyobjc.selectors import lazy_selector, native_selector, python_name, selector, unavailable_selector
from openmps.pyobjc.subclasses import ancestry
from openmps.pyobjc.types import ctype
from openmps.pyobjc.values import public

_COPY = Method("copyWithZone:", False, ctype("id"), (ctype("NSZone*"),))
"""What classes that conform to NSCopying have, declared or not."""


@cache
def framework_classes() -> Mapping[str, Any]:
    """Every class that openmps has a counterpart of, by its name; those that stand for protocols begin with ``_``."""
    made: dict[str, Any] = {}
    for name, declaration in declarations().items():
        if declaration.is_protocol or public(name) is not None:
            _make(declaration, made)
    return made


def _make(declaration: Declaration, made: dict[str, Any]) -> Any:
    name = "_" + declaration.name if declaration.is_protocol else declaration.name
    if name in made:
        return made[name]
    parent, native = declarations().get(declaration.parent), public(declaration.name)
    has_parent = parent is not None and not parent.is_protocol and public(parent.name) is not None
    base = _make(parent, made) if parent is not None and has_parent else NSObject
    if getattr(native, "_is_protocol", False):
        native = None  # any object with the methods will do, so they are looked for when they are called
    made[name] = _class(name, base, declaration, native)
    return made[name]


def _class(name: str, base: Any, declaration: Declaration, native: type | None) -> Any:
    protocols = (name[1:],) if declaration.is_protocol else declaration.protocols
    methods = {python_name(each.selector): each for each in _methods(declaration)}
    if "NSCopying" in declaration.protocols and callable(getattr(native, "copy", None)):
        methods.setdefault("copyWithZone_", _COPY)
    selectors = {
        key: lazy_selector(partial(_selector, declaration.name, native, each)) for key, each in methods.items()
    }
    module = "Metal" if declaration.name.startswith("MTL") else "MetalPerformanceShaders"
    found = objc_class(name, (base,), selectors, protocols=protocols, is_native=True, module=module)
    found.keyword_selectors = _keyword_selectors(declaration)
    return found


def _selector(owner: str, native: type | None, method: Method) -> selector | str:
    """The selector of a method; why there is none, where openmps has nothing to call."""

    def types(kind: Any) -> Types:
        return types_of(method, owner, ancestry(kind))

    encoded = method.selector.encode()
    if not method.is_available:
        return unavailable_selector(_never, encoded, isClassMethod=method.is_class_method, types=types)
    found = implementation(owner, native, method)
    if isinstance(found, str):
        return found
    return native_selector(found, encoded, isClassMethod=method.is_class_method, types=types)


def _never(*_: Any) -> None:
    """Nothing: the selector refuses every call."""


def _methods(declaration: Declaration) -> Iterator[Method]:
    """The methods that a class declares, after those of the protocols that it adopts."""
    for name in declaration.protocols:
        adopted = declarations().get(name)
        if adopted is not None:
            yield from _methods(adopted)
    yield from declaration.methods.values()


def _keyword_selectors(declaration: Declaration) -> dict[tuple[str, ...], str | None]:
    """The Python names of initializers, and of factories where no initializer has the keywords, by their keywords."""
    found: dict[tuple[str, ...], str | None] = {}
    for method in declaration.methods.values():
        if is_initializer(method.signed):
            found[keywords(method.selector)] = python_name(method.selector) if method.is_available else None
    for method in declaration.methods.values():
        is_factory = method.result.name == "instancetype" and "With" in method.selector.partition(":")[0]
        if method.is_class_method and is_factory:
            found.setdefault(keywords(method.selector), python_name(method.selector))
    return found
