"""Foundation's arrays, sets and dictionaries, which are used as Python's lists, sets and dicts."""

# Tables of selectors, which have the private parts of objects.
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from openmps.pyobjc.errors import exception_of
from openmps.pyobjc.nsobject import NSObject

NOT_FOUND = 2**63 - 1
"""``NSNotFound``."""
Selectors = Mapping[str, Callable[..., Any]]
_COPIED = ("NSCopying", "NSSecureCoding")


class _Container(NSObject, is_native=True):
    """What the three kinds share: ``_items``, a list, set or dict."""

    __slots__ = ("_items",)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items


def _described(thing: Any) -> str:
    return repr(thing._items)


def _at(array: Any, index: int) -> Any:
    if not 0 <= index < len(array):
        said = f"index {index} beyond bounds [0 .. {len(array) - 1}]"
        raise exception_of("NSRangeException", said, None)
    return array._items[index]


_ARRAY: Selectors = {
    "init": lambda self: _filled(self, ()),
    "initWithArray_": lambda self, items: _filled(self, items),
    "count": len,
    "objectAtIndex_": _at,
    "firstObject": lambda self: self._items[0] if self._items else None,
    "lastObject": lambda self: self._items[-1] if self._items else None,
    "containsObject_": lambda self, item: item in self._items,
    "indexOfObject_": lambda self, item: self._items.index(item) if item in self._items else NOT_FOUND,
    "copyWithZone_": lambda self, zone: NSArray.from_python(self),
    "mutableCopy": lambda self: NSMutableArray.from_python(self),
    "isEqual_": lambda self, other: isinstance(other, (NSArray, list, tuple)) and list(other) == self._items,
    "hash": len,
    "description": _described,
}
_MUTABLE_ARRAY: Selectors = {
    "addObject_": lambda self, item: self._items.append(item),
    "addObjectsFromArray_": lambda self, items: self._items.extend(items),
    "insertObject_atIndex_": lambda self, item, index: self._items.insert(index, item),
    "removeObjectAtIndex_": lambda self, index: self._items.__delitem__(index),
    "removeAllObjects": lambda self: self._items.clear(),
    "replaceObjectAtIndex_withObject_": lambda self, index, item: self._items.__setitem__(index, item),
}
_LIST = ("append", "extend", "insert", "pop", "remove", "reverse", "sort", "__setitem__", "__delitem__")
"""What a mutable array has of a list's methods."""


def _filled(thing: Any, items: Iterable[Any]) -> Any:
    thing._items = list(items)
    return thing


def _of_items(name: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(self._items, name)(*arguments, **named)

    return call


_ARRAYS: Selectors = {
    "array": lambda cls: cls.from_python(),
    "arrayWithArray_": lambda cls, items: cls.from_python(items),
    "arrayWithObject_": lambda cls, item: cls.from_python([item]),
}


class NSArray(_Container, is_native=True, protocols=_COPIED, selectors=_ARRAY, factories=_ARRAYS):
    """A sequence; of a batch of openmps, it keeps the batch as ``_native``."""

    @classmethod
    def from_python(cls, items: Iterable[Any] = ()) -> Any:
        """``NSArray([a, b])``."""
        return _filled(cls.alloc(), items)

    def __getitem__(self, place: Any) -> Any:
        found = self._items[place]
        return type(self).from_python(found) if isinstance(place, slice) else found

    def __add__(self, other: Iterable[Any]) -> Any:
        return NSArray.from_python([*self._items, *other])


class NSMutableArray(
    NSArray, is_native=True, selectors=_MUTABLE_ARRAY, methods={each: _of_items(each) for each in _LIST}
):
    """An array that can be changed; it never stands for a batch."""


class NSSet(
    _Container,
    is_native=True,
    protocols=_COPIED,
    selectors={"count": len, "containsObject_": lambda self, item: item in self._items, "description": _described},
    factories={
        "setWithArray_": lambda cls, items: cls.from_python(items),
        "setWithObject_": lambda cls, item: cls.from_python([item]),
    },
):
    """A set."""

    @classmethod
    def from_python(cls, items: Iterable[Any] = ()) -> Any:
        """``NSSet([a, b])``."""
        made = cls.alloc()
        made._items = set(items)
        return made


_DICTIONARY: Selectors = {
    "init": lambda self: _mapped(self, ()),
    "initWithDictionary_": lambda self, items: _mapped(self, items),
    "count": len,
    "objectForKey_": lambda self, key: self._items.get(key),
    "allKeys": lambda self: NSArray.from_python(self._items),
    "allValues": lambda self: NSArray.from_python(self._items.values()),
    "isEqual_": lambda self, other: isinstance(other, Mapping) and dict(other) == self._items,
    "hash": len,
    "description": _described,
}
_MUTABLE_DICTIONARY: Selectors = {
    "setObject_forKey_": lambda self, value, key: self._items.__setitem__(key, value),
    "removeObjectForKey_": lambda self, key: self._items.__delitem__(key) if key in self._items else None,
}
_DICT = ("keys", "values", "items", "get", "__getitem__")
_MUTABLE_DICT = ("pop", "update", "setdefault", "__setitem__", "__delitem__")


def _mapped(thing: Any, items: Any) -> Any:
    thing._items = dict(items)
    return thing


class NSDictionary(
    _Container,
    is_native=True,
    protocols=_COPIED,
    selectors=_DICTIONARY,
    factories={
        "dictionary": lambda cls: cls.from_python(),
        "dictionaryWithDictionary_": lambda cls, items: cls.from_python(items),
    },
    methods={each: _of_items(each) for each in _DICT},
):
    """A mapping."""

    @classmethod
    def from_python(cls, items: Any = ()) -> Any:
        """``NSDictionary({key: value})``."""
        return _mapped(cls.alloc(), items)


class NSMutableDictionary(
    NSDictionary,
    is_native=True,
    selectors=_MUTABLE_DICTIONARY,
    methods={each: _of_items(each) for each in _MUTABLE_DICT},
):
    """A mapping that can be changed."""


Sequence.register(NSArray)  # pyright: ignore[reportAttributeAccessIssue]
Mapping.register(NSDictionary)  # pyright: ignore[reportAttributeAccessIssue]
MutableMapping.register(NSMutableDictionary)  # pyright: ignore[reportAttributeAccessIssue]
