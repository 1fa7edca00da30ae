"""Slices of an image (MPSNNSlice.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.ops.geometry import read


class MPSNNSlice(MPSCNNKernel):
    """Y[c, y, x] = X[first + c, y + offset.y, x + offset.x], a copy (MPSNNSlice.h, macOS 10.13.4).

    ``first`` is `source_feature_channel_offset`, here any channel; `source_feature_channel_max_count` is the number of
    channels, `offset` the slice's corner in the source and the size of `clip_rect` its width and height. Outside the
    source the edge mode decides. An encode that returns its result slices channels alone: it sets `offset` to 0.
    """

    _channel_step = 1

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return read(values[0], source.window, source.edge_mode), None

        return operation
