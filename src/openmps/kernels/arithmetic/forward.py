"""Element-wise arithmetic and comparison of two images (MPSCNNMath.h, macOS 10.13.4 and 10.14.1)."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from openmps.checks import FLT_MAX, as_index, number
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.binary import MPSCNNBinaryKernel
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import MPSNNBinaryGradientState
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, shown
from openmps.ops.op import Value
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination, Comparison, CutInfinities, Stretch, open_limits
from openmps.types import MPSNNComparisonType


class ArithmeticParameters(NamedTuple):
    """What the gradient kernels take over from the forward kernel."""

    primary_scale: float
    secondary_scale: float
    channel_strides: tuple[int, int]
    is_limited: bool


def zero_or_one(who: str, argument: str, value: int) -> int:
    """A stride of arithmetic kernels: 1, or 0 to broadcast."""
    found = as_index(value)
    if found not in (0, 1):
        raise MPSArgumentError(who, argument, "must be 0 (broadcast) or 1", shown(value))
    return found


class MPSCNNArithmeticGradientState(MPSNNBinaryGradientState):
    """The properties of an arithmetic encode, and where it was clamped (MPSCNNMath.h, macOS 10.13.4).

    >>> state.is_temporary, state.source_width
    (False, 2)
    """


class MPSCNNArithmetic(MPSCNNBinaryKernel[MPSCNNArithmeticGradientState], leaves=MPSCNNArithmeticGradientState):
    """The base of element-wise arithmetic on two images (MPSCNNMath.h, macOS 10.13.4).

    x and y are the primary and secondary numbers ``source[offset + stride * destination]``. Strides, also of feature
    channels, are 0 (one number for all: broadcast) or 1. The result is clamped to `minimum_value` .. `maximum_value`;
    at their defaults, plus and minus the largest float32, nothing is clamped and infinities and NaN pass.
    """

    _is_abstract = True

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

    def _channel_strides(self) -> tuple[int, int]:
        return self.primary_stride_in_feature_channels, self.secondary_stride_in_feature_channels

    def _needed_channels(self, index: int, available: int) -> int:
        return min(1, available) if not self._channel_strides()[index] else super()._needed_channels(index, available)

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        first, second = channels
        if first != second and all(self._channel_strides()):
            rule = "must have the same number of feature channels, or one a feature channel stride of 0"
            raise MPSArgumentError(self.name, "sources", rule, f"{first} and {second}")
        return max(channels)

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        self._check_strides()
        self._place(0, 0, 0, 0)
        read = list(zip(self._sources, (shape.extent for shape in shapes), strict=True))
        width = max(extent.width if source.stride_x else 1 for source, extent in read)
        height = max(extent.height if source.stride_y else 1 for source, extent in read)
        primary = shapes[0].extent
        if (width, height) != (primary.width, primary.height) and self.conventions["broadcast_size"] == "primary":
            width, height = primary.width, primary.height
        channels = [self._channels_read(index, extent.channels) for index, (_, extent) in enumerate(read)]
        return Extent(width, height, self._result_channels(tuple(channels)), self._images_to_make(shapes))

    def _check_strides(self) -> None:
        for argument, source in zip(("primary", "secondary"), self._sources, strict=True):
            for axis in ("x", "y"):
                zero_or_one(self.name, f"{argument}_stride_in_pixels_{axis}", getattr(source, f"stride_{axis}"))

    def _limits(self) -> tuple[float, float]:
        """The limits that are on; infinite where they are at their defaults."""
        minimum, maximum = self.minimum_value, self.maximum_value
        if minimum > maximum:
            rule = f"must not be above maximum_value, {maximum}"
            raise MPSArgumentError(self.name, "minimum_value", rule, minimum, "Set both limits")
        return open_limits(minimum, maximum)

    @property
    def _is_limited(self) -> bool:
        return self._limits() != (-math.inf, math.inf)

    def _parameters(self) -> ArithmeticParameters:
        return ArithmeticParameters(self.primary_scale, self.secondary_scale, self._channel_strides(), self._is_limited)

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        if self._arithmetic is None:
            return super()._lower(at, *images)
        combine = Combination(self._arithmetic, self.primary_scale, self.secondary_scale, self.bias, *self._limits())
        value, mask = combine(*self._regions(at, images))
        if self._is_limited:
            at.saves(_stretched(at, mask))
        return _stretched(at, value)

    def _regions(self, at: LoweringContext, images: tuple[Value, ...]) -> tuple[Value, ...]:
        """The numbers of both sources, one pixel, row, column or channel where one serves all."""
        self._check_strides()
        return tuple(at.read(image, index) for index, image in enumerate(images))


def _stretched(at: LoweringContext, value: Value) -> Value:
    """The whole result, where both sources were broadcast along an axis."""
    height, width = (max(size) for size in zip(*(source.window.region for source in at.sources), strict=True))
    whole = (at.target.height, at.target.width)
    return value if (height, width) == whole else Stretch(*whole)(value)


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

    With the limits at their defaults 1/0 is infinite, by the convention ``infinite_quotients`` the largest float32, and
    0/0 NaN. It has no gradient, and leaves no state.
    """

    _arithmetic = Arithmetic.DIVIDE
    _gradient_state_class = None

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        value = super()._lower(at, *images)
        return CutInfinities()(value) if value and self.conventions.unnoted("infinite_quotients") == "cut" else value


def _comparison(who: str, argument: str, value: MPSNNComparisonType) -> MPSNNComparisonType:
    return member(who, argument, MPSNNComparisonType, value)


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

    _gradient_state_class = None

    comparison_type = KernelProperty(MPSNNComparisonType.EQUAL, _comparison, "The comparison. Default EQUAL.")
    threshold = KernelProperty(
        0.0, _distance, "How far apart two numbers may be and still count as equal; at least 0. Default 0."
    )

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return _stretched(at, Comparison(self.comparison_type, self.threshold)(*self._regions(at, images)))
