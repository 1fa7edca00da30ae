"""Padding as a kernel of its own, and its gradient (MPSNNReshape.h, macOS 10.14.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import number
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.pad import pad, pad_gradient
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode, MPSOffset, MPSRectNoClip, MTLOrigin, MTLRegion, MTLSize

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

_NOTHING = MPSImageCoordinate(0, 0, 0)


@dataclass(frozen=True, slots=True)
class PadParameters:
    """What the gradient kernel takes over from the forward kernel."""

    before: int
    """Channels added before the first."""
    after: int
    """Channels added after the last."""


def _edge_mode(who: str, argument: str, value: object) -> MPSImageEdgeMode:
    try:
        return MPSImageEdgeMode(value)  # pyright: ignore[reportArgumentType]
    except ValueError:
        raise MPSArgumentError(who, argument, "must be an MPSImageEdgeMode", repr(value)) from None


def _coordinate(who: str, argument: str, value: object) -> MPSImageCoordinate:
    if not isinstance(value, MPSImageCoordinate):
        raise MPSTypeError(who, argument, "must be an MPSImageCoordinate(x, y, channel)", type(value).__name__)
    return value


class MPSNNPad(MPSCNNKernel):
    """Y[c, y, x] = E[c - before.channel, y + offset.y, x + offset.x] (MPSNNReshape.h, macOS 10.14.1).

    E is the source, the channels read of it, continued beyond its edges by `edge_mode`: ZERO, CLAMP, MIRROR (about the
    centre of the edge pixel), MIRROR_WITH_EDGE (about the border), both as often as needed, or CONSTANT (`fill_value`).
    Columns, rows and channels are continued one by one; with ZERO and CONSTANT whatever is outside on one of them is
    the constant. Channels are continued within the channels read, not within the whole source.

    Where the result lies in x and y is the business of `offset` and `clip_rect`, as for every kernel:
    `padding_size_before` and `padding_size_after` act in x and y through encodes that return their result, which set
    both. In channels they always act.
    """

    _channel_step = 1
    _gradient_state_class = MPSNNGradientState

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
        self._fill_value = 0.0
        self._fill_values = None if fill_value_array is None else self._numbers(fill_value_array)

    @property
    def padding_size_before(self) -> MPSImageCoordinate:
        """Columns added on the left, rows on top, and channels before the first. Default 0."""
        return self._before

    @padding_size_before.setter
    def padding_size_before(self, value: MPSImageCoordinate) -> None:
        self._before = _coordinate(self.name, "padding_size_before", value)

    @property
    def padding_size_after(self) -> MPSImageCoordinate:
        """Columns added on the right, rows at the bottom, and channels after the last. Default 0."""
        return self._after

    @padding_size_after.setter
    def padding_size_after(self, value: MPSImageCoordinate) -> None:
        self._after = _coordinate(self.name, "padding_size_after", value)

    @property
    def fill_value(self) -> float:
        """What CONSTANT reads outside, unless the kernel was made with a fill value array. Default 0."""
        return self._fill_value

    @fill_value.setter
    def fill_value(self, value: float) -> None:
        self._fill_value = number(self.name, "fill_value", value, is_nan_allowed=True)

    @property
    def fill_value_array(self) -> NDArray[np.float32] | None:
        """What CONSTANT reads outside, one number for each channel written, a copy; None if `fill_value` is for all."""
        return None if self._fill_values is None else self._fill_values.copy()

    @property
    def edge_mode(self) -> MPSImageEdgeMode:
        """How the source goes on beyond its edges; all five modes. Default ZERO."""
        return self._sources[0].edge_mode

    @edge_mode.setter
    def edge_mode(self, value: MPSImageEdgeMode) -> None:
        self._sources[0].edge_mode = _edge_mode(self.name, "edge_mode", value)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self._before.channel + channels[0] + self._after.channel

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        (image,), (source,) = images, self._sources
        before, after = self._before, self._after
        source.offset = MPSOffset(-before.x, -before.y, source.offset.z)
        clip, everything = self._clip_rect, MPSRectNoClip.size
        self._clip_rect = MTLRegion(
            MTLOrigin(0, 0, clip.origin.z), MTLSize(everything.width, everything.height, clip.size.depth)
        )
        return MPSImageDescriptor(
            image.feature_channel_format,
            before.x + image.width + after.x,
            before.y + image.height + after.y,
            self._result_channels((self._channels_read(0, image.feature_channels),)),
            self._images_to_make(images),
        )

    def _parameters(self) -> PadParameters:
        return PadParameters(self._before.channel, self._after.channel)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        channels = (self._before.channel, self._after.channel)
        fill = self._fill(target.channels)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return pad(values[0], source.window, channels, source.edge_mode, fill), None

        return operation

    def _fill(self, channels: int) -> Tensor | float:
        """What CONSTANT reads outside, for the channels written."""
        if self._fill_values is None:
            return self._fill_value
        if self.edge_mode is MPSImageEdgeMode.CONSTANT and len(self._fill_values) < channels:
            rule = f"must hold a number for each of the {channels} feature channels written"
            raise MPSArgumentError(self.name, "fill_value_array", rule, f"{len(self._fill_values)} number(s)")
        return torch.from_numpy(self._fill_values[:channels]).to(self.device.torch_device)

    def _numbers(self, values: Any) -> NDArray[np.float32]:
        rule = "must be float32 numbers"
        try:
            whole = np.frombuffer(values, np.float32) if isinstance(values, bytes) else np.asarray(values, np.float32)
        except (TypeError, ValueError, OverflowError) as fault:
            raise MPSTypeError(self.name, "fill_value_array", rule, type(values).__name__) from fault
        if whole.ndim != 1:
            raise MPSArgumentError(self.name, "fill_value_array", f"{rule} in one row", f"shape {whole.shape}")
        return whole.copy()


class MPSNNPadGradient(MPSCNNGradientKernel):
    """dX = for each number of the source, the sum of G over its copies (MPSNNReshape.h, macOS 10.14.1).

    With ZERO and CONSTANT that is a slice of G. Channels that the forward kernel did not read get 0. The channels added
    come from the gradient state; without one the gradient's channels are those of the source from its first on, and
    what follows them was added after them. `secondary_offset` is the forward kernel's offset.
    """

    _forward_kernels = (MPSNNPad,)

    @property
    def secondary_edge_mode(self) -> MPSImageEdgeMode:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How the forward source went on beyond its edges; all five modes. Default ZERO."""
        return self._sources[1].edge_mode

    @secondary_edge_mode.setter
    def secondary_edge_mode(self, value: MPSImageEdgeMode) -> None:
        self._sources[1].edge_mode = _edge_mode(self.name, "secondary_edge_mode", value)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """Nothing to ask without the channels added, which `_gradient` knows."""

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        channels = self._channels_added(sources, states)
        window, edge_mode = geometry.source, geometry.edge_mode

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return pad_gradient(gradient, window, channels, edge_mode), None

        return differentiate

    def _channels_added(self, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None) -> tuple[int, int]:
        """Channels before and after those of the source."""
        gradient, source = sources
        added = gradient.channels - source.channels
        kept = [state for state in states.counted() if isinstance(state, MPSNNGradientState)] if states else []
        known = {self._record_of(state).parameters for state in kept}
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
