"""The part of a destination that results are written to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from openmps.core.image.storage import Block, Stack, Target
from openmps.metal.pending import Region
from openmps.runtime.binding import MemoryBinding


class _PixelsFields(NamedTuple):
    stack: Stack
    target: Target


class Pixels(_PixelsFields, MemoryBinding):
    """A rectangle and a run of channels of images."""

    __slots__ = ()

    def memories(self) -> tuple[Block, ...]:
        """The memory that it writes."""
        return self.stack.memories()

    def view_key(self) -> Hashable:
        """Which part of it."""
        return self.target, self.stack.view_key()

    @property
    def is_whole(self) -> bool:
        """Whether it is all of one block."""
        return self.stack.is_whole and self.target.covers(self.stack.extent)

    def rebind(self, memories: Sequence[Block]) -> Pixels:
        """The same part of other memory."""
        return Pixels(self.stack.rebind(memories), self.target)

    def take(self, value: Tensor | None, *, is_shared: bool) -> None:
        """Write the elements; nothing where nothing was computed."""
        if value is not None:
            self.stack.write(value, self.target, is_shared=is_shared)

    def room(self) -> Tensor | None:
        """The elements of images that lie together, if there are any yet."""
        parts, target = self.stack.parts, self.target
        present = parts[0].block.present if len(parts) == 1 else None
        if present is None:
            return None
        elements = parts[0].part_of(present)
        return elements if target.covers(self.stack.extent) else target.of(elements)

    def regions(self) -> list[Region]:
        """The images, whatever part of them is written."""
        return self.stack.regions()
