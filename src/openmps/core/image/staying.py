"""Images that programs name again and again, as those of a data set: replays read them in place, and copy none."""

from __future__ import annotations

from typing import Any

from openmps.core.image.storage import Stack, Storage
from openmps.core.operand import View


class StayingStack(Stack):
    """Images that are told by which they are, not by how they lie, as long as they are on the device."""

    __slots__ = ()

    remembers_identity = True

    @property
    def is_in_place(self) -> bool:
        """See `MemoryBinding`."""
        return all(map(_is_on_device, self.parts))

    def device_bytes(self, device_type: str) -> None:
        """See `Binding`: nothing is copied."""


def staying(view: View[Any]) -> View[Any]:
    """The same of memory that stays; images that the host alone holds as yet are copied as ever."""
    if isinstance(view, Stack) and all(map(_is_on_device, view.parts)):
        return StayingStack(view.parts, view.shape)
    return view


def _is_on_device(part: Storage) -> bool:
    present = part.block.present
    return present is not None and present.device.type == part.block.device.type
