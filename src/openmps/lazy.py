"""Packages whose names are imported one by one, each when somebody asks for it first.

A package's ``names.py`` is the one list of its names, as imports, which type checkers and editors follow. A running
program takes the list from it and imports nothing yet: the file is run with an import that only says where a name is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pkgutil import iter_modules
from typing import Any

from openmps.locks import new_reentrant_lock

_lock = new_reentrant_lock()
"""Held while a name is imported: a package's modules may be asked for by one thread while another runs its first lines,
and parts of torch import each other in circles, which two threads must not enter from two sides."""


def _forget_threads() -> None:
    global _lock
    _lock = new_reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class _Place(str):
    """Where something is, ``package.module.name``; an attribute of it is in it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> _Place:
        return _Place(f"{self}.{name}")


def _place(name: str, _globals: object, _locals: object, wanted: tuple[str, ...] | None, _level: int) -> _Place:
    """What an ``import`` statement calls: it binds the module where names are ``wanted``, else the first package."""
    return _Place(name if wanted else name.partition(".")[0])


@cache
def places(package: str) -> Mapping[str, str]:
    """Where each name of a package is that its ``names.py`` imports, as ``package.module.name``."""
    file = f"{package}.names"
    # On the path itself: what is asked first of a module may be a hook that gives no code, as that of pytest.
    spec = PathFinder.find_spec(file, sys.modules[package].__path__)
    loader: Any = None if spec is None else spec.loader
    scope: dict[str, Any] = {"__builtins__": {"__import__": _place}, "__name__": file}
    exec(loader.get_code(file), scope)
    return {name: str(place) for name, place in scope.items() if isinstance(place, _Place)}


def public_names(package: str) -> list[str]:
    """The names of a package but for its modules: what ``from package import *`` binds."""
    return sorted(name for name, place in places(package).items() if place != f"{package}.{name}")


@cache
def _modules(package: str) -> frozenset[str]:
    """The names of the modules in a package."""
    return frozenset(each.name for each in iter_modules(sys.modules[package].__path__))


def has(package: str, name: str) -> bool:
    """Whether a package has such a name, or such a module."""
    return not name.startswith("_") and (name in places(package) or name in _modules(package))


def load(package: str, name: str) -> Any:
    """What a package `has` under a name; from then on it is an attribute like any other."""
    module, _, attribute = places(package).get(name, f"{package}.{name}").rpartition(".")
    with _lock:
        found = import_module(f"{package}.{name}") if module == package else getattr(import_module(module), attribute)
    setattr(sys.modules[package], name, found)
    return found


def attributes(package: str) -> list[str]:
    """All names of a package, imported or not, and its modules that are."""
    return sorted({*vars(sys.modules[package]), *places(package)})


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], Iterable[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package whose names are those of its ``names.py``."""

    def get(name: str) -> Any:
        if name == "__all__":
            return public_names(package)
        if not has(package, name):
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[package])
        return load(package, name)

    return get, lambda: attributes(package)
