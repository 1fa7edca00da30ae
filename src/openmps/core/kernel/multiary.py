"""MPSCNNMultiaryKernel: kernels with any number of source images (MPSCNNKernel.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import (
    channel_count,
    channel_offset,
    image_edge_mode,
    image_offset,
    single,
    states_of,
)
from openmps.core.kernel.base import SourceProperties
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.property import at_least
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSImageEdgeMode, MPSOffset

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_positive = at_least(1)


class MPSCNNMultiaryKernel(ImageKernel):
    """A kernel with ``source_count`` source images (MPSCNNKernel.h, macOS 10.15).

    Each source has its own offset, edge mode, channel slice, window, stride and dilation, read and set by its index;
    clip rectangle, destination channel offset, padding policy and allocator are shared. Encodes that return an image
    size it by source 0, and let the padding policy place each source's window by its own size.
    """

    def __init__(self, device: MTLDevice, source_count: int) -> None:
        super().__init__(device, _positive(type(self).__name__, "source_count", source_count))
        self._source_arguments = tuple(f"source_images[{index}]" for index in range(source_count))

    @property
    def source_count(self) -> int:
        """The number of source images."""
        return len(self._sources)

    def _source(self, index: int) -> SourceProperties:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.source_count:
            raise MPSArgumentError(
                self.name, "index", f"must be an integer from 0 to {self.source_count - 1}", repr(index)
            )
        return self._sources[index]

    # --- properties of one source -------------------------------------------------------------------------------------

    def offset_at_index(self, index: int) -> MPSOffset:
        """Source position of the window of the first result pixel; z is the first source image. Default 0, 0, 0."""
        return self._source(index).offset

    def set_offset(self, offset: MPSOffset, index: int) -> None:
        """Set `offset_at_index`."""
        self._source(index).offset = image_offset(self.name, "offset", offset)

    def source_feature_channel_offset_at_index(self, index: int) -> int:
        """The first channel read, a multiple of 4. Default 0."""
        return self._source(index).channel_offset

    def set_source_feature_channel_offset(self, offset: int, index: int) -> None:
        """Set `source_feature_channel_offset_at_index`."""
        self._source(index).channel_offset = channel_offset(self.name, "offset", offset)

    def source_feature_channel_max_count_at_index(self, index: int) -> int:
        """Upper bound of the number of channels read. Default: no bound."""
        return self._source(index).channel_max_count

    def set_source_feature_channel_max_count(self, count: int, index: int) -> None:
        """Set `source_feature_channel_max_count_at_index`."""
        self._source(index).channel_max_count = channel_count(self.name, "count", count)

    def edge_mode_at_index(self, index: int) -> MPSImageEdgeMode:
        """What reads outside the source give: ZERO (default) or CLAMP."""
        return self._source(index).edge_mode

    def set_edge_mode(self, edge_mode: MPSImageEdgeMode, index: int) -> None:
        """Set `edge_mode_at_index`."""
        self._source(index).edge_mode = image_edge_mode(self.name, "edge_mode", edge_mode)

    def kernel_width_at_index(self, index: int) -> int:
        """Columns of the window. Default 1: no window."""
        return self._source(index).kernel_width

    def set_kernel_width(self, width: int, index: int) -> None:
        """Set `kernel_width_at_index`."""
        self._source(index).kernel_width = _positive(self.name, "width", width)

    def kernel_height_at_index(self, index: int) -> int:
        """Rows of the window. Default 1: no window."""
        return self._source(index).kernel_height

    def set_kernel_height(self, height: int, index: int) -> None:
        """Set `kernel_height_at_index`."""
        self._source(index).kernel_height = _positive(self.name, "height", height)

    def stride_in_pixels_x_at_index(self, index: int) -> int:
        """Source pixels from one result column's window to the next. Default 1."""
        return self._source(index).stride_x

    def set_stride_in_pixels_x(self, stride: int, index: int) -> None:
        """Set `stride_in_pixels_x_at_index`."""
        self._source(index).stride_x = _positive(self.name, "stride", stride)

    def stride_in_pixels_y_at_index(self, index: int) -> int:
        """Source pixels from one result row's window to the next. Default 1."""
        return self._source(index).stride_y

    def set_stride_in_pixels_y(self, stride: int, index: int) -> None:
        """Set `stride_in_pixels_y_at_index`."""
        self._source(index).stride_y = _positive(self.name, "stride", stride)

    def dilation_rate_x_at_index(self, index: int) -> int:
        """Source pixels from one tap of the window to the next, along a row. Default 1."""
        return self._source(index).dilation_x

    def set_dilation_rate_x(self, dilation_rate: int, index: int) -> None:
        """Set `dilation_rate_x_at_index`."""
        self._source(index).dilation_x = _positive(self.name, "dilation_rate", dilation_rate)

    def dilation_rate_y_at_index(self, index: int) -> int:
        """Source pixels from one tap of the window to the next, along a column. Default 1."""
        return self._source(index).dilation_y

    def set_dilation_rate_y(self, dilation_rate: int, index: int) -> None:
        """Set `dilation_rate_y_at_index`."""
        self._source(index).dilation_y = _positive(self.name, "dilation_rate", dilation_rate)

    # --- encode -------------------------------------------------------------------------------------------------------

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage],
        destination_image: MPSImage | None = None, destination_state: MPSState | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_image: None = None,
        destination_state: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the kernel for one image object of each source; otherwise as `MPSCNNKernel.encode`."""
        if destination_image is not None:
            single(self.name, "destination_image", destination_image)
        destination, states = self._run(
            command_buffer,
            self._singles(source_images),
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
        self, command_buffer: CommandBuffer, source_images: Sequence[Sequence[MPSImage]],
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[Sequence[MPSImage]],
        destination_images: None = None, destination_states: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Sequence[MPSImage]],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the kernel for one batch of each source, as one operation; otherwise as `encode`."""
        given = None
        if destination_images is not None:
            given = as_batch(self.name, "destination_images", destination_images)
        destination, states = self._run(
            command_buffer,
            self._batches(source_images),
            given,
            destination_states=states_of(self.name, "destination_states", destination_states),
            make_state=destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImageBatch)
        return destination if destination_state_is_temporary is None else (destination, states)

    def _singles(self, source_images: Sequence[MPSImage]) -> tuple[MPSImage, ...]:
        self._check_count(source_images, "images")
        return tuple(
            single(self.name, name, each) for name, each in zip(self._source_arguments, source_images, strict=True)
        )

    def _batches(self, source_images: Sequence[Sequence[MPSImage]]) -> tuple[MPSImageBatch, ...]:
        self._check_count(source_images, "batches")
        return tuple(
            as_batch(self.name, name, each) for name, each in zip(self._source_arguments, source_images, strict=True)
        )

    def _check_count(self, source_images: object, what: str) -> None:
        rule = f"must be a sequence of {self.source_count} {what}"
        if isinstance(source_images, MPSImage) or not isinstance(source_images, Sequence):
            raise MPSTypeError(self.name, "source_images", rule, type(source_images).__name__)
        if len(source_images) != self.source_count:
            raise MPSArgumentError(self.name, "source_images", rule, len(source_images))

    # --- result states ------------------------------------------------------------------------------------------------

    def result_state(
        self,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> MPSState | None:
        """A state for an encode of these images with the properties as they stand; None if the kernel leaves none."""
        return self._single_state(None, source_images, source_states, destination_image)

    def result_state_batch(
        self,
        source_images: Sequence[Sequence[MPSImage]],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """The states for an encode of these batches; see `result_state`."""
        return self._batch_states(None, source_images, destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> MPSState | None:
        """As `result_state`, living on ``command_buffer``."""
        return self._single_state(command_buffer, source_images, source_states, destination_image)

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Sequence[MPSImage]],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """As `result_state_batch`, living on ``command_buffer``."""
        return self._batch_states(command_buffer, source_images, destination_image)

    def _single_state(
        self,
        command_buffer: CommandBuffer | None,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None,
        destination_image: MPSImage | None,
    ) -> MPSState | None:
        states = self._result_states(
            command_buffer,
            self._singles(source_images),
            states_of(self.name, "source_states", source_states),
            None if destination_image is None else single(self.name, "destination_image", destination_image),
        )
        return states[0] if states is not None else None

    def _batch_states(
        self,
        command_buffer: CommandBuffer | None,
        source_images: Sequence[Sequence[MPSImage]],
        destination_image: Sequence[MPSImage] | None,
    ) -> MPSStateBatch | None:
        given = None if destination_image is None else as_batch(self.name, "destination_image", destination_image)
        return self._result_states(command_buffer, self._batches(source_images), None, given)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        descriptor = super()._sized_by_policy(images)
        for index in range(1, self.source_count):
            geometry, source = self._geometry(index, images[index]), self._sources[index]
            source.offset = MPSOffset(geometry.offset_x, geometry.offset_y, source.offset.z)
        return descriptor
