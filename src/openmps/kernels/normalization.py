"""Normalization by the numbers around each number, and its gradients (MPSCNNNormalization.h, macOS 10.12)."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import ClassVar

from openmps.checks import FLT_MAX, Shown
from openmps.core.kernel.base import KernelProperties, MPSKernel
from openmps.core.kernel.configuration import Configured, Fixed, KernelProperty
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import integer
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.normalization.local_normalization import (
    Contrast,
    CrossChannelNormalization,
    CrossChannelNormalizationGradient,
    Divisor,
    LocalContrastNormalization,
    LocalContrastNormalizationGradient,
    SpatialNormalization,
    SpatialNormalizationGradient,
)
from openmps.ops.normalization.printed_slopes import (
    PrintedChannelGradient,
    PrintedContrastGradient,
    PrintedSpatialGradient,
)
from openmps.ops.op import Value
from openmps.selectors import takes

# --- parameters -------------------------------------------------------------------------------------------------------


def _finite(who: str, argument: str, value: float, least: float = -FLT_MAX) -> float:
    """A finite number."""
    if not isinstance(value, Real) or isinstance(value, bool) or not least <= value <= FLT_MAX:
        rule = "must be a finite number" if least < 0 else "must be a finite number of at least 0"
        raise MPSArgumentError(who, argument, rule, repr(value))
    return float(value)


_not_negative = partial(_finite, least=0.0)


class _Parameters(Configured):
    """Parameters that the gradient kernel takes over from the forward kernel, by way of its state."""

    _names: ClassVar[tuple[str, ...]] = ("alpha", "beta", "delta")
    _gradient_state_class = MPSNNGradientState

    def _parameters(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in self._names)


class _EnergyParameters(_Parameters):
    """The parameters of normalizations by the squares around a number."""

    alpha = KernelProperty(1.0, _not_negative, "Factor of the mean of squares, at least 0. Default 1.")
    beta = KernelProperty(5.0, _finite, "Exponent of the divisor. Default 5.")
    delta = KernelProperty(1.0, _finite, "Added to the mean of squares. Default 1.")

    def _divisor(self) -> Divisor:
        return Divisor(self.alpha, self.beta, self.delta)


class _ContrastParameters(_Parameters):
    """The parameters of local contrast normalization."""

    _names = ("alpha", "beta", "delta", "p0", "pm", "ps")

    alpha = KernelProperty(
        0.0, _finite, "Factor of the variance. Default 0, which takes off the mean alone; a graph's node has 1."
    )
    beta = KernelProperty(0.5, _finite, "Exponent of the divisor. Default 0.5.")
    delta = KernelProperty(2.0**-10, _finite, "Added to the variance. Default 1/1024.")
    p0 = KernelProperty(1.0, _finite, "How much of the mean is taken off. Default 1.")
    pm = KernelProperty(0.0, _finite, "Added to the result. Default 0.")
    ps = KernelProperty(1.0, _finite, "Factor of the result, before `pm` is added. Default 1.")

    def _how(self) -> tuple[Divisor, Contrast]:
        return Divisor(self.alpha, self.beta, self.delta), Contrast(self.p0, self.pm, self.ps)


class _SquareWindow(KernelProperties):
    """A normalization over pixels, with a window that the framework wants square."""

    @takes()
    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        self._set_window(kernel_width, kernel_height, 1, 1)
        if kernel_width != kernel_height:
            rule = f"must equal kernel_width, {kernel_width}: the framework takes square windows only"
            raise MPSArgumentError(self.name, "kernel_height", rule, kernel_height)


class _Gradient(_Parameters, MPSCNNGradientKernel):
    """The gradient of a normalization: with a state, its parameters are those of the forward encode."""

    _gradient_state_class = None

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        self._change(**dict(zip(self._names, record.parameters, strict=True)))

    def _is_printed(self) -> bool:
        """Whether the header's formula is taken, which is not the derivative."""
        return self.conventions["normalization_slopes"] == "printed"


class _WindowGradient(_SquareWindow, _Gradient):
    """The gradient of a normalization over pixels."""

    kernel_width = Shown[int]("secondary_kernel_width", "Columns of the forward kernel's window.")
    kernel_height = Shown[int]("secondary_kernel_height", "Rows of the forward kernel's window.")


# --- over pixels ------------------------------------------------------------------------------------------------------


