"""The one encode path that every image kernel takes: check, plan, allocate, record, count down.

A kernel file says what it computes (`_operation`), which channels it makes and which state it leaves; this file owns
offsets, clip rectangles, channel slices, batches, formats, allocation, read counts and the command buffer.
(MPSKernel.h, MPSCNNKernel.h, macOS 10.13.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Stack, Target
from openmps.core.kernel.arguments import single
from openmps.core.kernel.base import KernelProperties, decided_as_a_whole
from openmps.core.kernel.checks import (
    Images,
    check_command_buffer,
    check_destination,
    check_result_states,
    check_sources,
    check_states,
)
from openmps.core.padding.policy import custom_descriptor, suggested_geometry
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord, attach, saved_by
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import (
    MPSOffset,
)

if TYPE_CHECKING:
    from openmps.core.padding.geometry import Geometry
    from openmps.metal.command import CommandBuffer

Operation = Callable[[tuple[Tensor, ...], Any], tuple[Tensor | None, Any]]
"""The work of one encode: source numbers and what the source state saved, to result numbers and what to save."""


class Plan(NamedTuple):
    """One encode, decided: which images and channels are read, what is computed, where results land."""

    sources: tuple[SourceRecord, ...]
    first_images: tuple[int, ...]
    first_destination_image: int
    images: int
    target: Target
    operation: Operation
    record: ForwardRecord


class ImageKernel(KernelProperties):
    """What kernels with one, two or many source images have in common: how they are encoded."""

    _gradient_state_class: type[MPSNNGradientState] | None = None
    _in_place = False
    _source_arguments: tuple[str, ...] = ("source_image",)
    _destination_argument = "destination_image"
    _first_image_argument = "offset.z"
    _results_per_image = 1
    """Images made of each image read: image b gives the results b * count, b * count + 1, … of the destination."""

    # --- hooks that a kernel file fills in ---------------------------------------------------------------------------

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        """The mathematics of one encode, as a function of numbers only."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        """Channels made from ``channels`` channels read of each source."""
        return max(channels)

    def _needed_channels(self, index: int, available: int) -> int:
        """Channels read of source ``index``; the filters that need a fixed count say so."""
        return min(self._sources[index].channel_max_count, available)

    def _parameters(self) -> Any:
        """What the gradient kernel must know besides geometry."""
        return None

    def next_token(self) -> Any:
        """What changes from encode to encode, handed to an operation that takes no state; None if nothing does."""
        return None

    def without_state(self, plan: Plan) -> Plan:
        """A plan of this kernel without the work whose only use is to fill a state, for encodes that leave none."""
        return plan

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        """Kernel's own say on the result's size, after the built-in policy and before states and custom policies."""

    # --- step 1: the result's size and the offset --------------------------------------------------------------------

    def destination_image_descriptor(
        self, source_images: Sequence[MPSImage], source_states: Sequence[MPSState] | None = None
    ) -> MPSImageDescriptor:
        """The shape of the result for these sources; sets the offset as the padding policy says.

        The built-in policy comes first, then the kernel, then each source state, then a custom policy, each with the
        right to change the descriptor and the offset.
        """
        images = self._checked_sources(source_images)
        states = list(source_states or ())
        descriptor = self._sized_by_policy(images)
        self._adjust_descriptor(descriptor, images, states)
        for state in states:
            descriptor = state.destination_image_descriptor(images, states, self, descriptor)
        return custom_descriptor(self._padding, images, states, self, descriptor)

    def _checked_sources(self, source_images: Sequence[MPSImage]) -> list[MPSImage]:
        images = [single(self.name, "source_images", image) for image in source_images]
        if len(images) != len(self._sources):
            raise MPSArgumentError(
                self.name, "source_images", f"must be {len(self._sources)} image(s)", f"{len(images)} image(s)"
            )
        return images

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        first = images[0]
        geometry = self._geometry(0, first)
        self._place(geometry.offset_x, geometry.offset_y, geometry.kernel_offset_x, geometry.kernel_offset_y)
        channels = self._result_channels(
            tuple(self._channels_read(index, image.feature_channels) for index, image in enumerate(images))
        )
        depth = self._images_to_make(images)
        return MPSImageDescriptor(first.feature_channel_format, geometry.width, geometry.height, channels, depth)

    def _geometry(self, index: int, image: MPSImage) -> Geometry:
        """What the built-in policy says about source ``index``."""
        source = self._sources[index]
        return suggested_geometry(
            int(self._padding.padding_method()),
            source_width=image.width,
            source_height=image.height,
            kernel_width=source.kernel_width,
            kernel_height=source.kernel_height,
            stride_x=source.stride_x,
            stride_y=source.stride_y,
            dilation_x=source.dilation_x,
            dilation_y=source.dilation_y,
            is_backwards=self.is_backwards,
            who=self.name,
        )

    def _images_to_make(self, images: list[MPSImage]) -> int:
        """Images of a result: those of each source from its offset's z on."""
        read = (image.number_of_images - source.offset.z for image, source in zip(images, self._sources, strict=True))
        return max(1, min(read)) * self._results_per_image

    def _place(self, offset_x: int, offset_y: int, kernel_offset_x: int, kernel_offset_y: int) -> None:
        """Take over the placement that the policy computed."""
        for source in self._sources:
            source.offset = MPSOffset(offset_x, offset_y, source.offset.z)

    # --- step 2: the plan --------------------------------------------------------------------------------------------

    def plan(
        self,
        sources: tuple[Extent, ...],
        destination: Extent,
        states: MPSStateBatch | None = None,
        *,
        is_batch: bool = False,
    ) -> Plan:
        """Decide one encode from the shapes alone: everything is checked, nothing is touched.

        ``is_batch`` says that images are objects of their own, so that z of offsets and clip rectangle, which choose
        images of one object, have nothing to choose.
        """
        destination = self._writable(destination, sources)
        clip = self._clip_rect
        depth = destination.images if is_batch else clip.size.depth
        images = min(destination.images - clip.origin.z, depth) // self._results_per_image
        for source, extent in zip(self._sources, sources, strict=True):
            images = min(images, extent.images - source.offset.z)
        self._check_images(images, sources, destination, is_batch)
        width = min(clip.size.width, destination.width - clip.origin.x)
        height = min(clip.size.height, destination.height - clip.origin.y)
        if width < 1 or height < 1 or clip.origin.x < 0 or clip.origin.y < 0:
            raise MPSArgumentError(
                self.name,
                "clip_rect",
                f"must overlap the destination of {destination.width}x{destination.height} pixels",
                f"origin ({clip.origin.x}, {clip.origin.y}), size {clip.size.width}x{clip.size.height}",
            )
        records = tuple(self._source_record(index, extent, width, height) for index, extent in enumerate(sources))
        target = self._target(records, destination, width, height)
        operation = self._operation(records, target, states)
        return Plan(
            records,
            tuple(source.offset.z for source in self._sources),
            clip.origin.z,
            images,
            target,
            operation,
            ForwardRecord(
                records, destination, target, self._parameters(), clip.origin.z, images, is_batch, type(self)
            ),
        )

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        """The part of the destination that the kernel has numbers for."""
        return destination

    def _check_images(self, images: int, sources: tuple[Extent, ...], destination: Extent, is_batch: bool) -> None:
        first = (self._clip_rect.origin.z, *(source.offset.z for source in self._sources))
        if is_batch and any(first):
            raise MPSArgumentError(
                self.name,
                f"{self._first_image_argument} and clip_rect.origin.z",
                "must be 0 when a batch is encoded",
                first,
                "Encode a slice of the batch instead",
            )
        if images < 1 or min(first) < 0:
            raise MPSArgumentError(
                self.name,
                f"{self._first_image_argument}, clip_rect.origin.z and clip_rect.size.depth",
                "must select at least one image of each source and of the destination",
                f"sources with {[extent.images for extent in sources]} image(s), destination with {destination.images}",
            )

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        source = self._sources[index]
        return SourceRecord(
            extent,
            source.window(extent, width, height),
            source.edge_mode,
            source.channel_offset,
            self._channels_read(index, extent.channels),
            source.offset.z,
        )

    def _channels_read(self, index: int, channels: int) -> int:
        source = self._sources[index]
        available = min(channels - source.channel_offset, source.channel_max_count)
        needed = self._needed_channels(index, available)
        if available < 1 or needed > available or needed < 1:
            bounded = source.channel_max_count < channels - source.channel_offset
            raise MPSArgumentError(
                self.name,
                self._source_argument(index),
                f"must have at least {max(needed, 1)} feature channel(s) from channel {source.channel_offset} on",
                f"{available} by the source feature channel maximum count" if bounded else f"{channels} in all",
            )
        return needed

    def _source_argument(self, index: int) -> str:
        """The argument of encode that source ``index`` is passed as."""
        return self._source_arguments[index] if index < len(self._source_arguments) else f"source {index}"

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        channels = self._result_channels(tuple(record.channels for record in records))
        channel = self._destination_channel_offset
        if channel + channels > destination.channels:
            raise MPSArgumentError(
                self.name,
                self._destination_argument,
                f"must have at least {channel + channels} feature channels "
                f"({channels} written from channel {channel} on)",
                f"{destination.channels}",
            )
        origin = self._clip_rect.origin
        return Target(origin.x, origin.y, width, height, channel, channels)

    # --- step 3 to 5: allocate, record, count down -------------------------------------------------------------------

    @decided_as_a_whole
    def _run(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        *,
        source_states: MPSStateBatch | None = None,
        destination_states: MPSStateBatch | None = None,
        make_state: bool | None = None,
    ) -> tuple[Images, MPSStateBatch | None]:
        """The encode path. ``make_state`` True or False asks for a temporary or a permanent result state."""
        if make_state is not None and destination_states is not None:
            rule = "asks for a new state, but destination states were given"
            raise MPSTypeError(self.name, "destination_state_is_temporary", rule, make_state, "Give one of the two")
        self._check_operands(command_buffer, sources, destination, source_states, destination_states)
        if destination is None:
            destination = self._allocate(command_buffer, sources, source_states)
        plan = self._planned(sources, destination, source_states)
        inputs = tuple(
            _stack(images, first, plan.images) for images, first in zip(sources, plan.first_images, strict=True)
        )
        output = _stack(destination, plan.first_destination_image, plan.images * self._results_per_image)
        self._check_aliasing(inputs, output)
        if make_state is not None:
            # The states take their record from this plan, when they are attached to it.
            destination_states = self._result_states(command_buffer if make_state else None, sources, None, None)
        keep = self._keeper(plan, source_states, destination_states)
        if keep is None:
            plan = self.without_state(plan)
        fetch = self._fetcher(source_states)
        command_buffer.record(self.name, _work(plan, inputs, output, fetch, keep))
        for images in sources:
            images.count_read()
        for state in source_states.counted() if source_states is not None else ():
            state.count_read()
        return destination, destination_states

    def _planned(self, sources: tuple[Images, ...], destination: Images, source_states: MPSStateBatch | None) -> Plan:
        extents = tuple(_extent(images) for images in sources)
        is_batch = isinstance(destination, MPSImageBatch)
        return self.plan(extents, _extent(destination), source_states, is_batch=is_batch)

    def _fetcher(self, source_states: MPSStateBatch | None) -> Callable[[], Any] | None:
        """Where the work gets what its source states hold, when it runs."""
        if source_states is not None and len(source_states):
            return saved_by(source_states)
        token = self.next_token()
        return None if token is None else lambda: token

    def _check_operands(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        """Everything that can be wrong with the objects of an encode, whatever the kernel computes."""
        check_command_buffer(self.name, command_buffer, self._device)
        check_sources(self.name, self._source_arguments, sources, command_buffer)
        if destination is not None:
            count = self._results_per_image
            check_destination(self.name, self._destination_argument, destination, sources[0], command_buffer, count)
        if source_states is not None:
            self._check_source_states(source_states, sources[0], command_buffer)
        if destination_states is not None:
            kind = self._gradient_state_class
            check_result_states(self.name, destination_states, kind, sources[0], command_buffer)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_states(self.name, "source_states", states, images, command_buffer)

    def _allocate(
        self, command_buffer: CommandBuffer, sources: tuple[Images, ...], states: MPSStateBatch | None
    ) -> Images:
        specimens = [_specimen(images) for images in sources]
        listed = states.counted() if states is not None else []
        descriptor = self.destination_image_descriptor(specimens, listed)
        first = sources[0]
        argument = "destination_image_allocator"
        if isinstance(first, MPSImage):
            return single(self.name, argument, self._allocator.image(command_buffer, descriptor, self))
        # The images of a batch hold one image each, so that those made of one image are images of their own.
        count = len(first) * self._results_per_image
        descriptor.number_of_images //= self._results_per_image
        make_batch = getattr(self._allocator, "image_batch", None)
        if make_batch is not None:
            made = make_batch(command_buffer, descriptor, self, count)
        else:
            made = [self._allocator.image(command_buffer, descriptor, self) for _ in range(count)]
        batch = as_batch(self.name, argument, made)
        if len(batch) != count:
            raise MPSArgumentError(self.name, argument, f"must make {count} image(s)", f"{len(batch)} image(s)")
        return batch

    def _check_aliasing(self, inputs: tuple[Stack, ...], output: Stack) -> None:
        if self._in_place:
            return
        if any(output.overlaps(stack) for stack in inputs):
            raise MPSArgumentError(
                self.name,
                self._destination_argument,
                "must not share memory with a source",
                "an image that is both",
                "Encode into another image",
            )

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        """Where the work puts what it produced besides the image."""
        if destination_states is None or not len(destination_states):
            return None
        saved = attach(destination_states, plan.record)

        def keep(produced: Any) -> None:
            saved.value = produced

        return keep

    # --- result states -----------------------------------------------------------------------------------------------

    def _result_states(
        self,
        command_buffer: CommandBuffer | None,
        sources: tuple[Images, ...],
        source_states: MPSStateBatch | None,
        destination: Images | None,
    ) -> MPSStateBatch | None:
        """The states of one encode: temporary if a command buffer is given; None if the kernel leaves none."""
        if command_buffer is not None:
            check_command_buffer(self.name, command_buffer, self._device)
        state = self.make_state()
        if state is None:
            return None
        if command_buffer is not None:
            state.make_temporary(command_buffer)
        first = sources[0]
        state.source_extent = _extent(first)
        if destination is not None:
            state.record = self._planned(sources, destination, source_states).record
        if isinstance(first, MPSImage):
            return MPSStateBatch([state])
        if self.is_result_state_reused_across_batch():
            return MPSStateBatch([state] * len(first))
        return MPSStateBatch.of_images(state, len(first))

    def make_state(self) -> MPSNNGradientState | None:
        """A new gradient state of this kernel; None if it leaves none."""
        if self._gradient_state_class is None:
            return None
        return self._gradient_state_class(self._device)


def _extent(images: Images) -> Extent:
    return images.storage.extent if isinstance(images, MPSImage) else images.stack().extent


def _specimen(images: Images) -> MPSImage:
    return images if isinstance(images, MPSImage) else images.representative()


def _stack(images: Images, first: int, count: int) -> Stack:
    return images.stack(first, count) if isinstance(images, MPSImage) else images.stack()


def _work(
    plan: Plan,
    inputs: tuple[Stack, ...],
    output: Stack,
    fetch: Callable[[], Any] | None,
    keep: Callable[[Any], None] | None,
) -> Callable[[], None]:
    """The recorded work of an encode: read, compute, keep, write."""
    records, operation, target = plan.sources, plan.operation, plan.target

    def work() -> None:
        values = tuple(
            stack.values(record.channel, record.channels) for stack, record in zip(inputs, records, strict=True)
        )
        result, produced = operation(values, None if fetch is None else fetch())
        if keep is not None:
            keep(produced)
        if result is not None:
            output.write(result, target, values)

    return work
