"""The framework's selectors, properties, values and functions, each with its name in Python (docs/naming.md).

`openmps/pyobjc/framework.txt` has a line for each public class, protocol, enumeration and function of the headers,
and below it, indented, what it declares: ``-`` and ``+`` for methods, ``@`` for properties, ``=`` for values.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import openmps
from openmps.pyobjc.naming import LEFT_OUT, python_call, snake, value_name
from openmps.pyobjc.tables import FRAMEWORK, read

FIXED = {
    "-initWithCoder:": "MPSKeyedUnarchiver",
    "-initWithCoder:device:": "MPSKeyedUnarchiver",
    "-encodeWithCoder:": "MPSKeyedArchiver",
    "-copyWithZone:": "copy.copy(…)",
    "-copyWithZone:device:": "copy(device)",
    "-debugDescription": "repr(…)",
    "-initForReadingFromData:device:error:": "MPSKeyedUnarchiver(init_for_reading_from_data=data, device=device)",
    "-initForReadingWithData:device:": "MPSKeyedUnarchiver(init_for_reading_with_data=data, device=device)",
}
"""What follows no rule: `NSCoding` and `NSCopying` have Python's own form."""


@dataclass(frozen=True)
class Member:
    """What a class of the framework declares, and its name in Python."""

    selector: str
    name: str
    """The attribute of the class; empty where there is none of a rule's name."""
    call: str
    """How it is written in Python."""


@dataclass(frozen=True)
class Declared:
    """A class, protocol, enumeration or function of the framework."""

    name: str
    header: str
    members: tuple[Member, ...]

    @property
    def is_there(self) -> bool:
        """Whether openmps has it."""
        return self.name in openmps.__all__


@cache
def declared() -> dict[str, Declared]:
    """Everything that the headers declare, by its name."""
    return {
        each.name: Declared(each.name, each.header, tuple(_member(each.name, line) for line in each.lines))
        for each in read(FRAMEWORK)
    }


def _member(owner: str, selector: str) -> Member:
    if selector in FIXED:
        return Member(selector, "", FIXED[selector])
    if selector[0] == "=":
        name = value_name(owner, selector[1:])
        return Member(selector, name, f"{owner}.{name}")
    if selector[0] == "@":
        name = snake(selector[1:])
        return Member(selector, name, name)
    name, arguments = _method(selector)
    known = _parameters(owner, name)
    if ":" in selector and arguments and arguments[0] == snake(selector[1:].split(":")[0]) and known:
        arguments[0] = known[0]  # a selector that does not say what comes first: setLabel:
    return Member(selector, name, f"{owner if name == '__init__' else name}({', '.join(arguments)})")


def _method(selector: str) -> tuple[str, list[str]]:
    """The Python name of a method, and the arguments that it has in Python."""
    name, arguments = python_call(selector)
    if selector.startswith("-readBytes:"):
        arguments = arguments[1:]
    return name, [each for each in arguments if each not in LEFT_OUT]


def _parameters(owner: str, name: str) -> list[str]:
    """The arguments of a method or of a constructor; none where a class has none of that name."""
    kind = getattr(openmps, owner, None) if owner in openmps.__all__ else None
    function = kind if name == "__init__" else getattr(kind, name, None)
    if getattr(kind, "_is_protocol", False) or not callable(function):
        return []
    return [each for each in inspect.signature(function).parameters if each != "self"]


def has(kind: Any, name: str) -> bool:
    """Whether a class has an attribute, of its own or of its objects."""
    if hasattr(kind, name):
        return True
    if any(name in getattr(each, "__annotations__", {}) for each in kind.__mro__):
        return True
    # A protocol's optional methods are said in its description.
    return getattr(kind, "_is_protocol", False) and re.search(rf"\b{name}\b", kind.__doc__ or "") is not None


def absent() -> list[str]:
    """What the rule asks for of classes that openmps has, and they have not."""
    return [
        f"{each.name} {member.selector}: {member.name}"
        for each in declared().values()
        if each.is_there
        for member in each.members
        if member.name and not has(getattr(openmps, each.name), member.name)
    ]


def table(name: str) -> str:
    """The members of a class as a table, empty where it declares none."""
    members = declared()[name].members if name in declared() else ()
    lines = [f"| `{each.selector.lstrip('@=')}` | `{each.call}` |" for each in members]
    return "\n".join(["| in the framework | in Python |", "| --- | --- |", *lines]) + "\n" if lines else ""


def page() -> str:
    """The index."""
    there = [each for each in declared().values() if each.is_there]
    missing = [each.name for each in declared().values() if not each.is_there]
    count = sum(len(each.members) for each in there)
    parts = [
        "# Every selector\n",
        f"{count:,} selectors, properties and values of {len(there)} classes, protocols, enumerations and functions",
        "of the framework, each with its name in Python; [the rule](naming.md). What a class inherits stands with the",
        "class that declares it. A constructor stands for `init…` and for the factories of the same arguments; an",
        "argument may be left out where several selectors share a name.\n",
        "Functions keep their names: "
        + ", ".join(f"`{each.name}`" for each in there if not each.members and _is_function(each.name))
        + ".\n",
    ]
    for each in there:
        if each.members:
            parts += [f"## {each.name}\n", f"{each.header}. [Reference](reference/{each.name}.md)\n", table(each.name)]
    parts += ["## Not there yet\n", ", ".join(f"`{name}`" for name in missing) + "\n"]
    return "\n".join(parts)


def _is_function(name: str) -> bool:
    return not isinstance(getattr(openmps, name), type)
