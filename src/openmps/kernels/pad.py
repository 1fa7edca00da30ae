"""Padding as a kernel of its own, and its gradient (MPSNNReshape.h, macOS 10.14.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.checks import number
from openmps.core.arrays import numbers
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.arguments import channel_offset
from openmps.core.kernel.configuration import KernelProperty, Setting, SourceProperty
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.ops.layout.pad import Pad, PadGradient
from openmps.ops.op import Value
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode, MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion, MTLSize

_NOTHING = MPSImageCoordinate(0, 0, 0)


class PadParameters(NamedTuple):
    """What the gradient kernel takes over from the forward kernel."""

    before: int
    """Channels added before the first."""
    after: int
    """Channels added after the last."""


def _edge_mode(who: str, argument: str, value: object) -> MPSImageEdgeMode:
    return member(who, argument, MPSImageEdgeMode, value, "must be an MPSImageEdgeMode")


def _coordinate(who: str, argument: str, value: object) -> MPSImageCoordinate:
    if not isinstance(value, MPSImageCoordinate):
        raise MPSTypeError(who, argument, "must be an MPSImageCoordinate(x, y, channel)", type(value).__name__)
    return value


class MPSNNPad(MPSCNNKernel, leaves=MPSNNGradientState):
    """Y[c, y, x] = E[c - before.channel, y + offset.y, x + offset.x] (MPSNNReshape.h, macOS 10.14.1).

    E is the source, the channels read of it, continued beyond its edges by `edge_mode`: ZERO, CLAMP, MIRROR (about the
    centre of the edge pixel), MIRROR_WITH_EDGE (about the border), both as often as needed, or CONSTANT (`fill_value`).
    Columns, rows and channels are continued one by one; with ZERO and CONSTANT whatever is outside on one of them is
    the constant. Channels are continued within the channels read, not within the whole source.

    Where the result lies in x and y is the business of `offset` and `clip_rect`, as for every kernel:
    `padding_size_before` and `padding_size_after` act in x and y through encodes that return their result, which set
    both. In channels they always act.
    """

    padding_size_before = KernelProperty(
        _NOTHING, _coordinate, "Columns added on the left, rows on top, and channels before the first. Default 0."
    )
    padding_size_after = KernelProperty(
        _NOTHING, _coordinate, "Columns added on the right, rows at the bottom, and channels after the last. Default 0."
    )
    fill_value = KernelProperty[float](
        0.0,
        partial(number, is_nan_allowed=True),
        "What CONSTANT reads outside, unless the kernel was made with a fill value array. Default 0.",
    )
    edge_mode = SourceProperty[MPSImageEdgeMode](
        0, "edge_mode", _edge_mode, "How the source goes on beyond its edges; all five modes. Default ZERO."
    )
    source_feature_channel_offset = SourceProperty[int](
        0, "channel_offset", partial(channel_offset, step=1), "The first source channel read. Default 0."
    )
    _fill_values = Setting[tuple[float, ...] | None]()

    def __init__(
        self,
        device: MTLDevice,
        padding_size_before: MPSImageCoordinate = _NOTHING,
        padding_size_after: MPSImageCoordinate = _NOTHING,
        fill_value_array: Sequence[float] | NDArray[np.float32] | bytes | None = None,
    ) -> None:
        """``fill_value_array`` is what CONSTANT reads outside, one number for each channel written, from the first on.

        It may hold more numbers than that. Bytes are taken as float32 numbers.
        """
        super().__init__(device)
        self.padding_size_before = padding_size_before
        self.padding_size_after = padding_size_after
        self._fill_values = None if fill_value_array is None else self._numbers(fill_value_array)

    @property
    def fill_value_array(self) -> NDArray[np.float32] | None:
        """What CONSTANT reads outside, one number for each channel written, a copy; None if `fill_value` is for all."""
        return None if self._fill_values is None else np.array(self._fill_values, np.float32)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.padding_size_before.channel + channels[0] + self.padding_size_after.channel

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        source, before, after = shapes[0].extent, self.padding_size_before, self.padding_size_after
        self._change_source(0, offset=MPSOffset(-before.x, -before.y, self.offset.z))
        clip, everything = self.clip_rect, MPSRectNoClip.size
        self.clip_rect = MTLRegion(
            MTLOrigin(0, 0, clip.origin.z), MTLSize(everything.width, everything.height, clip.size.depth)
        )
        return Extent(
            before.x + source.width + after.x,
            before.y + source.height + after.y,
            self._result_channels((self._channels_read(0, source.channels),)),
            self._images_to_make(shapes),
        )

    def _parameters(self) -> PadParameters:
        return PadParameters(self.padding_size_before.channel, self.padding_size_after.channel)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        pad = Pad(at.window, self._parameters(), at.edge_mode, self.fill_value)
        if self._fill_values is None or at.edge_mode is not MPSImageEdgeMode.CONSTANT:
            return pad(images[0])
        channels = at.target.channels
        if len(self._fill_values) < channels:
            rule = f"must hold a number for each of the {channels} feature channels written"
            raise MPSArgumentError(self.name, "fill_value_array", rule, f"{len(self._fill_values)} number(s)")
        return pad(images[0], at.constant(np.array(self._fill_values[:channels], np.float32)))

    def _numbers(self, values: Any) -> tuple[float, ...]:
        whole = numbers(self.name, "fill_value_array", values)
        if whole.ndim != 1:
            rule = "must be float32 numbers in one row"
            raise MPSArgumentError(self.name, "fill_value_array", rule, f"shape {whole.shape}")
        return tuple(whole.tolist())


class MPSNNPadGradient(MPSCNNGradientKernel, of=MPSNNPad):
    """dX = for each number of the source, the sum of G over its copies (MPSNNReshape.h, macOS 10.14.1).

    With ZERO and CONSTANT that is a slice of G. Channels that the forward kernel did not read get 0. The channels added
    come from the gradient state; without one the gradient's channels are those of the source from its first on, and
    what follows them was added after them. `secondary_offset` is the forward kernel's offset.
    """

    secondary_edge_mode = SourceProperty[MPSImageEdgeMode](
        1, "edge_mode", _edge_mode, "How the forward source went on beyond its edges; all five modes. Default ZERO."
    )

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Nothing to ask without the channels added, which `_differentiate` knows."""

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        return PadGradient(at.window, self._channels_added(at.sources, at.given), at.edge_mode)(gradient)

    def _channels_added(self, sources: tuple[SourceRecord, ...], given: Given | None) -> tuple[int, int]:
        """Channels before and after those of the source."""
        gradient, source = sources
        added = gradient.channels - source.channels
        known = {record.parameters for record in given.records} if given is not None else set[Any]()
        before = {each.before for each in known if isinstance(each, PadParameters)} or {0}
        wanted = {each.before + each.after for each in known if isinstance(each, PadParameters)} or {max(0, added)}
        if len(before) > 1 or wanted != {added}:
            raise MPSArgumentError(
                self.name,
                self._source_arguments[0],
                f"must have {sorted(source.channels + each for each in wanted)} feature channels read, "
                "those of the source and those added",
                gradient.channels,
                "Pass the gradient of the result, and states of forward encodes that added the same channels",
            )
        (first,) = before
        return first, added - first
