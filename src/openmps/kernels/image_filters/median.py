"""Medians of windows (MPSImageMedian.h, macOS 10.13)."""

from __future__ import annotations

from openmps.checks import whole
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.image.median import Median
from openmps.ops.op import Value
from openmps.types import MPSImageEdgeMode, MPSImageFeatureChannelFormat


class MPSImageMedian(MPSUnaryImageKernel):
    """The median of a window of kernel_diameter x kernel_diameter pixels (MPSImageMedian.h, macOS 10.13).

    Channel by channel, the number in the middle of those of the window in order. Source and destination hold bytes.

    A diameter above `max_kernel_diameter` is taken, too; the cost grows with its square.

    Raises:
        MPSArgumentError: The diameter is even, or below `min_kernel_diameter`; in an encode, an image holds other
            numbers than bytes.
    """

    _filters_bytes = True
    _is_by_rows = True

    kernel_diameter = Fixed[int]("Rows and columns of the window.")

    def __init__(self, device: MTLDevice, kernel_diameter: int) -> None:
        super().__init__(device)
        kernel_diameter = whole(self.name, "kernel_diameter", kernel_diameter)
        least = self.min_kernel_diameter()
        if kernel_diameter % 2 == 0 or kernel_diameter < least:
            raise MPSArgumentError(self.name, "kernel_diameter", f"must be odd, and at least {least}", kernel_diameter)
        self._set_window(kernel_diameter, kernel_diameter, 1, 1)
        self._change(kernel_diameter=kernel_diameter)
        if self.conventions["median_edge"] == "clamp":
            self.edge_mode = MPSImageEdgeMode.CLAMP

    @staticmethod
    def max_kernel_diameter() -> int:
        """The largest diameter that is promised: 9, our choice, as the header has no number."""
        return 9

    @staticmethod
    def min_kernel_diameter() -> int:
        """The smallest diameter: 3, our choice, as the header has no number."""
        return 3

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        formats = {"source_image": at.shapes[0].channel_format, "destination_image": at.destination_format}
        for argument, stored_as in formats.items():
            if stored_as is not MPSImageFeatureChannelFormat.UNORM8:
                raise MPSArgumentError(self.name, argument, "must hold bytes, UNORM8", stored_as.name)
        return Median(self.kernel_diameter)(self._pixels(at, images))
