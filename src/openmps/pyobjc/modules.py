"""The modules ``objc``, ``Foundation``, ``Cocoa``, ``AppKit``, ``Metal`` and ``MetalPerformanceShaders``."""

from __future__ import annotations

import typing
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

from openmps.pyobjc import archiving, containers, data, errors, foundation, metadata, selectors
from openmps.pyobjc.framework import framework_classes
from openmps.pyobjc.functions import FOUNDATION_INLINES, METAL_INLINES, functions
from openmps.pyobjc.naming import value_name
from openmps.pyobjc.nsobject import NSObject
from openmps.pyobjc.pointers import NULL, varlist
from openmps.pyobjc.protocols import formal_protocol, protocol_named
from openmps.pyobjc.runtime import class_named, objc_class, objc_object
from openmps.pyobjc.structs import STRUCTS, structs_of
from openmps.pyobjc.subclasses import objc_super
from openmps.pyobjc.tables import blocks
from openmps.pyobjc.values import package, public, struct_out
from openmps.pyobjc.vectors import VECTORS
from openmps.spellings import respelt

Names = Mapping[str, Any]


# --- objc -------------------------------------------------------------------------------------------------------------


@contextmanager
def _autorelease_pool() -> Generator[None]:
    """``with objc.autorelease_pool():``; memory is Python's here."""
    yield


_CODES = {
    "ID": "@", "CLASS": "#", "SEL": ":", "CHR": "c", "UCHR": "C", "SHT": "s", "USHT": "S", "INT": "i", "UINT": "I",
    "LNG": "l", "ULNG": "L", "LNG_LNG": "q", "ULNG_LNG": "Q", "FLT": "f", "DBL": "d", "BOOL": "B", "NSBOOL": "Z",
    "VOID": "v", "PTR": "^", "CHARPTR": "*", "IN": "n", "OUT": "o", "INOUT": "N", "STRUCT_B": "{", "STRUCT_E": "}",
    "ARY_B": "[", "ARY_E": "]", "UNDEF": "?", "NSInteger": "q", "NSUInteger": "Q", "CGFloat": "d",
}  # fmt: skip
"""The names of type codes, behind ``_C_``."""


@cache
def _objc() -> Names:
    return {
        **{f"_C_{name}": code.encode() for name, code in _CODES.items()},
        **{
            name: getattr(errors, name)
            for name in ("error", "ProtocolError", "BadPrototypeError", "nosuchclass_error", "ObjCSuperWarning")
        },
        "NULL": NULL,
        "NO": False,
        "YES": True,
        "nil": None,
        "NSObject": NSObject,
        "autorelease_pool": _autorelease_pool,
        "formal_protocol": formal_protocol,
        "lookUpClass": _look_up_class,
        "native_selector": selectors.native_selector,
        "objc_class": objc_class,
        "objc_object": objc_object,
        "protocolNamed": protocol_named,
        "pyobjc_unicode": foundation.pyobjc_unicode,
        "python_method": selectors.python_method,
        "registerMetaDataForSelector": metadata.register,
        "selector": selectors.selector,
        "super": objc_super,
        "typedSelector": selectors.typed_selector,
        "varlist": varlist,
    }


def _look_up_class(name: str) -> Any:
    """``objc.lookUpClass``: classes of the framework, and those of Python."""
    framework_classes()
    return class_named(name)


# --- the frameworks ---------------------------------------------------------------------------------------------------


@cache
def _foundation() -> Names:
    found: dict[str, Any] = {"NSNotFound": containers.NOT_FOUND, **structs_of("Foundation"), **FOUNDATION_INLINES}
    for module in (containers, data, foundation, archiving):
        found |= {name: each for name, each in vars(module).items() if _is_public_class(name, each)}
    return {**found, "NSObject": NSObject}


def _is_public_class(name: str, value: object) -> bool:
    return name.startswith("NS") and isinstance(value, objc_class)


@cache
def _metal() -> Names:
    return {**_of("MTL"), **structs_of("Metal"), **METAL_INLINES, **functions("MTL"), **_foundation()}


@cache
def _shaders() -> Names:
    no_clip = struct_out(package.MPSRectNoClip, "MTLRegion")
    own = {**_of("MPS"), **structs_of("MetalPerformanceShaders"), **functions("MPS"), "MPSRectNoClip": no_clip}
    return {**_metal(), **own}


def _of(prefix: str) -> Names:
    """The classes with this beginning, and the enumerations: each a type, and its values plain integers."""
    found: dict[str, Any] = {name: each for name, each in framework_classes().items() if name.startswith(prefix)}
    for name, block in blocks().items():
        kind = public(name) if len(block.kind) == 1 and name.startswith(prefix) else None
        if kind is not None:
            found[name] = typing.NewType(name, int)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
            members = {value[1:]: respelt(value_name(name, value[1:]), kind.__members__) for value in block.lines}
            found |= {value: int(kind[member]) for value, member in members.items() if member is not None}
    return found


_NAMES: Mapping[str, Callable[[], Names]] = {
    "objc": _objc,
    "objc.simd": lambda: VECTORS,
    "Foundation": _foundation,
    "Cocoa": _foundation,
    "AppKit": _foundation,
    "Metal": _metal,
    "MetalPerformanceShaders": _shaders,
}


def fill(module: ModuleType) -> None:
    """Give a module its names, each found when it is asked for."""
    names = _NAMES[module.__name__]
    vars(module).update(__getattr__=partial(_find, module), __dir__=lambda: sorted({*vars(module), *names()}))
    if module.__name__ == "objc":
        vars(module).update(names(), __version__=_CONVENTIONS)


_CONVENTIONS = "12.2.2"
"""The release of PyObjC whose conventions these are."""


def _find(module: ModuleType, name: str) -> Any:
    names = _NAMES[module.__name__]
    if name == "__all__":
        return sorted(names())
    if name[:2] == "__" or name not in names():
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}{_why_not(name)}")
    found = names()[name]
    setattr(module, name, found)
    return found


def _why_not(name: str) -> str:
    if name in STRUCTS or name not in blocks():
        return ""
    return (
        ": openmps has no counterpart of it" if public(name) is None else ": objects of it are known by their protocol"
    )
