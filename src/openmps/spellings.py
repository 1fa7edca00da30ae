"""Names of the framework as they are written elsewhere: in Swift, in Objective-C, by other libraries of Apple's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Never

from openmps.errors import MPSAttributeError

_STEM = re.compile(r"(.+?)(?:(?:With|To|For|From|On)(?=[A-Z])|_(?:with|to|for|from|on)_)")

INSTEAD = {
    "MTKTextureLoader": "Read the picture with Pillow or another library, and make an image of the array with "
    "MPSImage.from_numpy(device, array)",
    "MTLTexture": "An MPSImage has no texture: read and write it by numpy(), read_bytes and write_bytes",
}
"""What to use in the place of names that openmps will not have."""


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
        other = camel_case(name)
        if name[0] != "_" and other != name and not any(other in vars(base) for base in kind.__mro__):
            setattr(kind, other, OtherSpelling(name))
