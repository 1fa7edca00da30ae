"""What follows from memory that stays and is made again only when that changes: weights folded, rounded and packed.

Whoever owns such memory, the weights of a convolution or the rows of a normalization, has `Dependents`, which count the
versions of its contents. What is derived knows the versions that it was made of, and compares when it is read. Where
new numbers are written by recorded work, a step behind it makes all that follows again, in the order of the queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from weakref import WeakSet

from torch import Tensor

from openmps.locks import new_reentrant_lock
from openmps.metal.device import CommandBuffer
from openmps.metal.pending import Region
from openmps.metal.version import Version
from openmps.ops.op import Kind, Op
from openmps.runtime.binding import Binding, PersistentBinding
from openmps.runtime.dispatch import record_op
from openmps.runtime.step_trace import depends_on

_making = new_reentrant_lock()
"""Held while anything is made. A signal handler may make it while its thread does."""


def _forget_threads() -> None:
    """In a forked process: no thread that had it is there any more."""
    global _making
    _making = new_reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class _Place:
    """Stands for memory that stays the same."""

    __slots__ = ("__weakref__",)


class Derived(PersistentBinding):
    """What an operation gives of memory that stays: tensors, some of them left out. A function finds it made."""

    __slots__ = ("__weakref__", "_begun", "_contents", "_made", "_made_of", "_op", "_operands", "_places", "place")

    def __init__(self, op: Op, operands: Sequence[Binding]) -> None:
        super().__init__()
        self.place = _Place()
        """Another one where the tensors have become others."""
        self._places = Version()
        self._op = op
        self._operands = operands
        self._contents: list[Version] = []
        """Of the memory that it is made of."""
        self._made: tuple[Tensor | None, ...] | None = None
        self._made_of: list[int] | None = None
        """The versions that it was made of; None while it is made, and where that was cut off by an error or a fork."""
        self._begun = 0
        """How often it was begun: a signal handler may make it while it is made."""

    def value(self) -> tuple[Tensor | None, ...] | None:
        """The tensors, of what the memory holds now."""
        if self._made_of != [each.number for each in self._contents]:
            self.make()
        return self._made

    def versions(self) -> tuple[Version]:
        """See `Binding`."""
        return (self._places,)

    def held(self) -> tuple[object]:
        """What stays the same while the tensors do. To ask makes nothing: recorded work may be about to write."""
        return (self.place,)

    def regions(self) -> tuple[()]:
        """None that anybody else could read."""
        return ()

    def follow(self, contents: Version) -> None:
        """Be made again in another version of some memory's contents."""
        self._contents.append(contents)

    def make(self) -> None:
        """Make it of what the memory holds now, in the tensors that are there."""
        with _making:
            while True:
                mine = self._begun = self._begun + 1
                self._made_of, versions = None, [each.number for each in self._contents]
                found = self._op.run((True,), *[each.value() for each in self._operands])
                assert isinstance(found, tuple)
                self._take(found)
                if self._begun == mine:  # else a signal handler made it meanwhile, perhaps of newer numbers
                    self._made_of = versions
                    return

    def _take(self, found: tuple[Tensor | None, ...]) -> None:
        """Have new tensors, or their numbers where they fit in those that are there."""
        made = self._made
        if made is not None and all(map(_are_alike, made, found)):
            for place, tensor in zip(made, found, strict=True):
                if place is not None and tensor is not None:
                    place.copy_(tensor)
            return
        self._made = found
        if made is not None and any(isinstance(each, Tensor) and each.is_cuda for each in found):
            # Captured work knows tensors by where they lie; on the CPU it asks for the value.
            self.place = _Place()
            self._places.advance()


def _are_alike(mine: object, other: object) -> bool:
    """Whether what is there can take the other's numbers; weights that are packed cannot."""
    if not isinstance(mine, Tensor) or not isinstance(other, Tensor):
        return mine is other
    return mine.shape == other.shape and mine.dtype == other.dtype


class Dependents(PersistentBinding):
    """All that follows from some memory; as what a step is bound to, all there is when it runs."""

    __slots__ = ("_all", "_count", "contents")

    def __init__(self) -> None:
        super().__init__()
        self.contents = Version()
        """That of the memory's numbers."""
        self._count = Version()
        """Another one where there is more that follows."""
        self._all: WeakSet[Derived] = WeakSet()

    def add(self, derived: Derived) -> None:
        """Have this follow, too, for as long as somebody holds it."""
        derived.follow(self.contents)
        self._all.add(derived)
        self._count.advance()

    def replaced(self) -> Dependents:
        """Those of other memory that takes the place of this one; what is bound to this one must be bound anew."""
        self._count.advance()
        return Dependents()

    def record(self, command_buffer: CommandBuffer, label: str) -> None:
        """Record that all is made again, behind a step that writes the memory."""
        depends_on(command_buffer, self._count)
        if self._count.number and self._all:
            record_op(command_buffer, label, Refresh(), [self])

    def make(self) -> None:
        """The memory has new numbers: make all that follows again."""
        self.contents.advance()
        for each in tuple(self._all):
            each.make()

    def value(self) -> Dependents:
        """Itself."""
        return self

    def versions(self) -> tuple[Version, ...]:
        """See `Binding`."""
        return (self._count, *[version for each in self._all for version in each.versions()])

    def held(self) -> tuple[object, ...]:
        """What stays the same as long as the same is to be made."""
        return tuple([each.place for each in self._all])

    def regions(self) -> tuple[Region, ...]:
        """None that anybody else could read."""
        return ()


class Refresh(Op, kind=Kind.UPDATE, has_effect=True):
    """What follows from memory, made again: what is derived, its operand."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """All of them."""
        return range(operands)

    def run(self, wanted: tuple[bool, ...], *operands: Dependents) -> None:
        """Make each."""
        operands[0].make()
