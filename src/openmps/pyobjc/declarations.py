"""What the headers declare: classes and protocols with their selectors, enumerations and functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from openmps.pyobjc.tables import Block, blocks
from openmps.pyobjc.types import VOID, CType, ctype


@dataclass(frozen=True)
class Method:
    """A selector of a class or protocol."""

    selector: str
    is_class_method: bool
    result: CType
    arguments: tuple[CType, ...]
    is_required: bool = True
    is_available: bool = True
    of_property: str = ""
    """The property whose getter or setter it is."""

    @property
    def signed(self) -> str:
        """The selector with the sign of instance or class methods."""
        return ("+" if self.is_class_method else "-") + self.selector


@dataclass(frozen=True)
class Declaration:
    """A class or a protocol."""

    block: Block

    @property
    def name(self) -> str:
        """The framework's name."""
        return self.block.name

    @property
    def is_protocol(self) -> bool:
        """Whether it is a protocol."""
        return self.block.kind.startswith("protocol")

    @property
    def parent(self) -> str:
        """The superclass's name."""
        return self.block.kind.partition("<")[0]

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that it conforms to, those of its superclass left out."""
        inner = self.block.kind.partition("<")[2].rstrip(">")
        return tuple(inner.split(",")) if inner else ()

    @cached_property
    def methods(self) -> Mapping[str, Method]:
        """Its selectors by sign and name: ``-initWithDevice:``; a property is a getter and a setter."""
        found = (each for first, said in self.block.members for each in _methods(first, said))
        return {each.signed: each for each in found}


def _methods(first: str, said: str) -> Iterator[Method]:
    name = first[1:]
    if said == "unavailable":
        count = name.count(":")
        yield Method(name, first[0] == "+", VOID, (VOID,) * count, is_available=False)
        return
    required, is_readonly = not said.startswith("optional "), "readonly " in said
    said = said.removeprefix("optional ").removeprefix("readonly ")
    types = tuple(ctype(each) for each in said.split(", "))
    if first[0] != "@":
        yield Method(name, first[0] == "+", types[0], types[1:], required)
        return
    yield Method(name, False, types[0], (), required, of_property=name)
    if not is_readonly:
        setter = f"set{name[:1].upper()}{name[1:]}:"
        yield Method(setter, False, VOID, types, required, of_property=name)


@cache
def declarations() -> Mapping[str, Declaration]:
    """Every class and protocol, by its name."""
    return {name: Declaration(each) for name, each in blocks().items() if len(each.kind) > 1}


@cache
def enumerations() -> Mapping[str, tuple[str, ...]]:
    """The values of every enumeration, by its name."""
    found = {name: each for name, each in blocks().items() if len(each.kind) == 1}
    return {name: tuple(first[1:] for first in each.lines) for name, each in found.items()}


@cache
def functions() -> frozenset[str]:
    """The names of the framework's functions."""
    return frozenset(name for name, each in blocks().items() if not each.kind)
