"""Upsampling by whole factors, and its gradients (MPSCNNUpsampling.h, macOS 10.13)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from openmps.checks import flag
from openmps.convention import Conventions
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.configuration import Fixed, Setting
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import integer
from openmps.core.state.gradient import MPSNNGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.elements import Crop
from openmps.ops.geometry import Window
from openmps.ops.op import Value
from openmps.ops.resample.half_pixels import InterpolateHalves, InterpolateHalvesGradient
from openmps.ops.resample.image_scale import Scaling
from openmps.ops.resample.resample import Enlarge, EnlargeGradient, Interpolate, InterpolateGradient
from openmps.ops.resample.stretch import Stretch
from openmps.selectors import takes


class UpsamplingParameters(NamedTuple):
    """What the gradient kernels take over from the forward kernel."""

    factors: tuple[int, int]
    """Vertical and horizontal."""
    align_corners: bool


class _Factors(MPSKernel):
    """The factors that upsampling and its gradients share."""

    _factors = Setting[tuple[int, int]]()

    @property
    def scale_factor_x(self) -> float:
        """Columns of the larger image for each column of the smaller one: a whole number."""
        return float(self._factors[1])

    @property
    def scale_factor_y(self) -> float:
        """Rows of the larger image for each row of the smaller one: a whole number."""
        return float(self._factors[0])

    @takes()
    def __init__(self, device: MTLDevice, integer_scale_factor_x: int, integer_scale_factor_y: int) -> None:
        super().__init__(device)
        horizontal = integer(self.name, "integer_scale_factor_x", integer_scale_factor_x, 1)
        self._factors = integer(self.name, "integer_scale_factor_y", integer_scale_factor_y, 1), horizontal


class MPSCNNUpsampling(_Factors, MPSCNNKernel, leaves=MPSNNGradientState):
    """The base of upsampling kernels (MPSCNNUpsampling.h, macOS 10.13).

    The result of an encode that returns it is as many times larger as the factors f say, whatever the padding policy.
    Pixel i of the clip rectangle stands at source position ``offset + i / f``, so that a clip rectangle that begins at
    a multiple m f of the factor belongs to an offset of m. By the convention ``upsampling_origin`` pixel i of the
    destination does, whatever the clip rectangle is.
    """

    align_corners = Fixed[bool](
        "Whether the centres of the corner pixels of source and result fall together. Default False.", False
    )

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        source, (vertical, horizontal) = shapes[0].extent, self._factors
        self._place(0, 0, 0, 0)
        channels = self._channels_read(0, source.channels)
        return Extent(source.width * horizontal, source.height * vertical, channels, self._images_to_make(shapes))

    def _parameters(self) -> UpsamplingParameters:
        return UpsamplingParameters(self._factors, self.align_corners)


class _Counted(NamedTuple):
    """Pixels of a result from the one that stands at the offset on, and which of them are written."""

    window: Window
    part: Crop | None

    @classmethod
    def of(cls, at: LoweringContext, conventions: Conventions) -> _Counted:
        """From the clip rectangle's corner on, or from the destination's by the convention ``upsampling_origin``."""
        window, columns, rows = at.window, at.target.x, at.target.y
        if not (columns or rows) or conventions["upsampling_origin"] == "clip":
            return cls(window, None)
        x, y = replace(window.x, result=window.x.result + columns), replace(window.y, result=window.y.result + rows)
        return cls(Window(x, y), Crop(rows, columns, window.y.result, window.x.result))

    def written(self, pixels: Value) -> Value:
        """Those that are written, of all."""
        return pixels if self.part is None else self.part(pixels)


class MPSCNNUpsamplingNearest(MPSCNNUpsampling):
    """Y[i] = X[i // f + offset] along each axis: every pixel f times (MPSCNNUpsampling.h, macOS 10.13).

    Outside the source, which only an offset or a larger clip rectangle reaches, the edge mode decides.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        counted = _Counted.of(at, self.conventions)
        return counted.written(Enlarge(counted.window, self._factors, at.edge_mode)(images[0]))


class MPSCNNUpsamplingBilinear(MPSCNNUpsampling):
    """Linear interpolation along each axis (MPSCNNUpsampling.h, macOS 10.13).

    ``Y[i] = (1 - w) X[k] + w X[k + 1]`` with k the whole and w the fractional part of the position u::

        u = i / f + offset                                  align_corners False
        u = i (n - 1) / (f n - 1) + offset, offset if f n = 1    align_corners True, n the source's width or height

    Without ``align_corners`` the first pixels fall together and the last f are one: there is no shift by half a pixel,
    as in TensorFlow 1 and other than in PyTorch. Behind the last pixel there is the last pixel in either edge mode;
    what lies further outside, which only an offset or a larger clip rectangle reaches, is the edge mode's business.

    By the convention ``bilinear_centres`` pixels are squares instead where corners are not aligned: ``u = (i + 1/2) / f
    - 1/2 + offset``, with the edge's pixels around the source in either edge mode.
    """

    def __init__(
        self,
        device: MTLDevice,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        align_corners: bool = False,
    ) -> None:
        super().__init__(device, integer_scale_factor_x, integer_scale_factor_y)
        self._change(align_corners=flag(self.name, "align_corners", align_corners))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        counted = _Counted.of(at, self.conventions)
        if _has_squares(self.conventions, self.align_corners):
            return counted.written(InterpolateHalves(*_scalings(counted.window, self._factors))(images[0]))
        rows, columns = _stretches(counted.window, self._factors, self.align_corners)
        return counted.written(Interpolate(rows, columns, at.edge_mode)(images[0]))


def _stretches(window: Window, factors: tuple[int, int], align_corners: bool) -> tuple[Stretch, Stretch]:
    """Where the rows and columns of the result stand."""
    axes = zip((window.y, window.x), factors, strict=True)
    rows, columns = (Stretch.to(axis, axis.source * factor, align_corners) for axis, factor in axes)
    return rows, columns


def _has_squares(conventions: Conventions, align_corners: bool) -> bool:
    """Whether pixels count as squares, whose centres lie half a pixel from their edges."""
    return not align_corners and conventions["bilinear_centres"] == "half_pixel"


def _scalings(window: Window, factors: tuple[int, int]) -> tuple[Scaling, Scaling]:
    """Where the rows and columns of the result stand between such pixels."""
    vertical, horizontal = factors
    return Scaling(window.y, float(vertical)), Scaling(window.x, float(horizontal))


class MPSCNNUpsamplingGradient(_Factors, MPSCNNGradientKernel):
    """The base of upsampling gradients (MPSCNNUpsampling.h, macOS 10.13.4); the factors are the forward kernel's.

    Gradient pixel ``primary_offset + t`` stands at source position ``secondary_offset + t / f``.
    """

    def _forward_parameters(self, given: Given | None) -> UpsamplingParameters:
        """Those of the forward encode; without states corners are not aligned."""
        own = UpsamplingParameters(self._factors, False)
        known = {record.parameters for record in given.records} if given is not None and given.records else {own}
        first = next(iter(known))
        if len(known) > 1 or not isinstance(first, UpsamplingParameters) or first.factors != self._factors:
            raise MPSArgumentError(
                self.name,
                "gradient_state",
                f"must come from upsampling by {self._factors[1]}x{self._factors[0]} (horizontal x vertical), "
                "with corners aligned in all states or in none",
                ", ".join(map(str, known)),
                "Make the gradient kernel with the forward kernel's factors",
            )
        return first


class MPSCNNUpsamplingNearestGradient(MPSCNNUpsamplingGradient, of=MPSCNNUpsamplingNearest):
    """dX = the sum of G over each pixel's f x f copies (MPSCNNUpsampling.h, macOS 10.13.4)."""

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        factors = self._forward_parameters(at.given).factors
        return EnlargeGradient(at.window, factors, at.edge_mode)(gradient)


class MPSCNNUpsamplingBilinearGradient(MPSCNNUpsamplingGradient, of=MPSCNNUpsamplingBilinear):
    """dX = G spread by the weights of the forward kernel (MPSCNNUpsampling.h, macOS 10.13.4).

    Whether corners are aligned comes from the gradient state; without one they are not.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        factors, align_corners = self._forward_parameters(at.given)
        if _has_squares(self.conventions, align_corners):
            return InterpolateHalvesGradient(*_scalings(at.window, factors))(gradient)
        rows, columns = _stretches(at.window, factors, align_corners)
        return InterpolateGradient(rows, columns, at.edge_mode)(gradient)
