"""Pooling and its gradients (MPSCNNPooling.h, macOS 10.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.encode import ImageKernel, Operation, Plan
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.padding.policy import exclude_edges_zero_pad
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.pooling import (
    average_pooling,
    average_pooling_gradient,
    l2_norm_pooling,
    l2_norm_pooling_gradient,
    max_pooling,
    max_pooling_gradient,
)
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MTLSize

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


def _set_window(kernel: ImageKernel, width: int, height: int, stride_x: int, stride_y: int, sources: Any) -> None:
    """Give every source of a pooling kernel its window; all four numbers are at least 1."""
    named = {
        "kernel_width": width,
        "kernel_height": height,
        "stride_in_pixels_x": stride_x,
        "stride_in_pixels_y": stride_y,
    }
    _check_counts(kernel, named)
    for source in sources:
        source.kernel_width, source.kernel_height = width, height
        source.stride_x, source.stride_y = stride_x, stride_y


def _set_dilation(kernel: ImageKernel, dilation_x: int, dilation_y: int, sources: Any) -> None:
    """Give every source of a pooling kernel its distance between taps; both numbers are at least 1."""
    _check_counts(kernel, {"dilation_rate_x": dilation_x, "dilation_rate_y": dilation_y})
    for source in sources:
        source.dilation_x, source.dilation_y = dilation_x, dilation_y


def _check_counts(kernel: ImageKernel, named: dict[str, int]) -> None:
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise MPSArgumentError(kernel.name, name, "must be an integer of at least 1", repr(value))


class MPSCNNPooling(MPSCNNKernel):
    """The base of pooling kernels (MPSCNNPooling.h, macOS 10.13).

    Result pixel x reads the taps ``stride * x + offset - k // 2 + p``, p = 0..k-1, of each channel. The stride is 1
    unless given. The edge mode of a kernel is ZERO (that of a graph node CLAMP).
    """

    _gradient_state_class = MPSNNGradientState

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device)
        _set_window(self, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y, self._sources)


class _LargestOfWindow(MPSCNNPooling):
    """Max pooling, which tells its state where the largest numbers were."""

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        return _largest(sources[0], with_choice=True)

    def without_state(self, plan: Plan) -> Plan:
        """The plan without finding out where the largest numbers are."""
        return plan._replace(operation=_largest(plan.sources[0], with_choice=False))


def _largest(source: SourceRecord, *, with_choice: bool) -> Operation:
    def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, Tensor | None]:
        return max_pooling(values[0], source.window, source.edge_mode, with_choice=with_choice)

    return operation


class MPSCNNPoolingMax(_LargestOfWindow):
    """Y = the largest of the window's numbers (MPSCNNPooling.h, macOS 10.13).

    Outside the image ZERO counts as 0, which overrides negative numbers at the border; CLAMP repeats the edge pixel.
    NaN wins.
    """


class MPSCNNDilatedPoolingMax(_LargestOfWindow):
    """Y = the largest of numbers that lie `dilation_rate_x` and `dilation_rate_y` apart (MPSCNNPooling.h, macOS 10.13).

    Result pixel x reads the taps ``stride * x + offset - ((k - 1) d + 1) // 2 + d p``, p = 0..k-1. Outside the image
    ZERO counts as 0; CLAMP repeats the edge pixel, which counts though it may lie between taps. NaN wins.
    """

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        dilation_rate_x: int,
        dilation_rate_y: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        _set_dilation(self, dilation_rate_x, dilation_rate_y, self._sources)


class MPSCNNPoolingL2Norm(MPSCNNPooling):
    """Y = sqrt(sum v²) over the window's numbers v, not divided by how many they are (MPSCNNPooling.h, macOS 10.13).

    Outside the image ZERO adds nothing; CLAMP repeats the edge pixel.
    """

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return l2_norm_pooling(values[0], source.window, source.edge_mode), None

        return operation


class _ZeroPad:
    """The zero padding that average pooling counts as part of the image when its edge mode is CLAMP."""

    _zero_pad_x: int
    _zero_pad_y: int

    @property
    def zero_pad_size_x(self) -> int:
        """Columns of zeros on each side that count as pixels of the image when the edge mode is CLAMP. Default 0."""
        return self._zero_pad_x

    @zero_pad_size_x.setter
    def zero_pad_size_x(self, value: int) -> None:
        self._zero_pad_x = _zero_pad(self, "zero_pad_size_x", value)

    @property
    def zero_pad_size_y(self) -> int:
        """Rows of zeros on each side that count as pixels of the image when the edge mode is CLAMP. Default 0."""
        return self._zero_pad_y

    @zero_pad_size_y.setter
    def zero_pad_size_y(self, value: int) -> None:
        self._zero_pad_y = _zero_pad(self, "zero_pad_size_y", value)


def _zero_pad(kernel: Any, argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MPSArgumentError(kernel.name, argument, "must be an integer of at least 0", repr(value))
    return value


class MPSCNNPoolingAverage(_ZeroPad, MPSCNNPooling):
    """Y = the sum of the window's numbers / N (MPSCNNPooling.h, macOS 10.13).

    With edge mode ZERO, N is always the number of taps. With CLAMP the window is cut to the image, enlarged by
    `zero_pad_size_x` and `zero_pad_size_y` columns and rows of zeros, and N counts the taps left; a window wholly
    outside gives 0. A padding policy with the EXCLUDE_EDGES bit averages as CLAMP does, over the padded image.
    """

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        self._zero_pad_x = self._zero_pad_y = 0

    def _divisor(self) -> tuple[MPSImageEdgeMode, tuple[int, int]]:
        """The edge mode and zero padding that decide N."""
        method = int(self.padding.padding_method())
        if method & MPSNNPaddingMethod.EXCLUDE_EDGES:
            pads = (
                exclude_edges_zero_pad(method, self.kernel_width),
                exclude_edges_zero_pad(method, self.kernel_height),
            )
            return MPSImageEdgeMode.CLAMP, pads
        return self.edge_mode, (self._zero_pad_x, self._zero_pad_y)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        edge_mode, zero_pad = self._divisor()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return average_pooling(values[0], source.window, edge_mode, zero_pad), None

        return operation

    def _parameters(self) -> Any:
        return self._divisor()


class MPSCNNPoolingGradient(MPSCNNGradientKernel):
    """The base of pooling gradients (MPSCNNPooling.h, macOS 10.13.4). Strides and window are the forward kernel's.

    Gradient pixels ``primary_offset`` to ``primary_offset + source_size`` are used; pixel ``primary_offset + t``
    belongs to the window centred at source pixel ``secondary_offset + stride * t``. Pixels that no window reads get 0.
    """

    _strides = range(1, 2**63)

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device)
        _set_window(self, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y, self._sources)

    @property
    def source_size(self) -> MTLSize:
        """Columns and rows of gradient used from `primary_offset` on: the forward clip rectangle's. Default: all."""
        return self._source_size

    @source_size.setter
    def source_size(self, value: MTLSize) -> None:
        if not isinstance(value, MTLSize):
            raise MPSTypeError(self.name, "source_size", "must be an MTLSize", type(value).__name__)
        self._source_size = value


