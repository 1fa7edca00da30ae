"""Reductions and local correlation (MPSNNReduce.h, macOS 10.13.4 to 10.15).

Their sources are read in a region of their own instead of from an offset on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from openmps.checks import flag, number
from openmps.core.image.storage import Extent
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.configuration import KernelProperty, Setting, at_least
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext, back
from openmps.core.kernel.regions import ReadsRegions, RegionOf, ignored_offset
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.ops.reduce.local_correlation import LocalCorrelation
from openmps.ops.reduce.reduce import (
    CHANNELS,
    COLUMNS,
    PIXELS,
    ROWS,
    Reduce,
    ReduceWeighted,
    Reduction,
    Spread,
    Weighting,
)

_LAST = {
    Reduction.ARGUMENT_MIN: Reduction.LAST_ARGUMENT_MIN,
    Reduction.ARGUMENT_MAX: Reduction.LAST_ARGUMENT_MAX,
}


class MPSNNReduceUnary(ReadsRegions, MPSCNNKernel):
    """The base of reductions of one image (MPSNNReduce.h, macOS 10.13.4).

    A result number stands for all the numbers along one axis of the part of the source that `clip_rect_source` and the
    feature channel properties select: a reduction along rows leaves one column, one along columns one row, one along
    feature channels one channel. Results are written from ``clip_rect.origin`` on. There are no gradients. NaN in the
    source gives NaN, apart from the arguments' classes.
    """

    _is_abstract = True
    _reduction: ClassVar[Reduction | None] = None
    _axis: ClassVar[int | None] = None
    _region_arguments = ("clip_rect_source",)
    _first_image_argument = "clip_rect_source.origin.z"

    clip_rect_source = RegionOf(0, "source")
    offset = ignored_offset("clip_rect_source")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    def __init_subclass__(cls, reduction: Reduction | None = None, axis: int | None = None) -> None:
        super().__init_subclass__()
        cls._reduction, cls._axis = reduction or cls._reduction, axis or cls._axis

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return 1 if self._axis == CHANNELS else channels[0]

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        columns, rows = self._pixels_read(0, sources[0])
        return 1 if self._axis == COLUMNS else columns, 1 if self._axis == ROWS else rows

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        columns, rows = self._pixels_read(index, extent)
        width = columns if self._axis == COLUMNS else width
        height = rows if self._axis == ROWS else height
        return super()._source_record(index, extent, width, height)

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        if self._reduction is None or self._axis is None:
            return super()._lower(at, *images)
        reduction = self._reduction
        if reduction in _LAST and self.conventions["argument_ties"] == "last":
            reduction = _LAST[reduction]
        return Reduce(reduction, self._axis)(at.read(images[0]))


class MPSNNReduceRowMin(MPSNNReduceUnary, reduction=Reduction.MIN, axis=COLUMNS):
    """The smallest number of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceRowMax(MPSNNReduceUnary, reduction=Reduction.MAX, axis=COLUMNS):
    """The largest number of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceRowMean(MPSNNReduceUnary, reduction=Reduction.MEAN, axis=COLUMNS):
    """The mean of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """


class MPSNNReduceRowSum(MPSNNReduceUnary, reduction=Reduction.SUM, axis=COLUMNS):
    """The sum of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceColumnMin(MPSNNReduceUnary, reduction=Reduction.MIN, axis=ROWS):
    """The smallest number of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceColumnMax(MPSNNReduceUnary, reduction=Reduction.MAX, axis=ROWS):
    """The largest number of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceColumnMean(MPSNNReduceUnary, reduction=Reduction.MEAN, axis=ROWS):
    """The mean of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """


class MPSNNReduceColumnSum(MPSNNReduceUnary, reduction=Reduction.SUM, axis=ROWS):
    """The sum of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceFeatureChannelsMin(MPSNNReduceUnary, reduction=Reduction.MIN, axis=CHANNELS):
    """The smallest number of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceFeatureChannelsMax(MPSNNReduceUnary, reduction=Reduction.MAX, axis=CHANNELS):
    """The largest number of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""


class MPSNNReduceFeatureChannelsMean(MPSNNReduceUnary, reduction=Reduction.MEAN, axis=CHANNELS):
    """The mean of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """


class MPSNNReduceFeatureChannelsSum(MPSNNReduceUnary, reduction=Reduction.SUM, axis=CHANNELS):
    """`weight` times the sum of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""

    weight = KernelProperty(1.0, number, "Factor of every feature channel. Default 1.")

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Reduce(Reduction.SUM, CHANNELS, self.weight)(at.read(images[0]))


