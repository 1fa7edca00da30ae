"""Reductions of one image along rows, columns or feature channels (MPSNNReduce.h, macOS 10.13.4 and 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.property import KernelProperty
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import number
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.kernels.reduce.region import ReadsRegions, RegionOf, ignored_offset
from openmps.ops.geometry import read
from openmps.ops.reduce import CHANNELS, COLUMNS, ROWS, Reduction, reduce


class MPSNNReduceUnary(ReadsRegions, MPSCNNKernel):
    """The base of reductions of one image (MPSNNReduce.h, macOS 10.13.4).

    A result number stands for all the numbers along one axis of the part of the source that `clip_rect_source` and the
    feature channel properties select: a reduction along rows leaves one column, one along columns one row, one along
    feature channels one channel. Results are written from ``clip_rect.origin`` on. There are no gradients. NaN in the
    source gives NaN, apart from the arguments' classes.
    """

    _reduction: ClassVar[Reduction | None] = None
    _axis: ClassVar[int | None] = None
    _region_arguments = ("clip_rect_source",)
    _first_image_argument = "clip_rect_source.origin.z"

    clip_rect_source = RegionOf(
        0, "The pixels and images of the source that are read, cut to the source. Default: all. It replaces the offset."
    )
    offset = ignored_offset("Not used: `clip_rect_source` replaces it.")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return 1 if self._axis == CHANNELS else channels[0]

    def _result_size(self, sources: Sequence[Extent]) -> tuple[int, int]:
        columns, rows = self._pixels(0, sources[0])
        return 1 if self._axis == COLUMNS else columns, 1 if self._axis == ROWS else rows

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        columns, rows = self._pixels(index, extent)
        width = columns if self._axis == COLUMNS else width
        height = rows if self._axis == ROWS else height
        return super()._source_record(index, extent, width, height)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        reduction, axis = self._reduction, self._axis
        if reduction is None or axis is None:
            return super()._operation(sources, target, states)
        (source,) = sources

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return reduce(read(values[0], source.window, source.edge_mode), reduction, axis), None

        return operation


class MPSNNReduceRowMin(MPSNNReduceUnary):
    """The smallest number of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MIN
    _axis = COLUMNS


class MPSNNReduceRowMax(MPSNNReduceUnary):
    """The largest number of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MAX
    _axis = COLUMNS


class MPSNNReduceRowMean(MPSNNReduceUnary):
    """The mean of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """

    _reduction = Reduction.MEAN
    _axis = COLUMNS


class MPSNNReduceRowSum(MPSNNReduceUnary):
    """The sum of each row and channel: 1 x H x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.SUM
    _axis = COLUMNS


class MPSNNReduceColumnMin(MPSNNReduceUnary):
    """The smallest number of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MIN
    _axis = ROWS


class MPSNNReduceColumnMax(MPSNNReduceUnary):
    """The largest number of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MAX
    _axis = ROWS


class MPSNNReduceColumnMean(MPSNNReduceUnary):
    """The mean of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """

    _reduction = Reduction.MEAN
    _axis = ROWS


class MPSNNReduceColumnSum(MPSNNReduceUnary):
    """The sum of each column and channel: W x 1 x C (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.SUM
    _axis = ROWS


class MPSNNReduceFeatureChannelsMin(MPSNNReduceUnary):
    """The smallest number of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MIN
    _axis = CHANNELS


class MPSNNReduceFeatureChannelsMax(MPSNNReduceUnary):
    """The largest number of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""

    _reduction = Reduction.MAX
    _axis = CHANNELS


class MPSNNReduceFeatureChannelsMean(MPSNNReduceUnary):
    """The mean of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The divisor is the number of numbers read.
    """

    _reduction = Reduction.MEAN
    _axis = CHANNELS


class MPSNNReduceFeatureChannelsSum(MPSNNReduceUnary):
    """`weight` times the sum of each pixel, over its feature channels: W x H x 1 (MPSNNReduce.h, macOS 10.13.4)."""

    weight = KernelProperty(1.0, number, "Factor of every feature channel. Default 1.")

    _reduction = Reduction.SUM
    _axis = CHANNELS

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        total, weight = super()._operation(sources, target, states), self.weight

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor | None, Any]:
            result, produced = total(values, saved)
            return None if result is None else result.mul_(weight), produced

        return operation


class MPSNNReduceFeatureChannelsArgumentMin(MPSNNReduceUnary):
    """The index of the smallest feature channel of each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.14).

    Counted from the first channel read; of equal channels the first, of NaN the first NaN. It is stored as a number:
    float16 holds it exactly up to 2048, and unorm formats not at all, so give a float destination for such a source.
    """

    _reduction = Reduction.ARGUMENT_MIN
    _axis = CHANNELS


class MPSNNReduceFeatureChannelsArgumentMax(MPSNNReduceUnary):
    """The index of the largest feature channel of each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.14).

    Counted from the first channel read; of equal channels the first, of NaN the first NaN. It is stored as a number:
    float16 holds it exactly up to 2048, and unorm formats not at all, so give a float destination for such a source.
    """

    _reduction = Reduction.ARGUMENT_MAX
    _axis = CHANNELS
