"""MPSCNNBatchNormalizationStatistics (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from openmps.core.image.batch import as_batch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.checks import Images
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.kernels.batch_normalization.arguments import (
    are_images,
    check_state,
    check_usable,
    refuse,
    refuse_arguments,
)
from openmps.kernels.batch_normalization.state import MPSCNNBatchNormalizationState
from openmps.ops.batch_normalization import batch_moments

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer

_USE = "Use encode_batch(command_buffer, source_images, batch_normalization_state)"


class MPSCNNBatchNormalizationStatistics(MPSCNNKernel):
    """Mean and variance of a batch, into its state (MPSCNNBatchNormalization.h, macOS 10.13.4).

    ``mean = sum X / M``, ``variance = sum (X - mean)^2 / M`` over all M pixels of all images, for each feature channel.
    A batch may come in pieces of any size: encode each before the state is used. All pixels count, whatever `offset`
    and `clip_rect` say; the channels are those from `source_feature_channel_offset` on, as many as the state's.
    """

    @property
    def is_state_modified(self) -> bool:
        """True: the statistics are added to the state."""
        return True

    def append_batch_barrier(self) -> bool:
        """True: the statistics are complete when the whole batch went through."""
        return True

    def encode(self, *arguments: Any, **options: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raise: statistics are those of a batch."""
        refuse(self.name, "encode", _USE)

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        batch_normalization_state: MPSCNNBatchNormalizationState | Sequence[MPSState] | None = None,
        **unavailable: object,
    ) -> None:
        """Record that the statistics of a batch, or of a piece of one, go into a state.

        They join those before, unless the state was used since: then a new batch starts. A temporary state keeps its
        read count.
        """
        refuse_arguments(self.name, unavailable, _USE)
        if batch_normalization_state is None or are_images(batch_normalization_state):
            refuse(self.name, "encode_batch without batch_normalization_state", _USE)
        images = as_batch(self.name, "source_images", source_images)
        state = check_state(self.name, batch_normalization_state)
        self._check_operands(command_buffer, (images,), None, MPSStateBatch([state] * len(images)), None)
        stack = images.stack()
        channels = self._channels_of(state, stack.extent.channels)
        first = self.source_feature_channel_offset
        keep = state.add_statistics(len(images), stack.extent.images * stack.extent.height * stack.extent.width)
        command_buffer.record(self.name, lambda: keep(batch_moments(stack.values(first, channels))))
        images.count_read()

    def _channels_of(self, state: MPSCNNBatchNormalizationState, channels: int) -> int:
        available, needed = self._channels_read(0, channels), state.number_of_feature_channels
        if available < needed:
            first = self.source_feature_channel_offset
            rule = f"must have the state's {needed} feature channel(s) from channel {first} on"
            raise MPSArgumentError(self.name, "source_images", rule, f"{available} to be read")
        return needed

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)
