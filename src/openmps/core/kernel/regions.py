"""Kernels that read regions of their sources instead of pixels from an offset on (MPSNNReduce.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.arguments import clip_rectangle, image_offset
from openmps.core.kernel.configuration import Configured, KernelProperty
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.planning import check_depth
from openmps.errors import MPSArgumentError
from openmps.types import MPSOffset, MPSRectNoClip, MTLRegion

_PIXELS = "The pixels and images of the {} that are read, cut to it. Default: all. It replaces the offset."


class RegionOf(KernelProperty[MTLRegion]):
    """The region in which a source is read: all of it unless set."""

    def __init__(self, source: int, name: str) -> None:
        super().__init__(MPSRectNoClip, clip_rectangle, _PIXELS.format(name))
        self._source = source

    def __set__(self, kernel: Configured, value: MTLRegion) -> None:
        super().__set__(kernel, value)
        offset = MPSOffset(value.origin.x, value.origin.y, value.origin.z)
        kernel._change_source(self._source, offset=offset)  # pyright: ignore[reportPrivateUsage]


def ignored_offset(region: str) -> KernelProperty[MPSOffset]:
    """The offset of a kernel that reads regions: kept, but not used."""
    return KernelProperty(MPSOffset(0, 0, 0), image_offset, f"Not used: `{region}` replaces it.")


class ReadsRegions(ImageKernel):
    """What kernels have in common whose sources are read in regions."""

    _region_arguments: ClassVar[tuple[str, ...]]

    def _region(self, index: int) -> MTLRegion:
        return getattr(self, self._region_arguments[index])

    def _pixels_read(self, index: int, extent: Extent) -> tuple[int, int]:
        """Columns and rows of a source that are read."""
        region = self._region(index)
        columns = _overlap(region.origin.x, region.size.width, extent.width)
        rows = _overlap(region.origin.y, region.size.height, extent.height)
        if columns < 1 or rows < 1:
            rule = f"must overlap the source of {extent.width}x{extent.height} pixels"
            got = f"origin ({region.origin.x}, {region.origin.y}), size {region.size.width}x{region.size.height}"
            raise MPSArgumentError(self.name, self._region_arguments[index], rule, got)
        return columns, rows

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        """Columns and rows that there are numbers for."""
        return self._pixels_read(0, sources[0])

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        extents = [shape.extent for shape in shapes]
        channels = tuple(self._channels_read(index, extent.channels) for index, extent in enumerate(extents))
        return Extent(*self._result_size(extents), self._result_channels(channels), max(1, self._images(extents)))

    def _images(self, sources: Sequence[Extent]) -> int:
        """How many images the regions select of every source."""
        return min(
            _overlap(self._region(index).origin.z, self._region(index).size.depth, extent.images)
            for index, extent in enumerate(sources)
        )

    def _check_depth(self, sources: tuple[Extent, ...], destination: Extent) -> None:
        super()._check_depth(sources, destination)
        for index, (name, extent) in enumerate(zip(self._source_arguments, sources, strict=True)):
            region, argument = self._region(index), f"{self._region_arguments[index]}.size.depth"
            first = region.origin.z
            check_depth(self.name, argument, region.size.depth, extent.images - first, f"{name} from {first} on")

    def _depth(self, sources: tuple[Extent, ...]) -> int:
        return min(super()._depth(sources), self._images(sources))

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        width, height = self._result_size(sources)
        origin = self.clip_rect.origin
        return destination._replace(
            width=min(destination.width, origin.x + width), height=min(destination.height, origin.y + height)
        )


def _overlap(origin: int, size: int, length: int) -> int:
    """How much of ``length`` lies in ``size`` from ``origin`` on; less than 1 if nothing does."""
    return min(size, length - origin)
