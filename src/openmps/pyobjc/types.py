"""C types of the framework's declarations, and their Objective-C type encodings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from openmps.pyobjc.structs import ENCODINGS
from openmps.pyobjc.tables import enumeration_codes
from openmps.pyobjc.vectors import CODES

SCALARS: Mapping[str, str] = MappingProxyType(
    {
        "void": "v",
        "BOOL": "Z",
        "bool": "B",
        "float": "f",
        "double": "d",
        "CGFloat": "d",
        "NSInteger": "q",
        "NSUInteger": "Q",
        "size_t": "Q",
        "uint8_t": "C",
        "unsigned short": "S",
        "id": "@",
        "instancetype": "@",
        "Class": "#",
        "SEL": ":",
        "NSZone": "{_NSZone=}",
        "CGColorConversionInfoRef": "^{CGColorConversionInfo=}",
        **CODES,
    }
)
BLOCKS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "MPSGradientNodeBlock": (
            "void",
            ("MPSNNFilterNode*", "MPSNNFilterNode*", "MPSNNImageNode*", "MPSNNImageNode*"),
        ),
        "MPSNNGraphCompletionHandler": ("void", ("MPSImage*", "NSError*")),
        "MPSImageBatchIterator": ("NSInteger", ("MPSImage*", "NSUInteger")),
        "MTLCommandBufferHandler": ("void", ("id<MTLCommandBuffer>",)),
        "MPSCopyAllocator": ("id<MTLTexture>", ("MPSKernel*", "id<MTLCommandBuffer>", "id<MTLTexture>")),
        "MTLBufferDeallocator": ("void", ("void*", "NSUInteger")),
    }
)
"""What blocks return and take; the headers give the types other names, or none."""
INTEGERS: Mapping[str, range] = MappingProxyType(
    {
        "c": range(-(2**7), 2**7),
        "C": range(2**8),
        "s": range(-(2**15), 2**15),
        "S": range(2**16),
        "i": range(-(2**31), 2**31),
        "I": range(2**32),
        "l": range(-(2**63), 2**63),
        "L": range(2**64),
        "q": range(-(2**63), 2**63),
        "Q": range(2**64),
    }
)
"""The numbers that each code of an integer can stand for."""
BOOLEANS = ("Z", "B")


@dataclass(frozen=True, slots=True)
class CType:
    """The type of an argument or result, such as ``in float[]``: ``[]`` is a pointer to an unsaid number of elements.

    ``code`` is the encoding without the direction, ``n`` for in, ``o`` for out and ``N`` for both.
    """

    name: str
    code: str
    direction: str = ""
    is_array: bool = False
    length_in: int | None = None
    """The argument that says how many elements there are, counted as metadata does: the first is 2."""
    count: int | None = None
    """How many elements there are, where that is always the same."""

    @property
    def encoding(self) -> str:
        """The encoding, as the metadata of a selector has it."""
        return self.direction + self.code

    @property
    def protocol(self) -> str | None:
        """The protocol of ``id<Name>``."""
        return self.name[3:-1] if self.name.startswith("id<") else None


_DIRECTIONS = {"in": "n", "out": "o", "inout": "N"}


def ctype(text: str) -> CType:
    """The type that the tables write so: ``NSUInteger``, ``id<MTLDevice>``.

    The length of ``in void[4]`` stands in the argument 4, ``in float[=3]`` are three elements.
    """
    direction, _, name = text.rpartition(" ") if text.partition(" ")[0] in _DIRECTIONS else ("", "", text)
    array = re.fullmatch(r"(.+)\[(=?)(\d*)\]", name)
    if array is not None:
        element, is_count, number = array.groups()
        length = {"count" if is_count else "length_in": int(number)} if number else {}
        return CType(element + "*", "^" + _code(element), _DIRECTIONS.get(direction, ""), True, **length)
    return CType(name, _code(name), _DIRECTIONS.get(direction, ""))


def _code(name: str) -> str:
    value = _value_code(name)
    if value is not None:
        return value
    if name in BLOCKS:
        return "@?"
    if name.startswith("id<") and name.endswith(">"):
        return "@"
    if name.endswith(("**", ">*")):
        return "^@"
    if name.endswith("*"):
        pointed = _value_code(name[:-1])
        return "@" if pointed is None else "^" + pointed
    raise ValueError(f"the tables of declarations have no type {name!r}")


def _value_code(name: str) -> str | None:
    """The encoding of what is no pointer; None for classes."""
    if name in SCALARS:
        return SCALARS[name]
    return ENCODINGS.get(name) or enumeration_codes().get(name)


def coded(code: str) -> CType:
    """The type of an encoding without directions: a struct has its name.

    Raises:
        ValueError: It is, or points to, a struct that openmps does not know.
    """
    stars = len(code) - len(code.lstrip("^"))
    pointed = code[stars:]
    name = next((name for name, each in {**SCALARS, **ENCODINGS}.items() if each == pointed), None)
    if name is None and pointed[0] in "{[<":
        raise ValueError(f"openmps knows no type of the encoding {pointed!r}")
    return CType((name or f"encoding {pointed}") + "*" * stars, code)


OBJECT = CType("id", "@")
VOID = CType("void", "v")
