"""Which kernels of one data source hold its newest weights: counted when they are read and reloaded.

The numbers themselves are compared only by `holds_stale_weights`: what is here costs an encode two integers, and never
waits for a device.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmps.kernels.convolution.data_source import LoadedWeights
    from openmps.metal.memory import MTLBuffer

Fingerprint = tuple[int, ...]
"""Sums over the bits of weights and biases: other numbers have, but for bad luck, another one."""


def fingerprint(loaded: LoadedWeights) -> Fingerprint:
    """The fingerprint of what a data source gave."""
    arrays = [loaded.weights] if loaded.biases is None else [loaded.weights, loaded.biases]
    return tuple(total for array in arrays for total in _sums(array.reshape(-1).view(np.uint32)))


def _sums(words: Any) -> tuple[int, int]:
    even = words.size & ~1
    return int(words[:even].view(np.uint64).sum()), int(words[even:].sum())


class Lineage:
    """The versions that the weights of one data source have gone through, as far as its kernels were told."""

    def __init__(self, source: object) -> None:
        self.source = source
        """Held, so that its identity stays its own."""
        self.latest = 1
        self.fingerprint: Fingerprint | None = None
        """That of the latest version; None where it was made on the device."""
        self.origin: Callable[[], MTLBuffer | None] | None = None
        """The buffer that the latest version came from; None where it came from the data source."""

    @classmethod
    def of(cls, source: object) -> Lineage:
        """The one of a data source, for as long as a kernel holds it; one of its own for None."""
        return cls(None) if source is None else _lineages.setdefault(id(source), cls(source))

    def begin(self, given: Fingerprint | None, origin: MTLBuffer | None) -> int:
        """The number of a new version."""
        self.latest += 1
        self.fingerprint = given
        self.origin = None if origin is None else weakref.ref(origin)
        return self.latest


# By the identity of the data source: it need neither be hashable nor take attributes. Gone with its last kernel.
_lineages: weakref.WeakValueDictionary[int, Lineage] = weakref.WeakValueDictionary()


class Held:
    """The version that one kernel, or the kernels of one graph, hold."""

    __slots__ = ("_fingerprint", "lineage", "version")

    def __init__(self, lineage: Lineage, given: Fingerprint) -> None:
        self.lineage = lineage
        self._fingerprint: Fingerprint | None = given
        if lineage.fingerprint is None and lineage.latest == 1:
            lineage.fingerprint = given
        # Weights that were trained on the device are taken to be those that the source gives now.
        known = lineage.fingerprint in (given, None)
        self.version = lineage.latest if known else lineage.begin(given, None)

    @property
    def is_latest(self) -> bool:
        """Whether no other kernel was given newer weights of the same data source."""
        return self.version == self.lineage.latest

    def read(self, given: Fingerprint, differs: Callable[[], bool]) -> None:
        """The data source was read again; ``differs`` says whether its numbers are not those that are held."""
        lineage, before = self.lineage, self._fingerprint
        self._fingerprint = given
        if given == lineage.fingerprint:
            self.version = lineage.latest
        elif lineage.fingerprint is not None:
            self.version = lineage.begin(given, None) if given != before else self.version
        elif not self.is_latest:
            # The device has trained on. A source that still gives the old numbers does not bring the new ones.
            if given != before:
                lineage.fingerprint, self.version = given, lineage.latest
        elif differs():
            self.version = lineage.begin(given, None)
        else:
            lineage.fingerprint = given

    def take(self, buffer: MTLBuffer) -> None:
        """A reload from a buffer was encoded. Kernels that take the same buffer one after the other agree."""
        lineage, self._fingerprint = self.lineage, None
        known = not self.is_latest and lineage.origin is not None and lineage.origin() is buffer
        self.version = lineage.latest if known else lineage.begin(None, buffer)

    def copied(self, source: object) -> Held:
        """For a copy of the kernel over ``source``, with the same numbers."""
        twin = Held.__new__(Held)
        same = self.lineage.source is source
        twin.lineage, twin._fingerprint = (self.lineage if same else Lineage.of(source)), self._fingerprint
        twin.version = self.version if same else twin.lineage.latest
        return twin
