"""Pooling and its gradients (MPSCNNPooling.h, macOS 10.13)."""

from __future__ import annotations

import math

from openmps.checks import of_kind
from openmps.convention import Conventions
from openmps.core.kernel.base import KernelProperties
from openmps.core.kernel.configuration import Configured, KernelProperty, at_least
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.padding.geometry import exclude_edges_zero_pad
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.ops.pointwise.neuron import ReplaceNaN
from openmps.ops.pooling.pooling import (
    AveragePooling,
    AveragePoolingGradient,
    L2NormPooling,
    L2NormPoolingGradient,
    LastMaximumGradient,
    MaxPooling,
    MaxPoolingGradient,
)
from openmps.selectors import takes
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MTLSize


class _Windows(KernelProperties):
    """The constructor of a kernel with windows."""

    @takes()
    def __init__(
        self,
        device: MTLDevice,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
    ) -> None:
        super().__init__(device)
        self._set_window(kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)


class _DilatedWindows(_Windows):
    """The constructor of a kernel with dilated windows."""

    @takes()
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
        self._set_dilation(dilation_rate_x, dilation_rate_y)


class MPSCNNPooling(_Windows, MPSCNNKernel, leaves=MPSNNGradientState):
    """The base of pooling kernels (MPSCNNPooling.h, macOS 10.13).

    Result pixel x reads the taps ``stride * x + offset - k // 2 + p``, p = 0..k-1, of each channel. The stride is 1
    unless given. The edge mode of a kernel is ZERO (that of a graph node CLAMP).
    """


class _LargestOfWindow(MPSCNNPooling):
    """Max pooling, which tells its state where the largest numbers were."""

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        largest, choice = MaxPooling(at.window, at.edge_mode)(_numbers(self.conventions, images[0]))
        at.saves(choice)
        return largest


def _numbers(conventions: Conventions, image: Value) -> Value:
    """An image whose NaN no maximum is, by a convention."""
    return ReplaceNaN(-math.inf)(image) if conventions.unnoted("maxima_of_nan") == "lost" else image


class MPSCNNPoolingMax(_LargestOfWindow):
    """Y = the largest of the window's numbers (MPSCNNPooling.h, macOS 10.13).

    Outside the image ZERO counts as 0, which overrides negative numbers at the border; CLAMP repeats the edge pixel.
    NaN wins, unless the convention ``maxima_of_nan`` leaves it out.
    """


class MPSCNNDilatedPoolingMax(_DilatedWindows, _LargestOfWindow):
    """Y = the largest of numbers that lie `dilation_rate_x` and `dilation_rate_y` apart (MPSCNNPooling.h, macOS 10.13).

    Result pixel x reads the taps ``stride * x + offset - ((k - 1) d + 1) // 2 + d p``, p = 0..k-1. Outside the image
    ZERO counts as 0; CLAMP repeats the edge pixel, which counts though it may lie between taps. NaN wins.
    """


class MPSCNNPoolingL2Norm(MPSCNNPooling):
    """Y = sqrt(sum v²) over the window's numbers v, not divided by how many they are (MPSCNNPooling.h, macOS 10.13).

    Outside the image ZERO adds nothing; CLAMP repeats the edge pixel, unless the convention ``l2_clamp`` leaves it out.
    """

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return L2NormPooling(at.window, norm_edge(self.conventions, at.edge_mode))(images[0])


def norm_edge(conventions: Conventions, edge_mode: MPSImageEdgeMode) -> MPSImageEdgeMode:
    """What norms read outside the image: nothing, by a convention, where the edge mode would repeat it."""
    is_left_out = edge_mode is MPSImageEdgeMode.CLAMP and conventions["l2_clamp"] == "left_out"
    return MPSImageEdgeMode.ZERO if is_left_out else edge_mode


class _ZeroPad(Configured):
    """The zero padding that average pooling counts as part of the image when its edge mode is CLAMP."""

    zero_pad_size_x = KernelProperty(
        0, at_least(0), "Columns of zeros on each side that count as pixels of the image when the edge mode is CLAMP."
    )
    zero_pad_size_y = KernelProperty(
        0, at_least(0), "Rows of zeros on each side that count as pixels of the image when the edge mode is CLAMP."
    )


class MPSCNNPoolingAverage(_ZeroPad, MPSCNNPooling):
    """Y = the sum of the window's numbers / N (MPSCNNPooling.h, macOS 10.13).

    With edge mode ZERO, N is always the number of taps. With CLAMP the window is cut to the image, enlarged by
    `zero_pad_size_x` and `zero_pad_size_y` columns and rows of zeros, and N counts the taps left; a window wholly
    outside gives 0. A padding policy with the EXCLUDE_EDGES bit averages as CLAMP does, over the padded image.
    """

    def _parameters(self) -> tuple[MPSImageEdgeMode, tuple[int, int]]:
        return counted_padding(self)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return AveragePooling(at.window, *self._parameters())(images[0])


