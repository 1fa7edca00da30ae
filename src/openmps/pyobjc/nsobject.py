"""NSObject: what every object answers."""

# Tables of selectors, which have the private parts of objects.
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openmps.pyobjc.errors import exception_of
from openmps.pyobjc.runtime import conforms, native_class, objc_object, stand_for
from openmps.pyobjc.selectors import native_selector, python_name, selector_name, unavailable_selector


class _of_both(native_selector):  # noqa: N801
    """A method that classes and their objects have, and that answers for the class."""

    def __init__(self, name: str, answer: Callable[[Any], Any]) -> None:
        super().__init__(lambda thing: answer(thing if isinstance(thing, type) else type(thing)), name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = super().__get__(instance, owner)
        bound.self = owner if instance is None else instance
        return bound


def _init(thing: Any) -> Any:
    native = native_class(type(thing))
    if native is not None:
        stand_for(thing, native())
    return thing


def _itself(kind: Any) -> Any:
    return kind


def _base(kind: Any) -> Any:
    return None if kind.__base__ is objc_object else kind.__base__


def _answers(kind: Any, selector: object) -> bool:
    found = kind.selector_named(python_name(selector_name(selector)))
    return found is not None and not found.isClassMethod and not isinstance(found, unavailable_selector)


def _is_equal(thing: Any, other: Any) -> bool:
    own = thing._native
    return thing is other or (own is not None and isinstance(other, objc_object) and bool(own == other._native))


def _hash(thing: Any) -> int:
    own = thing._native
    return (id(thing) if own is None else hash(own)) & (2**64 - 1)


def _described(thing: Any) -> str:
    own = thing._native
    return f"<{type(thing).__name__}: 0x{id(thing):x}>" if own is None else repr(own)


def _copy(thing: Any) -> Any:
    if type(thing).selector_named("copyWithZone_") is None:
        said = f"-[{type(thing).__name__} copyWithZone:]: unrecognized selector sent to instance"
        raise exception_of("NSInvalidArgumentException", said, None)
    return thing.copyWithZone_(None)


def _perform(thing: Any, selector: object, *arguments: Any) -> Any:
    return getattr(thing, python_name(selector_name(selector)))(*arguments)


_INSTANCE: Mapping[str, Callable[..., Any]] = {
    "init": _init,
    "respondsToSelector_": lambda self, selector: _answers(type(self), selector),
    "isKindOfClass_": isinstance,
    "isMemberOfClass_": lambda self, kind: type(self) is kind,
    "conformsToProtocol_": lambda self, protocol: conforms(type(self), protocol.__name__),
    "isProxy": lambda self: False,
    "isEqual_": _is_equal,
    "isEqualTo_": lambda self, other: bool(self.isEqual_(other)),
    "hash": _hash,
    "description": _described,
    "debugDescription": lambda self: self.description(),
    "performSelector_": _perform,
    "performSelector_withObject_": _perform,
    "copy": _copy,
    # Memory is Python's here.
    "retain": lambda self: self,
    "autorelease": lambda self: self,
    "release": lambda self: None,
}
_CLASS: Mapping[str, Callable[..., Any]] = {
    "alloc": object.__new__,
    "new": lambda cls: cls.alloc().init(),
    "instancesRespondToSelector_": _answers,
    "supportsSecureCoding": lambda cls: conforms(cls, "NSSecureCoding"),
}


_BOOLEANS = (
    *("respondsToSelector_", "isKindOfClass_", "isMemberOfClass_", "conformsToProtocol_", "isProxy", "isEqual_"),
    *("isEqualTo_", "instancesRespondToSelector_", "supportsSecureCoding"),
)


class NSObject(objc_object, is_native=True, selectors=_INSTANCE, factories=_CLASS, booleans=_BOOLEANS):
    """The root of all classes."""

    class__ = _of_both("class", _itself)
    superclass = _of_both("superclass", _base)

    keyword_selectors = {(): "init"}  # noqa: RUF012  # of the class

    def __eq__(self, other: object) -> bool:
        return bool(self.isEqual_(other))

    def __hash__(self) -> int:
        return hash(self.hash())

    def __repr__(self) -> str:
        return str(self.description())
