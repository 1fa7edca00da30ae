"""MPSCNNGradientKernel: kernels that run a forward kernel's derivative (MPSCNNKernel.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.arguments import pixel_distance, states_of
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, Setting
from openmps.core.kernel.lowering_context import GradientGeometry, GradientLoweringContext, LoweringContext
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import Crop
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Value
from openmps.types import MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion, MTLSize

_PROPERTIES = {
    "sources": "offsets, sizes or channels of the source",
    "target": "clip rectangles",
    "parameters": "parameters",
}
"""What the states of one gradient encode have in common, and how a message says it."""


class Given(NamedTuple):
    """What the plan of a gradient depends on of its states: their records, each once, and how many images they hold."""

    records: tuple[ForwardRecord, ...]
    images: int
    empty: str | None = None
    """A state that no forward encode has filled in, where the kernel needs none but to size its result."""
    more: Hashable = None
    """What a kernel takes of its states besides."""

    @property
    def record(self) -> ForwardRecord:
        """The record of the first state."""
        return self.records[0]

    def check_alike(self, who: str) -> None:
        """Raise unless all states come from encodes with the same properties."""
        first = self.record
        different = [
            each for each in _PROPERTIES if any(getattr(one, each) != getattr(first, each) for one in self.records[1:])
        ]
        if different:
            rule = "must come from forward encodes with the same properties"
            got = f"different {' and '.join(_PROPERTIES[each] for each in different)}"
            raise MPSArgumentError(who, "gradient_states", rule, got, "Encode their images one by one")


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

    _context_class = GradientLoweringContext
    _source_arguments = ("source_gradient", "source_image")
    _destination_argument = "destination_gradient"
    _forward_kernels: tuple[type, ...] = ()
    """The kernels whose states this one takes; any if empty."""

    def __init_subclass__(cls, *, of: type | tuple[type, ...] = ()) -> None:
        super().__init_subclass__()
        if of:
            cls._forward_kernels = of if isinstance(of, tuple) else (of,)

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
    _source_size = Setting[MTLSize]()

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._source_size = MTLSize(ULONG_MAX, ULONG_MAX, ULONG_MAX)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value | None:
        """The mathematics: the gradient of the whole forward source (the channels read of it); None for no image."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[1]

    def _needs_saved(self, record: ForwardRecord) -> bool:
        """Whether the mathematics meets the gradient, number by number, with what the forward encode saved."""
        return False

    # --- sizes and placement ----------------------------------------------------------------------------------------

    def _given(self, states: MPSStateBatch) -> Given:
        shared = states.shared
        if isinstance(shared, MPSNNGradientState) and shared.image_index is None:
            record = self._record_of(shared)
            return Given((record,), record.images)
        kept = [(each, self._record_of(each)) for each in states.counted() if isinstance(each, MPSNNGradientState)]
        records = {id(record): record for _, record in kept}
        images = sum(record.images if state.image_index is None else 1 for state, record in kept)
        return Given(tuple(records.values()), images)

    def _record_of(self, state: MPSNNGradientState) -> ForwardRecord:
        record = state.record
        if record is None:
            raise self._no_record(repr(state))
        return record

    def _no_record(self, state: str) -> MPSArgumentError:
        remedy = "Pass it as destination_state to the forward kernel first"
        return MPSArgumentError(self.name, "gradient_state", "must come from a forward encode", state, remedy)

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        return shapes[1].extent

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: Given | None) -> Extent:
        if given is not None and given.empty is not None:
            raise self._no_record(given.empty)
        if given is None or not given.records:
            return extent
        given.check_alike(self.name)
        record = given.record
        self._check_record(record, shapes)
        self._configure(record)
        whole = record.sources[self._forward_source()].extent
        return whole._replace(images=extent.images if record.is_batch else whole.images)

    def _forward_extents(self, record: ForwardRecord) -> tuple[Extent, Extent]:
        """The shapes of the gradient and of the image that the forward encode calls for."""
        return record.destination, record.sources[self._forward_source()].extent

    def _check_record(self, record: ForwardRecord, shapes: tuple[Shape, ...]) -> None:
        for argument, shape, extent in zip(self._source_arguments, shapes, self._forward_extents(record), strict=True):
            found = (shape.extent.width, shape.extent.height, shape.extent.channels)
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
        x, y = forward.window.x, forward.window.y
        window = {
            "kernel_width": x.size, "kernel_height": y.size, "stride_x": x.stride, "stride_y": y.stride,
            "dilation_x": x.dilation, "dilation_y": y.dilation,
        }  # fmt: skip
        self._change_source(
            0,
            offset=MPSOffset(target.x, target.y, record.first_destination_image),
            channel_offset=target.channel,
            channel_max_count=target.channels,
            **window,
        )
        self._change_source(
            1,
            offset=MPSOffset(x.offset, y.offset, forward.first_image),
            channel_offset=forward.channel,
            channel_max_count=forward.channels,
            edge_mode=forward.edge_mode,
            **window,
        )
        everything = MPSRectNoClip.size
        depth = everything.depth if record.is_batch else record.images
        self._change(
            kernel_offset_x=_mirrored(x),
            kernel_offset_y=_mirrored(y),
            _source_size=MTLSize(target.width, target.height, ULONG_MAX),
            destination_feature_channel_offset=forward.channel,
            clip_rect=MTLRegion(
                MTLOrigin(0, 0, forward.first_image), MTLSize(everything.width, everything.height, depth)
            ),
        )

    def _forward_source(self) -> int:
        """Which source of the forward kernel this kernel differentiates."""
        return 0

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        """Destination pixel ``clip origin + t`` holds the gradient of source pixel t; there are no others."""
        clip, source = self.clip_rect.origin, sources[1]
        return Extent(
            min(destination.width, clip.x + source.width),
            min(destination.height, clip.y + source.height),
            destination.channels,
            destination.images,
        )

    def _check_plan(self, records: tuple[SourceRecord, ...], target: Target, given: Given | None, images: int) -> None:
        """As for every kernel; what the forward encode saved must fit the gradient."""
        if given is None or not any(self._needs_saved(record) for record in given.records):
            return
        gradient = records[0]
        expected = (*self._used_size(gradient.extent), gradient.channels)
        targets = [record.target for record in given.records]
        sizes = {(each.width, each.height, each.channels) for each in targets}
        if sizes != {expected} or given.images != images:
            rule = f"must hold {images} image(s) of {expected} (width, height, channels), as the gradient"
            got = f"{given.images} image(s) of {sorted(sizes)}"
            remedy = "Pass the state of the forward encode of the same images"
            raise MPSArgumentError(self.name, "gradient_state", rule, got, remedy)

    def _prepare(self, at: LoweringContext) -> None:
        assert isinstance(at, GradientLoweringContext)
        self._check_channels(at.sources)
        self._check_strides()
        at.geometry = self._placement(at.sources, at.target)

    def _placement(self, records: tuple[SourceRecord, ...], target: Target) -> GradientGeometry:
        """The windows that the gradient pixels used belong to, and where their data gradients land."""
        source = records[1].extent
        width, height = self._used_size(records[0].extent)
        return GradientGeometry(
            self._sources[1].window(source, width, height),
            self._data_window(self._differentiated(source, target), width, height),
            self._sources[1].edge_mode,
        )

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        """Cut the gradient pixels used out of the primary image, and the pixels written out of the result."""
        assert isinstance(at, GradientLoweringContext)
        gradient, source = images
        x, y, extent = self.primary_offset.x, self.primary_offset.y, at.sources[0].extent
        height, width = at.geometry.source.result
        if (x, y, width, height) != (0, 0, extent.width, extent.height):
            gradient = Crop(y, x, height, width)(gradient)
        result = self._differentiate(at, gradient, source)
        if result is not None and (at.target.height, at.target.width) != at.geometry.data.source:
            result = Crop(0, 0, at.target.height, at.target.width)(result)
        return result

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Raise unless the channels read of gradient and image belong together: here, as many."""
        gradient, source = sources
        if gradient.channels != source.channels:
            rule = f"must have as many feature channels read as {self._source_arguments[1]}, {source.channels}"
            remedy = "Set the source feature channel offsets and maximum counts, or pass the gradient of the result"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, gradient.channels, remedy)

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
            rule = f"must lie within the gradient's {axis}, {length}"
            raise MPSArgumentError(self.name, "primary_offset", rule, first)
        return used

    def _data_window(self, source: Extent, width: int, height: int) -> Window:
        properties = self._sources[1]
        x = Axis(source.width, width, properties.kernel_width, properties.stride_x, properties.dilation_x)
        y = Axis(source.height, height, properties.kernel_height, properties.stride_y, properties.dilation_y)
        return Window(
            x=_with_offset(x, _even(x) - self.kernel_offset_x),
            y=_with_offset(y, _even(y) - self.kernel_offset_y),
        )

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
            rule = "is needed: an encode that returns an image takes every property from it"
            remedy = "Pass the state that the forward encode left, or set the properties and pass destination_gradient"
            raise MPSTypeError(self.name, "gradient_state", rule, None, remedy)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        argument = "gradient_states" if isinstance(images, MPSImageBatch) else "gradient_state"
        for state in states.counted():
            if not isinstance(state, MPSNNGradientState):
                raise MPSTypeError(self.name, argument, "must be an MPSNNGradientState", type(state).__name__)
            record = state.record
            made_by = None if record is None else record.made_by
            if made_by is not None and self._forward_kernels and not issubclass(made_by, self._forward_kernels):
                names = " or ".join(kind.__name__ for kind in self._forward_kernels)
                rule = f"must come from an encode of {names}"
                raise MPSArgumentError(self.name, argument, rule, f"one from {made_by.__name__}")
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
        states = states_of(self.name, "gradient_state", gradient_state)
        return self._single(command_buffer, (source_gradient, source_image), destination_gradient, source_states=states)

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[MPSImage],
        source_images: Sequence[MPSImage],
        gradient_states: Sequence[MPSState] | None = None,
        destination_gradients: Sequence[MPSImage] | None = None,
    ) -> MPSImageBatch:
        """Record the derivative for a batch of images, as one operation; otherwise as `encode`."""
        states = states_of(self.name, "gradient_states", gradient_states)
        sources = (source_gradients, source_images)
        return self._batched(command_buffer, sources, destination_gradients, source_states=states)


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
