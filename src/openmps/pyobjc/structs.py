"""Structs as PyObjC makes them: mutable, positional and by name, equal to tuples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import total_ordering
from types import MappingProxyType
from typing import Any, ClassVar, Self

_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "MPSOffset": ("MetalPerformanceShaders", "x:q y:q z:q"),
        "MPSOrigin": ("MetalPerformanceShaders", "x:d y:d z:d"),
        "MPSSize": ("MetalPerformanceShaders", "width:d height:d depth:d"),
        "MPSRegion": ("MetalPerformanceShaders", "origin:MPSOrigin size:MPSSize"),
        "MPSScaleTransform": ("MetalPerformanceShaders", "scaleX:d scaleY:d translateX:d translateY:d"),
        "MPSImageCoordinate": ("MetalPerformanceShaders", "x:Q y:Q channel:Q"),
        "MPSImageRegion": ("MetalPerformanceShaders", "offset:MPSImageCoordinate size:MPSImageCoordinate"),
        "MPSImageReadWriteParams": (
            "MetalPerformanceShaders",
            "featureChannelOffset:Q numberOfFeatureChannelsToReadWrite:Q",
        ),
        "MPSDimensionSlice": ("MetalPerformanceShaders", "start:Q length:Q"),
        "MPSImageHistogramInfo": (
            "MetalPerformanceShaders",
            "numberOfHistogramEntries:Q histogramForAlpha:Z minPixelValue:<4f> maxPixelValue:<4f>",
        ),
        "MPSMatrixOffset": ("MetalPerformanceShaders", "rowOffset:I columnOffset:I"),
        "MPSMatrixCopyOffsets": (
            "MetalPerformanceShaders",
            "sourceRowOffset:I sourceColumnOffset:I destinationRowOffset:I destinationColumnOffset:I",
        ),
        "MPSStateTextureInfo": (
            "MetalPerformanceShaders",
            "width:Q height:Q depth:Q arrayLength:Q pixelFormat:Q textureType:Q usage:Q _reserved:[4Q]",
        ),
        "MTLOrigin": ("Metal", "x:Q y:Q z:Q"),
        "MTLSize": ("Metal", "width:Q height:Q depth:Q"),
        "MTLRegion": ("Metal", "origin:MTLOrigin size:MTLSize"),
        "NSRange": ("Foundation", "location:Q length:Q"),
    }
)
"""The module of each struct, and its fields: a code, or the name of another struct."""
_C_NAMES = {"NSRange": "_NSRange"}


def _encoding(name: str) -> str:
    parts = (each.partition(":")[2] for each in _FIELDS[name][1].split())
    return f"{{{_C_NAMES.get(name, name)}={''.join(_encoding(each) if each in _FIELDS else each for each in parts)}}}"


ENCODINGS: Mapping[str, str] = MappingProxyType({name: _encoding(name) for name in _FIELDS})
"""The type encoding of every struct."""


@total_ordering
class Struct:
    """The base of all structs; ``_types`` are the codes of fields, or the structs that they are."""

    __slots__ = ()
    __hash__: ClassVar[None]  # pyright: ignore[reportIncompatibleMethodOverride]
    __typestr__: ClassVar[bytes] = b""
    __match_args__: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _types: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        who = type(self).__name__
        if len(values) > len(self._fields):
            raise TypeError(f"{who}() takes at most {len(self._fields)} arguments ({len(values)} given)")
        given = dict(zip(self._fields, values, strict=False))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"{who}() got multiple values for keyword argument '{name}'")
            if name not in self._fields:
                raise TypeError(f"{who}() got an unexpected keyword argument '{name}'")
            given[name] = value
        for name, kind in zip(self._fields, self._types, strict=True):
            setattr(self, name, given[name] if name in given else _default(kind))

    @classmethod
    def of(cls, value: Any) -> Self:
        """``value`` if it is such a struct, else one with the fields of a tuple or list of that length."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, (tuple, list, Struct)):
            raise ValueError(f"depythonifying struct '{cls.__name__}', got '{type(value).__name__}'")
        items: list[Any] = list(value)
        if len(items) != len(cls._fields):
            raise ValueError(f"depythonifying struct of {len(cls._fields)} members, got tuple of {len(items)}")
        return cls(*(kind.of(each) if _is_struct(kind) else each for kind, each in zip(cls._types, items, strict=True)))

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self._fields)

    def __getitem__(self, place: Any) -> Any:
        return tuple(self)[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        names = self._fields[place]
        if isinstance(names, str):
            setattr(self, names, value)
            return
        values = tuple(value)
        if len(values) != len(names):
            raise TypeError("a struct has a fixed number of fields")
        for name, each in zip(names, values, strict=True):
            setattr(self, name, each)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(_items(other)) if isinstance(other, (Struct, tuple)) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return tuple(self) < tuple(_items(other)) if isinstance(other, (Struct, tuple)) else NotImplemented

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self)

    def __copy__(self) -> Self:
        return type(self)(*self)

    def __deepcopy__(self, memory: dict[int, Any]) -> Self:
        return type(self)(*(deepcopy(each, memory) for each in self))

    def copy(self) -> Self:
        """A struct that shares nothing with this one."""
        return deepcopy(self)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **named: Any) -> Self:
        return type(self)(**{**self._asdict(), **named})


def _items(other: Struct | tuple[Any, ...]) -> Iterable[Any]:
    return other


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _default(kind: Any) -> Any:
    if _is_struct(kind):
        return kind()
    if kind[0] == "<":
        return None
    if kind[0] == "[":
        return (0,) * int(kind[1:-2])
    return {"f": 0.0, "d": 0.0, "Z": False}.get(kind, 0)


def create_struct_type(name: str, encoding: bytes, fields: Iterable[str], types: Iterable[Any], module: str) -> Any:
    """A class of structs with these fields."""
    names = tuple(fields)
    contents = {
        "__slots__": names,
        "__match_args__": names,
        "__typestr__": encoding,
        "__module__": module,
        "__hash__": None,
        "__doc__": f"{name}({', '.join(names)})",
        "_fields": names,
        "_types": tuple(types),
    }
    return type(name, (Struct,), contents)


def _structs() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in sorted(_FIELDS, key=lambda name: ENCODINGS[name].count("{")):
        module, fields = _FIELDS[name]
        pairs = [each.partition(":") for each in fields.split()]
        kinds = [made.get(kind, kind) for _, _, kind in pairs]
        made[name] = create_struct_type(name, ENCODINGS[name].encode(), (each[0] for each in pairs), kinds, module)
    return made


STRUCTS: Mapping[str, Any] = MappingProxyType(_structs())
"""Every struct's class, by its name."""


def structs_of(module: str) -> dict[str, Any]:
    """The structs that one of the framework modules has."""
    return {name: kind for name, kind in STRUCTS.items() if kind.__module__ == module}
