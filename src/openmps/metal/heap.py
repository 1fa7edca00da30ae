"""One block of device memory that buffers are cut from (MTLHeap.h, macOS 10.13)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch

from openmps.checks import KnownAttributes, Labelled, NamedAttributes, Shown, Single, is_whole, of_kind
from openmps.errors import MPSArgumentError, MPSMemoryError
from openmps.metal.processor import Processor
from openmps.metal.resource import modes_of
from openmps.selectors import name_arguments
from openmps.types import MTLCPUCacheMode, MTLResourceOptions, MTLStorageMode

ALIGNMENT = 256
"""Every buffer of a heap begins at a multiple of so many bytes, enough for any vector load of a CPU or GPU."""


@name_arguments
@dataclass
class MTLHeapDescriptor(NamedAttributes):
    """What a heap should be: ``size`` in bytes; private storage unless said otherwise (MTLHeap.h, macOS 10.13)."""

    size: int = 0
    storage_mode: MTLStorageMode = MTLStorageMode.PRIVATE
    cpu_cache_mode: MTLCPUCacheMode = MTLCPUCacheMode.DEFAULT_CACHE

    def copy(self) -> MTLHeapDescriptor:
        """An equal descriptor."""
        return replace(self)


class _Span:
    """A stretch of a heap. Every tensor made from it keeps it alive; the heap has the bytes back when it goes."""

    def __init__(self, arena: torch.Tensor, start: int, length: int) -> None:
        self._arena = arena
        interface: dict[str, Any] = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (arena.data_ptr() + start, False),
            "version": 3,
        }
        if arena.is_cuda:
            self.__cuda_array_interface__ = interface
        else:
            self.__array_interface__ = interface

    def tensor(self) -> torch.Tensor:
        """The bytes, zero, as a tensor with a storage of its own."""
        if self._arena.is_cuda:
            return torch.as_tensor(self, device=self._arena.device).zero_()
        return torch.from_numpy(np.asarray(self)).zero_()


class _Claim(weakref.ref[_Span]):
    """A span that is alive, and where it lies, with what rounds it up to `ALIGNMENT`."""

    __slots__ = ("start", "stop")
    __hash__ = object.__hash__  # a reference has none of its own when the span goes before it was asked for
    __eq__ = object.__eq__

    start: int
    stop: int


class _Claims:
    """The spans of a heap that are alive.

    Spans are made and dropped by every thread, by finalizers, and by signal handlers, which may interrupt another of
    these steps; a fork leaves other threads behind in any of them. So there is no lock that somebody could wait for:
    what is there is read in one step, and a span that was chosen is claimed if no other has been since, else chosen
    again.
    """

    def __init__(self) -> None:
        self._alive: set[_Claim] = set()
        self.made = 0
        """How many claims have been made so far."""

    def sorted(self) -> list[_Claim]:
        """Those of now, by their places."""
        return sorted(self._alive.copy(), key=attrgetter("start"))

    def add(self, span: _Span, start: int, stop: int, made: int) -> bool:
        """Claim the bytes of ``span`` until it goes, unless there are more claims by now than ``made``."""
        claim = _Claim(span, self._alive.discard)
        claim.start, claim.stop = start, stop
        # Threads change and signals arrive behind calls and at jumps back: there is neither before the claim is made.
        if self.made != made:
            return False
        self.made = made + 1
        self._alive.add(claim)
        return True


class Arena(KnownAttributes, Labelled, Single):
    """The memory of an `MTLHeap`."""

    _made_by: ClassVar[Mapping[str, str]] = {
        "size": "new_heap(MTLHeapDescriptor(size=…)) of the device",
        "storage_mode": "new_heap(MTLHeapDescriptor(…, storage_mode=…)) of the device",
        "cpu_cache_mode": "new_heap(MTLHeapDescriptor(…, cpu_cache_mode=…)) of the device",
        "device": "new_heap(…) of the other device",
    }
    _instead = "Make another with new_heap() of the device, and copy what its buffers hold with a blit encoder"

    def __init__(self, device: Processor, descriptor: MTLHeapDescriptor) -> None:
        of_kind("MTLHeap", "descriptor", descriptor, MTLHeapDescriptor)
        if descriptor.storage_mode not in (MTLStorageMode.SHARED, MTLStorageMode.PRIVATE):
            rule = "must be SHARED or PRIVATE"
            raise MPSArgumentError("MTLHeap", "descriptor.storage_mode", rule, descriptor.storage_mode.name)
        self._descriptor = descriptor.copy()
        size = device.check_length("MTLHeap", "descriptor.size", descriptor.size)
        self._arena = _block(size, device)
        self._claims = _Claims()

    def __repr__(self) -> str:
        return f"<{self.name}, {self.used_size} of {self.size} bytes used, {self.storage_mode.name}>"

    storage_mode = Shown[MTLStorageMode]("_descriptor.storage_mode", "The storage mode of every buffer of the heap.")
    cpu_cache_mode = Shown[MTLCPUCacheMode]("_descriptor.cpu_cache_mode", "The cache mode of every buffer of the heap.")
    size = Shown[int]("_descriptor.size", "Bytes of the heap.")

    @property
    def current_allocated_size(self) -> int:
        """Bytes of device memory that the heap holds: all of them from the start (macOS 10.13)."""
        return self._arena.numel()

    @property
    def used_size(self) -> int:
        """Bytes that buffers hold, each rounded up to `ALIGNMENT`."""
        return sum(claim.stop - claim.start for claim in self._claims.sorted())

    def max_available_size(self, alignment: int) -> int:
        """The length of the longest buffer that fits now and begins at a multiple of ``alignment``, a power of two."""
        if not is_whole(alignment, 1) or alignment & (alignment - 1):
            raise MPSArgumentError(self.name, "alignment", "must be a power of two", repr(alignment))
        return max([0, *(stop - _round_up(start, alignment) for start, stop in self._gaps())])

    def _checked(self, options: MTLResourceOptions | None) -> MTLResourceOptions:
        own = MTLResourceOptions(int(self.storage_mode) << 4 | int(self.cpu_cache_mode))
        asked = own if options is None else options
        if modes_of(self.name, asked) != (self.storage_mode, self.cpu_cache_mode):
            raise MPSArgumentError(self.name, "options", f"must agree with the heap's, {own!r}", repr(asked))
        return asked

    def _cut(self, length: int) -> torch.Tensor | None:
        while True:
            made = self._claims.made
            start = next((start for start, stop in self._gaps() if length <= stop - start), None)
            if start is None:
                return None
            span = _Span(self._arena, start, length)
            # The last bytes of the heap may be fewer than `ALIGNMENT`.
            if self._claims.add(span, start, min(self.size, start + _round_up(length, ALIGNMENT)), made):
                return span.tensor()

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """The free stretches in order."""
        end = 0
        for claim in self._claims.sorted():
            if end < claim.start:
                yield end, claim.start
            end = claim.stop
        if end < self.size:
            yield end, self.size


def _block(size: int, device: Processor) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device.torch_device)
    except RuntimeError as fault:
        rule, remedy = f"must fit the free memory of {device}", "Free memory, or make a smaller heap"
        raise MPSMemoryError("MTLHeap", "descriptor.size", rule, f"{size} bytes", remedy) from fault


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
