"""Bindings: where a function finds an input when it runs, and where an output goes.

Replays tell three kinds apart, by class:

=================  ==================================================================================================
`MemoryBinding`    a view of memory that other memory can stand for: used in place where all of it is persistent and
                   there, else copied to and from the memory of a capture
`PersistentBinding`  things that stay the same objects, whatever is encoded: used in place
every other        a number, which is uploaded or must be equal; or something that no replay can do with
=================  ==================================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.metal.device import MTLBuffer
from openmps.metal.memory import Memory
from openmps.metal.pending import Region
from openmps.metal.version import Version
from openmps.runtime.identity import Identity, identity_of_held


class Binding(ABC):
    """What an input or an output of a function is bound to in one dispatch."""

    __slots__ = ()

    is_memory: ClassVar[bool] = False
    """Whether it is itself the memory that it reads or writes."""
    remembers_identity: ClassVar[bool] = False
    """Whether it serves many dispatches, and keeps what `identity` has found."""

    adds: ClassVar[bool] = False
    """Whether what it takes is added to what its memory holds."""

    value_stays: ClassVar[bool] = False
    """Whether `value` gives the same tensor in the same `versions`, whatever is written to it."""

    def versions(self) -> tuple[Version, ...]:
        """Of what decides on the memory that it is bound to: it is other memory in other versions."""
        return ()

    @property
    def is_replaced(self) -> bool:
        """Of a binding that is memory: whether other memory has taken its place."""
        return False

    @abstractmethod
    def regions(self) -> Iterable[Region]:
        """The memory that it reads or writes; none where nobody else can have it."""

    def value(self) -> object:
        """Of an input: the value now."""
        raise TypeError(f"{type(self).__name__} is not an input")

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Of an output: keep the value; ``is_shared`` says that its memory may be somebody else's too."""
        raise TypeError(f"{type(self).__name__} is not an output")

    def room(self) -> Tensor | None:
        """Of an output: the memory where its elements go, if it is there.

        Of what was put into it nothing is left to take: `take` gets None, or is not called.
        """
        return None

    # --- for replays -------------------------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """Which memory it is bound to, where that stays; None for everything else. To ask computes nothing."""
        return None

    def memories(self) -> Sequence[Memory]:
        """The memory that it sees, where other memory can stand for it."""
        return ()

    def view_key(self) -> Hashable:
        """How it sees it: all that it is besides its class and its memory."""
        return None

    def seen(self) -> tuple[Sequence[Memory], Hashable]:
        """`memories` and, of a view of some, `view_key`; nothing else where it is itself the memory."""
        memories = self.memories()
        return memories, self.view_key() if memories and not self.is_memory else None

    def peek(self) -> object:
        """As `value`, or as it lies on the host as long as the device has not needed it."""
        return self.value()

    def to_copy(self) -> Any:
        """As `value`, or the host's elements, for one copy of them."""
        return self.value()

    def device_bytes(self, device_type: str) -> tuple[Hashable, int] | None:
        """What a replay would copy from memory of the device itself: which, and how many bytes."""
        return None

    @property
    def is_whole(self) -> bool:
        """Whether its value is all that its one memory holds, as it is: what is taken there is found there."""
        return False

    @property
    def may_defer(self) -> bool:
        """Whether an output becomes one `DeferrableMemory` as it is, and may be copied when that is asked for."""
        return False


def copied(value: Any) -> Any:
    """Tensors in memory of their own: one, a tuple of some, or none."""
    if isinstance(value, tuple):
        return tuple([copied(each) for each in value])  # pyright: ignore[reportUnknownVariableType]
    return None if value is None else value.clone()


class RowPart(NamedTuple):
    """A view of float32 numbers that lie in one row."""

    first: int
    shape: tuple[int, ...]
    is_whole: bool = False
    """Whether it is the whole row, as it is."""


