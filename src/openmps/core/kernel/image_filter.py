"""Filters of pictures, with one or two sources (MPSImageKernel.h, macOS 10.13).

Textures of the framework are images here. The destination is always given: there is no padding policy to size it. Up to
four channels are the components of a texture: a channel that the source lacks reads 0, the fourth one 1, and channels
that the destination lacks are dropped. Of more channels each is filtered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

from openmps.checks import of_kind
from openmps.core.image.batch import as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.arguments import image_edge_mode, image_offset, single
from openmps.core.kernel.configuration import SourceProperty
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.planning import PlannedKernel
from openmps.core.kernel.row_bands import RowBands, row_bands
from openmps.core.kernel.unary import OneSource
from openmps.core.lifetime import check_is_open
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.elements import COMPONENTS, Channels, Components, Widen
from openmps.ops.op import Function, Value
from openmps.types import (
    MPSImageEdgeMode,
    MPSImageFeatureChannelFormat,
    MPSOffset,
    MPSOrigin,
    MPSRegion,
    MPSSize,
    MTLSize,
)

_BYTES = MPSImageFeatureChannelFormat.UNORM8
FallbackAllocator = Callable[[Any, CommandBuffer, MPSImage], MPSImage]
"""Called with the filter, the command buffer and the image that it could not overwrite; makes another one."""


class ImageFilter(ImageKernel):
    """What filters of pictures have in common, whatever the number of their sources."""

    _works_in_place: ClassVar[bool] = True
    """Whether the result may take the place of a source: it is computed aside, and stored afterwards."""
    _most_channels: ClassVar[int | None] = None
    """Feature channels that a source or a destination has at most."""

    _filters_bytes: ClassVar[bool] = False
    """Whether it makes bytes of bytes as they are stored; else it makes numbers of them first."""
    _is_by_rows: ClassVar[bool] = False
    """Whether rows of a result follow from the rows of the sources that their windows read, and from nothing else."""

    def _remedy_apart(self) -> str:
        return super()._remedy_apart() + (", or in place: see in_place_texture" if self._works_in_place else "")

    def _planned(self, sources: tuple[Shape, ...], destination: Shape | None, given: Any, *, is_batch: bool) -> Plan:
        from openmps.core.kernel.filter_forms import set_forms  # loaded where filters run, only

        plan = super()._planned(sources, destination, given, is_batch=is_batch)
        bands = self._bands(plan, sources, destination, given) if self._is_by_rows else None
        set_forms(plan, sources, destination, bands)
        return plan

    def _bands(self, plan: Plan, sources: tuple[Shape, ...], destination: Shape | None, given: Any) -> RowBands | None:
        def lower(records: tuple[SourceRecord, ...], target: Target, shapes: tuple[Shape, ...]) -> Function:
            at = self._context(records, target, given, shapes, destination)
            return at.finish(self._lower(at, *at.images))

        at = self._context(plan.record.sources, plan.record.target, given, sources, destination)
        return row_bands(plan.function, plan.record, sources, lower, 4 if at.as_stored else 1)

    def _context(
        self,
        records: tuple[SourceRecord, ...],
        target: Target,
        given: Any,
        shapes: tuple[Shape, ...],
        destination: Shape | None,
    ) -> LoweringContext:
        as_stored = destination is not None and self._takes_stored(records, shapes, destination)
        return self._context_class(records, target, given, shapes, destination, as_stored=as_stored)

    def _takes_stored(self, records: tuple[SourceRecord, ...], shapes: tuple[Shape, ...], destination: Shape) -> bool:
        """Whether all images hold bytes, and these are filtered as they are stored."""
        return self._filters_bytes and {destination.channel_format, *(each.channel_format for each in shapes)} == {
            _BYTES
        }

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        """See `PlannedKernel`; by the rule for components, where there are no more than a texture has."""
        channel, most = self.destination_feature_channel_offset, self._most_channels
        there = destination.channels - channel
        for name, count in (
            *zip(self._source_arguments, (record.extent.channels for record in records), strict=True),
            (self._destination_argument, destination.channels),
        ):
            if most is not None and count > most:
                remedy = f"Filter {most} of them at a time: image.sub_image(range({most}))"
                raise MPSArgumentError(self.name, name, f"must have at most {most} feature channels", count, remedy)
        made = self._result_channels(tuple(record.channels for record in records))
        if made > COMPONENTS and there < made:
            least = f"must have at least {channel + made} feature channels"
            rule = f"{least}, as the source has: of more than {COMPONENTS} each is filtered by itself"
            remedy = f"Give it as many, or filter some of them: image.sub_image(range({COMPONENTS}))"
            raise MPSArgumentError(self.name, self._destination_argument, rule, destination.channels, remedy)
        if max(made, there) > COMPONENTS or there < 1:
            return super()._target(records, destination, width, height)
        origin = self.clip_rect.origin
        return Target(origin.x, origin.y, width, height, channel, there)

    def _cleared(self, target: Target, destination: Extent) -> int:
        """See `PlannedKernel`: none, for pixels of textures are written as wholes."""
        return 0

    def _components(
        self, at: LoweringContext, value: Value, channels: int, colour: float = 0.0, alpha: float = 1.0
    ) -> Value:
        """Pixels of so many channels with those that are written; what the filter makes of 0, and of alpha's 1."""
        wanted = at.target.channels
        return value if wanted == channels else Components(wanted, colour, alpha)(value)

    def _pixels(self, at: LoweringContext, images: Sequence[Value], index: int = 0) -> Value:
        """The region that the windows of a source read, with the channels that are written."""
        channels, wanted = at.sources[index].channels, at.target.channels
        image = images[index]
        if wanted < channels:
            image, channels = Channels(0, wanted)(image), wanted
        return self._components(at, at.read(image, index), channels)

    def _measured_pixels(self, at: LoweringContext, images: Sequence[Value], index: int = 0) -> tuple[Value, float]:
        """As `_pixels`, but bytes as numbers of 0 … 255; and what such a number is worth."""
        if at.shapes[index].channel_format is not _BYTES:
            return self._pixels(at, images, index), 1.0
        return Widen()(self._stored_pixels(at, index)), 1.0 / 255.0

    def _stored_pixels(self, at: LoweringContext, index: int = 0) -> Value:
        """As `_pixels`, but elements as they are stored."""
        return self._pixels(at, [at.stored(each) for each in range(len(at.sources))], index)

    def _source_region(self, index: int, destination_size: MTLSize) -> MPSRegion:
        """What an encode into a destination of this size reads of a source."""
        size = self._written_size(destination_size)
        source = self._sources[index]
        left, top = source.offset.x - source.kernel_width // 2, source.offset.y - source.kernel_height // 2
        width = (size.width - 1) * source.stride_x + source.kernel_width
        height = (size.height - 1) * source.stride_y + source.kernel_height
        return MPSRegion(MPSOrigin(left, top, 0.0), MPSSize(width, height, 1.0))

    def _written_size(self, destination_size: MTLSize) -> MTLSize:
        """The size of what is written of a destination of this size."""
        of_kind(self.name, "destination_size", destination_size, MTLSize)
        if type(self)._lower is PlannedKernel._lower:
            rule = "is not offered by this base class"
            raise MPSTypeError(self.name, "source_region", rule, None, "Use a filter")
        clip = self.clip_rect
        width = min(clip.size.width, destination_size.width - clip.origin.x)
        height = min(clip.size.height, destination_size.height - clip.origin.y)
        if width < 1 or height < 1:
            rule = f"must overlap the destination of {destination_size.width}x{destination_size.height} pixels"
            raise MPSArgumentError(self.name, "clip_rect", rule, clip)
        return MTLSize(width, height)

    def _named(
        self, command_buffer: CommandBuffer, name: str, image: MPSImage | None, texture: MPSImage | None
    ) -> MPSImage:
        """The image that was passed under one of its two names."""
        if texture is None and isinstance(image, MPSImage):
            return image
        check_is_open(self.name, command_buffer)  # where that was left out, images are one place too early
        if image is None and texture is None:
            remedy = "Filters make no images: pass all of them"
            raise MPSTypeError(self.name, f"{name}_image", "must be an MPSImage", "None", remedy)
        if image is not None and texture is not None:
            rule = f"must not be given beside {name}_texture: they are two names for one"
            raise MPSTypeError(self.name, f"{name}_image", rule)
        if texture is not None:
            return single(self.name, f"{name}_texture", texture)
        return single(self.name, f"{name}_image", image, f"{name}_texture")

    def _overwrite(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[MPSImage, ...],
        index: int,
        given: MPSImage,
        allocator: FallbackAllocator | None,
    ) -> MPSImage | None:
        """Put the result in the place of source ``index``; returns what has it, None where nothing was done.

        That is ``given``, as which the source was passed. A filter that needs another image asks the allocator for it,
        and does nothing without one.
        """
        argument = "fallback_copy_allocator"
        if allocator is not None and not callable(allocator):
            rule = "must be called with a kernel, a command buffer and an image, or be None"
            raise MPSTypeError(self.name, argument, rule, type(allocator).__name__)
        if self._works_in_place:
            self._run(command_buffer, sources, sources[index], is_in_place=True)
            return given
        if allocator is None:
            return None
        made = allocator(self, command_buffer, given)
        self._run(command_buffer, sources, single(self.name, f"{argument}'s new_texture", made))
        return made

    def _refuse_beside(self, argument: str, *others: object) -> None:
        """Raise if an encode in place is given what is of the other forms."""
        if any(each is not None for each in others):
            rule, remedy = "must be the only image in its place", "Leave the destination and the other source names out"
            raise MPSTypeError(self.name, argument, rule, None, remedy)


