"""MPSCNNKernel: kernels with one source image (MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import (
    channel_count,
    channel_offset,
    image_edge_mode,
    image_offset,
    single,
    states_of,
)
from openmps.core.kernel.encode import ImageKernel
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.types import MPSImageEdgeMode, MPSOffset

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSCNNKernel(ImageKernel):
    """A kernel with one source image (MPSCNNKernel.h, macOS 10.13).

    Result pixel ``clip_rect.origin + (i, j)`` belongs to the window around source pixel
    ``offset + stride * (i, j)``.
    Encodes that return an image let the padding policy set `offset`; encodes into a given destination use it as it is.
    """

    _channel_step = 4
    """What the first source channel read is a multiple of."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, sources=1)

    @property
    def offset(self) -> MPSOffset:
        """Source position, in pixels, of the window of the first result pixel; z is the first source image."""
        return self._sources[0].offset

    @offset.setter
    def offset(self, value: MPSOffset) -> None:
        self._sources[0].offset = image_offset(self.name, "offset", value)

    @property
    def edge_mode(self) -> MPSImageEdgeMode:
        """What reads outside the source give: ZERO (default) or CLAMP."""
        return self._sources[0].edge_mode

    @edge_mode.setter
    def edge_mode(self, value: MPSImageEdgeMode) -> None:
        self._sources[0].edge_mode = image_edge_mode(self.name, "edge_mode", value)

    @property
    def source_feature_channel_offset(self) -> int:
        """The first source channel read: a multiple of 4, any channel with `MPSNNSlice` and `MPSNNPad`. Default 0."""
        return self._sources[0].channel_offset

    @source_feature_channel_offset.setter
    def source_feature_channel_offset(self, value: int) -> None:
        checked = channel_offset(self.name, "source_feature_channel_offset", value, self._channel_step)
        self._sources[0].channel_offset = checked

    @property
    def source_feature_channel_max_count(self) -> int:
        """Upper bound of the number of source channels read. Default: no bound."""
        return self._sources[0].channel_max_count

    @source_feature_channel_max_count.setter
    def source_feature_channel_max_count(self, value: int) -> None:
        self._sources[0].channel_max_count = channel_count(self.name, "source_feature_channel_max_count", value)

    @property
    def kernel_width(self) -> int:
        """Columns of the window; 1 for kernels without one."""
        return self._sources[0].kernel_width

    @property
    def kernel_height(self) -> int:
        """Rows of the window; 1 for kernels without one."""
        return self._sources[0].kernel_height

    @property
    def stride_in_pixels_x(self) -> int:
        """Source pixels from one result column's window to the next."""
        return self._sources[0].stride_x

    @property
    def stride_in_pixels_y(self) -> int:
        """Source pixels from one result row's window to the next."""
        return self._sources[0].stride_y

    @property
    def dilation_rate_x(self) -> int:
        """Source pixels from one tap of the window to the next, along a row."""
        return self._sources[0].dilation_x

    @property
    def dilation_rate_y(self) -> int:
        """Source pixels from one tap of the window to the next, along a column."""
        return self._sources[0].dilation_y

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None, destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: None = None,
        destination_state: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the kernel for one image object.

        Without ``destination_image`` the padding policy sizes the result, the allocator makes it, and it is returned.
        With it, the clip rectangle of it is filled with the properties as they stand. ``destination_state`` is
        overwritten; ``destination_state_is_temporary`` makes one and returns ``(image, state)``.
        """
        if destination_image is not None:
            single(self.name, "destination_image", destination_image)
        destination, states = self._run(
            command_buffer,
            (single(self.name, "source_image", source_image),),
            destination_image,
            destination_states=states_of(self.name, "destination_state", destination_state),
            make_state=destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImage)
        if destination_state_is_temporary is None:
            return destination
        return destination, states[0] if states is not None else None

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
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the kernel for a batch of images, as one operation; otherwise as `encode`."""
        given = None
        if destination_images is not None:
            given = as_batch(self.name, "destination_images", destination_images)
        destination, states = self._run(
            command_buffer,
            (as_batch(self.name, "source_images", source_images),),
            given,
            destination_states=states_of(self.name, "destination_states", destination_states),
            make_state=destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImageBatch)
        return destination if destination_state_is_temporary is None else (destination, states)

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
    ) -> MPSState | None:
        """A state for an encode of these images with the properties as they stand; None if the kernel leaves none."""
        states = self._result_states(
            None,
            (single(self.name, "source_image", source_image),),
            states_of(self.name, "source_states", source_states),
            None if destination_image is None else single(self.name, "destination_image", destination_image),
        )
        return states[0] if states is not None else None

    def result_state_batch(
        self,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """The states for an encode of a batch; see `result_state`."""
        return self._batch_states(None, source_image, destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> MPSState | None:
        """As `result_state`, living on ``command_buffer``."""
        states = self._result_states(
            command_buffer,
            (single(self.name, "source_image", source_image),),
            states_of(self.name, "source_states", source_states),
            None if destination_image is None else single(self.name, "destination_image", destination_image),
        )
        return states[0] if states is not None else None

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """As `result_state_batch`, living on ``command_buffer``."""
        return self._batch_states(command_buffer, source_image, destination_image)

    def _batch_states(
        self,
        command_buffer: CommandBuffer | None,
        source_image: Sequence[MPSImage],
        destination_image: Sequence[MPSImage] | None,
    ) -> MPSStateBatch | None:
        destination = None
        if destination_image is not None:
            destination = as_batch(self.name, "destination_image", destination_image)
        return self._result_states(
            command_buffer, (as_batch(self.name, "source_image", source_image),), None, destination
        )