class MemoryBinding(Binding):
    """A view of memory that other memory of its shape can stand for."""

    __slots__ = ()

    @property
    def row_part(self) -> RowPart | None:
        """What it sees of its memory, where that is float32 numbers and the view is a part of them without gaps."""
        return None

    @abstractmethod
    def memories(self) -> Sequence[Memory]:
        """The memory that it sees."""

    @abstractmethod
    def view_key(self) -> Hashable:
        """How it sees it."""

    @abstractmethod
    def rebind(self, memories: Sequence[Any]) -> MemoryBinding:
        """The same view of other memory, as many as `memories` gives."""

    @property
    def is_in_place(self) -> bool:
        """Whether all of the memory is used in place by what is encoded again, and is there."""
        return are_persistent(self.memories())

    def identity(self) -> Identity | None:
        """See `Binding`."""
        if self.is_memory or not self.is_in_place:
            return None
        return identity_of_held(type(self), self.view_key(), tuple(self.memories()), self.versions())

    def versions(self) -> tuple[Version, ...]:
        """See `Binding`: those of the memory."""
        return tuple([version for memory in self.memories() for version in memory.versions()])

    def without_memory(self) -> MemoryBinding:
        """The same view of memory of nobody's, so that it holds none alive."""
        return self.rebind([each.empty_like() for each in self.memories()])


class PersistentBinding(Binding):
    """A binding to things that stay the same objects, whatever is encoded."""

    __slots__ = ("_identity",)

    remembers_identity = True

    def __init__(self) -> None:
        self._identity: Identity | None = None

    @abstractmethod
    def held(self) -> tuple[object, ...]:
        """The things that stay; others where it is bound to others from now on."""

    def identity(self) -> Identity:
        """See `Binding`."""
        identity = self._identity
        if identity is None or not identity.is_current():
            identity = self._identity = identity_of_held(type(self), None, self.held(), self.versions())
        return identity


class CountedBinding(MemoryBinding):
    """A view of flat float32 numbers."""

    __slots__ = ()

    count: int | None
    """How many there are; None for all of a buffer."""


def are_persistent(memories: Sequence[Memory]) -> bool:
    """Whether all of this is memory that is used in place, and is there."""
    return bool(memories) and all(each.is_persistent and each.present is not None for each in memories)


class _NumberFields(NamedTuple):
    number: float


class Number(_NumberFields, Binding):
    """A number of one dispatch."""

    __slots__ = ()

    def value(self) -> float:
        """The number."""
        return self.number

    def regions(self) -> tuple[()]:
        """None."""
        return ()


new_number: Callable[[tuple[float]], Number] = partial(tuple.__new__, Number)
"""Makes one as `Number` does, without a call of Python's: a step has many."""


class HeldTensor(PersistentBinding):
    """A tensor that stays, whatever is encoded; or none."""

    __slots__ = ("tensor",)

    value_stays = True

    def __init__(self, tensor: Tensor | None) -> None:
        super().__init__()
        self.tensor = tensor

    def value(self) -> Tensor | None:
        """The tensor."""
        return self.tensor

    def held(self) -> tuple[Tensor | None]:
        """The tensor."""
        return (self.tensor,)

    def regions(self) -> list[Region]:
        """Its memory."""
        return [] if self.tensor is None else [Region(None, (), self.tensor)]


