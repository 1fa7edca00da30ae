"""Properties of kernels that are checked where they are set and kept in the kernel under their own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

from openmps.core.kernel.base import MPSKernel
from openmps.errors import MPSArgumentError

T = TypeVar("T")


class KernelProperty(Generic[T]):
    """A property with a default. ``check`` takes the kernel's name, the property's and a value, and gives the value."""

    is_writable = True

    def __init__(self, default: T, check: Callable[[str, str, T], T], doc: str) -> None:
        self._default = default
        self._check = check
        self._name = "property"
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, kernel: None, owner: type) -> Self: ...
    @overload
    def __get__(self, kernel: MPSKernel, owner: type) -> T: ...
    def __get__(self, kernel: MPSKernel | None, owner: type) -> Self | T:
        return self if kernel is None else kernel.__dict__.get(self._name, self._default)

    def __set__(self, kernel: MPSKernel, value: T) -> None:
        kernel.__dict__[self._name] = self._check(kernel.name, self._name, value)


def at_least(least: int) -> Callable[[str, str, int], int]:
    """The check that a value is an integer of at least ``least``."""

    def check(who: str, argument: str, value: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MPSArgumentError(who, argument, f"must be an integer of at least {least}", repr(value))
        return value

    return check