class MPSNNReduceFeatureChannelsArgumentMin(MPSNNReduceUnary, reduction=Reduction.ARGUMENT_MIN, axis=CHANNELS):
    """The index of the smallest feature channel of each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.14).

    Counted from the first channel read; of equal channels the first, of NaN the first NaN. It is stored as a number:
    float16 holds it exactly up to 2048, and unorm formats not at all, so give a float destination for such a source.
    """


class MPSNNReduceFeatureChannelsArgumentMax(MPSNNReduceUnary, reduction=Reduction.ARGUMENT_MAX, axis=CHANNELS):
    """The index of the largest feature channel of each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.14).

    Counted from the first channel read; of equal channels the first, of NaN the first NaN. It is stored as a number:
    float16 holds it exactly up to 2048, and unorm formats not at all, so give a float destination for such a source.
    """


class SpatialMean(MPSNNReduceUnary):
    """The mean of each channel: 1 x 1 x C; what the graph's node runs (MPSNNGraphNodes.h, macOS 10.14.1).

    The framework has no public kernel for it.
    """

    _gradient_state_class = MPSNNGradientState

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        return 1, 1

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        columns, rows = self._pixels_read(index, extent)
        return super()._source_record(index, extent, columns, rows)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Reduce(Reduction.MEAN, PIXELS)(at.read(images[0]))


class SpatialMeanGradient(MPSCNNGradientKernel, of=SpatialMean):
    """dX = G / N at the N pixels that the forward kernel read, 0 elsewhere."""

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        given: Given = at.given
        forward = given.record.sources[0]
        rows, columns = forward.window.result
        return back(Spread(rows, columns)(gradient), forward.window, forward.edge_mode)


class MPSNNReduceBinary(ReadsRegions, MPSCNNBinaryKernel):
    """The base of reductions of two images (MPSNNReduce.h, macOS 10.13.4).

    The result has a pixel for each pixel of `primary_source_clip_rect`, written from ``clip_rect.origin`` on. Both
    sources must have the same number of feature channels read. There are no gradients.
    """

    _is_abstract = True
    _region_arguments = ("primary_source_clip_rect", "secondary_source_clip_rect")
    _first_image_argument = "primary_source_clip_rect.origin.z, secondary_source_clip_rect.origin.z"
    _pixel_strides: ClassVar[tuple[tuple[int, ...], ...]] = ((1,), (1,))

    primary_source_clip_rect = RegionOf(0, "primary source")
    secondary_source_clip_rect = RegionOf(1, "secondary source")
    primary_offset = ignored_offset("primary_source_clip_rect")  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]
    secondary_offset = ignored_offset("secondary_source_clip_rect")  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        first, second = channels
        if first != second:
            rule = "must have the same number of feature channels read"
            raise MPSArgumentError(self.name, "sources", rule, f"{first} and {second}")
        return 1

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        source, allowed = self._sources[index], self._pixel_strides[index]
        for axis, stride in (("x", source.stride_x), ("y", source.stride_y)):
            if stride not in allowed:
                name = f"{('primary', 'secondary')[index]}_stride_in_pixels_{axis}"
                raise MPSArgumentError(self.name, name, f"must be {' or '.join(str(each) for each in allowed)}", stride)
        return super()._source_record(index, extent, width, height)


