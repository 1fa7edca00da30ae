"""MPSCNNGradientKernel: kernels that run a forward kernel's derivative (MPSCNNKernel.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.arguments import pixel_distance, single, states_of
from openmps.core.kernel.base import ULONG_MAX
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.encode import Operation, Plan
from openmps.core.kernel.property import KernelProperty
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion, MTLSize

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

GradientOperation = Callable[[Tensor, Tensor, Any], tuple[Tensor | None, Any]]
"""Incoming gradient, forward source and what the forward saved, to the source's whole gradient and what else came."""


_PROPERTIES = {
    "sources": "offsets, sizes or channels of the source",
    "target": "clip rectangles",
    "parameters": "parameters",
}
"""What the states of one gradient encode have in common, and how a message says it."""


@dataclass(frozen=True, slots=True)
class GradientGeometry:
    """The two placements of a gradient encode; both are the forward window in the automatic path.

    ``source`` says which pixels of the forward source each gradient pixel's window read, ``data`` where the data
    gradient of each gradient pixel lands.
    """

    source: Window
    data: Window
    edge_mode: MPSImageEdgeMode


class MPSCNNGradientKernel(MPSCNNBinaryKernel):
    """The derivative of a forward kernel (MPSCNNKernel.h, macOS 10.13.4).

    The primary image is the gradient with respect to the forward result, the secondary image the forward source, and
    the result the gradient with respect to the forward source. Encodes that return an image take every property from
    the gradient state. With a destination given the properties hold as they stand: `primary_offset` is the first
    gradient pixel used, `secondary_offset` the forward kernel's offset, and `kernel_offset_x`, `kernel_offset_y` place
    the data gradient: source pixel u is the centre ``u + primary_offset * stride + kernel_offset`` of the gradient
    after zero-insertion, so the adjoint of a forward offset o has ``kernel_offset = -o``, plus 1 if the dilated kernel
    size is even.
    """

    _source_arguments = ("source_gradient", "source_image")
    _destination_argument = "destination_gradient"
    _forward_kernels: tuple[type, ...] = ()
    """The kernels whose states this one takes; any if empty."""
    _strides = range(1, 2)
    """Strides that the forward kernel may have: 1 where it has no window."""

    kernel_offset_x = KernelProperty(
        0,
        pixel_distance,
        "Offset added after zero-insertion by the stride: ``primary_offset.x * stride + kernel_offset_x``.",
    )
    kernel_offset_y = KernelProperty(
        0,
        pixel_distance,
        "Offset added after zero-insertion by the stride: ``primary_offset.y * stride + kernel_offset_y``.",
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._source_size = MTLSize(ULONG_MAX, ULONG_MAX, ULONG_MAX)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        """The mathematics: the gradient of the whole forward source (the channels read of it)."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[1]

    # --- sizes and placement ----------------------------------------------------------------------------------------

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        gradient, source = images
        return MPSImageDescriptor(
            gradient.feature_channel_format,
            source.width,
            source.height,
            source.feature_channels,
            source.number_of_images,
        )

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        records = [self._record_of(state) for state in source_states if isinstance(state, MPSNNGradientState)]
        if not records:
            return
        first = records[0]
        different = [each for each in _PROPERTIES if any(getattr(one, each) != getattr(first, each) for one in records)]
        if different:
            raise MPSArgumentError(
                self.name,
                "gradient_states",
                "must come from forward encodes with the same properties",
                f"different {' and '.join(_PROPERTIES[each] for each in different)}",
                "Encode their images one by one",
            )
        self._check_record(first, source_images)
        self._configure(first)
        extent = first.sources[self._forward_source()].extent
        descriptor.width, descriptor.height, descriptor.feature_channels = extent.width, extent.height, extent.channels
        if not first.is_batch:
            descriptor.number_of_images = extent.images

    def _record_of(self, state: MPSNNGradientState) -> ForwardRecord:
        if state.record is None:
            raise MPSArgumentError(
                self.name,
                "gradient_state",
                "must come from a forward encode",
                repr(state),
                "Pass it as destination_state to the forward kernel first",
            )
        return state.record

    def _forward_extents(self, record: ForwardRecord) -> tuple[Extent, Extent]:
        """The shapes of the gradient and of the image that the forward encode calls for."""
        return record.destination, record.sources[self._forward_source()].extent

    def _check_record(self, record: ForwardRecord, source_images: Sequence[MPSImage]) -> None:
        for argument, image, extent in zip(
            self._source_arguments, source_images, self._forward_extents(record), strict=True
        ):
            found = (image.width, image.height, image.feature_channels)
            if found != (extent.width, extent.height, extent.channels):
                raise MPSArgumentError(
                    self.name,
                    argument,
                    f"must be {extent.width}x{extent.height}x{extent.channels} (width x height x channels), "
                    "as in the forward encode",
                    f"{found[0]}x{found[1]}x{found[2]}",
                )

    def _configure(self, record: ForwardRecord) -> None:
        """Take every property from the forward encode."""
        forward, target = record.sources[self._forward_source()], record.target
        primary, secondary = self._sources
        primary.offset = MPSOffset(target.x, target.y, record.first_destination_image)
        primary.channel_offset, primary.channel_max_count = target.channel, target.channels
        secondary.offset = MPSOffset(forward.window.x.offset, forward.window.y.offset, forward.first_image)
        secondary.channel_offset, secondary.channel_max_count = forward.channel, forward.channels
        secondary.edge_mode = forward.edge_mode
        for source in self._sources:
            source.kernel_width, source.kernel_height = forward.window.x.size, forward.window.y.size
            source.stride_x, source.stride_y = forward.window.x.stride, forward.window.y.stride
            source.dilation_x, source.dilation_y = forward.window.x.dilation, forward.window.y.dilation
        self.kernel_offset_x = _mirrored(forward.window.x)
        self.kernel_offset_y = _mirrored(forward.window.y)
        self._source_size = MTLSize(target.width, target.height, ULONG_MAX)
        self._destination_channel_offset = forward.channel
        everything = MPSRectNoClip.size
        self._clip_rect = MTLRegion(
            MTLOrigin(0, 0, forward.first_image), MTLSize(everything.width, everything.height, record.images)
        )

    def _forward_source(self) -> int:
        """Which source of the forward kernel this kernel differentiates."""
        return 0

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        """Destination pixel ``clip origin + t`` holds the gradient of source pixel t; there are no others."""
        clip, source = self._clip_rect.origin, sources[1]
        return Extent(
            min(destination.width, clip.x + source.width),
            min(destination.height, clip.y + source.height),
            destination.channels,
            destination.images,
        )

    def plan(
        self,
        sources: tuple[Extent, ...],
        destination: Extent,
        states: MPSStateBatch | None = None,
        *,
        is_batch: bool = False,
    ) -> Plan:
        """As for every kernel; what the forward encode saved must fit the gradient."""
        plan = super().plan(sources, destination, states, is_batch=is_batch)
        if states is not None and self._needs_saved(states):
            self._check_saved(plan, states)
        return plan

    def _needs_saved(self, states: MPSStateBatch) -> bool:
        """Whether the mathematics meets the gradient, number by number, with what the forward encode saved."""
        return False

    def _check_saved(self, plan: Plan, states: MPSStateBatch) -> None:
        gradient = plan.sources[0]
        expected = (*self._used_size(gradient.extent), gradient.channels)
        kept = [state for state in states.counted() if isinstance(state, MPSNNGradientState)]
        targets = [self._record_of(state).target for state in kept]
        sizes = {(target.width, target.height, target.channels) for target in targets}
        images = sum(self._record_of(state).images if state.image_index is None else 1 for state in kept)
        if sizes != {expected} or images != plan.images:
            raise MPSArgumentError(
                self.name,
                "gradient_state",
                f"must hold {plan.images} image(s) of {expected} (width, height, channels), as the gradient",
                f"{images} image(s) of {sorted(sizes)}",
                "Pass the state of the forward encode of the same images",
            )

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        self._check_channels(sources)
        self._check_strides()
        gradient, source = sources[0].extent, sources[1].extent
        width, height = self._used_size(gradient)
        geometry = GradientGeometry(
            self._sources[1].window(source, width, height),
            self._data_window(self._differentiated(source, target), width, height),
            self._sources[1].edge_mode,
        )
        return self._bind(self._gradient(geometry, sources, states), geometry, target)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Raise unless the channels read of gradient and image belong together: here, as many."""
        gradient, source = sources
        if gradient.channels != source.channels:
            raise MPSArgumentError(
                self.name,
                self._source_arguments[0],
                f"must have as many feature channels read as {self._source_arguments[1]}, {source.channels}",
                gradient.channels,
                "Set the source feature channel offsets and maximum counts, or pass the gradient of the result",
            )

    def _check_strides(self) -> None:
        for axis in ("x", "y"):
            stride: int = getattr(self._sources[1], f"stride_{axis}")
            if stride not in self._strides:
                rule = f"must be {_range(self._strides)}, as in the forward kernel"
                raise MPSArgumentError(self.name, f"secondary_stride_in_pixels_{axis}", rule, stride)

    def _differentiated(self, secondary: Extent, target: Target) -> Extent:
        """The shape of the image whose gradient is computed."""
        return secondary

    def _used_size(self, gradient: Extent) -> tuple[int, int]:
        """Columns and rows of the gradient that are used."""
        width = self._used(gradient.width, self.primary_offset.x, self._source_size.width, "width")
        height = self._used(gradient.height, self.primary_offset.y, self._source_size.height, "height")
        return width, height

    def _used(self, length: int, first: int, size: int, axis: str) -> int:
        used = min(length - first, size)
        if first < 0 or used < 1:
            raise MPSArgumentError(
                self.name,
                "primary_offset",
                f"must lie within the gradient's {axis}, {length}",
                first,
            )
        return used

    def _data_window(self, source: Extent, width: int, height: int) -> Window:
        properties = self._sources[1]
        x = Axis(source.width, width, properties.kernel_width, properties.stride_x, properties.dilation_x)
        y = Axis(source.height, height, properties.kernel_height, properties.stride_y, properties.dilation_y)
        return Window(
            x=_with_offset(x, _even(x) - self.kernel_offset_x),
            y=_with_offset(y, _even(y) - self.kernel_offset_y),
        )

    def _bind(self, differentiate: GradientOperation, geometry: GradientGeometry, target: Target) -> Operation:
        """Cut the gradient pixels used out of the primary image, and the pixels written out of the result."""
        first_x, first_y = self.primary_offset.x, self.primary_offset.y
        last_x, last_y = first_x + geometry.source.x.result, first_y + geometry.source.y.result
        height, width = target.height, target.width

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor | None, Any]:
            gradient, source = values
            if (first_x, first_y, last_x, last_y) != (0, 0, gradient.shape[3], gradient.shape[2]):
                gradient = gradient[:, :, first_y:last_y, first_x:last_x]
            result, produced = differentiate(gradient, source, saved)
            if result is not None and tuple(result.shape[2:]) != (height, width):
                result = result[:, :, :height, :width]
            return result, produced

        return operation

    def _check_operands(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        super()._check_operands(command_buffer, sources, destination, source_states, destination_states)
        if destination is None and source_states is None:
            raise MPSTypeError(
                self.name,
                "gradient_state",
                "is needed: an encode that returns an image takes every property from it",
                None,
                "Pass the state that the forward encode left, or set the properties and pass destination_gradient",
            )

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        argument = "gradient_states" if isinstance(images, MPSImageBatch) else "gradient_state"
        for state in states.counted():
            if not isinstance(state, MPSNNGradientState):
                raise MPSTypeError(self.name, argument, "must be an MPSNNGradientState", type(state).__name__)
            made_by = None if state.record is None else state.record.made_by
            if made_by is not None and self._forward_kernels and not issubclass(made_by, self._forward_kernels):
                names = " or ".join(kind.__name__ for kind in self._forward_kernels)
                raise MPSArgumentError(
                    self.name, argument, f"must come from an encode of {names}", f"one from {made_by.__name__}"
                )
        check_states(self.name, argument, states, images, command_buffer)

    # --- encode -----------------------------------------------------------------------------------------------------

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradient: MPSImage,
        source_image: MPSImage,
        gradient_state: MPSState | None = None,
        destination_gradient: MPSImage | None = None,
    ) -> MPSImage:
        """Record the derivative for one image object.

        ``source_gradient`` is the gradient of the forward result, ``source_image`` the forward source and
        ``gradient_state`` what the forward encode left. Without ``destination_gradient`` the properties are taken from
        the state and the result is sized, made and returned; with it they hold as they stand.
        """
        if destination_gradient is not None:
            single(self.name, "destination_gradient", destination_gradient)
        destination, _ = self._run(
            command_buffer,
            (single(self.name, "source_gradient", source_gradient), single(self.name, "source_image", source_image)),
            destination_gradient,
            source_states=states_of(self.name, "gradient_state", gradient_state),
        )
        assert isinstance(destination, MPSImage)
        return destination

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[MPSImage],
        source_images: Sequence[MPSImage],
        gradient_states: Sequence[MPSState] | None = None,
        destination_gradients: Sequence[MPSImage] | None = None,
    ) -> MPSImageBatch:
        """Record the derivative for a batch of images, as one operation; otherwise as `encode`."""
        given = None
        if destination_gradients is not None:
            given = as_batch(self.name, "destination_gradients", destination_gradients)
        destination, _ = self._run(
            command_buffer,
            (
                as_batch(self.name, "source_gradients", source_gradients),
                as_batch(self.name, "source_images", source_images),
            ),
            given,
            source_states=states_of(self.name, "gradient_states", gradient_states),
        )
        assert isinstance(destination, MPSImageBatch)
        return destination


def _range(allowed: range) -> str:
    least, most = allowed[0], allowed[-1]
    return f"at least {least}" if most > ULONG_MAX // 4 else " or ".join(str(each) for each in allowed)


def _even(axis: Axis) -> int:
    return 1 - axis.extent % 2


def _mirrored(axis: Axis) -> int:
    """The kernel offset that makes the adjoint of a forward window."""
    return _even(axis) - axis.offset


def _with_offset(axis: Axis, offset: int) -> Axis:
    return Axis(axis.source, axis.result, axis.size, axis.stride, axis.dilation, offset)