class _LargestOfWindowGradient(MPSCNNPoolingGradient):
    """The gradient of max pooling; the maxima are those that the state remembers, or are found again."""

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        is_remembered = _reads_alike(states, geometry, sources[1])

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            choice = saved if is_remembered and saved is not None and len(saved) == len(gradient) else None
            return max_pooling_gradient(gradient, source, choice, geometry.source, geometry.edge_mode), None

        return differentiate


def _reads_alike(states: MPSStateBatch | None, geometry: GradientGeometry, source: SourceRecord) -> bool:
    """Whether the forward encode of these states read the same windows of the same channels as the gradient does."""
    for state in states.counted() if states is not None else ():
        record = state.record if isinstance(state, MPSNNGradientState) else None
        if record is None:
            return False
        read = record.sources[0]
        if (read.window, read.edge_mode) != (geometry.source, geometry.edge_mode):
            return False
        if (read.channel, read.channels) != (source.channel, source.channels):
            return False
    return states is not None


class MPSCNNPoolingMaxGradient(_LargestOfWindowGradient):
    """dX = the sum of G over the windows whose maximum the pixel is (MPSCNNPooling.h, macOS 10.13.4).

    Of equal numbers the first in row-major order takes the gradient. Where the maximum is a 0 outside the image (edge
    mode ZERO) the gradient is lost; with CLAMP it goes to the edge pixel.
    """

    _forward_kernels = (MPSCNNPoolingMax,)


class MPSCNNDilatedPoolingMaxGradient(_LargestOfWindowGradient):
    """As `MPSCNNPoolingMaxGradient`, of max pooling with dilated windows (MPSCNNPooling.h, macOS 10.13.4)."""

    _forward_kernels = (MPSCNNDilatedPoolingMax,)

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        dilation_rate_x: int,
        dilation_rate_y: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        _set_dilation(self, dilation_rate_x, dilation_rate_y, self._sources)


class MPSCNNPoolingL2NormGradient(MPSCNNPoolingGradient):
    """dX = X · the sum of G / Y over the windows that read the pixel, Y their norm (MPSCNNPooling.h, macOS 10.13.4).

    The norms are computed again from the forward source. Where one is 0, it gives no gradient.
    """

    _forward_kernels = (MPSCNNPoolingL2Norm,)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return l2_norm_pooling_gradient(gradient, source, geometry.source, geometry.edge_mode), None

        return differentiate


class MPSCNNPoolingAverageGradient(_ZeroPad, MPSCNNPoolingGradient):
    """dX = the sum of G / N over the windows that read the pixel (MPSCNNPooling.h, macOS 10.13.4); N as in the forward.

    `secondary_edge_mode`, `zero_pad_size_x` and `zero_pad_size_y` are the forward kernel's.
    """

    _forward_kernels = (MPSCNNPoolingAverage,)

    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device, kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        self._zero_pad_x = self._zero_pad_y = 0

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        if record.parameters is not None:
            self.secondary_edge_mode, (self._zero_pad_x, self._zero_pad_y) = record.parameters

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        zero_pad = (self._zero_pad_x, self._zero_pad_y)

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            return average_pooling_gradient(gradient, geometry.source, geometry.edge_mode, zero_pad), None

        return differentiate
