"""Signatures of runs of a kind that came before, from the bindings that are new alone.

Dispatches of one frame share all but some of their bindings. What they share is memory that stays, as long as the epoch
lasts. So a quick reading looks at the rest of them alone: at numbers, and at images,
labels and results that are new. It tells apart the runs that a whole look tells apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

from openmps.metal.execution import Work
from openmps.metal.resource import epoch
from openmps.runtime.binding import Binding, Nowhere, Number, flat
from openmps.runtime.dispatch import Dispatch, Frame
from openmps.runtime.identity import Identity, storages_of
from openmps.runtime.replay.signature import (
    Key,
    Signature,
    SignatureReader,
    Signatures,
    number_of,
    traits_of,
)

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


class _Run(NamedTuple, Generic[T]):
    """A kind of runs."""

    key: Key
    what: T
    """What is remembered of it."""
    places: tuple[int, ...]
    """Of the new memory that a quick reading meets, its numbers in a whole look."""


class QuickSignatures(Generic[T]):
    """Quick readings of the records of one queue, and what is remembered of runs. It holds no memory."""

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
        """What is remembered of such runs."""
        # Compared, which stops at what is the very object: of a key most of what would be hashed is such.
        for run in self._runs.get(signature.key[:1], ()):
            if run.key == signature.key:
                signature.places = run.places
                return run.what
        return None

    def remember(self, works: Collection[tuple[str, Work]], whole: Signature, what: T) -> None:
        """Remember something of runs like one that was looked at, if a quick reading can tell them."""
        frames = {work.frame.serial: work for work in whole.dispatches if work.frame is not None}
        if not frames:
            return
        if len(self._frames) > _MOST_FRAMES:
            self._frames.clear()
            self._rows.clear()
        if len(self._runs) > _MOST_RUNS:
            self._runs.clear()
        for serial, work in frames.items():
            self._frames[serial] = _known(work, work.frame)
        self._rows.clear()
        signature = self.read_quickly(works)
        numbers = {id(memory): number for number, memory in enumerate(whole.memories)}
        if (
            signature is not None
            and signature.works == whole.works
            and all(id(memory) in numbers for memory in signature.memories)
        ):
            places = tuple([numbers[id(memory)] for memory in signature.memories])
            runs = self._runs.setdefault(signature.key[:1], [])
            runs[:] = [run for run in runs if run.key != signature.key][-_MOST_ALIKE:]
            runs.append(_Run(signature.key, what, places))


class _QuickReader(SignatureReader):
    """One quick reading of a record."""

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
        framed = [
            work for _, work in works if isinstance(work, Dispatch) and not work.guards and work.frame is not None
        ]
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

    def _take_row(self, works: list[Dispatch]) -> None:
        """All dispatches of a run at once."""
        signature, parts = self.signature, self._parts
        frames = [work.frame for work in works]
        serials = tuple([frame.serial for frame in frames if frame is not None])
        row = self._rows.get(serials)
        if row is None:
            row = self._rows[serials] = _row(works, [self._frames[serial] for serial in serials])
        parts.append(serials)
        signature.numbers = numbers = [
            bound.number for place, index in row.moving if isinstance(bound := works[place].inputs[index], Number)
        ]
        parts += map(type, numbers)
        for place, index in row.fixed:
            value = works[place].inputs[index].value()
            parts.append((type(value), value))
        for place, index in row.kept:
            parts.append(_identity(works[place].inputs[index]).serial)
        self._storages += row.storages
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
            number = number_of(inputs[index])
            self.signature.numbers.append(number)
            parts.append(type(number))
        for index in fixed:
            value = inputs[index].value()
            parts.append((type(value), value))
        for index in kept:
            parts.append(_identity(inputs[index]).serial)
        if storages:
            self._storages.append(storages)
        if new or sinks:
            self._take_ends([inputs[index] for index in new], [work.sinks[index] for index in sinks])


def _known(work: Dispatch, frame: Frame | None) -> _Known:
    """What is to be looked at of dispatches of a frame."""
    assert frame is not None
    moves = traits_of(work.function).numbers_move
    found: dict[str, list[int]] = {"moving": [], "fixed": [], "kept": [], "new": []}
    identities: list[Identity] = []
    for index, (bound, used) in enumerate(zip(work.inputs, work.used, strict=True)):
        identity = bound.identity() if used and bound.remembers_identity else None
        if identity is not None:
            identities.append(identity)
        kind = "moving" if moves[index] else "fixed" if type(bound) is Number else "new" if identity is None else "kept"
        if used and (kind in ("moving", "fixed") or index in frame.anew or identity is None):
            found[kind].append(index)
    every = range(len(work.sinks)) if frame.anew_sinks is None else frame.anew_sinks
    sinks = tuple([index for index, sink in enumerate(work.sinks) if index in every or not _stays(sink)])
    split = {kind: tuple(places) for kind, places in found.items()}
    return _Known(**split, sinks=sinks, storages=storages_of(identities))


def _row(works: Sequence[Dispatch], known: Sequence[_Known]) -> _Row:
    """What is to be looked at of a run of dispatches of frames."""

    def places(kind: str) -> _Places:
        return tuple([(place, index) for place, each in enumerate(known) for index in getattr(each, kind)])

    return _Row(
        *map(places, ("moving", "fixed", "kept", "new", "sinks")),
        storages=[each.storages for each in known if each.storages],
    )


def _identity(binding: Binding) -> Identity:
    """The identity of what is bound to memory that stays."""
    identity = binding.identity()
    if identity is None:
        raise LookupError("it is bound to new memory")
    return identity


def _stays(sink: Binding) -> bool:
    """Whether a sink writes nothing, or memory that stays."""
    return all(isinstance(one, Nowhere) or one.identity() is not None for one in flat((sink,)))
