"""Rows as columns (MPSImageTranspose.h, macOS 10.13)."""

from __future__ import annotations

from dataclasses import replace

from openmps.core.image.storage import Extent
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import SourceRecord
from openmps.ops.geometry import Window
from openmps.ops.image.transpose import Transposed
from openmps.ops.op import Value
from openmps.types import MPSOrigin, MPSRegion, MPSSize, MTLSize


class MPSImageTranspose(MPSUnaryImageKernel):
    """Pixel (i, j) of the result is source pixel ``offset + (j, i)`` (MPSImageTranspose.h, macOS 10.13).

    (i, j) counts from the corner of the clip rectangle. Of a source of W x H pixels the result has H x W. It is never
    put in the place of the source: an encode in place asks the allocator for an image.
    """

    _filters_bytes = True
    _works_in_place = False

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record, offset = super()._source_record(index, extent, height, width), self._source_offset()
        x, y = (replace(axis, offset=at) for axis, at in zip((record.window.x, record.window.y), offset, strict=True))
        return replace(record, window=Window(x, y))

    def _source_offset(self) -> tuple[int, int]:
        """Columns and rows of the source: the offset's, or of an offset among the result's columns and rows."""
        x, y = self.offset.x, self.offset.y
        return (y, x) if x != y and self.conventions["transpose_offset"] == "destination" else (x, y)

    def _source_region(self, index: int, destination_size: MTLSize) -> MPSRegion:
        size = self._written_size(destination_size)
        x, y = self._source_offset()
        return MPSRegion(MPSOrigin(x, y, 0.0), MPSSize(size.height, size.width, 1.0))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Transposed()(self._pixels(at, images))
