"""The gradients of element-wise arithmetic (MPSCNNMath.h, macOS 10.13.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.property import KernelProperty
from openmps.core.numbers import number
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.kernels.arithmetic.forward import (
    FLT_MAX,
    ArithmeticParameters,
    MPSCNNAdd,
    MPSCNNArithmeticGradientState,
    MPSCNNMultiply,
    MPSCNNSubtract,
)
from openmps.kernels.arithmetic.strides import zero_or_one
from openmps.ops.arithmetic import Arithmetic, arithmetic_gradient
from openmps.ops.geometry import Axis, Window, read, read_adjoint
from openmps.types import MPSOffset

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSCNNArithmeticGradient(MPSCNNGradientKernel):
    """The base of arithmetic gradients (MPSCNNMath.h, macOS 10.13.4).

    One kernel for each forward source, told by ``is_secondary_source_filter``. Here `primary_scale` multiplies the
    gradient and `secondary_scale` the forward image; the state sets both. Where the source was broadcast, the gradient
    is summed over the axes that it served; where the forward kernel clamped, it is 0.
    """

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

    _arithmetic: ClassVar[Arithmetic | None] = None
    _strides = range(2)

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device)
        self._is_secondary = bool(is_secondary_source_filter)

    @property
    def is_secondary_source_filter(self) -> bool:
        """Whether this is the gradient of the forward kernel's secondary source."""
        return self._is_secondary

    def _forward_source(self) -> int:
        return int(self._is_secondary)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        parameters = record.parameters
        if isinstance(parameters, ArithmeticParameters):
            self._take_scales(parameters)
            self.secondary_stride_in_feature_channels = parameters.strides[self._forward_source()][2]

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        self.primary_scale = parameters.secondary_scale if self._is_secondary else parameters.primary_scale

    def _needed_channels(self, index: int, available: int) -> int:
        broadcast = index == 1 and not self.secondary_stride_in_feature_channels
        return min(1, available) if broadcast else super()._needed_channels(index, available)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        if self.secondary_stride_in_feature_channels:
            super()._check_channels(sources)

    def _needs_saved(self, states: MPSStateBatch) -> bool:
        records = [state.record for state in states.counted() if isinstance(state, MPSCNNArithmeticGradientState)]
        return any(record is not None and record.parameters.is_limited for record in records)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        kind, primary_scale, secondary_scale = self._arithmetic, self.primary_scale, self.secondary_scale
        if kind is None:
            return super()._gradient(geometry, sources, states)
        channels = sources[1].channels
        rows, columns = geometry.source.region

        def differentiate(gradient: Tensor, source: Tensor, mask: Any) -> tuple[Tensor, None]:
            result = arithmetic_gradient(
                kind,
                gradient,
                None,
                primary_scale=primary_scale,
                secondary_scale=secondary_scale,
                mask=mask,
                shape=(gradient.shape[0], channels, rows, columns),
            )
            return read_adjoint(result, geometry.source, geometry.edge_mode), None

        return differentiate


class MPSCNNAddGradient(MPSCNNArithmeticGradient):
    """primary_scale G, summed where the source was broadcast (MPSCNNMath.h, macOS 10.13.4)."""

    _forward_kernels = (MPSCNNAdd,)
    _arithmetic = Arithmetic.ADD


class MPSCNNSubtractGradient(MPSCNNArithmeticGradient):
    """primary_scale G, summed where the source was broadcast (MPSCNNMath.h, macOS 10.13.4).

    `primary_scale` is 1 for the primary source and -1 for the secondary one, unless set or taken from a state.
    """

    _forward_kernels = (MPSCNNSubtract,)
    _arithmetic = Arithmetic.SUBTRACT

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device, is_secondary_source_filter)
        self.primary_scale = -1.0 if self._is_secondary else 1.0

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        super()._take_scales(parameters)
        if self._is_secondary:
            self.primary_scale = -self.primary_scale


class MPSCNNMultiplyGradient(MPSCNNArithmeticGradient):
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

    _forward_kernels = (MPSCNNMultiply,)
    _arithmetic = Arithmetic.MULTIPLY

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
        primary, secondary = self._sources
        primary.edge_mode = mine.edge_mode
        secondary.offset = MPSOffset(other.window.x.offset, other.window.y.offset, other.first_image)
        secondary.edge_mode = other.edge_mode
        secondary.channel_offset, secondary.channel_max_count = other.channel, other.channels
        secondary.stride_x, secondary.stride_y = other.window.x.stride, other.window.y.stride
        self._size_tells = False
        parameters = record.parameters
        if isinstance(parameters, ArithmeticParameters):
            self.primary_stride_in_feature_channels = parameters.strides[self._forward_source()][2]
            self.secondary_stride_in_feature_channels = parameters.strides[1 - self._forward_source()][2]

    def _take_scales(self, parameters: ArithmeticParameters) -> None:
        scales = (parameters.primary_scale, parameters.secondary_scale)
        self.primary_scale, self.secondary_scale = scales[self._forward_source()], scales[1 - self._forward_source()]

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        return destination

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return channels[0] if self.primary_stride_in_feature_channels else 1

    def _target(self, records: tuple[SourceRecord, ...], destination: Extent, width: int, height: int) -> Target:
        self._check_channels(records)
        if self._size_tells and destination.channels - self._destination_channel_offset == 1:
            records = (replace(records[0], channels=1), records[1])
        return super()._target(records, destination, width, height)

    def _check_strides(self) -> None:
        super()._check_strides()
        for axis in ("x", "y"):
            zero_or_one(self.name, f"primary_stride_in_pixels_{axis}", getattr(self._sources[0], f"stride_{axis}"))

    def _data_window(self, source: Extent, width: int, height: int) -> Window:
        """Where the forward kernel read the source that this gradient is for; ``source`` is its size."""
        primary, clip = self._sources[0], self._clip_rect.size
        sums_x = not primary.stride_x or (self._size_tells and source.width == 1 < clip.width)
        sums_y = not primary.stride_y or (self._size_tells and source.height == 1 < clip.height)
        return Window(
            x=Axis(source.width, width, stride=int(not sums_x), offset=-self.kernel_offset_x),
            y=Axis(source.height, height, stride=int(not sums_y), offset=-self.kernel_offset_y),
        )

    # --- the mathematics ----------------------------------------------------------------------------------------------

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        self._check_strides()
        width, height = self._used_size(sources[0].extent)
        source = Extent(target.width, target.height, target.channels, 1)
        geometry = GradientGeometry(
            self._sources[1].window(sources[1].extent, width, height),
            self._data_window(source, width, height),
            self._sources[1].edge_mode,
        )
        return self._bind(self._product(geometry, target.channels), geometry, target)

    def _product(self, geometry: GradientGeometry, channels: int) -> GradientOperation:
        primary_scale, secondary_scale = self.primary_scale, self.secondary_scale
        edge_mode = self._sources[0].edge_mode
        rows, columns = geometry.data.region

        def differentiate(gradient: Tensor, other: Tensor, mask: Any) -> tuple[Tensor, None]:
            result = arithmetic_gradient(
                Arithmetic.MULTIPLY,
                gradient,
                read(other, geometry.source, geometry.edge_mode),
                primary_scale=primary_scale,
                secondary_scale=secondary_scale,
                mask=mask,
                shape=(gradient.shape[0], channels, rows, columns),
            )
            return read_adjoint(result, geometry.data, edge_mode), None

        return differentiate
