"""Writes tests/public_signatures.txt: what scripts can call, one line a name, so that a change of it shows in a diff.

    python tools/public_signatures.py

A line has the name as a script writes it after ``openmps.``. Then comes a function's signature; the type of an
attribute or property where the source says it, with ``[read-only]`` where it cannot be set; or the number behind an
enumeration's value. A class names its public bases, and its lines say only what theirs do not; what it inherits from
others counts as its own. Annotations stand as written, defaults as their repr. Nothing depends on the module that a
class lives in: names are what scripts rely on.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import openmps
import openmps.debug
import openmps.distributed
import openmps.errors
import openmps.formats
import openmps.formats.coreml
import openmps.formats.onnx
import openmps.formats.swift
import openmps.training
import openmps.types
from openmps.checks import is_writable
from openmps.selectors import Elsewhere, Factory
from openmps.spellings import OtherSpelling

FILE = Path(__file__).resolve().parent.parent / "tests" / "public_signatures.txt"
SUBMODULES = (
    *(openmps.debug, openmps.errors, openmps.formats, openmps.formats.coreai, openmps.formats.coreml),
    *(openmps.formats.onnx, openmps.formats.swift),
    *(openmps.distributed, openmps.training, openmps.types),
)
OPERATORS = ("__array__", "__call__", "__contains__", "__dlpack__", "__enter__", "__getitem__", "__iter__", "__len__")


def lines() -> list[str]:
    """Every line of the file."""
    found = [line for name in openmps.__all__ for line in _named(name, getattr(openmps, name))]
    for module in SUBMODULES:
        short = module.__name__.removeprefix("openmps.")
        for name in _public(module):
            value = getattr(module, name)
            if value is getattr(openmps, name, None):
                found.append(f"{short}.{name} is {name}")
            else:
                found += _named(f"{short}.{name}", value)
    return sorted(found)


def text() -> str:
    """The file."""
    return "".join(f"{line}\n" for line in lines())


def _public(module: ModuleType) -> list[str]:
    """The names that a module says are public; without a list, those that it defines."""
    if hasattr(module, "__all__"):
        return module.__all__
    own = {name for name, value in vars(module).items() if _is_of(module, getattr(value, "__module__", None) or "")}
    return sorted(name for name in own | {name for name in vars(module) if name.isupper()} if name[0] != "_")


def _is_of(module: ModuleType, where: str) -> bool:
    return where == module.__name__ or where.startswith(f"{module.__name__}.")


def _named(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _of_class(name, value)
    elif inspect.isfunction(value):
        yield name + _signature(value)
    elif dataclasses.is_dataclass(value) or isinstance(value, bool | int | float | str):
        yield f"{name} = {_value(value)}"
    else:
        yield f"{name} is a {type(value).__name__}"


def _of_class(name: str, kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        yield f"{name} is a {kind.__bases__[-1].__name__}"
        yield from (f"{name}.{key} = {each.value}" for key, each in kind.__members__.items())
    elif _makes(kind):
        yield name + _signature(kind).removesuffix(" -> None")
    else:
        yield name
    bases = [each for each in kind.__mro__[1:] if each in _public_classes()]
    if bases:
        yield f"{name} is a {', '.join(each.__name__ for each in bases)}"
    inherited = {key + said for base in bases for key, said in _said(base).items()}
    yield from (f"{name}.{key}{said}" for key, said in _said(kind).items() if key + said not in inherited)


@cache
def _public_classes() -> frozenset[type]:
    values = [getattr(module, name) for module in (openmps, *SUBMODULES) for name in _public(module)]
    return frozenset(value for value in values if inspect.isclass(value))


@cache
def _said(kind: type) -> dict[str, str]:
    """What a line says of each public member, the inherited ones included."""
    return {key: _of_member(key, owner, member) for key, (owner, member) in _members(kind).items()}


def _own(kind: type) -> list[type]:
    """The classes of the project that ``kind`` inherits from, itself first."""
    return [each for each in kind.__mro__ if each.__module__.partition(".")[0] == "openmps"]


def _makes(kind: type) -> bool:
    """Whether the project says how to make an object: it does not for protocols and for plain exceptions."""
    is_protocol = getattr(kind, "_is_protocol", False)
    return not is_protocol and any("__init__" in vars(each) or "__new__" in vars(each) for each in _own(kind))


def _members(kind: type) -> dict[str, tuple[type, Any]]:
    """The public members by name, each with the class that has it; what objects alone have has no value there."""
    found: dict[str, tuple[type, Any]] = {}
    for owner in _own(kind):
        annotated = [*inspect.get_annotations(owner), *(key for key, said in _set_by(owner).items() if said)]
        for key, member in (dict.fromkeys(annotated) | vars(owner)).items():
            is_plain = not key.startswith("_") and (key in annotated or not isinstance(member, enum.Enum | type))
            is_plain = is_plain and not isinstance(member, Elsewhere | OtherSpelling)
            if is_plain or key in OPERATORS:
                found.setdefault(key, (owner, member))
    for owner in _own(kind):
        # Last, as a class may set what one before it has annotated.
        for key in _set_by(owner):
            found.setdefault(key, (owner, None))
    return found


@cache
def _set_by(owner: type) -> dict[str, str]:
    """The public attributes that a constructor sets at ``self``, each with its annotation or an empty text."""
    constructor = inspect.unwrap(vars(owner)["__init__"]) if "__init__" in vars(owner) else None
    if not inspect.isfunction(constructor) or not constructor.__code__.co_filename.endswith(".py"):
        return {}  # that of a dataclass has no source
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(constructor)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.setdefault(node.attr, "")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            found[node.target.attr] = ast.unparse(node.annotation)
    return {key: annotation for key, annotation in found.items() if not key.startswith("_")}


def _of_member(key: str, owner: type, member: Any) -> str:
    if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
        function = member if inspect.isfunction(member) else member.__func__
        return _signature(function, is_bound=not isinstance(member, staticmethod))
    if isinstance(member, Factory):
        return "(…) as the constructor"
    if isinstance(member, property):
        annotation = _held_by(member) or (inspect.signature(member.fget).return_annotation if member.fget else "")
        return _typed(annotation, is_writable=is_writable(owner, key))
    annotation = inspect.get_annotations(owner).get(key) or _set_by(owner).get(key, "")
    return _typed(annotation or _held_by(member) or "", is_writable=_is_writable(owner, member))


def _held_by(descriptor: Any) -> str | None:
    """The type of a descriptor's value: its type argument, or that of its default."""
    (kind,) = getattr(getattr(descriptor, "__orig_class__", None), "__args__", (None,))
    default = getattr(descriptor, "_default", None)
    kind = type(default) if kind is None and default is not None else kind
    named = kind.__name__ if isinstance(kind, type) else getattr(kind, "__forward_arg__", str(kind))
    return None if kind is None else re.sub(r"\b(?:\w+\.)+", "", named)


