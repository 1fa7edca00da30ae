"""What objects of every floor share: names that errors call them by, checks of whole numbers, lengths in words."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeGuard, TypeVar, overload

from openmps.errors import MPSArgumentError

T = TypeVar("T")


class Shown(property, Generic[T]):
    """A read-only property that shows a private attribute or a part of it: ``Shown[float]("_neuron.a", "…")``."""

    def __init__(self, path: str, doc: str, change: Callable[[Any, T], None] | None = None) -> None:
        super().__init__(attrgetter(path), change)
        self.__doc__ = doc

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type, /) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None, /) -> T: ...
        def __get__(self, instance: object, owner: type | None = None, /) -> Self | T: ...
        def __set__(self, instance: object, value: Never, /) -> None: ...


class Labelled:
    """An object with a label."""

    _label: str | None = None
    _name: str | None = None

    @property
    def label(self) -> str | None:
        """A name for errors and debugging."""
        return self._label

    @label.setter
    def label(self, value: str | None) -> None:
        self._label, self._name = value, None

    @property
    def name(self) -> str:
        """Class and label, as errors call the object."""
        name = self._name
        if name is None:  # kept, because every encode asks for it
            name = self._name = f"{type(self).__name__} {self._label!r}" if self._label else type(self).__name__
        return name


def is_whole(value: object, least: int | None = None) -> TypeGuard[int]:
    """Whether ``value`` is an integer, no bool, of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def whole(who: str, argument: str, value: object, least: int = 1, rule: str | None = None) -> int:
    """``value`` if it is an integer of at least ``least``; ``rule`` says so in other words."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MPSArgumentError(who, argument, rule or f"must be an integer of at least {least}", repr(value))
    return value


def as_index(value: object) -> int | None:
    """``value`` as an int, NumPy's integers too; None for what is no integer, bools among them."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def lengths_text(lengths: Sequence[int]) -> str:
    """``(28, 20)`` as ``28x20``."""
    return "x".join(str(length) for length in lengths)
