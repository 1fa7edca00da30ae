"""Upsampling by whole factors, and its gradients (MPSCNNUpsampling.h, macOS 10.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.ops.geometry import Window
from openmps.ops.resample import Stretch, enlarge, enlarge_gradient, interpolate, interpolate_gradient
from openmps.types import MPSOffset

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


@dataclass(frozen=True, slots=True)
class UpsamplingParameters:
    """What the gradient kernels take over from the forward kernel."""

    factors: tuple[int, int]
    """Vertical and horizontal."""
    align_corners: bool


class _Factors:
    """The factors that upsampling and its gradients share."""

    _factors: tuple[int, int]

    @property
    def scale_factor_x(self) -> float:
        """Columns of the larger image for each column of the smaller one: a whole number."""
        return float(self._factors[1])

    @property
    def scale_factor_y(self) -> float:
        """Rows of the larger image for each row of the smaller one: a whole number."""
        return float(self._factors[0])

    def _set_factors(self, who: str, integer_scale_factor_x: int, integer_scale_factor_y: int) -> None:
        named = {"integer_scale_factor_x": integer_scale_factor_x, "integer_scale_factor_y": integer_scale_factor_y}
        for name, value in named.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise MPSArgumentError(who, name, "must be an integer of at least 1", repr(value))
        self._factors = (integer_scale_factor_y, integer_scale_factor_x)


class MPSCNNUpsampling(_Factors, MPSCNNKernel):
    """The base of upsampling kernels (MPSCNNUpsampling.h, macOS 10.13).

    The result of an encode that returns it is as many times larger as the factors f say, whatever the padding policy.
    Pixel i of the clip rectangle stands at source position ``offset + i / f``, so that a clip rectangle that begins at
    a multiple m f of the factor belongs to an offset of m.
    """

    _gradient_state_class = MPSNNGradientState

    def __init__(self, device: MTLDevice, integer_scale_factor_x: int, integer_scale_factor_y: int) -> None:
        super().__init__(device)
        self._set_factors(self.name, integer_scale_factor_x, integer_scale_factor_y)
        self._align_corners = False

    @property
    def align_corners(self) -> bool:
        """Whether the centres of the corner pixels of source and result fall together. Default False."""
        return self._align_corners

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        (image,), (source,) = images, self._sources
        source.offset = MPSOffset(0, 0, source.offset.z)
        return MPSImageDescriptor(
            image.feature_channel_format,
            image.width * self._factors[1],
            image.height * self._factors[0],
            self._channels_read(0, image.feature_channels),
            self._images_to_make(images),
        )

    def _parameters(self) -> UpsamplingParameters:
        return UpsamplingParameters(self._factors, self._align_corners)


class MPSCNNUpsamplingNearest(MPSCNNUpsampling):
    """Y[i] = X[i // f + offset] along each axis: every pixel f times (MPSCNNUpsampling.h, macOS 10.13).

    Outside the source, which only an offset or a larger clip rectangle reaches, the edge mode decides.
    """

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,), factors = sources, self._factors

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return enlarge(values[0], source.window, factors, source.edge_mode), None

        return operation


class MPSCNNUpsamplingBilinear(MPSCNNUpsampling):
    """Linear interpolation along each axis (MPSCNNUpsampling.h, macOS 10.13).

    ``Y[i] = (1 - w) X[k] + w X[k + 1]`` with k the whole and w the fractional part of the position u::

        u = i / f + offset                                  align_corners False
        u = i (n - 1) / (f n - 1) + offset, offset if f n = 1    align_corners True, n the source's width or height

    Without ``align_corners`` the first pixels fall together and the last f are one: there is no shift by half a pixel,
    as in TensorFlow 1 and other than in PyTorch. Behind the last pixel there is the last pixel in either edge mode;
    what lies further outside, which only an offset or a larger clip rectangle reaches, is the edge mode's business.
    """

    def __init__(
        self,
        device: MTLDevice,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        align_corners: bool = False,
    ) -> None:
        super().__init__(device, integer_scale_factor_x, integer_scale_factor_y)
        self._align_corners = bool(align_corners)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        rows, columns = _stretches(source.window, self._factors, self._align_corners)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return interpolate(values[0], rows, columns, source.edge_mode), None

        return operation


def _stretches(window: Window, factors: tuple[int, int], align_corners: bool) -> tuple[Stretch, Stretch]:
    """Where the rows and columns of the result stand."""
    axes = zip((window.y, window.x), factors, strict=True)
    rows, columns = (Stretch.to(axis, axis.source * factor, align_corners) for axis, factor in axes)
    return rows, columns


class MPSCNNUpsamplingGradient(_Factors, MPSCNNGradientKernel):
    """The base of upsampling gradients (MPSCNNUpsampling.h, macOS 10.13.4); the factors are the forward kernel's.

    Gradient pixel ``primary_offset + t`` stands at source position ``secondary_offset + t / f``.
    """

    def __init__(self, device: MTLDevice, integer_scale_factor_x: int, integer_scale_factor_y: int) -> None:
        super().__init__(device)
        self._set_factors(self.name, integer_scale_factor_x, integer_scale_factor_y)

    def _forward_parameters(self, states: MPSStateBatch | None) -> UpsamplingParameters:
        """Those of the forward encode; without states corners are not aligned."""
        kept = [state for state in states.counted() if isinstance(state, MPSNNGradientState)] if states else []
        own = UpsamplingParameters(self._factors, False)
        known = {self._record_of(state).parameters for state in kept} or {own}
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


class MPSCNNUpsamplingNearestGradient(MPSCNNUpsamplingGradient):
    """dX = the sum of G over each pixel's f x f copies (MPSCNNUpsampling.h, macOS 10.13.4)."""

    _forward_kernels = (MPSCNNUpsamplingNearest,)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        factors = self._forward_parameters(states).factors

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return enlarge_gradient(gradient, geometry.source, factors, geometry.edge_mode), None

        return differentiate


class MPSCNNUpsamplingBilinearGradient(MPSCNNUpsamplingGradient):
    """dX = G spread by the weights of the forward kernel (MPSCNNUpsampling.h, macOS 10.13.4).

    Whether corners are aligned comes from the gradient state; without one they are not.
    """

    _forward_kernels = (MPSCNNUpsamplingBilinear,)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        parameters = self._forward_parameters(states)
        rows, columns = _stretches(geometry.source, parameters.factors, parameters.align_corners)

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return interpolate_gradient(gradient, rows, columns, geometry.edge_mode), None

        return differentiate
