"""The images of a batch that lies in one block: made into objects when they are asked for, counted together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Block, Storage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.lifetime import check_device, check_lifetime, check_reads, temporary_counts

if TYPE_CHECKING:
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class Members:
    """The images of one block. A ``span`` is a run of them; each image is always the same object."""

    def __init__(self, block: Block, descriptor: MPSImageDescriptor, device: MTLDevice) -> None:
        self.storage = Storage.of(block)
        self._descriptor = descriptor
        self._device = device
        self._made: dict[int, MPSImage] = {}

    def __len__(self) -> int:
        return self.storage.count

    def image(self, index: int) -> MPSImage:
        """The image at ``index`` of the block."""
        image = self._made.get(index)
        # Two threads that ask at once get the same object.
        return self._made.setdefault(index, self._make(index)) if image is None else image

    def _make(self, index: int) -> MPSImage:
        return MPSImage.member(self._device, self._descriptor, self.storage.narrowed(index, 1))

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer, span: range) -> None:
        """Raise unless an encode on ``command_buffer`` may use the images of ``span``."""
        check_device(who, argument, self._device, command_buffer.device)

    def count_read(self, amount: int, span: range) -> None:
        """Take reads from each image of ``span``; ordinary images have no count."""

    def add_reads(self, amount: int, span: range) -> None:
        """Change the read count of each image of ``span`` unless it is 0; ordinary images have none."""


class TemporaryMembers(Members):
    """The temporary images of one block. They are counted apart; a span of all pays for one counter."""

    def __init__(self, block: Block, descriptor: MPSImageDescriptor, command_buffer: CommandBuffer) -> None:
        super().__init__(block, descriptor, command_buffer.device)
        self._command_buffer = command_buffer
        self._counts = temporary_counts(command_buffer, block, len(self))

    def _make(self, index: int) -> MPSImage:
        storage = self.storage.narrowed(index, 1)
        return MPSTemporaryImage.temporary_member(self._descriptor, storage, self._command_buffer, self._counts, index)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer, span: range) -> None:
        """Raise unless an encode on ``command_buffer`` may use the images of ``span``."""
        super().check_usable(who, argument, command_buffer, span)
        check_lifetime(who, argument, self._command_buffer, command_buffer)
        check_reads(who, argument, self._counts.fewest(self._some(span)), f"a batch of {len(span)} temporary images")

    def count_read(self, amount: int, span: range) -> None:
        """Take reads from each image of ``span``."""
        self._counts.take("MPSImageBatch", amount, self._some(span))

    def add_reads(self, amount: int, span: range) -> None:
        """Change the read count of each image of ``span`` unless it is 0."""
        self._counts.add(amount, self._some(span))

    def _some(self, span: range) -> range | None:
        return None if len(span) == len(self) else span
