"""Sampling one image where another one says (MPSNNGridSample.h, macOS 10.15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.encode import Operation
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.ops.geometry import read
from openmps.ops.grid_sample import grid_sample
from openmps.types import MPSOffset

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


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

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._is_absolute = True

    @property
    def use_grid_value_as_input_coordinate(self) -> bool:
        """Whether the grid holds positions, or else distances in pixels from each result pixel's own. Default True."""
        return self._is_absolute

    @use_grid_value_as_input_coordinate.setter
    def use_grid_value_as_input_coordinate(self, value: bool) -> None:
        self._is_absolute = bool(value)

    def _needed_channels(self, index: int, available: int) -> int:
        return 2 if index == 1 else super()._needed_channels(index, available)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[0]

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        image, grid = images
        for source in self._sources:
            source.offset = MPSOffset(0, 0, source.offset.z)
        return MPSImageDescriptor(
            image.feature_channel_format,
            grid.width,
            grid.height,
            self._channels_read(0, image.feature_channels),
            self._images_to_make(images),
        )

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        self._check_strides()
        image, grid = sources
        origin = None if self._is_absolute else (image.window.y.offset, image.window.x.offset)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            positions = read(values[1], grid.window, grid.edge_mode)
            return grid_sample(values[0], positions, image.edge_mode, origin), None

        return operation

    def _check_strides(self) -> None:
        for prefix, source in zip(("primary", "secondary"), self._sources, strict=True):
            for axis, stride in (("x", source.stride_x), ("y", source.stride_y)):
                if stride != 1:
                    raise MPSArgumentError(self.name, f"{prefix}_stride_in_pixels_{axis}", "must be 1", stride)
