"""Blurs: box, tent, Gaussian (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from openmps.core.image.storage import Extent
from openmps.core.image.storage import Shape as ImageShape
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import MPSUnaryImageKernel, WindowedFilter
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError
from openmps.kernels.image_filters.reach import LARGEST_WINDOW, gaussian_size
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Window
from openmps.ops.image.readings import InsideShare
from openmps.ops.image.separable import MeanBytes, Profile, Separable, SeparableBytes, Shape, sums_bytes
from openmps.ops.op import Value
from openmps.types import MPSImageEdgeMode, MPSOrigin, MPSRegion, MPSSize, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format


class _Blur(MPSUnaryImageKernel):
    """What the blurs share: weights that are products of those along each axis, of sum 1."""

    _is_by_rows = True

    def _profile(self) -> Profile:
        raise NotImplementedError

    def _counts_inside(self, edge_mode: MPSImageEdgeMode) -> bool:
        """Whether weights outside the picture count for nothing."""
        return False

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        profile = self._profile()
        if self._counts_inside(at.edge_mode):
            sums = Separable(at.window, at.edge_mode, profile)(images[0])
            return self._components(at, InsideShare(at.window, profile)(sums), at.sources[0].channels)
        if at.as_stored:
            return MeanBytes(at.window.size, profile)(self._stored_pixels(at))
        if at.shapes[0].channel_format is Format.UNORM8 and sums_bytes(at.window, profile):
            return SeparableBytes(at.window.size, profile)(self._stored_pixels(at))
        blurred = Separable(at.window, at.edge_mode, profile)(images[0])
        return self._components(at, blurred, at.sources[0].channels)


class MPSImageBox(_Blur, WindowedFilter):
    """The mean of a window of kernel_width x kernel_height pixels (MPSImageConvolution.h, macOS 10.13).

    The divisor is always the number of pixels of the window: with ZERO, the default, results grow dark to the rim. By
    the convention ``box_border`` it is the number of those inside the picture.
    Large windows cost little more than small ones.

    Raises:
        MPSArgumentError: A size is even or not positive.
    """

    _shape: ClassVar[Shape] = Shape.FLAT

    def _counts_inside(self, edge_mode: MPSImageEdgeMode) -> bool:
        return edge_mode is MPSImageEdgeMode.ZERO and self.conventions["box_border"] == "inside"

    def _takes_stored(
        self, records: tuple[SourceRecord, ...], shapes: tuple[ImageShape, ...], destination: ImageShape
    ) -> bool:
        is_near = sums_bytes(records[0].window, self._profile())
        return (
            is_near
            and not self._counts_inside(records[0].edge_mode)
            and {shapes[0].channel_format, destination.channel_format} == {Format.UNORM8}
        )

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        self._set_odd_window(kernel_width, kernel_height)

    def _profile(self) -> Profile:
        return Profile(self._shape)


class MPSImageTent(MPSImageBox):
    """A window whose weights fall linearly from its centre (MPSImageConvolution.h, macOS 10.13).

    Along each axis, with ``m = (k - 1) / 2`` for a window of k pixels, pixel i from the centre weighs
    ``(m + 1 - |i|) / (m + 1)²``: 1 2 1 over 4 for 3 pixels, 1 2 3 2 1 over 9 for 5. By the convention ``tent_width``
    the window is that of a box of this size that is applied twice: 1 2 3 2 1 for 3 pixels.

    Raises:
        MPSArgumentError: A size is even, not positive, or above 1,048,576.
    """

    _shape = Shape.TRIANGLE

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device, kernel_width, kernel_height)
        for argument, size in (("kernel_width", kernel_width), ("kernel_height", kernel_height)):
            if size > LARGEST_WINDOW:
                raise MPSArgumentError(self.name, argument, f"must be at most {LARGEST_WINDOW}", size)

    def _is_twice(self) -> bool:
        """Whether the size is that of a box that is applied twice, by a convention."""
        return self.conventions["tent_width"] == "twice"

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        if not self._is_twice():
            return record
        x, y = (replace(each, size=2 * each.size - 1) for each in (record.window.x, record.window.y))
        return replace(record, window=Window(x, y))

    def _source_region(self, index: int, destination_size: MTLSize) -> MPSRegion:
        region = super()._source_region(index, destination_size)
        if not self._is_twice():
            return region
        (corner, size), (wide, high) = (region.origin, region.size), (self.kernel_width - 1, self.kernel_height - 1)
        origin = MPSOrigin(corner.x - wide // 2, corner.y - high // 2, corner.z)
        return MPSRegion(origin, MPSSize(size.width + wide, size.height + high, size.depth))


class MPSImageGaussianBlur(_Blur):
    """A Gaussian blur of standard deviation `sigma`, in pixels (MPSImageConvolution.h, macOS 10.13).

    Along each axis a pixel at distance i weighs ``exp(-i² / (2 sigma²))``, for ``|i| <= q = ceil(3.7 sigma)``, divided
    by the sum of these weights. The framework's own is an approximation of about ten bits; this one is exact.

    Raises:
        MPSArgumentError: ``sigma`` is not positive, not finite, or so large that a window would have more than
            1,048,576 pixels along an axis.
    """

    sigma = Fixed[float]("The standard deviation, in pixels.")

    def __init__(self, device: MTLDevice, sigma: float) -> None:
        super().__init__(device)
        size = gaussian_size(self.name, sigma)
        self._set_window(size, size, 1, 1)
        self._change(sigma=float(sigma))

    def _profile(self) -> Profile:
        return Profile(Shape.BELL, self.sigma)
