"""What a normalization of images leaves for its gradient: statistics, and room for the gradients of each image."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from openmps.checks import Shown
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.resources import MPSStateResourceList, Resource, Slot
from openmps.core.state.state import MPSState
from openmps.kernels.group_normalization.parameters import GammaAndBeta, Settings
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region
from openmps.runtime.binding import MemoryBinding, RowPart
from openmps.types import MTLResourceOptions, MTLStorageMode

_BYTES = 4
_GAMMA, _BETA = range(2)
_OPTIONS = {
    MTLStorageMode.SHARED: MTLResourceOptions.STORAGE_MODE_SHARED,
    MTLStorageMode.PRIVATE: MTLResourceOptions.STORAGE_MODE_PRIVATE,
}


@dataclass(slots=True)
class _Row(Slot):
    """The numbers of one image in the buffer of a whole batch."""

    block: Slot = field(default_factory=Slot)
    index: int = 0

    def _make(self, device: MTLDevice, command_buffer: CommandBuffer | None) -> Resource:
        block = self.block.get(device, command_buffer)
        assert isinstance(block, MTLBuffer)
        numbers = block.memory(torch.uint8, self.index * self.size, self.size)
        return MTLBuffer(device, self.size, _OPTIONS[block.storage_mode], storage=numbers)


class ImageNormalizationState(MPSNNGradientState):
    """The base of the states of instance and group normalization: one an image, gradients apart for each image.

    The states of a batch share two buffers with a row an image. A state of an image object with several images holds
    the sums over them.
    """

    gamma = Shown[MTLBuffer](
        "numbers.gamma.buffer",
        "The scales in use, float32, one a feature channel: the forward kernel's own buffer, not a copy.",
    )
    beta = Shown[MTLBuffer](
        "numbers.beta.buffer",
        "The shifts in use, float32, one a feature channel: the forward kernel's own buffer, not a copy.",
    )

    def __init__(self, device: MTLDevice, kernel: MPSCNNKernel, numbers: GammaAndBeta, settings: Settings) -> None:
        super().__init__(device)
        self._kernel = kernel
        self._channels = numbers.channels
        self._numbers: GammaAndBeta | None = numbers
        self._settings = settings
        self._images = 1
        self._index: int | None = None
        self._rows: list[_Row] = []
        self.stand_for(1)

    def stand_for(self, images: int) -> None:
        """Make room for the gradients of a batch, of which `member` gives the states; for those who extend."""
        self._images = images
        size = _BYTES * self._channels * images
        self._slots = MPSStateResourceList(buffer_sizes=[size, size]).slots()

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch."""
        state = super().member(index)
        assert isinstance(state, ImageNormalizationState)
        size = _BYTES * self._channels
        rows = [_Row(size=size, block=slot, index=index) for slot in self._slots]
        self._rows += rows
        state._slots = list[Slot](rows)
        state._numbers = None
        state._index = index
        return state

    def release(self) -> None:
        """Give back what a temporary state holds, when its last read has run."""
        super().release()
        for row in self._rows:
            row.resource = None

    # --- what users see ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The forward kernel's groups and epsilon at its encode, or when the state was made; for those who extend."""
        record = self.record
        return self._settings if record is None or record.parameters is None else record.parameters

    @property
    def numbers(self) -> GammaAndBeta:
        """Gamma and beta of the kernel that was encoded last, or that made the state; for those who extend."""
        if self._numbers is None:
            assert isinstance(self._whole, ImageNormalizationState)
            return self._whole.numbers
        return self._numbers

    def use(self, numbers: GammaAndBeta) -> None:
        """A forward encode with these numbers fills the state in; for the kernels."""
        self._numbers = numbers

    @property
    def gradient_for_gamma(self) -> MTLBuffer:
        """dL/dgamma of this image, float32, one a feature channel, filled in by the gradient kernel.

        Zero when the forward kernel has run; each gradient encode adds to it. Of a temporary state it is private to
        the command buffer, and gone after the last read.
        """
        return self._buffer(_GAMMA)

    @property
    def gradient_for_beta(self) -> MTLBuffer:
        """dL/dbeta of this image; see `gradient_for_gamma`."""
        return self._buffer(_BETA)

    def _buffer(self, index: int) -> MTLBuffer:
        buffer = self.resource_at_index(index)
        assert isinstance(buffer, MTLBuffer)
        return buffer

    # --- for the kernels ----------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> tuple[Slot, Slot]:
        """Where the gradients of gamma and beta lie, those of the whole batch with them."""
        gamma, beta = (slot.block if isinstance(slot, _Row) else slot for slot in self._slots)
        return gamma, beta

    @property
    def rows(self) -> range:
        """The rows of `blocks` that are this state's."""
        return range(self._images) if self._index is None else range(self._index, self._index + 1)


