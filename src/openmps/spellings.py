"""Names of the framework as they are written elsewhere, and the name that was meant by one that is not here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from enum import EnumType
from typing import TYPE_CHECKING, Never

from openmps.errors import MPSAttributeError

_STEM = re.compile(r"(.+?)(?:(?:With|To|For|From|On)(?=[A-Z])|_(?:with|to|for|from|on)_)")

INSTEAD = {
    "MTKTextureLoader": "Use load_texture(source, device)",
}
"""What to use in the place of names that openmps will not have."""
_CLOSE = 0.7
"""How alike two names are, from 0 to 1, for one to be offered in the place of the other."""
_MISSPELT = 0.9
"""The same for names of the package: many classes that it does not have are called almost like others."""
_PACKAGE = __name__.partition(".")[0]


def spellings(name: str) -> Iterator[str]:
    """What ``name`` may be called here: as it is, without Swift's ``make``, without what follows With, To or On."""
    yield name
    if name.startswith("make"):
        rest = name.removeprefix("make").strip("_")
        yield from (f"new{rest}", rest)
    stem = _STEM.match(name)
    if stem is not None:
        yield from spellings(stem[1])


def camel_case(name: str) -> str:
    """``kernel_offset_x`` as ``kernelOffsetX``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class OtherSpelling:
    """An attribute under its name in Objective-C and Swift: reading it says what it is called here.

    For classes whose attributes an encode reads: a ``__getattr__`` would slow down every read, of any name.
    """

    is_elsewhere = True

    def __init__(self, here: str) -> None:
        self._here = here

    def __get__(self, instance: object, owner: type) -> Never:
        who = getattr(instance, "name", None)
        who = who if isinstance(who, str) else owner.__name__
        rule = "is no attribute of this class"
        raise MPSAttributeError(who, camel_case(self._here), rule, None, f"Use {self._here}")


def add_other_spellings(kind: type, names: Iterable[str]) -> None:
    """Have a class name those of its attributes, ``names``, that are read in another spelling."""
    for name in names:
        if name[0] == "_" or "_" not in name:  # no other spelling; most are so, and this is asked of every class
            continue
        other = camel_case(name)
        if other != name and not any(other in vars(base) for base in kind.__mro__):
            setattr(kind, other, OtherSpelling(name))


# --- the name that was meant ------------------------------------------------------------------------------------------


def respelt(name: str, names: Iterable[str]) -> str | None:
    """The name that differs from ``name`` in capitals and underscores only."""
    wanted = letters(name)
    return next((each for each in names if letters(each) == wanted), None)


def letters(name: str) -> str:
    """What is left of a name without capitals and underscores."""
    return name.replace("_", "").lower()


def closest(name: str, names: Iterable[str]) -> str | None:
    """The one of some names that ``name`` was probably to be."""
    names = sorted(names)
    close = get_close_matches(letters(name), map(letters, names), 1, _CLOSE)
    return respelt(name, names) or (respelt(close[0], names) if close else None)


def absent(name: str, public: Collection[str], value: Callable[[str], object]) -> AttributeError:
    """The error for a name that the package does not have, beside those that it has, and what is behind one of them."""
    if name in INSTEAD:
        return MPSAttributeError(_PACKAGE, name, "is not here", None, INSTEAD[name])
    if not name.startswith(("MPS", "MTL", "MTK", "NS")):
        return AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
    member = _member(name, map(value, filter(name.startswith, public)))
    if member is not None:
        return MPSAttributeError(_PACKAGE, name, "is a member of an enumeration here", None, f"Use {member}")
    rule = "is not here: openmps does not have it yet, or the framework has no such name"
    close = get_close_matches(name.replace("Make", ""), public, 1, _MISSPELT)
    remedy = f"If {close[0]} is meant, use that; " if close else ""
    return MPSAttributeError(_PACKAGE, name, rule, None, f"{remedy}dir(openmps) lists what there is")


def _member(name: str, prefixes: Iterable[object]) -> str | None:
    """The member of an enumeration that C and Objective-C know by this name: ``MPSImageEdgeModeClamp``."""
    kinds = [kind for kind in prefixes if isinstance(kind, EnumType)]
    for kind in sorted(kinds, key=lambda kind: len(kind.__name__), reverse=True):
        found = respelt(name.removeprefix(kind.__name__), kind.__members__)
        if found is not None:
            return f"{kind.__name__}.{found}"
    return None


class NamedMembers(EnumType):
    """The metaclass of enumerations that name the member that was meant: ``RELU`` for ``reLU``."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Never:
            if name[0] == "_":
                raise AttributeError(name)
            members = sorted(cls.__members__)
            meant = closest(letters(name).removeprefix(letters(cls.__name__)), members)
            remedy = "Use one of " + ", ".join(members[:12]) if meant is None else f"Use {meant}"
            raise MPSAttributeError(cls.__name__, name, "is no member of this enumeration", None, remedy)