def _is_writable(owner: type, member: Any) -> bool:
    if dataclasses.is_dataclass(owner):
        return not owner.__dataclass_params__.frozen
    if issubclass(owner, tuple):
        return False
    return getattr(member, "is_writable", True)


def _written(annotation: Any) -> Any:
    """An annotation as it stands in the source: of a named tuple it is an object that has the text."""
    return getattr(annotation, "__forward_arg__", annotation)


def _typed(annotation: Any, *, is_writable: bool) -> str:
    said = "" if annotation in ("", inspect.Signature.empty) else f": {_written(annotation)}"
    return said + ("" if is_writable else " [read-only]")


def _signature(function: Any, *, is_bound: bool = False) -> str:
    """A signature in one line, without ``self`` and ``cls``."""
    signature = inspect.signature(function)
    parts: list[str] = []
    before = None
    given = list(signature.parameters.values())[is_bound:]
    for each in given:
        if before is each.POSITIONAL_ONLY and each.kind is not before:
            parts.append("/")
        if each.kind is each.KEYWORD_ONLY and before not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            parts.append("*")
        parts.append(_parameter(each))
        before = each.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    result = signature.return_annotation
    return f"({', '.join(parts)})" + ("" if result is signature.empty else f" -> {result}")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {_written(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return stars + parameter.name + annotation
    equals = " = " if annotation else "="
    return stars + parameter.name + annotation + equals + _value(parameter.default)


def _value(value: Any) -> str:
    """The repr, but names for what a module defines: its repr may say where that lies in memory or in the source."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__qualname__
    return f"<{type(value).__name__}>" if type(value).__repr__ is object.__repr__ else repr(value)


if __name__ == "__main__":
    FILE.write_text(text())
