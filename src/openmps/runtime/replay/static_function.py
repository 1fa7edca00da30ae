"""A partition made ready to run again and again over memory of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from openmps.metal.memory import DeferrableMemory
from openmps.runtime.binding import Binding, MemoryBinding, Numbers, Several, flat
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.fusion import fused, joinable
from openmps.runtime.replay.partition import (
    INNER,
    KEPT,
    NUMBER,
    SAME_NUMBER,
    VALUE,
    Part,
    Partition,
    Source,
    Target,
    values_of,
)
from openmps.runtime.replay.signature import Signature, traits_of
from openmps.runtime.replay.static_bindings import Fixed, Inner, Kept, Outlet, Reader, StaticCall, Touched
from openmps.runtime.replay.upload import Upload


class StaticFunction:
    """The works of a partition over memory that stays the same: what is read is copied in, numbers are uploaded."""

    def __init__(
        self, signature: Signature, partition: Partition, device: torch.device, *, allow_fusion: bool = True
    ) -> None:
        self.upload = Upload(values_of(partition, signature), signature.numbers[: partition.numbers], device)
        """Where what the works read is copied to."""
        self.output_bindings: list[MemoryBinding] = []
        """Of each output that comes out the binding, over memory of nobody's."""
        self.outs: list[tuple[int, ...]] = []
        """Of each output that comes out, the places of its memory among that of the run."""
        self.is_guarded = signature.is_guarded
        """Whether the last output says that the others are in order."""
        parts, values = partition.parts, len(partition.values)
        used = {number for part in parts for numbers in _inner_of(part) for number in numbers}
        self._inner = {number: signature.memories[number].empty_like() for number in used}
        self._numbers = iter(self.upload.numbers)
        self._writers = _writers(parts)
        ends = _ends(parts)
        touched = [_touched(work, part) for work, part in zip(signature.dispatches, parts, strict=False)]
        self._aliases = _aliases(signature.dispatches, parts, ends, touched)
        self._equations = [self._equation(work, part) for work, part in zip(signature.dispatches, parts, strict=False)]
        self._beginnings = dict(zip(partition.beginnings, self.upload.values[values:], strict=True))
        touched = _with_aliases(touched, parts, self._aliases)
        self.fused: frozenset[int] = frozenset()
        """The works, by their places among the dispatches, whose results are never made: they are parts of others."""
        if allow_fusion:
            works = joinable(signature.dispatches, partition, self._equations, touched, ends, self._writers)
            works, self.fused = fused(works, device)
            self._equations, ends = [each.call for each in works], [each.ends for each in works]
        self._ends = ends

    def _equation(self, work: Dispatch, part: Part) -> StaticCall:
        readers = [self._reader(bound, source) for bound, source in zip(work.inputs, part.sources, strict=True)]
        takers: list[tuple[int, Outlet]] = []
        targets = iter(part.targets)
        for place, (output_binding, is_shared) in enumerate(
            zip(work.output_bindings, work.function.may_share, strict=True)
        ):
            is_one = not isinstance(output_binding, Several)
            for each in flat((output_binding,)):
                takers.append((place, self._taker(each, next(targets), is_shared or not is_one)))
        return StaticCall(work.function, readers, takers, work if work.guards else None)

    def _reader(self, bound: Binding, source: Source) -> Reader:
        if source.how is KEPT:
            return Kept(bound)
        if source.how is INNER:
            return Inner(without_memory(bound), source.memories)
        if source.how is SAME_NUMBER:
            return Fixed(bound.value())
        if source.how is VALUE:
            return Fixed(self.upload.values[source.value])
        return Fixed(next(self._numbers) if source.how is NUMBER else None)

    def _taker(self, output_binding: Binding, target: Target, is_shared: bool) -> Outlet:
        if target.how is KEPT:
            return Outlet(output_binding, None, False, is_shared)
        if target.comes_out:
            self.output_bindings.append(without_memory(output_binding))
            self.outs.append(target.memories)
        if target.how is not INNER:
            return Outlet(None, None, target.comes_out, is_shared)
        # What comes out must not change when a later work writes the inner memory again.
        several = any(self._writers[number] > 1 for number in target.memories)
        is_shared = (is_shared and target.memories[0] not in self._aliases) or (target.comes_out and several)
        return Outlet(without_memory(output_binding), target.memories, target.comes_out, is_shared)

    def run(self) -> list[Tensor | None]:
        """Run the works; what comes out, in order."""
        self.upload.stages.receive()
        memories = {number: each.empty_like() for number, each in self._inner.items()}
        for number, stored in self._beginnings.items():
            memory = memories[number]
            assert isinstance(memory, DeferrableMemory)
            memory.adopt(stored)
        outs: list[Tensor | None] = []
        for equation, ends in zip(self._equations, self._ends, strict=True):
            made = equation.function.run([reader.read(memories) for reader in equation.readers])
            for place, taker in equation.takers:
                taker.take(made[place], memories, outs)
            if equation.guard is not None:
                outs.append(equation.guard.sound(made))
            del made
            for number in ends:
                del memories[number]
        return outs