class _WeightedReduction(MPSNNReduceBinary):
    """One number a pixel, made of its feature channels and its weights."""

    _pixel_strides = ((1,), (0, 1))
    _weighting = Setting[Weighting]()

    def __init__(self, device: MTLDevice, weighting: Weighting) -> None:
        super().__init__(device)
        self._weighting = weighting

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        if index == 0:
            return record
        columns, rows = self._pixels_read(index, extent)
        x, y = record.window.x, record.window.y
        x = replace(x, stride=0) if columns == 1 else x
        y = replace(y, stride=0) if rows == 1 else y
        if x.read > columns or y.read > rows:
            raise MPSArgumentError(
                self.name,
                "secondary_source_clip_rect",
                f"must select as many pixels as are read of the primary source, {width}x{height}, or one along an axis",
                f"{columns}x{rows}",
            )
        return replace(record, window=replace(record.window, x=x, y=y))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        features, weights = images
        weighting = self._weighting
        if weighting is Weighting.MEAN and self.conventions["weighted_mean"] == "weights":
            weighting = Weighting.WEIGHTS
        return ReduceWeighted(weighting)(at.read(features), at.read(weights, 1))


class MPSNNReduceFeatureChannelsAndWeightsMean(_WeightedReduction):
    """sum_c X[c] Wt[c] / C for each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The primary image holds the features X, the secondary image the weights Wt of each pixel, or, with one column or
    row, those of all. C is the number of feature channels read.
    """

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, Weighting.MEAN)


class MPSNNReduceFeatureChannelsAndWeightsSum(_WeightedReduction):
    """sum_c X[c] Wt[c] for each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The primary image holds the features X, the secondary image the weights Wt of each pixel, or, with one column or
    row, those of all. With `do_weighted_sum_by_non_zero_weights` the sum is divided by the number of the pixel's
    weights that are not 0; it is 0 where all are.
    """

    def __init__(self, device: MTLDevice, do_weighted_sum_by_non_zero_weights: bool = False) -> None:
        name = "do_weighted_sum_by_non_zero_weights"
        by_non_zero = flag(type(self).__name__, name, do_weighted_sum_by_non_zero_weights)
        super().__init__(device, Weighting.NON_ZERO if by_non_zero else Weighting.SUM)

    @property
    def do_weighted_sum_by_non_zero_weights(self) -> bool:
        """Whether the sum is divided by the number of weights that are not 0. Default False."""
        return self._weighting is Weighting.NON_ZERO


class MPSNNLocalCorrelation(MPSNNReduceBinary):
    """Y[f(m, n), y, x] = sum_c A[c, y, x] B[c, y + N[n], x + M[m]] (MPSNNReduce.h, macOS 10.15).

    A is the primary and B the secondary source; M[m] = (m - window_in_x) stride_in_x for m = 0 .. 2 window_in_x,
    N[n] = (n - window_in_y) stride_in_y for n = 0 .. 2 window_in_y. The result has (2 window_in_x + 1)
    (2 window_in_y + 1) feature channels, m running faster: f(m, n) = n (2 window_in_x + 1) + m. Outside the part of B
    that `secondary_source_clip_rect` selects, B is what `secondary_edge_mode` says.
    """

    window_in_x = KernelProperty(0, at_least(0), "Displacements to either side along a row, in strides. Default 0.")
    window_in_y = KernelProperty(0, at_least(0), "Displacements to either side along a column, in strides. Default 0.")
    stride_in_x = KernelProperty(
        1, at_least(1), "Pixels from one displacement to the next along a row, at least 1. Default 1."
    )
    stride_in_y = KernelProperty(
        1, at_least(1), "Pixels from one displacement to the next along a column, at least 1. Default 1."
    )

    def __init__(
        self,
        device: MTLDevice,
        window_in_x: int = 0,
        window_in_y: int = 0,
        stride_in_x: int = 1,
        stride_in_y: int = 1,
    ) -> None:
        super().__init__(device)
        self.window_in_x = window_in_x
        self.window_in_y = window_in_y
        self.stride_in_x = stride_in_x
        self.stride_in_y = stride_in_y

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        super()._result_channels(channels)
        return (2 * self.window_in_x + 1) * (2 * self.window_in_y + 1)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        if index == 1:
            # All of B: which of it a result pixel meets is the business of the operation.
            width, height = self._pixels_read(index, extent)
        return super()._source_record(index, extent, width, height)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        window, stride = (self.window_in_y, self.window_in_x), (self.stride_in_y, self.stride_in_x)
        a, b = images
        return LocalCorrelation(window, stride, at.sources[1].edge_mode)(at.read(a), at.read(b, 1))
