"""Values of an archive's document: scalars, enumerations, structs, arrays, and objects kept once each."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import openmps.types as types
from openmps.core.image.allocator import ORDINARY, TEMPORARY
from openmps.errors import MPSFileError, MPSTypeError
from openmps.formats.archive import forms
from openmps.formats.archive.container import Arrays
from openmps.formats.archive.graphs import GraphReader, GraphWriter, conventions_entry, made_with
from openmps.formats.archive.sources import StandIns
from openmps.formats.arrays import to_stored
from openmps.graph.graph import MPSNNGraph
from openmps.metal.device import MTLDevice

Registry = Mapping[str, Callable[[dict[str, Any]], Any]]
"""Makes objects of classes that are not openmps' own from what their ``archived()`` gave, by class name."""

REGISTRY = "registry"
"""What errors call the argument that lacks a class."""
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
DEEPEST = 128
"""How deep lists in lists may be."""
_LARGEST = 100_000
_PRINTED = 1000  # numbers of an array that NumPy prints; eight take as much room as one other value
_TEXT = 64  # characters that do
_ALLOCATORS = {"ordinary": ORDINARY, "temporary": TEMPORARY}


class Writer:
    """Objects, turned into a document and arrays."""

    def __init__(self, stand_ins: StandIns) -> None:
        self.objects: list[dict[str, Any]] = []
        self.arrays: Arrays = {}
        self.stand_ins = stand_ins
        self._indices: dict[int, int] = {}
        self._alive: list[Any] = []
        self._depth = 0

    def value(self, value: Any) -> Any:
        """One value as JSON; objects and arrays by their place."""
        if isinstance(value, enum.Enum):
            return {"enum": type(value).__name__, "value": int(value.value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list | tuple):
            return {"list": self._list(value)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_struct(type(value)):
            fields = [self.value(getattr(value, each.name)) for each in dataclasses.fields(value)]
            return {"struct": type(value).__name__, "fields": fields}
        for name, allocator in _ALLOCATORS.items():
            if value is allocator:
                return {"allocator": name}
        return {"object": self.thing(value)}

    def _list(self, values: Sequence[Any]) -> list[Any]:
        if self._depth == DEEPEST:
            raise RecursionError
        self._depth += 1
        found = [self.value(each) for each in values]
        self._depth -= 1
        return found

    def _array(self, value: Any) -> dict[str, Any]:
        name = str(len(self.arrays))
        self.arrays[name] = to_stored(value, "MPSKeyedArchiver", "array")
        return {"array": name}

    def thing(self, thing: Any) -> int:
        """The place of an object, which is kept once however often it is named."""
        known = self._indices.get(id(thing))
        if known is not None:
            return known
        depth, self._depth = self._depth, 0
        entry = self._entry(thing)
        self._depth = depth
        self.objects.append(entry)
        self._alive.append(thing)
        self._indices[id(thing)] = len(self.objects) - 1
        return len(self.objects) - 1

    def _entry(self, thing: Any) -> dict[str, Any]:
        kind = type(thing)
        if kind is MPSNNGraph:
            return GraphWriter(thing, self).entry()
        if forms.classes().get(kind.__name__) is kind:
            given = forms.arguments(thing, self.stand_ins)
            return {
                "class": kind.__name__,
                **conventions_entry(thing),
                "arguments": {name: self.value(value) for name, value in given.items()},
                "properties": self.properties(thing, forms.properties(kind) - given.keys(), {}),
            }
        archived = getattr(thing, "archived", None)
        if not callable(archived):
            raise MPSTypeError(
                "MPSKeyedArchiver",
                kind.__name__,
                "cannot be archived",
                f"an object of {kind.__module__}",
                "Give the class a method archived() that returns a dictionary of numbers, text and arrays, and pass "
                "what makes it again in the unarchiver's registry",
            )
        values = archived()
        if not isinstance(values, Mapping):
            raise MPSTypeError(f"{kind.__name__}.archived", "result", "must be a dictionary", type(values).__name__)
        return {"custom": kind.__name__, "values": {str(name): self.value(value) for name, value in values.items()}}

    def properties(self, thing: Any, names: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any]:
        """Properties by name; some of them ``known`` better than by looking at the thing."""
        return {name: self.value(known[name] if name in known else getattr(thing, name)) for name in sorted(names)}


class Reader:
    """A document and arrays, turned into objects of one device; nothing but the known classes is ever called.

    A document of objects that name one another many times is a tree of any size to whoever prints it, as errors do. So
    what an object holds is counted as often as it is named, and bounded.
    """

    def __init__(self, who: str, arrays: Arrays, device: MTLDevice, registry: Registry) -> None:
        self._who, self._arrays, self._device, self._registry = who, arrays, device, registry
        self._things: list[Any] = []
        self._weights: list[float] = []  # of the things: values in them, as often as they are named
        self._weight = 0.0  # of what is being read
        self._depth = 0
        self._values = 0
        self._readers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "enum": self._enum,
            "float": lambda value: _FLOATS[value["float"]],
            "array": self._array,
            "list": self._list,
            "struct": self._struct,
            "allocator": lambda value: _ALLOCATORS[value["allocator"]],
            "object": self._object,
        }

    def things(self, entries: Sequence[Any]) -> list[Any]:
        """Every object, in order: one names only objects before it."""
        for place, entry in enumerate(entries):
            self._weight = self._depth = 0
            try:
                self._things.append(self._made(entry))
            except Exception as fault:  # whatever a document of wrong values makes a constructor raise
                if isinstance(fault, MPSFileError) and fault.argument == REGISTRY:
                    raise
                raise self._refused(place, entry, fault) from fault
            self._weights.append(max(self._weight, 1))
        self._weight = self._depth = 0
        return self._things

    def root(self, value: Any) -> Any:
        """The value that the document is about."""
        try:
            return self.value(value)
        except Exception as fault:
            raise MPSFileError(self._who, "archive's root", "cannot be made again", f"{fault}"[:500]) from fault

    def _refused(self, place: int, entry: Any, fault: Exception) -> MPSFileError:
        kind = entry.get("class", entry.get("custom")) if isinstance(entry, dict) else type(entry).__name__
        return MPSFileError(self._who, f"object {place} ({str(kind)[:80]})", "cannot be made again", f"{fault}"[:500])

    def value(self, value: Any) -> Any:
        """One value of the document."""
        self._values += 1
        self._weigh(1)
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise TypeError("a list where a value should be")
            self._weigh(len(value) // _TEXT if isinstance(value, str) else 0)
            return value
        (key,) = {*value} & {*self._readers}
        return self._readers[key](value)

    def _weigh(self, weight: float) -> None:
        self._weight += weight
        if self._weight > _LARGEST + self._values:
            raise ValueError(f"it holds more than {_LARGEST:,} values, counted as often as they are named")

    def _array(self, value: dict[str, Any]) -> Any:
        array = self._arrays[value["array"]]
        self._weigh(min(array.size, _PRINTED) // 8)
        return array

    def _list(self, value: dict[str, Any]) -> list[Any]:
        if self._depth == DEEPEST:
            raise ValueError(f"lists are no deeper than {DEEPEST} in one another")
        self._depth += 1
        found = [self.value(each) for each in value["list"]]
        self._depth -= 1
        return found

    def _enum(self, value: dict[str, Any]) -> Any:
        kind = getattr(types, value["enum"])
        if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
            raise TypeError(f"{value['enum']} is no enumeration")
        return kind(value["value"])

    def _struct(self, value: dict[str, Any]) -> Any:
        kind = getattr(types, value["struct"])
        if not _is_struct(kind):
            raise TypeError(f"{value['struct']} is no struct")
        if len(value["fields"]) != len(dataclasses.fields(kind)):
            raise TypeError(f"{value['struct']} has {len(dataclasses.fields(kind))} fields, not {len(value['fields'])}")
        return kind(*(self.value(each) for each in value["fields"]))

    def _object(self, value: dict[str, Any]) -> Any:
        place = value["object"]
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(self._things):
            raise IndexError(f"object {place} is not there")
        self._weigh(self._weights[place])
        return self._things[place]

    def _made(self, entry: dict[str, Any]) -> Any:
        if "custom" in entry:
            return self._custom(entry)
        if entry["class"] == MPSNNGraph.__name__:
            self._weight = -math.inf  # it prints as one word
            return GraphReader(self, self._device).graph(entry)
        kind = forms.classes()[entry["class"]]
        given = {name: self.value(value) for name, value in entry["arguments"].items()}
        if "device" in given:
            raise TypeError("a device is never archived")
        with made_with(entry):
            thing = kind(self._device, **given) if forms.takes_device(kind) else kind(**given)
            self.set_properties(thing, entry["properties"])
        return thing

    def set_properties(self, thing: Any, given: dict[str, Any]) -> None:
        """Set writable properties of an object to values of the document."""
        allowed = forms.properties(type(thing))
        for name, value in given.items():
            if name not in allowed:
                raise AttributeError(f"{str(name)[:80]} is no writable property")
            setattr(thing, name, _like(name, getattr(thing, name), self.value(value)))

    def _custom(self, entry: dict[str, Any]) -> Any:
        name = entry["custom"]
        if name not in self._registry:
            raise MPSFileError(
                self._who, REGISTRY, f"must have {name!r}, a class that is not openmps'", sorted(self._registry),
                "Pass registry={'" + str(name)[:80] + "': a function from the dictionary of archived()}",
            )  # fmt: skip
        return self._registry[name]({key: self.value(value) for key, value in entry["values"].items()})


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__.startswith(types.__name__)


def _like(name: str, now: Any, value: Any) -> Any:
    """``value``, if an attribute that holds ``now`` may hold it; setters check more."""
    if name == "label" and not isinstance(value, str | None):
        raise TypeError(f"label holds text, not a {type(value).__name__}")
    if isinstance(now, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if value is None and (now is None or name == "label"):
        return value
    if now is None and not isinstance(value, bool | int | float | list):
        return value  # the setter, or the kernel that reads it, checks it
    if isinstance(value, type(now)) and isinstance(now, bool) == isinstance(value, bool):
        return value
    if isinstance(now, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(now, int) and isinstance(value, int) and not isinstance(now, bool | enum.Enum):
        return value
    if hasattr(now, "padding_method") or hasattr(now, "image"):
        return value  # a protocol: the setter checks it
    raise TypeError(f"{name} holds a {type(now).__name__}, not a {type(value).__name__}")
