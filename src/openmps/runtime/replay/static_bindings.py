"""Where works of a static function find their inputs, and where their outputs go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from openmps.metal.memory import Memory
from openmps.ops.op import Function
from openmps.runtime.binding import Binding, MemoryBinding, copied
from openmps.runtime.dispatch import Dispatch

Memories = Mapping[int, Memory]
"""The inner memory of one run of a static function, by its numbers."""


class Reader(Protocol):
    """Where an input is found while a static function runs."""

    def read(self, memories: Memories) -> object:
        """What is read."""
        ...


class Taker(Protocol):
    """Where an output goes while a static function runs."""

    def take(self, value: Tensor | None, memories: Memories, outs: list[Tensor | None]) -> None:
        """Keep the value, and add it to ``outs`` if it comes out."""
        ...


class StaticCall(NamedTuple):
    """One work of the static function."""

    function: Function
    readers: Sequence[Reader]
    takers: Sequence[tuple[int, Taker]]
    """By the place of the output among those of the function."""
    guard: Dispatch | None


class Touched(NamedTuple):
    """The memory of a work, as far as works of the static function write it."""

    read: frozenset[Hashable] = frozenset()
    written: frozenset[Hashable] = frozenset()


class Fixed(NamedTuple):
    """An input that is found in the same memory each time."""

    tensor: object

    def read(self, memories: Memories) -> object:
        """See `Reader`."""
        return self.tensor


class Kept(NamedTuple):
    """An input that is the user's own memory, as it was bound when the static function was made."""

    bound: Binding

    def read(self, memories: Memories) -> object:
        """See `Reader`."""
        return self.bound.value()


class Inner(NamedTuple):
    """An input that an earlier work of the static function made."""

    bound: MemoryBinding
    numbers: tuple[int, ...]

    def read(self, memories: Memories) -> object:
        """See `Reader`."""
        return self.bound.rebind([memories[number] for number in self.numbers]).value()


class Outlet(NamedTuple):
    """Where an output goes in the function: to a binding over inner memory, to kept memory, and what comes out."""

    output_binding: Binding | None
    numbers: tuple[int, ...] | None
    comes_out: bool
    is_shared: bool

    def take(self, value: Tensor | None, memories: Memories, outs: list[Tensor | None]) -> None:
        """See `Taker`."""
        output_binding = self.output_binding
        if output_binding is not None:
            if self.numbers is not None and isinstance(output_binding, MemoryBinding):
                output_binding = output_binding.rebind([memories[number] for number in self.numbers])
            output_binding.take(value, is_shared=self.is_shared)
        if self.comes_out:
            outs.append(copied(value) if self.is_shared else value)
