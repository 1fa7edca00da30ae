"""Concatenation of feature channels: what the graph's concatenation nodes run (MPSNNGraphNodes.h, macOS 10.13).

The framework has no public kernel for it: its producers write at channel offsets of one image.
"""

from __future__ import annotations

from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.multiary import MPSCNNMultiaryKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNMultiaryGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.layout.concatenation import Concatenate
from openmps.ops.op import Value


def slots(channels: tuple[int, ...]) -> tuple[int, ...]:
    """Channels that each source takes in the result: its own count, rounded up to a multiple of 4."""
    return tuple(-(-count // 4) * 4 for count in channels)


class Concatenation(MPSCNNMultiaryKernel, leaves=MPSNNMultiaryGradientState):
    """Y = the sources' channels one after another, each source filled up to a multiple of 4 channels.

    A source of one or two channels is filled as its texture is read, with 1 in the fourth; all others with zeros. The
    convention ``concatenation_filler`` chooses.
    """

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return sum(slots(channels))

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        first = shapes[0].extent
        for index, (extent, _) in enumerate(shapes):
            if (extent.width, extent.height) != (first.width, first.height):
                rule = f"must be as large as source 0, {first.width}x{first.height} pixels"
                raise MPSArgumentError(self.name, f"source {index}", rule, f"{extent.width}x{extent.height}")
        return super()._sized(shapes)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        taken = slots(tuple(source.channels for source in at.sources))
        alpha = 1.0 if self.conventions["concatenation_filler"] == "texture" else 0.0
        return Concatenate(taken, alpha)(*(at.read(image, index) for index, image in enumerate(images)))


class ConcatenationGradient(MPSCNNGradientKernel):
    """dX = the channels of G that source ``index`` was written to."""

    _index = Setting[int]()

    def __init__(self, device: MTLDevice, index: int) -> None:
        super().__init__(device)
        self._index = index

    def _forward_source(self) -> int:
        return self._index

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        self._change_source(
            0,
            channel_offset=sum(slots(tuple(source.channels for source in record.sources[: self._index]))),
            channel_max_count=record.sources[self._index].channels,
        )

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        return at.back(gradient)
