"""``objc.simd``: short vectors of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar, Self

_FORMS = {"vector_float2": (2, "f"), "vector_float3": (3, "f"), "vector_float4": (4, "f"), "vector_uchar16": (16, "C")}
"""How many elements each has, and their code."""


class Vector(tuple[Any, ...]):
    """The base of all vectors: of as many numbers as it has, of one for all of them, or of zeros."""

    __slots__ = ()
    size: ClassVar[int]
    element: ClassVar[str]
    """The code of its elements."""
    __typestr__: ClassVar[bytes]

    def __new__(cls, *values: Any) -> Self:
        """A vector of these numbers."""
        given = values * cls.size if len(values) == 1 else values or (0,) * cls.size
        if len(given) != cls.size:
            raise ValueError(f"Expecting {cls.size} values, got {len(given)}")
        return super().__new__(cls, map(float if cls.element == "f" else int, given))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self)

    def __repr__(self) -> str:
        return f"objc.simd.{type(self).__name__}({', '.join(map(repr, self))})"


CODES: Mapping[str, str] = MappingProxyType({name: f"<{size}{code}>" for name, (size, code) in _FORMS.items()})
"""The encoding of each."""


def _made(name: str) -> type[Vector]:
    size, code = _FORMS[name]
    axes = {axis: property(itemgetter(place)) for place, axis in enumerate("xyzw"[:size] if size <= 4 else "")}
    of = {"__slots__": (), "__module__": "objc.simd", "__typestr__": CODES[name].encode()}
    return type(name, (Vector,), {**of, **axes, "size": size, "element": code})


VECTORS: Mapping[str, type[Vector]] = MappingProxyType({name: _made(name) for name in _FORMS})
"""The type of each, by its name."""
BY_CODE: Mapping[str, type[Vector]] = MappingProxyType({code: VECTORS[name] for name, code in CODES.items()})
"""The type of each, by its encoding."""
