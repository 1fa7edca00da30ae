"""Which kernels of one data source hold its newest weights: counted when they are read and reloaded.

The numbers themselves are compared only by `holds_stale_weights`: what is here costs an encode two integers, and never
waits for a device.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSTrainingWarning, MPSTypeError
from openmps.metal.device import MTLBuffer

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

    def __init__(self, source: object, part: Part) -> None:
        self.source = source
        """Held, so that its identity stays its own."""
        self.part = part
        self.latest = 1
        self.fingerprint: Fingerprint | None = None
        """That of the latest version; None where it was made on the device."""
        self.origin: Callable[[], MTLBuffer | None] | None = None
        """The buffer that the latest version came from; None where it came from the data source."""

    @classmethod
    def of(cls, source: object, part: Part) -> Lineage:
        """The one of a data source's part, for as long as a kernel holds it; one of its own for None."""
        made = cls(source, part)
        return made if source is None else _lineages.setdefault((id(source), part.what), made)

    def begin(self, held: Held, given: Fingerprint | None, origin: MTLBuffer | None = None) -> None:
        """Have ``held`` be the first of a new version."""
        # In this order: completed handlers reload while another thread asks whether it is behind.
        held.version = self.latest + 1
        self.latest += 1
        self.fingerprint = given
        self.origin = None if origin is None else weakref.ref(origin)


# By the identity of the data source: it need neither be hashable nor take attributes. Gone with its last kernel.
_lineages: weakref.WeakValueDictionary[tuple[int, str], Lineage] = weakref.WeakValueDictionary()


class Held:
    """The version that one kernel, or the kernels of one graph, hold."""

    __slots__ = ("_fingerprint", "_is_new", "has_warned", "lineage", "version")

    def __init__(self, lineage: Lineage, given: Fingerprint) -> None:
        self.lineage = lineage
        self.has_warned = False
        """Whether the last encode was one with old numbers."""
        self._fingerprint: Fingerprint | None = given
        self._is_new = True
        if lineage.fingerprint is None and lineage.latest == 1:
            lineage.fingerprint = given
        # Weights that were trained on the device are taken to be those that the source gives now.
        self.version = lineage.latest
        if lineage.fingerprint not in (given, None):
            lineage.begin(self, given)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        rule = "is not offered for kernels with weights, nor for what they belong to"
        remedy = "Call copy() of the kernel or graph, or write an archive with MPSKeyedArchiver"
        raise MPSTypeError(self.lineage.part.what, "a deep copy or pickle", rule, None, remedy)

    @property
    def is_stale(self) -> bool:
        """Whether another kernel was given newer weights of the same data source."""
        return self.version < self.lineage.latest

    def warn(self, who: str) -> None:
        """Warn of an encode with old numbers, unless the encode before was one."""
        had_warned, self.has_warned = self.has_warned, self.is_stale
        if self.has_warned and not had_warned:
            warnings.warn(self.stale_message(who), MPSTrainingWarning, stacklevel=3)

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
        elif self.is_stale and given == before:
            # Others have moved on, and the source still gives the old numbers: it does not bring the new ones.
            return
        elif lineage.fingerprint is not None or (not self.is_stale and differs()):
            lineage.begin(self, given)
        else:
            # The latest version was made on the device: the source brings it back.
            lineage.fingerprint, self.version = given, lineage.latest

    def take(self, buffer: MTLBuffer) -> None:
        """A reload from a buffer was encoded. Kernels that take the same buffer one after the other agree."""
        lineage, self._fingerprint = self.lineage, None
        # A gradient kernel may have read the data source for this very reload.
        is_behind, self._is_new = self.version < lineage.latest or self._is_new, False
        if is_behind and lineage.origin is not None and lineage.origin() is buffer:
            self.version = lineage.latest
        else:
            lineage.begin(self, None, buffer)

    def copied(self, source: object) -> Held:
        """For a copy of the kernel over ``source``, with the same numbers."""
        twin = Held.__new__(Held)
        same = source is not None and self.lineage.source is source
        twin.lineage = self.lineage if same else Lineage.of(source, self.lineage.part)
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