class MPSUnaryImageKernel(OneSource, ImageFilter):
    """A filter that makes one picture of another (MPSImageKernel.h, macOS 10.13).

    Pixel ``clip_rect.origin + (i, j)`` of the destination shows the source around ``offset + (i, j)``. Channels are
    filtered one by one unless a filter says so, alpha among them. Numbers are float32, and rounded once where they are
    stored. Textures of the framework are images here; the destination is always given.
    """

    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage | None = None,
        destination_image: MPSImage | None = None, *, source_texture: MPSImage | None = None,
        destination_texture: MPSImage | None = None,
    ) -> None: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, *, in_place_texture: MPSImage,
        fallback_copy_allocator: FallbackAllocator | None = None,
    ) -> MPSImage | None: ...  # fmt: skip
    def encode(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage | None = None,
        destination_image: MPSImage | None = None,
        *,
        source_texture: MPSImage | None = None,
        destination_texture: MPSImage | None = None,
        in_place_texture: MPSImage | None = None,
        fallback_copy_allocator: FallbackAllocator | None = None,
    ) -> MPSImage | None:
        """Record the filter: the clip rectangle of the destination is filled with the properties as they stand.

        ``source_texture`` and ``destination_texture`` are other names for the two images, which must be two.

        With ``in_place_texture`` alone the result takes the place of the source, which keeps its read count. A filter
        that cannot do so calls ``fallback_copy_allocator(filter, command_buffer, texture)`` for another image. Returns
        the image that has the result then; None if nothing was done, as there is no allocator.
        """
        if in_place_texture is None:
            source, destination = source_image, destination_image
            if source_texture is not None or not isinstance(source, MPSImage):
                source = self._named(command_buffer, "source", source, source_texture)
            if destination_texture is not None or not isinstance(destination, MPSImage):
                destination = self._named(command_buffer, "destination", destination, destination_texture)
            self._run(command_buffer, (source,), destination)
            return None
        given = (source_image, source_texture, destination_image, destination_texture)
        self._refuse_beside("in_place_texture", *given)
        image = single(self.name, "in_place_texture", in_place_texture)
        return self._overwrite(command_buffer, (image,), 0, in_place_texture, fallback_copy_allocator)

    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage], destination_images: Sequence[MPSImage]
    ) -> None:
        """Record the filter for a batch of images, as one operation; the framework has no such method."""
        source = as_batch(self.name, "source_images", source_images)
        self._run(command_buffer, (source,), as_batch(self.name, "destination_images", destination_images))

    def source_region(self, destination_size: MTLSize) -> MPSRegion:
        """The region of the source that an encode into a destination of this size reads, not cut to the source."""
        return self._source_region(0, destination_size)


