"""Reductions of two images: feature channels with weights (MPSNNReduce.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.encode import Operation
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.kernels.reduce.region import ReadsRegions, RegionOf, ignored_offset
from openmps.ops.geometry import read
from openmps.ops.reduce import weighted_mean, weighted_sum, weighted_sum_by_non_zero_weights

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

Function = Callable[[Tensor, Tensor], Tensor]


class MPSNNReduceBinary(ReadsRegions, MPSCNNBinaryKernel):
    """The base of reductions of two images (MPSNNReduce.h, macOS 10.13.4).

    The result has a pixel for each pixel of `primary_source_clip_rect`, written from ``clip_rect.origin`` on. Both
    sources must have the same number of feature channels read. There are no gradients.
    """

    _region_arguments = ("primary_source_clip_rect", "secondary_source_clip_rect")
    _first_image_argument = "primary_source_clip_rect.origin.z, secondary_source_clip_rect.origin.z"
    _pixel_strides: ClassVar[tuple[tuple[int, ...], ...]] = ((1,), (1,))

    primary_source_clip_rect = RegionOf(
        0, "The pixels and images of the primary source that are read, cut to it. Default: all. It replaces the offset."
    )
    secondary_source_clip_rect = RegionOf(
        1,
        "The pixels and images of the secondary source that are read, cut to it. Default: all. It replaces the offset.",
    )
    primary_offset = ignored_offset("Not used: `primary_source_clip_rect` replaces it.")  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]
    secondary_offset = ignored_offset("Not used: `secondary_source_clip_rect` replaces it.")  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        first, second = channels
        if first != second:
            raise MPSArgumentError(
                self.name, "sources", "must have the same number of feature channels read", f"{first} and {second}"
            )
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

    def __init__(self, device: MTLDevice, function: Function) -> None:
        super().__init__(device)
        self._function = function

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        if index == 0:
            return record
        columns, rows = self._pixels(index, extent)
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

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        function = self._function

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            features, weights = (
                read(value, source.window, source.edge_mode) for value, source in zip(values, sources, strict=True)
            )
            return function(features, weights), None

        return operation


class MPSNNReduceFeatureChannelsAndWeightsMean(_WeightedReduction):
    """sum_c X[c] Wt[c] / C for each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The primary image holds the features X, the secondary image the weights Wt of each pixel, or, with one column or
    row, those of all. C is the number of feature channels read.
    """

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, weighted_mean)


class MPSNNReduceFeatureChannelsAndWeightsSum(_WeightedReduction):
    """sum_c X[c] Wt[c] for each pixel: W x H x 1 (MPSNNReduce.h, macOS 10.13.4).

    The primary image holds the features X, the secondary image the weights Wt of each pixel, or, with one column or
    row, those of all. With `do_weighted_sum_by_non_zero_weights` the sum is divided by the number of the pixel's
    weights that are not 0; it is 0 where all are.
    """

    def __init__(self, device: MTLDevice, do_weighted_sum_by_non_zero_weights: bool = False) -> None:
        self._by_non_zero_weights = bool(do_weighted_sum_by_non_zero_weights)
        super().__init__(device, weighted_sum_by_non_zero_weights if self._by_non_zero_weights else weighted_sum)

    @property
    def do_weighted_sum_by_non_zero_weights(self) -> bool:
        """Whether the sum is divided by the number of weights that are not 0. Default False."""
        return self._by_non_zero_weights
