"""Element-wise arithmetic and its gradients (MPSCNNMath.h, macOS 10.13.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from openmps.core.binary_kernel import MPSCNNBinaryKernel
from openmps.core.gradient_kernel import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.gradient_state import ForwardRecord, MPSNNBinaryGradientState, SourceRecord
from openmps.core.image import MPSImage
from openmps.core.image_descriptor import MPSImageDescriptor
from openmps.core.kernel import Operation
from openmps.core.state import MPSStateBatch
from openmps.core.storage import Target
from openmps.errors import MPSArgumentError
from openmps.ops.arithmetic import Arithmetic, arithmetic, arithmetic_gradient
from openmps.ops.geometry import read, read_adjoint
from openmps.types import MPSOffset

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

FLT_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class ArithmeticParameters:
    """What the gradient kernels take over from the forward kernel."""

    primary_scale: float
    secondary_scale: float
    strides: tuple[tuple[int, int, int], tuple[int, int, int]]
    is_limited: bool


class MPSCNNArithmeticGradientState(MPSNNBinaryGradientState):
    """The properties of an arithmetic encode, and where it was clamped (MPSCNNMath.h, macOS 10.13.4)."""


class MPSCNNArithmetic(MPSCNNBinaryKernel):
    """The base of element-wise arithmetic on two images (MPSCNNMath.h, macOS 10.13.4).

    x and y are the primary and secondary numbers ``source[offset + stride * destination]``. Strides, also of feature
    channels, are 0 (one number for all: broadcast) or 1. The result is clamped to `minimum_value` .. `maximum_value`;
    at their defaults, plus and minus the largest float32, nothing is clamped and infinities and NaN pass.
    """

    primary_scale: float
    """Factor of the primary numbers."""
    secondary_scale: float
    """Factor of the secondary numbers."""
    bias: float
    """Added to the result before clamping."""
    minimum_value: float
    """Lower limit of the result."""
    maximum_value: float
    """Upper limit of the result."""

    _arithmetic: ClassVar[Arithmetic | None] = None
    _gradient_state_class = MPSCNNArithmeticGradientState

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self.primary_scale = 1.0
        self.secondary_scale = 1.0
        self.bias = 0.0
        self.minimum_value = -FLT_MAX
        self.maximum_value = FLT_MAX
        self._channel_strides = [1, 1]

    @property
    def primary_stride_in_feature_channels(self) -> int:
        """1, or 0 to use the first primary channel read for every result channel."""
        return self._channel_strides[0]

    @primary_stride_in_feature_channels.setter
    def primary_stride_in_feature_channels(self, value: int) -> None:
        self._channel_strides[0] = self._zero_or_one("primary_stride_in_feature_channels", value)

    @property
    def secondary_stride_in_feature_channels(self) -> int:
        """1, or 0 to use the first secondary channel read for every result channel."""
        return self._channel_strides[1]

    @secondary_stride_in_feature_channels.setter
    def secondary_stride_in_feature_channels(self, value: int) -> None:
        self._channel_strides[1] = self._zero_or_one("secondary_stride_in_feature_channels", value)

    def _zero_or_one(self, argument: str, value: int) -> int:
        if value not in (0, 1):
            raise MPSArgumentError(self.name, argument, "must be 0 (broadcast) or 1", value)
        return int(value)

    def _unshare(self) -> None:
        super()._unshare()
        self._channel_strides = list(self._channel_strides)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return min(1, available) if not self._channel_strides[index] else super()._needed_channels(index, available)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        first, second = channels
        if first != second and all(self._channel_strides):
            raise MPSArgumentError(
                self.name,
                "sources",
                "must have the same number of feature channels, or one a feature channel stride of 0",
                f"{first} and {second}",
            )
        return max(channels)

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        self._check_strides()
        for source in self._sources:
            source.offset = MPSOffset(0, 0, source.offset.z)
        strides = [(source.stride_x, source.stride_y) for source in self._sources]
        width = max(image.width if stride[0] else 1 for image, stride in zip(images, strides, strict=True))
        height = max(image.height if stride[1] else 1 for image, stride in zip(images, strides, strict=True))
        channels = self._result_channels(
            tuple(self._channels_read(index, image.feature_channels) for index, image in enumerate(images))
        )
        depth = min(image.number_of_images for image in images)
        return MPSImageDescriptor(images[0].feature_channel_format, width, height, channels, depth)

    def _check_strides(self) -> None:
        for argument, source in zip(("primary", "secondary"), self._sources, strict=True):
            for axis in ("x", "y"):
                self._zero_or_one(f"{argument}_stride_in_pixels_{axis}", getattr(source, f"stride_{axis}"))

    def _limits(self) -> tuple[float, float]:
        """The limits that are on; infinite where they are at their defaults."""
        return (
            -math.inf if self.minimum_value <= -FLT_MAX else self.minimum_value,
            math.inf if self.maximum_value >= FLT_MAX else self.maximum_value,
        )

    def _parameters(self) -> ArithmeticParameters:
        strides = tuple(
            (source.stride_x, source.stride_y, channel)
            for source, channel in zip(self._sources, self._channel_strides, strict=True)
        )
        is_limited = self._limits() != (-math.inf, math.inf)
        return ArithmeticParameters(self.primary_scale, self.secondary_scale, (strides[0], strides[1]), is_limited)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        kind = self._arithmetic
        if kind is None:
            return super()._operation(sources, target, states)
        self._check_strides()
        minimum, maximum = self._limits()
        settings = {
            "primary_scale": self.primary_scale,
            "secondary_scale": self.secondary_scale,
            "bias": self.bias,
            "minimum": minimum,
            "maximum": maximum,
        }

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, Any]:
            x, y = (read(value, source.window, source.edge_mode) for value, source in zip(values, sources, strict=True))
            value, mask = arithmetic(kind, x, y, **settings)
            whole = (value.shape[0], value.shape[1], target.height, target.width)
            if value.shape == whole:
                return value, mask
            return _stretched(value, whole), None if mask is None else _stretched(mask, whole)

        return operation


def _stretched(value: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """One pixel, row or column of numbers, repeated: both sources were broadcast along that axis."""
    return value.expand(shape).contiguous(memory_format=torch.channels_last)


class MPSCNNAdd(MPSCNNArithmetic):
    """primary_scale x + secondary_scale y + bias, clamped (MPSCNNMath.h, macOS 10.13.4)."""

    _arithmetic = Arithmetic.ADD


class MPSCNNArithmeticGradient(MPSCNNGradientKernel):
    """The base of arithmetic gradients (MPSCNNMath.h, macOS 10.13.4).

    One kernel for each forward source, told by ``is_secondary_source_filter``. Here `primary_scale` multiplies the
    gradient and `secondary_scale` the forward image; the state sets both. Where the source was broadcast, the gradient
    is summed over the axes that it served; where the forward kernel clamped, it is 0.
    """

    primary_scale: float
    """Factor of the incoming gradient."""
    secondary_scale: float
    """Factor of the forward image."""
    bias: float
    """Not used by gradients."""
    minimum_value: float
    """Not used by gradients."""
    maximum_value: float
    """Not used by gradients."""

    _arithmetic: ClassVar[Arithmetic | None] = None
    _strides = range(2)

    def __init__(self, device: MTLDevice, is_secondary_source_filter: bool = False) -> None:
        super().__init__(device)
        self._is_secondary = bool(is_secondary_source_filter)
        self.primary_scale = 1.0
        self.secondary_scale = 1.0
        self.bias = 0.0
        self.minimum_value = -FLT_MAX
        self.maximum_value = FLT_MAX
        self._channel_stride = 1

    @property
    def secondary_stride_in_feature_channels(self) -> int:
        """Feature channel stride of the forward source: 1, or 0 if its first channel served every result channel."""
        return self._channel_stride

    @secondary_stride_in_feature_channels.setter
    def secondary_stride_in_feature_channels(self, value: int) -> None:
        if value not in (0, 1):
            raise MPSArgumentError(
                self.name, "secondary_stride_in_feature_channels", "must be 0 (broadcast) or 1", value
            )
        self._channel_stride = int(value)

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
        broadcast = index == 1 and not self._channel_stride
        return min(1, available) if broadcast else super()._needed_channels(index, available)

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        if self._channel_stride:
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
            region = read(source, geometry.source, geometry.edge_mode)
            result = arithmetic_gradient(
                kind,
                gradient,
                region,
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
