"""Glances: looks that take frames at their word, at runs of a kind that a whole look has seen before.

Dispatches of one frame share all but some of their bindings. What they share is memory that stays, as long as the epoch
lasts, or memory of a lease. So a quick reading looks at the rest of them alone: at numbers, and at images, labels and
results that are new. It tells apart the runs that a whole look tells apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from openmps.core.kernel.dispatch import Dispatch, Frame, Nowhere, Number, Several
from openmps.core.kernel.lease import Lease
from openmps.core.kernel.replay.signature import (
    Identity,
    Key,
    Signature,
    SignatureReader,
    Signatures,
    cells_of,
    identity_of,
    storages_of,
    traits_of,
)
from openmps.metal.execution import Work
from openmps.metal.resource import epoch

T = TypeVar("T")
_MOST_FRAMES, _MOST_RUNS = 1 << 12, 256
_MOST_ALIKE = 7
"""Runs of the same frames, besides one that comes new."""


class _Known(NamedTuple):
    """What is to be looked at of a dispatch, by its frame."""

    moving: tuple[int, ...]
    """Numbers that are uploaded, among the inputs."""
    fixed: tuple[int, ...]
    """Other numbers."""
    kept: tuple[int, ...]
    """Inputs that each encode binds, to memory that stays."""
    new: tuple[int, ...]
    """Other inputs that are bound to new memory."""
    sinks: tuple[int, ...]
    """Sinks that are."""
    storages: frozenset[int]
    """The kept memory."""


_Places = tuple[tuple[int, int], ...]
"""Places of dispatches in a run, each with one of its inputs or sinks."""


class _Row(NamedTuple):
    """The same of a run of dispatches, all of frames: in one list each."""

    moving: _Places
    fixed: _Places
    kept: _Places
    new: _Places
    sinks: _Places
    storages: list[frozenset[int]]
    leases: list[int]
    """Places of dispatches whose frames are leases."""


class _Run(NamedTuple, Generic[T]):
    """A kind of runs."""

    key: Key
    what: T
    """What is remembered of it."""
    places: tuple[int, ...]
    """Of the new memory that a quick reading meets, its numbers in a whole look."""
    uses: tuple[list[int], ...]
    """How often the parts of each lease are held by such a run; see `Lease.uses`."""


class QuickSignatures(Generic[T]):
    """Glances at records of one queue, and what is remembered of runs. It holds no memory."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._epoch = epoch.number
        self._forget()

    def _forget(self) -> None:
        self._frames: dict[int, _Known] = {}
        self._rows: dict[tuple[int, ...], _Row] = {}
        self._runs: dict[Key, list[_Run[T]]] = {}
        """By the first parts of their keys."""

    def read_quickly(self, works: Collection[tuple[str, Work]]) -> Signature | None:
        """The run that a record begins with; None where a whole look is needed."""
        if self._epoch != epoch.number:
            self._forget()
            self._epoch = epoch.number
        if not self._frames or not any(isinstance(work, Dispatch) and work.frame is not None for _, work in works):
            return None
        try:
            return _QuickReader(works, self._signatures, self._frames, self._rows).signature
        except Exception:  # A whole look says what it is.
            return None

    def known(self, signature: Signature) -> T | None:
        """What is remembered of such runs; nothing if somebody else holds what this one has on a lease."""
        # Compared, which stops at what is the very object: of a key most of what would be hashed is such.
        for run in self._runs.get(signature.key[:1], ()):
            if run.key == signature.key and all(map(Lease.is_free, signature.leases, run.uses)):
                signature.places = run.places
                return run.what
        return None

    def remember(self, works: Collection[tuple[str, Work]], whole: Signature, what: T) -> None:
        """Remember something of runs like one that was looked at, if a quick reading can tell them."""
        frames = {work.frame.serial: work for work in whole.dispatches if work.frame is not None}
        leases = [work.frame for work in frames.values() if isinstance(work.frame, Lease)]
        if not frames or len(leases) > len(whole.leases):
            return
        if len(self._frames) > _MOST_FRAMES:
            self._frames.clear()
            self._rows.clear()
        if len(self._runs) > _MOST_RUNS:
            self._runs.clear()
        lent = {id(cell) for lease in leases for cell in lease.cells()}
        for serial, work in frames.items():
            self._frames[serial] = _known(work, work.frame, lent)
        self._rows.clear()
        signature = self.read_quickly(works)
        numbers = {id(cell): number for number, cell in enumerate(whole.cells)}
        if (
            signature is not None
            and signature.works == whole.works
            and all(id(cell) in numbers for cell in signature.cells)
        ):
            places = tuple([numbers[id(cell)] for cell in signature.cells])
            runs = self._runs.setdefault(signature.key[:1], [])
            runs[:] = [run for run in runs if run.key != signature.key][-_MOST_ALIKE:]
            uses = tuple([lease.uses(signature.dispatches) for lease in signature.leases])
            runs.append(_Run(signature.key, what, places, uses))


