"""What is looked at each time that a record comes: as much as tells whether it equals one that was analysed before.

Inputs of a body fall into three kinds:

========  ======================================================================================================
kept      bound to memory that stays by an object that stays: told by a serial number that a look leaves with it
number    told by its type alone where the operations can read it on the device, else by its value
new       everything else, sinks too: told by how memory is seen, and by which memory it is among that of the run
========  ======================================================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from openmps.core.image.host import layout_of
from openmps.core.image.storage import Block, Stack
from openmps.core.kernel.encoding import Encoding, Nowhere, Number, Several, Sink
from openmps.core.kernel.lease import Lease
from openmps.metal.execution import Release, Work, keep_place
from openmps.metal.resource import epoch
from openmps.ops.op import Body, Role

Key = tuple[Hashable, ...]


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


# --- memory that stays ------------------------------------------------------------------------------------------------


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


_serials: dict[Hashable, int] = {}
_next_serial = itertools.count(1)
_MOST_SERIALS = 1 << 16


def serial_of(how: Hashable) -> int:
    """A number for how memory is seen: the same each time while the memory is there."""
    serial = _serials.get(how)
    if serial is None:
        if len(_serials) >= _MOST_SERIALS:
            _serials.clear()
        serial = _serials[how] = next(_next_serial)
    return serial


def mark_of(bound: Any) -> Mark | None:
    """The mark of what is bound to memory that stays; None for everything else."""
    mark: Mark | None = getattr(bound, "mark", None)
    if mark is not None and mark.epoch == epoch.number:
        return mark
    if hasattr(bound, "kept"):
        held, form = bound.kept(), None
    elif not is_own_cell(bound) and stay(cells := cells_of(bound)):
        held, form = tuple(cells), bound.form()
    else:
        return None
    mark = Mark(epoch.number, 0, held)
    mark = mark._replace(serial=serial_of((type(bound), form, tuple([id(each) for each in mark.things()]))))
    if hasattr(bound, "mark"):
        bound.mark = mark
    return mark


def stay(cells: Sequence[Any]) -> bool:
    """Whether all of this is memory that stays, and is there."""
    return bool(cells) and all(not (not cell.stays or cell.present is None) for cell in cells)


def cells_of(bound: Any) -> Sequence[Any]:
    """The memory that something is bound to; none where that cannot be told."""
    return bound.cells() if hasattr(bound, "cells") else ()


def is_own_cell(bound: Any) -> bool:
    """Whether what is bound is itself the memory: what a state carries."""
    return not getattr(bound, "stays", True)


def flat(sinks: Sequence[Sink]) -> list[Any]:
    """Sinks one by one, those that take a value together too."""
    return [each for sink in sinks for each in (sink.sinks if isinstance(sink, Several) else (sink,))]


def storage_of(tensor: Tensor) -> int:
    """The memory of a tensor, the same for all that share it."""
    return tensor.untyped_storage().data_ptr()


def storages_of(marks: Iterable[Mark]) -> frozenset[int]:
    """The kept memory of some marks."""
    return frozenset(storage_of(each) for mark in marks for each in mark.things() if isinstance(each, Tensor))


# --- one look ---------------------------------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """How the inputs of a body were bound at the last look; good for one epoch."""

    epoch: int
    frame: int | None
    """The serial number of what says which of them each encode binds, where that is known."""
    types: list[type]
    used: tuple[bool, ...]
    kept: tuple[int, ...]
    serials: list[int]
    looked_at: tuple[int, ...]
    """Kept ones that each encode binds: as far as is known all."""
    new: tuple[int, ...]
    moving: tuple[int, ...]
    """Numbers that are uploaded."""
    fixed: tuple[int, ...]
    """Other numbers."""
    storages: frozenset[int]
    """The kept memory."""
    token: int
    """A number for all this."""

    def are_again(self, work: Encoding) -> bool:
        """Whether an encoding is bound in the same way to the same kept memory."""
        if self.epoch != epoch.number or self.used != work.used:
            return False
        inputs: tuple[Any, ...] = work.inputs
        if work.frame is not None and self.frame == work.frame.serial and not self.looked_at:
            return True
        try:
            serials = [inputs[index].mark.serial for index in self.kept]
        except AttributeError:  # Something is not marked yet.
            return False
        return serials == self.serials and [*map(type, inputs)] == self.types


class Sight:
    """A run of works from the front of a record that may be captured together, as a look has found it."""

    works = 0
    """How many there are, those that give memory back with them."""
    steps = 0
    is_guarded = False
    """Whether its one encoding looks at its own results."""
    key: Key = ()
    """Equal for runs that compute the same in the same kept memory, of new memory that lies in the same way."""
    places: tuple[int, ...] | None = None
    """The numbers of its new memory, where a glance has met a part of it only."""
    refusal = ""
    """Why the run ends where it does."""

    def __init__(self) -> None:
        self.encodings: list[Encoding] = []
        self.cells: list[Any] = []
        """All new memory, in the order in which it is met; see `at` for one by its number."""
        self.released: set[int] = set()
        """What is given back within the run, by identity."""
        self.leases: list[Lease] = []
        """What the run alone holds of what may be used again."""
        self.numbers: list[float] = []
        """What is uploaded, in order."""

    def at(self, number: int) -> Any:
        """The new memory of this number."""
        return self.cells[number if self.places is None else self.places.index(number)]

    def let_go(self) -> None:
        """Hold no work and no memory any more."""
        self.encodings.clear()
        self.cells.clear()


class Looker:
    """Looks at records of one queue. What it remembers makes the next look short; it holds no memory."""

    def __init__(self) -> None:
        self._inputs: dict[tuple[int, Body], _Inputs] = {}
        self._tokens: dict[Key, int] = {}

    def look(self, works: Collection[tuple[str, Work]]) -> Sight:
        """The run that a record begins with; of no works if the first one cannot be captured."""
        return Look(works, self).sight

    def inputs(self, place: int, work: Encoding) -> _Inputs:
        """How the inputs of the encoding at this place of its run are bound."""
        known = self._inputs.get((place, work.body))
        if known is not None and known.are_again(work):
            return known
        found = self._look_at(work)
        # What has no memory yet will have some when the work has run.
        if not any(hasattr(work.inputs[index], "mark") for index in found.new):
            if len(self._inputs) >= _MOST_KNOWN:
                self._inputs.clear()
            self._inputs[place, work.body] = found
        return found

    def _look_at(self, work: Encoding) -> _Inputs:
        kinds: dict[str, list[int]] = {"kept": [], "new": [], "moving": [], "fixed": []}
        serials: list[int] = []
        marks: list[Mark] = []
        for index, (bound, used, moves) in enumerate(
            zip(work.inputs, work.used, traits_of(work.body).numbers_move, strict=True)
        ):
            mark = mark_of(bound) if used and hasattr(bound, "mark") else None
            if mark is not None:
                kinds["kept"].append(index)
                serials.append(mark.serial)
                marks.append(mark)
            elif used:
                kinds["new" if type(bound) is not Number else "moving" if moves else "fixed"].append(index)
        split = {kind: tuple(places) for kind, places in kinds.items()}
        how: Key = (work.body, type(work), work.used, tuple(serials), *split.values())
        if len(self._tokens) >= _MOST_KNOWN:
            self._tokens.clear()
        token = self._tokens.get(how)
        if token is None:
            token = self._tokens[how] = next(_next_serial)
        kept, types = split["kept"], [*map(type, work.inputs)]
        looked_at = tuple(index for index in kept if work.frame is None or index in work.frame.anew)
        return _Inputs(
            epoch.number,
            None if work.frame is None else work.frame.serial,
            types,
            work.used,
            serials=serials,
            looked_at=looked_at,
            storages=storages_of(marks),
            token=token,
            **split,
        )


_MOST_KNOWN = 1 << 12


class Look:
    """One look at a record."""

    def __init__(self, works: Collection[tuple[str, Work]], looker: Looker) -> None:
        self._looker = looker
        self._begin()
        self._walk(works)
        self.sight.key = (*self._parts, *self._states())

    def _walk(self, works: Collection[tuple[str, Work]]) -> None:
        for count, (label, work) in enumerate(works):
            refusal = self._refusal(work)
            if not refusal:
                try:
                    self._take(work)
                    continue
                except Exception as fault:  # The work itself will raise it again.
                    refusal = f"{type(fault).__name__} when its memory was looked at"
                # What was noted of this work is forgotten.
                self._begin()
                for _, before in islice(works, count):
                    self._take(before)
            self.sight.refusal = f"{label}: {refusal}"
            break
        self._find_leases()

    def _find_leases(self) -> None:
        """What nobody else holds counts as given back within the run: nothing comes out to it."""
        sight = self.sight
        leases = {id(work.frame): work.frame for work in sight.encodings if isinstance(work.frame, Lease)}
        for lease in leases.values():
            if lease.is_free(lease.uses(sight.encodings, sight.cells)):
                sight.leases.append(lease)
                sight.released.update(map(id, lease.cells()))

    def _begin(self) -> None:
        self.sight = Sight()
        self._parts: list[Hashable] = []
        self._numbers: dict[int, int] = {}
        self._storages: list[frozenset[int]] = []

    def _refusal(self, work: Work) -> str:
        """What stands in the way of taking a work, as far as can be said without looking at its memory."""
        if isinstance(work, Release) or work is keep_place:
            return ""
        if not isinstance(work, Encoding) or (type(work) is not Encoding and not work.guards):
            return "it is no encode of a kernel or graph"
        if self.sight.encodings and (work.guards or self.sight.is_guarded):
            return "results are looked at before what follows may run"
        return ""

    def _take(self, work: Work) -> None:
        sight = self.sight
        if isinstance(work, Release):
            for memory in work.memories:
                sight.released.update([id(part) for part in (memory, *cells_of(memory))])
            self._parts.append(Release)
        elif isinstance(work, Encoding):
            self._take_encoding(work)
            sight.encodings.append(work)
            sight.steps += len(work.body.actions)
            sight.is_guarded = work.guards
        else:
            self._parts.append(keep_place)
        sight.works += 1

    def _take_encoding(self, work: Encoding) -> None:
        parts, inputs = self._parts, work.inputs
        found = self._looker.inputs(len(self.sight.encodings), work)
        self._storages.append(found.storages)
        parts.append(found.token)
        for index in found.moving:
            moving: Any = inputs[index]
            self.sight.numbers.append(moving.number)
            parts.append(type(moving.number))
        for index in found.fixed:
            fixed = inputs[index].value()
            parts.append((type(fixed), fixed))
        self._take_ends([inputs[index] for index in found.new], work.sinks)

    def _take_ends(self, ends: list[Any], sinks: Iterable[Sink]) -> None:
        """Note how memory is seen that is not known to stay, and which it is among that of the run."""
        parts, numbers, cells = self._parts, self._numbers, self.sight.cells
        for sink in sinks:
            if type(sink) is Several:
                parts.append(len(sink.sinks))
                ends += sink.sinks
            else:
                ends.append(sink)
        for end in ends:
            kind = type(end)
            if kind is Stack:
                parts.append(end.form())
                memory: Sequence[Any] = end.cells()
            elif not getattr(end, "stays", True):  # `is_own_cell`, without the call
                parts.append(kind)
                memory = (end,)
            elif kind is Nowhere:
                parts.append(kind)
                continue
            elif not hasattr(end, "cells"):
                mark = mark_of(end)
                parts.append(kind if mark is None else mark.serial)
                continue
            else:
                parts.append((kind, end.form()))
                memory = end.cells()
            for cell in memory:
                number = numbers.get(id(cell))
                if number is None:
                    number = numbers[id(cell)] = len(cells)
                    cells.append(cell)
                parts.append(number)

    def _states(self) -> list[Hashable]:
        """What there is of the new memory before the run, and what is given back."""
        states: list[Hashable] = []
        storages: dict[int, int] = {}
        for number, cell in enumerate(self.sight.cells):
            memory = cell.look() if type(cell) is Block else cell.present
            if memory is None:
                states.append((None, cell.likeness()))
            elif type(memory) is tuple:
                states.append((memory, number))
            elif cell.stays:
                states.append(serial_of((id(cell), id(memory))))
            elif isinstance(memory, Tensor):
                storage = storage_of(memory)
                shares = [place for place, kept in enumerate(self._storages) if storage in kept]
                states.append((layout_of(memory), storages.setdefault(storage, number), *shares))
            else:
                states.append((type(memory), cell.likeness()))
        if self.sight.released:
            states += [n for n, cell in enumerate(self.sight.cells) if id(cell) in self.sight.released]
        return states
