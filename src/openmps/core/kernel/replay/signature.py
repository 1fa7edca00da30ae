"""What is looked at each time that a record comes: as much as tells whether it equals one that was analysed before.

Inputs of a function fall into three kinds:

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
from openmps.core.kernel.dispatch import Dispatch, Nowhere, Number, Several, Sink
from openmps.core.kernel.lease import Lease
from openmps.metal.execution import Release, Work, keep_place
from openmps.metal.resource import epoch
from openmps.ops.op import Function, Role

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
    has_effect = any(step.op.has_effect for step in function.equations)
    # What one step makes may be a view of an input that another one writes.
    written = range(len(function.inputs)) if has_effect and len(function.equations) > 1 else function.overwritten()
    readers = {slot: [step.op for step in function.equations if slot in step.reads] for slot in function.input_values}
    return Traits(
        tuple(
            role is Role.NUMBER and all(op.takes_device_numbers for op in readers[slot])
            for (role, _), slot in zip(function.inputs, function.input_values, strict=True)
        ),
        tuple(place in written for place in range(len(function.inputs))),
    )


# --- memory that stays ------------------------------------------------------------------------------------------------


class Identity(NamedTuple):
    """What a look at kept memory found, left with what is bound to it; good for one epoch."""

    epoch: int
    serial: int
    """The same number for the same part of the same memory, seen in the same way."""
    held: tuple[Any, ...]
    """What must stay the same: tensors, or buffers, with their memory."""

    def things(self) -> list[Any]:
        """All of that. The identity itself does not hold the memory of buffers, which may give it back."""
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


def identity_of(bound: Any) -> Identity | None:
    """The identity of what is bound to memory that stays; None for everything else."""
    identity: Identity | None = getattr(bound, "identity", None)
    if identity is not None and identity.epoch == epoch.number:
        return identity
    if hasattr(bound, "kept"):
        held, form = bound.kept(), None
    elif not is_own_cell(bound) and stay(cells := cells_of(bound)):
        held, form = tuple(cells), bound.form()
    else:
        return None
    identity = Identity(epoch.number, 0, held)
    identity = identity._replace(serial=serial_of((type(bound), form, tuple([id(each) for each in identity.things()]))))
    if hasattr(bound, "identity"):
        bound.identity = identity
    return identity


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


def storages_of(identities: Iterable[Identity]) -> frozenset[int]:
    """The kept memory of some identities."""
    return frozenset(
        storage_of(each) for identity in identities for each in identity.things() if isinstance(each, Tensor)
    )


# --- one look ---------------------------------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """How the inputs of a function were bound at the last look; good for one epoch."""

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

    def are_again(self, work: Dispatch) -> bool:
        """Whether a dispatch is bound in the same way to the same kept memory."""
        if self.epoch != epoch.number or self.used != work.used:
            return False
        inputs: tuple[Any, ...] = work.inputs
        if work.frame is not None and self.frame == work.frame.serial and not self.looked_at:
            return True
        try:
            serials = [inputs[index].identity.serial for index in self.kept]
        except AttributeError:  # Something is not marked yet.
            return False
        return serials == self.serials and [*map(type, inputs)] == self.types


class Signature:
    """A run of works from the front of a record that may be captured together, as a look has found it."""

    works = 0
    """How many there are, those that give memory back with them."""
    steps = 0
    is_guarded = False
    """Whether its one dispatch looks at its own results."""
    key: Key = ()
    """Equal for runs that compute the same in the same kept memory, of new memory that lies in the same way."""
    places: tuple[int, ...] | None = None
    """The numbers of its new memory, where a quick reading has met a part of it only."""
    refusal = ""
    """Why the run ends where it does."""

    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []
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
        self.dispatches.clear()
        self.cells.clear()


class Signatures:
    """Looks at records of one queue. What it remembers makes the next look short; it holds no memory."""

    def __init__(self) -> None:
        self._inputs: dict[tuple[int, Function], _Inputs] = {}
        self._tokens: dict[Key, int] = {}

    def look(self, works: Collection[tuple[str, Work]]) -> Signature:
        """The run that a record begins with; of no works if the first one cannot be captured."""
        return SignatureReader(works, self).signature

    def inputs(self, place: int, work: Dispatch) -> _Inputs:
        """How the inputs of the dispatch at this place of its run are bound."""
        known = self._inputs.get((place, work.function))
        if known is not None and known.are_again(work):
            return known
        found = self._look_at(work)
        # What has no memory yet will have some when the work has run.
        if not any(hasattr(work.inputs[index], "identity") for index in found.new):
            if len(self._inputs) >= _MOST_KNOWN:
                self._inputs.clear()
            self._inputs[place, work.function] = found
        return found

    def _look_at(self, work: Dispatch) -> _Inputs:
        kinds: dict[str, list[int]] = {"kept": [], "new": [], "moving": [], "fixed": []}
        serials: list[int] = []
        identities: list[Identity] = []
        for index, (bound, used, moves) in enumerate(
            zip(work.inputs, work.used, traits_of(work.function).numbers_move, strict=True)
        ):
            identity = identity_of(bound) if used and hasattr(bound, "identity") else None
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
            storages=storages_of(identities),
            token=token,
            **split,
        )


_MOST_KNOWN = 1 << 12


class SignatureReader:
    """One look at a record."""

    def __init__(self, works: Collection[tuple[str, Work]], signatures: Signatures) -> None:
        self._signatures = signatures
        self._begin()
        self._walk(works)
        self.signature.key = (*self._parts, *self._states())

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
            self.signature.refusal = f"{label}: {refusal}"
            break
        self._find_leases()

    def _find_leases(self) -> None:
        """What nobody else holds counts as given back within the run: nothing comes out to it."""
        signature = self.signature
        leases = {id(work.frame): work.frame for work in signature.dispatches if isinstance(work.frame, Lease)}
        for lease in leases.values():
            if lease.is_free(lease.uses(signature.dispatches, signature.cells)):
                signature.leases.append(lease)
                signature.released.update(map(id, lease.cells()))

    def _begin(self) -> None:
        self.signature = Signature()
        self._parts: list[Hashable] = []
        self._numbers: dict[int, int] = {}
        self._storages: list[frozenset[int]] = []

    def _refusal(self, work: Work) -> str:
        """What stands in the way of taking a work, as far as can be said without looking at its memory."""
        if isinstance(work, Release) or work is keep_place:
            return ""
        if not isinstance(work, Dispatch) or (type(work) is not Dispatch and not work.guards):
            return "it is no encode of a kernel or graph"
        if self.signature.dispatches and (work.guards or self.signature.is_guarded):
            return "results are looked at before what follows may run"
        return ""

    def _take(self, work: Work) -> None:
        signature = self.signature
        if isinstance(work, Release):
            for memory in work.memories:
                signature.released.update([id(part) for part in (memory, *cells_of(memory))])
            self._parts.append(Release)
        elif isinstance(work, Dispatch):
            self._take_encoding(work)
            signature.dispatches.append(work)
            signature.steps += len(work.function.actions)
            signature.is_guarded = work.guards
        else:
            self._parts.append(keep_place)
        signature.works += 1

    def _take_encoding(self, work: Dispatch) -> None:
        parts, inputs = self._parts, work.inputs
        found = self._signatures.inputs(len(self.signature.dispatches), work)
        self._storages.append(found.storages)
        parts.append(found.token)
        for index in found.moving:
            moving: Any = inputs[index]
            self.signature.numbers.append(moving.number)
            parts.append(type(moving.number))
        for index in found.fixed:
            fixed = inputs[index].value()
            parts.append((type(fixed), fixed))
        self._take_ends([inputs[index] for index in found.new], work.sinks)

    def _take_ends(self, ends: list[Any], sinks: Iterable[Sink]) -> None:
        """Note how memory is seen that is not known to stay, and which it is among that of the run."""
        parts, numbers, cells = self._parts, self._numbers, self.signature.cells
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
                identity = identity_of(end)
                parts.append(kind if identity is None else identity.serial)
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
        for number, cell in enumerate(self.signature.cells):
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
        if self.signature.released:
            states += [n for n, cell in enumerate(self.signature.cells) if id(cell) in self.signature.released]
        return states
