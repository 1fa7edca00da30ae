"""Memory that recorded work reads and writes: buffers, blocks of images, what a forward kernel saves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import ClassVar, Self

from torch import Tensor

from openmps.metal.version import Version


class Memory(ABC):
    """Memory that may be allocated when it is first used, and that another one of its shape can stand for."""

    __slots__ = ()

    is_persistent: ClassVar[bool]
    """Whether what is encoded again and again uses it in place; else each encode has memory of its own."""
    is_partly_written: ClassVar[bool] = False
    """Whether a result may be written to a part of it, so that its contents before count."""

    @property
    @abstractmethod
    def present(self) -> object:
        """What is there now: a tensor mostly; None where nothing is."""

    def outline(self) -> tuple[object, ...] | None:
        """How an array lies that is there as it came from the host; or None and `shape_key`, where nothing is there.

        Of all else None, so that no tensor need be made to tell.
        """
        return None

    def versions(self) -> tuple[Version, ...]:
        """Of persistent memory: another one where other memory has taken the place of what was there."""
        return ()

    @abstractmethod
    def shape_key(self) -> Hashable:
        """What all memory that can stand for one another has in common."""

    @abstractmethod
    def empty_like(self) -> Self:
        """Memory of the same shape, not yet allocated."""

    def parts(self) -> Iterable[object]:
        """All that is given back with it; see `openmps.metal.execution.Releasable`."""
        return (self,)


class DeferrableMemory(Memory):
    """Memory whose contents may be copied from somewhere when they are first asked for."""

    __slots__ = ()

    @abstractmethod
    def defer(self, copy: Callable[[], Tensor]) -> None:
        """Have ``copy`` make the contents when they are asked for; there is no memory yet."""

    @abstractmethod
    def resolve(self) -> None:
        """Have the contents now, if they are deferred. Whoever writes their origin asks for this before."""

    @abstractmethod
    def adopt(self, stored: Tensor) -> None:
        """Take a tensor as the memory, or copy it into the memory that is there."""
