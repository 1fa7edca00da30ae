"""Element-wise arithmetic and comparison of two images (MPSCNNMath.h, macOS 10.13.4 and 10.14.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.property import KernelProperty
from openmps.core.numbers import FLT_MAX, number
from openmps.core.state.gradient import MPSNNBinaryGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.kernels.arithmetic.strides import zero_or_one
from openmps.ops.arithmetic import Arithmetic, arithmetic, compare
from openmps.ops.geometry import read
from openmps.types import MPSNNComparisonType, MPSOffset

Combination = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Two operands to their result and the mask of the numbers that were not clamped; no mask if none can be."""


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

    primary_scale = KernelProperty(1.0, number, "Factor of the primary numbers. Default 1.")
    secondary_scale = KernelProperty(1.0, number, "Factor of the secondary numbers. Default 1.")
    bias = KernelProperty(0.0, number, "Added to the result before clamping. Default 0.")
    minimum_value = KernelProperty(
        -FLT_MAX, number, "Lower limit of the result. Default: minus the largest float32, which is no limit."
    )
    maximum_value = KernelProperty(
        FLT_MAX, number, "Upper limit of the result. Default: the largest float32, which is no limit."
    )

    primary_stride_in_feature_channels = KernelProperty(
        1, zero_or_one, "1, or 0 to use the first primary channel read for every result channel."
    )
    secondary_stride_in_feature_channels = KernelProperty(
        1, zero_or_one, "1, or 0 to use the first secondary channel read for every result channel."
    )

    _arithmetic: ClassVar[Arithmetic | None] = None
    _gradient_state_class = MPSCNNArithmeticGradientState

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _channel_strides(self) -> tuple[int, int]:
        return self.primary_stride_in_feature_channels, self.secondary_stride_in_feature_channels

    def _needed_channels(self, index: int, available: int) -> int:
        return min(1, available) if not self._channel_strides()[index] else super()._needed_channels(index, available)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        first, second = channels
        if first != second and all(self._channel_strides()):
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
        depth = self._images_to_make(images)
        return MPSImageDescriptor(images[0].feature_channel_format, width, height, channels, depth)

    def _check_strides(self) -> None:
        for argument, source in zip(("primary", "secondary"), self._sources, strict=True):
            for axis in ("x", "y"):
                zero_or_one(self.name, f"{argument}_stride_in_pixels_{axis}", getattr(source, f"stride_{axis}"))

    def _limits(self) -> tuple[float, float]:
        """The limits that are on; infinite where they are at their defaults."""
        minimum, maximum = self.minimum_value, self.maximum_value
        if minimum > maximum:
            raise MPSArgumentError(
                self.name, "minimum_value", f"must not be above maximum_value, {maximum}", minimum, "Set both limits"
            )
        return (
            -math.inf if minimum <= -FLT_MAX else minimum,
            math.inf if maximum >= FLT_MAX else maximum,
        )

    def _parameters(self) -> ArithmeticParameters:
        strides = tuple(
            (source.stride_x, source.stride_y, channel)
            for source, channel in zip(self._sources, self._channel_strides(), strict=True)
        )
        is_limited = self._limits() != (-math.inf, math.inf)
        return ArithmeticParameters(self.primary_scale, self.secondary_scale, (strides[0], strides[1]), is_limited)

    def _combination(self) -> Combination | None:
        """What is done with the two operands; None for the base, which has no operation of its own."""
        kind = self._arithmetic
        if kind is None:
            return None
        minimum, maximum = self._limits()
        settings = {
            "primary_scale": self.primary_scale,
            "secondary_scale": self.secondary_scale,
            "bias": self.bias,
            "minimum": minimum,
            "maximum": maximum,
        }
        return lambda x, y: arithmetic(kind, x, y, **settings)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        combine = self._combination()
        if combine is None:
            return super()._operation(sources, target, states)
        self._check_strides()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, Any]:
            x, y = (read(value, source.window, source.edge_mode) for value, source in zip(values, sources, strict=True))
            value, mask = combine(x, y)
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


class MPSCNNSubtract(MPSCNNArithmetic):
    """primary_scale x - secondary_scale y + bias, clamped (MPSCNNMath.h, macOS 10.13.4)."""

    _arithmetic = Arithmetic.SUBTRACT


class MPSCNNMultiply(MPSCNNArithmetic):
    """(primary_scale x) (secondary_scale y) + bias, clamped (MPSCNNMath.h, macOS 10.13.4)."""

    _arithmetic = Arithmetic.MULTIPLY


class MPSCNNDivide(MPSCNNArithmetic):
    """(primary_scale x) / (secondary_scale y) + bias, clamped (MPSCNNMath.h, macOS 10.13.4).

    With the limits at their defaults 1/0 is infinite and 0/0 NaN. It has no gradient, and leaves no state.
    """

    _arithmetic = Arithmetic.DIVIDE
    _gradient_state_class = None


def _comparison(who: str, argument: str, value: MPSNNComparisonType) -> MPSNNComparisonType:
    try:
        return MPSNNComparisonType(value)
    except ValueError as fault:
        names = ", ".join(each.name for each in MPSNNComparisonType)
        raise MPSArgumentError(who, argument, f"must be one of {names}", repr(value)) from fault


def _distance(who: str, argument: str, value: float) -> float:
    found = number(who, argument, value)
    if found < 0.0:
        raise MPSArgumentError(who, argument, "must be at least 0", found)
    return found


class MPSNNCompare(MPSCNNArithmetic):
    """1 where x compares so with y, else 0 (MPSCNNMath.h, macOS 10.14.1).

    With `comparison_type`: EQUAL |x - y| <= threshold, NOT_EQUAL |x - y| > threshold, LESS x < y, LESS_OR_EQUAL x <= y
    or equal within the threshold, GREATER and GREATER_OR_EQUAL the other way round. No comparison with NaN is true.
    Scales, bias and limits are not used. It has no gradient, and leaves no state.
    """

    comparison_type = KernelProperty(MPSNNComparisonType.EQUAL, _comparison, "The comparison. Default EQUAL.")
    threshold = KernelProperty(
        0.0, _distance, "How far apart two numbers may be and still count as equal; at least 0. Default 0."
    )

    _gradient_state_class = None

    def _combination(self) -> Combination:
        comparison, threshold = self.comparison_type, self.threshold
        return lambda x, y: (compare(comparison, x, y, threshold), None)