class WindowedFilter(MPSUnaryImageKernel):
    """A filter whose result pixels follow from windows of odd sizes around their own place."""

    kernel_width = SourceProperty[int](0, "kernel_width", None, "Columns of the window.")
    kernel_height = SourceProperty[int](0, "kernel_height", None, "Rows of the window.")

    def _set_odd_window(self, width: int, height: int) -> None:
        """Give the source a window; both numbers must be odd."""
        self._set_window(width, height, 1, 1)
        for argument, size in (("kernel_width", width), ("kernel_height", height)):
            if size % 2 == 0:
                raise MPSArgumentError(self.name, argument, "must be odd", size)


class MPSBinaryImageKernel(ImageFilter):
    """A filter that makes one picture of two (MPSImageKernel.h, macOS 10.13).

    Pixel ``clip_rect.origin + (i, j)`` of the destination shows ``primary_offset + (i, j)`` of the primary source and
    ``secondary_offset + (i, j)`` of the secondary one; the sizes of the three may differ. As `MPSUnaryImageKernel`
    otherwise.
    """

    _source_arguments = ("primary_image", "secondary_image")

    primary_offset = SourceProperty[MPSOffset](
        0, "offset", image_offset, "Primary source position that the first result pixel stands for. Default 0."
    )
    secondary_offset = SourceProperty[MPSOffset](
        1, "offset", image_offset, "Secondary source position that the first result pixel stands for. Default 0."
    )
    primary_edge_mode = SourceProperty[MPSImageEdgeMode](
        0, "edge_mode", image_edge_mode, "What reads outside the primary source give: ZERO (default) or CLAMP."
    )
    secondary_edge_mode = SourceProperty[MPSImageEdgeMode](
        1, "edge_mode", image_edge_mode, "What reads outside the secondary source give: ZERO (default) or CLAMP."
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, sources=2)

    def encode(
        self,
        command_buffer: CommandBuffer,
        primary_image: MPSImage | None = None,
        secondary_image: MPSImage | None = None,
        destination_image: MPSImage | None = None,
        *,
        primary_texture: MPSImage | None = None,
        secondary_texture: MPSImage | None = None,
        destination_texture: MPSImage | None = None,
        in_place_primary_texture: MPSImage | None = None,
        in_place_secondary_texture: MPSImage | None = None,
        fallback_copy_allocator: FallbackAllocator | None = None,
    ) -> MPSImage | None:
        """Record the filter: the clip rectangle of the destination is filled with the properties as they stand.

        ``primary_texture``, ``secondary_texture`` and ``destination_texture`` are other names for the images.

        With ``in_place_primary_texture`` beside a secondary source, or ``in_place_secondary_texture`` beside a primary
        one, the result takes its place, and is returned; see `MPSUnaryImageKernel.encode`.
        """
        if in_place_primary_texture is None and in_place_secondary_texture is None:
            primary = self._named(command_buffer, "primary", primary_image, primary_texture)
            secondary = self._named(command_buffer, "secondary", secondary_image, secondary_texture)
            destination = self._named(command_buffer, "destination", destination_image, destination_texture)
            self._run(command_buffer, (primary, secondary), destination)
            return None
        taken = {"primary": in_place_primary_texture, "secondary": in_place_secondary_texture}
        given = {"primary": (primary_image, primary_texture), "secondary": (secondary_image, secondary_texture)}
        places = [(index, image) for index, image in enumerate(taken.values()) if image is not None]
        name = ("primary", "secondary")[places[0][0]]
        others = (destination_image, destination_texture, *given[name], *[taken["secondary"]] * (name == "primary"))
        self._refuse_beside(f"in_place_{name}_texture", *others)
        sources = tuple(
            self._named(command_buffer, each, *given[each])
            if image is None
            else single(self.name, f"in_place_{each}_texture", image)
            for each, image in taken.items()
        )
        return self._overwrite(command_buffer, sources, *places[0], fallback_copy_allocator)

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        primary_images: Sequence[MPSImage],
        secondary_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage],
    ) -> None:
        """Record the filter for two batches of images, as one operation; the framework has no such method."""
        sources = tuple(
            as_batch(self.name, f"{name}s", images)
            for name, images in zip(self._source_arguments, (primary_images, secondary_images), strict=True)
        )
        self._run(command_buffer, sources, as_batch(self.name, "destination_images", destination_images))

    def primary_source_region(self, destination_size: MTLSize) -> MPSRegion:
        """The region of the primary source that an encode into a destination of this size reads, not cut to it."""
        return self._source_region(0, destination_size)

    def secondary_source_region(self, destination_size: MTLSize) -> MPSRegion:
        """The region of the secondary source that an encode into a destination of this size reads, not cut to it."""
        return self._source_region(1, destination_size)
