"""Sampling one image where another one says (MPSNNGridSample.h, macOS 10.15)."""

from __future__ import annotations

from typing import Any

from openmps.checks import flag
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError
from openmps.ops.op import Value
from openmps.ops.resample.grid_sample import GridSample
from openmps.ops.resample.stretch import Corners

_CORNERS = {"corners": Corners.CENTRES, "edges": Corners.EDGES, "pixels": Corners.STEPS}
"""By the convention ``grid_corners``."""


class MPSNNGridSample(MPSCNNBinaryKernel):
    """Y[c, y, x] = X[c] at the position (u, v), by bilinear interpolation (MPSNNGridSample.h, macOS 10.15).

    The secondary image is the grid: of the channels read of it the first, gx, is across, the second, gy, down. With X
    of W columns and H rows::

        u = (gx + 1) / 2 (W - 1)              v = (gy + 1) / 2 (H - 1)         use_grid_value_as_input_coordinate True
        u = x + primary_offset.x + gx         v = y + primary_offset.y + gy    False

    so that with the former -1 is the centre of the first pixel and 1 that of the last, as PyTorch's
    ``grid_sample(align_corners=True)``; `primary_offset` means nothing then. Each of the four pixels around (u, v) that
    lies outside X is what `primary_edge_mode` says: 0, or the nearest of the edge. A position that is not a number
    gives a result that is none. The result of an encode that returns it is as large as the grid.

    The header points to PyTorch's function of its time and says no more.
    """

    use_grid_value_as_input_coordinate = KernelProperty(
        True,
        flag,
        "Whether the grid holds positions, or else distances in pixels from each result pixel's own. Default True.",
    )

    def _needed_channels(self, index: int, available: int) -> int:
        return 2 if index == 1 else super()._needed_channels(index, available)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[0]

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        source, grid = (shape.extent for shape in shapes)
        self._place(0, 0, 0, 0)
        channels = self._channels_read(0, source.channels)
        return Extent(grid.width, grid.height, channels, self._images_to_make(shapes))

    def _check_plan(self, records: tuple[SourceRecord, ...], target: Target, given: Any, images: int) -> None:
        for prefix, source in zip(("primary", "secondary"), self._sources, strict=True):
            for axis, stride in (("x", source.stride_x), ("y", source.stride_y)):
                if stride != 1:
                    raise MPSArgumentError(self.name, f"{prefix}_stride_in_pixels_{axis}", "must be 1", stride)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        source, grid = images
        if not self.use_grid_value_as_input_coordinate:
            return GridSample(at.edge_mode, (at.window.y.offset, at.window.x.offset))(source, at.read(grid, 1))
        corners = _CORNERS[self.conventions["grid_corners"]]
        return GridSample(at.edge_mode, None, corners)(source, at.read(grid, 1))
