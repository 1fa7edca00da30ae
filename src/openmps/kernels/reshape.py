"""Reshaping images, and its gradient (MPSNNReshape.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.reshape import reshape

if TYPE_CHECKING:
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_SHAPE = ("reshaped_width", "reshaped_height", "reshaped_feature_channels")


class MPSNNReshape(MPSCNNKernel):
    """The same numbers in another width, height and number of channels (MPSNNReshape.h, macOS 10.13.4).

    Numbers are counted along rows, columns, channels, the channel fastest, in the source and in the result; each image
    for itself. All pixels of the source are read, of the channels that the source feature channel properties choose:
    `offset` and `edge_mode` have no effect. They fill the clip rectangle of the destination with as many channels as it
    takes, which must be a whole number and fit; further channels are left as they are.

    The shape of a result is that of the destination given, or ``reshaped_width``, ``reshaped_height`` and
    ``reshaped_feature_channels`` of the encode (macOS 11), or what a custom padding policy says; else the source's.
    """

    _gradient_state_class = MPSNNGradientState

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._reshaped: tuple[int, int, int] | None = None

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        descriptor = super()._sized_by_policy(images)
        if self._reshaped is not None:
            count = descriptor.width * descriptor.height * descriptor.feature_channels
            width, height, channels = self._reshaped
            if width * height * channels != count:
                argument = ", ".join(_SHAPE)
                rule = f"must multiply to {count}, the numbers of a source image"
                raise MPSArgumentError(self.name, argument, rule, f"{width}, {height}, {channels}")
            descriptor.width, descriptor.height, descriptor.feature_channels = self._reshaped
        return descriptor

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        (source,) = records
        count = source.extent.width * source.extent.height * source.channels
        channels, rest = divmod(count, width * height)
        first = self._destination_channel_offset
        if rest or not channels:
            rule = f"must take the {count} numbers of the source in a whole number of feature channels"
            got = f"{width}x{height} pixels (width x height)"
            raise MPSArgumentError(self.name, self._destination_argument, rule, got, "Choose another width or height")
        if channels > destination.channels - first:
            written = f"{channels} written from channel {first} on"
            rule = f"must have at least {first + channels} feature channels ({written})"
            raise MPSArgumentError(self.name, self._destination_argument, rule, destination.channels)
        origin = self._clip_rect.origin
        return Target(origin.x, origin.y, width, height, first, channels)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        size = (target.channels, target.height, target.width)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return reshape(values[0], size), None

        return operation

    @contextmanager
    def _shaped(self, destination: object, *shape: int | None) -> Generator[None]:
        """The shape asked for, while an encode sizes its result."""
        given = [name for name, value in zip(_SHAPE, shape, strict=True) if value is not None]
        if given and (destination is not None or len(given) < len(_SHAPE)):
            rule = "must be given all three, and without a destination"
            raise MPSTypeError(self.name, ", ".join(_SHAPE), rule, ", ".join(given))
        numbers = tuple(_size(self.name, name, value) for name, value in zip(_SHAPE, shape, strict=True) if given)
        self._reshaped = numbers if len(numbers) == 3 else None
        try:
            yield
        finally:
            self._reshaped = None

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None, destination_state_is_temporary: None = None, *,
        reshaped_width: int | None = None, reshaped_height: int | None = None,
        reshaped_feature_channels: int | None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage, destination_image: None = None,
        destination_state: None = None, *, destination_state_is_temporary: bool,
        reshaped_width: int | None = None, reshaped_height: int | None = None,
        reshaped_feature_channels: int | None = None,
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
        *,
        reshaped_width: int | None = None,
        reshaped_height: int | None = None,
        reshaped_feature_channels: int | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the reshape of one image object; see `MPSCNNKernel.encode`.

        The three ``reshaped_…`` arguments are the shape of a result that is made and returned (macOS 11).
        """
        arguments: Any = (source_image, destination_image, destination_state, destination_state_is_temporary)
        with self._shaped(destination_image, reshaped_width, reshaped_height, reshaped_feature_channels):
            return super().encode(command_buffer, *arguments)

    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None, *, reshaped_width: int | None = None,
        reshaped_height: int | None = None, reshaped_feature_channels: int | None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_images: None = None,
        destination_states: None = None, *, destination_state_is_temporary: bool, reshaped_width: int | None = None,
        reshaped_height: int | None = None, reshaped_feature_channels: int | None = None,
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
        *,
        reshaped_width: int | None = None,
        reshaped_height: int | None = None,
        reshaped_feature_channels: int | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the reshape of a batch of images, as one operation; otherwise as `encode`."""
        arguments: Any = (source_images, destination_images, destination_states, destination_state_is_temporary)
        with self._shaped(destination_images, reshaped_width, reshaped_height, reshaped_feature_channels):
            return super().encode_batch(command_buffer, *arguments)


def _size(who: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MPSArgumentError(who, argument, "must be an integer of at least 1", repr(value))
    return value


class MPSNNReshapeGradient(MPSCNNGradientKernel):
    """dX = G in the shape of the forward source (MPSNNReshape.h, macOS 10.14.1).

    Without a state, set which channels of the gradient and of the source are meant and, where the forward kernel wrote
    a part of its destination, pass that part alone.
    """

    _forward_kernels = (MPSNNReshape,)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Nothing to ask of the channels alone: `_gradient` compares all numbers."""

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        gradient, source = sources
        size = (source.channels, source.extent.height, source.extent.width)
        rows, columns = geometry.source.result
        count = size[0] * size[1] * size[2]
        if rows * columns * gradient.channels != count:
            raise MPSArgumentError(
                self.name,
                self._source_arguments[0],
                f"must have as many numbers as {self._source_arguments[1]}, {count}",
                f"{columns}x{rows}x{gradient.channels} (width x height x channels)",
            )

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return reshape(gradient, size), None

        return differentiate
