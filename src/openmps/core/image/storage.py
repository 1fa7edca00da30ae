"""Pixels in memory: blocks of equally sized images, and the selections of them that an encode reads or writes.

A block is one ``[N, C, H, W]`` tensor in channels-last memory that stores what its channel format says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import Shown, memory_for
from openmps.core.operand import View
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSMemoryError
from openmps.locks import new_lock, new_reentrant_lock
from openmps.metal.memory import DeferrableMemory
from openmps.metal.pending import Region
from openmps.metal.stream import brought
from openmps.ops.elements import DTYPES, decode, gather
from openmps.ops.geometry import meet
from openmps.runtime.host import Host, Layout, as_elements
from openmps.types import ELEMENT_BYTES
from openmps.types import MPSImageFeatureChannelFormat as Format

# The first use of a block may come from the thread that runs the queue and from the user's at once. Held for an
# assignment only: a process that is forked while another thread holds it could never take it.
_allocation = new_lock()
_resolving = new_reentrant_lock()
"""Held while deferred elements are copied. A signal handler may ask for it while its thread does."""


def _forget_threads() -> None:
    """In a forked process: no thread that had it is there any more."""
    global _resolving
    _resolving = new_reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class Extent(NamedTuple):
    """The shape of an image, or of a stack of them: pixels, feature channels, number of images."""

    width: int
    height: int
    channels: int
    images: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(images, channels, height, width)``, the order of the engine's tensors."""
        return (self.images, self.channels, self.height, self.width)

    def bytes_as(self, channel_format: Format) -> int:
        """Bytes of memory that the elements take."""
        return self.images * self.channels * self.height * self.width * ELEMENT_BYTES[channel_format]

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.channels} (width x height x channels), {self.images} image(s)"


class Shape(NamedTuple):
    """What plans are made for: the shape of images, and how their numbers are stored."""

    extent: Extent
    channel_format: Format

    @property
    def stored_as(self) -> Format:
        """The same as `channel_format`, as all operands have it."""
        return self.channel_format

    number_format = stored_as


