"""What layers share whose kernel is as large as the image: placed at pixel 0, without padding."""

from __future__ import annotations

from dataclasses import replace

from openmps.core.image.storage import Extent
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSNNPaddingMethod


def whole_image_axis(axis: Axis) -> Axis:
    """A fully connected layer's axis: the offset is ignored and the window starts at pixel 0."""
    return replace(axis, offset=axis.extent // 2)


class WholeImageKernel(MPSCNNKernel):
    """A kernel that ignores the offset and writes one pixel for each place where it fits into the source."""

    _default_padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        return replace(record, window=Window(x=whole_image_axis(record.window.x), y=whole_image_axis(record.window.y)))

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        source, clip = sources[0], self.clip_rect.origin
        width, height = source.width - self.kernel_width + 1, source.height - self.kernel_height + 1
        if width < 1 or height < 1:
            rule = f"must be as large as the kernel, {self.kernel_width}x{self.kernel_height} pixels"
            remedy = "Make the kernel's width and height those of the image that it sees"
            raise MPSArgumentError(self.name, "source_image", rule, f"{source.width}x{source.height}", remedy)
        return destination._replace(
            width=min(destination.width, clip.x + width), height=min(destination.height, clip.y + height)
        )
