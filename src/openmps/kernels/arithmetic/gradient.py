"""The gradients of element-wise arithmetic (MPSCNNMath.h, macOS 10.13.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from openmps.checks import FLT_MAX, flag, number
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.configuration import Fixed, KernelProperty, Setting
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, back
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.kernels.arithmetic.forward import (
    ArithmeticParameters,
    MPSCNNAdd,
    MPSCNNMultiply,
    MPSCNNSubtract,
    zero_or_one,
)
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Value
from openmps.ops.pointwise.arithmetic import Arithmetic, CombinationGradient, ProductGradient
from openmps.types import MPSOffset


class MPSCNNArithmeticGradient(MPSCNNGradientKernel):
    """The base of arithmetic gradients (MPSCNNMath.h, macOS 10.13.4).

    One kernel for each forward source, told by ``is_secondary_source_filter``. Here `primary_scale` multiplies the
    gradient and `secondary_scale` the forward image; the state sets both. Where the source was broadcast, the gradient
    is summed over the axes that it served; where the forward kernel clamped, it is 0.
    """

    _is_abstract = True

    primary_scale = KernelProperty(1.0, number, "Factor of the incoming gradient. Default 1.")
    secondary_scale = KernelProperty(1.0, number, "Factor of the forward image. Default 1.")
    bias = KernelProperty(0.0, number, "Not used by gradients.")
    minimum_value = KernelProperty(
        -FLT_MAX, number, "Not used by gradients: the state holds what the forward kernel clamped."
    )
    maximum_value = KernelProperty(
        FLT_MAX, number, "Not used by gradients: the state holds what the forward kernel clamped."
    )

    secondary_stride_in_feature_channels = KernelProperty(
        1, zero_or_one, "Feature channel stride of the secondary image in the forward encode: 0 if one served them all."
    )

    is_secondary_source_filter = Fixed[bool]("Whether this is the gradient of the forward kernel's secondary source.")

    _arithmetic: ClassVar[Arithmetic | None] = None
    _strides = range(2)

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device)
        is_secondary = flag(self.name, "is_secondary_source_filter", is_secondary_source_filter)
        self._change(is_secondary_source_filter=is_secondary)

    def _forward_source(self) -> int:
        return int(self.is_secondary_source_filter)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        parameters = record.parameters
        if isinstance(parameters, ArithmeticParameters):
            self._take_scales(parameters)
            self.secondary_stride_in_feature_channels = parameters.channel_strides[self._forward_source()]

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        self.primary_scale = parameters.secondary_scale if self.is_secondary_source_filter else parameters.primary_scale

    def _needed_channels(self, index: int, available: int) -> int:
        broadcast = index == 1 and not self.secondary_stride_in_feature_channels
        return min(1, available) if broadcast else super()._needed_channels(index, available)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        if self.secondary_stride_in_feature_channels:
            super()._check_channels(sources)

    def _needs_saved(self, record: ForwardRecord) -> bool:
        is_limited = isinstance(record.parameters, ArithmeticParameters) and record.parameters.is_limited
        return is_limited and self.conventions["clamp_mask"] == "applied"

    def _mask(self, at: GradientLoweringContext) -> Value | None:
        """Where the forward kernel did not clamp; None if it had no limits."""
        given: Given | None = at.given
        is_limited = given is not None and any(self._needs_saved(record) for record in given.records)
        return at.saved if is_limited else None

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value | None:
        kind, window = self._arithmetic, at.geometry.source
        if kind is None:
            return super()._differentiate(at, gradient, source)
        axes = _summed(at, at.sources[1].channels, window)
        result = CombinationGradient(kind, self.primary_scale, self.secondary_scale, axes)(
            gradient, None, self._mask(at)
        )
        return back(result, window, at.edge_mode)


def _summed(at: GradientLoweringContext, channels: int, window: Window) -> tuple[int, ...]:
    """The axes along which one number of the image that is differentiated served many of the gradient."""
    sizes = (at.sources[0].channels, *at.geometry.source.result)
    read = (channels, *window.region)
    return tuple(axis for axis in (1, 2, 3) if read[axis - 1] == 1 != sizes[axis - 1])


class MPSCNNAddGradient(MPSCNNArithmeticGradient, of=MPSCNNAdd):
    """primary_scale G, summed where the source was broadcast (MPSCNNMath.h, macOS 10.13.4)."""

    _arithmetic = Arithmetic.ADD


class MPSCNNSubtractGradient(MPSCNNArithmeticGradient, of=MPSCNNSubtract):
    """primary_scale G, summed where the source was broadcast (MPSCNNMath.h, macOS 10.13.4).

    `primary_scale` is 1 for the primary source and -1 for the secondary one, unless set or taken from a state.
    """

    _arithmetic = Arithmetic.SUBTRACT

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device, is_secondary_source_filter)
        self.primary_scale = -1.0 if self.is_secondary_source_filter else 1.0

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        super()._take_scales(parameters)
        if self.is_secondary_source_filter:
            self.primary_scale = -self.primary_scale


class MPSCNNMultiplyGradient(MPSCNNArithmeticGradient, of=MPSCNNMultiply):
    """primary_scale G secondary_scale Z, summed where the source was broadcast (MPSCNNMath.h, macOS 10.13.4).

    The secondary image Z, ``source_image``, is the OTHER forward source: the forward secondary image for the gradient
    of the primary source, and the other way round. The secondary properties say how the forward kernel read Z, those of
    the primary how it read the source that this gradient is for, whose size is that of the result: its edge mode is
    `primary_edge_mode`, and along an axis that it broadcast, with a primary stride of 0, the result is summed. Without
    a state an axis where the destination has one pixel or one channel is one that was broadcast. For x x, the same
    image twice, take both gradients and add them.
    """

    primary_stride_in_feature_channels = KernelProperty(
        1, zero_or_one, "Feature channel stride of the source that this gradient is for: 0 if one served them all."
    )

    _arithmetic = Arithmetic.MULTIPLY
    _size_tells = Setting[bool]()

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device, is_secondary_source_filter)
        # The destination's size tells what was broadcast until a state does.
        self._size_tells = True

    # --- placement: two forward sources, one read here and one differentiated -----------------------------------------

    def _forward_extents(self, record: ForwardRecord) -> tuple[Extent, Extent]:
        return record.destination, record.sources[1 - self._forward_source()].extent

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        mine = record.sources[self._forward_source()]
        other = record.sources[1 - self._forward_source()]
        x, y = other.window.x, other.window.y
        self._change_source(0, edge_mode=mine.edge_mode)
        self._change_source(
            1,
            offset=MPSOffset(x.offset, y.offset, other.first_image),
            edge_mode=other.edge_mode,
            channel_offset=other.channel,
            channel_max_count=other.channels,
            stride_x=x.stride,
            stride_y=y.stride,
        )
        self._size_tells = False
        parameters = record.parameters
        if isinstance(parameters, ArithmeticParameters):
            self.primary_stride_in_feature_channels = parameters.channel_strides[self._forward_source()]
            self.secondary_stride_in_feature_channels = parameters.channel_strides[1 - self._forward_source()]

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        scales = (parameters.primary_scale, parameters.secondary_scale)
        self.primary_scale, self.secondary_scale = scales[self._forward_source()], scales[1 - self._forward_source()]

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        return destination

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[0] if self.primary_stride_in_feature_channels else 1

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        self._check_channels(records)
        if self._size_tells and destination.channels - self.destination_feature_channel_offset == 1:
            records = (replace(records[0], channels=1), records[1])
        return super()._target(records, destination, width, height)

    def _check_strides(self) -> None:
        super()._check_strides()
        for axis in ("x", "y"):
            zero_or_one(self.name, f"primary_stride_in_pixels_{axis}", getattr(self._sources[0], f"stride_{axis}"))

    def _data_window(self, source: Extent, width: int, height: int) -> Window:
        """Where the forward kernel read the source that this gradient is for; ``source`` is its size."""
        primary, clip = self._sources[0], self.clip_rect.size
        sums_x = not primary.stride_x or (self._size_tells and source.width == 1 < clip.width)
        sums_y = not primary.stride_y or (self._size_tells and source.height == 1 < clip.height)
        return Window(
            x=Axis(source.width, width, stride=int(not sums_x), offset=-self.kernel_offset_x),
            y=Axis(source.height, height, stride=int(not sums_y), offset=-self.kernel_offset_y),
        )

    def _differentiated(self, secondary: Extent, target: Target) -> Extent:
        return Extent(target.width, target.height, target.channels, 1)

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        window = at.geometry.data
        axes = _summed(at, at.target.channels, window)
        product = ProductGradient(Arithmetic.MULTIPLY, self.primary_scale, self.secondary_scale, axes)
        return back(product(gradient, at.read(source), self._mask(at)), window, self._sources[0].edge_mode)
