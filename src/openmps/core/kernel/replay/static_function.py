"""A partition made ready to run again and again over memory of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from openmps.core.kernel.dispatch import Bound, Dispatch, Numbers, Several
from openmps.core.kernel.replay.partition import (
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
from openmps.core.kernel.replay.signature import Signature, flat, identity_of, storages_of, traits_of
from openmps.core.kernel.replay.updates import StaticCall, Touched, joined
from openmps.core.kernel.replay.upload import Upload

Cells = Mapping[int, Any]


class Reader(Protocol):
    """Where an input is found while the static function runs."""

    def read(self, cells: Cells) -> Any:
        """What is read."""
        ...


class _Fixed(NamedTuple):
    """An input that is found in the same memory each time."""

    tensor: Any

    def read(self, cells: Cells) -> Any:
        return self.tensor


class _Kept(NamedTuple):
    """An input that is the user's own memory, as it was bound when the static function was made."""

    bound: Bound

    def read(self, cells: Cells) -> Any:
        return self.bound.value()


class _Inner(NamedTuple):
    """An input that an earlier work of the static function made."""

    bound: Any
    numbers: tuple[int, ...]

    def read(self, cells: Cells) -> Any:
        return self.bound.over([cells[number] for number in self.numbers]).value()


class _Taker(NamedTuple):
    """Where an output goes while the function runs: to a sink over inner memory, to kept memory, and what comes out."""

    sink: Any
    numbers: tuple[int, ...] | None
    comes_out: bool
    is_shared: bool

    def take(self, value: Any, cells: Cells, outs: list[Tensor | None]) -> None:
        if self.sink is not None:
            sink = self.sink if self.numbers is None else self.sink.over([cells[number] for number in self.numbers])
            sink.take(value, is_shared=self.is_shared)
        if self.comes_out:
            outs.append(value.clone() if self.is_shared and value is not None else value)


class StaticFunction:
    """The works of a partition over memory that stays the same: what is read is copied in, numbers are uploaded."""

    def __init__(self, signature: Signature, partition: Partition, device: torch.device) -> None:
        self.upload = Upload(values_of(partition, signature), signature.numbers[: partition.numbers], device)
        """Where what the works read is copied to."""
        self.sinks: list[Any] = []
        """Of each output that comes out the sink, over memory of nobody's."""
        self.outs: list[tuple[int, ...]] = []
        """Of each output that comes out, the places of its memory among that of the run."""
        self.is_guarded = signature.is_guarded
        """Whether the last output says that the others are in order."""
        parts, values = partition.parts, len(partition.values)
        used = {number for part in parts for numbers in _inner_of(part) for number in numbers}
        self._twins: dict[int, Any] = {number: signature.cells[number].twin() for number in used}
        self._numbers = iter(self.upload.numbers)
        self._writers = _writers(parts)
        ends = _ends(parts)
        touched = [_touched(work, part) for work, part in zip(signature.dispatches, parts, strict=False)]
        self._lent = _lent(signature.dispatches, parts, ends, touched)
        self._equations = [self._equation(work, part) for work, part in zip(signature.dispatches, parts, strict=False)]
        self._beginnings = dict(zip(partition.beginnings, self.upload.values[values:], strict=True))
        self._equations, self._ends = joined(self._equations, ends, _with_lent(touched, parts, self._lent))

    def _equation(self, work: Dispatch, part: Part) -> StaticCall:
        readers = [self._reader(bound, source) for bound, source in zip(work.inputs, part.sources, strict=True)]
        takers: list[tuple[int, _Taker]] = []
        targets = iter(part.targets)
        for place, (sink, is_shared) in enumerate(zip(work.sinks, work.function.may_share, strict=True)):
            is_one = not isinstance(sink, Several)
            for each in flat((sink,)):
                takers.append((place, self._taker(each, next(targets), is_shared or not is_one)))
        return StaticCall(work.function, readers, takers, work if work.guards else None)

    def _reader(self, bound: Any, source: Source) -> Reader:
        if source.how is KEPT:
            return _Kept(bound)
        if source.how is INNER:
            return _Inner(over_nothing(bound), source.cells)
        if source.how is SAME_NUMBER:
            return _Fixed(bound.value())
        if source.how is VALUE:
            return _Fixed(self.upload.values[source.value])
        return _Fixed(next(self._numbers) if source.how is NUMBER else None)

    def _taker(self, sink: Any, target: Target, is_shared: bool) -> _Taker:
        if target.how is KEPT:
            return _Taker(sink, None, False, is_shared)
        if target.comes_out:
            self.sinks.append(over_nothing(sink))
            self.outs.append(target.cells)
        if target.how is not INNER:
            return _Taker(None, None, target.comes_out, is_shared)
        # What comes out must not change when a later work writes the inner memory again.
        several = any(self._writers[number] > 1 for number in target.cells)
        is_shared = (is_shared and target.cells[0] not in self._lent) or (target.comes_out and several)
        return _Taker(over_nothing(sink), target.cells, target.comes_out, is_shared)

    def run(self) -> list[Tensor | None]:
        """Run the works; what comes out, in order."""
        cells = {number: twin.twin() for number, twin in self._twins.items()}
        for number, memory in self._beginnings.items():
            cells[number].adopt(memory)
        outs: list[Tensor | None] = []
        for equation, ends in zip(self._equations, self._ends, strict=True):
            made = equation.function.run([reader.read(cells) for reader in equation.readers])
            for place, taker in equation.takers:
                taker.take(made[place], cells, outs)
            if equation.guard is not None:
                outs.append(equation.guard.sound(made))
            del made
            for number in ends:
                del cells[number]
        return outs


