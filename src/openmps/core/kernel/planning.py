"""Planning: what an encode computes and how large its result is, from a kernel's configuration and shapes alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from openmps.checks import listed, store
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.arguments import single
from openmps.core.kernel.base import KernelProperties
from openmps.core.kernel.configuration import Configuration
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.path import EncodePath
from openmps.core.kernel.plan import Plan, Sized
from openmps.core.padding.geometry import Geometry, Lengths, suggested_geometry
from openmps.core.padding.policy import custom_descriptor, unchanging_policies
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError, warn_user
from openmps.ops.elements import Components
from openmps.ops.op import Value
from openmps.types import MPSImageFeatureChannelFormat, MPSNNPaddingMethod, MPSRectNoClip

_SLICE = 4
"""Feature channels of a texture slice."""
_CUSTOM = int(MPSNNPaddingMethod.CUSTOM)
_WHOLE_FORMATS = MPSImageFeatureChannelFormat.UNORM8, MPSImageFeatureChannelFormat.UNORM16


class PlannedKernel(KernelProperties, EncodePath):
    """How kernels with source images size their results and plan their encodes.

    Hooks under "planning" run on a draft of the kernel, which has its properties and its name and nothing else: a plan
    depends on the configuration, on shapes, and on what `_given` takes from states. The draft's properties may be
    changed while a result is sized; they become the kernel's.
    """

    _source_arguments: tuple[str, ...] = ("source_image",)
    _context_class: type[LoweringContext] = LoweringContext
    _destination_argument = "destination_image"
    _first_image_argument = "offset.z"
    _results_per_image = 1
    """Images made of each image read: image b gives the results b * count, b * count + 1, … of the destination."""

    _takes_all_channels = False
    """Whether its parameters fix how many channels a source has: more than a slice besides is named, once."""
    _has_named_unread = False

    # --- planning: hooks that a kernel file fills in ------------------------------------------------------------------

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        """The mathematics of one encode: from the sources' slots to the result's; None where no image is made."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        """Channels made from ``channels`` channels read of each source."""
        return max(channels)

    def _needed_channels(self, index: int, available: int) -> int:
        """Channels read of source ``index``; the filters that need a fixed count say so."""
        return min(self._sources[index].channel_max_count, available)

    def _parameters(self) -> Any:
        """What the gradient kernel must know besides geometry: a value that can be compared."""
        return None

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: Any) -> Extent:
        """Kernel's own say on the result's size, after the built-in policy and before states and custom policies."""
        return extent

    def _check_plan(self, records: tuple[SourceRecord, ...], target: Target, given: Any, images: int) -> None:
        """Raise unless what `_given` took from the states fits the placement."""

    def _given(self, states: MPSStateBatch) -> Hashable:
        """What a plan depends on of the states that an encode is given."""
        return None

    # --- step 1: the result's size and the offset --------------------------------------------------------------------

    def destination_image_descriptor(
        self, source_images: Sequence[MPSImage], source_states: Sequence[MPSState] | None = None
    ) -> MPSImageDescriptor:
        """The shape of the result for these sources; sets the offset as the padding policy says.

        The built-in policy comes first, then the kernel, then each source state, then a custom policy, each with the
        right to change the descriptor and the offset.
        """
        given = listed(self.name, "source_images", source_images, "MPSImage")
        images = [single(self.name, "source_images", image) for image in given]
        if len(images) != len(self._sources):
            rule = f"must be {len(self._sources)} image(s)"
            raise MPSArgumentError(self.name, "source_images", rule, f"{len(images)} image(s)")
        shapes = tuple(image.stack(0, image.number_of_images).shape for image in images)
        several = listed(self.name, "source_states", source_states, "MPSState")
        states = MPSStateBatch(several) if several else None
        sized = self._sized_for(shapes, None if states is None else self._given(states), is_batch=False)
        return self._custom(descriptor_of(sized), images, several)

    @property
    def asks_a_policy(self) -> bool:
        """Whether a custom policy has the last word at each encode; those of the package always say the same."""
        return type(self._padding) not in unchanging_policies and self._is_custom()

    def _is_custom(self) -> bool:
        return bool(int(self._padding.padding_method()) & _CUSTOM)

    def _sized_for(self, shapes: tuple[Shape, ...], given: Hashable, *, is_batch: bool) -> Sized:
        """The result for these sources; the kernel's properties become what the policy makes of them."""
        configuration = self._configuration if self._configuration.is_interned else self._interned_configuration()
        key = (shapes, given, int(self._padding.padding_method()), is_batch)
        sized: Sized | None = configuration.plans.get(key)
        if sized is None:
            sized = configuration.keep(key, self._size(configuration, shapes, given, is_batch=is_batch))
        store(self, "_configuration", sized.configuration)
        return sized

    def interned_properties(self) -> Configuration:
        """All that a plan depends on of the kernel; equal ones are the same object."""
        return self._interned_configuration()

    def _size(self, configuration: Configuration, shapes: tuple[Shape, ...], given: Any, *, is_batch: bool) -> Sized:
        draft = self._draft(configuration)
        objects = shapes
        if is_batch:
            objects = tuple(shape._replace(extent=shape.extent._replace(images=1)) for shape in shapes)
        extent = draft._adjusted(draft._sized(objects), objects, given)
        images = extent.images
        if is_batch:
            # The images of a batch hold one image each, so that those made of one image are images of their own.
            images = extent.images // self._results_per_image
            extent = extent._replace(images=shapes[0].extent.images * self._results_per_image * images)
        return Sized(
            Shape(extent, draft._result_format(shapes[0].channel_format)),
            images,
            draft._configuration.interned(),
            self._is_custom(),
        )

    def _result_format(self, source: MPSImageFeatureChannelFormat) -> MPSImageFeatureChannelFormat:
        """How a result that an encode makes is stored."""
        if source in _WHOLE_FORMATS and self.conventions["result_format"] == "float16":
            return MPSImageFeatureChannelFormat.FLOAT16
        return source

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        """The result's extent by the built-in policy; places the windows."""
        first = shapes[0].extent
        geometry = self._geometry(0, first)
        self._place(geometry.offset_x, geometry.offset_y, geometry.kernel_offset_x, geometry.kernel_offset_y)
        channels = self._result_channels(
            tuple(self._channels_read(index, shape.extent.channels) for index, shape in enumerate(shapes))
        )
        return Extent(geometry.width, geometry.height, channels, self._images_to_make(shapes))

    def _geometry(self, index: int, extent: Extent) -> Geometry:
        """What the built-in policy says about source ``index``."""
        source = self._sources[index]
        x = Lengths(extent.width, source.kernel_width, source.stride_x, source.dilation_x)
        y = Lengths(extent.height, source.kernel_height, source.stride_y, source.dilation_y)
        method = int(self._padding.padding_method())
        return suggested_geometry(
            method, x, y, is_backwards=self.is_backwards, who=self.name, conventions=self.conventions
        )

    def _images_to_make(self, shapes: tuple[Shape, ...]) -> int:
        """Images of a result: those of each source from its offset's z on."""
        read = (shape.extent.images - source.offset.z for shape, source in zip(shapes, self._sources, strict=True))
        return max(1, min(read)) * self._results_per_image

    def _place(self, offset_x: int, offset_y: int, kernel_offset_x: int, kernel_offset_y: int) -> None:
        """Take over the placement that the policy computed."""
        sources = tuple(source.placed(offset_x, offset_y) for source in self._sources)
        self._configuration = self._configuration.reading(sources)

    def _custom(
        self, descriptor: MPSImageDescriptor, images: Sequence[MPSImage], states: Sequence[MPSState]
    ) -> MPSImageDescriptor:
        """The descriptor after the states' and the custom policy's say, which may change the kernel too."""
        for state in states:
            descriptor = state.destination_image_descriptor(images, states, self, descriptor)
        return custom_descriptor(self._padding, images, states, self, descriptor)

    # --- step 2: the plan --------------------------------------------------------------------------------------------

    def plan(
        self, sources: tuple[Shape, ...], destination: Shape | None, given: Hashable = None, *, is_batch: bool = False
    ) -> Plan:
        """One encode with the properties as they stand, from the shapes alone; nothing is touched. Kept for next time.

        ``destination`` is None where no image is made. ``given`` is what `_given` took from the states. ``is_batch``
        says that images are objects of their own, so that z of offsets and clip rectangle, which choose images of one
        object, have nothing to choose.
        """
        configuration = self._configuration if self._configuration.is_interned else self._interned_configuration()
        return self._plan_with(configuration, sources, destination, given, is_batch=is_batch)

    def _plan_with(
        self,
        configuration: Configuration,
        sources: tuple[Shape, ...],
        destination: Shape | None,
        given: Hashable,
        *,
        is_batch: bool,
    ) -> Plan:
        key = (sources, destination, given, int(self._padding.padding_method()), is_batch)
        plan: Plan | None = configuration.plans.get(key)
        if plan is None:
            draft = self._draft(configuration)
            plan = configuration.keep(key, draft._planned(sources, destination, given, is_batch=is_batch))
            if self._takes_all_channels and not self._has_named_unread:
                self._name_unread(draft._unread(sources))
        return plan

    def _name_unread(self, channels: int) -> None:
        """Warn, once, of a source some of whose channels may have been meant as rows or columns."""
        if channels > 0:
            store(self, "_has_named_unread", True)
            warn_user(
                f"{self.name}: {channels} feature channels of {self._source_arguments[0]} are not read; images are "
                "[images, height, width, channels]: transpose an array [images, channels, height, width] by "
                "array.transpose(0, 2, 3, 1). Where a part is meant, give the kernel image.sub_image(range(…))",
            )

    def _unread(self, sources: tuple[Shape, ...]) -> int:
        """Channels of the first source that are not read; 0 where a part was asked for, or one slice holds them too."""
        source, channels = self._sources[0], sources[0].extent.channels
        read = self._channels_read(0, channels)
        is_a_part = source.channel_offset > 0 or source.channel_max_count < channels
        return 0 if is_a_part or channels <= read + -read % _SLICE else channels - read

    def _planned(self, sources: tuple[Shape, ...], destination: Shape | None, given: Any, *, is_batch: bool) -> Plan:
        extents = tuple(shape.extent for shape in sources)
        whole = destination.extent if destination is not None else extents[0]
        writable = self._writable(whole, extents)
        clip = self.clip_rect
        depth = writable.images if is_batch else self._depth(extents)
        images = min(writable.images - clip.origin.z, depth) // self._results_per_image
        for source, extent in zip(self._sources, extents, strict=True):
            images = min(images, extent.images - source.offset.z)
        self._check_images(images, extents, writable, is_batch)
        width = min(clip.size.width, writable.width - clip.origin.x)
        height = min(clip.size.height, writable.height - clip.origin.y)
        if width < 1 or height < 1 or clip.origin.x < 0 or clip.origin.y < 0:
            rule = f"must overlap the destination of {writable.width}x{writable.height} pixels"
            got = f"origin ({clip.origin.x}, {clip.origin.y}), size {clip.size.width}x{clip.size.height}"
            raise MPSArgumentError(self.name, "clip_rect", rule, got)
        records = tuple(self._source_record(index, extent, width, height) for index, extent in enumerate(extents))
        target = self._target(records, writable, width, height)
        at = self._context(records, target, given, sources, destination)
        self._prepare(at)
        result, cleared = self._lower(at, *at.images), self._cleared(target, writable)
        if result is not None and cleared:
            result = Components(target.channels + cleared, alpha=0.0)(result)
        function = at.finish(result)
        self._check_plan(records, target, given, images)
        record = ForwardRecord(
            records, writable, target, self._parameters(), clip.origin.z, images, is_batch, type(self)
        )
        return Plan(record, function, at.constants, self._results_per_image, cleared)

    def _cleared(self, target: Target, destination: Extent) -> int:
        """Channels behind those that are written, up to the next multiple of four, that become 0 by a convention."""
        end = target.channel + target.channels
        behind = min(-end % _SLICE, destination.channels - end)
        return behind if behind > 0 and self.conventions["last_texel"] == "zeros" else 0

    def _context(
        self,
        records: tuple[SourceRecord, ...],
        target: Target,
        given: Any,
        shapes: tuple[Shape, ...],
        destination: Shape | None,
    ) -> LoweringContext:
        """What `_lower` is told of the placement of an encode."""
        return self._context_class(records, target, given, shapes, destination)

    def _prepare(self, at: LoweringContext) -> None:
        """Tell `_lower` more than every kernel's is told, or raise."""

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        """The part of the destination that the kernel has numbers for."""
        return destination

    def _depth(self, sources: tuple[Extent, ...]) -> int:
        """How many images of one object are written at most."""
        return self.clip_rect.size.depth

    def _check_images(self, images: int, sources: tuple[Extent, ...], destination: Extent, is_batch: bool) -> None:
        first = (self.clip_rect.origin.z, *(source.offset.z for source in self._sources))
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
                f"{first[1:]}, {first[0]} and {self.clip_rect.size.depth} for sources with "
                f"{[extent.images for extent in sources]} image(s) and a destination with {destination.images}",
            )
        if not is_batch:
            self._check_depth(sources, destination)

    def _check_depth(self, sources: tuple[Extent, ...], destination: Extent) -> None:
        """Raise unless there are as many images as the clip rectangle asks for, if it does not ask for all there are.

        Its pixels are cut to the destination, as the framework documents; its images are not.
        """
        origin, each = self.clip_rect.origin.z, self._results_per_image
        there = [(self._destination_argument, origin, destination.images - origin)]
        for name, extent, source in zip(self._source_arguments, sources, self._sources, strict=False):
            there.append((name, source.offset.z, (extent.images - source.offset.z) * each))
        for name, first, images in there:
            check_depth(self.name, "clip_rect.size.depth", self.clip_rect.size.depth, images, f"{name} from {first} on")

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
            rule = f"must have at least {max(needed, 1)} feature channel(s) from channel {source.channel_offset} on"
            got = f"{available} by the source feature channel maximum count" if bounded else f"{channels} in all"
            arguments = self._source_arguments
            argument = arguments[index] if index < len(arguments) else f"source {index}"
            raise MPSArgumentError(self.name, argument, rule, got)
        return needed

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        channels = self._result_channels(tuple(record.channels for record in records))
        channel = self.destination_feature_channel_offset
        if channel + channels > destination.channels:
            raise MPSArgumentError(
                self.name,
                self._destination_argument,
                f"must have at least {channel + channels} feature channels "
                f"({channels} written from channel {channel} on)",
                f"{destination.channels}",
            )
        origin = self.clip_rect.origin
        return Target(origin.x, origin.y, width, height, channel, channels)


def check_depth(who: str, argument: str, asked: int, there: int, where: str) -> None:
    """Raise if a rectangle asks for more images than there are; that of `MPSRectNoClip` stands for all of them."""
    if there < asked != MPSRectNoClip.size.depth:
        rule = f"must be at most {there}, the images of {where}"
        raise MPSArgumentError(who, argument, rule, asked, "Leave it at that of MPSRectNoClip for all there are")


def descriptor_of(sized: Sized) -> MPSImageDescriptor:
    """A descriptor of the result, or of each image object of a batch of results."""
    extent = sized.shape.extent
    return MPSImageDescriptor(
        sized.shape.channel_format, extent.width, extent.height, extent.channels, sized.images_each
    )
