"""The base of filters that measure a part of a picture (MPSImageStatistics.h, MPSImageReduce.h)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.image.storage import Extent
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.regions import ReadsRegions, RegionOf, ignored_offset
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError
from openmps.types import MPSOrigin, MPSRegion, MPSSize, MTLSize


class MeasuringFilter(ReadsRegions, MPSUnaryImageKernel):
    """A filter whose result stands for the pixels of `clip_rect_source`, from ``clip_rect.origin`` on.

    `_measured` says how many columns and rows it has.
    """

    _works_in_place = False
    _region_arguments = ("clip_rect_source",)
    _first_image_argument = "clip_rect_source.origin.z"

    clip_rect_source = RegionOf(0, "source")
    offset = ignored_offset("clip_rect_source")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    def _measured(self, columns: int, rows: int) -> tuple[int, int]:
        """Columns and rows of the result for so many of the source."""
        raise NotImplementedError

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        return self._measured(*self._pixels_read(0, sources[0]))

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        return super()._source_record(index, extent, *self._pixels_read(index, extent))

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        width, height = self._result_size(sources)
        clip = self.clip_rect
        columns = min(clip.size.width, destination.width - clip.origin.x)
        rows = min(clip.size.height, destination.height - clip.origin.y)
        if columns < width or rows < height:
            rule = f"must have {width}x{height} pixels for the result from clip_rect.origin on"
            got = f"{max(columns, 0)}x{max(rows, 0)} within clip_rect"
            raise MPSArgumentError(self.name, self._destination_argument, rule, got)
        return super()._writable(destination, sources)

    def _source_region(self, index: int, destination_size: MTLSize) -> MPSRegion:
        self._written_size(destination_size)
        origin, size = self.clip_rect_source.origin, self.clip_rect_source.size
        return MPSRegion(MPSOrigin(origin.x, origin.y, 0.0), MPSSize(size.width, size.height, 1.0))
