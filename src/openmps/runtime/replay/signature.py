"""Signatures of records: as much of what is bound as tells whether a record equals one that was analysed before.

Dispatches of one frame share all but some of their bindings, so that only versions are compared of what they share.

Inputs of a function fall into three kinds:

========  ======================================================================================================
kept      bound to memory that stays by an object that stays: told by a serial number that a look leaves with it
number    told by its type alone where the operations can read it on the device, else by its value
new       everything else, outputs too: told by how memory is seen, and by which memory it is among that of the run
========  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from openmps.metal.execution import Release, Work, keep_place
from openmps.metal.memory import Memory
from openmps.metal.version import Version
from openmps.ops.op import Function, Role
from openmps.runtime.binding import Nowhere, Number, Several, flat
from openmps.runtime.derived import Derived
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.host import layout_of
from openmps.runtime.identity import Identity, new_serial, serial_of, storage_of, storages_of

Key = tuple[Hashable, ...]


class Traits(NamedTuple):
    """What a function says of its inputs."""

    numbers_move: tuple[bool, ...]
    """Whether an input is a number that all its readers can read on the device."""
    written: tuple[bool, ...]
    """Whether its memory may be written."""


@lru_cache(maxsize=1024)
def traits_of(function: Function) -> Traits:
    """The traits of a function."""
    written = function.overwritten()
    readers = {slot: [step.op for step in function.equations if slot in step.reads] for slot in function.input_values}
    return Traits(
        tuple(
            role is Role.NUMBER and all(op.takes_device_numbers for op in readers[slot])
            for (role, _), slot in zip(function.inputs, function.input_values, strict=True)
        ),
        tuple(place in written for place in range(len(function.inputs))),
    )


# --- one look ---------------------------------------------------------------------------------------------------------


_Taker = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Takes some elements out of a tuple, the same ones of each."""


def _taker(places: tuple[int, ...]) -> _Taker:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda elements: tuple([elements[place] for place in places])


class _Inputs(NamedTuple):
    """How the inputs of a function were bound at the last look."""

    frame: int | None
    """The serial number of what says which of them each encode binds, where that is known."""
    versions: list[Version]
    """Of the kept memory that the frame says is bound to the same: it is, in these versions."""
    numbers: list[int]
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
    derived: tuple[int, ...]
    """What is to be made again before captured work reads it."""
    storages: frozenset[int]
    """The kept memory."""
    token: int
    """A number for all this."""
    take_new: _Taker
    """Takes what is `new` out of the inputs of a dispatch."""
    take_moving: _Taker
    """Takes what is `moving`."""

    def are_again(self, work: Dispatch) -> bool:
        """Whether a dispatch is bound in the same way to the same kept memory."""
        inputs = work.inputs
        if work.frame is not None and self.frame == work.frame.serial:
            if [each.number for each in self.versions] != self.numbers:
                return False
            looked_at = self.looked_at
        elif self.used == work.used and [*map(type, inputs)] == self.types:
            looked_at = self.kept
        else:
            return False
        if not looked_at:
            return True
        identities = [inputs[index].identity() for index in looked_at]
        serials = dict(zip(self.kept, self.serials, strict=True))
        return all(
            each is not None and each.serial == serials[index]
            for index, each in zip(looked_at, identities, strict=True)
        )


class Signature:
    """A run of works from the front of a record that may be captured together, as a look has found it."""

    works = 0
    """How many there are, those that give memory back with them."""
    steps = 0
    is_guarded = False
    """Whether its one dispatch looks at its own results."""
    key: Key = ()
    """Equal for runs that compute the same in the same kept memory, of new memory that lies in the same way."""
    refusal = ""
    """Why the run ends where it does."""
    released: frozenset[int] = frozenset()
    """What is given back within the run, by identity."""
    derived: tuple[Derived, ...] = ()
    """What is derived from memory that stays, and read."""

    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []
        self.memories: list[Memory] = []
        """All new memory, in the order in which it is met: its number is its place."""
        self.numbers: list[float] = []
        """What is uploaded, in order."""


