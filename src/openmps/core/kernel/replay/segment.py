"""What a command buffer holds, looked at: what must be equal for a replay, what is new each time, what comes out.

A segment is a run of works that can be captured together. What its works are bound to falls into four kinds:

==========  ========================================================================================================
kept        memory that stays, weights and the vectors of optimizers: used as it is, and must be the same each time
value       what was there before the segment, images and what states carry: copied into fixed memory
inner       what an earlier work of the segment makes: it is found in memory of the capture's own
number      uploaded, where the operations can read it on the device; else it must be equal
==========  ========================================================================================================

What comes out goes to its place after the replay, unless a later work of the segment reads it: then both happen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor

from openmps.core.image.storage import Block
from openmps.core.kernel.encoding import Bound, Encoding, Nowhere, Number, Several, Sink
from openmps.metal.execution import Release, Work, keep_place
from openmps.metal.resource import epoch
from openmps.ops.op import Body, Role

VALUE, INNER, NUMBER, SAME_NUMBER = "value", "inner", "number", "same number"
"""How an input of a body is bound. For kept memory there is a serial number instead, for what is not read None."""
OUT, GONE, NOTHING = "out", "gone", "nothing"
"""Where an output goes, besides kept and inner memory: to its place, or nowhere since that is released."""

Key = tuple[Hashable, ...]


class UnfitError(Exception):
    """A work that cannot be captured, at least not together with those before it; the text says why."""


class Traits(NamedTuple):
    """What a body says of its inputs."""

    numbers_move: tuple[bool, ...]
    """Whether an input is a number that all its readers can read on the device."""
    written: tuple[bool, ...]
    """Whether its memory may be written."""


@lru_cache(maxsize=1024)
def traits_of(body: Body) -> Traits:
    """The traits of a body."""
    has_effect = any(step.op.has_effect for step in body.steps)
    # What one step makes may be a view of an input that another one writes.
    written = range(len(body.inputs)) if has_effect and len(body.steps) > 1 else body.overwritten()
    readers = {slot: [step.op for step in body.steps if slot in step.reads] for slot in body.input_slots}
    return Traits(
        tuple(
            role is Role.NUMBER and all(op.takes_device_numbers for op in readers[slot])
            for (role, _), slot in zip(body.inputs, body.input_slots, strict=True)
        ),
        tuple(place in written for place in range(len(body.inputs))),
    )


class Mark(NamedTuple):
    """What a look at kept memory found, left with what is bound to it; good for one epoch."""

    epoch: int
    serial: int
    """The same number for the same part of the same memory, seen in the same way."""
    held: tuple[Any, ...]
    """What must stay the same: tensors, or buffers, with their memory."""

    def things(self) -> list[Any]:
        """All of that. The mark itself does not hold the memory of buffers, which may give it back."""
        return [*self.held, *[each.present for each in self.held if hasattr(each, "stays")]]


class Seen(NamedTuple):
    """What the last look found at one place of a record: if it is there again, the next look is short."""

    body: Body
    epoch: int
    serials: list[int]
    found: list[Hashable]
    new: tuple[int, ...]
    """The inputs that are to be looked at each time."""


_serials: dict[Hashable, int] = {}
_next_serial = itertools.count(1)
_MOST_SERIALS = 1 << 16


class Segment:
    """A run of works from the front of a record that can be captured together, and what they are bound to now."""

    def __init__(self) -> None:
        self.works = 0
        """How many there are, those that give memory back with them."""
        self.steps = 0
        self.key: Key = ()
        """Equal for segments that compute the same in the same kept memory."""
        self.values: list[Tensor] = []
        """What is copied in, in order; last the contents of inner memory that there was before."""
        self.numbers: list[float] = []
        """What is uploaded, in order."""
        self.outs: list[tuple[ref[Any], ...]] = []
        """Where each output goes that goes to its place."""
        self.guard: Encoding | None = None
        """The work that looks at its own results; it is alone then."""
        self.refusal = ""
        """Why the segment ends where it does."""


def look(works: Iterable[tuple[str, Work]], seen: dict[int, Seen] | None = None) -> Segment:
    """The segment that a record begins with; one of no works if its first work is unfit.

    ``seen`` is what earlier looks of the same lane leave for the next.
    """
    return _Look(works, {} if seen is None else seen).segment


class _Written(NamedTuple):
    """Memory that outputs of the segment go to."""

    number: int
    cell: Any


class _Look:
    """One look at a record."""

    def __init__(self, works: Iterable[tuple[str, Work]], seen: dict[int, Seen]) -> None:
        self._seen = seen
        self._begin()
        for count, (label, work) in enumerate(works):
            refusal = self._refusal(work)
            if not refusal:
                try:
                    self._take(work)
                    continue
                except UnfitError as fault:
                    refusal = str(fault)
                except Exception as fault:  # The work itself will raise it again.
                    refusal = f"{type(fault).__name__} when its memory was looked at"
                # What was noted of this work is forgotten.
                self._begin()
                for _, before in islice(works, count):
                    self._take(before)
            self.segment.refusal = f"{label}: {refusal}"
            break
        self._finish()

    def _begin(self) -> None:
        self.segment = Segment()
        self._released: set[int] = set()
        self._written: dict[int, _Written] = {}
        self._inner: dict[int, _Written] = {}
        self._in_place: list[Encoding] = []
        self._pasted: set[int] = set()
        self._encodings: list[tuple[Encoding, Key, list[_Sink]]] = []

    def _refusal(self, work: Work) -> str:
        """What stands in the way of taking a work, as far as can be said without looking at its memory."""
        if isinstance(work, Release) or work is keep_place:
            return ""
        if not isinstance(work, Encoding) or (type(work) is not Encoding and not work.guards):
            return "it is no encode of a kernel or graph"
        if self._encodings and (work.guards or self.segment.guard is not None):
            return "results are looked at before what follows may run"
        return ""

    def _take(self, work: Work) -> None:
        segment = self.segment
        if isinstance(work, Release):
            self._released.update([id(each) for each in _released(work)])
        elif isinstance(work, Encoding):
            inputs = self._inputs(work)
            self._encodings.append((work, inputs, self._sinks(work)))
            segment.steps += len(work.body.actions)
            segment.guard = work if work.guards else None
        segment.works += 1

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(self, work: Encoding) -> Key:
        place, traits = len(self._encodings), traits_of(work.body)
        serials = [0 if (mark := getattr(bound, "mark", None)) is None else mark.serial for bound in work.inputs]
        seen = self._seen.get(place)
        if seen is None or seen.body is not work.body or seen.epoch != epoch.number or seen.serials != serials:
            seen = self._look_at_all(place, work, traits)
            found = seen.found
        else:
            found = seen.found.copy()
            for index in seen.new:
                found[index] = self._input(work.inputs[index], traits.numbers_move[index], traits.written[index])
        if any(traits.written):
            self._in_place.append(work)
        if self._pasted:
            for bound in work.inputs:
                mark: Mark | None = getattr(bound, "mark", None)
                if mark is not None and any(_storage(each) in self._pasted for each in _tensors(mark.things())):
                    raise UnfitError("it reads memory that an image before it shares")
        return tuple(found)

    def _look_at_all(self, place: int, work: Encoding, traits: Traits) -> Seen:
        found: list[Hashable] = []
        for bound, used, moves, written in zip(work.inputs, work.used, *traits, strict=True):
            found.append(self._input(bound, moves, written) if used else None)
        new = tuple([index for index, how in enumerate(found) if how is not None and not isinstance(how, int)])
        serials = [0 if (mark := getattr(bound, "mark", None)) is None else mark.serial for bound in work.inputs]
        seen = self._seen[place] = Seen(work.body, epoch.number, serials, found, new)
        return seen

    def _input(self, bound: Any, moves: bool, written: bool) -> Hashable:
        """How an input is bound."""
        if type(bound) is Number:
            if not moves:
                return SAME_NUMBER, bound.number
            self.segment.numbers.append(bound.number)
            return NUMBER, type(bound.number)
        if hasattr(bound, "kept"):
            return _marked(bound, bound.kept(), None)
        cells = _cells(bound)
        if getattr(bound, "stays", True) and _stay(cells):
            return _marked(bound, tuple(cells), bound.form())
        if written:
            raise UnfitError(f"it writes memory that is new each time ({', '.join(sorted(_names(cells)))})")
        for cell in cells:
            if id(cell) in self._written:
                return self._read_inner(bound, cells)
        return self._read_value(bound)

    def _read_inner(self, bound: Any, cells: Sequence[Any]) -> Hashable:
        for cell in cells:
            written = self._written.get(id(cell))
            if written is None:
                if cell.stays and cell.present is not None:
                    raise UnfitError("it reads memory of two kinds")
                written = self._written[id(cell)] = _Written(len(self._written), cell)
            self._inner[id(cell)] = written
        return INNER, type(bound), bound.form(), tuple([self._written[id(cell)].number for cell in cells])

    def _read_value(self, bound: Bound) -> Hashable:
        value = bound.value()
        if value is None:
            return VALUE
        if not isinstance(value, Tensor):
            raise UnfitError(f"it reads a {type(value).__name__}")
        if self._in_place or self._pasted:
            storage = _storage(value)
            if storage in self._pasted or storage in self._storages_in_place():
                raise UnfitError("it reads memory that a work before it shares")
        self.segment.values.append(value)
        return VALUE, _layout(value)

    def _storages_in_place(self) -> set[int]:
        """The memory that works so far write as it is."""
        writers = ((work, traits_of(work.body).written) for work in self._in_place)
        things = [each for work, written in writers for each in _written_things(work, written)]
        things += [
            cell.present for _, _, sinks in self._encodings for sink in sinks if sink.stays for cell in sink.cells
        ]
        return {_storage(each) for each in _tensors(things)}

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _sinks(self, work: Encoding) -> list[_Sink]:
        """What the outputs are written to, noted so that later works can be seen to read it."""
        sinks: list[_Sink] = []
        for sink in flat(work.sinks):
            if isinstance(sink, Nowhere):
                sinks.append(_NOWHERE)
                continue
            cells = _cells(sink)
            found = _Sink(sink, cells, _stay(cells))
            sinks.append(found)
            if not found.stays:
                for cell in cells:
                    self._note(cell)
        return sinks

    def _note(self, cell: Any) -> None:
        memory = cell.present
        if isinstance(memory, Tensor):
            if cell.stays:
                raise UnfitError("it writes memory of two kinds")
            self._pasted.add(_storage(memory))
        if id(cell) not in self._written:
            self._written[id(cell)] = _Written(len(self._written), cell)

    def _output(self, found: _Sink) -> Hashable:
        """Where an output goes."""
        sink, cells, stays = found
        if sink is None:
            return NOTHING
        form = sink.form()
        if stays:
            return _serial((type(sink), form, tuple([id(each) for cell in cells for each in (cell, cell.present)])))
        is_inner, is_gone = False, True
        for cell in cells:
            is_inner = is_inner or id(cell) in self._inner
            is_gone = is_gone and id(cell) in self._released
        if not is_gone:
            self.segment.outs.append(tuple([ref(cell) for cell in cells]))
        where = GONE if is_gone else OUT
        if not is_inner:
            return where, type(sink), form, tuple([cell.likeness() for cell in cells])
        for cell in cells:
            self._inner[id(cell)] = self._written[id(cell)]
        return INNER, where, type(sink), form, tuple([self._written[id(cell)].number for cell in cells])

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        segment, parts = self.segment, list[Hashable]()
        if segment.guard is not None and (self._in_place or any(sink.stays for sink in self._encodings[0][2])):
            segment.works, segment.refusal = 0, ": its results are looked at, and it writes in place"
            return
        for work, inputs, sinks in self._encodings:
            outputs = tuple([self._output(sink) for sink in sinks])
            parts.append((work.body, type(work), work.used, inputs, outputs))
        cells: list[Hashable] = []
        for number, cell in sorted(self._inner.values(), key=itemgetter(0)):
            memory = cell.present if isinstance(cell, Block) else None
            if memory is not None:
                segment.values.append(memory)
            cells.append((number, type(cell), cell.likeness(), None if memory is None else _layout(memory)))
        segment.key = (*parts, tuple(cells))


class _Sink(NamedTuple):
    """Where an output goes, as it was found."""

    sink: Any
    cells: Sequence[Any]
    stays: bool


_NOWHERE = _Sink(None, (), False)


def things_of(works: Iterable[tuple[str, Work]], segment: Segment) -> list[Any]:
    """All that the key of a segment tells by identity."""
    things: dict[int, Any] = {}
    for _, work in islice(works, segment.works):
        if isinstance(work, Encoding):
            marks = [getattr(bound, "mark", None) or _found_again(bound) for bound in work.inputs]
            kept = [each for mark in marks if mark is not None for each in mark.things()]
            sinks = [each for sink in flat(work.sinks) if not isinstance(sink, Nowhere) for each in sink.cells()]
            kept += [each for cell in sinks if _stay((cell,)) for each in (cell, cell.present)]
            things.update((id(each), each) for each in kept if each is not None)
    return list(things.values())


def _found_again(bound: Any) -> Mark | None:
    """The mark of what cannot be marked, if it is kept memory."""
    cells = bound.cells() if hasattr(bound, "cells") else ()
    stays = cells and getattr(bound, "stays", True) and _stay(cells)
    return Mark(0, 0, tuple(cells)) if stays else None


def _written_things(work: Encoding, written: Sequence[bool]) -> list[Any]:
    """The kept memory that a work may write by its inputs."""
    marks = [getattr(bound, "mark", None) or _found_again(bound) for bound in work.inputs]
    found = [mark for mark, is_written in zip(marks, written, strict=True) if mark is not None and is_written]
    return [each for mark in found for each in mark.things()]


def inner_cells(works: Iterable[tuple[str, Work]], segment: Segment) -> dict[int, Any]:
    """The inner memory of a segment by number, as its works are bound to it now."""
    found: dict[int, Any] = {}
    parts = iter(segment.key)
    for _, work in islice(works, segment.works):
        if isinstance(work, Encoding):
            part: Any = next(parts)
            ends: tuple[Any, ...] = (*work.inputs, *flat(work.sinks))
            bound = zip(ends, (*part[3], *part[4]), strict=True)
            for each, how in bound:
                if isinstance(how, tuple) and how[0] == INNER:
                    found.update(zip(how[-1], each.cells(), strict=True))
    return found


def flat(sinks: Sequence[Sink]) -> list[Any]:
    """Sinks one by one, those that take a value together too."""
    return [each for sink in sinks for each in (sink.sinks if isinstance(sink, Several) else (sink,))]


def _cells(bound: Any) -> Sequence[Any]:
    find: Callable[[], Sequence[Any]] | None = getattr(bound, "cells", None)
    if find is None:
        raise UnfitError(f"it is bound to {type(bound).__name__.strip('_')}, which is not fixed memory")
    return find()


def _released(work: Release) -> list[Any]:
    return [part for memory in work.memories for part in (memory, *getattr(memory, "cells", tuple)())]


def _names(things: Sequence[Any]) -> set[str]:
    return {type(each).__name__ for each in things}


def _stay(cells: Sequence[Any]) -> bool:
    """Whether all of this is kept memory."""
    return all(not (not cell.stays or cell.present is None) for cell in cells)


def _marked(bound: Any, held: tuple[Any, ...], form: Hashable) -> int:
    mark = Mark(epoch.number, 0, held)
    serial = _serial((type(bound), form, tuple([id(each) for each in mark.things()])))
    if hasattr(bound, "mark"):
        bound.mark = mark._replace(serial=serial)
    return serial


def _serial(how: Hashable) -> int:
    """A number for how memory is seen: the same each time while the memory is there."""
    serial = _serials.get(how)
    if serial is None:
        if len(_serials) >= _MOST_SERIALS:
            _serials.clear()
        serial = _serials[how] = next(_next_serial)
    return serial


def _tensors(things: Sequence[Any]) -> list[Tensor]:
    return [each for each in things if isinstance(each, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _layout(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