class MPSCNNSpatialNormalization(_EnergyParameters, _SquareWindow, MPSCNNKernel):
    """Y = X / (delta + alpha / N · sum X²) ^ beta over the N pixels of a window (MPSCNNNormalization.h, macOS 10.12).

    The window reads the pixels -k // 2 .. (k - 1) // 2 around X, in the same channel; the framework wants it square.
    Outside the image they are 0 (edge mode ZERO) or the nearest pixel (CLAMP), and N stays the number of taps. A
    divisor of 0 is undefined. Result as large as the source.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return SpatialNormalization(at.window, at.edge_mode, self._divisor())(images[0])


class MPSCNNSpatialNormalizationGradient(_EnergyParameters, _WindowGradient, of=MPSCNNSpatialNormalization):
    """The derivative of `MPSCNNSpatialNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With T = delta + alpha / N · sum X² at the pixels p whose windows read i,
    ``dX[i] = G[i] T[i]^-beta - 2 alpha beta / N · X[i] · sum(p) G[p] X[p] T[p]^(-beta - 1)``: the header's formula
    lacks 1 / N, and its T stands at the wrong pixel; the convention ``normalization_slopes`` takes it all the same.
    Gradient pixel t belongs to the window around source pixel ``secondary_offset + t``. An encode that returns an image
    takes parameters and window from the state; given a destination, it has them as they are set.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        slopes = PrintedSpatialGradient if self._is_printed() else SpatialNormalizationGradient
        return slopes(at.window, at.edge_mode, self._divisor())(gradient, source)


class MPSCNNLocalContrastNormalization(_ContrastParameters, _SquareWindow, MPSCNNKernel):
    """Y = pm + ps (X - p0 M) / (delta + alpha V) ^ beta (MPSCNNNormalization.h, macOS 10.13).

    M is the mean and V the variance (sum (X - M)² / N) of the N pixels -k // 2 .. (k - 1) // 2 around X, in the same
    channel; the framework wants the window square. Outside the image they are 0 (edge mode ZERO) or the nearest pixel
    (CLAMP), and count in N. With the default alpha of 0 the mean is taken off and the rest divided by ``delta^beta``,
    that is multiplied by 32. A divisor of 0 is undefined. Result as large as the source.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return LocalContrastNormalization(at.window, at.edge_mode, *self._how())(images[0])


class MPSCNNLocalContrastNormalizationGradient(
    _ContrastParameters, _WindowGradient, of=MPSCNNLocalContrastNormalization
):
    """The derivative of `MPSCNNLocalContrastNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With H = ps G T^-beta and W = 2 alpha beta H (X - p0 M) / T at the pixels p whose windows read i,
    ``dX[i] = H[i] - sum(p) (p0 H[p] + W[p] (X[i] - M[p])) / N``: the header's formula has 1 where M belongs, and
    numbers of the wrong pixel; the convention ``normalization_slopes`` takes it all the same. Gradient pixel t belongs
    to the window around source pixel ``secondary_offset + t``. An encode that returns an image takes parameters and
    window from the state; given a destination, it has them as they are set.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        slopes = PrintedContrastGradient if self._is_printed() else LocalContrastNormalizationGradient
        return slopes(at.window, at.edge_mode, *self._how())(gradient, source)


# --- over feature channels --------------------------------------------------------------------------------------------


class _ChannelWindow(_EnergyParameters, MPSKernel):
    """The window of a normalization over channels."""

    _names = ("alpha", "beta", "delta", "kernel_size")

    kernel_size = Fixed[int]("Channels of the window, N. Default 5.")

    @takes()
    def __init__(self, device: MTLDevice, kernel_size: int = 5) -> None:
        super().__init__(device)
        self._change(kernel_size=integer(self.name, "kernel_size", kernel_size, 1))


class MPSCNNCrossChannelNormalization(_ChannelWindow, MPSCNNKernel):
    """Y[k] = X[k] / (delta + alpha / N · sum X[q]²) ^ beta (MPSCNNNormalization.h, macOS 10.13).

    The sum runs over the N = ``kernel_size`` channels q = k - N // 2 .. k + (N - 1) // 2 of the pixel, those of them
    that there are among the channels read; N is not reduced where some are missing. This is local response
    normalization: PyTorch's ``local_response_norm(X, N, alpha, beta, k=delta)``. A divisor of 0 is undefined. Result as
    large as the source.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return CrossChannelNormalization(self.kernel_size, self._divisor())(at.read(images[0]))


class MPSCNNCrossChannelNormalizationGradient(_ChannelWindow, _Gradient, of=MPSCNNCrossChannelNormalization):
    """The derivative of `MPSCNNCrossChannelNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With L the forward divisor without its exponent, and the channels r = k - (N - 1) // 2 .. k + N // 2,
    ``dX[k] = G[k] L[k]^-beta - 2 alpha beta / N · X[k] · sum(r) G[r] X[r] L[r]^(-beta - 1)``: the header's formula
    lacks 1 / N; the convention ``normalization_slopes`` takes it all the same. An encode that returns an image takes
    parameters and window from the state; given a destination, it has them as they are set.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        slopes = PrintedChannelGradient if self._is_printed() else CrossChannelNormalizationGradient
        return at.back(slopes(self.kernel_size, self._divisor())(gradient, at.read(source)))