class _QuickReader(SignatureReader):
    """One read_quickly at a record."""

    def __init__(
        self,
        works: Collection[tuple[str, Work]],
        signatures: Signatures,
        frames: dict[int, _Known],
        rows: dict[tuple[int, ...], _Row],
    ) -> None:
        self._frames, self._rows = frames, rows
        super().__init__(works, signatures)

    def _walk(self, works: Collection[tuple[str, Work]]) -> None:
        every: list[Any] = [work for _, work in works]
        framed = [work for work in every if type(work) is Dispatch and work.frame is not None]
        if len(framed) == len(works):
            self._take_row(framed)
            return
        frames, dispatches = self._frames, self.signature.dispatches
        count = 0
        for _, work in works:
            if isinstance(work, Dispatch) and not work.guards and (frame := work.frame) is not None:
                self._take_framed(work, frame, frames[frame.serial])
                dispatches.append(work)
                count += 1
            elif self._refusal(work):
                break
            else:
                self._take(work)
        self.signature.works += count

    def _take_row(self, works: list[Any]) -> None:
        """All dispatches of a run at once."""
        signature, parts = self.signature, self._parts
        serials = tuple([work.frame.serial for work in works])
        row = self._rows.get(serials)
        if row is None:
            row = self._rows[serials] = _row(works, [self._frames[serial] for serial in serials])
        parts.append(serials)
        signature.numbers = numbers = [works[place].inputs[index].number for place, index in row.moving]
        parts += map(type, numbers)
        for place, index in row.fixed:
            value = works[place].inputs[index].value()
            parts.append((type(value), value))
        for place, index in row.kept:
            parts.append(_mark(works[place].inputs[index]).serial)
        self._storages += row.storages
        signature.leases += [works[place].frame for place in row.leases]
        self._take_ends(
            [works[place].inputs[index] for place, index in row.new],
            [works[place].sinks[index] for place, index in row.sinks],
        )
        signature.dispatches = works
        signature.works = len(works)

    def _take_framed(self, work: Dispatch, frame: Frame, known: _Known) -> None:
        moving, fixed, kept, new, sinks, storages = known
        parts, inputs = self._parts, work.inputs
        parts.append(frame.serial)
        for index in moving:
            number: Any = inputs[index]
            self.signature.numbers.append(number.number)
            parts.append(type(number.number))
        for index in fixed:
            value = inputs[index].value()
            parts.append((type(value), value))
        for index in kept:
            parts.append(_mark(inputs[index]).serial)
        if storages:
            self._storages.append(storages)
        if isinstance(frame, Lease):
            self.signature.leases.append(frame)
        if new or sinks:
            self._take_ends([inputs[index] for index in new], [work.sinks[index] for index in sinks])


def _known(work: Dispatch, frame: Frame | None, lent: set[int]) -> _Known:
    """What is to be looked at of dispatches of a frame; ``lent`` is the memory of the run's leases."""
    assert frame is not None
    moves = traits_of(work.function).numbers_move
    found: dict[str, list[int]] = {"moving": [], "fixed": [], "kept": [], "new": []}
    identities: list[Identity] = []
    for index, (bound, used) in enumerate(zip(work.inputs, work.used, strict=True)):
        identity = identity_of(bound) if used and hasattr(bound, "identity") else None
        if identity is not None:
            identities.append(identity)
        kind = "moving" if moves[index] else "fixed" if type(bound) is Number else "new" if identity is None else "kept"
        if used and (
            kind in ("moving", "fixed") or index in frame.anew or (identity is None and not _is_of(bound, lent))
        ):
            found[kind].append(index)
    every = range(len(work.sinks)) if frame.anew_sinks is None else frame.anew_sinks
    sinks = tuple([index for index, sink in enumerate(work.sinks) if index in every or not _stays(sink, lent)])
    split = {kind: tuple(places) for kind, places in found.items()}
    return _Known(**split, sinks=sinks, storages=storages_of(identities))


def _row(works: Sequence[Dispatch], known: Sequence[_Known]) -> _Row:
    """What is to be looked at of a run of dispatches of frames."""

    def places(kind: str) -> _Places:
        return tuple([(place, index) for place, each in enumerate(known) for index in getattr(each, kind)])

    return _Row(
        *map(places, ("moving", "fixed", "kept", "new", "sinks")),
        storages=[each.storages for each in known if each.storages],
        leases=[place for place, work in enumerate(works) if isinstance(work.frame, Lease)],
    )


def _mark(bound: Any) -> Identity:
    """The identity of what is bound to memory that stays."""
    identity = identity_of(bound)
    if identity is None:
        raise LookupError("it is bound to new memory")
    return identity


def _is_of(bound: Any, lent: set[int]) -> bool:
    """Whether something is bound to this memory alone."""
    cells = cells_of(bound)
    return bool(cells) and all(id(cell) in lent for cell in cells)


def _stays(sink: Any, lent: set[int]) -> bool:
    """Whether a sink writes nothing, or memory that stays or is lent."""
    each: Sequence[Any] = sink.sinks if type(sink) is Several else (sink,)
    return all(type(one) is Nowhere or _is_of(one, lent) or identity_of(one) is not None for one in each)