class Block(DeferrableMemory):
    """Memory of equally sized images: allocated, filled with zeros, on first use; or adopted from an operation.

    Elements that came from the host stay there until they are used on the device.
    """

    __slots__ = (
        "__weakref__",
        "_deferred",
        "_host",
        "_layout",
        "_tensor",
        "_was_copied",
        "channel_format",
        "device",
        "extent",
        "is_shared",
        "released",
    )

    is_persistent = False
    is_partly_written = True

    def __init__(
        self,
        device: torch.device,
        channel_format: Format,
        extent: Extent,
        host: NDArray[Any] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """``host`` are elements ``[N, H, W, C]`` without gaps that are nobody else's, which lie so as tensors."""
        self.device = device
        self.channel_format = channel_format
        self.extent = extent
        self.released = False
        """Whether the memory was given back for good."""
        self.is_shared = False
        """Whether other blocks may see the same memory, as that of a texture."""
        self._tensor: Tensor | None = None
        self._host: Host | None = host
        self._layout = layout
        self._deferred: Callable[[], Tensor] | None = None
        """Copies elements that are in memory of somebody else's, as long as they are."""
        self._was_copied = False

    @classmethod
    def over(cls, stored: Tensor, channel_format: Format) -> Block:
        """A block in memory ``[N, C, H, W]`` that others may see, too, as it lies."""
        images, channels, height, width = stored.shape
        block = cls(stored.device, channel_format, Extent(width, height, channels, images))
        block._tensor, block.is_shared = stored, True
        return block

    @property
    def is_allocated(self) -> bool:
        """Whether there is memory."""
        return self.present is not None

    @property
    def present(self) -> Tensor | None:
        """The memory, if there is any: on the host as long as the device has not needed it."""
        # In this order: another thread may bring it to the device meanwhile.
        deferred, host, stored = self._deferred, self._host, self._tensor
        if stored is None and deferred is not None:
            return self.tensor()
        return stored if stored is not None else None if host is None else as_elements(host)

    def outline(self) -> tuple[object, ...] | None:
        """See `Memory`."""
        deferred, host, stored = self._deferred, self._host, self._tensor  # in this order, as of `present`
        if stored is not None or deferred is not None:
            return None
        return (None, self.shape_key()) if host is None else self._layout if type(host) is np.ndarray else None

    def shape_key(self) -> Hashable:
        """Shape and format."""
        return self.extent, self.channel_format

    def empty_like(self) -> Block:
        """Another block of this shape, without memory."""
        return Block(self.device, self.channel_format, self.extent)

    def tensor(self) -> Tensor:
        """The stored elements ``[N, C, H, W]``."""
        stored = self._tensor
        return self._allocate() if stored is None else stored

    def to_copy(self) -> Host:
        """The stored elements for one copy of them: the first one is made from the host, if they are there yet."""
        host, is_first, self._was_copied = self._host, not self._was_copied, True
        return host if host is not None and self._tensor is None and is_first else self.tensor()

    def adopt(self, stored: Tensor) -> None:
        """Take elements ``[N, C, H, W]`` as the block's memory, without a copy if they lie channels-last.

        Copied into the memory that is there if another thread used the block first.
        """
        try:
            stored = stored.contiguous(memory_format=torch.channels_last)
        except (MemoryError, RuntimeError):
            with memory_for("MPSImage", "image"):
                raise
        with _allocation:
            if self._tensor is None:
                self._tensor = stored
                return
            present = self._tensor
        present.copy_(stored)

    def hold(self, host: Tensor) -> None:
        """Take elements ``[N, C, H, W]``, channels-last, that are on the host and nobody else's."""
        if self.device.type == "cpu":
            self._tensor = host
        else:
            self._host = host

    def defer(self, copy: Callable[[], Tensor]) -> None:
        """Have elements that ``copy`` makes when they are first asked for; the block has no memory yet."""
        self._deferred = copy

    def resolve(self) -> None:
        """Copy deferred elements, if these are."""
        with _resolving:
            copy = self._deferred
            if copy is not None:
                with torch.inference_mode(False):
                    self.adopt(copy())
                self._deferred = None

    def __getstate__(self) -> object:
        """What copies and pickles hold: elements of their own, as nobody would have copied deferred ones in time."""
        self.resolve()
        return super().__getstate__()

    def discard(self) -> None:
        """Give the memory back; the next use finds zeros."""
        self._tensor = self._host = self._deferred = None

    def release(self) -> None:
        """Give the memory back; there is no next use."""
        self.released = True
        self._tensor = self._host = self._deferred = None

    def _allocate(self) -> Tensor:
        if self.released:
            rule = "cannot be used after its last read"
            raise MPSLifetimeError("MPSTemporaryImage", "memory", rule, self.extent, "Raise read_count before it")
        if self._deferred is not None:
            self.resolve()
            return self.tensor()
        fresh = self._begun()
        with _allocation:
            if self._tensor is None:
                self._tensor = fresh
            self._host = None
            return self._tensor

    def _begun(self) -> Tensor:
        """The memory at the first use: what the host holds, or zeros."""
        dtype, host = DTYPES[self.channel_format], self._host
        try:
            # Made in inference mode, the memory could not be written outside it.
            with torch.inference_mode(False):
                if host is not None:
                    elements = as_elements(host)
                    return elements if self.device.type == "cpu" else brought(elements, self.device)
                memory = torch.empty(
                    self.extent.shape, dtype=dtype, device=self.device, memory_format=torch.channels_last
                )
                return memory.zero_()
        except (MemoryError, RuntimeError) as fault:
            if not isinstance(fault, MemoryError | torch.OutOfMemoryError) and "allocate" not in str(fault):
                raise
            got = f"{self.extent.bytes_as(self.channel_format)} bytes for {self.extent}"
            rule = f"must fit the free memory of {self.device}"
            raise MPSMemoryError("MPSImage", "image", rule, got, "Drop other images, or use a smaller batch") from fault


@dataclass(slots=True, init=False)
class Storage:
    """Where an image's pixels are: a run of images and of channels of one block."""

    block: Block
    first: int
    count: int
    channel: int
    channels: int
    is_whole: bool
    """Whether this is all of the block."""

    def __init__(self, block: Block, first: int, count: int, channel: int, channels: int) -> None:
        extent = block.extent
        self.block, self.first, self.count, self.channel, self.channels = block, first, count, channel, channels
        self.is_whole = count == extent.images and channels == extent.channels

    @classmethod
    def of(cls, block: Block) -> Storage:
        """All of a block."""
        return cls(block, 0, block.extent.images, 0, block.extent.channels)

    @property
    def extent(self) -> Extent:
        """The shape of this run."""
        whole = self.block.extent
        return whole if self.is_whole else Extent(whole.width, whole.height, self.channels, self.count)

    def tensor(self) -> Tensor:
        """The stored elements of this run, sharing the block's memory."""
        return self.part_of(self.block.tensor())

    def part_of(self, stored: Tensor) -> Tensor:
        """This run of the elements of a whole block."""
        if self.is_whole:
            return stored
        return stored[self.first : self.first + self.count, self.channel : self.channel + self.channels]

    def values(self) -> Tensor:
        """The numbers of this run, float32."""
        return decode(self.tensor(), self.block.channel_format)

    def of_other(self, block: Block) -> Storage:
        """The same run of another block."""
        return Storage(block, self.first, self.count, self.channel, self.channels)

    def view_key(self) -> Hashable:
        """Which run it is."""
        return self.first, self.count, self.channel, self.channels

    def narrowed(self, first: int, count: int) -> Storage:
        """The run of ``count`` images from ``first`` on."""
        return Storage(self.block, self.first + first, count, self.channel, self.channels)

    def with_channels(self, first: int, count: int) -> Storage:
        """The run of ``count`` channels from ``first`` on."""
        return Storage(self.block, self.first, self.count, self.channel + first, count)

    def region(self) -> Region:
        """This run, as what writes and what reads it is compared by."""
        images = range(self.first, self.first + self.count)
        channels = range(self.channel, self.channel + self.channels)
        return Region(self.block, (images, channels), self.block.present)

    def overlaps(self, other: Storage) -> bool:
        """Whether both hold at least one element of the same memory, gaps between those of two blocks included."""
        if self.block is not other.block:
            return self.block.is_shared and other.block.is_shared and self.region().meets(other.region())
        return (
            self.first < other.first + other.count
            and other.first < self.first + self.count
            and self.channel < other.channel + other.channels
            and other.channel < self.channel + self.channels
        )


class Target(NamedTuple):
    """Where results land in a destination: clip rectangle and first channel."""

    x: int
    y: int
    width: int
    height: int
    channel: int
    channels: int

    @classmethod
    def all_of(cls, extent: Extent) -> Target:
        """All pixels and channels of an image."""
        return cls(0, 0, extent.width, extent.height, 0, extent.channels)

    def covers(self, extent: Extent) -> bool:
        """Whether nothing of an image of this shape is left out."""
        return (self.width, self.height, self.channels) == (extent.width, extent.height, extent.channels)

    def of(self, room: Tensor) -> Tensor:
        """This part of the elements of the destination."""
        channels = slice(self.channel, self.channel + self.channels)
        return room[:, channels, self.y : self.y + self.height, self.x : self.x + self.width]


class Stack(View[Shape]):
    """The images that one encode reads or writes, seen as one ``[n, C, H, W]`` tensor.

    One part is a run of one block and costs nothing to see as a tensor; several parts, the images of a batch put
    together by hand, are gathered when they are read.
    """

    __slots__ = ("_view_key", "members", "parts", "shape")

    def __init__(self, parts: tuple[Storage, ...], shape: Shape, view_key: Hashable = None) -> None:
        self.parts = parts
        self.shape = shape
        self._view_key = view_key
        self.members: Any = None  # the image objects, where a batch has made them

    extent = Shown[Extent]("shape.extent", "Pixels, channels and number of the images.")
    channel_format = Shown[Format]("shape.channel_format", "How the numbers are stored.")

    @property
    def stored_bytes(self) -> int:
        """Of the elements of all images."""
        return self.extent.bytes_as(self.channel_format)

    def memories(self) -> tuple[Block, ...]:
        """The blocks."""
        parts = self.parts
        return (parts[0].block,) if len(parts) == 1 else tuple([part.block for part in parts])

    def view_key(self) -> Hashable:
        """Which runs of them."""
        key = self._view_key
        if key is None:
            key = self._view_key = self.shape, tuple([part.view_key() for part in self.parts])
        return key

    def seen(self) -> tuple[tuple[Block, ...], Hashable]:
        """See `Binding`."""
        parts, key = self.parts, self._view_key
        is_known = len(parts) == 1 and key is not None
        return ((parts[0].block,), key) if is_known else (self.memories(), self.view_key())

    @property
    def is_whole(self) -> bool:
        """Whether it is all of one block."""
        return len(self.parts) == 1 and self.parts[0].is_whole

    def rebind(self, memories: Sequence[Block]) -> Stack:
        """The same of other memory."""
        return Stack(
            tuple([part.of_other(block) for part, block in zip(self.parts, memories, strict=True)]), self.shape
        )

    def stored(self) -> Tensor:
        """The stored elements of all images, ``[n, C, H, W]``; those of one run share the images' memory."""
        return self.parts[0].tensor() if len(self.parts) == 1 else gather([part.tensor() for part in self.parts])

    def value(self) -> Tensor:
        """The stored elements, as the input of a function."""
        if len(self.parts) != 1:
            return self.stored()
        part = self.parts[0]
        elements = part.block.tensor()
        return elements if part.is_whole else part.part_of(elements)

    def to_copy(self) -> Host:
        """The same for one copy of it; see `Block.to_copy`."""
        if len(self.parts) != 1:
            return self.stored()
        part = self.parts[0]
        host = part.block.to_copy()
        return host if part.is_whole else part.part_of(as_elements(host))

    def peek(self) -> object:
        """The memory of a single block as it lies, else the gathered elements."""
        found = self.parts[0].block.present if len(self.parts) == 1 else None
        return self.stored() if found is None else found

    def device_bytes(self, device_type: str) -> tuple[Hashable, int] | None:
        """See `Binding`: of all parts, where the first is on the device."""
        first = self.parts[0]
        present = first.block.present
        if present is None or present.device.type != device_type:
            return None
        return (id(first.block), first.first), self.stored_bytes

    def regions(self) -> list[Region]:
        """The memory of all parts."""
        return [part.region() for part in self.parts]

    def values(self, channel: int = 0, channels: int | None = None) -> Tensor:
        """The numbers of ``channels`` channels from ``channel`` on, float32 ``[n, channels, H, W]``.

        Numbers of one float32 run share the images' memory: do not write to them.
        """
        stored = self.stored()
        if channels is not None and channels != self.extent.channels:
            stored = stored[:, channel : channel + channels]
        return decode(stored, self.channel_format)

    def write(self, stored: Tensor, target: Target, *, is_shared: bool) -> None:
        """Store elements; whole results become the memory of a block that has none yet.

        ``is_shared`` says that they may be somebody else's memory too; else they belong to the images from now on.
        """
        extent, parts = self.shape.extent, self.parts
        expected = (extent.images, target.channels, target.height, target.width)
        if stored.shape != expected:
            raise MPSArgumentError("Stack.write", "values", f"must be shaped {expected}", tuple(stored.shape))
        covers, first = target.covers(extent), 0
        for part in parts:
            piece = stored if len(parts) == 1 else stored[first : first + part.count]
            first += part.count
            if covers and part.is_whole and not part.block.is_allocated:
                part.block.adopt(piece.clone() if is_shared else piece)
            else:
                room = part.tensor()
                is_same = is_shared and meet(piece, room)  # a part may be moved within an image
                (room if covers else target.of(room)).copy_(piece.clone() if is_same else piece)

    def take(self, value: Tensor | None, *, is_shared: bool) -> None:
        """Store the elements of all images; nothing where nothing was computed."""
        if value is not None:
            self.write(value, Target.all_of(self.extent), is_shared=is_shared)

    def overlaps(self, other: View[Any]) -> bool:
        """Whether both hold at least one element of the same memory."""
        if not isinstance(other, Stack):
            return super().overlaps(other)
        if len(self.parts) == 1 == len(other.parts):
            mine, theirs = self.parts[0].block, other.parts[0].block
            if mine is not theirs and not (mine.is_shared and theirs.is_shared):
                return False
        return any(mine.overlaps(theirs) for mine in self.parts for theirs in other.parts)
