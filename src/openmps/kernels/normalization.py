"""Normalization by the numbers around each number, and its gradients (MPSCNNNormalization.h, macOS 10.12)."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.encode import ImageKernel, Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.ops import local_normalization as ops
from openmps.ops.geometry import read, read_adjoint
from openmps.ops.local_normalization import Contrast, Divisor

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

FLT_MAX = float(np.finfo(np.float32).max)

# --- parameters -------------------------------------------------------------------------------------------------------


class _Number:
    """A parameter that can be set at any time: a finite number, not negative if so asked."""

    def __init__(self, default: float, doc: str, *, may_be_negative: bool = True) -> None:
        self._default = default
        self._may_be_negative = may_be_negative
        self._name = ""
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, kernel: None, owner: type) -> Self: ...
    @overload
    def __get__(self, kernel: MPSKernel, owner: type) -> float: ...
    def __get__(self, kernel: MPSKernel | None, owner: type) -> Self | float:
        return self if kernel is None else vars(kernel).get(f"_{self._name}", self._default)

    def __set__(self, kernel: MPSKernel, value: float) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= FLT_MAX
        if not is_number or (value < 0 and not self._may_be_negative):
            rule = "must be a finite number" if self._may_be_negative else "must be a finite number of at least 0"
            raise MPSArgumentError(kernel.name, self._name, rule, repr(value))
        vars(kernel)[f"_{self._name}"] = float(value)


class _Parameters(ImageKernel):
    """Parameters that the gradient kernel takes over from the forward kernel, by way of its state."""

    _names: ClassVar[tuple[str, ...]] = ("alpha", "beta", "delta")
    _gradient_state_class = MPSNNGradientState

    def _parameters(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self._names}


class _EnergyParameters(_Parameters):
    """The parameters of normalizations by the squares around a number."""

    alpha = _Number(1.0, "Factor of the mean of squares, at least 0. Default 1.", may_be_negative=False)
    beta = _Number(5.0, "Exponent of the divisor. Default 5.")
    delta = _Number(1.0, "Added to the mean of squares. Default 1.")

    def _divisor(self) -> Divisor:
        return Divisor(self.alpha, self.beta, self.delta)


class _ContrastParameters(_Parameters):
    """The parameters of local contrast normalization."""

    _names = ("alpha", "beta", "delta", "p0", "pm", "ps")

    alpha = _Number(0.0, "Factor of the variance. Default 0, which takes off the mean alone; a graph's node has 1.")
    beta = _Number(0.5, "Exponent of the divisor. Default 0.5.")
    delta = _Number(2.0**-10, "Added to the variance. Default 1/1024.")
    p0 = _Number(1.0, "How much of the mean is taken off. Default 1.")
    pm = _Number(0.0, "Added to the result. Default 0.")
    ps = _Number(1.0, "Factor of the result, before `pm` is added. Default 1.")

    def _divisor(self) -> Divisor:
        return Divisor(self.alpha, self.beta, self.delta)

    def _contrast(self) -> Contrast:
        return Contrast(self.p0, self.pm, self.ps)


def _check_size(kernel: ImageKernel, argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MPSArgumentError(kernel.name, argument, "must be an integer of at least 1", repr(value))
    return value


def _set_window(kernel: ImageKernel, width: int, height: int, sources: Any) -> None:
    """Give every source of a normalization its window, which the framework wants square."""
    _check_size(kernel, "kernel_width", width)
    _check_size(kernel, "kernel_height", height)
    if width != height:
        rule = f"must equal kernel_width, {width}: the framework takes square windows only"
        raise MPSArgumentError(kernel.name, "kernel_height", rule, height)
    for source in sources:
        source.kernel_width, source.kernel_height = width, height


class _Gradient(_Parameters, MPSCNNGradientKernel):
    """The gradient of a normalization: with a state, its parameters are those of the forward encode."""

    _gradient_state_class = None

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        for name, value in record.parameters.items():
            setattr(self, name, value)


class _WindowGradient(_Gradient):
    """The gradient of a normalization over pixels."""

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        _set_window(self, kernel_width, kernel_height, self._sources)

    @property
    def kernel_width(self) -> int:
        """Columns of the forward kernel's window."""
        return self._sources[1].kernel_width

    @property
    def kernel_height(self) -> int:
        """Rows of the forward kernel's window."""
        return self._sources[1].kernel_height


# --- over pixels ------------------------------------------------------------------------------------------------------


class MPSCNNSpatialNormalization(_EnergyParameters, MPSCNNKernel):
    """Y = X / (delta + alpha / N · sum X²) ^ beta over the N pixels of a window (MPSCNNNormalization.h, macOS 10.12).

    The window reads the pixels -k // 2 .. (k - 1) // 2 around X, in the same channel; the framework wants it square.
    Outside the image they are 0 (edge mode ZERO) or the nearest pixel (CLAMP), and N stays the number of taps. A
    divisor of 0 is undefined. Result as large as the source.
    """

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        _set_window(self, kernel_width, kernel_height, self._sources)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        divisor = self._divisor()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return ops.spatial_normalization(values[0], source.window, source.edge_mode, divisor), None

        return operation