class Numbers(CountedBinding):
    """Float32 numbers in a buffer, from a byte on; all of them without a count."""

    __slots__ = ("_identity", "buffer", "count", "offset")

    remembers_identity = value_stays = True

    def __init__(self, buffer: MTLBuffer, offset: int = 0, count: int | None = None) -> None:
        self._identity: Identity | None = None
        self.buffer = buffer
        self.offset = offset
        self.count = count

    def identity(self) -> Identity | None:
        """See `Binding`."""
        identity = self._identity
        if identity is None or not identity.is_current():
            identity = self._identity = super().identity()
        return identity

    def memories(self) -> tuple[MTLBuffer]:
        """The buffer."""
        return (self.buffer,)

    def view_key(self) -> Hashable:
        """Which part of it; all of it said in numbers, too, so that the same part is one."""
        return self.offset, self.row_part.shape[0]

    def rebind(self, memories: Sequence[MTLBuffer]) -> Self:
        """The same part of another buffer."""
        return type(self)(memories[0], self.offset, self.count)

    def value(self) -> Tensor:
        """The numbers, sharing the buffer's memory."""
        return self.buffer.memory(torch.float32, self.offset, self.count)

    def regions(self) -> tuple[Region]:
        """The bytes of the numbers."""
        size = self.buffer.length - self.offset if self.count is None else 4 * self.count
        return (self.buffer.region(self.offset, size),)

    @property
    def row_part(self) -> RowPart:
        """See `MemoryBinding`."""
        whole = self.buffer.length // 4
        count = whole - self.offset // 4 if self.count is None else self.count
        return RowPart(self.offset // 4, (count,), count == whole)

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Put numbers in their place; where there is none yet, they become the buffer's memory."""
        buffer = self.buffer
        if not buffer.is_allocated and self._is_all_of(value):
            own = value.clone() if is_shared else value
            if buffer.bind_unless_allocated(own):
                return
        self.value().copy_(value)

    def _is_all_of(self, value: Tensor) -> bool:
        """Whether numbers can be the whole buffer's memory."""
        buffer = self.buffer
        return (
            self.offset == 0
            and value.nbytes == buffer.length
            and value.dtype == torch.float32
            and buffer.heap is None
            and value.is_contiguous()
            and value.device == buffer.device.torch_device
        )


class Sum(Numbers):
    """Numbers that are added to those in the buffer, which is zero at first."""

    __slots__ = ()

    adds = True

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Add numbers in their place."""
        self.value().add_(value)


@dataclass(slots=True, eq=False)
class Replaced(MemoryBinding):
    """Numbers that take the place of those in memory that is bound."""

    place: MemoryBinding

    def memories(self) -> Sequence[Memory]:
        """The memory that it writes."""
        return self.place.memories()

    def view_key(self) -> Hashable:
        """Which part of it."""
        return self.place.view_key()

    def rebind(self, memories: Sequence[Memory]) -> Replaced:
        """The same of other memory."""
        return Replaced(self.place.rebind(memories))

    def regions(self) -> Iterable[Region]:
        """The memory that it writes."""
        return self.place.regions()

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Put numbers in the place of those before."""
        room = self.place.value()
        assert isinstance(room, Tensor)
        room.copy_(value.reshape(room.shape))


class Constant:
    """Numbers of a configuration; copied to a device when they are first used there."""

    __slots__ = ("_made", "numbers")

    def __init__(self, numbers: NDArray[Any]) -> None:
        self.numbers = numbers
        self._made: dict[torch.device, HeldTensor] = {}

    def on(self, device: torch.device) -> HeldTensor:
        """The numbers on a device; the same tensor each time."""
        made = self._made.get(device)
        if made is None:
            made = self._made.setdefault(device, HeldTensor(torch.from_numpy(self.numbers.copy()).to(device)))
        return made


class _SeveralFields(NamedTuple):
    each: Sequence[Binding]


class Several(_SeveralFields, Binding):
    """Outputs that take one value together, each to a memory of its own."""

    __slots__ = ()

    def take(self, value: object, *, is_shared: bool) -> None:
        """Hand the value to each."""
        for one in self.each:
            one.take(value, is_shared=True)

    def regions(self) -> list[Region]:
        """The memory of each."""
        return [region for one in self.each for region in one.regions()]


class Nowhere(Binding):
    """Takes what nobody asked for."""

    __slots__ = ()

    def take(self, value: object, *, is_shared: bool) -> None:
        """Let go of the value."""

    def regions(self) -> tuple[()]:
        """None."""
        return ()


NOWHERE = Nowhere()


def flat(bindings: Sequence[Binding]) -> list[Binding]:
    """Outputs one by one, those that take a value together too."""
    return [one for each in bindings for one in (each.each if isinstance(each, Several) else (each,))]
