"""MPSCNNMultiaryKernel: kernels with any number of source images (MPSCNNKernel.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.arguments import channel_count, channel_offset, image_edge_mode, image_offset
from openmps.core.kernel.configuration import FARTHEST, Configuration, SourceProperties, at_least
from openmps.core.kernel.encode import ImageKernel
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.types import MPSImageEdgeMode, MPSOffset

MOST_SOURCES = 65536
"""More sources than any command has images for: each takes memory as soon as the kernel is made."""
_positive = at_least(1, FARTHEST)


class MPSCNNMultiaryKernel(ImageKernel):
    """A kernel with ``source_count`` source images (MPSCNNKernel.h, macOS 10.15).

    Each source has its own offset, edge mode, channel slice, window, stride and dilation, read and set by its index;
    clip rectangle, destination channel offset, padding policy and allocator are shared. Encodes that return an image
    size it by source 0, and let the padding policy place each source's window by its own size.
    """

    def __init__(self, device: MTLDevice, source_count: int) -> None:
        rule = f"must be an integer from 1 to {MOST_SOURCES}"
        super().__init__(device, integer(type(self).__name__, "source_count", source_count, 1, MOST_SOURCES, rule=rule))
        self._source_arguments = tuple(f"source_images[{index}]" for index in range(source_count))

    def _draft(self, configuration: Configuration) -> Self:
        draft = super()._draft(configuration)
        draft._source_arguments = self._source_arguments
        return draft

    @property
    def source_count(self) -> int:
        """The number of source images."""
        return len(self._sources)

    def _source(self, index: int) -> SourceProperties:
        last = self.source_count - 1
        return self._sources[integer(self.name, "index", index, 0, last, rule=f"must be an integer from 0 to {last}")]

    def _set(self, index: int, **fields: Any) -> None:
        self._source(index)
        self._change_source(index, **fields)

    # --- properties of one source -------------------------------------------------------------------------------------

    def offset_at_index(self, index: int) -> MPSOffset:
        """Source position of the window of the first result pixel; z is the first source image. Default 0, 0, 0."""
        return self._source(index).offset

    def set_offset(self, offset: MPSOffset, index: int) -> None:
        """Set `offset_at_index`."""
        self._set(index, offset=image_offset(self.name, "offset", offset))

    def source_feature_channel_offset_at_index(self, index: int) -> int:
        """The first channel read, a multiple of 4. Default 0."""
        return self._source(index).channel_offset

    def set_source_feature_channel_offset(self, offset: int, index: int) -> None:
        """Set `source_feature_channel_offset_at_index`."""
        self._set(index, channel_offset=channel_offset(self.name, "offset", offset))

    def source_feature_channel_max_count_at_index(self, index: int) -> int:
        """Upper bound of the number of channels read. Default: no bound."""
        return self._source(index).channel_max_count

    def set_source_feature_channel_max_count(self, count: int, index: int) -> None:
        """Set `source_feature_channel_max_count_at_index`."""
        self._set(index, channel_max_count=channel_count(self.name, "count", count))

    def edge_mode_at_index(self, index: int) -> MPSImageEdgeMode:
        """What reads outside the source give: ZERO (default) or CLAMP."""
        return self._source(index).edge_mode

    def set_edge_mode(self, edge_mode: MPSImageEdgeMode, index: int) -> None:
        """Set `edge_mode_at_index`."""
        self._set(index, edge_mode=image_edge_mode(self.name, "edge_mode", edge_mode))

    def kernel_width_at_index(self, index: int) -> int:
        """Columns of the window. Default 1: no window."""
        return self._source(index).kernel_width

    def set_kernel_width(self, width: int, index: int) -> None:
        """Set `kernel_width_at_index`."""
        self._set(index, kernel_width=_positive(self.name, "width", width))

    def kernel_height_at_index(self, index: int) -> int:
        """Rows of the window. Default 1: no window."""
        return self._source(index).kernel_height

    def set_kernel_height(self, height: int, index: int) -> None:
        """Set `kernel_height_at_index`."""
        self._set(index, kernel_height=_positive(self.name, "height", height))

    def stride_in_pixels_x_at_index(self, index: int) -> int:
        """Source pixels from one result column's window to the next. Default 1."""
        return self._source(index).stride_x

    def set_stride_in_pixels_x(self, stride: int, index: int) -> None:
        """Set `stride_in_pixels_x_at_index`."""
        self._set(index, stride_x=_positive(self.name, "stride", stride))

    def stride_in_pixels_y_at_index(self, index: int) -> int:
        """Source pixels from one result row's window to the next. Default 1."""
        return self._source(index).stride_y

    def set_stride_in_pixels_y(self, stride: int, index: int) -> None:
        """Set `stride_in_pixels_y_at_index`."""
        self._set(index, stride_y=_positive(self.name, "stride", stride))

    def dilation_rate_x_at_index(self, index: int) -> int:
        """Source pixels from one tap of the window to the next, along a row. Default 1."""
        return self._source(index).dilation_x

    def set_dilation_rate_x(self, dilation_rate: int, index: int) -> None:
        """Set `dilation_rate_x_at_index`."""
        self._set(index, dilation_x=_positive(self.name, "dilation_rate", dilation_rate))

    def dilation_rate_y_at_index(self, index: int) -> int:
        """Source pixels from one tap of the window to the next, along a column. Default 1."""
        return self._source(index).dilation_y

    def set_dilation_rate_y(self, dilation_rate: int, index: int) -> None:
        """Set `dilation_rate_y_at_index`."""
        self._set(index, dilation_y=_positive(self.name, "dilation_rate", dilation_rate))

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
        self._check_count(source_images, "images")
        return self._single(
            command_buffer, source_images, destination_image, destination_state, destination_state_is_temporary
        )

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
        self._check_count(source_images, "batches")
        return self._batched(
            command_buffer, source_images, destination_images, destination_states, destination_state_is_temporary
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
        self._check_count(source_images, "images")
        return self._single_states(None, source_images, source_states, destination_image)

    def result_state_batch(
        self,
        source_images: Sequence[Sequence[MPSImage]],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """The states for an encode of these batches; see `result_state`."""
        self._check_count(source_images, "batches")
        return self._batch_states(None, source_images, destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> MPSState | None:
        """As `result_state`, living on ``command_buffer``."""
        self._check_count(source_images, "images")
        return self._single_states(command_buffer, source_images, source_states, destination_image)

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Sequence[MPSImage]],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """As `result_state_batch`, living on ``command_buffer``."""
        self._check_count(source_images, "batches")
        return self._batch_states(command_buffer, source_images, destination_image)

    # --- planning -----------------------------------------------------------------------------------------------------

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        extent = super()._sized(shapes)
        for index in range(1, self.source_count):
            geometry = self._geometry(index, shapes[index].extent)
            self._change_source(index, offset=self._sources[index].placed(geometry.offset_x, geometry.offset_y).offset)
        return extent