class MPSCNNSpatialNormalizationGradient(_EnergyParameters, _WindowGradient):
    """The derivative of `MPSCNNSpatialNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With T = delta + alpha / N · sum X² at the pixels p whose windows read i,
    ``dX[i] = G[i] T[i]^-beta - 2 alpha beta / N · X[i] · sum(p) G[p] X[p] T[p]^(-beta - 1)``: the header's formula
    lacks 1 / N, and its T stands at the wrong pixel. Gradient pixel t belongs to the window around source pixel
    ``secondary_offset + t``. An encode that returns an image takes parameters and window from the state; given a
    destination, it has them as they are set.
    """

    _forward_kernels = (MPSCNNSpatialNormalization,)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        window, edge_mode, divisor = geometry.source, geometry.edge_mode, self._divisor()

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return ops.spatial_normalization_gradient(gradient, source, window, edge_mode, divisor), None

        return differentiate


class MPSCNNLocalContrastNormalization(_ContrastParameters, MPSCNNKernel):
    """Y = pm + ps (X - p0 M) / (delta + alpha V) ^ beta (MPSCNNNormalization.h, macOS 10.13).

    M is the mean and V the variance (sum (X - M)² / N) of the N pixels -k // 2 .. (k - 1) // 2 around X, in the same
    channel; the framework wants the window square. Outside the image they are 0 (edge mode ZERO) or the nearest pixel
    (CLAMP), and count in N. With the default alpha of 0 the mean is taken off and the rest divided by ``delta^beta``,
    that is multiplied by 32. A divisor of 0 is undefined. Result as large as the source.
    """

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        _set_window(self, kernel_width, kernel_height, self._sources)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        divisor, contrast = self._divisor(), self._contrast()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            window, edge_mode = source.window, source.edge_mode
            return ops.local_contrast_normalization(values[0], window, edge_mode, divisor, contrast), None

        return operation


class MPSCNNLocalContrastNormalizationGradient(_ContrastParameters, _WindowGradient):
    """The derivative of `MPSCNNLocalContrastNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With H = ps G T^-beta and W = 2 alpha beta H (X - p0 M) / T at the pixels p whose windows read i,
    ``dX[i] = H[i] - sum(p) (p0 H[p] + W[p] (X[i] - M[p])) / N``: the header's formula has 1 where M belongs, and
    numbers of the wrong pixel. Gradient pixel t belongs to the window around source pixel ``secondary_offset + t``.
    An encode that returns an image takes parameters and window from the state; given a destination, it has them as
    they are set.
    """

    _forward_kernels = (MPSCNNLocalContrastNormalization,)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        window, edge_mode = geometry.source, geometry.edge_mode
        divisor, contrast = self._divisor(), self._contrast()

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return ops.local_contrast_normalization_gradient(
                gradient, source, window, edge_mode, divisor, contrast
            ), None

        return differentiate


# --- over feature channels --------------------------------------------------------------------------------------------


class _ChannelWindow(_EnergyParameters):
    """The window of a normalization over channels."""

    _names = ("alpha", "beta", "delta", "_kernel_size")
    _kernel_size: int

    @property
    def kernel_size(self) -> int:
        """Channels of the window, N. Default 5."""
        return self._kernel_size


class MPSCNNCrossChannelNormalization(_ChannelWindow, MPSCNNKernel):
    """Y[k] = X[k] / (delta + alpha / N · sum X[q]²) ^ beta (MPSCNNNormalization.h, macOS 10.13).

    The sum runs over the N = ``kernel_size`` channels q = k - N // 2 .. k + (N - 1) // 2 of the pixel, those of them
    that there are among the channels read; N is not reduced where some are missing. This is local response
    normalization: PyTorch's ``local_response_norm(X, N, alpha, beta, k=delta)``. A divisor of 0 is undefined. Result as
    large as the source.
    """

    def __init__(self, device: MTLDevice, kernel_size: int = 5) -> None:
        super().__init__(device)
        self._kernel_size = _check_size(self, "kernel_size", kernel_size)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        size, divisor = self._kernel_size, self._divisor()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            region = read(values[0], source.window, source.edge_mode)
            return ops.cross_channel_normalization(region, size, divisor), None

        return operation


class MPSCNNCrossChannelNormalizationGradient(_ChannelWindow, _Gradient):
    """The derivative of `MPSCNNCrossChannelNormalization` (MPSCNNNormalization.h, macOS 10.13.4).

    With L the forward divisor without its exponent, and the channels r = k - (N - 1) // 2 .. k + N // 2,
    ``dX[k] = G[k] L[k]^-beta - 2 alpha beta / N · X[k] · sum(r) G[r] X[r] L[r]^(-beta - 1)``: the header's formula
    lacks 1 / N. An encode that returns an image takes parameters and window from the state; given a destination, it has
    them as they are set.
    """

    _forward_kernels = (MPSCNNCrossChannelNormalization,)

    def __init__(self, device: MTLDevice, kernel_size: int = 5) -> None:
        super().__init__(device)
        self._kernel_size = _check_size(self, "kernel_size", kernel_size)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        size, divisor = self._kernel_size, self._divisor()

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            region = read(source, geometry.source, geometry.edge_mode)
            result = ops.cross_channel_normalization_gradient(gradient, region, size, divisor)
            return read_adjoint(result, geometry.data, geometry.edge_mode), None

        return differentiate