class _Run(NamedTuple):
    """Neighbouring rows of two blocks, for as many images that follow one another."""

    blocks: tuple[Slot, Slot]
    rows: range
    lives_on: CommandBuffer | None


def _runs(states: Sequence[MPSState]) -> list[_Run]:
    """The rows of some states, neighbours together."""
    runs: list[_Run] = []
    for state in states:
        assert isinstance(state, ImageNormalizationState)
        blocks, rows = state.blocks, state.rows
        if runs and runs[-1].blocks[0] is blocks[0] and runs[-1].rows.stop == rows.start:
            rows = range(runs.pop().rows.start, rows.stop)
        runs.append(_Run(blocks, rows, state.lives_on))
    return runs


class Rows(MemoryBinding):
    """Neighbouring rows of a buffer, an image each."""

    __slots__ = ("buffer", "channels", "rows")

    def __init__(self, buffer: Resource, rows: range, channels: int) -> None:
        assert isinstance(buffer, MTLBuffer)
        self.buffer = buffer
        self.rows = rows
        self.channels = channels

    def memories(self) -> tuple[MTLBuffer]:
        """The memory that it reads."""
        return (self.buffer,)

    def view_key(self) -> Hashable:
        """Which part of it."""
        return self.rows, self.channels

    def rebind(self, memories: Sequence[MTLBuffer]) -> Rows:
        """The same of another buffer."""
        return Rows(memories[0], self.rows, self.channels)

    @property
    def row_part(self) -> RowPart:
        """See `MemoryBinding`."""
        return RowPart(self.rows.start * self.channels, (len(self.rows), self.channels))

    def value(self) -> Tensor:
        """The numbers, ``[images, channels]``, sharing the buffer's memory."""
        return self.buffer.memory(torch.float32).view(-1, self.channels)[self.rows.start : self.rows.stop]

    def regions(self) -> tuple[Region]:
        """The bytes of the rows."""
        size = _BYTES * self.channels
        return (self.buffer.region(size * self.rows.start, size * len(self.rows)),)


@dataclass(slots=True, eq=False)
class Added(MemoryBinding):
    """Gradients of images, added to the rows of their states; one row takes the sum of all."""

    adds: ClassVar[bool] = True
    parts: list[Rows]

    def memories(self) -> tuple[MTLBuffer, ...]:
        """The memory that it writes."""
        return tuple([part.buffer for part in self.parts])

    def view_key(self) -> Hashable:
        """Which parts of it."""
        return tuple([part.view_key() for part in self.parts])

    def rebind(self, memories: Sequence[MTLBuffer]) -> Added:
        """The same of other buffers."""
        return Added([part.rebind((buffer,)) for part, buffer in zip(self.parts, memories, strict=True)])

    def regions(self) -> list[Region]:
        """The rows of all parts."""
        return [region for part in self.parts for region in part.regions()]

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Add the gradients of each image to its row."""
        if sum(len(part.rows) for part in self.parts) == 1:
            value = value.sum(0, keepdim=True)
        first = 0
        for part in self.parts:
            part.value().add_(value[first : first + len(part.rows)])
            first += len(part.rows)


def adder(states: MPSStateBatch, name: str, channels: int, device: MTLDevice) -> Added:
    """Where the gradients for gamma or beta, of the images that ``states`` stand for, go."""
    listed = [states.shared] if states.shared is not None else list(states)
    index = ("gamma", "beta").index(name)
    return Added([Rows(run.blocks[index].get(device, run.lives_on), run.rows, channels) for run in _runs(listed)])


def filled_rows(states: MPSStateBatch, channels: int) -> list[Rows]:
    """The gradients that ``states`` hold already."""
    return [
        Rows(slot.resource, run.rows, channels)
        for run in _runs(states.counted())
        for slot in run.blocks
        if isinstance(slot.resource, MTLBuffer) and slot.resource.is_allocated
    ]
