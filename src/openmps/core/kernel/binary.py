"""MPSCNNBinaryKernel: kernels with two source images (MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

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
from openmps.core.kernel.base import SourceProperties
from openmps.core.kernel.encode import ImageKernel
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.types import MPSImageEdgeMode, MPSOffset

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

T = TypeVar("T")


def _stride(who: str, argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MPSArgumentError(who, argument, "must be an integer, at least 0", repr(value))
    return value


class _SourceProperty(Generic[T]):
    """A property of one of the two sources, kept in its `SourceProperties`; read-only without a check."""

    def __init__(self, source: int, field: str, check: Callable[[str, str, T], T] | None, doc: str) -> None:
        self._source = source
        self._field = field
        self._check = check
        self._name = field
        self.is_writable = check is not None
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, kernel: None, owner: type) -> Self: ...
    @overload
    def __get__(self, kernel: MPSCNNBinaryKernel, owner: type) -> T: ...
    def __get__(self, kernel: MPSCNNBinaryKernel | None, owner: type) -> Self | T:
        return self if kernel is None else getattr(kernel.source_properties(self._source), self._field)

    def __set__(self, kernel: MPSCNNBinaryKernel, value: T) -> None:
        if self._check is None:
            raise AttributeError(f"{kernel.name}: {self._name} is read-only")
        setattr(kernel.source_properties(self._source), self._field, self._check(kernel.name, self._name, value))


class MPSCNNBinaryKernel(ImageKernel):
    """A kernel with two source images, primary and secondary (MPSCNNKernel.h, macOS 10.13).

    Each source has its own offset, edge mode, channel slice, window, stride and dilation; clip rectangle, destination
    channel offset, padding policy and allocator are shared.
    """

    _source_arguments = ("primary_image", "secondary_image")

    primary_offset = _SourceProperty[MPSOffset](
        0, "offset", image_offset, "Primary source position of the window of the first result pixel."
    )
    secondary_offset = _SourceProperty[MPSOffset](
        1, "offset", image_offset, "Secondary source position of the window of the first result pixel."
    )
    primary_edge_mode = _SourceProperty[MPSImageEdgeMode](
        0, "edge_mode", image_edge_mode, "What reads outside the primary source give."
    )
    secondary_edge_mode = _SourceProperty[MPSImageEdgeMode](
        1, "edge_mode", image_edge_mode, "What reads outside the secondary source give."
    )
    primary_source_feature_channel_offset = _SourceProperty[int](
        0, "channel_offset", channel_offset, "The first primary channel read, a multiple of 4."
    )
    secondary_source_feature_channel_offset = _SourceProperty[int](
        1, "channel_offset", channel_offset, "The first secondary channel read, a multiple of 4."
    )
    primary_source_feature_channel_max_count = _SourceProperty[int](
        0, "channel_max_count", channel_count, "Upper bound of the number of primary channels read."
    )
    secondary_source_feature_channel_max_count = _SourceProperty[int](
        1, "channel_max_count", channel_count, "Upper bound of the number of secondary channels read."
    )
    primary_stride_in_pixels_x = _SourceProperty[int](
        0, "stride_x", _stride, "Primary pixels from one result column to the next; 0 reads one column for all."
    )
    primary_stride_in_pixels_y = _SourceProperty[int](
        0, "stride_y", _stride, "Primary pixels from one result row to the next; 0 reads one row for all."
    )
    secondary_stride_in_pixels_x = _SourceProperty[int](
        1, "stride_x", _stride, "Secondary pixels from one result column to the next; 0 reads one column for all."
    )
    secondary_stride_in_pixels_y = _SourceProperty[int](
        1, "stride_y", _stride, "Secondary pixels from one result row to the next; 0 reads one row for all."
    )
    primary_kernel_width = _SourceProperty[int](0, "kernel_width", None, "Columns of the primary window.")
    primary_kernel_height = _SourceProperty[int](0, "kernel_height", None, "Rows of the primary window.")
    secondary_kernel_width = _SourceProperty[int](1, "kernel_width", None, "Columns of the secondary window.")
    secondary_kernel_height = _SourceProperty[int](1, "kernel_height", None, "Rows of the secondary window.")
    primary_dilation_rate_x = _SourceProperty[int](0, "dilation_x", None, "Tap distance in the primary, along a row.")
    primary_dilation_rate_y = _SourceProperty[int](
        0, "dilation_y", None, "Tap distance in the primary, along a column."
    )
    secondary_dilation_rate_x = _SourceProperty[int](
        1, "dilation_x", None, "Tap distance in the secondary, along a row."
    )
    secondary_dilation_rate_y = _SourceProperty[int](
        1, "dilation_y", None, "Tap distance in the secondary, along a column."
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, sources=2)

    def source_properties(self, index: int) -> SourceProperties:
        """How the primary (0) or the secondary (1) source is read; for those who extend the framework."""
        return self._sources[index]

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
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the kernel for two image objects; see `MPSCNNKernel.encode`."""
        if destination_image is not None:
            single(self.name, "destination_image", destination_image)
        destination, states = self._run(
            command_buffer,
            (
                single(self.name, "primary_image", primary_image),
                single(self.name, "secondary_image", secondary_image),
            ),
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
        self, command_buffer: CommandBuffer, primary_images: Sequence[MPSImage], secondary_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, primary_images: Sequence[MPSImage], secondary_images: Sequence[MPSImage],
        destination_images: None = None, destination_states: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[MPSImage],
        secondary_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the kernel for two batches of images, as one operation; otherwise as `encode`."""
        given = None
        if destination_images is not None:
            given = as_batch(self.name, "destination_images", destination_images)
        destination, states = self._run(
            command_buffer,
            (
                as_batch(self.name, "primary_images", primary_images),
                as_batch(self.name, "secondary_images", secondary_images),
            ),
            given,
            destination_states=states_of(self.name, "destination_states", destination_states),
            make_state=destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImageBatch)
        return destination if destination_state_is_temporary is None else (destination, states)

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
    ) -> MPSState | None:
        """A state for an encode of these images with the properties as they stand; None if the kernel leaves none."""
        return self._single_state(None, primary_image, secondary_image, destination_image)

    def result_state_batch(
        self,
        primary_image: Sequence[MPSImage],
        secondary_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """The states for an encode of two batches; see `result_state`."""
        return self._batch_states(None, primary_image, secondary_image, destination_image)

    def temporary_result_state(
        self,
        command_buffer: CommandBuffer,
        primary_image: MPSImage,
        secondary_image: MPSImage,
        source_states: Sequence[MPSState] | None = None,
        destination_image: MPSImage | None = None,
    ) -> MPSState | None:
        """As `result_state`, living on ``command_buffer``."""
        return self._single_state(command_buffer, primary_image, secondary_image, destination_image)

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        primary_image: Sequence[MPSImage],
        secondary_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """As `result_state_batch`, living on ``command_buffer``."""
        return self._batch_states(command_buffer, primary_image, secondary_image, destination_image)

    def _single_state(
        self, command_buffer: CommandBuffer | None, primary: MPSImage, secondary: MPSImage, destination: MPSImage | None
    ) -> MPSState | None:
        sources = (single(self.name, "primary_image", primary), single(self.name, "secondary_image", secondary))
        given = None if destination is None else single(self.name, "destination_image", destination)
        states = self._result_states(command_buffer, sources, None, given)
        return states[0] if states is not None else None

    def _batch_states(
        self,
        command_buffer: CommandBuffer | None,
        primary: Sequence[MPSImage],
        secondary: Sequence[MPSImage],
        destination: Sequence[MPSImage] | None,
    ) -> MPSStateBatch | None:
        sources = (as_batch(self.name, "primary_image", primary), as_batch(self.name, "secondary_image", secondary))
        given = None if destination is None else as_batch(self.name, "destination_image", destination)
        return self._result_states(command_buffer, sources, None, given)
