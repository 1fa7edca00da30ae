"""Correlation of two images over a window of displacements (MPSNNReduce.h, macOS 10.15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.property import KernelProperty, at_least
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.kernels.reduce.binary import MPSNNReduceBinary
from openmps.ops.geometry import read
from openmps.ops.local_correlation import local_correlation

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


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

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        super()._result_channels(channels)
        return (2 * self.window_in_x + 1) * (2 * self.window_in_y + 1)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        if index == 1:
            # All of B: which of it a result pixel meets is the business of the operation.
            width, height = self._pixels(index, extent)
        return super()._source_record(index, extent, width, height)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        window, stride = (self.window_in_y, self.window_in_x), (self.stride_in_y, self.stride_in_x)
        edge_mode = self.secondary_edge_mode

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            a, b = (read(value, source.window, source.edge_mode) for value, source in zip(values, sources, strict=True))
            return local_correlation(a, b, window, stride, edge_mode), None

        return operation