def counted_padding(kernel: MPSCNNPoolingAverage) -> tuple[MPSImageEdgeMode, tuple[int, int]]:
    """The edge mode and the zero padding, x and y, that decide what averages are divided by."""
    method = int(kernel.padding.padding_method())
    if not method & MPSNNPaddingMethod.EXCLUDE_EDGES:
        return kernel.edge_mode, (kernel.zero_pad_size_x, kernel.zero_pad_size_y)
    if kernel.conventions["excluded_edges"] == "none":
        return MPSImageEdgeMode.CLAMP, (0, 0)
    windows = kernel.kernel_width, kernel.kernel_height
    x, y = (exclude_edges_zero_pad(method, extent) for extent in windows)
    return MPSImageEdgeMode.CLAMP, (x, y)


class MPSCNNPoolingGradient(_Windows, MPSCNNGradientKernel):
    """The base of pooling gradients (MPSCNNPooling.h, macOS 10.13.4). Strides and window are the forward kernel's.

    Gradient pixels ``primary_offset`` to ``primary_offset + source_size`` are used; pixel ``primary_offset + t``
    belongs to the window centred at source pixel ``secondary_offset + stride * t``. Pixels that no window reads get 0.
    """

    _strides = range(1, 2**63)

    @property
    def source_size(self) -> MTLSize:
        """Columns and rows of gradient used from `primary_offset` on: the forward clip rectangle's. Default: all."""
        return self._source_size

    @source_size.setter
    def source_size(self, value: MTLSize) -> None:
        of_kind(self.name, "source_size", value, MTLSize)
        self._source_size = value


class _LargestOfWindowGradient(MPSCNNPoolingGradient):
    """The gradient of max pooling; the maxima are those that the state remembers, or are found again.

    Of equal ones the first has the gradient, by the convention ``pooling_ties`` the last.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        source = _numbers(self.conventions, source)
        if self.conventions["pooling_ties"] == "last":
            return LastMaximumGradient(at.window, at.edge_mode)(gradient, source)
        choice = at.saved if _reads_alike(at) else None
        return MaxPoolingGradient(at.window, at.edge_mode)(gradient, source, choice)


def _reads_alike(at: GradientLoweringContext) -> bool:
    """Whether the forward encodes of the states read the same windows of the same channels as the gradient does."""
    given: Given | None = at.given
    source = at.sources[1]
    for record in () if given is None else given.records:
        read = record.sources[0]
        if (read.window, read.edge_mode) != (at.window, at.edge_mode):
            return False
        if (read.channel, read.channels) != (source.channel, source.channels):
            return False
    return given is not None


class MPSCNNPoolingMaxGradient(_LargestOfWindowGradient, of=MPSCNNPoolingMax):
    """dX = the sum of G over the windows whose maximum the pixel is (MPSCNNPooling.h, macOS 10.13.4).

    Of equal numbers the first in row-major order takes the gradient. Where the maximum is a 0 outside the image (edge
    mode ZERO) the gradient is lost; with CLAMP it goes to the edge pixel.
    """


class MPSCNNDilatedPoolingMaxGradient(_DilatedWindows, _LargestOfWindowGradient, of=MPSCNNDilatedPoolingMax):
    """As `MPSCNNPoolingMaxGradient`, of max pooling with dilated windows (MPSCNNPooling.h, macOS 10.13.4)."""


class MPSCNNPoolingL2NormGradient(MPSCNNPoolingGradient, of=MPSCNNPoolingL2Norm):
    """dX = X · the sum of G / Y over the windows that read the pixel, Y their norm (MPSCNNPooling.h, macOS 10.13.4).

    The norms are computed again from the forward source. Where one is 0, it gives no gradient.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        return L2NormPoolingGradient(at.window, norm_edge(self.conventions, at.edge_mode))(gradient, source)


class MPSCNNPoolingAverageGradient(_ZeroPad, MPSCNNPoolingGradient, of=MPSCNNPoolingAverage):
    """dX = the sum of G / N over the windows that read the pixel (MPSCNNPooling.h, macOS 10.13.4); N as in the forward.

    `secondary_edge_mode`, `zero_pad_size_x` and `zero_pad_size_y` are the forward kernel's.
    """

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        if record.parameters is not None:
            self.secondary_edge_mode, (self.zero_pad_size_x, self.zero_pad_size_y) = record.parameters

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        zero_pad = (self.zero_pad_size_x, self.zero_pad_size_y)
        return AveragePoolingGradient(at.window, at.edge_mode, zero_pad)(gradient)
