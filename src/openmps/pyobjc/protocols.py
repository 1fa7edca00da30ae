"""Protocols: ``objc.protocolNamed``, and what a class that names one must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from openmps.pyobjc.declarations import Declaration, Method, declarations
from openmps.pyobjc.errors import ProtocolError
from openmps.pyobjc.metadata import Types, types_of
from openmps.pyobjc.selectors import python_name, selector_name

_FOUNDATION = ("NSObject", "NSCopying", "NSCoding", "NSSecureCoding", "NSMutableCopying")
"""Protocols whose methods every object has here, or none has to have."""


class formal_protocol:  # noqa: N801  # PyObjC's name
    """A protocol: its name and its own methods, those of protocols that it adopts left out."""

    def __init__(self, name: str, declaration: Declaration | None = None) -> None:
        self.__name__, self._declaration = name, declaration

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by their signed selectors."""
        return {} if self._declaration is None else self._declaration.methods

    def instanceMethods(self) -> tuple[dict[str, Any], ...]:
        """Selector, encoding and whether it is required, of each instance method."""
        return tuple(_described(each) for each in self.methods.values() if not each.is_class_method)

    def classMethods(self) -> tuple[dict[str, Any], ...]:
        """The same of each class method."""
        return tuple(_described(each) for each in self.methods.values() if each.is_class_method)

    def descriptionForInstanceMethod_(self, selector: object) -> tuple[bytes, bytes] | None:
        """The selector and its encoding, None where the protocol has none of that name."""
        found = self.methods.get("-" + selector_name(selector))
        return None if found is None else (found.selector.encode(), _types(found).signature)

    def descriptionForClassMethod_(self, selector: object) -> tuple[bytes, bytes] | None:
        """The same of class methods."""
        found = self.methods.get("+" + selector_name(selector))
        return None if found is None else (found.selector.encode(), _types(found).signature)

    def conformsTo_(self, other: formal_protocol) -> bool:
        """Whether it is that protocol, or adopts it."""
        return other.__name__ in adopted(self.__name__)

    def __repr__(self) -> str:
        return f"<objc.formal_protocol {self.__name__}>"


def _types(method: Method) -> Types:
    return types_of(method, "", ())


def _described(method: Method) -> dict[str, Any]:
    types = _types(method)
    return {"selector": method.selector.encode(), "typestr": types.signature, "required": method.is_required}


@cache
def protocol_named(name: str) -> formal_protocol:
    """``objc.protocolNamed``."""
    found = declarations().get(name)
    if found is not None and found.is_protocol:
        return formal_protocol(name, found)
    if name in _FOUNDATION:
        return formal_protocol(name)
    raise ProtocolError(name)


@cache
def adopted(name: str) -> frozenset[str]:
    """A protocol, or the protocols of a class, with all that they adopt."""
    found = declarations().get(name)
    if found is None:
        return frozenset({name})
    own = frozenset({name}) if found.is_protocol else frozenset[str]()
    return own.union(*(adopted(each) for each in found.protocols))


def check_implemented(kind: type, protocols: Sequence[formal_protocol]) -> None:
    """Raise unless a class has the required methods of protocols."""
    for protocol in protocols:
        for method in protocol.methods.values():
            if method.is_required and getattr(kind, python_name(method.selector), None) is None:
                which = "class" if method.is_class_method else "instance"
                raise TypeError(
                    f"class does not fully implemented protocol {protocol.__name__!r}: "
                    f"no implementation for {which} method {method.selector!r}"
                )
