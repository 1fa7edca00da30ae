"""Convolutions with windows of any weights, Laplacian and Sobel (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import number
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.image_filter import MPSUnaryImageKernel, WindowedFilter
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.kernels.image_filters.gray import GRAY_WEIGHTS, gray_weights
from openmps.kernels.image_filters.window_values import as_window, window_values
from openmps.metal.device import MTLDevice
from openmps.ops.elements import COMPONENTS
from openmps.ops.image.colour import Gray
from openmps.ops.image.readings import SOBEL_SHARE, Opaque, Scaled
from openmps.ops.image.windows import Correlate, GradientMagnitude
from openmps.ops.op import Value

_LAPLACIAN = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)
_BIAS = "Added to the sum of every window. Default 0."


class MPSImageConvolution(WindowedFilter):
    """Y = bias + the weighted sum of a window, channel by channel (MPSImageConvolution.h, macOS 10.13).

    ``Y[y, x] = bias + sum over v, u of weights[v, u] X[y + v - kernel_height / 2, x + u - kernel_width / 2]``: the
    weights, row by row, lie on the picture as they are written, without a flip, unless the convention
    ``convolution_flip`` turns them. ``weights`` are copied.

    Raises:
        MPSArgumentError: A size is even or not positive, or there are not as many finite weights as the window has.
    """

    _is_by_rows = True

    bias = KernelProperty(0.0, number, _BIAS)
    weights = Fixed[tuple[float, ...]]("The weights of the window, row by row. Our addition.")

    def __init__(
        self, device: MTLDevice, kernel_width: int, kernel_height: int, weights: Sequence[float] | NDArray[Any]
    ) -> None:
        super().__init__(device)
        self._set_odd_window(kernel_width, kernel_height)
        self._change(weights=window_values(self.name, "weights", weights, kernel_width, kernel_height))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        pixels, unit = self._measured_pixels(at, images)
        weights = as_window(self.weights, self.kernel_width, self.kernel_height) * np.float32(unit)
        if self.conventions["convolution_flip"] == "flipped":
            weights = np.ascontiguousarray(weights[::-1, ::-1])
        return Correlate(self.bias)(pixels, at.constant(weights))


class MPSImageLaplacian(MPSUnaryImageKernel):
    """Y = bias + the sum of the four neighbours less four times the pixel (MPSImageConvolution.h, macOS 10.13).

    Numbers below 0 are stored as 0 in unorm formats: use `bias`, or a destination of floats.
    """

    _is_by_rows = True

    bias = KernelProperty(0.0, number, _BIAS)

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._set_window(3, 3, 1, 1)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        pixels, unit = self._measured_pixels(at, images)
        return Correlate(self.bias)(pixels, at.constant(_LAPLACIAN * np.float32(unit)))


class MPSImageSobel(MPSUnaryImageKernel):
    """The length of Sobel's two differences, ``sqrt(Gx² + Gy²)`` (MPSImageConvolution.h, macOS 10.13).

    With ``Gx = [-1 0 1; -2 0 2; -1 0 1]`` and ``Gy = [1 2 1; 0 0 0; -1 -2 -1]`` on each channel, alpha too; on the gray
    value ``color_transform . (R, G, B)`` where the destination has one channel and the source has several. Not scaled:
    of pixels of 0 … 1 it is up to the root of 20, and cut at 1 in unorm formats.

    Raises:
        MPSArgumentError: In an encode, the source has more than 4 channels, and the destination one.
    """

    _is_by_rows = True

    color_transform = Fixed[tuple[float, float, float]](
        "Weights of red, green and blue in the gray value; 0.299, 0.587, 0.114 unless given.", GRAY_WEIGHTS
    )

    def __init__(self, device: MTLDevice, linear_gray_color_transform: Sequence[float] | None = None) -> None:
        super().__init__(device)
        self._set_window(3, 3, 1, 1)
        argument = "linear_gray_color_transform"
        self._change(color_transform=gray_weights(self.name, argument, linear_gray_color_transform))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        is_gray = at.target.channels == 1 < at.sources[0].channels
        pixels = Gray(self.color_transform)(at.read(images[0])) if is_gray else self._pixels(at, images)
        found = GradientMagnitude()(pixels)
        if self.conventions["sobel_scale"] == "quarter":
            found = Scaled(SOBEL_SHARE)(found)
        has_alpha = at.target.channels == COMPONENTS
        return Opaque()(found) if has_alpha and self.conventions["sobel_alpha"] == "one" else found
