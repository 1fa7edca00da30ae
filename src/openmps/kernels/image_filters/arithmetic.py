"""Arithmetic on the pixels of two pictures (MPSImageMath.h, macOS 10.13)."""

from __future__ import annotations

from typing import ClassVar

from openmps.checks import FLT_MAX, number, of_kind
from openmps.core.kernel.configuration import Configured, KernelProperty
from openmps.core.kernel.image_filter import MPSBinaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.errors import MPSArgumentError
from openmps.ops.image.threshold import Limited
from openmps.ops.op import Value
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination, Stretch, open_limits
from openmps.types import MTLSize


def _strides(who: str, argument: str, value: MTLSize) -> MTLSize:
    given = of_kind(who, argument, value, MTLSize)
    if max(given.width, given.height, given.depth) > 1:
        raise MPSArgumentError(who, argument, "must be 0 (broadcast) or 1 along each axis", value)
    return given


class _Strides(KernelProperty[MTLSize]):
    """Pixels of a source from one result pixel to the next."""

    def __init__(self, source: int, name: str) -> None:
        super().__init__(
            MTLSize(1, 1, 1),
            _strides,
            f"Pixels of the {name} source from one result pixel to the next along each axis: 1, the default, or 0, "
            "which repeats the first column or row. The depth is not used.",
        )
        self._source = source

    def __set__(self, kernel: Configured, value: MTLSize) -> None:
        super().__set__(kernel, value)
        kernel._change_source(self._source, stride_x=value.width, stride_y=value.height)  # pyright: ignore[reportPrivateUsage]


class MPSImageArithmetic(MPSBinaryImageKernel):
    """The base of arithmetic on two pictures (MPSImageMath.h, macOS 10.13).

    x and y are the numbers of the primary and the secondary source at ``offset + stride * (i, j)``. The result is
    clamped to `minimum_value` … `maximum_value` after `bias` was added: at the defaults, plus and minus the largest
    float32, infinities become those; NaN stays. Alpha takes part as every channel does.

    Raises:
        MPSArgumentError: In an encode, `minimum_value` is above `maximum_value`.
    """

    _is_abstract = True
    _is_by_rows = True
    _arithmetic: ClassVar[Arithmetic | None] = None

    primary_scale = KernelProperty(1.0, number, "Factor of the primary numbers. Default 1.")
    secondary_scale = KernelProperty(1.0, number, "Factor of the secondary numbers. Default 1.")
    bias = KernelProperty(0.0, number, "Added to the result before clamping. Default 0.")
    minimum_value = KernelProperty(-FLT_MAX, number, "Lower limit of the result. Default: minus the largest float32.")
    maximum_value = KernelProperty(FLT_MAX, number, "Upper limit of the result. Default: the largest float32.")
    primary_stride_in_pixels = _Strides(0, "primary")
    secondary_stride_in_pixels = _Strides(1, "secondary")

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        if self._arithmetic is None:
            return super()._lower(at, *images)
        if self.minimum_value > self.maximum_value:
            rule = f"must not be above maximum_value, {self.maximum_value}"
            raise MPSArgumentError(self.name, "minimum_value", rule, self.minimum_value, "Set both limits")
        (x, unit_of_x), (y, unit_of_y) = (self._measured_pixels(at, images, index) for index in range(2))
        scales = self.primary_scale * unit_of_x, self.secondary_scale * unit_of_y
        value = Combination(self._arithmetic, *scales, self.bias)(x, y)[0]
        if not (at.stores_unorm and self.minimum_value <= 0.0 and self.maximum_value >= 1.0):
            value = Limited(*self._limits())(value)
        sizes = [source.window.region for source in at.sources]
        made = tuple(max(lengths) for lengths in zip(*sizes, strict=True))
        whole = (at.target.height, at.target.width)
        return value if made == whole else Stretch(*whole)(value)

    def _limits(self) -> tuple[float, float]:
        """What results are cut to; by the convention the defaults are no limits."""
        given = self.minimum_value, self.maximum_value
        return open_limits(*given) if self.conventions["arithmetic_infinity"] == "pass" else given


class MPSImageAdd(MPSImageArithmetic):
    """primary_scale x + secondary_scale y + bias, clamped (MPSImageMath.h, macOS 10.13)."""

    _arithmetic = Arithmetic.ADD


class MPSImageSubtract(MPSImageArithmetic):
    """primary_scale x - secondary_scale y + bias, clamped (MPSImageMath.h, macOS 10.13)."""

    _arithmetic = Arithmetic.SUBTRACT


class MPSImageMultiply(MPSImageArithmetic):
    """(primary_scale x) (secondary_scale y) + bias, clamped (MPSImageMath.h, macOS 10.13)."""

    _arithmetic = Arithmetic.MULTIPLY


class MPSImageDivide(MPSImageArithmetic):
    """(primary_scale x) / (secondary_scale y) + bias, clamped (MPSImageMath.h, macOS 10.13).

    1/0 is the largest float32 at the default limits, and 0/0 NaN.
    """

    _arithmetic = Arithmetic.DIVIDE
