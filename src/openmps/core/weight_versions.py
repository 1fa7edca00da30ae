"""Which kernels of one data source hold its newest weights: counted when they are read and reloaded.

What is here costs an encode two integers. The numbers themselves are compared by `holds_stale_weights`, and where an
encode would warn otherwise: versions that came about on the device may be equal, as after a step of rate 0. Only that
waits for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSTrainingWarning, MPSTypeError, MTLCommandBufferError, MTLExecutionError, warn_user
from openmps.metal.device import MTLBuffer
from openmps.metal.pending import wait_until_written
from openmps.runtime.binding import Binding

Fingerprint = tuple[int, ...]
"""Sums over the bits of some arrays: other numbers have, but for bad luck, another one."""


def fingerprint(*arrays: NDArray[np.float32] | None) -> Fingerprint:
    """The fingerprint of what a data source gave."""
    rows = (array.reshape(-1).view(np.uint32) for array in arrays if array is not None)
    return tuple(total for row in rows for total in _sums(row))


class Part(NamedTuple):
    """Those numbers of a data source that are read and reloaded together."""

    what: str
    """As a message calls them."""
    reload: str
    """How a kernel is given new ones, for the end of a sentence."""

    @classmethod
    def reloaded_by(cls, what: str, method: str, state: str) -> Part:
        """The part that ``method`` reloads from a state."""
        return cls(what, f"with {method}_from_data_source() or {method}(command_buffer, {state})")


def _sums(words: Any) -> tuple[int, int]:
    even = words.size & ~1
    return int(words[:even].view(np.uint64).sum()), int(words[even:].sum())


class Lineage:
    """The versions that a part of one data source has gone through, as far as its kernels were told."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.latest = 1
        self.origin: Callable[[], MTLBuffer | None] | None = None
        """The buffer that the latest version came from; None where it came from the data source."""
        self.newest: Callable[[], Held | None] = lambda: None
        """Who was the first to hold the latest version, if it is still there and was made on the device."""
        self._read: Fingerprint | None = None
        self._read_version = 1

    @classmethod
    def of(cls, source: object, part: Part) -> Lineage:
        """The one of a data source's part, for as long as the data source lives; one of its own for None."""
        made = cls(part)
        if source is None:
            return made
        key = id(source), part.what
        try:
            found = _lineages.setdefault(key, made)
            if found is made:
                weakref.finalize(source, _lineages.pop, key, None).atexit = False
        except TypeError:  # It takes no weak references.
            del _lineages[key]
            made._source = source
            return _of_unreferable.setdefault(key, made)
        return found

    _source: object = None
    """Held where nothing tells that it has gone, so that its identity stays its own."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """That of the latest version; None where it was made on the device."""
        return self._read if self._read_version == self.latest else None

    def version_of(self, given: Fingerprint) -> int | None:
        """The version that was the last to come from the data source, if these are its numbers."""
        return self._read_version if given == self._read else None

    def came(self, given: Fingerprint) -> None:
        """The data source gives the latest version."""
        self._read, self._read_version = given, self.latest

    def begin(self, held: Held, given: Fingerprint | None, origin: MTLBuffer | None = None) -> None:
        """Have ``held`` be the first of a new version."""
        # In this order: completed handlers reload while another thread asks whether it is behind.
        held.version = self.latest + 1
        self.latest += 1
        self.newest = weakref.ref(held)
        if given is not None:
            self.came(given)
        self.origin = None if origin is None else weakref.ref(origin)


# By the identity of the data source, which need not be hashable; an entry goes with its data source.
_lineages: dict[tuple[int, str], Lineage] = {}
# Of data sources that take no weak references; an entry goes with the last kernel.
_of_unreferable: weakref.WeakValueDictionary[tuple[int, str], Lineage] = weakref.WeakValueDictionary()


class Held:
    """The version that one kernel, or the kernels of one graph, hold."""

    __slots__ = ("__weakref__", "_fingerprint", "_is_new", "has_warned", "lineage", "memory", "version")

    memory: Callable[[], Callable[[], Sequence[Binding]] | None]
    """A weak reference to the method that gives the numbers as they are in memory, in the order of a fingerprint."""

    def __init__(self, lineage: Lineage, given: Fingerprint) -> None:
        self.lineage = lineage
        self.has_warned = False
        """Whether the last encode was one with old numbers."""
        self._fingerprint: Fingerprint | None = given
        self._is_new = True
        if lineage.fingerprint is None and lineage.latest == 1:
            lineage.came(given)
        self.version = lineage.latest
        if lineage.fingerprint is None:
            # Trained on the device: the source gives the numbers from before, or those that training came to.
            self.version = lineage.version_of(given) or lineage.latest
            if not self.is_stale:
                lineage.came(given)
        elif lineage.fingerprint != given:
            lineage.begin(self, given)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        rule = "is not offered for kernels with weights, nor for what they belong to"
        remedy = "Call copy() of the kernel or graph, or write an archive with MPSKeyedArchiver"
        raise MPSTypeError(self.lineage.part.what, "a deep copy or pickle", rule, None, remedy)

    @property
    def is_stale(self) -> bool:
        """Whether another kernel was given newer weights of the same data source."""
        return self.version < self.lineage.latest

    def holds_newest(self) -> bool:
        """Whether the numbers are those of the newest version; equal ones count as that version from now on.

        Waits for committed work that writes them. False where work that is not committed writes them, and where the
        kernel that they were made for is gone: they may differ.
        """
        latest, newest = self.lineage.latest, self.lineage.newest()
        if self.is_stale:
            given = self.lineage.fingerprint or (newest and newest._in_memory())
            if given is None or given != self._in_memory():
                return False
            self.version = latest
        return True

    def _in_memory(self) -> Fingerprint | None:
        """The fingerprint of the numbers as they are in memory; None where work that is not committed writes them."""
        read = self.memory()
        rows: Sequence[Any] = () if read is None else read()
        try:
            wait_until_written("weights", "warning", [region for row in rows for region in row.regions()])
        except (MTLCommandBufferError, MTLExecutionError):
            return None
        return fingerprint(*(row.value().cpu().numpy() for row in rows)) or None

    def warn(self, who: str) -> None:
        """Warn of an encode with old numbers, unless the encode before was one."""
        had_warned = self.has_warned
        self.has_warned = self.is_stale and (had_warned or not self.holds_newest())
        if self.has_warned and not had_warned:
            warn_user(self.stale_message(who), MPSTrainingWarning)

    def stale_message(self, who: str) -> str:
        """What a kernel says that is encoded with these numbers although there are newer ones."""
        part = self.lineage.part
        return (
            f"{who}: holds version {self.version} of {part.what}, and another kernel of the same data source was "
            f"given version {self.lineage.latest}: after each update reload every kernel, {part.reload}"
        )

    def differs_message(self, who: str, version: int, forward: str) -> str:
        """What a gradient kernel says whose forward kernel had another version of the same weights."""
        relation = "older" if self.version < version else "newer"
        return (
            f"{who}: holds version {self.version} of {self.lineage.part.what}, {relation} than version {version} that "
            f"{forward} had in the forward encode: after each update reload both kernels, {self.lineage.part.reload}"
        )

    def read(self, given: Fingerprint, differs: Callable[[], bool]) -> None:
        """The data source was read again; ``differs`` says whether its numbers are not those that are held."""
        lineage, before = self.lineage, self._fingerprint
        self._fingerprint = given
        if given == lineage.fingerprint:
            self.version = lineage.latest
        elif self.is_stale and (given == before or lineage.version_of(given) is not None):
            # Others have moved on, and the source still gives the old numbers: it does not bring the new ones.
            self.version = lineage.version_of(given) or self.version
        elif lineage.fingerprint is not None or (not self.is_stale and differs()):
            lineage.begin(self, given)
        else:
            # The latest version was made on the device: the source brings it back.
            lineage.came(given)
            self.version = lineage.latest

    def take(self, buffer: MTLBuffer) -> None:
        """A reload from a buffer was encoded. Kernels that take the same buffer one after the other agree."""
        lineage = self.lineage
        latest, origin = lineage.latest, lineage.origin
        # A gradient kernel may have read the data source for this very reload.
        is_behind = self._is_new or self.version < latest
        self._fingerprint, self._is_new = None, False
        if is_behind and origin is not None and origin() is buffer:
            self.version = latest
        else:  # as `Lineage.begin` does, which each layer of a step would pay for
            lineage.latest = self.version = latest + 1
            lineage.newest, lineage.origin = weakref.ref(self), weakref.ref(buffer)

    def copied(self, source: object) -> Held:
        """For a copy of the kernel over ``source``, with the same numbers."""
        twin = Held.__new__(Held)
        twin.lineage = Lineage.of(source, self.lineage.part)
        same = twin.lineage is self.lineage
        twin._fingerprint, twin._is_new, twin.has_warned = self._fingerprint, self._is_new, False
        twin.version = self.version if same else twin.lineage.latest
        return twin


class HoldsWeights:
    """A kernel with numbers of a data source, which others over the same one may be given newer ones of."""

    @property
    def held_weights(self) -> Sequence[Held]:
        """The versions that encodes of this kernel use, one for each part; for those who schedule kernels."""
        raise NotImplementedError

    def holds_stale_weights(self) -> bool:
        """Whether the numbers held are others than the data source gives now."""
        raise NotImplementedError
