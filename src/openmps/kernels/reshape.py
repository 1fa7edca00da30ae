"""Reshaping images, and its gradient (MPSNNReshape.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.configuration import at_least
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.ops.layout.reshape import Reshape
from openmps.ops.op import Value


class _Reshaped(NamedTuple):
    """The shape that an encode asks for; its fields are named as the arguments."""

    reshaped_width: int
    reshaped_height: int
    reshaped_feature_channels: int


_size = at_least(1)


class MPSNNReshape(MPSCNNKernel, leaves=MPSNNGradientState):
    """The same numbers in another width, height and number of channels (MPSNNReshape.h, macOS 10.13.4).

    Numbers are counted along rows, columns, channels, the channel fastest, in the source and in the result; each image
    for itself. All pixels of the source are read, of the channels that the source feature channel properties choose:
    `offset` and `edge_mode` have no effect. They fill the clip rectangle of the destination with as many channels as it
    takes, which must be a whole number and fit; further channels are left as they are.

    The shape of a result is that of the destination given, or ``reshaped_width``, ``reshaped_height`` and
    ``reshaped_feature_channels`` of the encode (macOS 11), or what a custom padding policy says; else the source's.
    """

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: _Reshaped | None) -> Extent:
        if given is None:
            return extent
        count = extent.width * extent.height * extent.channels
        width, height, channels = given
        if width * height * channels != count:
            rule = f"must multiply to {count}, the numbers of a source image"
            raise MPSArgumentError(self.name, ", ".join(given._fields), rule, f"{width}, {height}, {channels}")
        return Extent(width, height, channels, extent.images)

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        (source,) = records
        count = source.extent.width * source.extent.height * source.channels
        channels, rest = divmod(count, width * height)
        first = self.destination_feature_channel_offset
        if rest or not channels:
            rule = f"must take the {count} numbers of the source in a whole number of feature channels"
            got = f"{width}x{height} pixels (width x height)"
            raise MPSArgumentError(self.name, self._destination_argument, rule, got, "Choose another width or height")
        if channels > destination.channels - first:
            written = f"{channels} written from channel {first} on"
            rule = f"must have at least {first + channels} feature channels ({written})"
            raise MPSArgumentError(self.name, self._destination_argument, rule, destination.channels)
        origin = self.clip_rect.origin
        return Target(origin.x, origin.y, width, height, first, channels)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        size = at.target.channels, at.target.height, at.target.width
        return Reshape(size, self.conventions["reshape_order"] == "planes")(images[0])

    def _asked(self, destination: object, *shape: int | None) -> _Reshaped | None:
        """The shape that an encode asks for."""
        named = zip(_Reshaped._fields, shape, strict=True)
        given = {name: value for name, value in named if value is not None}
        if given and (destination is not None or len(given) < len(shape)):
            rule = "must be given all three, and without a destination"
            raise MPSTypeError(self.name, ", ".join(_Reshaped._fields), rule, ", ".join(given))
        return _Reshaped(*(_size(self.name, name, value) for name, value in given.items())) if given else None

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
        asked = self._asked(destination_image, reshaped_width, reshaped_height, reshaped_feature_channels)
        state, is_temporary = destination_state, destination_state_is_temporary
        return self._single(command_buffer, (source_image,), destination_image, state, is_temporary, asked=asked)

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
        asked = self._asked(destination_images, reshaped_width, reshaped_height, reshaped_feature_channels)
        states, is_temporary = destination_states, destination_state_is_temporary
        return self._batched(command_buffer, (source_images,), destination_images, states, is_temporary, asked=asked)


class MPSNNReshapeGradient(MPSCNNGradientKernel, of=MPSNNReshape):
    """dX = G in the shape of the forward source (MPSNNReshape.h, macOS 10.14.1).

    Without a state, set which channels of the gradient and of the source are meant and, where the forward kernel wrote
    a part of its destination, pass that part alone.
    """

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Nothing to ask of the channels alone: `_differentiate` compares all numbers."""

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        read, whole = at.sources
        size = (whole.channels, whole.extent.height, whole.extent.width)
        rows, columns = at.window.result
        count = size[0] * size[1] * size[2]
        if rows * columns * read.channels != count:
            rule = f"must have as many numbers as {self._source_arguments[1]}, {count}"
            got = f"{columns}x{rows}x{read.channels} (width x height x channels)"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, got)
        return Reshape(size, self.conventions["reshape_order"] == "planes")(gradient)