class Signatures:
    """Looks at records of one queue. What it remembers makes the next look short; it holds no memory."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, Function], _Inputs] = {}
        """How the inputs of the dispatch at a place of its run were bound at the last look."""
        self._tokens: dict[Key, int] = {}

    def look(self, works: Collection[tuple[str, Work]]) -> Signature:
        """The run that a record begins with; of no works if the first one cannot be captured."""
        reading = _Reading(self)  # calls in here are those that each step makes: there should be few
        for count, (label, work) in enumerate(works):
            try:
                refusal = reading.take(work)
            except Exception as fault:  # The work itself will raise it again.
                refusal = f"{type(fault).__name__} when its memory was looked at"
                # What was noted of this work is forgotten.
                reading = _Reading(self)
                for _, before in islice(works, count):
                    reading.take(before)
            if refusal:
                reading.refusal = f"{label}: {refusal}"
                break
        return reading.finish()

    def look_at(self, place: int, work: Dispatch) -> _Inputs:
        """How the inputs of the dispatch at this place of its run are bound, where that is not known."""
        found = self._look_at(work)
        # What has no memory yet will have some when the work has run.
        if not any(work.inputs[index].remembers_identity for index in found.new):
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            self.known[place, work.function] = found
        return found

    def _look_at(self, work: Dispatch) -> _Inputs:
        kinds: dict[str, list[int]] = {"kept": [], "new": [], "moving": [], "fixed": []}
        serials: list[int] = []
        identities: list[Identity] = []
        for index, (bound, used, moves) in enumerate(
            zip(work.inputs, work.used, traits_of(work.function).numbers_move, strict=True)
        ):
            identity = bound.identity() if used and bound.remembers_identity else None
            if identity is not None:
                kinds["kept"].append(index)
                serials.append(identity.serial)
                identities.append(identity)
            elif used:
                kinds["new" if type(bound) is not Number else "moving" if moves else "fixed"].append(index)
        split = {kind: tuple(places) for kind, places in kinds.items()}
        how: Key = (work.function, type(work), work.used, tuple(serials), *split.values())
        if len(self._tokens) >= _MOST_KNOWN:
            self._tokens.clear()
        token = self._tokens.get(how)
        if token is None:
            token = self._tokens[how] = new_serial()
        frame, kept = work.frame, split["kept"]
        looked_at = tuple(index for index in kept if frame is None or index in frame.anew)
        pairs = zip(kept, identities, strict=True)
        versions = [each.versions for index, each in pairs if index not in looked_at]
        own = [*{id(version): version for each in versions for version in each}.values()]
        return _Inputs(
            None if frame is None else frame.serial,
            own,
            [each.number for each in own],
            [*map(type, work.inputs)],
            work.used,
            serials=serials,
            looked_at=looked_at,
            derived=tuple(index for index in kept if isinstance(work.inputs[index], Derived)),
            storages=storages_of(identities),
            token=token,
            take_new=_taker(split["new"]),
            take_moving=_taker(split["moving"]),
            **split,
        )


_MOST_KNOWN = 1 << 12


class _Reading(Signature):
    """One look at a record, work by work, and what it has found so far."""

    def __init__(self, signatures: Signatures) -> None:
        self.dispatches, self.memories, self.numbers = [], [], []  # as those of a signature
        self._signatures = signatures
        self._parts: list[Hashable] = []
        self._storages: list[frozenset[int]] = []

    def take(self, work: Work) -> str:
        """Add a work to the run; or say what stands in the way of it."""
        parts = self._parts
        if isinstance(work, Dispatch):
            guards = work.guards
            if type(work) is not Dispatch and not guards:
                return _NO_ENCODE
            if self.dispatches and (guards or self.is_guarded):
                return "results are looked at before what follows may run"
            self._take_dispatch(work)
            self.dispatches.append(work)
            self.steps += work.function.launches
            self.is_guarded = guards
        elif isinstance(work, Release):
            self.released |= {id(part) for memory in work.memories for part in memory.parts()}
            parts.append(Release)
        elif work is keep_place:
            parts.append(keep_place)
        else:
            return _NO_ENCODE
        self.works += 1
        return ""

    def _take_dispatch(self, work: Dispatch) -> None:
        parts = self._parts
        inputs: tuple[Any, ...] = work.inputs
        place = len(self.dispatches)
        found = self._signatures.known.get((place, work.function))
        if found is None or not found.are_again(work):
            found = self._signatures.look_at(place, work)
        self._storages.append(found.storages)
        parts.append(found.token)
        if found.moving:
            numbers = [*chain.from_iterable(found.take_moving(inputs))]  # a `Number` is a tuple of one
            self.numbers += numbers
            parts += map(type, numbers)
        if found.derived:
            self.derived += tuple([inputs[index] for index in found.derived])
        for index in found.fixed:
            fixed = inputs[index].value()
            parts.append((type(fixed), fixed))
        outs = work.output_bindings
        if Several in map(type, outs):
            parts += [len(each.each) for each in outs if isinstance(each, Several)]
            outs = flat(outs)
        # How memory is seen that is not known to stay.
        for end in (*found.take_new(inputs), *outs):
            kind = type(end)
            if kind is Nowhere:
                parts.append(kind)
                continue
            memories, key = end.seen()
            if not memories:
                identity = end.identity()
                key = None if identity is None else identity.serial
            parts += (kind, key, len(memories))
            self.memories += memories

    def finish(self) -> Signature:
        """The run, whose key ends with what there is of the new memory before it, and what is given back."""
        states, met = self._parts, {*map(id, self.memories)}
        if len(met) < len(self.memories):  # which it is among that of the run; else each is another one
            several = {id(memory): memory for memory in self.memories}
            order = {each: number for number, each in enumerate(several)}
            states.append(tuple([order[id(memory)] for memory in self.memories]))
            self.memories = [*several.values()]
        storages: dict[int, int] = {}
        for number, memory in enumerate(self.memories):
            told = memory.outline()
            if told is not None:
                states.append(told if told[0] is None else (told, number))
                continue
            present = memory.present
            if present is None:
                states.append((None, memory.shape_key()))
            elif memory.is_persistent:
                states.append(serial_of((id(memory), id(present))))
            elif isinstance(present, Tensor):
                storage = storage_of(present)
                shares = [place for place, kept in enumerate(self._storages) if storage in kept]
                states.append((layout_of(present), storages.setdefault(storage, number), *shares))
            else:
                states.append((type(present), memory.shape_key()))
        released = self.released
        if released:
            states += [number for number, each in enumerate(self.memories) if id(each) in released]
        self.key = tuple(states)
        return self


_NO_ENCODE = "it is no encode of a kernel or graph"
