"""A run of works analysed, once for all that are equal: how its inputs are bound, what comes out, what is in the way.

Each input and each output is bound in one of these ways:

==========  ========================================================================================================
kept        memory that stays, weights and the vectors of optimizers: used as it is, and must be the same each time
value       what was there before the partition, images and what states carry: copied into fixed memory
inner       what an earlier work of the partition makes: it is found in memory of the capture's own
number      uploaded, where the operations can read it on the device; else it must be equal
==========  ========================================================================================================

What comes out goes to its place after the replay, unless a later work of the partition reads it: then both happen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from openmps.metal.execution import Release, Work
from openmps.metal.memory import Memory
from openmps.ops.op import Function
from openmps.runtime.binding import Binding, MemoryBinding, Nowhere, Number, are_persistent, flat
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.host import Host
from openmps.runtime.identity import storage_of
from openmps.runtime.replay.signature import (
    Signature,
    traits_of,
)

KEPT, VALUE, INNER, NUMBER, SAME_NUMBER, NOTHING = "kept", "value", "inner", "number", "same number", "nothing"
Memories = tuple[int, ...]
"""New memory, by its places among that of the run."""


class UnfitError(Exception):
    """A work that cannot be captured, at least not together with those before it; the text says why."""


class Source(NamedTuple):
    """How an input is bound."""

    how: str
    memories: Memories = ()
    """Of an inner one."""
    value: int = -1
    """Of a value, its place among those of the partition."""


class Target(NamedTuple):
    """Where an output goes."""

    how: str
    """Kept or inner, a value that nobody in the partition reads, or nothing."""
    memories: Memories = ()
    comes_out: bool = False
    """Whether it goes to its place after the replay; not where that is given back by then."""


class Part(NamedTuple):
    """One work of a partition."""

    function: Function
    sources: list[Source]
    targets: list[Target]
    """Of the outputs one by one."""


class Partition:
    """The works of a run, from its front, that can be captured together. It holds none of their memory."""

    def __init__(self) -> None:
        self.works = 0
        """How many there are, those that give memory back with them."""
        self.steps = 0
        self.parts: list[Part] = []
        self.values: list[tuple[int, int]] = []
        """What is copied in, as dispatch and input of it, in order: once, however many works read it."""
        self.numbers = 0
        """How many of the run's numbers are uploaded."""
        self.beginnings: list[int] = []
        """Inner memory that has contents before the partition, which are copied in behind the values."""
        self.refusal = ""
        """Why the partition ends where it does."""


def analyse(works: Iterable[tuple[str, Work]], signature: Signature) -> Partition:
    """What can be captured of the works of a run."""
    return _Analysis([*islice(works, signature.works)], signature).partition


