"""Statistics of pictures (MPSImageStatistics.h, macOS 10.13)."""

from __future__ import annotations

from openmps.core.kernel.lowering_context import LoweringContext
from openmps.kernels.image_filters.measure import MeasuringFilter
from openmps.metal.device import MTLDevice
from openmps.ops.image.statistics import MeanAndVariance, MinAndMax
from openmps.ops.op import Value
from openmps.ops.reduce.reduce import PIXELS, Reduce, Reduction
from openmps.types import MPSImageFeatureChannelFormat


class _TwoMeasures(MeasuringFilter):
    """Two numbers of each channel, beside one another."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)

    def _measured(self, columns: int, rows: int) -> tuple[int, int]:
        return 2, 1


class MPSImageStatisticsMinAndMax(_TwoMeasures):
    """The smallest number of each channel at (0, 0), the largest at (1, 0) (MPSImageStatistics.h, macOS 10.13).

    Of the pixels of `clip_rect_source`; the result is written from ``clip_rect.origin`` on. NaN anywhere gives NaN.

    Raises:
        MPSArgumentError: In an encode, the clip rectangle has not two pixels of a row of the destination.
    """

    _filters_bytes = True

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return MinAndMax()(self._pixels(at, images))


class MPSImageStatisticsMeanAndVariance(_TwoMeasures):
    """The mean of each channel at (0, 0), its variance at (1, 0) (MPSImageStatistics.h, macOS 10.13).

    Of the pixels of `clip_rect_source`; the result is written from ``clip_rect.origin`` on. The variance is that of the
    population: the sum of the squared distances from the mean, divided by the number of pixels; by one less where the
    convention ``image_variance`` says so.

    Raises:
        MPSArgumentError: In an encode, the clip rectangle has not two pixels of a row of the destination.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        is_bytes = at.shapes[0].channel_format is MPSImageFeatureChannelFormat.UNORM8
        is_sample = self.conventions["image_variance"] == "sample"
        return MeanAndVariance(is_sample)(self._stored_pixels(at) if is_bytes else self._pixels(at, images))


class MPSImageStatisticsMean(MeasuringFilter):
    """The mean of each channel at (0, 0) (MPSImageStatistics.h, macOS 10.13).

    Of the pixels of `clip_rect_source`; the result is written at ``clip_rect.origin``.
    """

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)

    def _measured(self, columns: int, rows: int) -> tuple[int, int]:
        return 1, 1

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Reduce(Reduction.MEAN, PIXELS)(self._pixels(at, images))
