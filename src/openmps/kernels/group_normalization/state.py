"""What a normalization of images leaves for its gradient: statistics, and room for the gradients of each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.resources import MPSStateResourceList, Resource, Slot
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.metal.memory import MTLBuffer
from openmps.types import MTLResourceOptions, MTLStorageMode

if TYPE_CHECKING:
    from openmps.kernels.group_normalization.base import ImageNormalization
    from openmps.kernels.group_normalization.parameters import GammaAndBeta
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_BYTES = 4
_GAMMA, _BETA = range(2)
_OPTIONS = {
    MTLStorageMode.SHARED: MTLResourceOptions.STORAGE_MODE_SHARED,
    MTLStorageMode.PRIVATE: MTLResourceOptions.STORAGE_MODE_PRIVATE,
}


class Settings(NamedTuple):
    """What a gradient kernel must know of the forward kernel besides geometry."""

    numbers: GammaAndBeta
    groups: int
    epsilon: float


@dataclass(slots=True)
class _Row(Slot):
    """The numbers of one image in the buffer of a whole batch."""

    block: Slot = field(default_factory=Slot)
    index: int = 0

    def _make(self, device: MTLDevice, command_buffer: CommandBuffer | None) -> Resource:
        block = self.block.get(device, command_buffer)
        assert isinstance(block, MTLBuffer)
        numbers = block.tensor(torch.uint8, self.index * self.size, self.size)
        return MTLBuffer(device, self.size, _OPTIONS[block.storage_mode], storage=numbers)


class ImageNormalizationState(MPSNNGradientState):
    """The base of the states of instance and group normalization: one an image, gradients apart for each image.

    The states of a batch share two buffers with a row an image. A state of an image object with several images holds
    the sums over them.
    """

    def __init__(self, device: MTLDevice, kernel: ImageNormalization) -> None:
        super().__init__(device)
        self._kernel = kernel
        self._settings = kernel.settings
        self._images = 1
        self._index: int | None = None
        self._rows: list[_Row] = []
        self.stand_for(1)

    def stand_for(self, images: int) -> None:
        """Make room for the gradients of a batch, of which `member` gives the states; for those who extend."""
        self._images = images
        size = _BYTES * self._settings.numbers.channels * images
        self._slots = MPSStateResourceList(buffer_sizes=[size, size]).slots()

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch."""
        state = super().member(index)
        assert isinstance(state, ImageNormalizationState)
        size = _BYTES * self._settings.numbers.channels
        rows = [_Row(size=size, block=slot, index=index) for slot in self._slots]
        self._rows += rows
        state._slots = list[Slot](rows)
        state._index = index
        return state

    def drop_contents(self) -> None:
        """Give back what a temporary state holds, when its last read has run."""
        super().drop_contents()
        for row in self._rows:
            row.resource = None

    # --- what users see ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The forward kernel's parameters at its encode, or when the state was made; for those who extend."""
        record = self.record
        return self._settings if record is None or record.parameters is None else record.parameters

    @property
    def gamma(self) -> MTLBuffer:
        """The scales in use, float32, one a feature channel: the forward kernel's own buffer, not a copy."""
        return self.settings.numbers.gamma_buffer

    @property
    def beta(self) -> MTLBuffer:
        """The shifts in use, float32, one a feature channel: the forward kernel's own buffer, not a copy."""
        return self.settings.numbers.beta_buffer

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


def _part(buffer: MTLBuffer, rows: range, channels: int) -> Tensor:
    return buffer.tensor(torch.float32).view(-1, channels)[rows.start : rows.stop]


def adder(states: MPSStateBatch, device: MTLDevice) -> Callable[..., None]:
    """Have the gradients of the images that ``states`` stand for added to them: the places now, the numbers later."""
    listed = [states.shared] if states.shared is not None else list(states)
    places = [([slot.get(device, run.lives_on) for slot in run.blocks], run.rows) for run in _runs(listed)]
    images = sum(len(rows) for _, rows in places)

    def add(*gradients: Tensor) -> None:
        if images == 1:
            gradients = tuple(each.sum(0, keepdim=True) for each in gradients)
        first = 0
        for buffers, rows in places:
            for buffer, gradient in zip(buffers, gradients, strict=True):
                assert isinstance(buffer, MTLBuffer)
                _part(buffer, rows, gradient.shape[1]).add_(gradient[first : first + len(rows)])
            first += len(rows)

    return add


def clearer(states: MPSStateBatch, channels: int) -> Callable[[], None]:
    """Have the gradients that ``states`` hold set to zero."""
    places = [
        (slot.resource, run.rows)
        for run in _runs(states.counted())
        for slot in run.blocks
        if isinstance(slot.resource, MTLBuffer)
    ]

    def clear() -> None:
        for buffer, rows in places:
            if buffer.is_allocated:
                _part(buffer, rows, channels).zero_()

    return clear
