"""The images of a batch that lie in one block, made when they are asked for, and counted together."""

from __future__ import annotations

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Block, Storage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.lifetime import TemporaryCounts, check_device, check_lifetime, check_reads
from openmps.locks import new_lock
from openmps.metal.device import CommandBuffer, MTLDevice

_making = new_lock()  # for an assignment only, as those of storage.py


class Members:
    """The images of one block, made when they are asked for. Each is always the same object."""

    __slots__ = ("_descriptor", "_made", "device", "storage")

    def __init__(self, storage: Storage, descriptor: MPSImageDescriptor, device: MTLDevice) -> None:
        self.storage = storage
        self._descriptor = descriptor
        self.device = device
        self._made: dict[int, MPSImage] | None = None

    def __len__(self) -> int:
        return self.storage.count

    def image(self, index: int) -> MPSImage:
        """The image at ``index`` of the block."""
        made = self._made
        if made is None:
            # Two threads that ask at once get the same object.
            with _making:
                made = self._made = {} if self._made is None else self._made
        image = made.get(index)
        return made.setdefault(index, self._make(index)) if image is None else image

    def _make(self, index: int) -> MPSImage:
        return MPSImage.member(self.device, self._descriptor, self.storage.narrowed(index, 1))


class TemporaryMembers(Members):
    """The temporary images of one block. They are counted apart; a span of all has one counter."""

    __slots__ = ("_command_buffer", "_counts")

    def __init__(self, block: Block, descriptor: MPSImageDescriptor, command_buffer: CommandBuffer) -> None:
        extent = block.extent
        whole = Storage(block, 0, extent.images, 0, extent.channels)
        super().__init__(whole, descriptor, command_buffer.device)
        self._command_buffer = command_buffer
        self._counts = TemporaryCounts(command_buffer, block, self.storage.count)

    def _make(self, index: int) -> MPSImage:
        storage = self.storage.narrowed(index, 1)
        return MPSTemporaryImage.temporary_member(self._descriptor, storage, self._command_buffer, self._counts, index)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer, span: range) -> None:
        """Raise unless an encode on ``command_buffer`` may use the images of ``span``."""
        if self.device is not command_buffer.device:
            check_device(who, argument, self.device, command_buffer.device)
        if self._command_buffer.lifetime is not command_buffer.lifetime:
            check_lifetime(who, argument, self._command_buffer, command_buffer)
        if not self._counts.fewest(self._some(span)):
            check_reads(who, argument, 0, f"a batch of {len(span)} temporary images")

    def fewest(self, span: range) -> int | None:
        """The smallest read count of ``span``."""
        return self._counts.fewest(self._some(span))

    def count_read(self, amount: int, span: range) -> None:
        """Take reads from each image of ``span``."""
        self._counts.take("MPSImageBatch", amount, self._some(span))

    def add_reads(self, amount: int, span: range) -> None:
        """Change the read count of each image of ``span`` unless it is 0."""
        self._counts.add(amount, self._some(span))

    def _some(self, span: range) -> range | None:
        return None if len(span) == self.storage.count else span
