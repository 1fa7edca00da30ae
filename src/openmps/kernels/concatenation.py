"""Concatenation of feature channels: what the graph's concatenation nodes run (MPSNNGraphNodes.h, macOS 10.13).

The framework has no public kernel for it: its producers write at channel offsets of one image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.multiary import MPSCNNMultiaryKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNMultiaryGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.ops.geometry import read, read_adjoint

if TYPE_CHECKING:
    from openmps.core.image.descriptor import MPSImageDescriptor
    from openmps.metal.device import MTLDevice


def slots(channels: tuple[int, ...]) -> tuple[int, ...]:
    """Channels that each source takes in the result: its own count, rounded up to a multiple of 4."""
    return tuple(-(-count // 4) * 4 for count in channels)


class Concatenation(MPSCNNMultiaryKernel):
    """Y = the sources' channels one after another, each source padded with zeros to a multiple of 4 channels."""

    _gradient_state_class = MPSNNMultiaryGradientState

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return sum(slots(channels))

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        first = images[0]
        for index, image in enumerate(images):
            if (image.width, image.height) != (first.width, first.height):
                raise MPSArgumentError(
                    self.name,
                    f"source {index}",
                    f"must be as large as source 0, {first.width}x{first.height} pixels",
                    f"{image.width}x{image.height}",
                )
        return super()._sized_by_policy(images)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        taken = slots(tuple(source.channels for source in sources))

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            parts: list[Tensor] = []
            for value, source, slot in zip(values, sources, taken, strict=True):
                parts.append(read(value, source.window, source.edge_mode))
                if slot > source.channels:
                    size = (value.shape[0], slot - source.channels, target.height, target.width)
                    gap = torch.empty(size, dtype=value.dtype, device=value.device, memory_format=torch.channels_last)
                    parts.append(gap.zero_())
            return torch.cat(parts, 1).contiguous(memory_format=torch.channels_last), None

        return operation


class ConcatenationGradient(MPSCNNGradientKernel):
    """dX = the channels of G that source ``index`` was written to."""

    def __init__(self, device: MTLDevice, index: int) -> None:
        super().__init__(device)
        self._index = index

    def _forward_source(self) -> int:
        return self._index

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        primary = self._sources[0]
        primary.channel_offset = sum(slots(tuple(source.channels for source in record.sources[: self._index])))
        primary.channel_max_count = record.sources[self._index].channels

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return read_adjoint(gradient, geometry.data, geometry.edge_mode), None

        return differentiate
