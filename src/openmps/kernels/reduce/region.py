"""Sources that are read in a region of their own instead of from an offset on (MPSNNReduce.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent
from openmps.core.kernel.arguments import image_offset
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.encode import ImageKernel, Plan
from openmps.core.kernel.property import KernelProperty
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion


def _region(who: str, argument: str, value: MTLRegion) -> MTLRegion:
    if not isinstance(value, MTLRegion):
        raise MPSTypeError(who, argument, "must be an MTLRegion", type(value).__name__)
    return value


class RegionOf(KernelProperty[MTLRegion]):
    """The region in which a source is read, cut to the source: all of it unless set."""

    def __init__(self, source: int, doc: str) -> None:
        super().__init__(MPSRectNoClip, _region, doc)
        self._source = source

    def __set__(self, kernel: MPSKernel, value: MTLRegion) -> None:
        super().__set__(kernel, value)
        if isinstance(kernel, ReadsRegions):
            kernel.read_from(self._source, value.origin)


def ignored_offset(doc: str) -> KernelProperty[MPSOffset]:
    """The offset of a kernel that reads regions: kept, but not used."""
    return KernelProperty(MPSOffset(0, 0, 0), image_offset, doc)


class ReadsRegions(ImageKernel):
    """What kernels have in common whose sources are read in regions."""

    _region_arguments: ClassVar[tuple[str, ...]]

    def read_from(self, index: int, origin: MTLOrigin) -> None:
        """Read source ``index`` from ``origin`` on."""
        self._sources[index].offset = MPSOffset(origin.x, origin.y, origin.z)

    def _region(self, index: int) -> MTLRegion:
        return getattr(self, self._region_arguments[index])

    def _pixels(self, index: int, extent: Extent) -> tuple[int, int]:
        """Columns and rows of a source that are read."""
        region = self._region(index)
        columns = _overlap(region.origin.x, region.size.width, extent.width)
        rows = _overlap(region.origin.y, region.size.height, extent.height)
        if columns < 1 or rows < 1:
            raise MPSArgumentError(
                self.name,
                self._region_arguments[index],
                f"must overlap the source of {extent.width}x{extent.height} pixels",
                f"origin ({region.origin.x}, {region.origin.y}), size {region.size.width}x{region.size.height}",
            )
        return columns, rows

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        """Columns and rows that there are numbers for."""
        return self._pixels(0, sources[0])

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        width, height = self._result_size([image.storage.extent for image in images])
        channels = self._result_channels(
            tuple(self._channels_read(index, image.feature_channels) for index, image in enumerate(images))
        )
        depth = max(1, self._images(tuple(image.number_of_images for image in images)))
        return MPSImageDescriptor(images[0].feature_channel_format, width, height, channels, depth)

    def _images(self, available: tuple[int, ...]) -> int:
        """How many images the regions select of every source."""
        return min(
            _overlap(self._region(index).origin.z, self._region(index).size.depth, count)
            for index, count in enumerate(available)
        )

    def plan(
        self,
        sources: tuple[Extent, ...],
        destination: Extent,
        states: MPSStateBatch | None = None,
        *,
        is_batch: bool = False,
    ) -> Plan:
        """As for every kernel; the depth of the regions bounds the images of an object."""
        if not is_batch:
            last = self._clip_rect.origin.z + self._images(tuple(extent.images for extent in sources))
            destination = replace(destination, images=min(destination.images, last))
        return super().plan(sources, destination, states, is_batch=is_batch)

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        width, height = self._result_size(sources)
        origin = self._clip_rect.origin
        return replace(
            destination,
            width=min(destination.width, origin.x + width),
            height=min(destination.height, origin.y + height),
        )


def _overlap(origin: int, size: int, length: int) -> int:
    """How much of ``length`` lies in ``size`` from ``origin`` on; less than 1 if nothing does."""
    return min(size, length - origin)