def without_memory(bound: Binding) -> MemoryBinding:
    """The same view of memory of nobody's, so that it holds none alive."""
    assert isinstance(bound, MemoryBinding)
    return bound.without_memory()


def _inner_of(part: Part) -> Iterable[tuple[int, ...]]:
    """The inner memory that a work uses."""
    return (each.memories for each in (*part.sources, *part.targets) if each.how is INNER)


def _writers(parts: Sequence[Part]) -> Counter[int]:
    """How many outputs are written to each inner memory."""
    targets = (target for part in parts for target in part.targets if target.how is INNER)
    return Counter(number for target in targets for number in target.memories)


def _ends(parts: Sequence[Part]) -> list[list[int]]:
    """After each work, the inner memory that no later one uses."""
    last = {number: place for place, part in enumerate(parts) for numbers in _inner_of(part) for number in numbers}
    return [[number for number, end in last.items() if end == place] for place in range(len(parts))]


# --- what works touch -------------------------------------------------------------------------------------------------


def _touched(work: Dispatch, part: Part) -> Touched:
    """The memory of a work: kept storages by their addresses, inner memory as its numbers in tuples of one."""
    read, written = set[Hashable](), set[Hashable]()
    for bound, source, is_written in zip(work.inputs, part.sources, traits_of(work.function).written, strict=True):
        memory = _memory(bound, source)
        read |= memory
        if is_written:
            written |= memory
    for output_binding, target in zip(flat(work.output_bindings), part.targets, strict=True):
        written |= _memory(output_binding, target)
    return Touched(frozenset(read), frozenset(written))


def _memory(bound: Binding, how: Source | Target) -> set[Hashable]:
    if how.how is INNER:
        return {(number,) for number in how.memories}
    identity = bound.identity() if how.how is KEPT else None
    return set() if identity is None else set(identity.storages())


def _aliases(
    works: Sequence[Dispatch], parts: Sequence[Part], ends: Sequence[list[int]], touched: Sequence[Touched]
) -> dict[int, frozenset[int]]:
    """Inner memory that may be the very kept memory that a work hands on as it is, and which.

    Nobody writes that until the last work that reads it there.
    """
    last = {number: place for place, numbers in enumerate(ends) for number in numbers}
    writers = _writers(parts)
    found: dict[int, frozenset[int]] = {}
    for place, (work, part) in enumerate(zip(works, parts, strict=False)):
        inputs = dict(zip(work.function.input_values, zip(work.inputs, part.sources, strict=True), strict=True))
        if len(part.targets) != len(work.output_bindings):
            continue
        for output_binding, target, value in zip(
            work.output_bindings, part.targets, work.function.output_values, strict=True
        ):
            bound, source = inputs.get(value, (None, None))
            is_inner = target.how is INNER and type(output_binding) is Numbers and not target.comes_out
            if not is_inner or source is None or source.how is not KEPT or writers[target.memories[0]] > 1:
                continue
            identity = None if bound is None else bound.identity()
            kept = frozenset[int]() if identity is None else identity.storages()
            until = touched[place : last[target.memories[0]] + 1]
            if not any(kept & each.written for each in until):
                found[target.memories[0]] = kept
    return found


def _with_aliases(
    touched: Sequence[Touched], parts: Sequence[Part], aliases: Mapping[int, frozenset[int]]
) -> list[Touched]:
    """The memory of works, with the kept memory that they read as inner memory."""
    made: list[Touched] = []
    for each, part in zip(touched, parts, strict=False):
        inner = [number for source in part.sources if source.how is INNER for number in source.memories]
        kept = [place for number in inner for place in aliases.get(number, ())]
        made.append(each._replace(read=each.read.union(kept)))
    return made