class _Analysis:
    def __init__(self, works: Sequence[tuple[str, Work]], signature: Signature) -> None:
        self._released = signature.released
        self._numbers = {id(memory): number for number, memory in enumerate(signature.memories)}
        self._begin()
        for count, (label, work) in enumerate(works):
            try:
                self._take(work)
                continue
            except UnfitError as fault:
                refusal = str(fault)
            except Exception as fault:  # The work itself will raise it again.
                refusal = f"{type(fault).__name__} when its memory was looked at"
            # What was noted of this work is forgotten, and what is given back behind it.
            self._begin()
            before = works[:count]
            gone = [each for _, release in before if isinstance(release, Release) for each in release.memories]
            self._released = {id(part) for memory in gone for part in memory.parts()}
            for _, each in before:
                self._take(each)
            self.partition.refusal = f"{label}: {refusal}"
            break
        self._finish()

    def _begin(self) -> None:
        self.partition = Partition()
        self._written: set[int] = set()
        """New memory that outputs so far go to, or that is looked for among it."""
        self._inner: dict[int, Memory] = {}
        """That of it which a later work reads."""
        self._in_place: set[int] = set()
        """Storages of kept memory that works so far write."""
        self._pasted: dict[int, int] = {}
        """Storages that images had before and that works so far write a part of, with whose they are."""
        self._dispatches: list[tuple[Dispatch, list[Source]]] = []
        self._places: dict[Hashable, int] = {}
        """Of what is copied in, by how it is read and of which memory."""

    def _take(self, work: Work) -> None:
        partition = self.partition
        if isinstance(work, Dispatch):
            sources = self._sources(work)
            self._dispatches.append((work, sources))
            for output_binding in flat(work.output_bindings):
                self._note(output_binding)
            partition.steps += work.function.launches
        partition.works += 1

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _sources(self, work: Dispatch) -> list[Source]:
        traits = traits_of(work.function)
        found: list[Source] = []
        in_place: frozenset[int] = frozenset()
        for index, (bound, used, moves, written) in enumerate(zip(work.inputs, work.used, *traits, strict=True)):
            source = self._source(bound, moves, written) if used else Source(NOTHING)
            if source.how is VALUE:
                source = source._replace(value=self._place(bound, index))
            elif source.how is NUMBER:
                self.partition.numbers += 1
            elif source.how is KEPT and written:
                in_place |= _storages(bound)
            found.append(source)
        self._in_place |= in_place
        return found

    def _place(self, bound: Binding, index: int) -> int:
        """The place of a value among those that are copied in: a new one, unless a work before reads it alike."""
        read = type(bound), bound.view_key(), *[self._numbers[id(memory)] for memory in bound.memories()]
        place = self._places.setdefault(read, len(self.partition.values))
        if place == len(self.partition.values):
            self.partition.values.append((len(self._dispatches), index))
        return place

    def _source(self, bound: Binding, moves: bool, written: bool) -> Source:
        """How an input is bound."""
        if type(bound) is Number:
            return Source(NUMBER if moves else SAME_NUMBER)
        if bound.identity() is not None:
            if self._pasted and _storages(bound) & self._pasted.keys():
                raise UnfitError("it reads memory that an image before it shares")
            return Source(KEPT)
        if not written and bound.is_memory and bound.memories()[0].present is not None:
            return self._read_value(bound)
        memories = self._memories(bound)
        if written:
            names = sorted({type(memory).__name__ for memory in memories})
            raise UnfitError(f"it writes memory that is new each time ({', '.join(names)})")
        if any(self._numbers[id(memory)] in self._written for memory in memories):
            return self._read_inner(memories)
        return self._read_value(bound)

    def _read_inner(self, memories: Sequence[Memory]) -> Source:
        numbers = tuple([self._numbers[id(memory)] for memory in memories])
        for number, memory in zip(numbers, memories, strict=True):
            if number not in self._written and memory.is_persistent and memory.present is not None:
                raise UnfitError("it reads memory of two kinds")
            self._written.add(number)
            self._inner[number] = memory
        return Source(INNER, numbers)

    def _read_value(self, bound: Binding) -> Source:
        value = bound.peek()
        if value is None:
            return Source(NOTHING)
        if not isinstance(value, Tensor):
            raise UnfitError(f"it reads a {type(value).__name__}")
        if (storage := storage_of(value)) in self._pasted or storage in self._in_place:
            raise UnfitError("it reads memory that a work before it shares")
        return Source(VALUE)

    @staticmethod
    def _memories(bound: Binding) -> Sequence[Memory]:
        """The memory that something is bound to."""
        name = type(bound).__name__.strip("_")
        if not isinstance(bound, MemoryBinding):
            raise UnfitError(f"it is bound to {name}, which is not fixed memory")
        if bound.is_replaced:
            raise UnfitError(f"it is bound to the buffer of a {name}, which is new each time")
        return bound.memories()

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _note(self, output_binding: Binding) -> None:
        """Note what an output is written to, so that later works can be seen to read it."""
        if isinstance(output_binding, Nowhere):
            return
        memories = self._memories(output_binding)
        if are_persistent(memories):
            self._in_place |= _storages_of(memories)
            return
        for memory in memories:
            present, number = memory.present, self._numbers[id(memory)]
            if isinstance(present, Tensor):
                if memory.is_persistent:
                    raise UnfitError("it writes memory of two kinds")
                # What is made of one is looked for there, and would not be what the other has brought meanwhile.
                if self._pasted.setdefault(storage_of(present), number) != number:
                    raise UnfitError("it writes memory that a work before it shares")
            self._written.add(number)

    def _target(self, output_binding: Binding) -> Target:
        """Where an output goes."""
        if isinstance(output_binding, Nowhere):
            return Target(NOTHING)
        memories = output_binding.memories()
        if are_persistent(memories):
            return Target(KEPT)
        numbers = tuple([self._numbers[id(memory)] for memory in memories])
        comes_out = not all(id(memory) in self._released for memory in memories)
        if not any(number in self._inner for number in numbers):
            return Target(VALUE, numbers, comes_out)
        self._inner.update(zip(numbers, memories, strict=True))
        return Target(INNER, numbers, comes_out)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        partition = self.partition
        for work, sources in self._dispatches:
            partition.parts.append(
                Part(
                    work.function,
                    sources,
                    [self._target(output_binding) for output_binding in flat(work.output_bindings)],
                )
            )
        if any(work.guards for work, _ in self._dispatches) and self._in_place:
            partition.works, partition.refusal = 0, ": its results are looked at, and it writes in place"
        inner = sorted(self._inner.items())
        partition.beginnings = [
            number for number, memory in inner if memory.is_partly_written and memory.present is not None
        ]


def _storages(bound: Binding) -> frozenset[int]:
    """The kept memory of a binding."""
    identity = bound.identity()
    return frozenset() if identity is None else identity.storages()


def _storages_of(memories: Sequence[Memory]) -> frozenset[int]:
    """The addresses of memory that is there."""
    return frozenset([storage_of(present) for each in memories if isinstance(present := each.present, Tensor)])


def values_of(partition: Partition, signature: Signature) -> list[Host]:
    """What is copied in, as the run is bound now."""
    values = [signature.dispatches[place].inputs[index].to_copy() for place, index in partition.values]
    if partition.beginnings:
        values += [signature.memories[number].present for number in partition.beginnings]
    return values


def things_of(signature: Signature) -> list[object]:
    """All that the key of a run tells by identity."""
    identities = [bound.identity() for work in signature.dispatches for bound in work.inputs]
    kept = [each for identity in identities if identity is not None for each in identity.things()]
    kept += [each for memory in signature.memories if are_persistent((memory,)) for each in (memory, memory.present)]
    return list({id(each): each for each in kept if each is not None}.values())
