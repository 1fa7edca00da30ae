"""MPSCNNBinaryKernel: kernels with two source images (MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Generic, overload

from openmps.checks import MaybeNone
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import channel_count, channel_offset, image_edge_mode, image_offset, single
from openmps.core.kernel.configuration import FARTHEST, SourceProperty
from openmps.core.kernel.encode import ImageKernel
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch, StateT
from openmps.core.state.state import MPSState
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.types import MPSImageEdgeMode, MPSOffset

_stride = partial(integer, most=FARTHEST, rule=f"must be an integer, at least 0 and at most {FARTHEST}")


class MPSCNNBinaryKernel(ImageKernel, Generic[StateT]):
    """A kernel with two source images, primary and secondary (MPSCNNKernel.h, macOS 10.13).

    Each source has its own offset, edge mode, channel slice, window, stride and dilation; clip rectangle, destination
    channel offset, padding policy and allocator are shared.
    """

    _source_arguments = ("primary_image", "secondary_image")

    primary_offset = SourceProperty[MPSOffset](
        0, "offset", image_offset, "Primary source position of the window of the first result pixel."
    )
    secondary_offset = SourceProperty[MPSOffset](
        1, "offset", image_offset, "Secondary source position of the window of the first result pixel."
    )
    primary_edge_mode = SourceProperty[MPSImageEdgeMode](
        0, "edge_mode", image_edge_mode, "What reads outside the primary source give: ZERO (default) or CLAMP."
    )
    secondary_edge_mode = SourceProperty[MPSImageEdgeMode](
        1, "edge_mode", image_edge_mode, "What reads outside the secondary source give: ZERO (default) or CLAMP."
    )
    primary_source_feature_channel_offset = SourceProperty[int](
        0, "channel_offset", channel_offset, "The first primary channel read, a multiple of 4."
    )
    secondary_source_feature_channel_offset = SourceProperty[int](
        1, "channel_offset", channel_offset, "The first secondary channel read, a multiple of 4."
    )
    primary_source_feature_channel_max_count = SourceProperty[int](
        0, "channel_max_count", channel_count, "Upper bound of the number of primary channels read."
    )
    secondary_source_feature_channel_max_count = SourceProperty[int](
        1, "channel_max_count", channel_count, "Upper bound of the number of secondary channels read."
    )
    primary_stride_in_pixels_x = SourceProperty[int](
        0, "stride_x", _stride, "Primary pixels from one result column to the next; 0 reads one column for all."
    )
    primary_stride_in_pixels_y = SourceProperty[int](
        0, "stride_y", _stride, "Primary pixels from one result row to the next; 0 reads one row for all."
    )
    secondary_stride_in_pixels_x = SourceProperty[int](
        1, "stride_x", _stride, "Secondary pixels from one result column to the next; 0 reads one column for all."
    )
    secondary_stride_in_pixels_y = SourceProperty[int](
        1, "stride_y", _stride, "Secondary pixels from one result row to the next; 0 reads one row for all."
    )
    primary_kernel_width = SourceProperty[int](0, "kernel_width", None, "Columns of the primary window.")
    primary_kernel_height = SourceProperty[int](0, "kernel_height", None, "Rows of the primary window.")
    secondary_kernel_width = SourceProperty[int](1, "kernel_width", None, "Columns of the secondary window.")
    secondary_kernel_height = SourceProperty[int](1, "kernel_height", None, "Rows of the secondary window.")
    primary_dilation_rate_x = SourceProperty[int](0, "dilation_x", None, "Tap distance in the primary, along a row.")
    primary_dilation_rate_y = SourceProperty[int](0, "dilation_y", None, "Tap distance in the primary, along a column.")
    secondary_dilation_rate_x = SourceProperty[int](
        1, "dilation_x", None, "Tap distance in the secondary, along a row."
    )
    secondary_dilation_rate_y = SourceProperty[int](
        1, "dilation_y", None, "Tap distance in the secondary, along a column."
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, sources=2)

    @overload
    def encode(
        self, command_buffer: CommandBuffer, primary_image: MPSImage, secondary_image: MPSImage,
        destination_image: MPSImage | None = None, destination_state: MPSState | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, primary_image: MPSImage, secondary_image: MPSImage,
        destination_image: None = None, destination_state: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, StateT | MaybeNone]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, StateT | MaybeNone]:
        """Record the kernel for two image objects; see `MPSCNNKernel.encode`."""
        sources = (primary_image, secondary_image)
        return self._single(
            command_buffer, sources, destination_image, destination_state, destination_state_is_temporary
        )

    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, primary_images: Sequence[MPSImage], secondary_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, primary_images: Sequence[MPSImage], secondary_images: Sequence[MPSImage],
        destination_images: None = None, destination_states: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch[StateT] | MaybeNone]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[MPSImage],
        secondary_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch[StateT] | MaybeNone]:
        """Record the kernel for two batches of images, as one operation; otherwise as `encode`."""
        sources = (primary_images, secondary_images)
        return self._batched(
            command_buffer, sources, destination_images, destination_states, destination_state_is_temporary
        )

    def encoding_storage_size(
        self,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> int:
        """Bytes that an encode needs besides its images: 0, the engine takes what it needs (macOS 11)."""
        single(self.name, "primary_image", primary_image)
        single(self.name, "secondary_image", secondary_image)
        return 0

    def batch_encoding_storage_size(
        self,
        primary_image: Sequence[MPSImage],
        secondary_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> int:
        """As `encoding_storage_size`, for a batch."""
        as_batch(self.name, "primary_image", primary_image)
        as_batch(self.name, "secondary_image", secondary_image)
        return 0

    def result_state(
        self,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> StateT | MaybeNone:
        """A state for an encode of these images with the properties as they stand; None if the kernel leaves none."""
        return self._single_states(None, (primary_image, secondary_image), None, destination_image)

    def result_state_batch(
        self,
        primary_image: Sequence[MPSImage],
        secondary_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch[StateT] | MaybeNone:
        """The states for an encode of two batches; see `result_state`."""
        return self._batch_states(None, (primary_image, secondary_image), destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> StateT | MaybeNone:
        """As `result_state`, living on ``command_buffer``."""
        return self._single_states(command_buffer, (primary_image, secondary_image), None, destination_image)

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        primary_image: Sequence[MPSImage],
        secondary_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch[StateT] | MaybeNone:
        """As `result_state_batch`, living on ``command_buffer``."""
        return self._batch_states(command_buffer, (primary_image, secondary_image), destination_image)
