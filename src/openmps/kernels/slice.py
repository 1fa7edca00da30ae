"""Slices of an image (MPSNNSlice.h, macOS 10.13.4)."""

from __future__ import annotations

from functools import partial

from openmps.core.kernel.arguments import channel_offset
from openmps.core.kernel.configuration import SourceProperty
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.ops.op import Value


class MPSNNSlice(MPSCNNKernel):
    """Y[c, y, x] = X[first + c, y + offset.y, x + offset.x], a copy (MPSNNSlice.h, macOS 10.13.4).

    ``first`` is `source_feature_channel_offset`, here any channel; `source_feature_channel_max_count` is the number of
    channels, `offset` the slice's corner in the source and the size of `clip_rect` its width and height. Outside the
    source the edge mode decides. An encode that returns its result slices channels alone: it sets `offset` to 0.
    """

    source_feature_channel_offset = SourceProperty[int](
        0, "channel_offset", partial(channel_offset, step=1), "The first source channel read. Default 0."
    )

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return at.read(images[0])
