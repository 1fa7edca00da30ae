"""MPSCNNKernel: kernels with one source image (MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, overload

from openmps.checks import MaybeNone
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import channel_count, channel_offset, image_edge_mode, image_offset, single
from openmps.core.kernel.configuration import SourceProperty
from openmps.core.kernel.encode import ImageKernel
from openmps.core.state.batch import MPSStateBatch, StateT
from openmps.core.state.state import MPSState
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.types import MPSImageEdgeMode, MPSOffset


class OneSource(ImageKernel):
    """The properties of every kernel with one source image."""

    offset = SourceProperty[MPSOffset](
        0,
        "offset",
        image_offset,
        "Source position, in pixels, that the first result pixel stands for; z is the first source image. Default 0.",
    )
    edge_mode = SourceProperty[MPSImageEdgeMode](
        0,
        "edge_mode",
        image_edge_mode,
        "What reads outside the source give: ZERO, the default unless the class says otherwise, or CLAMP.",
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, sources=1)


class MPSCNNKernel(OneSource, Generic[StateT]):
    """A kernel with one source image (MPSCNNKernel.h, macOS 10.13).

    Result pixel ``clip_rect.origin + (i, j)`` belongs to the window around source pixel
    ``offset + stride * (i, j)``.
    Encodes that return an image let the padding policy set `offset`; encodes into a given destination use it as it is.
    """

    source_feature_channel_offset = SourceProperty[int](
        0, "channel_offset", channel_offset, "The first source channel read, a multiple of 4. Default 0."
    )
    source_feature_channel_max_count = SourceProperty[int](
        0, "channel_max_count", channel_count, "Upper bound of the number of source channels read. Default: no bound."
    )
    kernel_width = SourceProperty[int](0, "kernel_width", None, "Columns of the window; 1 for kernels without one.")
    kernel_height = SourceProperty[int](0, "kernel_height", None, "Rows of the window; 1 for kernels without one.")
    stride_in_pixels_x = SourceProperty[int](
        0, "stride_x", None, "Source pixels from one result column's window to the next."
    )
    stride_in_pixels_y = SourceProperty[int](
        0, "stride_y", None, "Source pixels from one result row's window to the next."
    )
    dilation_rate_x = SourceProperty[int](
        0, "dilation_x", None, "Source pixels from one tap of the window to the next, along a row."
    )
    dilation_rate_y = SourceProperty[int](
        0, "dilation_y", None, "Source pixels from one tap of the window to the next, along a column."
    )

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None, destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: None = None,
        destination_state: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, StateT | MaybeNone]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, StateT | MaybeNone]:
        """Record the kernel for one image object.

        Without ``destination_image`` the padding policy sizes the result, the allocator makes it, and it is returned.
        With it, the clip rectangle of it is filled with the properties as they stand. ``destination_state`` is
        overwritten; ``destination_state_is_temporary`` makes one and returns ``(image, state)``.
        """
        return self._single(
            command_buffer, (source_image,), destination_image, destination_state, destination_state_is_temporary
        )

    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_images: None = None,
        destination_states: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch[StateT] | MaybeNone]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch[StateT] | MaybeNone]:
        """Record the kernel for a batch of images, as one operation; otherwise as `encode`."""
        return self._batched(
            command_buffer, (source_images,), destination_images, destination_states, destination_state_is_temporary
        )

    def encoding_storage_size(
        self,
        source_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> int:
        """Bytes that an encode needs besides its images: 0, the engine takes what it needs (macOS 11)."""
        single(self.name, "source_image", source_image)
        return 0

    def batch_encoding_storage_size(
        self,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> int:
        """As `encoding_storage_size`, for a batch."""
        as_batch(self.name, "source_image", source_image)
        return 0

    def result_state(
        self,
        source_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> StateT | MaybeNone:
        """A state for an encode of these images with the properties as they stand; None if the kernel leaves none."""
        return self._single_states(None, (source_image,), source_states, destination_image)

    def result_state_batch(
        self,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch[StateT] | MaybeNone:
        """The states for an encode of a batch; see `result_state`."""
        return self._batch_states(None, (source_image,), destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> StateT | MaybeNone:
        """As `result_state`, living on ``command_buffer``."""
        return self._single_states(command_buffer, (source_image,), source_states, destination_image)

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch[StateT] | MaybeNone:
        """As `result_state_batch`, living on ``command_buffer``."""
        return self._batch_states(command_buffer, (source_image,), destination_image)
