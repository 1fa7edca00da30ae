"""A segment made ready to run again and again over memory of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.core.kernel.encoding import Bound, Encoding, Several, Sink
from openmps.core.kernel.replay.segment import (
    GONE,
    INNER,
    NOTHING,
    NUMBER,
    OUT,
    SAME_NUMBER,
    VALUE,
    Segment,
    flat,
    inner_cells,
)
from openmps.core.kernel.replay.upload import Upload
from openmps.metal.execution import Work
from openmps.ops.op import Body

Cells = Mapping[int, Any]


class _Fixed(NamedTuple):
    """An input that is found in the same memory each time."""

    tensor: Any

    def read(self, cells: Cells) -> Any:
        return self.tensor


class _Kept(NamedTuple):
    """An input that is the user's own memory, as it was bound when the tape was made."""

    bound: Bound

    def read(self, cells: Cells) -> Any:
        return self.bound.value()


class _Inner(NamedTuple):
    """An input that an earlier work of the tape made."""

    bound: Any
    numbers: tuple[int, ...]

    def read(self, cells: Cells) -> Any:
        return self.bound.over([cells[number] for number in self.numbers]).value()


class _Taker(NamedTuple):
    """Where an output goes while the tape runs: to a sink over inner memory, to kept memory, and what comes out."""

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


class _Step(NamedTuple):
    """One work of the tape."""

    body: Body
    readers: Sequence[_Fixed | _Kept | _Inner]
    takers: Sequence[tuple[int, _Taker]]
    """By the place of the output among those of the body."""
    guard: Encoding | None


class Tape:
    """The works of a segment over memory that stays the same: what is read is copied in, numbers are uploaded."""

    def __init__(self, works: Iterable[tuple[str, Work]], segment: Segment, device: torch.device) -> None:
        self.fixed = [_place_like(value) for value in segment.values]
        """Where what the works read is copied to, in the order of the segment's values."""
        self.upload = Upload(segment.numbers, device)
        self.sinks: list[Any] = []
        """Of each output that comes out the sink, over memory of nobody's."""
        self.is_guarded = segment.guard is not None
        """Whether the last output says that the others are in order."""
        self._twins: dict[int, Any] = {n: cell.twin() for n, cell in inner_cells(works, segment).items()}
        *parts, cells = segment.key
        self._fixed, self._numbers = iter(self.fixed), iter(self.upload.tensors)
        encodings = [work for _, work in islice(works, segment.works) if isinstance(work, Encoding)]
        self._writers = _writers(parts)
        self._steps = [self._step(work, part) for work, part in zip(encodings, parts, strict=True)]
        found: Any = cells
        self._beginnings = {number: next(self._fixed) for number, _, _, layout in found if layout is not None}
        self._ends = _ends(parts)

    def _step(self, work: Encoding, part: Any) -> _Step:
        inputs, outputs = part[3], iter(part[4])
        readers = [self._reader(bound, how) for bound, how in zip(work.inputs, inputs, strict=True)]
        takers: list[tuple[int, _Taker]] = []
        for place, (sink, is_shared) in enumerate(zip(work.sinks, work.body.may_share, strict=True)):
            is_one = not isinstance(sink, Several)
            for each in flat((sink,)):
                takers.append((place, self._taker(each, next(outputs), is_shared or not is_one)))
        return _Step(work.body, readers, takers, work if work.guards else None)

    def _reader(self, bound: Bound, how: Any) -> _Fixed | _Kept | _Inner:
        if isinstance(how, int):
            return _Kept(bound)
        kind = how[0] if isinstance(how, tuple) else how
        if kind == INNER:
            found: Any = bound
            return _Inner(_over_nothing(found), how[-1])
        if kind == SAME_NUMBER:
            return _Fixed(how[1])
        if kind == NUMBER:
            return _Fixed(next(self._numbers))
        return _Fixed(next(self._fixed) if isinstance(how, tuple) and kind == VALUE else None)

    def _taker(self, sink: Sink, how: Any, is_shared: bool) -> _Taker:
        if how == NOTHING:
            return _Taker(None, None, False, is_shared)
        if isinstance(how, int):
            return _Taker(sink, None, False, is_shared)
        found: Any = sink
        comes_out = OUT in how[:2]
        if comes_out:
            self.sinks.append(_over_nothing(found))
        if how[0] != INNER:
            assert how[0] in (OUT, GONE)
            return _Taker(None, None, comes_out, is_shared)
        # What comes out must not change when a later work writes the inner memory again.
        several = any(self._writers[number] > 1 for number in how[-1])
        return _Taker(_over_nothing(found), how[-1], comes_out, is_shared or (comes_out and several))

    def run(self) -> list[Tensor | None]:
        """Run the works; what comes out, in order."""
        cells = {number: twin.twin() for number, twin in self._twins.items()}
        for number, memory in self._beginnings.items():
            cells[number].adopt(memory)
        outs: list[Tensor | None] = []
        for step, ends in zip(self._steps, self._ends, strict=True):
            made = step.body.run([reader.read(cells) for reader in step.readers])
            for place, taker in step.takers:
                taker.take(made[place], cells, outs)
            if step.guard is not None:
                outs.append(step.guard.sound(made))
            del made
            for number in ends:
                del cells[number]
        return outs


def _over_nothing(bound: Any) -> Any:
    """A bound or a sink over memory of nobody's, so that it holds none alive."""
    return bound.over([cell.twin() for cell in bound.cells()])


def _place_like(value: Tensor) -> Tensor:
    """Memory for tensors of the same layout."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _numbers_of(part: Any) -> Iterable[tuple[int, ...]]:
    return (how[-1] for how in (*part[3], *part[4]) if isinstance(how, tuple) and how[0] == INNER)


def _writers(parts: Sequence[Any]) -> dict[int, int]:
    """How many outputs are written to each inner memory."""
    counts: dict[int, int] = {}
    for part in parts:
        for how in part[4]:
            if not isinstance(how, int) and how[0] == INNER:
                for number in how[-1]:
                    counts[number] = counts.get(number, 0) + 1
    return counts


def _ends(parts: Sequence[Any]) -> list[list[int]]:
    """After each work, the inner memory that no later one uses."""
    last = {number: place for place, part in enumerate(parts) for numbers in _numbers_of(part) for number in numbers}
    return [[number for number, end in last.items() if end == place] for place in range(len(parts))]
