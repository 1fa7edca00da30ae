"""Which kernels of one data source hold its newest weights: counted when they are read and reloaded.

The numbers themselves are compared only by `holds_stale_weights`: what is here costs an encode two integers, and never
waits for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from openmps.kernels.convolution.data_source import LoadedWeights
from openmps.metal.device import MTLBuffer

_RELOAD = "with reload_weights_and_biases_from_data_source() or reload_weights_and_biases(command_buffer, state)"

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

    def begin(self, held: Held, given: Fingerprint | None, origin: MTLBuffer | None = None) -> None:
        """Have ``held`` be the first of a new version."""
        # In this order: completed handlers reload while another thread asks whether it is behind.
        held.version = self.latest + 1
        self.latest += 1
        self.fingerprint = given
        self.origin = None if origin is None else weakref.ref(origin)


# By the identity of the data source: it need neither be hashable nor take attributes. Gone with its last kernel.
_lineages: weakref.WeakValueDictionary[int, Lineage] = weakref.WeakValueDictionary()


class Held:
    """The version that one kernel, or the kernels of one graph, hold."""

    __slots__ = ("_fingerprint", "_is_new", "lineage", "version")

    def __init__(self, lineage: Lineage, given: Fingerprint) -> None:
        self.lineage = lineage
        self._fingerprint: Fingerprint | None = given
        self._is_new = True
        if lineage.fingerprint is None and lineage.latest == 1:
            lineage.fingerprint = given
        # Weights that were trained on the device are taken to be those that the source gives now.
        self.version = lineage.latest
        if lineage.fingerprint not in (given, None):
            lineage.begin(self, given)

    @property
    def is_stale(self) -> bool:
        """Whether another kernel was given newer weights of the same data source."""
        return self.version < self.lineage.latest

    def stale_message(self, who: str) -> str:
        """What a kernel says that is encoded with these weights although there are newer ones."""
        return (
            f"{who}: holds version {self.version} of the weights, and another kernel of the same data source was given "
            f"version {self.lineage.latest}: after each update reload every kernel, {_RELOAD}"
        )

    def differs_message(self, who: str, version: int, forward: str) -> str:
        """What a gradient kernel says whose forward kernel had another version of the same weights."""
        relation = "older" if self.version < version else "newer"
        return (
            f"{who}: holds version {self.version} of the weights, {relation} than version {version} that {forward} had "
            f"in the forward encode: after each update reload both kernels, {_RELOAD}"
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
        twin.lineage = self.lineage if same else Lineage.of(source)
        twin._fingerprint, twin._is_new = self._fingerprint, self._is_new
        twin.version = self.version if same else twin.lineage.latest
        return twin