def over_nothing(bound: Any) -> Any:
    """A bound or a sink over memory of nobody's, so that it holds none alive."""
    return bound.over([cell.twin() for cell in bound.cells()])


def _inner_of(part: Part) -> Iterable[tuple[int, ...]]:
    """The inner memory that a work uses."""
    return (each.cells for each in (*part.sources, *part.targets) if each.how is INNER)


def _writers(parts: Sequence[Part]) -> Counter[int]:
    """How many outputs are written to each inner memory."""
    targets = (target for part in parts for target in part.targets if target.how is INNER)
    return Counter(number for target in targets for number in target.cells)


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
    for sink, target in zip(flat(work.sinks), part.targets, strict=True):
        written |= _memory(sink, target)
    return Touched(frozenset(read), frozenset(written))


def _memory(bound: Any, how: Source | Target) -> set[Hashable]:
    if how.how is INNER:
        return {(number,) for number in how.cells}
    identity = identity_of(bound) if how.how is KEPT else None
    return set() if identity is None else set(storages_of([identity]))


def _lent(
    works: Sequence[Dispatch], parts: Sequence[Part], ends: Sequence[list[int]], touched: Sequence[Touched]
) -> dict[int, frozenset[int]]:
    """Inner memory that may be the kept memory itself that a work hands on as it is, and which.

    Nobody writes that until the last work that reads it there.
    """
    last = {number: place for place, numbers in enumerate(ends) for number in numbers}
    writers = _writers(parts)
    found: dict[int, frozenset[int]] = {}
    for place, (work, part) in enumerate(zip(works, parts, strict=False)):
        inputs = dict(zip(work.function.input_values, zip(work.inputs, part.sources, strict=True), strict=True))
        if len(part.targets) != len(work.sinks):
            continue
        for sink, target, value in zip(work.sinks, part.targets, work.function.output_values, strict=True):
            bound, source = inputs.get(value, (None, None))
            is_inner = target.how is INNER and type(sink) is Numbers and not target.comes_out
            if not is_inner or source is None or source.how is not KEPT or writers[target.cells[0]] > 1:
                continue
            identity = identity_of(bound)
            kept = frozenset[int]() if identity is None else storages_of([identity])
            until = touched[place : last[target.cells[0]] + 1]
            if not any(kept & each.written for each in until):
                found[target.cells[0]] = kept
    return found


def _with_lent(touched: Sequence[Touched], parts: Sequence[Part], lent: Mapping[int, frozenset[int]]) -> list[Touched]:
    """The memory of works, with the kept memory that they read as inner memory."""
    made: list[Touched] = []
    for each, part in zip(touched, parts, strict=False):
        inner = [number for source in part.sources if source.how is INNER for number in source.cells]
        kept = [place for number in inner for place in lent.get(number, ())]
        made.append(each._replace(read=each.read.union(kept)))
    return made
