"""Classes and objects: ``objc.objc_class`` and ``objc.objc_object``, and one namespace of classes a process.

An object of the framework stands for one of openmps, its ``_native``: while it is alive, the same object of openmps
gives the same object of the framework. An object of a class written in Python has attributes; its ``_native`` is made
where openmps needs one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from openmps.pyobjc.errors import error, nosuchclass_error
from openmps.pyobjc.naming import is_initializer
from openmps.pyobjc.protocols import adopted, check_implemented
from openmps.pyobjc.selectors import lazy_selector, native_method, selector
from openmps.pyobjc.subclasses import check_protocols, check_super, own_keywords, transformed
from openmps.pyobjc.values import public

_classes: dict[str, Any] = {}
_NONE: Mapping[str, Any] = {}
_by_native: WeakValueDictionary[int, Any] = WeakValueDictionary()
_by_address: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Objects whose address was asked for."""


class objc_class(type):  # noqa: N801  # PyObjC's name
    """The class of all classes.

    ``is_native`` is said of those that stand for the framework's own. Functions by the Python names of selectors are
    their ``selectors``, of objects, and ``factories``, of classes; ``methods`` are methods of Python. Results
    of ``booleans`` are BOOL, of all others objects.
    """

    keyword_selectors: dict[tuple[str, ...], str | None]
    protocols: tuple[str, ...]
    is_native: bool

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        protocols: Iterable[Any] = (),
        is_native: bool = False,
        selectors: Mapping[str, Any] = _NONE,
        factories: Mapping[str, Any] = _NONE,
        methods: Mapping[str, Any] = _NONE,
        booleans: Iterable[str] = (),
        module: str = "Foundation",
    ) -> Any:
        """A class that nobody has made by that name."""
        if name in _classes:
            raise error(f"{name} is overriding existing Objective-C class")
        protocols = (*protocols, *namespace.pop("__pyobjc_protocols__", ()))
        contents = dict(namespace)
        if is_native:
            contents |= {key: native_method(key, each, key in booleans) for key, each in selectors.items()}
            contents |= {
                key: native_method(key, each, key in booleans, isClassMethod=True) for key, each in factories.items()
            }
            contents |= {**methods, "__module__": module, "__slots__": namespace.get("__slots__", ())}
            named = tuple(str(each) for each in protocols)
        else:
            check_protocols(protocols)
            check_super(namespace)
            contents = {key: transformed(key, value, bases, protocols) for key, value in namespace.items()}
            named = tuple(each.__name__ for each in protocols)
        kind = super().__new__(mcs, name, bases, contents)
        kind.protocols, kind.is_native = named, is_native
        kind.keyword_selectors = namespace.get("keyword_selectors", {}) if is_native else own_keywords(contents)
        if not is_native:
            check_implemented(kind, protocols)
        _classes[name] = kind
        return kind

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'{cls.why_not(name)}")

    def selector_named(cls, name: str) -> selector | None:
        """The selector of a Python name that a class has or inherits."""
        found = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
        found = found.resolve() if isinstance(found, lazy_selector) else found
        return found if isinstance(found, selector) else None

    def why_not(cls, name: str) -> str:
        """Why a declared selector is not offered, behind a colon; nothing where there is no such selector."""
        found = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
        said = found.resolve() if isinstance(found, lazy_selector) else None
        return f": {said}" if isinstance(said, str) else ""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """``cls.alloc().init…`` by the keywords of a selector, in its order."""
        convert = getattr(cls, "from_python", None)
        if convert is not None and not named:
            return convert(*arguments)
        if tuple(named) == ("c_void_p",) and not arguments:
            return _at_address(named["c_void_p"])
        maps = (vars(kind).get("keyword_selectors", _NONE) for kind in cls.__mro__)
        found = next((each[tuple(named)] for each in maps if tuple(named) in each), None)
        if found is None:
            names = ", ".join(map(repr, named))
            said = f"does not support keyword arguments {names}" if named else "requires keyword arguments"
            raise TypeError(f"{cls.__name__}() {said}")
        if arguments:
            raise TypeError(f"{cls.__name__}() does not accept positional arguments")
        return getattr(cls.alloc() if is_initializer("-" + found) else cls, found)(*named.values())

    def __repr__(cls) -> str:
        return f"<objective-c class {cls.__name__} at 0x{id(cls):x}>"

    __hash__ = type.__hash__


class objc_object(metaclass=objc_class, is_native=True, module="objc"):  # noqa: N801  # PyObjC's name
    """What every object of the framework is."""

    __slots__ = ("__weakref__", "_native")

    def __c_void_p__(self) -> ctypes.c_void_p:
        """An address that ``objc.objc_object(c_void_p=…)`` makes the object of again, while it is alive."""
        _by_address[id(self)] = self
        return ctypes.c_void_p(id(self))

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name == "_native":
            return None
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'{kind.why_not(name)}")


def _at_address(pointer: Any) -> Any:
    address = getattr(pointer, "value", pointer)
    if address not in _by_address:
        raise ValueError(f"there is no object at the address {address!r}")
    return _by_address[address]


def native_object(thing: Any) -> Any:
    """The object of openmps that an object of the framework stands for; an error for one that was not initialized."""
    found = thing._native
    if found is None:
        raise error(f"{type(thing).__name__}: an object was used before its init… was called")
    return found


def selector_of(thing: Any, name: str) -> Any:
    """A bound selector as the framework finds it: by the class, also where an attribute of the object has its name."""
    kind = type(thing)
    found = kind.selector_named(name)
    return getattr(thing, name) if found is None else found.__get__(thing, kind)


def object_for(native: Any, kind: Any) -> Any:
    """The object of the framework that stands for one of openmps, of the class ``kind`` if it is the first."""
    found = _by_native.get(id(native))
    if found is not None and found._native is native:
        return found
    made = object.__new__(kind)
    stand_for(made, native)
    return made


def stand_for(thing: Any, native: Any) -> None:
    """Have an object of the framework stand for one of openmps."""
    thing._native = native
    _by_native[id(native)] = thing


def native_class(kind: Any) -> Any:
    """The class of openmps for a class of the framework, or for the first such base of one of Python's; or None."""
    natives = (public(each.__name__) for each in kind.__mro__ if getattr(each, "is_native", False))
    return next((each for each in natives if each is not None), None)


def classes() -> Mapping[str, Any]:
    """The classes that there are, by their names."""
    return _classes


def class_named(name: str) -> Any:
    """``objc.lookUpClass``, of classes that were made."""
    if name not in _classes:
        raise nosuchclass_error(name)
    return _classes[name]


def conforms(kind: Any, protocol: str) -> bool:
    """Whether a class conforms to a protocol by what it or a base says."""
    return any(protocol in adopted(each) for base in kind.__mro__ for each in vars(base).get("protocols", ()))
